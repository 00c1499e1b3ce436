"""How well words were extracted from embeddings: the measures, and the two simplest extractors.

Everything here is about indices into a vocabulary: `wanted[i]` holds the distinct entries of text i
and `found[i]` what an extractor named for it, best first. Where a text has no entry its measure is
NaN, and means pass over it.

It must know nothing of how a probe is trained.

References:
    Kesiraju et al. 2026, FLiP (arXiv 2604.18109), section 3 for the measures; Bhalla et al. 2024,
    SpLiCE (arXiv 2402.10376), for the sparse code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.sparse import csr_array

from uec.audits.inputs import unit_rows
from uec.audits.vocabulary import tokenise

SPLICE_L1 = 0.2
"""Penalty of the sparse code; SpLiCE's own examples use 0.25 to 0.35, and hits hardly depend on
it between 0.05 and 0.3."""


def references(counts: csr_array) -> list[Int[np.ndarray, " _"]]:
    """The distinct entries of each text, as indices into the vocabulary.

    Args:
        counts: (n, v) as made by `uec.audits.vocabulary.Vocabulary.counts`.
    """
    bounds = counts.indptr
    return [counts.indices[bounds[i] : bounds[i + 1]] for i in range(counts.shape[0])]


def top_entries(
    scores: Float[np.ndarray, "n v"], sizes: Sequence[int]
) -> list[Int[np.ndarray, " _"]]:
    """The `sizes[i]` best columns of row i, best first; among equals, the first column first."""
    largest = min(max(sizes, default=0), scores.shape[1])
    if largest == 0:
        return [np.empty(0, dtype=np.int64) for _ in sizes]
    candidates = np.sort(np.argpartition(-scores, largest - 1, axis=1)[:, :largest], axis=1)
    values = np.take_along_axis(scores, candidates, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(candidates, order, axis=1)
    return [row[:size] for row, size in zip(ranked, sizes, strict=True)]


def hits(
    found: Sequence[Int[np.ndarray, " _"]], wanted: Sequence[Int[np.ndarray, " _"]]
) -> list[set[int]]:
    """The wanted entries that were found, text by text."""
    return [set(f.tolist()) & set(w.tolist()) for f, w in zip(found, wanted, strict=True)]


def recalls(
    found: Sequence[Int[np.ndarray, " _"]], wanted: Sequence[Int[np.ndarray, " _"]]
) -> Float[np.ndarray, " n"]:
    """Share of the wanted entries that were found, text by text; NaN where none is wanted.

    With `len(found[i]) == len(wanted[i])` this is the paper's accuracy; over a vocabulary with
    spans it is the span-aware accuracy.
    """
    return np.array(
        [
            len(hit) / len(w) if len(w) else math.nan
            for hit, w in zip(hits(found, wanted), wanted, strict=True)
        ]
    )


def mean_and_error(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean and its standard error over the values that are not NaN; NaN where there are none."""
    kept = values[~np.isnan(values)]
    if not len(kept):
        return math.nan, math.nan
    return float(kept.mean()), float(kept.std() / math.sqrt(len(kept)))


def jaccard(first: Sequence[set[int]], second: Sequence[set[int]]) -> Float[np.ndarray, " n"]:
    """Overlap of two members' hits on each text; NaN where neither has one."""
    return np.array(
        [len(a & b) / len(a | b) if a | b else math.nan for a, b in zip(first, second, strict=True)]
    )


def entity_recalls(
    extracted: Sequence[Sequence[str]], entities: Sequence[Sequence[str]]
) -> tuple[Float[np.ndarray, " e"], Float[np.ndarray, " e"]]:
    """Named entities among the extracted entries, entity by entity.

    A word that no vocabulary entry contains cannot be found and counts as missed.

    Args:
        extracted: the k entries named for each text.
        entities: the entities of each text, as they are written.

    Returns:
        Strict recall (1 where every word of the entity was extracted) and partial recall (share of
        its words) of all e entities.
    """
    strict, partial = [], []
    for entries, names in zip(extracted, entities, strict=True):
        known = {word for entry in entries for word in entry.split(" ")}
        for name in names:
            tokens = set(tokenise(name))
            if tokens:
                share = len(tokens & known) / len(tokens)
                partial.append(share)
                strict.append(float(share == 1))
    return np.array(strict), np.array(partial)


def most_frequent(counts: csr_array, sizes: Sequence[int]) -> list[Int[np.ndarray, " _"]]:
    """The baseline that has seen no embedding: each text gets the most frequent entries.

    Args:
        counts: (n, v) of the training texts.
        sizes: how many entries to name for each text.
    """
    frequency = np.asarray(counts.sum(axis=0)).ravel()
    order = np.argsort(-frequency, kind="stable")
    return [order[:size] for size in sizes]


def sparse_codes(
    embeddings: Shaped[np.ndarray, "n d"],
    centre_of: Shaped[np.ndarray, "m d"],
    dictionary: Shaped[np.ndarray, "v d"],
    sizes: Sequence[int],
    *,
    l1: float = SPLICE_L1,
) -> list[Int[np.ndarray, " _"]]:
    """SpLiCE: explain each embedding as a sparse non-negative sum of word embeddings.

    Unit rows, less the mean of their kind (texts and words each their own), again unit rows, then
    min_w |z - C'w|^2 + l1 |w|_1 over w >= 0. Entries with weight zero are never named.

    Args:
        embeddings: (n, d) of the texts to explain.
        centre_of: (m, d) embeddings of the training texts, for their mean.
        dictionary: (v, d) the member's embeddings of the vocabulary's entries.
        sizes: how many entries to name at most for each text.
        l1: the penalty.

    Returns:
        Entries by falling weight.

    References:
        Bhalla et al. 2024, SpLiCE, equation 3; scikit-learn's Lasso divides the squares by 2 d,
        hence its alpha = l1 / (2 d).
    """
    from sklearn.linear_model import Lasso

    if not len(embeddings):
        return []
    text_mean = unit_rows(centre_of).mean(axis=0)
    words = unit_rows(dictionary)
    atoms = np.asfortranarray(_unit_or_zero(words - words.mean(axis=0)).T)
    targets = _unit_or_zero(unit_rows(embeddings) - text_mean)
    model = Lasso(
        alpha=l1 / (2 * atoms.shape[0]), positive=True, fit_intercept=False, max_iter=5000
    )
    weights = np.atleast_2d(model.fit(atoms, targets.T).coef_)
    named = top_entries(weights, sizes)
    return [entries[row[entries] > 0] for entries, row in zip(named, weights, strict=True)]


def _unit_or_zero(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows of length one; a row that equals the mean stays zero and is explained by no word."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray = rows / np.where(lengths > 0, lengths, 1.0)
    return unit
