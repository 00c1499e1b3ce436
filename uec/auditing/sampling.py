"""The texts that an audit judges on: a sample of a corpus, pairs, and pieces of the sample.

Everybody is judged on the same texts: the same seeded sample of distinct, non-empty documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from uec.errors import InputError
from uec.readers import read_corpus, read_pairs
from uec.records import Document, Pair
from uec.selfretrieval import Span, draw_spans


@dataclass(frozen=True, slots=True)
class Sample:
    """n distinct texts of a corpus.

    Attributes:
        documents: (n) in the corpus's order.
        rows: (n,) position of each in the corpus file, from 0.
        n_documents: documents in the file.
        n_repeated: those left out because an earlier one has the same text.
        n_empty: those left out because they have no text.
        labels: (n) a label of each, or None.
        entities: (n) the names in each text, or None.
    """

    documents: tuple[Document, ...]
    rows: Int[np.ndarray, " n"]
    n_documents: int
    n_repeated: int
    n_empty: int
    labels: tuple[str, ...] | None = None
    entities: tuple[tuple[str, ...], ...] | None = None

    @property
    def texts(self) -> list[str]:
        """What is embedded, (n)."""
        return [document.passage for document in self.documents]


@dataclass(frozen=True, slots=True)
class PairSample:
    """n pairs of texts.

    Attributes:
        queries: (n) one side.
        passages: (n) the other.
        rows: (n,) position of each in the pairs file, from 0.
        n_pairs: pairs in the file.
        n_repeated: those left out because an earlier one has the same query or passage.
    """

    queries: tuple[str, ...]
    passages: tuple[str, ...]
    rows: Int[np.ndarray, " n"]
    n_pairs: int
    n_repeated: int = 0


@dataclass(frozen=True, slots=True)
class PairSets:
    """Pairs of texts by what they are for.

    Attributes:
        same: question and passage, or text and translation: the audits that want pairs.
        adversarial: with the same words and another meaning, for the geometry.
        parallel: language to a text and its translation into it: do word probes hold across?
    """

    same: PairSample | None = None
    adversarial: PairSample | None = None
    parallel: Mapping[str, PairSample] = field(default_factory=dict)

    @property
    def n_pairs(self) -> int:
        """Pairs in all."""
        given = (self.same, self.adversarial, *self.parallel.values())
        return sum(len(pairs.rows) for pairs in given if pairs is not None)


def read_sample(
    path: Path, n_texts: int, seed: int, label: str | None = None, entities: str | None = None
) -> Sample:
    """Draw distinct, non-empty texts from a corpus of any length.

    Args:
        path: JSONL or BEIR folder, as `uec.readers.read_corpus` takes it.
        n_texts: how many at the most.
        seed: of the draw.
        label: key of the documents' metadata whose value is their label.
        entities: key of the documents' metadata whose value is the list of names in the text.

    Raises:
        InputError: a bad line, a document without the label or names, or `n_texts` below 1.
    """
    if n_texts < 1:
        raise InputError(f"n_texts must be at least 1, got {n_texts}")
    rng = np.random.default_rng(seed)
    seen: set[bytes] = set()
    reservoir: list[tuple[int, Document]] = []
    n_repeated = n_empty = n_documents = 0
    for row, document in enumerate(read_corpus(path)):
        n_documents += 1
        text = document.passage.strip()
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if not text:
            n_empty += 1
        elif digest in seen:
            n_repeated += 1
        else:
            if len(reservoir) < n_texts:
                reservoir.append((row, document))
            elif (slot := int(rng.integers(len(seen) + 1))) < n_texts:
                reservoir[slot] = (row, document)
            seen.add(digest)
    reservoir.sort(key=lambda item: item[0])
    documents = tuple(document for _, document in reservoir)
    labels = None if label is None else tuple(_label(document, label) for document in documents)
    named = (
        None if entities is None else tuple(_names(document, entities) for document in documents)
    )
    rows = np.array([row for row, _ in reservoir], dtype=np.int64)
    return Sample(documents, rows, n_documents, n_repeated, n_empty, labels, named)


def _label(document: Document, key: str) -> str:
    return str(_value(document, key))


def _names(document: Document, key: str) -> tuple[str, ...]:
    found = _value(document, key)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InputError(
            f"document {document.doc_id!r}: {key!r} is {found!r}; expected a list of names"
        )
    return tuple(found)


def _value(document: Document, key: str) -> Any:
    if key not in document.metadata:
        raise InputError(
            f"document {document.doc_id!r} has no key {key!r}; "
            f"its keys are {sorted(document.metadata)}"
        )
    return document.metadata[key]


def read_pair_sample(path: Path, n_pairs: int, seed: int) -> PairSample:
    """Draw pairs from a file, as `uec.readers.read_pairs` takes it; see `draw_pairs`."""
    return draw_pairs(read_pairs(path), n_pairs, seed)


def draw_pairs(pairs: Iterable[Pair], n_pairs: int, seed: int) -> PairSample:
    """Draw some pairs, in their order.

    A pair with a side that an earlier pair has is left out: the same text twice is its own nearest
    neighbour on one side and not on the other.
    """
    seen: tuple[set[str], set[str]] = (set(), set())
    fresh: list[tuple[int, Pair]] = []
    n_all = 0
    for row, pair in enumerate(pairs):
        n_all += 1
        sides = pair.query.strip(), pair.passage.strip()
        if not any(side in known for side, known in zip(sides, seen, strict=True)):
            fresh.append((row, pair))
        for side, known in zip(sides, seen, strict=True):
            known.add(side)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(fresh))[:n_pairs])
    drawn = [fresh[i] for i in chosen]
    return PairSample(
        tuple(pair.query for _, pair in drawn),
        tuple(pair.passage for _, pair in drawn),
        np.array([row for row, _ in drawn], dtype=np.int64),
        n_all,
        n_all - len(fresh),
    )


def draw(sample: Sample, n_spans: int, seed: int) -> list[Span]:
    """Spans of the sample's documents, in random order; `Span.row` counts the sample's texts."""
    order = np.random.default_rng(seed).permutation(len(sample.documents))
    return draw_spans(((row, sample.documents[row]) for row in order.tolist()), n_spans, seed)
