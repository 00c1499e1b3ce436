"""An embedding is a Gaussian: a mean and a diagonal covariance, whole or as a sketch.

The predictive variance of a text under a last-layer posterior is rank one to within rounding,
``variance[n] = trace[n] * profile`` with one profile per member that sums to one. Exactly so for a
Kronecker posterior with factored damping, and to a fraction of a percent for the others (measured
in `benchmarks/results`). The sketch therefore keeps one number a text instead of d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class Gaussian:
    """n independent Gaussians over d dims with diagonal covariance.

    Attributes:
        mean: (n, d).
        variance: (n, d), in squared units of the mean; not negative.
    """

    mean: Float[np.ndarray, "n d"]
    variance: Float[np.ndarray, "n d"]

    @property
    def trace(self) -> Float[np.ndarray, " n"]:
        """(n,) sum of the variances of each text."""
        return np.asarray(self.variance.sum(axis=1))


@dataclass(frozen=True, slots=True)
class SketchedGaussian:
    """n Gaussians whose variances are multiples of one profile.

    Attributes:
        mean: (n, d).
        trace: (n,) trace of each covariance; not negative.
        profile: (d,) share of each dim in the trace; sums to one.
    """

    mean: Float[np.ndarray, "n d"]
    trace: Float[np.ndarray, " n"]
    profile: Float[np.ndarray, " d"]

    @property
    def profile_moment(self) -> Float[np.ndarray, " n"]:
        """(n,) ``sum_i profile_i mean_i^2``: all that the sketch needs of a mean."""
        return np.asarray(np.square(self.mean) @ self.profile)

    def dense(self) -> Gaussian:
        """Write the variances out in full, (n, d)."""
        return Gaussian(self.mean, self.trace[:, None] * self.profile)
