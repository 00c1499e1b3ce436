"""What a few judged queries add to the label-free weights.

    python -m benchmarks.run_labelled --data DIR --sets a,b --ensemble DIR --out FILE.json

For each set and number of judged queries, that many are drawn, the prior is learnt with them, and
the others are ranked with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import softmax

from benchmarks import datasets, measures
from benchmarks.evaluation import MAIN
from benchmarks.remembering import remembering
from benchmarks.systems import Exhaustive, opened
from uec.calibrating import N_SPANS, judged_ranks, look
from uec.calibration import PeakScale
from uec.ensemble import Ensemble
from uec.fusion import correlation
from uec.trust import TASKS, log_prior, log_trust

NUMBERS = (5, 10, 20, 50)
"""Of judged queries; sets with fewer use all but one."""


def curve(
    ensemble: Ensemble, dataset: datasets.RetrievalSet, n_draws: int, seed: int = 0
) -> dict[str, Any]:
    """Gain in nDCG@10 over the label-free prior, by the number of queries drawn; one value a draw.

    Both are measured on the queries that were not drawn; under "0" stands the label-free nDCG@10.
    """
    with opened(ensemble, dataset) as retriever:
        views = look(retriever, N_SPANS, "kron", seed)
        ranks = {task: views.by_member(task) for task in TASKS}
        alike = correlation(views.mean)
        labelled = judged_ranks(retriever, (dataset.queries, dataset.qrels))
        everything = Exhaustive(retriever, dataset.queries)
        scale = PeakScale.measure(np.concatenate([views.peaks(task) for task in TASKS]))
        evidence = scale.evidence(everything.peaks())

        def values(rows: np.ndarray) -> np.ndarray:
            given = labelled[rows] if len(rows) else None
            prior = log_prior(log_trust(ranks, labelled=given), alike)
            run = everything.run(softmax(prior + evidence, axis=1))
            per_query = measures.per_query("labelled", run, dataset.qrels)[MAIN]
            return np.array([per_query[query.query_id] for query in dataset.queries])

        rng = np.random.default_rng(seed)
        n_queries = len(dataset.queries)
        free = values(np.array([], dtype=int))
        result: dict[str, Any] = {"0": [float(free.mean())]}
        for n in NUMBERS:
            gains = []
            for _ in range(n_draws):
                rows = rng.permutation(n_queries)[: min(n, n_queries - 1)]
                kept = np.setdiff1d(np.arange(n_queries), rows)
                gains.append(float((values(rows) - free)[kept].mean()))
            result[str(n)] = gains
    return result


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--sets", required=True, help="Folders of DATA, comma separated.")
@click.option(
    "--ensemble",
    "ensemble_path",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="From `uec fit`, or kept by run_local.",
)
@click.option("--n-draws", default=10, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path, sets: str, ensemble_path: Path, n_draws: int, cache: Path | None, out: Path
) -> None:
    """Write FILE.json with the curve of each set and their average."""
    ensemble = remembering(Ensemble.load(ensemble_path), cache)
    curves = {}
    for name in sets.split(","):
        curves[name] = curve(ensemble, datasets.load_set(data, name), n_draws)
        shown = {n: round(float(np.mean(draws)), 4) for n, draws in curves[name].items()}
        click.echo(f"{name}: {shown}", err=True)
    by_number = {
        number: np.mean([own[number] for own in curves.values()], axis=0)
        for number in ["0", *map(str, NUMBERS)]
    }
    content = {
        "sets": curves,
        "average": {
            n: {"mean": float(np.mean(draws)), "standard deviation": float(np.std(draws))}
            for n, draws in by_number.items()
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(content["average"], indent=1))


if __name__ == "__main__":
    main()
