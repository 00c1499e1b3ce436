"""Words and two-word spans of a corpus: one tokenisation for vocabulary, counts and evaluation.

The released FLiP code builds its vocabulary, its training counts and its evaluation tokens in
three different ways (punctuation stripped or not, accents stripped or not, one-letter words lost),
so that "don't" is counted as one thing and looked up as another. Here `tokenise` is the only way
from a text to words and `Vocabulary.units` the only way from words to vocabulary entries.

It must know nothing of embeddings, members or torch.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log

import numpy as np
from scipy.sparse import csr_array

from uec.errors import InputError

_APOSTROPHES = "'\u2019\u02bc\uff07"
_SPACELESS_SCRIPTS = ("CJK ", "HIRAGANA ", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ")
# Prefixes of Unicode names. Korean is not among them: it writes spaces between words.

MIN_SPAN_COUNT = 20
"""Corpus frequency from which a span of two words may enter (FLiP, section 3)."""
MIN_SPAN_PMI = 1.5
"""Pointwise mutual information in nats from which a span of two words may enter (same place)."""


class _CharacterKinds(dict[str, str]):
    """Kind of each character, looked up once: ``w``, ``s`` (spaceless), ``m``, ``'`` or blank."""

    def __missing__(self, character: str) -> str:
        category = unicodedata.category(character)
        if character in _APOSTROPHES:
            kind = "'"
        elif category.startswith("M"):
            kind = "m"
        elif category[0] not in "LN":
            kind = " "
        elif unicodedata.name(character, "").startswith(_SPACELESS_SCRIPTS):
            kind = "s"
        else:
            kind = "w"
        self[character] = kind
        return kind


_kinds = _CharacterKinds()


def tokenise(text: str) -> list[str]:
    """Cut a text of any script into lower-case words.

    Words are runs of letters, digits and their combining marks; an apostrophe inside a word
    belongs to it ("don't" is one word); every other character separates. Scripts written without
    spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) give overlapping pairs of neighbouring
    characters, as lexical retrieval does for them: a segmenter would need a dictionary per
    language, and pairs are close to words in length. A run of one such character gives it alone.

    Tokenising the joined tokens again gives the same tokens.

    Args:
        text: any Unicode text; compatibility forms are folded (NFKC) before lower-casing.

    Returns:
        The words in order, repeats kept.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    words: list[str] = []
    clusters: list[str] = []
    run_kind = " "
    for character in folded:
        kind = _kinds[character]
        if kind == "m" and clusters:
            clusters[-1] += character
        elif kind == "'" and run_kind == "w":
            clusters.append("'")
        elif kind in "ws":
            if kind != run_kind:
                words.extend(_words_of_run(clusters, run_kind))
                clusters = []
            clusters.append(character)
            run_kind = kind
        else:
            words.extend(_words_of_run(clusters, run_kind))
            clusters, run_kind = [], " "
    words.extend(_words_of_run(clusters, run_kind))
    return words


def _words_of_run(clusters: list[str], kind: str) -> list[str]:
    """Words of one unbroken run of characters, each given with its combining marks."""
    if kind == "s" and len(clusters) > 1:
        return ["".join(pair) for pair in pairwise(clusters)]
    word = "".join(clusters).strip("'")
    return [word] if word else []


@dataclass(frozen=True)
class Vocabulary:
    """The words and two-word spans that a probe can name.

    Attributes:
        entries: single words, then spans written as two words with a space between.
    """

    entries: tuple[str, ...]
    _index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {word: i for i, word in enumerate(self.entries)})

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def build(
        cls,
        texts: Sequence[str],
        *,
        n_words: int = 20_000,
        n_spans: int = 0,
        min_count: int = 2,
        min_span_count: int = MIN_SPAN_COUNT,
    ) -> Vocabulary:
        """Take the most frequent words of a corpus, and spans whose words attract each other.

        Args:
            texts: the training texts; never the texts of an evaluation.
            n_words: at most this many words.
            n_spans: at most this many spans of two words; 0 for none.
            min_count: a word needs this many occurrences.
            min_span_count: a span needs this many occurrences.

        Returns:
            Words by falling frequency, then spans by falling frequency; ties alphabetical.

        Raises:
            InputError: no word of the texts reaches `min_count`.

        References:
            Kesiraju et al. 2026, FLiP, section 3: spans have frequency >= 20 and PMI >= 1.5, where
            PMI(a, b) = log p(a b) / (p(a) p(b)), then the most frequent are kept.
        """
        singles: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for text in texts:
            tokens = tokenise(text)
            singles.update(tokens)
            if n_spans:
                pairs.update(pairwise(tokens))
        words = _most_frequent(singles, min_count, n_words)
        if not words:
            raise InputError(
                f"no word occurs {min_count} times in the {len(texts)} training texts; "
                "give more texts or lower min_count"
            )
        known, total = set(words), singles.total()
        attracted = Counter(
            {
                f"{a} {b}": n
                for (a, b), n in pairs.items()
                if a in known
                and b in known
                and log(n * total / (singles[a] * singles[b])) >= MIN_SPAN_PMI
            }
        )
        return cls(tuple(words + _most_frequent(attracted, min_span_count, n_spans)))

    def units(self, text: str) -> Iterator[int]:
        """Entries of a text by greedy longest match, left to right, spans of at most two words.

        Words that are not in the vocabulary are passed over. With a vocabulary without spans this
        is the text's known words.
        """
        tokens = tokenise(text)
        position = 0
        while position < len(tokens):
            span = self._index.get(" ".join(tokens[position : position + 2]))
            if span is not None and position + 1 < len(tokens):
                yield span
                position += 2
                continue
            word = self._index.get(tokens[position])
            if word is not None:
                yield word
            position += 1

    def counts(self, texts: Sequence[str]) -> csr_array:
        """How often each entry occurs in each text: sparse (n, v), by `units`."""
        rows: list[int] = []
        columns: list[int] = []
        for row, text in enumerate(texts):
            found = list(self.units(text))
            rows.extend([row] * len(found))
            columns.extend(found)
        ones = np.ones(len(rows), dtype=np.float32)
        table = csr_array((ones, (rows, columns)), shape=(len(texts), len(self)))
        table.sum_duplicates()
        return table


def _most_frequent(counter: Counter[str], min_count: int, limit: int) -> list[str]:
    ordered = sorted((-n, word) for word, n in counter.items() if n >= min_count)
    return [word for _, word in ordered[:limit]]
