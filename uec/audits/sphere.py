"""Measures of where embeddings lie: as directions on the unit sphere, or as points to be stored.

References:
    Wang and Isola 2020 (arXiv 2005.10242) for alignment and uniformity; Radovanovic et al. 2010 for
    hubness.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp
from scipy.stats import skew

from uec.audits.inputs import repeats, unit_rows
from uec.audits.neighbours import occurrences

_BLOCK = 512
"""Rows whose cosines are held at once."""


def alignment(
    left: Float[np.ndarray, "n d"], right: Float[np.ndarray, "n d"], *, alpha: float = 2.0
) -> float:
    """mean_i ||l_i - r_i||^alpha of unit vectors; 0 for equal partners, about 2 for unrelated ones.

    With alpha = 2 it equals 2 - 2 mean cosine of the partners, in 0..4. Lower is better.

    References:
        Wang and Isola 2020, the alignment loss.
    """
    gaps = np.linalg.norm(unit_rows(left) - unit_rows(right), axis=1)
    return float(np.mean(gaps**alpha))


def uniformity(matrix: Float[np.ndarray, "n d"], *, t: float = 2.0) -> float:
    """Log mean_{i<j} exp(-t ||z_i - z_j||^2) of unit vectors.

    0 for a single point, about -4 + 8/d for the uniform sphere at t = 2. Lower is more spread.
    Takes all pairs: give a sample of a few thousand rows.

    References:
        Wang and Isola 2020, the uniformity loss; i < j only, as in the authors' code.
    """
    n = len(matrix)
    parts = [logsumexp(-2 * t * (1 - cosines)) for cosines in _cosines(matrix)]
    return float(logsumexp(parts) - np.log(n * (n - 1) / 2))


def near_duplicates(matrix: Float[np.ndarray, "n d"], *, threshold: float = 0.99) -> float:
    """Share of the pairs i < j with a cosine above `threshold`; takes all pairs: give a sample."""
    n = len(matrix)
    count = sum(int((cosines > threshold).sum()) for cosines in _cosines(matrix))
    return count / (n * (n - 1) / 2)


def _cosines(matrix: Float[np.ndarray, "n d"]) -> Iterator[Float[np.ndarray, " p"]]:
    """Cosines of all pairs i < j, a block of i at a time."""
    unit = unit_rows(matrix)
    for start in range(0, len(unit) - 1, _BLOCK):
        block = unit[start : start + _BLOCK] @ unit[start:].T
        yield block[np.triu_indices(len(block), 1, block.shape[1])]


def mean_cosine(matrix: Float[np.ndarray, "n d"]) -> float:
    """Mean cosine of all pairs i != j; 0 where directions balance, 1 for a single direction.

    In closed form: (||sum z||^2 - n) / (n (n - 1)), which is ||mean z||^2 but for order 1/n.
    """
    total = unit_rows(matrix).sum(axis=0)
    n = len(matrix)
    return float((total @ total - n) / (n * (n - 1)))


def hubness(matrix: Float[np.ndarray, "n d"], *, k: int = 10, seed: int = 0) -> float:
    """Skewness of how often a text is among the k nearest of another.

    0 where all are neighbours equally often; above 2, a few hubs crowd every list.

    References:
        Radovanovic et al. 2010, equation 1.
    """
    counts = occurrences(matrix, k, seed).astype(np.float64)
    return float(skew(counts)) if np.ptp(counts) > 0 else 0.0


def distinct_codes(matrix: Float[np.ndarray, "n d"], *, bits: int = 8) -> float:
    """Share of the distinct rows that stay distinct with `bits` bits a dimension; 0..1.

    The quantiser is that of a vector store: 2^bits equal steps over each dimension's range.

    Args:
        matrix: (n, d) embeddings.
        bits: 1 to 8.
    """
    rows = matrix[~repeats(matrix)].astype(np.float64)
    low = rows.min(axis=0)
    span = np.ptp(rows, axis=0)
    steps = (rows - low) / np.where(span > 0, span, 1.0) * 2**bits
    codes = np.minimum(steps, 2**bits - 1).astype(np.uint8)
    return 1 - float(repeats(codes).mean())


def levels(matrix: Float[np.ndarray, "n d"]) -> float:
    """Median over dimensions of how many different values the texts take there; 1..n."""
    ordered = np.sort(matrix, axis=0)
    return float(np.median((np.diff(ordered, axis=0) != 0).sum(axis=0) + 1))


def whitening(matrix: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d r"]:
    """W such that (matrix - its mean) @ W has the identity as its covariance.

    Args:
        matrix: (n, d) embeddings; r is the number of directions in which they vary.
    """
    centred = matrix.astype(np.float64) - matrix.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = values > 1e-10 * values[-1]
    found: Float[np.ndarray, "d r"] = vectors[:, kept] / np.sqrt(values[kept])
    return found
