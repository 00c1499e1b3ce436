"""Fit last-layer Laplace posteriors from cached readouts.

laplace-torch supplies the posterior algebra and the marginal likelihood, `uec.curvature` its back
end in closed form: a diagonal, and the Kronecker factors A (h, h) and B (d, d).

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

This module imports torch and laplace-torch; no online path imports it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from laplace import DiagLaplace, KronLaplace
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse

from uec.curvature import Batches, ContrastiveCurvature, LinearisedReadout, Side, side_of
from uec.errors import InputError
from uec.posterior import DiagonalPosterior, KroneckerPosterior, Posterior
from uec.records import Encoding

Curvature: TypeAlias = Literal["ggn", "empirical-fisher"]

LOG_PRECISION_RANGE = (-12.0, 18.0)
"""Natural-log bounds of the search for the prior precision: 6e-6 to 6.6e7 per squared weight."""

LOG_DAMPING_RANGE = (-7.0, 7.0)
"""Natural-log bounds of the search for lambda, over the mean eigenvalue of A. Features of an
encoder with few live directions are likeliest under a lambda of next to nothing, under which any
new text is boundlessly uncertain; at the lower bound an unused direction weighs a thousand
average ones."""

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


def _active_columns(queries: Encoding, passages: Encoding) -> np.ndarray:
    """Columns of the features that the fit can learn of; the most frequent, if too many."""
    if not issparse(queries.features):
        return np.arange(queries.features.shape[1])
    uses: Any = sum(
        np.asarray((side.features != 0).sum(axis=0)).ravel() for side in (queries, passages)
    )
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
    values_b, basis_b, values_a, basis_a = _eigen(la)
    mu = float(la.prior_precision) / damping
    outputs = np.square(gain) * (np.square(basis_b) @ (1.0 / (values_b + mu)))
    along = outputs.sum() / (values_a + damping)
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


def _eigen(la: KronLaplace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of B, then of A; rounding below zero is cut off."""
    decomposed: Any = la.H
    (basis_b, basis_a), (values_b, values_a) = (
        [part.detach().numpy() for part in group[0]]
        for group in (decomposed.eigenvectors, decomposed.eigenvalues)
    )
    return np.maximum(values_b, 0), basis_b, np.maximum(values_a, 0), basis_a


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
    n_features = weight.shape[1]
    sides = (side_of(queries, gain, active), side_of(passages, gain, active))
    diag, kron, report = _laplaces(sides, weight[:, active], settings)
    damping = settings.damping
    if damping is None:
        # Query and passage of a pair stay on the same side of the split.
        paired = np.stack([side.features.numpy() for side in sides], axis=1)
        damping = _held_out_damping(paired.reshape(-1, len(active)))
    texts = [queries, passages]
    diagonal = _diagonal(diag, gain, active, n_features, texts)
    kronecker = _kronecker(kron, damping, gain, active, n_features, settings.rank, texts)
    spectrum = np.sort(_eigen(kron)[2])[::-1]
    report |= {
        "n_pairs": n_pairs,
        "kron_damping": damping,
        "kron_rank": kronecker.basis.shape[1],
        "kron_energy_kept": float(spectrum[: settings.rank].sum() / spectrum.sum()),
    }
    return Fit(diagonal, kronecker, report)


def _laplaces(
    sides: tuple[Side, Side], weight: Float[np.ndarray, "d h"], settings: FitSettings
) -> tuple[DiagLaplace, KronLaplace, dict[str, float | int | str]]:
    """laplace-torch's own two posteriors, fitted and with their prior precision set."""
    batches: Any = Batches(sides, min(settings.batch_size, len(sides[0].mean)))
    trained = torch.tensor(weight, dtype=torch.float64)
    model = LinearisedReadout(trained, settings.temperature)
    common: dict[str, Any] = {
        "likelihood": "classification",
        "backend": ContrastiveCurvature,
        "backend_kwargs": {"empirical_fisher": settings.curvature == "empirical-fisher"},
    }
    diag, kron = DiagLaplace(model, **common), KronLaplace(model, **common)
    report: dict[str, float | int | str] = {"n_texts": len(batches.dataset)}
    for name, la in (("diag", diag), ("kron", kron)):
        la.fit(batches)
        chosen = _set_prior_precision(la, settings.prior_precision)
        report |= {f"{name}_{key}": value for key, value in chosen.items()}
    # CE loss summed over the texts: exp(-mean) is the geometric mean probability of the partner.
    report["partner_probability"] = float(np.exp(-float(diag.loss) / len(batches.dataset)))
    return diag, kron, report


def _profile(posterior: Posterior, texts: list[Encoding]) -> Float[np.ndarray, " d"]:
    """Average share of each output in the variance over the texts of the fit."""
    total = sum(posterior.variance(text).sum(axis=0, dtype=np.float64) for text in texts)
    return np.asarray(total / np.sum(total), dtype=np.float32)
