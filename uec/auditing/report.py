"""The page of an audit: findings, a table of the members, a section an audit, the recommended set.

Every audit's section has the same order: what it asks, what it found, figures, limits, all numbers.
What stands in a section is the business of `uec.auditing.sections`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uec import __version__, page
from uec.auditing.folder import Audited
from uec.auditing.running import NAMES
from uec.auditing.sections import SECTIONS
from uec.auditing.verdict import (
    HEADLINES,
    TITLES,
    figure_of,
    findings,
    listed,
    p_words,
    ranked,
    recommendation,
)
from uec.drawing import bars
from uec.page import Block, Bullets, Column, Note, Section, Table

PAGE = "report.html"


def write(result: Audited, folder: Path, corpus: str) -> Path:
    """Write ``report.html`` into an existing folder.

    Args:
        result: of `uec.auditing.running.run`.
        folder: where.
        corpus: what to call the corpus.

    Raises:
        DependencyError: the extra ``audit`` is not installed.
    """
    path = folder / PAGE
    about = result.corpus
    pairs = f" and {about['n_pairs']:,} pairs of texts" if about["n_pairs"] else ""
    lead = (
        f"{listed(result.names)} on {about['n_texts']:,} texts of {page.literal(corpus)}{pairs}, "
        "judged without labels: how far can each encoder be trusted on this corpus, and which of "
        "them are worth their cost?"
    )
    footer = (
        f"uec {__version__}, seed {about['seed']}, texts {about['texts_sha256'][:12]}. Every "
        "number of this page and more is in `report.json` beside it."
    )
    page.write(path, f"Audit of {listed(result.names)}", lead, sections(result), footer)
    return path


def sections(result: Audited) -> list[Section]:
    """The page's sections, in reading order."""
    made = [Section("Findings", [Bullets(findings(result)), _members(result), *_limits(result)])]
    made += [
        Section(SECTIONS[name].heading, SECTIONS[name].body(result.reports[name]))
        for name in NAMES
        if name in result.reports
    ]
    return [*made, Section("Recommended members", _recommended(result))]


def _members(result: Audited) -> Table:
    """One row a member, one column an audit, the best member of the first audit on top."""
    used = [headline for headline in HEADLINES if headline.audit in result.reports]
    about = {member["name"]: member for member in result.members}
    geometry = result.reports.get("geometry")
    columns = [Column("member"), Column("dims", "d")]
    for headline in used:
        report = result.reports[headline.audit]
        ranks = headline.key == "rank_by" and report.rank_by is not None
        best = ("high" if report.higher_is_better else "low") if ranks else None
        columns.append(Column(headline.name, headline.form, best, headline.hint))  # type: ignore[arg-type]
    if geometry is not None:
        columns.append(Column("collapse"))
    rows: list[list[Any]] = []
    for name in ranked(result):
        row: list[Any] = [name, about[name]["dimension"]]
        row += [figure_of(result.reports[one.audit], one, name) for one in used]
        if geometry is not None:
            kinds = [found["kind"] for found in geometry.details["diagnosis"][name]]
            row.append(", ".join(kinds) or "none")
        rows.append(row)
    return Table(columns, rows, "The members and each audit's main figure; the best is marked.")


def _limits(result: Audited) -> list[Block]:
    notes = [Note(note) for note in (*_cautions(result), *result.notes)]
    refused = [
        Note(f"No {TITLES[name]}: {page.literal(why)}.") for name, why in result.refused.items()
    ]
    return [*notes, *refused]


def _cautions(result: Audited) -> tuple[str, ...]:
    """What limits the recommendation."""
    report = result.reports.get("selfretrieval")
    return () if report is None else report.warnings


def _recommended(result: Audited) -> list[Block]:
    if result.choice is None:
        why = result.refused.get("selfretrieval", "self-retrieval was left out, or has one member")
        return [f"No set of members can be recommended: {page.literal(why)}."]
    steps = result.choice.steps
    rows: list[list[Any]] = []
    for number, step in enumerate(steps, 1):
        first = number == 1
        rows.append(
            [
                number,
                step.member,
                step.mrr,
                None if first else step.gain,
                None if first else step.standard_error,
                "–" if first else p_words(step.p_value),
                "keep" if number <= result.choice.n_kept else "leave out",
                ", ".join(f"{name} {weight:.2f}" for name, weight in step.weights.items()),
            ]
        )
    table = Table(
        [
            Column("place", "d"),
            Column("added"),
            Column("mean reciprocal rank", ".3f"),
            Column("gain", "+.3f"),
            Column("± error", ".3f"),
            Column("test"),
            Column("advice"),
            Column("weights in the set"),
        ],
        rows,
        "One member after the other, each time the one that helps most.",
    )
    sets = {
        step.member if number == 0 else f"+ {step.member}": step.mrr
        for number, step in enumerate(steps)
    }
    figure = bars(
        sets,
        caption="Mean reciprocal rank as members are added.",
        alt="; ".join(f"{name} {mrr:.3f}" for name, mrr in sets.items()),
        form=".3f",
        ordered=False,
    )
    return [
        recommendation(result.choice, result.reports),
        *(Note(caution) for caution in _cautions(result)),
        figure,
        table,
        "How: pieces cut out of their texts are looked for among what is left of the texts, by the "
        "fused score. The weights used for one half of the pieces come from the other half. A gain "
        "counts where a paired test over the pieces, corrected for the number of members tried, "
        "leaves less than 5 % to chance. An encoder that gains nothing here may still gain on "
        "another corpus.",
    ]
