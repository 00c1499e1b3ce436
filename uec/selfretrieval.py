"""Label-free self-retrieval: pieces of a corpus as queries, and how well each member answers them.

Two tasks are made from one span of consecutive words, and they err in opposite directions:

- *quotation*: find the document that holds the span. It asks for fidelity, and flatters a member
  that matches wording in a language that it does not understand.
- *cloze*: find the document with the span cut out (the inverse cloze task, Lee et al. 2019,
  arXiv 1906.00300). It asks for understanding, and flatters a member that is good at topics.

`sentence_pairs` makes pairs to fit on by the same cut, at whole sentences. Sentences come from
sentencex, which needs no language: its rules for terminators and abbreviations work across scripts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import sentencex
from jaxtyping import Float, Int

from uec.errors import InputError
from uec.records import Document, Pair

SPAN_WORDS = 9
"""Words of a span: about the length of a question."""

SPAN_CHARACTERS = 18
"""Characters of a span where words are not parted by spaces; a Chinese word has about two."""

MIN_SPAN_WORDS = 3
MIN_SPAN_CHARACTERS = 6

MIN_SPANS = 30
"""Fewer rank nothing."""

WORD_CHARACTERS = 15
"""Mean length above which "words" are clauses of a script without spaces."""

MIN_SENTENCE = 20
"""Characters: below this a "sentence" is mostly a heading, a number or a stray abbreviation."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some consecutive words of a document.

    Attributes:
        row: the document's position in its corpus.
        text: the words.
        rest: the document without them.
    """

    row: int
    text: str
    rest: str


def draw_spans(documents: Iterable[tuple[int, Document]], n_spans: int, seed: int) -> list[Span]:
    """Cut one span out of each document until there are enough.

    Args:
        documents: rows and documents, in random order; read no further than needed.
        n_spans: how many at the most.
        seed: of the place of each span.

    Returns:
        Spans with distinct texts. Documents of fewer than six words (twelve characters of a script
        without spaces) give none.
    """
    rng = np.random.default_rng(seed)
    spans: dict[str, Span] = {}
    for row, document in documents:
        if len(spans) == n_spans:
            break
        span = _cut(row, document.passage, rng)
        if span is not None:
            spans.setdefault(span.text, span)
    return list(spans.values())


def _cut(row: int, text: str, rng: np.random.Generator) -> Span | None:
    words = text.split()
    if not words:
        return None
    if len(text) / len(words) > WORD_CHARACTERS:
        units, joint = list("".join(words)), ""
        length, least = SPAN_CHARACTERS, MIN_SPAN_CHARACTERS
    else:
        units, joint = words, " "
        length, least = SPAN_WORDS, MIN_SPAN_WORDS
    # At least half of the document must stay, or there is nothing left to be found by.
    length = min(length, len(units) // 2)
    if length < least:
        return None
    start = int(rng.integers(len(units) - length + 1))
    rest = units[:start] + units[start + length :]
    return Span(row, joint.join(units[start : start + length]), joint.join(rest))


def reciprocal_ranks(
    scores: Float[np.ndarray, "m p"], targets: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " m"]:
    """``1 / rank`` of the document that each query should find.

    Args:
        scores: (m, p) of m queries with p documents.
        targets: (m,) column of the document to find.

    Returns:
        (m,) in (0, 1]; documents that tie with it count as half before it.
    """
    own = scores[np.arange(len(targets)), targets][:, None]
    above = (scores > own).sum(axis=1)
    ties = (scores == own).sum(axis=1) - 1
    return np.asarray(1.0 / (1.0 + above + ties / 2))


def log_odds(reciprocal: Float[np.ndarray, "m k"]) -> Float[np.ndarray, " k"]:
    """Log-odds of each member's mean reciprocal rank, (k,).

    The mean counts one query more, half right, so that a member that finds everything or nothing
    keeps finite odds, and the fewer the queries the nearer all members are to each other.
    """
    mean = (reciprocal.sum(axis=0) + 0.5) / (len(reciprocal) + 1)
    return np.asarray(np.log(mean) - np.log1p(-mean))


def sentence_pairs(documents: Iterable[Document], n_pairs: int, seed: int) -> list[Pair]:
    """Cut one sentence out of each of up to `n_pairs` documents.

    Args:
        documents: read once; a reservoir sample of them is used, so any length will do.
        n_pairs: how many pairs at the most.
        seed: of the sample and of the choice of sentence.

    Returns:
        Pairs (sentence, rest of the passage) in the documents' order, duplicates left out.

    Raises:
        InputError: fewer than two documents have two sentences to part.
    """
    rng = np.random.default_rng(seed)
    reservoir: list[tuple[int, Pair]] = []
    seen: set[str] = set()
    n_seen = 0
    for document in documents:
        pair = _part(document.text, rng)
        if pair is None or pair.query in seen:
            continue
        seen.add(pair.query)
        if len(reservoir) < n_pairs:
            reservoir.append((n_seen, pair))
        elif (slot := int(rng.integers(n_seen + 1))) < n_pairs:
            reservoir[slot] = (n_seen, pair)
        n_seen += 1
    if len(reservoir) < 2:
        raise InputError(
            f"only {len(reservoir)} documents have a sentence to part from its passage; "
            "expected passages of two or more sentences, or pairs given with --pairs"
        )
    return [pair for _, pair in sorted(reservoir, key=lambda item: item[0])]


def _part(text: str, rng: np.random.Generator) -> Pair | None:
    sentences = [s.strip() for s in sentencex.segment("en", text)]
    long_enough = [i for i, s in enumerate(sentences) if len(s) >= MIN_SENTENCE]
    if len(sentences) < 2 or not long_enough:
        return None
    chosen = long_enough[int(rng.integers(len(long_enough)))]
    rest = " ".join(s for i, s in enumerate(sentences) if i != chosen and s)
    return Pair(sentences[chosen], rest) if rest else None
