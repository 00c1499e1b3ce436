"""The figures of each audit's section, drawn from what its report holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uec import drawing
from uec.page import Figure
from uec.records import AuditReport


def _values(report: AuditReport, key: str) -> dict[str, float]:
    return {row["member"]: row[key] for row in report.rows if row.get(key) is not None}


def _words(values: Mapping[str, float], form: str = ".3f") -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


def _bars(
    report: AuditReport,
    key: str,
    caption: str,
    *,
    spread: str | None = None,
    scale: float = 1.0,
    **options: Any,
) -> Figure:
    """Bars of one measure; `spread` names half the length of an error bar, times `scale`."""
    values = _values(report, key)
    errors = None
    if spread is not None:
        errors = {name: scale * value for name, value in _values(report, spread).items()}
    return drawing.bars(values, errors=errors, caption=caption, alt=_words(values), **options)


def selfretrieval(report: AuditReport) -> list[Figure]:
    """Both tasks, and how much the members say the same."""
    names = report.details["members"]
    correlation = np.array(report.details["correlation"])
    figures = [
        _bars(
            report,
            "cloze_mrr",
            "Mean reciprocal rank of the text that a piece was cut out of; lines are standard "
            "errors.",
            spread="standard_error",
            form=".3f",
        ),
        _bars(
            report,
            "quotation_mrr",
            "The same of the whole text, the piece still in it: members that match words shine "
            "here, so it ranks nobody.",
            form=".3f",
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


def overlap(report: AuditReport) -> list[Figure]:
    """Neighbours kept, against chance and over sizes."""
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


def ica(report: AuditReport) -> list[Figure]:
    """Concentration of the differences, and the differences."""
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
            f"Gini coefficient over {c} components; lines are as long as the range over seeds.",
            spread=f"{key}_spread",
            scale=0.5,
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


def agreement(report: AuditReport) -> list[Figure]:
    """Neighbours that two members share."""
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


def geometry(report: AuditReport) -> list[Figure]:
    """Directions used, spectra, and maps of the texts."""
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


def flip(report: AuditReport) -> list[Figure]:
    """Words read off, against guessing."""
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


def flare(report: AuditReport) -> list[Figure]:
    """Information with its spread, learning curve, pairs, intrinsic dimension."""
    details = report.details
    curve = details["learning_curve"]
    nats = np.array(details["information"]["flare"], dtype=np.float64)
    nats = nats / np.array(details["n_dims"])[:, None]
    series = {name: (curve["n_fitted"], values) for name, values in curve["flare"].items()}
    return [
        _bars(
            report,
            "flare_dimension",
            "Information about the other members, nats a component; lines are the spread over "
            "seeds.",
            spread="flare_dimension_spread",
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
