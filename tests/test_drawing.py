"""Figures: what is drawn carries the values given, in the page's colours."""

from __future__ import annotations

import re

import numpy as np

from uec import drawing


def texts(figure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg)


def test_bars_show_values_largest_on_top():
    figure = drawing.bars(
        {"b": 0.1, "a": 0.41, "c": -0.2}, caption="c", alt="a", errors={"a": 0.05}, floor=0.03
    )
    shown = texts(figure)
    assert shown[-3:] == ["−0.20", "0.10", "0.41"] and "chance 0.03" in shown
    assert [text for text in shown if text in "abc"] == ["c", "b", "a"]
    assert figure.width == 470


def test_colours_are_the_pages_variables_and_nothing_is_fetched():
    figure = drawing.lines({"a": ([1, 2], [1, 2]), "b": ([1, 2], [2, 1])}, caption="c", alt="a")
    assert "var(--c1)" in figure.svg and "var(--c2)" in figure.svg and "var(--ink)" in figure.svg
    assert not any(colour in figure.svg for colour in (*drawing.SERIES, drawing.INK))
    assert figure.svg.startswith("<svg") and "<metadata" not in figure.svg
    assert not re.search(r'(?:href|src)="(?!#)', figure.svg)


def test_points_beyond_seven_groups_share_a_colour():
    groups = [f"g{i}" for i in range(9) for _ in range(10 - i)]
    figure = drawing.points(
        {title: np.random.default_rng(0).normal(size=(len(groups), 2)) for title in ("A", "B")},
        caption="c", alt="a", groups=groups,
    )  # fmt: skip
    shown = texts(figure)
    assert {f"g{i}" for i in range(7)} <= set(shown)
    assert "2 others" in shown and "g7" not in shown
    assert {"A", "B"} <= set(shown)
    # One mark a text on each map, and one a group in the legend.
    assert figure.svg.count("<use ") == 2 * len(groups) + 8


def test_heat_leaves_unknown_cells_empty_and_is_darker_for_more():
    table = np.array([[np.nan, 0.25], [1.0, np.nan]])
    figure = drawing.heat(table, ["x", "y"], ["x", "y"], caption="c", alt="a", low=0.0, high=1.0)
    assert [text for text in texts(figure) if "." in text] == ["0.25", "1.00"]
    # 6 % for the least, half more for the most.
    assert re.findall(r"opacity: (0\.\d+)", figure.svg) == ["0.185", "0.56"]
