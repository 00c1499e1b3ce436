"""Fit last-layer Laplace posteriors from cached readouts.

laplace-torch supplies the posterior algebra and the marginal likelihood; this module supplies its
curvature back end, in closed form. The likelihood is the in-batch contrastive one with the
candidates held fixed: text n with unit embedding z_n against c candidates C (c, d),

    logits_n = C z_n / tau,   p_n = softmax(logits_n),   dz_nj/dW_ji = gain_nj f_ni,

whose generalised Gauss-Newton matrix over W needs no per-sample backward pass (g is the variance of
the candidates' coordinates under p, Sigma_p their covariance)

    diagonal     H_ji = sum_n gain_nj^2 g_nj f_ni^2,   g_nj = Var_{c ~ p_n}(C_cj) / tau^2
    Kronecker    A = mean_n f_n f_n',   B = sum_n gain_n gain_n' * Sigma_{p_n} / tau^2

The diagonal posterior adds the prior precision delta, chosen by the marginal likelihood. The
Kronecker one is damped by factors,

    precision = (B + mu I) ⊗ (A + lambda I),   mu lambda = delta,

so a direction of feature space that the fit never saw keeps the prior's precision (plus ``lambda
B``, small where lambda is), and the predictive variance is exactly rank one. Read backwards it is
the posterior under Zellner's g-prior ``mu (A + lambda I)``: weights are known better along
directions that features use. Martens and Grosse (2015, section 6.3) split delta by the ratio of the
factors' traces; here lambda is the value under which features that were held out are most likely,
``f ~ N(0, A + lambda I)``. On measured encoders that, not the exact ``B ⊗ A + delta I``, makes the
trace tell texts an encoder knows from others. There, delta (6 to 24 by marginal likelihood) drowns
all but a few directions and the trace is |f|^2 again.

Both directions of each pair count: queries against passages and passages against queries. The map
after W is linearised as `Encoding` says (its diagonal part), and the radial part that L2
normalisation removes is kept, which makes variances slightly larger (never smaller).

This module imports torch and laplace-torch; no online path imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from laplace import DiagLaplace, KronLaplace
from laplace.curvature import GGNInterface
from laplace.utils import Kron
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse
from torch import Tensor, nn

from uec.errors import InputError
from uec.posterior import DiagonalPosterior, KroneckerPosterior, Posterior
from uec.records import Encoding

Curvature: TypeAlias = Literal["ggn", "empirical-fisher"]

LOG_PRECISION_RANGE = (-12.0, 18.0)
"""Natural-log bounds of the search for the prior precision: 6e-6 to 6.6e7 per squared weight."""

LOG_DAMPING_RANGE = (-18.0, 7.0)
"""Natural-log bounds of the search for lambda, relative to the mean eigenvalue of A."""

DAMPING_HELD_OUT = 0.2
"""Share of the texts whose likelihood chooses lambda."""

MAX_ACTIVE_FEATURES = 4096
"""Columns of sparse features that get a curvature of their own: its eigenvectors cost the cube."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """What shapes a posterior.

    Attributes:
        batch_size: pairs a batch, hence candidates a text; the curvature depends on it.
        temperature: tau of the contrastive likelihood.
        prior_precision: fixed precision of the Gaussian prior on each weight; None maximises the
            marginal likelihood, separately for the diagonal and the Kronecker posterior.
        curvature: "ggn", or "empirical-fisher" as in the paper's released code.
        damping: fixed lambda of the Kronecker posterior; None takes the held-out likelihood's best.
        rank: directions of feature space that the Kronecker posterior keeps.
    """

    batch_size: int = 64
    temperature: float = 0.05
    prior_precision: float | None = None
    curvature: Curvature = "ggn"
    damping: float | None = None
    rank: int = 256


PAPER_SETTINGS = FitSettings(batch_size=64, prior_precision=1e-5, curvature="empirical-fisher")
"""The released code's choices where they make sense: empirical Fisher, prior precision 1e-5."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Both posteriors of one member and what the fit says of itself.

    Attributes:
        diag: independent weights.
        kron: Kronecker-factored.
        report: prior precisions, log marginal likelihoods, batch accuracy and ranks; JSON-able.
    """

    diag: DiagonalPosterior
    kron: KroneckerPosterior
    report: dict[str, float | int | str]


class LinearisedReadout(nn.Module):
    """Logits of a batch as a function of the last weight matrix, exact at the trained weights."""

    def __init__(self, weight: Tensor, temperature: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
        self.register_buffer("trained", weight.clone())
        self.temperature = temperature

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """(n, c) logits of a batch."""
        change = batch["features"] @ (self.weight - self.trained).T
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

    def _probabilities(self, batch: dict[str, Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logits = self.model(batch)
        return self.lossfunc(logits, labels), torch.softmax(logits, dim=-1)

    def _gradient(self, batch: dict[str, Tensor], labels: Tensor, p: Tensor) -> Tensor:
        """Gradient of the loss in the pre-gain outputs, (n, d)."""
        residual = p - nn.functional.one_hot(labels, p.shape[1]).to(p.dtype)
        return batch["gain"] * (residual @ batch["candidates"]) / self.model.temperature

    def diag(self, x: dict[str, Tensor], y: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """Loss and diagonal curvature, (d * h,)."""
        loss, p = self._probabilities(x, y)
        if self.empirical_fisher:
            output = self._gradient(x, y, p).square()
        else:
            candidates = x["candidates"]
            spread = p @ candidates.square() - (p @ candidates).square()
            output = x["gain"].square() * spread / self.model.temperature**2
        return loss, (output.T @ x["features"].square()).flatten()

    def kron(
        self,
        x: dict[str, Tensor],
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
        return loss, Kron([[outputs, features.T @ features / N]])

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
        return total / self.model.temperature**2


class _Batches:
    """Batches of cached readouts in the form that laplace-torch reads: a mapping with labels."""

    def __init__(self, sides: tuple[_Side, _Side], batch_size: int) -> None:
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


@dataclass(frozen=True, slots=True)
class _Side:
    features: Tensor
    mean: Tensor
    gain: Tensor


def _side(encoding: Encoding, gain: Float[np.ndarray, " d"], active: np.ndarray) -> _Side:
    features = encoding.features[:, active]
    if issparse(features):
        features = features.toarray()
    gains = np.broadcast_to(gain if encoding.gain is None else encoding.gain, encoding.mean.shape)
    return _Side(*(torch.tensor(a, dtype=torch.float64) for a in (features, encoding.mean, gains)))


def _active_columns(queries: Encoding, passages: Encoding) -> np.ndarray:
    """Columns of the features that the fit can learn of; the most frequent, if too many."""
    if not issparse(queries.features):
        return np.arange(queries.features.shape[1])
    uses = sum(np.asarray((side.features != 0).sum(axis=0)).ravel() for side in (queries, passages))
    frequent = np.argsort(-uses, kind="stable")[:MAX_ACTIVE_FEATURES]
    return np.sort(frequent[uses[frequent] > 0])


def _set_prior_precision(la: DiagLaplace | KronLaplace, fixed: float | None) -> dict[str, float]:
    """Fix the prior precision or maximise the marginal likelihood over it; say what came out."""

    def negative(log_precision: float) -> float:
        return -float(la.log_marginal_likelihood(torch.tensor(np.exp(log_precision))))

    if fixed is None:
        best = minimize_scalar(negative, bounds=LOG_PRECISION_RANGE, method="bounded")
        fixed = float(np.exp(best.x))
    log_evidence = -negative(float(np.log(fixed)))
    return {"prior_precision": fixed, "log_marginal_likelihood": log_evidence}


def _diagonal(
    la: DiagLaplace,
    gain: Float[np.ndarray, " d"],
    active: np.ndarray,
    n_features: int,
    texts: list[Encoding],
) -> DiagonalPosterior:
    learnt = la.posterior_variance.detach().numpy().reshape(len(gain), len(active))
    variance = np.full((len(gain), n_features), 1.0 / float(la.prior_precision))
    variance[:, active] = learnt
    variance *= np.square(gain)[:, None]
    weight_variance = variance.astype(np.float32)
    flat = np.full(len(gain), 1 / len(gain), np.float32)
    posterior = DiagonalPosterior(weight_variance, weight_variance.sum(axis=0), flat)
    return replace(posterior, profile=_profile(posterior, texts))


def _held_out_damping(features: Float[np.ndarray, "n h"]) -> float:
    """The lambda under which the last fifth of the features is most likely, given the rest.

    ``log N(f; 0, A + lambda I)`` in the eigenbasis of A is ``-1/2 sum_b log(l_b + lambda) +
    (f . u_b)^2 / (l_b + lambda)``: one eigendecomposition, then a search over one number.
    """
    n_held_out = max(int(DAMPING_HELD_OUT * len(features)), 1)
    fitted, held_out = features[:-n_held_out], features[-n_held_out:]
    values, vectors = np.linalg.eigh(fitted.T @ fitted / len(fitted))
    values = np.maximum(values, 0.0)
    energy = np.square(held_out @ vectors).mean(axis=0)

    def negative(log_damping: float) -> float:
        total = values + np.exp(log_damping)
        return float((np.log(total) + energy / total).sum())

    centre = np.log(values.mean())
    bounds = tuple(centre + bound for bound in LOG_DAMPING_RANGE)
    return float(np.exp(minimize_scalar(negative, bounds=bounds, method="bounded").x))


def _kronecker(
    la: KronLaplace,
    damping: float,
    gain: Float[np.ndarray, " d"],
    active: np.ndarray,
    n_features: int,
    rank: int,
    texts: list[Encoding],
) -> KroneckerPosterior:
    """``((B + mu I) ⊗ (A + lambda I))^-1`` as a quadratic form of low rank plus diagonal.

    Exact up to `rank`. Directions beyond it share the mean of their ``1 / (l_b + lambda)``, so that
    the trace over feature space is kept.
    """
    (basis_b, basis_a), (values_b, values_a) = (
        [part.detach().numpy() for part in group[0]]
        for group in (la.H.eigenvectors, la.H.eigenvalues)
    )
    mu = float(la.prior_precision) / damping
    outputs = np.square(gain) * (np.square(basis_b) @ (1.0 / (np.maximum(values_b, 0) + mu)))
    along = outputs.sum() / (np.maximum(values_a, 0) + damping)
    strongest = np.argsort(-values_a)
    kept, rest = strongest[:rank], strongest[rank:]
    unseen = outputs.sum() / damping
    floor = float(along[rest].mean()) if rest.size else unseen
    diagonal = np.full(n_features, unseen)
    diagonal[active] = floor
    basis = np.zeros((n_features, len(kept)))
    basis[active] = basis_a[:, kept]
    share = (outputs / outputs.sum()).astype(np.float32)
    posterior = KroneckerPosterior(
        diagonal=diagonal,
        basis=basis,
        shrinkage=np.maximum(floor - along[kept], 0),
        outputs=share,
        profile=share,
    )
    return replace(posterior, profile=_profile(posterior, texts))


def fit(
    queries: Encoding,
    passages: Encoding,
    *,
    weight: Float[np.ndarray, "d h"],
    gain: Float[np.ndarray, " d"],
    settings: FitSettings,
) -> Fit:
    """Fit the diagonal and the Kronecker posterior of one member.

    Args:
        queries: n readouts; row i belongs with row i of `passages`.
        passages: n readouts.
        weight: (d, h) last weight matrix as trained, the mean of the posterior.
        gain: (d,) constant gain of the outputs (`Encoder.gain`).
        settings: batch size, temperature, prior precision, curvature and rank.

    Returns:
        Both posteriors, with profiles averaged over the texts of the fit, and a report.

    Raises:
        InputError: fewer than two pairs, or sides of unequal length.

    References:
        Daxberger et al. 2021, Laplace Redux (arXiv 2106.14806), sections 2 and A.2.
        Martens and Grosse 2015 (arXiv 1503.05671), for the Kronecker factors.
    """
    n_pairs = len(queries.mean)
    if n_pairs != len(passages.mean) or n_pairs < 2:
        raise InputError(
            f"a fit needs at least two pairs; got {n_pairs} queries, {len(passages.mean)} passages"
        )
    active = _active_columns(queries, passages)
    sides = (_side(queries, gain, active), _side(passages, gain, active))
    batches = _Batches(sides, min(settings.batch_size, n_pairs))
    model = LinearisedReadout(
        torch.tensor(weight[:, active], dtype=torch.float64), settings.temperature
    )
    common: dict[str, Any] = {
        "likelihood": "classification",
        "backend": ContrastiveCurvature,
        "backend_kwargs": {"empirical_fisher": settings.curvature == "empirical-fisher"},
    }
    diag, kron = DiagLaplace(model, **common), KronLaplace(model, **common)
    report: dict[str, float | int | str] = {"n_pairs": n_pairs, "n_texts": len(batches.dataset)}
    for name, la in (("diag", diag), ("kron", kron)):
        la.fit(batches)
        chosen = _set_prior_precision(la, settings.prior_precision)
        report |= {f"{name}_{key}": value for key, value in chosen.items()}
    # CE loss summed over the texts: exp(-mean) is the geometric mean probability of the partner.
    report["partner_probability"] = float(np.exp(-float(diag.loss) / len(batches.dataset)))
    damping = settings.damping
    if damping is None:
        # Query and passage of a pair stay on the same side of the split.
        paired = np.stack([side.features.numpy() for side in sides], axis=1)
        damping = _held_out_damping(paired.reshape(-1, len(active)))
    report["kron_damping"] = damping
    texts = [queries, passages]
    diagonal = _diagonal(diag, gain, active, weight.shape[1], texts)
    kronecker = _kronecker(kron, damping, gain, active, weight.shape[1], settings.rank, texts)
    spectrum = np.sort(np.maximum(kron.H.eigenvalues[0][1].detach().numpy(), 0))[::-1]
    report["kron_rank"] = kronecker.basis.shape[1]
    report["kron_energy_kept"] = float(spectrum[: settings.rank].sum() / spectrum.sum())
    return Fit(diagonal, kronecker, report)


def _profile(posterior: Posterior, texts: list[Encoding]) -> Float[np.ndarray, " d"]:
    """Average share of each output in the variance over the texts of the fit."""
    total = sum(posterior.variance(text).sum(axis=0, dtype=np.float64) for text in texts)
    return np.asarray(total / np.sum(total), dtype=np.float32)
