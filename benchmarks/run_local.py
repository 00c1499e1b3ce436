"""Compare members, baselines and UEC on sets in the BEIR layout.

    python -m benchmarks.run_local --data DIR --sets a,b --members m1,m2 --out FILE.json

Posteriors are fitted once, on English pairs that belong to none of the sets (or on --pairs). Runs
are kept in TREC's format beside FILE.json.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import datasets, measures
from benchmarks.remembering import remembering
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
from uec.fitting import fingerprint, fit_ensemble
from uec.laplace import FitSettings
from uec.manifest import require_equal
from uec.readers import read_pairs
from uec.records import MemberSpec, Pair
from uec.retriever import Retriever

MAIN = "nDCG@10"
"""The measure of the tests and oracles."""

RISKS = (0.05, 0.1, 0.2)
"""Shares of queries that may be answered with a wrong best hit."""

BRIEFLY = ("uniform-fusion", "uec", "uec, peaks off", "bm25", "uec + bm25", "uec + bm25, peaks off")


def parse_members(text: str) -> list[MemberSpec]:
    """``NAME`` (a packaged encoder) or ``NAME=MODEL``, comma separated."""
    specs = []
    for item in text.split(","):
        name, _, model = item.strip().partition("=")
        specs.append(MemberSpec(name, model or f"pkg:{name}"))
    return specs


@dataclass(frozen=True, slots=True)
class SetResult:
    """What one set gave.

    Attributes:
        table: system to measure to mean.
        per_query: system to (n,) nDCG@10 in the order of the queries.
        calibrations: system and seed to the calibration's report.
        oracles: figures that need the labels, by name.
        confidence: system to how far its probabilities and confidences can be trusted, by name.
    """

    table: dict[str, dict[str, float]]
    per_query: dict[str, np.ndarray]
    calibrations: dict[str, Mapping[str, Any]]
    oracles: dict[str, Any]
    confidence: dict[str, dict[str, float]]


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
    table: dict[str, dict[str, float]] = {}
    per_query: dict[str, np.ndarray] = {}
    reports: dict[str, Mapping[str, Any]] = {}
    confidence: dict[str, dict[str, float]] = {}

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
                table[system] = measures.summary(values)
                per_query[system] = np.array([values[MAIN][q.query_id] for q in dataset.queries])
        for seed, calibration in zip(seeds, [first, *others], strict=True):
            reports[f"{name}, seed {seed}"] = calibration.report or {}
        best = max(ensemble.names, key=lambda member: table[member][MAIN])
        confidence[name] = _confidence(
            calibrated(retriever, first), dataset, per_query[name], best, per_query[best]
        )

    kept = {*ensemble.names, *BRIEFLY}
    with opened(ensemble, dataset) as retriever:
        ask(retriever, "uec", systems)
        oracles = _oracles(retriever, dataset, per_query, brief)
    if bm25:
        with opened(ensemble, dataset, bm25=True) as retriever:
            ask(retriever, "uec + bm25", worded_systems)
    return SetResult(table, per_query, reports, oracles, confidence)


def _confidence(
    retriever: Retriever,
    dataset: datasets.RetrievalSet,
    values: np.ndarray,
    best_member: str,
    values_of_best: np.ndarray,
) -> dict[str, float]:
    """Calibration of the ten best hits' probability, nAUC@10 of confidences, risk of answers."""
    texts = [query.text for query in dataset.queries]
    own = retriever.search(texts)
    alone = retriever.search(texts, weights={best_member: 1.0}, beta=0.0)
    relevant = np.array(
        [
            [dataset.qrels[query.query_id].get(hit.doc_id, 0) > 0 for hit in ranking.hits]
            for query, ranking in zip(dataset.queries, own, strict=True)
        ]
    )
    probability = np.array([[hit.probability for hit in ranking.hits] for ranking in own])
    figures = {
        f"{name}, {hits}": value
        for hits, some in (("ten best hits", slice(None)), ("best hit", slice(0, 1)))
        for name, value in measures.calibration_error(
            probability[:, some].ravel(), relevant[:, some].ravel().astype(float)
        ).items()
    }
    abstention = retriever.ensemble.calibration.abstention
    assert abstention is not None
    for risk in RISKS:
        answered = probability[:, 0] > abstention.threshold(risk)
        figures[f"answered, max_risk {risk}"] = float(answered.mean())
        figures[f"answered wrongly, max_risk {risk}"] = float((answered & ~relevant[:, 0]).mean())
    for label, rankings, measured in (
        ("uec", own, values),
        ("best member", alone, values_of_best),
    ):
        scores = np.array([[hit.score for hit in ranking.hits] for ranking in rankings])
        variance = np.array([ranking.hits[0].variance for ranking in rankings])
        confidences = {
            "score": scores[:, 0],
            "margin": scores[:, 0] - scores[:, 1],
            "-sigma": -np.sqrt(variance),
        }
        if label == "uec":
            confidences["probability"] = probability[:, 0]
        for name, confidence in confidences.items():
            figures[f"nAUC@10, {label}, {name}"] = measures.normalised_abstention_auc(
                confidence, measured
            )
    return figures


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


