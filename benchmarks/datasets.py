"""Evaluation sets in the BEIR layout, and English pairs to fit on that belong to none of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uec.errors import InputError
from uec.readers import read_beir
from uec.records import Document, Pair, Query


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """One evaluation set in memory.

    Attributes:
        name: of the folder.
        corpus: N documents.
        queries: the judged ones.
        qrels: query id to document id to relevance.
    """

    name: str
    corpus: list[Document]
    queries: list[Query]
    qrels: dict[str, dict[str, int]]


def load_set(data: Path, name: str, split: str = "test") -> RetrievalSet:
    """Read one BEIR folder."""
    beir = read_beir(data / name, split)
    return RetrievalSet(name, list(beir.corpus), beir.queries, beir.qrels)


def pool(name: str, sets: list[RetrievalSet]) -> RetrievalSet:
    """Put several sets into one corpus; ids get the set's name as prefix."""
    corpus = [
        Document(f"{s.name}/{d.doc_id}", d.text, d.title, d.metadata)
        for s in sets
        for d in s.corpus
    ]
    queries = [Query(f"{s.name}/{q.query_id}", q.text) for s in sets for q in s.queries]
    qrels = {
        f"{s.name}/{query_id}": {f"{s.name}/{d}": r for d, r in judged.items()}
        for s in sets
        for query_id, judged in s.qrels.items()
    }
    return RetrievalSet(name, corpus, queries, qrels)


def named(data: Path, name: str) -> RetrievalSet:
    """A set by name: ``a+b`` pools sets, ``a@b`` asks a's questions of b's corpus.

    Raises:
        InputError: a query that b judges is not in a.
    """
    asked, at, corpus = name.partition("@")
    if at:
        return cross(name, load_set(data, asked), load_set(data, corpus))
    parts = [load_set(data, part) for part in name.split("+")]
    return parts[0] if len(parts) == 1 else pool(name, parts)


def bitext(data: Path, language: str) -> list[Pair]:
    """Tatoeba's pairs of a sentence in a language and its English translation."""
    lines = (data / "tatoeba" / f"{language}-eng.tsv").read_text("utf-8").splitlines()[1:]
    return [Pair(*line.split("\t")) for line in lines]


def cross(name: str, asked: RetrievalSet, answered: RetrievalSet) -> RetrievalSet:
    """The questions of one set, by their ids, to the corpus and judgements of another."""
    texts = {query.query_id: query for query in asked.queries}
    missing = sorted(set(answered.qrels) - set(texts))
    if missing:
        raise InputError(f"{name}: {asked.name} has no query {missing[:3]} of {answered.name}")
    queries = [texts[query.query_id] for query in answered.queries]
    return RetrievalSet(name, answered.corpus, queries, answered.qrels)


def english_pairs(data: Path, limit: int, seed: int = 0) -> list[Pair]:
    """English competence pairs from entailment and question-answering sets.

    Entailed RTE-3 and SNLI sentences, TREC QA training answers and ARC questions; none of these
    texts is in a retrieval set of `benchmarks`.

    Args:
        data: folder that holds ``entailment/`` and ``qa/``.
        limit: how many at the most, drawn at random.
        seed: of the draw.

    Raises:
        InputError: the folder holds none of them.
    """
    pairs = list(dict.fromkeys(_english_pairs(data)))
    if not pairs:
        raise InputError(f"{data}: no entailment/ or qa/ pairs in it; give --pairs FILE")
    order = np.random.default_rng(seed).permutation(len(pairs))[:limit]
    return [pairs[i] for i in sorted(order)]


def _english_pairs(data: Path) -> Iterator[Pair]:
    for name in ("rte3-dev", "rte3-test"):
        for row in _rows(data / "entailment" / f"{name}.tsv"):
            if row["label"] == "ENTAILMENT":
                yield Pair(row["hypothesis"], row["text"])
    for row in _rows(data / "entailment" / "snli-1000.tsv"):
        if row["label"] == "entailment":
            yield Pair(row["hypothesis"], row["premise"])
    for row in _rows(data / "qa" / "trecqa-wang-train.tsv"):
        if row["label"] == "1":
            yield Pair(row["question"], row["sentence"])
    arc = data / "qa" / "arc-challenge-test.jsonl"
    if arc.exists():
        for line in arc.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            yield Pair(record["question"], record["answer"])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
