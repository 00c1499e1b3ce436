"""What a page says of each audit's report: blocks from figures that the audit already holds.

Nothing is computed here but what a drawing needs. The measures' meanings stand in `HINTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from uec import drawing
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
            *(Note(literal(warning)) for warning in report.warnings),
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


def _values(report: AuditReport, key: str) -> dict[str, float]:
    return {row["member"]: row[key] for row in report.rows if row.get(key) is not None}


def _words(values: Mapping[str, float], form: str = ".3f") -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


def _bars(
    report: AuditReport, key: str, caption: str, *, spread: str | None = None, **options: Any
) -> Figure:
    values = _values(report, key)
    errors = None if spread is None else _values(report, spread)
    return drawing.bars(values, errors=errors, caption=caption, alt=_words(values), **options)


def _selfretrieval(report: AuditReport) -> list[Figure]:
    names = report.details["members"]
    tasks = [f"{task}_mrr" for task in ("quotation", "cloze")]
    by_task = np.array([[row[task] for task in tasks] for row in report.rows])
    correlation = np.array(report.details["correlation"])
    figures = [
        _bars(
            report,
            "trust",
            "Trust: both tasks as one number, by their odds; lines are standard errors.",
            spread="standard_error",
            form=".3f",
        ),
        drawing.heat(
            by_task,
            names,
            ["as it stands", "cut out"],
            caption="Mean reciprocal rank: the piece as it stands, and cut out of its text.",
            alt=_table_words(by_task, names, ["as it stands", "cut out"]),
            low=0.0,
            high=1.0,
        ),
    ]
    if len(names) > 1:
        np.fill_diagonal(correlation, np.nan)
        figures.append(
            drawing.heat(
                correlation,
                names,
                names,
                caption="Correlation of the members' similarities: the paler, the more one adds "
                "to the other.",
                alt=_table_words(correlation, names, names),
                low=0.0,
                high=1.0,
            )
        )
    return figures


def _table_words(table: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    return "; ".join(
        f"{row} {column} {table[i, j]:.2f}"
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
        if np.isfinite(table[i, j])
    )


def _overlap(report: AuditReport) -> list[Figure]:
    key, sizes, chance = report.rank_by, report.details["sizes"], report.details["chance"]
    assert key is not None, "the overlap audit ranks"
    labels = sorted(sizes, key=lambda label: sizes[label])
    ks = [sizes[label] for label in labels]
    curves = {
        row["member"]: (ks, [row[f"overlap@{label}"] for label in labels]) for row in report.rows
    }
    curves["chance"] = (ks, [chance[f"overlap@{label}"] for label in labels])
    return [
        _bars(
            report,
            key,
            f"Neighbours kept at k = {sizes[key.partition('@')[2]]}; lines are standard errors.",
            spread="standard_error",
            floor=chance[key],
            form=".3f",
        ),
        drawing.lines(
            curves,
            caption="The same for small and large neighbourhoods. Near the dashed floor of chance "
            "a member says nothing.",
            alt=_words({name: ys[0] for name, (_, ys) in curves.items()}),
            x="neighbours k",
            y="share kept",
            logarithmic=True,
            floor="chance",
        ),
    ]


def _ica(report: AuditReport) -> list[Figure]:
    key = report.rank_by
    assert key is not None, "the ICA audit ranks"
    c = key.removeprefix("gini")
    curves = {
        name: (list(range(1, len(by[c]) + 1)), by[c])
        for name, by in report.details["differences"].items()
    }
    return [
        _bars(
            report,
            key,
            f"Gini coefficient over {c} components; lines are the range over seeds.",
            spread=f"{key}_spread",
            form=".3f",
        ),
        drawing.lines(
            curves,
            caption="Mean difference between the sides of a pair in each component, largest first. "
            "A steep start means that few components hold the difference.",
            alt=_words({name: ys[0] for name, (_, ys) in curves.items()}),
            x="component",
            y="mean difference",
            markers=False,
        ),
    ]


def _agreement(report: AuditReport) -> list[Figure]:
    names, table = report.details["members"], np.array(report.details["overlap"])
    np.fill_diagonal(table, np.nan)
    return [
        drawing.heat(
            table,
            names,
            names,
            caption=f"Neighbours that two members share; chance {report.details['chance']:.3f}.",
            alt=_table_words(table, names, names),
            low=0.0,
        )
    ]


def _geometry(report: AuditReport) -> list[Figure]:
    details = report.details
    curves = {}
    for name, eigenvalues in details["spectrum"].items():
        shares = np.cumsum(eigenvalues) / np.sum(eigenvalues)
        curves[name] = (list(range(1, len(shares) + 1)), shares.tolist())
    used = {row["member"]: row["participation_ratio"] for row in report.rows}
    figures = [
        _bars(
            report,
            "participation_ratio",
            "Directions used (participation ratio of the spectrum).",
            form=".0f",
        ),
        drawing.lines(
            curves,
            caption="Share of the variance in the first directions. A curve that starts near one "
            "means dimensional collapse.",
            alt=_words(used, ".0f"),
            x="directions",
            y="share of the variance",
            logarithmic=True,
            markers=False,
        ),
    ]
    figures += [
        drawing.points(
            {
                f"{name}: {title}": np.array(both[kind], dtype=np.float64)
                for kind, title in (("pca", "components"), ("tsne", "t-SNE"))
            },
            caption="",
            alt=f"maps of {len(both['pca'])} texts by {name}: principal components and t-SNE",
            groups=details["map_labels"],
        )
        for name, both in details["maps"].items()
        if both is not None
    ]
    return figures


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


def _flip(report: AuditReport) -> list[Figure]:
    unigram = report.rows[0]["unigram"]
    return [
        _bars(
            report,
            "accuracy",
            "Share of a text's words that a linear probe reads off its vector; lines are standard "
            "errors.",
            spread="standard_error",
            floor=unigram,
            floor_name="frequent words alone",
            form=".3f",
        )
    ]


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


def _flare(report: AuditReport) -> list[Figure]:
    details = report.details
    curve = details["learning_curve"]
    nats = np.array(details["information"]["flare"], dtype=np.float64)
    nats = nats / np.array(details["n_dims"])[:, None]
    series = {name: (curve["n_fitted"], values) for name, values in curve["flare"].items()}
    return [
        _bars(
            report,
            "flare",
            "Information about the other members, nats a component; lines are the spread over "
            "seeds.",
            spread="flare_spread",
            form=".3f",
        ),
        drawing.lines(
            series,
            caption="The same from a part of the texts. Where a curve still rises, more texts "
            "would show more.",
            alt=_words({name: values[-1] for name, values in curve["flare"].items()}),
            x="texts learnt from",
            y="nats a component",
        ),
        drawing.heat(
            nats,
            details["targets"],
            details["members"],
            caption="What a member (column) says about another (row), nats a component.",
            alt=_table_words(nats, details["targets"], details["members"]),
            low=0.0,
        ),
        _bars(
            report,
            "two_nn",
            "Intrinsic dimension (TwoNN): the error of FLARE grows with it, not with the length of "
            "the vectors.",
            form=".0f",
        ),
    ]


SECTIONS: Mapping[str, AuditSection] = MappingProxyType(
    {
        "selfretrieval": AuditSection(
            "Self-retrieval",
            "Pieces of the corpus are looked for among its texts, as they stand (which asks for "
            "fidelity) and with the piece cut out of its text (which asks for understanding). This "
            "is search itself, with questions that nobody had to write.",
            _selfretrieval,
        ),
        "overlap": AuditSection(
            "Neighbours kept across pairs",
            "The neighbours of a text among the left sides of the pairs, and those of its partner "
            "among the right sides: a member that understands both kinds of text keeps them alike.",
            _overlap,
        ),
        "ica": AuditSection(
            "Where the sides of a pair differ",
            "Split into independent components, do the two sides of a pair differ in a few of "
            "them, such as the language or the form of a question, or in all of them alike?",
            _ica,
        ),
        "agreement": AuditSection(
            "Agreement between members",
            "Which share of a text's ten nearest neighbours do two members have in common? Members "
            "that agree may both be wrong; members that differ and are both good complete each "
            "other.",
            _agreement,
        ),
        "geometry": AuditSection(
            "Geometry and collapse",
            "How the vectors fill their space. This describes a member and finds what is broken; "
            "it does not say who searches best.",
            _geometry,
            _collapse,
        ),
        "flip": AuditSection(
            "Words that an embedding holds",
            "A linear probe is trained to name the words of a text from its vector (FLiP). Where "
            "names and terms decide, search can use only what a vector holds.",
            _flip,
            _words_held,
        ),
        "flare": AuditSection(
            "Information about the other members",
            "How much does knowing one member's vector of a text say about the vectors that the "
            "others give it (FLARE)? A member that can foretell the others holds what they hold.",
            _flare,
        ),
    }
)