def _require_fit(ensemble: Ensemble, specs: Sequence[MemberSpec], pairs: Sequence[Pair]) -> None:
    """Refuse a kept ensemble of other members or other pairs."""
    expected = {spec.name: [spec.model, fingerprint(pairs)] for spec in specs}
    got = {m.name: [m.spec.model, m.fit["pairs_sha256"]] for m in ensemble.members}
    require_equal("members", got, expected)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option(
    "--sets",
    required=True,
    help="Folders of DATA, comma separated; a+b pools two, a@b asks a's questions of b's corpus.",
)
@click.option("--members", required=True, help="Packaged names or NAME=MODEL, comma separated.")
@click.option("--pairs", type=click.Path(path_type=Path, exists=True), help="Pairs to fit on.")
@click.option("--n-pairs", default=1500, show_default=True)
@click.option(
    "--ensemble",
    "ensemble_path",
    type=click.Path(path_type=Path),
    help="Use the ensemble in this folder; fit it and keep it there if there is none.",
)
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--seeds", default="0", show_default=True, help="Of the calibration; a,b,c.")
@click.option("--brief", is_flag=True, help="Only members, uniform fusion and UEC.")
@click.option("--bm25", is_flag=True, help="Also with the words of each corpus as a member.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path,
    sets: str,
    members: str,
    pairs: Path | None,
    n_pairs: int,
    ensemble_path: Path | None,
    cache: Path | None,
    seeds: str,
    brief: bool,
    bm25: bool,
    out: Path,
) -> None:
    """Write FILE.json with every measure of every system on every set."""
    specs = parse_members(members)
    competence: list[Pair] = (
        list(read_pairs(pairs))[:n_pairs] if pairs else datasets.english_pairs(data, n_pairs)
    )
    settings = FitSettings()
    if ensemble_path is not None and ensemble_path.exists():
        ensemble = Ensemble.load(ensemble_path)
    else:
        click.echo(f"fitting {len(specs)} members on {len(competence)} pairs", err=True)
        ensemble = fit_ensemble(specs, {spec.name: competence for spec in specs}, settings)
        if ensemble_path is not None:
            ensemble.save(ensemble_path)
    _require_fit(ensemble, specs, competence)
    results: dict[str, SetResult] = {}
    for name in sets.split(","):
        dataset = datasets.named(data, name)
        runs = out.with_suffix(".runs")
        numbers = [int(seed) for seed in seeds.split(",")]
        results[name] = evaluate_set(
            remembering(ensemble, cache), dataset, runs, numbers, brief, bm25
        )
        shown = {system: round(row[MAIN], 4) for system, row in results[name].table.items()}
        click.echo(f"{name}: {shown}", err=True)
    tables = {name: result.table for name, result in results.items()}
    content = {
        "sets": tables,
        "average": average(tables),
        "against": {
            system: compare(results, system)
            for system in ("uec", *(["uec + bm25"] if bm25 else []))
        },
        "confidence": {name: result.confidence for name, result in results.items()},
        "oracles": {name: result.oracles for name, result in results.items()},
        "calibrations": {name: result.calibrations for name, result in results.items()},
        "settings": {
            "members": {spec.name: spec.model for spec in specs},
            "pairs": str(pairs.name) if pairs else "english pairs of benchmarks.datasets",
            "n_pairs": len(competence),
            "fit": dataclasses.asdict(settings),
            "reports": {m.name: dict(m.fit["report"]) for m in ensemble.members},
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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


if __name__ == "__main__":
    main()
