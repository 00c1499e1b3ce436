"""Tables and figures of what `run_local` wrote.

    python -m benchmarks.report benchmarks/results/local.json --html benchmarks/results/report.html

Prints Markdown: the measure of every system on every set, UEC against each set's best member with
the paired test, UEC against the other systems on average, the members' weights, the confidences.
The page shows the same as sortable tables and figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.evaluation import MAIN
from benchmarks.measures import ABSTENTION_RATES
from uec import drawing, page
from uec.page import Bullets, Column, Figure, Fold, Note, Section, Table

Content = Mapping[str, Any]

ORACLES = ("best member of the set", "best fixed weights", "best member of each query")

WELL_CALIBRATED = 0.05

LEAST_HITS = 20
"""Hits behind a point of a reliability diagram."""

MANY = 12
"""Ids of hard cases shown a set."""


def markdown(table: Table) -> str:
    """A Markdown table; floats get their column's digits."""
    lines = ["| " + " | ".join(column.name for column in table.columns) + " |"]
    lines.append("|" + " --- |" * len(table.columns))
    for row in table.rows:
        cells = [
            format(cell, column.form) if isinstance(cell, float) else str(cell)
            for column, cell in zip(table.columns, row, strict=True)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _columns(first: str, names: Iterable[str], form: str = ".3f", best: bool = False) -> list[Any]:
    return [Column(first), *(Column(n, form, "high" if best else None) for n in names)]


def systems_table(content: Content) -> Table:
    """Every system on every set, and the bounds that need labels."""
    sets = content["sets"]
    rows: list[list[Any]] = [
        [system, *(sets[name][system][MAIN] for name in sets), average[MAIN]]
        for system, average in content["average"].items()
    ]
    for oracle in ORACLES:
        values = [content["oracles"][name].get(oracle) for name in sets]
        if None not in values:
            rows.append([f"{oracle} (labels)", *values, float(np.mean(values))])
    return Table(_columns(MAIN, [*sets, "average"]), rows)


def by_set_table(content: Content, system: str) -> Table:
    """A system against the best member of each set."""
    parts = ("best member", "difference", "standard error", "p_value", "queries")
    rows = [
        [name, *(row[part] for part in parts)]
        for name, row in content["against"][system]["by set"].items()
    ]
    columns = [
        *(Column("set"), Column("best member"), Column(f"{system} less best member", "+.4f")),
        *(Column("standard error", ".4f"), Column("p", ".3f"), Column("queries")),
    ]
    return Table(columns, rows)


def average_table(content: Content, system: str) -> Table:
    """A system against every other, mean over sets."""
    rows = [
        [name, row["difference"], row["p_value"]]
        for name, row in content["against"][system]["average"].items()
    ]
    columns = [Column("other"), Column(f"{system} less other", "+.4f"), Column("p", ".3f")]
    return Table(columns, rows)


def prior_table(content: Content) -> Table:
    """Prior and the reciprocal ranks behind it, by set and calibration."""
    rows: list[list[Any]] = []
    for name, reports in content["calibrations"].items():
        for calibration, report in reports.items():
            for member, said in report["members"].items():
                values = [said["weight"], said["quotation_mrr"], said["cloze_mrr"]]
                rows.append([name, calibration, member, *values])
    columns = _columns("set", ["calibration", "member"])
    return Table([*columns, *(Column(n, ".2f") for n in ("prior", "quotation", "cloze"))], rows)


def confidence_table(content: Content, system: str) -> Table:
    """How far the probabilities of a system can be trusted, on each set."""
    by_set = {name: own[system] for name, own in content["confidence"].items()}
    measures = next(iter(by_set.values()))
    rows = [[m, *(own[m] for own in by_set.values())] for m in measures]
    return Table(_columns("", by_set), rows)


def seeds_table(content: Content) -> Table | None:
    """UEC by the seed of its spans; None where there was one."""
    seeded = [name for name in content["average"] if ", seed " in name]
    if not seeded:
        return None
    rows = []
    for base in content["against"]:
        for system in [base, *(name for name in seeded if name.startswith(f"{base}, seed"))]:
            own = [table[system][MAIN] for table in content["sets"].values()]
            rows.append([system, *own, float(np.mean(own))])
    return Table(_columns("seed", [*content["sets"], "average"]), rows)


def headline(content: Content) -> Figure:
    """Average of every system with 95 % intervals over queries."""
    sets = content["sets"].values()
    means = {name: own[MAIN] for name, own in content["average"].items() if ", seed" not in name}
    errors = {
        name: 1.96
        * float(np.sqrt(sum(table[name]["standard error"] ** 2 for table in sets)))
        / len(sets)
        for name in means
    }
    return drawing.bars(
        means,
        errors=errors,
        form=".3f",
        axis=f"{MAIN}, mean over sets",
        caption=f"Mean {MAIN} over {len(sets)} sets; bars are 95 % intervals over queries.",
        alt=", ".join(f"{name} {value:.3f}" for name, value in means.items()),
    )


def differences(content: Content, system: str) -> Figure:
    """A system less the best member of each set, with 95 % intervals."""
    rows = content["against"][system]["by set"]
    values = {name: row["difference"] for name, row in rows.items()}
    return drawing.bars(
        values,
        errors={name: 1.96 * row["standard error"] for name, row in rows.items()},
        form="+.3f",
        ordered=False,
        axis=f"{system} less best member, {MAIN}",
        caption=f"{system} against the member that the labels say is best on each set.",
        alt=", ".join(f"{name} {value:+.3f}" for name, value in values.items()),
    )


def weights(content: Content, system: str) -> Figure:
    """Mean weight of each member on each set, or part of a pooled one."""
    rows = {
        part if part == name else f"{part} of {name.count('+') + 1}": own
        for name, by_system in content["weights"].items()
        for part, own in by_system[system].items()
    }
    members = list(next(iter(rows.values())))
    values = np.array([[own[member] for member in members] for own in rows.values()])
    return drawing.heat(
        values,
        list(rows),
        members,
        low=0.0,
        high=1.0,
        caption=f"Mean weight that {system} gave each member.",
        alt="; ".join(
            f"{row}: " + ", ".join(f"{m} {v:.2f}" for m, v in zip(members, own, strict=True))
            for row, own in zip(rows, values, strict=True)
        ),
    )


def reliability(content: Content, system: str) -> Figure:
    """Probability of the ten best hits against the share that was relevant.

    Sets that are well calibrated share a line; each of the others has its own.
    """
    own: dict[str, list[list[float]]] = {}
    for name, by_system in content["curves"].items():
        good = content["confidence"][name][system]["ECE, ten best hits"] <= WELL_CALIBRATED
        points = by_system[system]["reliability"]
        own.setdefault(f"sets of ECE up to {WELL_CALIBRATED}" if good else name, []).extend(points)
    series: dict[str, tuple[list[float], list[float]]] = {"perfect": ([0, 1], [0, 1])}
    for name, points in own.items():
        bins = np.array(points)
        number = np.minimum((bins[:, 0] * 10).astype(int), 9)
        pooled = [
            np.average(bins[number == b, :2], axis=0, weights=bins[number == b, 2])
            for b in np.unique(number)
            if bins[number == b, 2].sum() >= LEAST_HITS
        ]
        series[name] = ([float(p[0]) for p in pooled], [float(p[1]) for p in pooled])
    return drawing.lines(
        series,
        floor="perfect",
        x="probability of a hit",
        y="share relevant",
        caption=f"Reliability of {system}: above the dashed line hits are better than promised.",
        alt="Mean probability and share of relevant hits in ten bins.",
    )


def coverage(content: Content, system: str) -> Figure:
    """Quality of the queries kept when the least confident are left out, mean over sets."""
    by_set = [by_system[system] for by_system in content["curves"].values()]
    kept = (1 - ABSTENTION_RATES).tolist()
    series = {
        name: (kept, np.mean([curves[name] for curves in by_set], axis=0).tolist())
        for name in by_set[0]
        if name != "reliability"
    }
    return drawing.lines(
        series,
        x="share of queries answered",
        y=f"{MAIN} of those",
        caption="Risk and coverage: what leaving out the queries of least confidence gains.",
        alt="; ".join(f"{name}: {ys[0]:.3f} to {ys[-1]:.3f}" for name, (_, ys) in series.items()),
    )


def cases(content: Content) -> Fold:
    """Queries that UEC answers in its ten best and no member does, and the reverse."""
    lines = []
    for name, own in content["cases"].items():
        for kind, ids in own.items():
            shown = ", ".join(ids[:MANY]) + (" …" if len(ids) > MANY else "")
            lines.append(f"{name}, {kind}: {len(ids)}" + (f" ({shown})" if ids else ""))
    return Fold("Hard cases, by query id", [Bullets([page.literal(line) for line in lines])])


def sections(name: str, content: Content) -> list[Section]:
    """What the page says of one result file."""
    n_queries = sum(t["uec"]["queries"] for t in content["sets"].values())
    body: list[page.Block] = [
        f"{len(content['sets'])} sets, {n_queries:,} queries, members "
        + ", ".join(content["settings"]["members"])
        + ".",
        headline(content),
        systems_table(content),
    ]
    if (seeds := seeds_table(content)) is not None:
        body.append(seeds)
    found = [Section(f"{name}: systems", body)]
    for system in content["against"]:
        found.append(
            Section(
                f"{name}: {system}",
                [
                    differences(content, system),
                    weights(content, system),
                    by_set_table(content, system),
                    average_table(content, system),
                    reliability(content, system),
                    coverage(content, system),
                    confidence_table(content, system),
                    Note("Probabilities are learnt from pieces of the corpus, without labels."),
                ],
            )
        )
    found.append(
        Section(f"{name}: calibration and hard cases", [prior_table(content), cases(content)])
    )
    return found


def printed(content: Content) -> Iterable[tuple[str, Table]]:
    """Tables for the Markdown, with their headings."""
    yield "Systems", systems_table(content)
    if (seeds := seeds_table(content)) is not None:
        yield "Seeds of the calibration", seeds
    for system in content["against"]:
        yield f"{system} against the best member of each set", by_set_table(content, system)
        yield f"{system} against the others on average", average_table(content, system)
        yield f"Confidence of {system}", confidence_table(content, system)
    yield "Prior, and mean reciprocal rank of quotation and cloze", prior_table(content)


@click.command()
@click.argument("paths", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of figures here.")
def main(paths: Sequence[Path], html: Path | None) -> None:
    """Print the tables of result files; optionally write one page with figures."""
    contents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    for name, content in contents.items():
        for heading, table in printed(content):
            click.echo(f"### {name}: {heading}\n\n{markdown(table)}\n")
    if html is not None:
        found = [part for name, content in contents.items() for part in sections(name, content)]
        lead = "Members, fusions and UEC on public sets, with paired tests over queries."
        page.write(html, "UEC benchmarks", lead, found, footer="python -m benchmarks.report")


if __name__ == "__main__":
    main()
