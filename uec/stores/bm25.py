"""The lexical store: BM25 over character 4-grams, for the words that no embedding has learnt.

    score(q, d) = sum over grams t of q   idf(t) tf / (tf + k1 (1 - b + b |d| / mean length))
    idf(t)      = log(1 + (N - df + 1/2) / (df + 1/2))

(Lucene's form; Kamphuis et al. 2020, ECIR; k1 = 1.5, b = 0.75.) The package bm25s keeps the
inverted index and adds up the scores. Texts become grams without knowing their language: words,
folded and padded by one underscore, are cut into overlapping 4-grams (McNamee & Mayfield 2004,
Information Retrieval 7), which find inflected forms as a stemmer does; runs of a script that does
not part its words are cut into bigrams.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from jaxtyping import Float

from uec.errors import InputError

K1 = 1.5
B = 0.75

GRAM = 4
"""Characters of a gram; the best length for European languages (McNamee & Mayfield 2004)."""

_WORD = re.compile(r"\w+")

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Burmese, Khmer, Kana and Han."""

PARAMETERS = "params.index.json"
"""A file that bm25s writes into its folder, to know the folder by."""


def words(text: str) -> list[str]:
    """Runs of letters and digits, folded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def grams(text: str) -> Iterator[str]:
    """The grams of a text, in order, repeated ones too."""
    for word in words(text):
        yield from word_grams(word)


def word_grams(word: str) -> Iterator[str]:
    """The grams of one of its `words`."""
    start = 0
    for run in _UNSPACED.finditer(word):
        yield from _padded(word[start : run.start()])
        yield from _cut(run.group(), 2)
        start = run.end()
    yield from _padded(word[start:])


def _padded(word: str) -> Iterator[str]:
    if word:
        yield from _cut(f"_{word}_", GRAM)


def _cut(text: str, length: int) -> Iterator[str]:
    for start in range(max(1, len(text) - length + 1)):
        yield text[start : start + length]


class Bm25Writer:
    """Collects the grams of a corpus and writes its lexical store; four bytes a gram in memory."""

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._words: dict[str, array[int]] = {}
        self._documents: list[array[int]] = []

    def add(self, passages: Sequence[str]) -> None:
        """Append documents, in the order of the index's rows."""
        for passage in passages:
            document = array("i")
            for word in words(passage):
                ids = self._words.get(word)
                if ids is None:
                    ids = self._words[word] = array("i", map(self._number, word_grams(word)))
                document.extend(ids)
            self._documents.append(document)

    def _number(self, gram: str) -> int:
        return self._vocabulary.setdefault(gram, len(self._vocabulary))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the store; return what a manifest must hold to open it.

        Raises:
            InputError: no document has a word.
        """
        if not self._vocabulary:
            raise InputError("bm25: no document of the corpus has a letter or digit in it")
        store = bm25s.BM25(k1=K1, b=B, method="lucene", idf_method="lucene", backend="numpy")
        store.scores = store.build_index_from_ids(
            list(self._vocabulary.values()),
            self._documents,
            show_progress=False,
        )
        store.vocab_dict = self._vocabulary
        store.save(folder, show_progress=False)
        return {
            "mean_length": float(np.mean([len(ids) for ids in self._documents])),
            "n_grams": len(self._vocabulary),
            "k1": K1,
            "b": B,
        }


class Bm25Store:
    """A corpus by its words; read only, mapped from disk.

    Args:
        folder: written by `Bm25Writer.save`.
        content: what it returned.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any]) -> None:
        self._bm25 = bm25s.BM25.load(folder, mmap=True, load_corpus=False)
        self._vocabulary: dict[str, int] = self._bm25.vocab_dict
        self._mean_length: float = content["mean_length"]
        self._k1: float = content["k1"]
        self._b: float = content["b"]
        self.n_documents: int = self._bm25.scores["num_docs"]
        frequency = np.diff(self._bm25.scores["indptr"])
        self._idf = np.log1p((self.n_documents - frequency + 0.5) / (frequency + 0.5))

    def scores(self, query: str) -> Float[np.ndarray, " N"]:
        """Score of a query with every document of the corpus, (N,); 0 where they share nothing."""
        ids = [self._vocabulary[gram] for gram in grams(query) if gram in self._vocabulary]
        return np.asarray(self._bm25.get_scores_from_ids(ids))

    def score(self, query: str, passages: Sequence[str]) -> Float[np.ndarray, " c"]:
        """Score of a query with any texts, as if they were documents of the corpus; (c,)."""
        asked = Counter(gram for gram in grams(query) if gram in self._vocabulary)
        return np.array([self._score(asked, Counter(grams(passage))) for passage in passages])

    def known(self, query: str) -> float:
        """Share of a query's information that the corpus has, 0 to 1; 0 for a query without words.

        A gram's information is its idf; one that no document has counts as the rarest.
        """
        unseen = float(np.log1p((self.n_documents + 0.5) / 0.5))
        own = [self._vocabulary.get(gram) for gram in grams(query)]
        informative = [0.0 if gram is None else float(self._idf[gram]) for gram in own]
        total = sum(informative) + unseen * own.count(None)
        return sum(informative) / total if total > 0 else 0.0

    def _score(self, asked: Mapping[str, int], document: Counter[str]) -> float:
        length = document.total() / self._mean_length
        saturation = self._k1 * (1 - self._b + self._b * length)
        parts = [
            n * float(self._idf[self._vocabulary[gram]]) * tf / (tf + saturation)
            for gram, n in asked.items()
            if (tf := document[gram])
        ]
        return float(sum(parts))
