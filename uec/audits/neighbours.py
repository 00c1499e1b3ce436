"""Exact nearest neighbours by cosine among the rows of one matrix, and how two such lists overlap.

The search goes in blocks of rows with FAISS; memory is that of the matrix in float32 and a block.

Three traps decide the form of this module.

* *Self* is left out by its index. Leaving out the first hit is wrong as soon as a text occurs
  twice: its copy may come first.
* *Ties* go to a seeded random order, not to the lower index. With the index, two matrices whose
  rows are all alike would agree on every neighbour; collapse would look like perfect agreement.
* *Resolution.* FAISS works in float32, and a member whose cosines all lie near one uses the last
  bits only. The mean row is taken off the searched side: that shifts all similarities of one row
  by the same number and so leaves its order as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import faiss
import numpy as np
from jaxtyping import Float, Int

from uec.audits.inputs import unit_rows

Measure: TypeAlias = Literal["jaccard", "recall"]
"""How to compare two sets of k neighbours: |A ∩ B| / |A ∪ B|, or |A ∩ B| / k."""

_NO_LENGTH = 1e-12
"""Below it a difference of unit rows is rounding."""

_TABLE_CELLS = 1 << 23
"""Cells of a block's largest table (a block of rows times n): 32 MiB of int32."""


def block_rows(n: int) -> int:
    """Rows a block may have so that a (rows, n) table of int32 stays within 32 MiB."""
    return max(1, min(n, _TABLE_CELLS // max(n, 1)))


class Neighbours:
    """Nearest neighbours of the rows of one matrix among its other rows.

    Args:
        matrix: (n, d) embeddings, no row zero; only directions matter.
        seed: seed of the order in which ties are settled.
        centre: compare directions as seen from the mean of all rows, not from the origin.
    """

    def __init__(
        self, matrix: Float[np.ndarray, "n d"], seed: int, *, centre: bool = False
    ) -> None:
        unit = unit_rows(matrix)
        if centre:
            unit -= unit.mean(axis=0)
            # A row at the mean has no direction: it ties with all.
            unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), _NO_LENGTH)
        self._order = np.random.default_rng(seed).permutation(len(unit))
        self._queries = unit.astype(np.float32)
        unit -= unit.mean(axis=0)
        self._base = unit.astype(np.float32)[self._order]

    def __len__(self) -> int:
        return len(self._base)

    def rows(self, start: int, stop: int, k: int) -> Int[np.ndarray, "b k"]:
        """The k nearest other rows of rows start to stop, nearest first.

        Args:
            start: first row asked about.
            stop: one past the last.
            k: neighbours a row; 1 <= k < n.
        """
        assert 1 <= k < len(self), "the caller checks k: FAISS would answer -1"
        _, places = faiss.knn(
            self._queries[start:stop], self._base, k + 1, metric=faiss.METRIC_INNER_PRODUCT
        )
        found = self._order[places]
        keep = found != np.arange(start, start + len(found))[:, None]
        # Where more than k copies of a row exist it may miss itself: then drop the last one.
        keep[keep.all(axis=1), -1] = False
        kept: Int[np.ndarray, "b k"] = found[keep].reshape(len(found), k)
        return kept

    def blocks(self, k: int) -> Iterator[tuple[int, Int[np.ndarray, "b k"]]]:
        """All rows in blocks: the first row of each block and its neighbours."""
        size = block_rows(len(self))
        for start in range(0, len(self), size):
            yield start, self.rows(start, min(start + size, len(self)), k)


def occurrences(matrix: Float[np.ndarray, "n d"], k: int, seed: int) -> Int[np.ndarray, " n"]:
    """How often each row is among the k nearest neighbours of another; sums to n k.

    Args:
        matrix: (n, d) embeddings.
        k: neighbours a row.
        seed: seed of the order of ties.

    References:
        Radovanovic et al. 2010, Hubs in space, section 2 (N_k).
    """
    counts = np.zeros(len(matrix), dtype=np.int64)
    for _, found in Neighbours(matrix, seed).blocks(k):
        counts += np.bincount(found.ravel(), minlength=len(matrix))
    return counts


def chance(k: int, n: int, measure: Measure = "jaccard") -> float:
    """Overlap that two unrelated sets of neighbours reach on average.

    p / (2 - p) for Jaccard, p for recall, with p = k / (n - 1). Exact for recall; for Jaccard the
    ratio of means, a little (about 1 / (2k) of itself) below the mean ratio.

    Args:
        k: neighbours a text.
        n: texts.
        measure: ``"jaccard"`` or ``"recall"``.
    """
    p = k / (n - 1)
    return p if measure == "recall" else p / (2 - p)


def shared(
    left: Int[np.ndarray, "b k"], right: Int[np.ndarray, "b k"], ks: Sequence[int], n: int
) -> Int[np.ndarray, "b s"]:
    """How many neighbours two lists share, for several lengths of the lists at once.

    Item j is in both lists cut to k exactly when the larger of its two positions is below k.

    Args:
        left: (b, k) item numbers below n, nearest first, no number twice in a row.
        right: the same of the other side.
        ks: lengths to cut the lists to, each at most k.
        n: how many items there are.

    Returns:
        (b, len(ks)) sizes of the intersections.
    """
    b, width = left.shape
    position = np.full((b, n), width, dtype=np.int32)
    np.put_along_axis(position, right, np.arange(width, dtype=np.int32)[None, :], axis=1)
    later = np.maximum(np.take_along_axis(position, left, axis=1), np.arange(width, dtype=np.int32))
    return np.stack([(later < k).sum(axis=1) for k in ks], axis=1)


def overlap(
    intersections: Int[np.ndarray, "b s"], ks: Sequence[int], measure: Measure = "jaccard"
) -> Float[np.ndarray, "b s"]:
    """Intersections of two k-sets as Jaccard s / (2k - s) or recall s / k, both in 0..1."""
    k = np.asarray(ks)
    divisor = k if measure == "recall" else 2 * k - intersections
    values: Float[np.ndarray, "b s"] = intersections / divisor
    return values
