"""A headless browser for tests of pages; they are skipped where none is installed.

Playwright brings no browser of its own that could be had offline: Debian's ``chromium`` or
whatever of `NAMES` is on the path is driven.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser() -> Iterator:
    """A started browser.

    Its profile and its requests stay on this machine; `opened` collects what a page asks for.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser on the path (looked for {', '.join(NAMES)})")
    with api.sync_playwright() as playwright:
        # Containers have no user namespaces for the sandbox; the pages are this test's own.
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


def opened(launched, path: Path, width: int, scheme: str = "light"):
    """A page of the file, the addresses that it asked for, and the errors that it met."""
    page = launched.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(path.as_uri())
    return page, asked, errors


def column(page, number: int, table: int = 0) -> list[str]:
    """Texts of a column of the n-th table, from the top."""
    cells = f".table >> nth={table} >> tbody tr > :nth-child({number})"
    return [text.strip() for text in page.locator(cells).all_inner_texts()]
