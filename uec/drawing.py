"""The figures of a page: bars, lines, maps and heat maps, in the style of `uec.svg`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from uec.page import Figure
from uec.svg import INK, MUTED, RULE, SERIES, WIDTH, figure, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

__all__ = ["INK", "MUTED", "RULE", "SERIES", "bars", "figure", "heat", "lines", "points"]


def bars(
    values: Mapping[str, float],
    *,
    caption: str,
    alt: str,
    errors: Mapping[str, float] | None = None,
    floor: float | None = None,
    floor_name: str = "chance",
    axis: str = "",
    form: str = ".2f",
    ordered: bool = True,
) -> Figure:
    """Horizontal bars, each with its value.

    Args:
        values: name to length.
        caption: of the figure.
        alt: of the figure.
        errors: name to half the length of its error bar.
        floor: a dashed line to read the bars against.
        floor_name: what the line is.
        axis: name of the axis.
        form: format of the values.
        ordered: the largest on top; False keeps the order given.
    """
    names = sorted(values, key=lambda name: values[name]) if ordered else list(values)[::-1]
    lengths = [values[name] for name in names]
    spreads = [(errors or {}).get(name, 0.0) for name in names]

    def draw(axes: Axes) -> None:
        drawn = axes.barh(names, lengths, height=0.62, color=SERIES[0])
        if errors:
            axes.errorbar(
                lengths, range(len(names)), xerr=spreads, fmt="none", ecolor=INK, elinewidth=1.2
            )
        reach = max(0.0, *lengths, floor or 0.0) + max(spreads, default=0.0)
        if floor is not None:
            axes.axvline(floor, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
            beyond = floor > reach / 2
            axes.annotate(
                f"{floor_name} {floor:{form}}",
                (floor, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-3 if beyond else 3, 2),
                textcoords="offset points",
                ha="right" if beyond else "left",
                color=MUTED,
                fontsize=8.5,
            )
        for bar, length, spread in zip(drawn, lengths, spreads, strict=True):
            axes.annotate(
                f"{length:{form}}".replace("-", "−"),
                (max(length, 0) + spread, bar.get_y() + bar.get_height() / 2),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=INK,
            )
        least = min(length - spread for length, spread in zip(lengths, spreads, strict=True))
        axes.set_xlim(min(0.0, least) * 1.15, (reach or 1.0) * 1.2)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xlabel(axis)

    height = 0.75 + 0.34 * len(names) + (0.2 if axis else 0)
    return figure(draw, caption=caption, alt=alt, height=max(1.3, height))


def lines(
    series: Mapping[str, tuple[Sequence[float | int], Sequence[float | int]]],
    *,
    caption: str,
    alt: str,
    x: str = "",
    y: str = "",
    logarithmic: bool = False,
    markers: bool = True,
    floor: str | None = None,
) -> Figure:
    """One line a series.

    Args:
        series: name to its x and y.
        caption: of the figure.
        alt: of the figure.
        x: name of the x axis.
        y: name of the y axis.
        logarithmic: whether the x axis is.
        markers: mark the points.
        floor: the series that the others are read against, drawn as a dashed line.
    """

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        for number, (name, (xs, ys)) in enumerate(series.items()):
            if name == floor:
                axes.plot(xs, ys, color=MUTED, linestyle=(0, (3, 3)), linewidth=1.2, label=name)
                continue
            colour = SERIES[number % len(SERIES)]
            axes.plot(xs, ys, color=colour, marker="o" if markers else None, label=name)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(series) > 1:
            axes.legend(labelcolor=INK, fontsize=8.5)

    return figure(draw, caption=caption, alt=alt)


def points(
    maps: Mapping[str, Float[np.ndarray, "n 2"]],
    *,
    caption: str,
    alt: str,
    groups: Sequence[str] | None = None,
) -> Figure:
    """Maps of the same n things beside each other: points on a plane, without axes.

    Args:
        maps: title to (n, 2) places; at most two fit.
        caption: of the figure.
        alt: of the figure.
        groups: (n,) what each point is coloured by; past eight groups the smallest share a colour.
    """
    n = len(next(iter(maps.values())))
    labels = np.array(groups if groups is not None else [""] * n)
    names, sizes = np.unique(labels, return_counts=True)
    ranked = [str(name) for name in names[np.argsort(-sizes, kind="stable")]]
    n_own = len(ranked) if len(ranked) <= len(SERIES) else len(SERIES) - 1
    layers = {name: labels == name for name in ranked[:n_own]}
    if rest := ranked[n_own:]:
        layers[f"{len(rest)} others"] = np.isin(labels, rest)

    def draw(drawing: Drawing) -> None:
        for axes, (title, xy) in zip(
            drawing.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True
        ):
            for colour, (name, chosen) in zip(SERIES, layers.items(), strict=False):
                axes.plot(
                    *xy[chosen].T,
                    linestyle="none",
                    marker="o",
                    markersize=2.6,
                    markeredgewidth=0,
                    alpha=0.6,
                    color=colour,
                    label=name,
                )
            axes.set(xticks=[], yticks=[], title=title)
            axes.spines[:].set_visible(True)
            axes.set_aspect("equal", "datalim")
        if len(layers) > 1:
            # A legend of the whole figure, from the marks of the last map.
            drawing.legend(
                *axes.get_legend_handles_labels(),
                loc="outside lower center",
                labelcolor=INK,
                fontsize=8,
                ncols=4,
                markerscale=2,
            )

    height = 2.6 + (0.25 * -(-len(layers) // 4) if len(layers) > 1 else 0)
    return whole(draw, caption, alt, WIDTH, height)


def heat(
    table: Float[np.ndarray, "rows columns"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    caption: str,
    alt: str,
    form: str = ".2f",
    low: float | None = None,
    high: float | None = None,
    y: str = "",
    x: str = "",
) -> Figure:
    """A table whose cells are the darker the larger their value; NaN leaves a cell empty.

    Args:
        table: (rows, columns) values.
        rows: names of the rows.
        columns: names of the columns.
        caption: of the figure.
        alt: of the figure.
        form: format of the values.
        low: value of the palest cell; None for the least one.
        high: value of the darkest cell; None for the largest one.
        y: what the rows are.
        x: what the columns are.
    """
    known = table[np.isfinite(table)]
    least = float(known.min()) if low is None else low
    most = float(known.max()) if high is None else high

    def draw(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        for (i, j), value in np.ndenumerate(table):
            if np.isfinite(value):
                share = float(np.clip((value - least) / ((most - least) or 1.0), 0, 1))
                # Never so dark that the value in ink cannot be read on it.
                axes.add_patch(
                    Rectangle(
                        (j - 0.5, i - 0.5), 1, 1, color=SERIES[0], alpha=0.06 + 0.5 * share, lw=0
                    )
                )
                axes.text(j, i, f"{value:{form}}".replace("-", "−"), ha="center", va="center")
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=x, ylabel=y)
        axes.set_xticks(range(len(columns)), columns, rotation=30 if _crowded(columns) else 0)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(labelcolor=INK)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    return figure(draw, caption=caption, alt=alt, height=1.0 + 0.42 * len(rows))


def _crowded(names: Sequence[str]) -> bool:
    return sum(len(name) + 2 for name in names) > 42
