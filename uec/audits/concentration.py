"""How unequal are some numbers? Measures of one vector of not negative values."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def gini(values: Float[np.ndarray, " c"]) -> float:
    """Gini coefficient: 0 for equal values, (c - 1) / c when one has everything.

    (c - 1) / c - 2 sum_i (c - i) x_(i) / (c sum x), x ascending, i = 1..c.

    Args:
        values: (c,) not negative, not all zero.
    """
    c = len(values)
    ascending = np.sort(values)
    weighted = np.sum((c - np.arange(1, c + 1)) * ascending)
    return float((c - 1) / c - 2 * weighted / (c * ascending.sum()))


def peak(values: Float[np.ndarray, " c"]) -> float:
    """Largest value over the mean: 1 for equal values, c when one has everything."""
    return float(values.max() / values.mean())


def variation(values: Float[np.ndarray, " c"]) -> float:
    """Coefficient of variation: standard deviation (of the c values themselves) over the mean."""
    return float(values.std() / values.mean())


def peak_set(values: Float[np.ndarray, " c"]) -> Int[np.ndarray, " p"]:
    """Positions of the values above Q3 + 3 IQR, the far outliers of a box plot, ascending."""
    first, third = np.percentile(values, (25, 75))
    return np.flatnonzero(values > third + 3 * (third - first))
