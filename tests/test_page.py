"""Pages: what is written is what was given, escaped, self-contained and usable at any width."""

from __future__ import annotations

import re

import browsing
import numpy as np
import pytest

from uec import drawing
from uec.errors import InputError
from uec.page import Bullets, Column, Fold, Note, Section, Table, render, write

TABLE = Table(
    (
        Column("member", hint="who"),
        Column("overlap", ".3f", "high"),
        Column("loss", ".1f", "low"),
        Column("note"),
        Column("texts", ",d"),
    ),
    (
        ("e5", 0.41234, 1.25, "b", 2000),
        ("minilm", None, -0.5, "a", 35),
        ("tiny", float("nan"), 10.0, "c", 512),
        ("small", 0.1, 2.0, "d", 7),
    ),
    "Members.",
)


def sections() -> list[Section]:
    rng = np.random.default_rng(0)
    return [
        Section("Findings", [Bullets(["**e5** keeps `0.41` & more <b>"]), TABLE, Note("Only 3.")]),
        Section(
            "Figures",
            [
                drawing.bars({"e5": 0.41, "b": -0.1}, caption="Bars.", alt="e5 0.41", floor=0.05),
                drawing.heat(np.eye(2), ["a", "b"], ["a", "b"], caption="Heat.", alt="1 and 0"),
                "Between.",
                drawing.points({"Map": rng.normal(size=(30, 2))}, caption="Map.", alt="map"),
                Fold("More", ["hidden", TABLE]),
            ],
        ),
        Section("End", ["A " + "long " * 300]),
    ]


def test_texts_are_escaped_and_marked_up():
    html = render("A <title>", "lead", sections())
    assert "<strong>e5</strong> keeps <code>0.41</code> &amp; more &lt;b&gt;" in html
    assert "<title>A &lt;title&gt;</title>" in html


def test_cells_are_formatted_marked_and_sortable_by_value():
    html = render("t", "l", sections())
    row = re.search(r"<tr>\s*<th scope=\"row\".*?</tr>", html, re.DOTALL)[0]
    cells = re.findall(r'data-value="([^"]*)"(?: class="([^"]*)")?>([^<]*)<', row)
    assert cells == [
        ("e5", "", "e5"),
        ("0.41234", "number best", "0.412"),
        ("1.25", "number", "1.2"),
        ("b", "", "b"),
        ("2000", "number", "2,000"),
    ]
    # Without a value: last in any order, and no number to compare with.
    assert html.count('data-value="" class="number">–<') == 4
    assert 'class="number best">−0.5<' in html


def test_a_column_of_equal_numbers_marks_none():
    table = Table((Column("a"), Column("b", best="high")), (("x", 1.0), ("y", 1.0)))
    assert "best" not in render("t", "l", [Section("s", [table])]).partition("<body>")[2]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(InputError, match="a row has 1 cells, expected one for each of the 2"):
        Table((Column("a"), Column("b")), (("x",),))


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(InputError, match="cannot write the page"):
        write(tmp_path / "no" / "page.html", "t", "l", [])


def test_equal_content_gives_equal_bytes():
    assert render("t", "l", sections()) == render("t", "l", sections())


def test_ids_are_unique():
    ids = re.findall(r'\bid="([^"]+)"', render("t", "l", sections()))
    assert len(ids) > 20 and len(ids) == len(set(ids))


def test_in_a_browser(tmp_path):
    file = tmp_path / "page.html"
    write(file, "A page", "Its lead.", sections(), "footer")
    with browsing.browser() as browser:
        for width in (1280, 400):
            page, asked, errors = browsing.opened(browser, file, width)
            assert asked == [file.as_uri()] and errors == []
            assert page.evaluate("document.documentElement.scrollWidth") == width
            drawn = page.locator("figure svg").all()
            assert len(drawn) == 3
            assert all(100 < svg.bounding_box()["width"] <= width for svg in drawn)
        # A wide table scrolls within its own frame.
        frame = page.locator(".scroll").first
        assert frame.evaluate("e => e.scrollWidth > e.clientWidth")
        assert frame.evaluate("e => { e.scrollLeft = 50; return e.scrollLeft }") == 50

        page.get_by_role("button", name="texts").first.click()
        assert browsing.column(page, 5) == ["2,000", "512", "35", "7"]
        page.get_by_role("button", name="texts").first.click()
        assert browsing.column(page, 1) == ["small", "minilm", "tiny", "e5"]
        page.get_by_role("button", name="note").first.click()
        assert browsing.column(page, 4) == ["a", "b", "c", "d"]
        page.get_by_role("button", name="overlap").first.click()
        page.get_by_role("button", name="overlap").first.click()
        assert browsing.column(page, 2) == ["0.100", "0.412", "–", "–"]
        headings = page.locator(".table").first.locator("th[aria-sort]")
        assert headings.count() == 1 and headings.get_attribute("aria-sort") == "ascending"


def test_ink_follows_the_theme(tmp_path):
    file = tmp_path / "page.html"
    write(file, "A page", "Its lead.", sections())

    def colours(page) -> list[str]:
        ink = page.locator("figure svg text").last.evaluate("e => getComputedStyle(e).fill")
        paper = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        return [ink, paper]

    with browsing.browser() as browser:
        light, dark = (
            colours(browsing.opened(browser, file, 800, scheme)[0]) for scheme in ("light", "dark")
        )
    assert light == ["rgb(29, 35, 48)", "rgb(255, 255, 255)"]
    assert dark == ["rgb(229, 232, 238)", "rgb(20, 23, 29)"]
