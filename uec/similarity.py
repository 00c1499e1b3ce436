"""The inner product of two Gaussians, and the score made of its mean and variance.

For independent q ~ N(m_q, V_q) and c ~ N(m_c, V_c) with diagonal covariances

    E[q.c]   = m_q . m_c
    Var[q.c] = sum_i (m_q,i^2 V_c,i + V_q,i m_c,i^2 + V_q,i V_c,i)

exactly. The score is the probit-moderated mean, ``E / sqrt(1 + beta pi/8 Var)``
(UEC, arXiv 2507.20718, section on uncertainty-aware similarity; beta = 1 is the published formula).

The paper motivates the score as a surrogate of the squared 2-Wasserstein metric. It is one only
where the variance terms are small: plain cosine is as close to it (`wasserstein2` is here so that
tests can show both). The score moderates by uncertainty; it does not measure W2.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from uec.gaussian import Gaussian, SketchedGaussian

PROBIT = np.pi / 8
"""Slope constant of the logistic-probit approximation (MacKay 1992)."""


def moments(
    query: Gaussian, document: Gaussian
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, "n c"]]:
    """Mean and variance of the inner product of every query with every document.

    Args:
        query: n Gaussians over d dims.
        document: c Gaussians over the same dims.

    Returns:
        (n, c) means and (n, c) variances.
    """
    mean = query.mean @ document.mean.T
    variance = (
        np.square(query.mean) @ document.variance.T
        + query.variance @ (np.square(document.mean) + document.variance).T
    )
    return mean, variance


def sketched_variance(
    query: SketchedGaussian,
    document_trace: Float[np.ndarray, "n c"],
    document_moment: Float[np.ndarray, "n c"],
) -> Float[np.ndarray, "n c"]:
    """Variance of the inner product from the sketches alone: O(1) a candidate.

    With ``V_x = t_x p`` the second line of the module's formula is
    ``t_c a_q + t_q a_c + t_q t_c |p|^2`` where ``a_x = sum_i p_i m_x,i^2``.

    Args:
        query: n sketched Gaussians.
        document_trace: (n, c) trace of each query's candidates.
        document_moment: (n, c) `SketchedGaussian.profile_moment` of the candidates.

    Returns:
        (n, c) variances.
    """
    trace = query.trace[:, None]
    return np.asarray(
        document_trace * query.profile_moment[:, None]
        + trace * document_moment
        + trace * document_trace * np.square(query.profile).sum()
    )


def probit(
    mean: Float[np.ndarray, "*shape"], variance: Float[np.ndarray, "*shape"], beta: float = 1.0
) -> Float[np.ndarray, "*shape"]:
    """Moderate a similarity by its uncertainty: ``mean / sqrt(1 + beta pi/8 variance)``.

    Args:
        mean: mean of the similarity.
        variance: its variance, not negative.
        beta: weight of the variance; 0 gives the mean back, 1 is the published formula.

    Returns:
        The score: higher is better, never farther from zero than the mean.
    """
    return np.asarray(mean / np.sqrt(1.0 + beta * PROBIT * variance))


def wasserstein2(query: Gaussian, document: Gaussian) -> Float[np.ndarray, "n c"]:
    """Squared 2-Wasserstein metric between diagonal Gaussians, exact.

    ``|m_q - m_c|^2 + sum_i (sqrt V_q,i - sqrt V_c,i)^2``; (n, c).
    """
    between_means = np.square(query.mean[:, None] - document.mean[None]).sum(axis=-1)
    between_scales = np.square(
        np.sqrt(query.variance)[:, None] - np.sqrt(document.variance)[None]
    ).sum(axis=-1)
    return np.asarray(between_means + between_scales)
