"""The curvature back end for laplace-torch: a contrastive likelihood's GGN in closed form.

Text n with unit embedding z_n is scored against c candidates C (c, d) that are held fixed,

    logits_n = C z_n / tau,   p_n = softmax(logits_n),   dz_nj/dW_ji = gain_nj f_ni,

so the generalised Gauss-Newton matrix over W needs no per-sample backward pass. With g the variance
of the candidates' coordinates under p and Sigma_p their covariance,

    diagonal     H_ji = sum_n gain_nj^2 g_nj f_ni^2,   g_nj = Var_{c ~ p_n}(C_cj) / tau^2
    Kronecker    A = mean_n f_n f_n',   B = sum_n gain_n gain_n' * Sigma_{p_n} / tau^2

Both directions of each pair count: queries against passages and passages against queries. The map
after W is linearised as `Encoding` says (its diagonal part), and the radial part that L2
normalisation removes is kept, which makes variances slightly larger (never smaller).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from laplace.curvature import GGNInterface
from laplace.utils import Kron
from scipy.sparse import issparse
from torch import Tensor, nn

from uec.records import Encoding


class LinearisedReadout(nn.Module):
    """Logits of a batch as a function of the last weight matrix, exact at the trained weights."""

    def __init__(self, weight: Tensor, temperature: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
        self.register_buffer("trained", weight.clone())
        self.temperature = temperature

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """(n, c) logits of a batch."""
        trained: Any = self.trained
        change: Tensor = batch["features"] @ (self.weight - trained).T
        embedding = batch["mean"] + batch["gain"] * change
        return embedding @ batch["candidates"].T / self.temperature


class ContrastiveCurvature(GGNInterface):
    """laplace-torch back end with the closed forms of the module's docstring.

    `empirical_fisher` replaces the covariance of the candidates under the model by the outer
    product of the gradient at the observed label.
    """

    def __init__(self, *args: Any, empirical_fisher: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.empirical_fisher = empirical_fisher
        self._temperature = float(self.model.temperature)  # type: ignore[arg-type]

    def _probabilities(self, batch: dict[str, Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logits = self.model(batch)
        return self.lossfunc(logits, labels), torch.softmax(logits, dim=-1)

    def _gradient(self, batch: dict[str, Tensor], labels: Tensor, p: Tensor) -> Tensor:
        """Gradient of the loss in the pre-gain outputs, (n, d)."""
        residual = p - nn.functional.one_hot(labels, p.shape[1]).to(p.dtype)
        return batch["gain"] * (residual @ batch["candidates"]) / self._temperature

    def diag(self, x: Any, y: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """Loss and diagonal curvature, (d * h,)."""
        loss, p = self._probabilities(x, y)
        if self.empirical_fisher:
            output = self._gradient(x, y, p).square()
        else:
            candidates = x["candidates"]
            spread = p @ candidates.square() - (p @ candidates).square()
            output = x["gain"].square() * spread / self._temperature**2
        return loss, (output.T @ x["features"].square()).flatten()

    def kron(
        self,
        x: Any,
        y: Tensor,
        N: int,  # noqa: N803 (laplace-torch's name)
        **_: Any,
    ) -> tuple[Tensor, Kron]:
        """Loss and factors [B (d, d), A (h, h)]; A is scaled so that batches add up to a mean."""
        loss, p = self._probabilities(x, y)
        if self.empirical_fisher:
            gradient = self._gradient(x, y, p)
            outputs = gradient.T @ gradient
        else:
            outputs = self._output_curvature(x, p)
        features = x["features"]
        factors: Any = [outputs, features.T @ features / N]
        return loss, Kron([factors])

    def _output_curvature(self, x: dict[str, Tensor], p: Tensor) -> Tensor:
        candidates, gain = x["candidates"], x["gain"]
        if (gain == gain[0]).all():
            centred = torch.diag(p.sum(dim=0)) - p.T @ p
            total = gain[0][:, None] * (candidates.T @ centred @ candidates) * gain[0]
        else:
            total = torch.zeros(gain.shape[1], gain.shape[1], dtype=p.dtype)
            for p_n, gain_n in zip(p, gain, strict=True):
                scaled = candidates * gain_n
                mean = p_n @ scaled
                total += (scaled * p_n[:, None]).T @ scaled - torch.outer(mean, mean)
        return total / self._temperature**2


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the pairs in float64: features (n, h), mean (n, d) and gain (n, d)."""

    features: Tensor
    mean: Tensor
    gain: Tensor


def side_of(encoding: Encoding, gain: Float[np.ndarray, " d"], active: np.ndarray) -> Side:
    """One side of the pairs, on the active columns of its features."""
    features: Any = encoding.features[:, active]
    if issparse(features):
        features = features.toarray()
    gains = np.broadcast_to(gain if encoding.gain is None else encoding.gain, encoding.mean.shape)
    return Side(*(torch.tensor(a, dtype=torch.float64) for a in (features, encoding.mean, gains)))


class Batches:
    """Batches of cached readouts in the form that laplace-torch reads: a mapping with labels."""

    def __init__(self, sides: tuple[Side, Side], batch_size: int) -> None:
        self._sides = sides
        self._batch_size = batch_size
        n_pairs = len(sides[0].mean)
        # laplace-torch reads the number of texts off here. A last batch of one pair has one
        # candidate and no curvature, and a ragged one changes the number of candidates: dropped.
        self.n_batches = max(n_pairs // batch_size, 1)
        self.dataset = range(2 * min(self.n_batches * batch_size, n_pairs))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, self.n_batches * self._batch_size, self._batch_size):
            rows = slice(start, start + self._batch_size)
            for this, other in (self._sides, self._sides[::-1]):
                yield {
                    "features": this.features[rows],
                    "mean": this.mean[rows],
                    "gain": this.gain[rows],
                    "candidates": other.mean[rows],
                    "labels": torch.arange(len(this.mean[rows])),
                }
