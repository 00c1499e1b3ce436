"""How much each member counts for one query.

The closed form of the paper, with its entropy replaced by the divergence from a prior: the weights
that minimise ``sum_k w_k r_k + T KL(w || prior)`` are

    w_k  ∝  prior_k exp(-r_k / T)

(UEC, arXiv 2507.20718, coefficients; a uniform prior gives the published softmax). ``r_k`` is the
trace of the query's covariance under member k divided by that member's median trace, so that a
member whose posterior happens to be wide does not lose everywhere. T has no unit. Evidence e_k for
a member, from what it found, multiplies its odds by exp(e_k).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from uec.errors import InputError


def member_weights(
    traces: Float[np.ndarray, "n k"],
    log_prior: Float[np.ndarray, " k"],
    temperature: float,
    evidence: Float[np.ndarray, "n k"] | None = None,
) -> Float[np.ndarray, "n k"]:
    """Weights of the k members for n queries.

    Args:
        traces: (n, k) calibrated traces, median 1 for each member.
        log_prior: (k,) log prior weights; need not be normalised; ``-inf`` switches a member off.
        temperature: T > 0; ``inf`` ignores the traces and gives the prior.
        evidence: (n, k) in log-odds; None for none.

    Returns:
        (n, k) weights; each row sums to one.

    Raises:
        InputError: T is not positive, or a trace is negative or NaN.
    """
    if not temperature > 0:
        raise InputError(f"temperature must be positive (inf gives the prior); got {temperature}")
    if not (traces >= 0).all():
        raise InputError("traces must be finite and not negative")
    logits = log_prior - traces / temperature
    return np.asarray(softmax(logits if evidence is None else logits + evidence, axis=1))


def named_weights(
    given: Mapping[str, float], names: Sequence[str], n_queries: int
) -> Float[np.ndarray, "n k"]:
    """The caller's own weights for every query, normalised to sum to one.

    Args:
        given: member name to weight; members that are not named get none.
        names: the k members in order.
        n_queries: n.

    Raises:
        InputError: an unknown name, a weight that is negative or not finite, or all are zero.
    """
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InputError(f"weights name {', '.join(unknown)}; the members are {', '.join(names)}")
    weights = np.array([given.get(name, 0.0) for name in names])
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
        raise InputError(f"weights must be >= 0 and not all zero; got {dict(given)}")
    return np.tile(weights / weights.sum(), (n_queries, 1))
