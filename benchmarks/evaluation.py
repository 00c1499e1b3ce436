"""One set, one ensemble: every system asked, measured, and compared query by query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, measures
from benchmarks.systems import (
    Exhaustive,
    System,
    calibrated,
    opened,
    systems,
    weight_grid,
    worded_systems,
)
from uec.calibrating import calibrate
from uec.ensemble import Ensemble
from uec.records import Ranking
from uec.retriever import Retriever

MAIN = "nDCG@10"
"""The measure of the tests and oracles."""

RISKS = (0.05, 0.1, 0.2)
"""Shares of queries that may be answered with a wrong best hit."""

BRIEFLY = ("uniform-fusion", "uec", "uec, peaks off", "bm25", "uec + bm25", "uec + bm25, peaks off")


@dataclass(frozen=True, slots=True)
class SetResult:
    """What one set gave.

    Attributes:
        table: system to measure to mean, with the standard error of nDCG@10.
        per_query: system to (n,) nDCG@10 in the order of the queries.
        calibrations: system and seed to the calibration's report.
        oracles: figures that need the labels, by name.
        confidence: system to how far its probabilities and confidences can be trusted, by name.
        curves: system to points of its reliability diagram and of its risk-coverage curves.
        weights: system to part of the set to member to mean weight.
        cases: ids of queries that UEC answers and no member does, and the reverse.
    """

    table: dict[str, dict[str, float]]
    per_query: dict[str, np.ndarray]
    calibrations: dict[str, Mapping[str, Any]]
    oracles: dict[str, Any]
    confidence: dict[str, dict[str, float]]
    curves: dict[str, dict[str, Any]]
    weights: dict[str, dict[str, dict[str, float]]]
    cases: dict[str, list[str]]


def evaluate_set(
    ensemble: Ensemble,
    dataset: datasets.RetrievalSet,
    runs: Path,
    seeds: Sequence[int] = (0,),
    brief: bool = False,
    bm25: bool = False,
) -> SetResult:
    """Build an index of one set, calibrate it, ask it for every system, and measure.

    The first seed's calibration is "uec" with all its variants; the others are "uec, seed N".
    `brief` leaves out all systems but `BRIEFLY` and the members, and the search for the best fixed
    weights. `bm25` adds the systems of an index that has the words of its corpus.
    """
    result = SetResult({}, {}, {}, {}, {}, {}, {}, {})
    kept = {*ensemble.names, *BRIEFLY}

    def ask(retriever: Retriever, name: str, make: Callable[..., dict[str, System]]) -> None:
        first, *others = [calibrate(retriever, seed=seed) for seed in seeds]
        asked = make(retriever, first)
        for seed, calibration in zip(seeds[1:], others, strict=True):
            asked[f"{name}, seed {seed}"] = make(retriever, calibration)[name]
        for system, answer in asked.items():
            if not brief or system in kept or ", seed " in system:
                run = answer(dataset.queries)
                measures.write_trec(runs / dataset.name / f"{system}.trec", system, run)
                values = measures.per_query(f"{dataset.name}/{system}", run, dataset.qrels)
                own = np.array([values[MAIN][q.query_id] for q in dataset.queries])
                result.per_query[system] = own
                error = float(own.std(ddof=1) / np.sqrt(len(own)))
                result.table[system] = {**measures.summary(values), "standard error": error}
        for seed, calibration in zip(seeds, [first, *others], strict=True):
            result.calibrations[f"{name}, seed {seed}"] = calibration.report or {}
        _look_at_answers(calibrated(retriever, first), dataset, name, result)

    with opened(ensemble, dataset) as retriever:
        ask(retriever, "uec", systems)
        result.oracles.update(_oracles(retriever, dataset, result.per_query, brief))
    if bm25:
        with opened(ensemble, dataset, bm25=True) as retriever:
            ask(retriever, "uec + bm25", worded_systems)
    found = np.array([result.per_query[name] > 0 for name in ensemble.names])
    own = result.per_query["uec"] > 0
    ids = np.array([query.query_id for query in dataset.queries])
    result.cases["found by uec alone"] = ids[own & ~found.any(axis=0)].tolist()
    result.cases["missed by uec alone"] = ids[~own & found.all(axis=0)].tolist()
    return result


def _look_at_answers(
    retriever: Retriever, dataset: datasets.RetrievalSet, name: str, result: SetResult
) -> None:
    """Put what the first page of a calibrated retriever shows into the result."""
    names = retriever.ensemble.names
    best = max(names, key=lambda member: result.table[member][MAIN])
    texts = [query.text for query in dataset.queries]
    own = retriever.search(texts)
    alone = retriever.search(texts, weights={best: 1.0}, beta=0.0)
    relevant = np.array(
        [
            [dataset.qrels[query.query_id].get(hit.doc_id, 0) > 0 for hit in ranking.hits]
            for query, ranking in zip(dataset.queries, own, strict=True)
        ]
    )
    probability = np.array([[hit.probability for hit in ranking.hits] for ranking in own])
    figures = {
        f"{measure}, {hits}": value
        for hits, some in (("ten best hits", slice(None)), ("best hit", slice(0, 1)))
        for measure, value in measures.calibration_error(
            probability[:, some].ravel(), relevant[:, some].ravel().astype(float)
        ).items()
    }
    figures |= _risks(retriever, probability[:, 0], relevant[:, 0])
    curves: dict[str, Any] = {
        "reliability": measures.reliability(probability.ravel(), relevant.ravel().astype(float))
    }
    for label, rankings, measured in (
        ("uec", own, result.per_query[name]),
        ("best member", alone, result.per_query[best]),
    ):
        confidences = _confidences(rankings)
        if label == "uec":
            confidences["probability"] = probability[:, 0]
        for confidence, values in confidences.items():
            figures[f"nAUC@10, {label}, {confidence}"] = measures.normalised_abstention_auc(
                values, measured
            )
            curves[f"{label}, {confidence}"] = measures.abstention_curve(values, measured).tolist()
    result.confidence[name] = figures
    result.curves[name] = curves
    result.weights[name] = _mean_weights(own, dataset)


def _risks(retriever: Retriever, probability: np.ndarray, relevant: np.ndarray) -> dict[str, float]:
    """Share of queries answered, and answered wrongly, at each of `RISKS`."""
    abstention = retriever.ensemble.calibration.abstention
    assert abstention is not None
    figures = {}
    for risk in RISKS:
        answered = probability > abstention.threshold(risk)
        figures[f"answered, max_risk {risk}"] = float(answered.mean())
        figures[f"answered wrongly, max_risk {risk}"] = float((answered & ~relevant).mean())
    return figures


def _confidences(rankings: Sequence[Ranking]) -> dict[str, np.ndarray]:
    scores = np.array([[hit.score for hit in ranking.hits[:2]] for ranking in rankings])
    variance = np.array([ranking.hits[0].variance for ranking in rankings])
    return {
        "score": scores[:, 0],
        "margin": scores[:, 0] - scores[:, 1],
        "-sigma": -np.sqrt(variance),
    }


def _mean_weights(
    rankings: Sequence[Ranking], dataset: datasets.RetrievalSet
) -> dict[str, dict[str, float]]:
    """Part of the set, as `datasets.pool` marks ids, to member to mean weight."""
    parts: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for query, ranking in zip(dataset.queries, rankings, strict=True):
        part, pooled, _ = query.query_id.partition("/")
        parts[part if pooled else dataset.name].append(ranking.weights)
    return {
        part: {name: float(np.mean([w[name] for w in own])) for name in own[0]}
        for part, own in parts.items()
    }


def _oracles(
    retriever: Retriever,
    dataset: datasets.RetrievalSet,
    per_query: dict[str, np.ndarray],
    brief: bool,
) -> dict[str, Any]:
    """Upper bounds by labels: the best member of the set, of each query, and the best weights."""
    names = retriever.ensemble.names
    means = {name: float(per_query[name].mean()) for name in names}
    best = max(means, key=lambda name: means[name])
    oracles: dict[str, Any] = {
        "best member": best,
        "best member of the set": means[best],
        "best member of each query": float(np.max([per_query[n] for n in names], axis=0).mean()),
    }
    if not brief:
        grid = {}
        everything = Exhaustive(retriever, dataset.queries)
        for weights in weight_grid(len(names)):
            values = measures.per_query("grid", everything.run(weights), dataset.qrels)[MAIN]
            grid[weights] = float(np.mean(list(values.values())))
        weights_of_best = max(grid, key=lambda key: grid[key])
        oracles["best fixed weights"] = grid[weights_of_best]
        oracles["weights"] = dict(zip(names, weights_of_best, strict=True))
    return oracles


def compare(results: Mapping[str, SetResult], system: str) -> dict[str, Any]:
    """A system against each set's best member, and its average against every other's.

    Args:
        results: by set.
        system: name of the system.
    """
    by_set = {}
    for set_name, result in results.items():
        best = result.oracles["best member"]
        difference = result.per_query[system] - result.per_query[best]
        by_set[set_name] = {
            "best member": best,
            "difference": float(difference.mean()),
            "standard error": float(difference.std(ddof=1) / np.sqrt(len(difference))),
            "p_value": measures.paired_p_value(difference),
            "queries": len(difference),
        }
    others = [name for name in next(iter(results.values())).per_query if name != system]
    averages = {
        other: [r.per_query[system] - r.per_query[other] for r in results.values()]
        for other in others
    }
    averages["best member of each set"] = [
        r.per_query[system] - r.per_query[r.oracles["best member"]] for r in results.values()
    ]
    return {
        "by set": by_set,
        "average": {
            other: {
                "difference": float(np.mean([d.mean() for d in differences])),
                "p_value": measures.paired_p_value(*differences),
            }
            for other, differences in averages.items()
        },
    }


def average(results: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Mean over sets of each system's measures, each set counting once."""
    tables = list(results.values())
    return {
        system: {
            measure: float(np.mean([table[system][measure] for table in tables]))
            for measure in measures.MEASURES
        }
        for system in tables[0]
    }
