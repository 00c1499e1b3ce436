"""How many dimensions embeddings use, read from eigenvalues and singular values.

Every count here is bounded by the number of texts (by n - 1 once the mean is off), so members are
compared at one n, and n should be several times d. IsoScore and the participation ratio are one
number in two scales: they are not two votes.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

_NO_VARIANCE = 1e-12
"""Variance below this share of the mean squared length of a row is rounding error."""
_RANKME_EPSILON = 1e-7
"""RankMe's guard against log 0."""


def covariance_eigenvalues(matrix: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " r"]:
    """Eigenvalues of the covariance (divisor n), descending; r = min(n, d), the rest are zero.

    Args:
        matrix: (n, d) embeddings. Values in squared embedding units; rounding error becomes zero.
    """
    rows = matrix.astype(np.float64)
    scale = np.mean(np.sum(rows**2, axis=1))
    values = _gram_eigenvalues(rows - rows.mean(axis=0)) / len(rows)
    values[values < _NO_VARIANCE * scale] = 0.0
    return values


def singular_values(matrix: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " r"]:
    """Singular values of the embeddings as they are (mean included), descending."""
    found: Float[np.ndarray, " r"] = np.sqrt(_gram_eigenvalues(matrix.astype(np.float64)))
    return found


def _gram_eigenvalues(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " r"]:
    """Eigenvalues of the smaller of the two Gram matrices, descending, negatives clipped."""
    gram = rows.T @ rows if len(rows) >= rows.shape[1] else rows @ rows.T
    values: Float[np.ndarray, " r"] = np.clip(np.linalg.eigvalsh(gram)[::-1], 0.0, None)
    return values


def participation_ratio(eigenvalues: Float[np.ndarray, " r"]) -> float:
    """(sum l)^2 / sum l^2: 1 for one direction, d for a ball; 0 where nothing varies."""
    squares = float(np.sum(eigenvalues**2))
    return float(eigenvalues.sum()) ** 2 / squares if squares > 0 else 0.0


def isoscore(eigenvalues: Float[np.ndarray, " r"], d: int) -> float:
    """IsoScore in 0..1, as (participation ratio - 1) / (d - 1), to which it is identical.

    Args:
        eigenvalues: of the covariance; missing ones are zero.
        d: dimension of the embeddings, at least 2.

    References:
        Rudman et al. 2022, IsoScore, algorithm 1; the identity is checked by a test.
    """
    return max(0.0, (participation_ratio(eigenvalues) - 1) / (d - 1))


def effective_rank(singular: Float[np.ndarray, " r"]) -> float:
    """Exp of the entropy of the singular values, p = s / sum s + 1e-7; 1..r.

    References:
        Roy and Vetterli 2007; RankMe (Garrido et al. 2023), equation 1, whose guard 1e-7 is kept.
    """
    p = singular / singular.sum() + _RANKME_EPSILON
    return float(np.exp(-np.sum(p * np.log(p))))


def stable_rank(singular: Float[np.ndarray, " r"]) -> float:
    """Squared Frobenius norm over squared spectral norm: sum s^2 / max s^2; 1..r."""
    return float(np.sum(singular**2) / singular.max() ** 2)


def top_share(eigenvalues: Float[np.ndarray, " r"]) -> float:
    """Share of the variance along the first principal direction; 1 where nothing varies."""
    total = float(eigenvalues.sum())
    return float(eigenvalues[0]) / total if total > 0 else 1.0


def directions_for(eigenvalues: Float[np.ndarray, " r"], share: float) -> int:
    """How many principal directions hold `share` (0..1) of the variance; 0 where nothing varies."""
    total = float(eigenvalues.sum())
    if total == 0:
        return 0
    # The tolerance keeps rounding of the cumulative sum from asking for one direction too many.
    held = np.cumsum(eigenvalues) / total
    return int(np.searchsorted(held, share - 1e-12)) + 1
