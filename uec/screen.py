"""What the command line and the demo show: tables, rankings, calibrations, progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from uec.provenance import SUSPICIOUS

if TYPE_CHECKING:
    from pathlib import Path

    from uec.auditing.folder import Audited
    from uec.auditing.words import WordsHeld
    from uec.calibration import Calibration
    from uec.records import Ranking


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; silent when that is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda n: bar.update(task, advance=n)


def table(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print a table; 120 columns wide where the output is not a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*headers, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def ranking(found: Ranking) -> None:
    """Print one ranking for a person."""
    weights = ", ".join(f"{name} {w:.2f}" for name, w in found.weights.items())
    click.secho(found.query, bold=True)
    click.echo(f"  weights: {weights}")
    for name in found.truncated:
        click.echo(f"  note: {name} cut the query to its maximum length")
    if found.abstained:
        click.echo("  note: not sure enough to answer at this risk; the best there is:")
    for rank, hit in enumerate(found.hits, 1):
        line = " ".join(f"{hit.document.title} {hit.document.text}".split())
        deviation = hit.variance**0.5
        probability = "" if hit.probability is None else f"  p {hit.probability:4.2f}"
        click.echo(
            f"  {rank:2d}. {hit.score:6.3f}{probability}"
            f"  similarity {hit.similarity:5.2f} ± {deviation:4.2f}  {hit.doc_id}: {line[:70]}"
        )
        for member in hit.members:
            click.echo(
                f"        {member.member}: similarity {member.similarity:.3f}, "
                f"{member.standardised:+.2f} spreads, trace {member.trace:.2f}"
            )


def calibration(found: Calibration) -> None:
    """Print what a calibration found, for a person."""
    report = found.report
    assert report is not None
    table(
        ("member", "weight", "finds a quotation", "fills a gap", "trace tells failures"),
        [
            (
                name,
                f"{member['weight']:.2f}",
                f"{member['quotation_mrr']:.2f}",
                f"{member['cloze_mrr']:.2f}",
                "-" if member["trace_auroc"] is None else f"{member['trace_auroc']:.2f}",
            )
            for name, member in report["members"].items()
        ],
    )
    if report.get("prior", "spans") != "spans":
        click.echo(f"the weights follow the members' places by {report['prior']}")
    if report["n_labelled"]:
        click.echo(f"the weights also follow {report['n_labelled']} judged queries")
    if report.get("n_logged"):
        click.echo(f"the pieces are of documents that {report['n_logged']} logged queries find")
    best = report["best_member"]
    click.echo(
        f"{report['n_spans']} pieces of text looked for among {report['n_pool']} documents: "
        f"mean reciprocal rank {report['ensemble_mrr']:.3f} together, "
        f"{report['best_member_mrr']:.3f} by {best} alone (p = {report['p_value']:.2g})"
    )
    if "lexical" in report:
        without, p = report["lexical"]["mrr_without"], report["lexical"]["p_value"]
        pays = report["ensemble_mrr"] > without
        click.echo(
            f"the words (bm25) {'help' if pays else 'do not help'} here: "
            f"{without:.3f} without them (p = {p:.2g})"
        )
    gain, p = report["peaks"]["gain"], report["peaks"]["p_value"]
    click.echo(
        f"following what each member finds for a query changes it by {gain:+.3f} (p = {p:.2g}); "
        "it is kept for queries unlike the corpus"
    )
    if found.temperature == float("inf"):
        click.echo("the traces do not improve the ranking here and are not followed")
    else:
        click.echo(f"the traces improve the ranking: temperature {found.temperature:g}")
    if report["ensemble_mrr"] <= report["best_member_mrr"]:
        click.echo(f"note: the ensemble does not help on this corpus; {best} alone does as well")


def fit_texts_warning(content: Mapping[str, Any]) -> None:
    """Warn of members whose posterior was fitted on the indexed corpus, on standard error.

    Args:
        content: of an index.
    """
    for name, share in content.get("fit_passages_in_corpus", {}).items():
        if share > SUSPICIOUS:
            click.echo(
                f"warning: {share:.0%} of the text that {name}'s posterior was fitted on is in "
                "this corpus. It calls certain whatever it has seen, right or wrong: fit on pairs "
                "like the encoder's training data instead",
                err=True,
            )


def audit(found: Audited, findings: Sequence[str], page: Path) -> None:
    """Print what an audit found, for a person, and where the report is."""
    for sentence in findings:
        click.echo(f"- {sentence.replace('**', '')}")
    looked = found.reports.get("selfretrieval")
    for note in (*(looked.warnings if looked else ()), *found.notes):
        click.echo(f"note: {note}", err=True)
    for name, why in found.refused.items():
        click.echo(f"note: no {name}: {why}", err=True)
    spent = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in found.seconds.items())
    click.echo(f"time: {spent}")
    click.echo(f"wrote {page}")


def words(found: WordsHeld) -> None:
    """Print the words that each member's embedding of one text holds."""
    click.secho(found.text, bold=True)
    for member, held in found.members.items():
        click.echo(f"  {member}: {', '.join(word for word, _ in held)}")
