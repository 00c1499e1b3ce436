"""Label-free pairs: a sentence taken out of a passage, and the rest of that passage.

Sentences come from sentencex, which needs no language: its rules for terminators and abbreviations
work across scripts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import sentencex

from uec.errors import InputError
from uec.records import Document, Pair

MIN_SENTENCE = 20
"""Characters: below this a "sentence" is mostly a heading, a number or a stray abbreviation."""


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
