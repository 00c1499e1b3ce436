"""The style of a page's figures: matplotlib draws, and the page's own colours and letters show.

The colours that matplotlib wrote are replaced by the page's CSS variables, so that one figure is
right on light and on dark paper; letters stay text. A figure is at most as wide as half of a
desktop page, which keeps its letters readable on a telephone.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uec.errors import DependencyError
from uec.page import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INK, MUTED, RULE = "#1d2330", "#5c6575", "#d8dce3"
SERIES = (
    "#2f6db5",
    "#d1702a",
    "#38885a",
    "#b5445a",
    "#7a5ab5",
    "#8a7340",
    "#23899a",
    "#6b7280",
)
"""Colours of the series, in order; the page's ``--c1`` to ``--c8``, which differ in the dark."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule"} | {
    colour: f"--c{number}" for number, colour in enumerate(SERIES, 1)
}
_PIXELS_AN_INCH = 96
WIDTH, HEIGHT = 4.9, 3.0
"""Inches of a figure: two fit beside each other on a desktop page."""

# Any: matplotlib types each of its parameters by name.
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "uec",
    "font.size": 9.5,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def figure(
    draw: Callable[[Axes], None],
    *,
    caption: str,
    alt: str,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> Figure:
    """Draw one figure in the page's style.

    Args:
        draw: draws on the axes it is given, in the colours of `SERIES`, `INK`, `MUTED`, `RULE`.
        caption: a sentence on what to see in it.
        alt: the same for who cannot see it, with the main figures.
        width: inches.
        height: inches.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    return whole(lambda drawing: draw(drawing.subplots()), caption, alt, width, height)


def whole(
    draw: Callable[[Drawing], None], caption: str, alt: str, width: float, height: float
) -> Figure:
    """As `figure`, for `draw` that makes the axes itself on the drawing it is given."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Drawing
    except ModuleNotFoundError as error:
        raise DependencyError("matplotlib", "audit", "a figure") from error
    # Figures made without pyplot are not kept by it, and need no display.
    with mpl.rc_context(_STYLE):
        drawing = Drawing(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(drawing)
        draw(drawing)
        buffer = io.StringIO()
        drawing.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return Figure(_themed(buffer.getvalue()), caption, alt, round(width * _PIXELS_AN_INCH))


def _themed(svg: str) -> str:
    """The bare element, its colours as variables of the page, its ids unique within the page."""
    prefix = f"f{hashlib.sha256(svg.encode()).hexdigest()[:10]}"
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()
