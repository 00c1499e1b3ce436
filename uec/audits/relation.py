"""Does a label-free measure rank models as a supervised score does?

Spearman's rank correlation with a bootstrap interval over the models, and what remains of it
without one group of models: with few models a single family (say, the English-only ones on a
bilingual task) can make the whole correlation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from uec.errors import InputError

_MIN_MODELS = 4
"""Below this Spearman's rho takes a handful of values and an interval says nothing."""


@dataclass(frozen=True, slots=True)
class Relation:
    """How a measure goes with a score over several models.

    Attributes:
        measure: name of the measure.
        score: name of the supervised score.
        n_models: models compared.
        rho: Spearman's rank correlation; negative where a low measure means a high score.
        low: lower end of the bootstrap percentile interval.
        high: upper end.
        confidence: what the interval covers, such as 0.95.
        without: group to rho of the remaining models; None where too few or equal ones remain.
    """

    measure: str
    score: str
    n_models: int
    rho: float
    low: float
    high: float
    confidence: float
    without: Mapping[str, float | None]


def relation(
    rows: Sequence[Mapping[str, Any]],
    measure: str,
    score: str,
    *,
    group: str | None = None,
    n_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Relation:
    """Spearman correlation of two columns with its interval and leave-group-out values.

    Args:
        rows: one mapping a model.
        measure: key of the label-free measure.
        score: key of the supervised score.
        group: key of the group a model belongs to; None leaves out one model at a time, under its
            ``"model"`` or ``"member"`` or its position.
        n_resamples: bootstrap samples of the models, with replacement.
        confidence: coverage of the percentile interval.
        seed: seed of the bootstrap.

    Raises:
        InputError: fewer than 4 models, a missing or non-finite value, or a column without
            variation.
    """
    if len(rows) < _MIN_MODELS:
        raise InputError(f"{len(rows)} models are too few for a rank correlation; give at least 4")
    values, scores = _column(rows, measure), _column(rows, score)
    rho = _rho(values, scores)
    if rho is None:
        raise InputError(f"{measure!r} or {score!r} is the same for all models: nothing to rank")
    samples = _bootstrap(values, scores, n_resamples, seed)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(samples, (tail, 100 - tail))
    groups = np.array([_group_of(row, i, group) for i, row in enumerate(rows)])
    without = {
        str(name): _rho(values[groups != name], scores[groups != name])
        for name in dict.fromkeys(groups.tolist())
    }
    return Relation(measure, score, len(rows), rho, float(low), float(high), confidence, without)


def _group_of(row: Mapping[str, Any], position: int, key: str | None) -> str:
    if key is None:
        return str(row.get("model", row.get("member", position)))
    if key not in row:
        raise InputError(f"model {position} has no {key!r}; every row must name its group")
    return str(row[key])


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> Float[np.ndarray, " m"]:
    missing = [i for i, row in enumerate(rows) if key not in row]
    if missing:
        raise InputError(
            f"model {missing[0]} has no {key!r}; it has: {', '.join(rows[missing[0]])}"
        )
    column = np.array([float(row[key]) for row in rows])
    if not np.isfinite(column).all():
        raise InputError(
            f"{key!r} of model {np.flatnonzero(~np.isfinite(column))[0]} is not finite"
        )
    return column


def _rho(x: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]) -> float | None:
    if len(x) < _MIN_MODELS - 1 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(stats.spearmanr(x, y).statistic)


def _bootstrap(
    x: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"], n_resamples: int, seed: int
) -> Float[np.ndarray, " r"]:
    """Rho of resampled models; resamples in which all models tie have none and are left out."""
    chosen = np.random.default_rng(seed).integers(len(x), size=(n_resamples, len(x)))
    ranks = [stats.rankdata(column[chosen], axis=1) for column in (x, y)]
    a, b = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    defined = scale > 0
    rhos: Float[np.ndarray, " r"] = (a * b).sum(axis=1)[defined] / scale[defined]
    return rhos
