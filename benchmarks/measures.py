"""Measures by ir-measures, with the two faults that make a silent mean turned into errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import ir_measures
import numpy as np
from ir_measures import RR, R, nDCG
from scipy.integrate import trapezoid

from uec.errors import InputError

Run = Mapping[str, Mapping[str, float]]
"""Query id to document id to score."""

Qrels = Mapping[str, Mapping[str, int]]

MEASURES = {"nDCG@10": nDCG @ 10, "Recall@100": R @ 100, "MRR": RR}


def check_run(name: str, run: Run, qrels: Qrels) -> None:
    """Refuse a run that a mean would flatter.

    Raises:
        InputError: a judged query has no documents, or a score is NaN or infinite.
    """
    missing = sorted(query_id for query_id in qrels if not run.get(query_id))
    if missing:
        raise InputError(f"{name}: {len(missing)} judged queries have no result: {missing[:3]}")
    for query_id, scores in run.items():
        if not all(math.isfinite(score) for score in scores.values()):
            raise InputError(f"{name}: query {query_id!r} has a score that is NaN or infinite")


def per_query(name: str, run: Run, qrels: Qrels) -> dict[str, dict[str, float]]:
    """Each measure of each judged query: measure to query id to value."""
    check_run(name, run, qrels)
    by_object = {measure: label for label, measure in MEASURES.items()}
    values: dict[str, dict[str, float]] = {label: {} for label in MEASURES}
    for metric in ir_measures.iter_calc(list(by_object), qrels, run):
        values[by_object[metric.measure]][metric.query_id] = metric.value
    return values


def summary(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Mean of each measure and the number of queries behind it."""
    means = {label: float(np.mean(list(v.values()))) for label, v in values.items()}
    return {**means, "queries": len(next(iter(values.values())))}


def paired_p_value(*differences: np.ndarray, seed: int = 0, n_draws: int = 10_000) -> float:
    """Two-sided randomisation test of the mean difference of two systems over the same queries.

    Signs of the per-query differences are flipped at random (Smucker et al. 2007, CIKM).

    Args:
        differences: one array a set of queries; each set's mean counts the same.
        seed: of the signs.
        n_draws: of the signs; the least p is one over it.
    """
    rng = np.random.default_rng(seed)
    observed = abs(np.mean([difference.mean() for difference in differences]))
    drawn = np.zeros(n_draws)
    for difference in differences:
        signs = rng.integers(0, 2, (n_draws, len(difference)), dtype=np.int8)
        drawn += 2 * (signs @ difference.astype(np.float32)) / len(difference) - difference.mean()
    extreme = np.abs(drawn / len(differences)) >= observed - 1e-6
    return float((extreme.sum() + 1) / (n_draws + 1))


def calibration_error(
    probabilities: np.ndarray, relevant: np.ndarray, n_bins: int = 10
) -> dict[str, float]:
    """How far probabilities are from the shares that come true.

    Args:
        probabilities: (n,) in 0..1.
        relevant: (n,) 0 or 1.
        n_bins: of equal width.

    Returns:
        "ECE": mean over the hits of the distance, in their bin, of mean probability and share
        (Guo et al. 2017, ICML); "Var-ECE": variance of that distance over the hits, high where the
        error is that of a few bins.
    """
    bins = np.minimum((probabilities * n_bins).astype(int), n_bins - 1)
    distance = np.empty(len(bins))
    for b in np.unique(bins):
        within = bins == b
        distance[within] = abs(probabilities[within].mean() - relevant[within].mean())
    return {"ECE": float(distance.mean()), "Var-ECE": float(distance.var())}


def reliability(
    probabilities: np.ndarray, relevant: np.ndarray, n_bins: int = 10
) -> list[tuple[float, float, int]]:
    """Points of a reliability diagram: mean probability, share relevant and hits of each bin."""
    bins = np.minimum((probabilities * n_bins).astype(int), n_bins - 1)
    return [
        (float(probabilities[own].mean()), float(relevant[own].mean()), int(own.sum()))
        for own in (bins == b for b in np.unique(bins))
    ]


ABSTENTION_RATES = np.linspace(0, 1, 11)[:-1]


def abstention_curve(confidence: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean value of the queries kept at each of `ABSTENTION_RATES`; arguments as below."""
    kept = values[np.argsort(confidence, kind="stable")]
    n_left_out = np.minimum(np.round(ABSTENTION_RATES * len(kept)).astype(int), len(kept) - 1)
    return np.array([kept[n:].mean() for n in n_left_out])


def normalised_abstention_auc(confidence: np.ndarray, values: np.ndarray) -> float:
    """What a confidence is worth for leaving out the queries that go wrong: mteb's nAUC.

    Area under the mean value of the queries kept, over the share left out (0 to 90 %), between that
    of leaving out at random (0) and by the value itself (1); Gisserot-Boukhlef et al. 2024
    (arXiv 2402.12997).

    Args:
        confidence: (n,) higher for queries to keep.
        values: (n,) the measure, such as nDCG@10.
    """

    def area(by: np.ndarray) -> float:
        return float(trapezoid(abstention_curve(by, values), ABSTENTION_RATES))

    flat = float(values.mean() * (ABSTENTION_RATES[-1] - ABSTENTION_RATES[0]))
    best = area(values)
    return (area(confidence) - flat) / (best - flat) if best > flat else 0.0


def write_trec(path: Path, tag: str, run: Run) -> None:
    """Write a run in TREC's format, best first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for query_id, scores in run.items():
            ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
            for rank, (doc_id, score) in enumerate(ranked, 1):
                file.write(f"{query_id} Q0 {doc_id} {rank} {score:.6f} {tag}\n")
