"""What a page says of each audit's report: what was asked, found, drawn, and what limits it.

Nothing is computed here: every number is one that the report holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from uec.auditing import figures
from uec.page import Block, Bullets, Column, Figure, Fold, Note, Table, literal
from uec.records import AuditReport

EXAMPLE_CHARACTERS = 140
EXTREME_WORDS = 12
VIEWS = {"before": "as they are", "centred": "without their mean", "whitened": "whitened"}


@dataclass(frozen=True, slots=True)
class AuditSection:
    """How one audit is shown.

    Attributes:
        heading: of the section.
        question: what the audit asks, in a paragraph.
        figures: draws the report.
        extra: further tables.
    """

    heading: str
    question: str
    figures: Callable[[AuditReport], Sequence[Figure]]
    extra: Callable[[AuditReport], Sequence[Block]] = lambda report: ()

    def body(self, report: AuditReport) -> list[Block]:
        """The section's blocks."""
        settings = ", ".join(f"{key} {_shown(value)}" for key, value in report.settings.items())
        return [
            self.question,
            Bullets([literal(finding) for finding in report.findings]),
            *self.figures(report),
            *self.extra(report),
            *(Note(warning) for warning in report.warnings),
            Fold(
                "All figures of this audit",
                [_all_figures(report), f"{report.n_texts:,} texts; {literal(settings)}."],
            ),
        ]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)


def _all_figures(report: AuditReport) -> Table:
    keys = list(dict.fromkeys(key for row in report.rows for key in row))
    columns = [Column(key.replace("_", " "), ".3f") for key in keys]
    return Table(columns, [[row.get(key) for key in keys] for row in report.rows])


def _collapse(report: AuditReport) -> list[Block]:
    cures = [
        [name, found["kind"], found["evidence"], found["advice"]]
        for name, diagnoses in report.details["diagnosis"].items()
        for found in diagnoses
    ]
    views = [
        [name, VIEWS[view], figures["mean_cosine"], figures["uniformity"], figures["hubness"]]
        for name, by_view in report.details["views"].items()
        for view, figures in by_view.items()
        if figures is not None
    ]
    blocks: list[Block] = [
        "On the maps each point is a text, on the left by the two main principal components. On a "
        "t-SNE map only who lies together has a meaning, not how far apart groups lie."
    ]
    if cures:
        columns = [Column("member"), Column("collapse"), Column("evidence"), Column("what to do")]
        blocks.append(Table(columns, cures, "Collapse and its cure."))
    columns = [
        Column("member"),
        Column("vectors"),
        Column("mean cosine", ".3f", None, "of two random texts; 0 uses all of the sphere"),
        Column("uniformity", ".2f", None, "0 is a single point, −4 a full sphere"),
        Column("hubness", ".2f", None, "above 2 a few texts are everybody's neighbour"),
    ]
    return [*blocks, Table(columns, views, "What taking off the mean and whitening change.")]


def _words_held(report: AuditReport) -> list[Block]:
    examples = report.details["examples"]
    names = [row["member"] for row in report.rows]
    columns = [Column("text"), *(Column(name) for name in names)]
    rows = [
        [
            literal(_shortened(example["text"])),
            *(", ".join(literal(word) for word, _ in example["words"][name]) for name in names),
        ]
        for example in examples
    ]
    extremes = [
        [
            name,
            *(
                ", ".join(literal(found["word"]) for found in by[key][:EXTREME_WORDS])
                for key in ("held_best", "held_worst")
            ),
        ]
        for name, by in report.details["members"].items()
    ]
    return [
        Table(columns, rows, "The words that each vector holds most clearly, of unseen texts."),
        Table(
            [Column("member"), Column("held best"), Column("held worst")],
            extremes,
            "Words of the corpus by how often they are read off rightly.",
        ),
    ]


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= EXAMPLE_CHARACTERS else f"{flat[:EXAMPLE_CHARACTERS]}…"


SECTIONS: Mapping[str, AuditSection] = MappingProxyType(
    {
        "selfretrieval": AuditSection(
            "Self-retrieval",
            "A piece is cut out of each text, and looked for among what is left of all of them. "
            "This is search itself, with questions that nobody had to write.",
            figures.selfretrieval,
        ),
        "overlap": AuditSection(
            "Neighbours kept across pairs",
            "The neighbours of a text among the left sides of the pairs, and those of its partner "
            "among the right sides: a member that understands both kinds of text keeps them alike.",
            figures.overlap,
        ),
        "ica": AuditSection(
            "Where the sides of a pair differ",
            "Split into independent components, do the two sides of a pair differ in a few of "
            "them, such as the language or the form of a question, or in all of them alike?",
            figures.ica,
        ),
        "agreement": AuditSection(
            "Agreement between members",
            "Which share of a text's ten nearest neighbours do two members have in common? Members "
            "that agree may both be wrong; members that differ and are both good complete each "
            "other.",
            figures.agreement,
        ),
        "geometry": AuditSection(
            "Geometry and collapse",
            "How the vectors fill their space. This describes a member and finds what is broken; "
            "it does not say who searches best.",
            figures.geometry,
            _collapse,
        ),
        "flip": AuditSection(
            "Words that an embedding holds",
            "A linear probe is trained to name the words of a text from its vector (FLiP). Where "
            "names and terms decide, search can use only what a vector holds.",
            figures.flip,
            _words_held,
        ),
        "flare": AuditSection(
            "Information about the other members",
            "How much does knowing one member's vector of a text say about the vectors that the "
            "others give it (FLARE)? A member that can foretell the others holds what they hold.",
            figures.flare,
        ),
    }
)
