"""Markdown tables of what `run_local` wrote.

    python -m benchmarks.report benchmarks/results/local.json

Prints the measure of every system on every set, UEC against each set's best member with the paired
test, UEC against the other systems on average, the members' weights, and the confidences.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.evaluation import MAIN


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats get three digits."""
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    lines += ["| " + " | ".join(_shown(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _shown(cell: object) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _systems(content: dict[str, Any]) -> str:
    sets = content["sets"]
    rows: list[list[object]] = [
        [system, *(sets[name][system][MAIN] for name in sets), average[MAIN]]
        for system, average in content["average"].items()
    ]
    for oracle in ("best member of the set", "best fixed weights", "best member of each query"):
        values = [content["oracles"][name].get(oracle) for name in sets]
        if None not in values:
            rows.append([f"*{oracle} (labels)*", *values, sum(values) / len(values)])
    return table([MAIN, *sets, "average"], rows)


def _against(content: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, row["best member"], f"{row['difference']:+.4f}", row["p_value"], row["queries"]]
        for name, row in content["against"]["uec"]["by set"].items()
    ]
    by_set = table(["set", "best member", "UEC less best member", "p", "queries"], rows)
    others: list[list[object]] = [
        [name, f"{row['difference']:+.4f}", row["p_value"]]
        for name, row in content["against"]["uec"]["average"].items()
    ]
    return by_set + "\n\n" + table(["average, UEC less …", "difference", "p"], others)


def _weights(content: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for name, by_seed in content["calibrations"].items():
        for seed, report in by_seed.items():
            members = report["members"]
            said = [
                f"{m['weight']:.2f} ({m['quotation_mrr']:.2f}, {m['cloze_mrr']:.2f})"
                for m in members.values()
            ]
            rows.append([name, seed, *said])
    first = next(iter(next(iter(content["calibrations"].values())).values()))
    return table(["set", "seed", *first["members"]], rows)


def _confidence(content: dict[str, Any]) -> str:
    by_set = content["confidence"]
    names = list(next(iter(by_set.values())))
    rows = [[name, *(by_set[s][name] for s in by_set)] for name in names]
    return table(["", *by_set], rows)


@click.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
def main(path: Path) -> None:
    """Print the tables of one result file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for heading, part in (
        ("Systems", _systems(content)),
        ("UEC against the others", _against(content)),
        ("Weights (mean reciprocal rank of quotation, cloze)", _weights(content)),
        ("Confidence", _confidence(content)),
    ):
        click.echo(f"### {heading}\n\n{part}\n")


if __name__ == "__main__":
    main()
