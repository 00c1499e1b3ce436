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
from jaxtyping import Bool, Float
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
    rows: Sequence[Mapping[str, Any]], measure: str, score: str, **settings: Any
) -> Relation:
    """Spearman correlation of two columns with its interval and leave-group-out values.

    Args:
        rows: one mapping a model.
        measure: key of the label-free measure.
        score: key of the supervised score.
        **settings: of `mean_relation`.

    Raises:
        InputError: fewer than 4 models, a missing or non-finite value, or a column without
            variation.
    """
    return mean_relation([rows], measure, score, **settings)


def mean_relation(
    tables: Sequence[Sequence[Mapping[str, Any]]],
    measure: str,
    score: str,
    *,
    group: str | None = None,
    n_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Relation:
    """Mean over several tasks of the Spearman correlation of two columns, over the same models.

    The models are resampled and left out in all tasks at once: they, not the tasks, are few.

    Args:
        tables: a task's rows each, one mapping a model, the same models in the same order.
        measure: key of the label-free measure.
        score: key of the supervised score.
        group: key of the group a model belongs to; None leaves out one model at a time, under its
            ``"model"`` or ``"member"`` or its position.
        n_resamples: bootstrap samples of the models, with replacement.
        confidence: coverage of the percentile interval.
        seed: seed of the bootstrap.

    Raises:
        InputError: no task, tasks with other groups of models, fewer than 4 models, a missing or
            non-finite value, or a column without variation.
    """
    if not tables:
        raise InputError("no task to relate the columns on; give at least one table")
    if len(tables[0]) < _MIN_MODELS:
        raise InputError(
            f"{len(tables[0])} models are too few for a rank correlation; give at least 4"
        )
    named = [[_group_of(row, i, group) for i, row in enumerate(rows)] for rows in tables]
    if any(other != named[0] for other in named):
        raise InputError("the tasks have other models; give the same ones in the same order")
    groups = np.array(named[0])
    columns = [(_column(rows, measure), _column(rows, score)) for rows in tables]
    rhos = [_rho(values, scores) for values, scores in columns]
    if None in rhos:
        raise InputError(f"{measure!r} or {score!r} is the same for all models: nothing to rank")
    samples = _bootstrap(columns, n_resamples, seed)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(samples, (tail, 100 - tail))
    without = {name: _without(columns, groups != name) for name in dict.fromkeys(named[0])}
    rho = float(np.mean([own for own in rhos if own is not None]))
    return Relation(measure, score, len(groups), rho, float(low), float(high), confidence, without)


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


def _without(
    columns: Sequence[tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]],
    kept: Bool[np.ndarray, " m"],
) -> float | None:
    """Mean rho of the models that are kept, over the tasks where it is defined."""
    rhos = [_rho(values[kept], scores[kept]) for values, scores in columns]
    defined = [rho for rho in rhos if rho is not None]
    return float(np.mean(defined)) if defined else None


def _bootstrap(
    columns: Sequence[tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]],
    n_resamples: int,
    seed: int,
) -> Float[np.ndarray, " r"]:
    """Mean rho of resampled models; a resample in which all models tie has none and is left out."""
    n = len(columns[0][0])
    chosen = np.random.default_rng(seed).integers(n, size=(n_resamples, n))
    total, counted = np.zeros(n_resamples), np.zeros(n_resamples)
    for x, y in columns:
        a, b = (stats.rankdata(column[chosen], axis=1) for column in (x, y))
        a, b = (rank - rank.mean(axis=1, keepdims=True) for rank in (a, b))
        scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
        defined = scale > 0
        total[defined] += (a * b).sum(axis=1)[defined] / scale[defined]
        counted += defined
    means: Float[np.ndarray, " r"] = total[counted > 0] / counted[counted > 0]
    return means
