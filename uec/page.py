"""One self-contained HTML page: prose, sortable tables and figures, and nothing from elsewhere.

    write(path, title, lead, sections)

A section is a heading and blocks in reading order: paragraphs (`str`), `Bullets`, `Note`, `Table`,
`Figure` (drawn by `uec.drawing`) and `Fold`. Texts are plain; ``**bold**`` and `` `code` `` are the
only markup, everything else is escaped. The page asks for nothing outside itself, and its security
policy forbids it to. It knows neither audits nor benchmarks.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from uec.errors import DependencyError, InputError

Cell: TypeAlias = str | float | int | bool | None
"""What stands in a table; None where there is no value."""

NOTHING = "–"
LONG = 32
"""Characters above which a cell may break into lines."""

_HIDDEN = str.maketrans({"`": "\ue000", "*": "\ue001"})
_SHOWN = str.maketrans({"\ue000": "`", "\ue001": "*"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        form: format of its numbers, as in `format`.
        best: whether the highest or the lowest number is marked; None marks none.
        hint: what the figure means, shown under the table.
    """

    name: str
    form: str = ".3g"
    best: Literal["high", "low"] | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that readers can sort by any column.

    Attributes:
        columns: its columns; the first one names the rows.
        rows: one cell a column. Numbers are shown by the column's format and sorted by value.
        caption: a sentence on what is shown.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(
                    f"table {self.caption!r}: a row has {len(row)} cells, expected one for each of "
                    f"the {len(self.columns)} columns: {list(row)}"
                )


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing.

    Attributes:
        svg: one ``<svg>`` element, trusted as it is; `uec.drawing` makes them.
        caption: a sentence on what to see in it.
        alt: the same for who cannot see it, with the main figures.
        width: natural width in CSS pixels; the page shrinks it where there is less room.
    """

    svg: str
    caption: str
    alt: str
    width: int


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Note:
    """What limits the figures around it."""

    text: str


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are shown when asked for."""

    summary: str
    body: Sequence[Block]


Block: TypeAlias = str | Bullets | Note | Table | Figure | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it, in reading order. Neighbouring figures share a row."""

    heading: str
    body: Sequence[Block]


def write(path: Path, title: str, lead: str, sections: Sequence[Section], footer: str = "") -> None:
    """Write the page to one file.

    Args:
        path: the file; its folder must exist.
        title: of the page.
        lead: one paragraph under the title.
        sections: in reading order.
        footer: how the page was made.

    Raises:
        DependencyError: jinja2 is not installed.
        InputError: the file cannot be written.
    """
    text = render(title, lead, sections, footer)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the page {path}: {error}") from error


def render(title: str, lead: str, sections: Sequence[Section], footer: str = "") -> str:
    """The page as text; see `write`."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise DependencyError("jinja2", "audit", "a report as a page") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["inline"] = _inline
    environment.globals["shown"] = _table
    environment.globals["numeric"] = _numeric
    environment.globals["grouped"] = _grouped
    template = environment.from_string((files("uec") / "page.html.j2").read_text("utf-8"))
    anchors = [f"section-{number}" for number, _ in enumerate(sections, 1)]
    return template.render(
        title=title, lead=lead, sections=list(zip(anchors, sections, strict=True)), footer=footer
    )


def literal(text: str) -> str:
    """A text from outside, such as a document's, in which markup means nothing."""
    return text.translate(_HIDDEN)


def _inline(text: str) -> Any:
    """Escaped text with its bold and code marked up."""
    from markupsafe import Markup

    escaped = html.escape(text)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escaped)
    return Markup(marked.translate(_SHOWN))


def _grouped(body: Sequence[Block]) -> list[tuple[str, list[Any]]]:
    """Blocks by kind, neighbouring figures together."""
    return [(kind, list(blocks)) for kind, blocks in groupby(body, _kind)]


def _kind(block: Block) -> str:
    return "Paragraph" if isinstance(block, str) else type(block).__name__


def _table(table: Table) -> list[list[dict[str, Any]]]:
    """Rows of cells: the text shown, the value sorted by, and whether it is the best."""
    best = [_best(table, i) for i in range(len(table.columns))]
    numeric = _numeric(table)
    return [
        [
            {
                "text": _text(value, column.form),
                "value": "" if _missing(value) else value,
                "number": number,
                "long": isinstance(value, str) and len(value) > LONG,
                "best": _is_number(value) and value == top,
            }
            for value, column, top, number in zip(row, table.columns, best, numeric, strict=True)
        ]
        for row in table.rows
    ]


def _numeric(table: Table) -> list[bool]:
    """Whether each column holds nothing but numbers and gaps."""
    return [
        all(_is_number(row[i]) or _missing(row[i]) for row in table.rows)
        for i in range(len(table.columns))
    ]


def _best(table: Table, column: int) -> Cell:
    """The number to mark; None where no mark is asked for or all are equal."""
    pick = table.columns[column].best
    numbers = [row[column] for row in table.rows if _is_number(row[column])]
    if pick is None or len(set(numbers)) < 2:
        return None
    return max(numbers) if pick == "high" else min(numbers)  # type: ignore[type-var]


def _is_number(value: Cell) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not _missing(value)


def _missing(value: Cell) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _text(value: Cell, form: str) -> str:
    if _missing(value):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and form[-1:] not in ("d", "%", ","):
        form = ","
    # A minus sign, not a hyphen.
    return format(value, form).replace("-", "−") if value is not None else NOTHING
