"""Posteriors over a last weight matrix: from what a layer read to the variance of what it said.

W (d, h) is the last linear layer. To first order an embedding is ``gain * (W features)`` plus terms
free of W (`uec.records.Encoding`), so its covariance is a quadratic form in the features:

    diagonal    Var[W_ji] = V_ji                  variance_j = gain_j^2 sum_i features_i^2 V_ji
    Kronecker   (B + mu I) ⊗ (A + lambda I)       variance_j = gain_j^2 outputs_j q(features)

with A (h, h) the second moment of the features and B (d, d) the curvature of the likelihood in the
outputs. The posteriors here are what a service loads: NumPy only, a few vectors, O(h) to O(h r) a
text. `uec.laplace` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array, issparse

from uec.records import Encoding, PosteriorKind

Features: TypeAlias = Float[np.ndarray, "n h"] | csr_array


@runtime_checkable
class Posterior(Protocol):
    """What an ensemble needs of a member's posterior."""

    @property
    def profile(self) -> Float[np.ndarray, " d"]:
        """Share of each output in the trace, averaged over the texts of the fit; sums to one."""
        ...

    def variance(self, encoding: Encoding) -> Float[np.ndarray, "n d"]:
        """Variance of every entry of the embedding, in squared units of the embedding."""
        ...

    def trace(self, encoding: Encoding) -> Float[np.ndarray, " n"]:
        """Sum of the variances of each text."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store; ``from_arrays`` is the inverse."""
        ...


def _squared(features: Any) -> Any:
    return features.power(2) if issparse(features) else np.square(features)


@dataclass(frozen=True, slots=True)
class DiagonalPosterior:
    """Independent weights.

    Attributes:
        weight_variance: (d, h) ``gain_j^2 V_ji``, the constant gain of the member folded in.
        column: (h,) sum of `weight_variance` over outputs: a trace is one dot product.
        profile: (d,) share of each output in the trace.
    """

    weight_variance: Float[np.ndarray, "d h"]
    column: Float[np.ndarray, " h"]
    profile: Float[np.ndarray, " d"]

    def variance(self, encoding: Encoding) -> Float[np.ndarray, "n d"]:
        """Variance of every entry: ``gain_j^2 sum_i features_i^2 V_ji``; (n, d)."""
        variance = np.asarray(_squared(encoding.features) @ self.weight_variance.T)
        return variance if encoding.gain is None else variance * np.square(encoding.gain)

    def trace(self, encoding: Encoding) -> Float[np.ndarray, " n"]:
        """Sum of the variances of each text; (n,)."""
        if encoding.gain is not None:
            return np.asarray(self.variance(encoding).sum(axis=1))
        return np.asarray(_squared(encoding.features) @ self.column)

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store."""
        return {"weight_variance": self.weight_variance, "profile": self.profile}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> DiagonalPosterior:
        """Inverse of `arrays`."""
        weight_variance = arrays["weight_variance"]
        return cls(weight_variance, weight_variance.sum(axis=0), arrays["profile"])


@dataclass(frozen=True, slots=True)
class KroneckerPosterior:
    """Correlated inputs: all outputs' variances follow one quadratic form of the features.

    ``q(f) = sum_i diagonal_i f_i^2 - sum_r shrinkage_r (f . basis_r)^2``: the prior variance of the
    weights less what the fit learnt along r directions of feature space. A text whose features lie
    along directions that the fit has seen has a small trace.

    Attributes:
        diagonal: (h,) not negative.
        basis: (h, r) orthonormal directions, the strongest r of A; r = 0 for sparse features.
        shrinkage: (r,) not negative, below `diagonal` where that is constant.
        outputs: (d,) share of each output, before a gain that varies with the text.
        profile: (d,) share of each output in the trace; equals `outputs` where the gain is
            constant.
    """

    diagonal: Float[np.ndarray, " h"]
    basis: Float[np.ndarray, "h r"]
    shrinkage: Float[np.ndarray, " r"]
    outputs: Float[np.ndarray, " d"]
    profile: Float[np.ndarray, " d"]

    def _quadratic_form(self, features: Features) -> Float[np.ndarray, " n"]:
        # In float64: the two terms are near equal for a text like those of the fit.
        features = features.astype(np.float64)
        form = np.asarray(_squared(features) @ self.diagonal)
        if self.shrinkage.size:
            form = form - np.square(np.asarray(features @ self.basis)) @ self.shrinkage
        # Their difference may still round below zero.
        return np.asarray(np.maximum(form, 0.0))

    def variance(self, encoding: Encoding) -> Float[np.ndarray, "n d"]:
        """Variance of every entry, ``gain_j^2 outputs_j q(features)``; (n, d)."""
        variance = np.asarray(self._quadratic_form(encoding.features)[:, None] * self.outputs)
        return variance if encoding.gain is None else variance * np.square(encoding.gain)

    def trace(self, encoding: Encoding) -> Float[np.ndarray, " n"]:
        """Sum of the variances of each text; (n,)."""
        form = self._quadratic_form(encoding.features)
        if encoding.gain is None:
            return form
        return np.asarray(form * (np.square(encoding.gain) @ self.outputs))

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store."""
        return {
            "diagonal": self.diagonal,
            "basis": self.basis,
            "shrinkage": self.shrinkage,
            "outputs": self.outputs,
            "profile": self.profile,
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> KroneckerPosterior:
        """Inverse of `arrays`."""
        return cls(**arrays)


def from_arrays(kind: PosteriorKind, arrays: dict[str, np.ndarray]) -> Posterior:
    """Load either kind from its arrays."""
    if kind == "diag":
        return DiagonalPosterior.from_arrays(arrays)
    return KroneckerPosterior.from_arrays(arrays)
