"""Compare members, baselines and UEC on sets in the BEIR layout.

    python -m benchmarks.run_local --data DIR --sets a,b --members m1,m2 --out FILE.json

Posteriors are fitted once, on English pairs that belong to none of the sets (or on --pairs). Runs
are kept in TREC's format beside FILE.json.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import click
import numpy as np

from benchmarks import datasets, measures
from benchmarks.remembering import remembering
from benchmarks.systems import systems
from uec.build import build_index
from uec.ensemble import Ensemble
from uec.fitting import fit_ensemble
from uec.laplace import FitSettings
from uec.readers import read_pairs
from uec.records import MemberSpec, Pair
from uec.retriever import Retriever


def parse_members(text: str) -> list[MemberSpec]:
    """``NAME`` (a packaged encoder) or ``NAME=MODEL``, comma separated."""
    specs = []
    for item in text.split(","):
        name, _, model = item.strip().partition("=")
        specs.append(MemberSpec(name, model or f"pkg:{name}"))
    return specs


def evaluate_set(
    ensemble: Ensemble, dataset: datasets.RetrievalSet, runs: Path
) -> dict[str, dict[str, float]]:
    """Build an index of one set, ask it for every system, and measure."""
    with tempfile.TemporaryDirectory() as folder:
        located = ((f"{dataset.name}:{i}", d) for i, d in enumerate(dataset.corpus, 1))
        build_index(ensemble, located, Path(folder) / "index")
        retriever = Retriever.open(Path(folder) / "index", verify=False)
        # Opening loads the encoders again; the systems share the ones that remember.
        retriever.ensemble = ensemble
        table = {}
        for name, system in systems(retriever).items():
            run = system(retriever, dataset.queries)
            measures.write_trec(runs / dataset.name / f"{name}.trec", name, run)
            values = measures.per_query(f"{dataset.name}/{name}", run, dataset.qrels)
            table[name] = measures.summary(values)
    return table


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--sets", required=True, help="Folders of DATA, comma separated; a+b pools two.")
@click.option("--members", required=True, help="Packaged names or NAME=MODEL, comma separated.")
@click.option("--pairs", type=click.Path(path_type=Path, exists=True), help="Pairs to fit on.")
@click.option("--n-pairs", default=1500, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path,
    sets: str,
    members: str,
    pairs: Path | None,
    n_pairs: int,
    cache: Path | None,
    out: Path,
) -> None:
    """Write FILE.json with every measure of every system on every set."""
    specs = parse_members(members)
    competence: list[Pair] = (
        list(read_pairs(pairs))[:n_pairs] if pairs else datasets.english_pairs(data, n_pairs)
    )
    settings = FitSettings()
    click.echo(f"fitting {len(specs)} members on {len(competence)} pairs", err=True)
    ensemble = fit_ensemble(specs, {spec.name: competence for spec in specs}, settings)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in sets.split(","):
        parts = [datasets.load_set(data, part) for part in name.split("+")]
        dataset = parts[0] if len(parts) == 1 else datasets.pool(name, parts)
        runs = out.with_suffix(".runs")
        results[name] = evaluate_set(remembering(ensemble, cache), dataset, runs)
        shown = {system: round(row["nDCG@10"], 4) for system, row in results[name].items()}
        click.echo(f"{name}: {shown}", err=True)
    content = {
        "sets": results,
        "average": average(results),
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
