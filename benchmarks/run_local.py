"""Compare members, baselines and UEC on sets in the BEIR layout.

    python -m benchmarks.run_local --data DIR --sets a,b --members m1,m2 --out FILE.json

Posteriors are fitted once, on English pairs that belong to none of the sets (or on --pairs). Runs
are kept in TREC's format beside FILE.json.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import datasets
from benchmarks.evaluation import MAIN, SetResult, average, compare, evaluate_set
from benchmarks.remembering import remembering
from uec.ensemble import Ensemble
from uec.fitting import fingerprint, fit_ensemble
from uec.laplace import FitSettings
from uec.manifest import require_equal
from uec.readers import read_pairs
from uec.records import MemberSpec, Pair


def parse_members(text: str) -> list[MemberSpec]:
    """``NAME`` (a packaged encoder) or ``NAME=MODEL``, comma separated."""
    specs = []
    for item in text.split(","):
        name, _, model = item.strip().partition("=")
        specs.append(MemberSpec(name, model or f"pkg:{name}"))
    return specs


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
        **{
            part: {name: getattr(result, part) for name, result in results.items()}
            for part in ("confidence", "curves", "weights", "cases", "oracles", "calibrations")
        },
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


if __name__ == "__main__":
    main()
