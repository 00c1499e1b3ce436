"""Information sufficiency without a model of its own: what FLARE and its baselines share.

The quantity is ``I(U -> V) = H(V) - H(V | U)`` in nats: how much a source embedding U of some texts
says about a target embedding V of the same texts. This module prepares the embeddings, gives the
closed-form Gaussian estimate, turns a matrix of estimates into one score a member, and estimates
intrinsic dimensions. It is NumPy throughout and does not know how densities are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

Normalisation: TypeAlias = Literal["dimension", "column"]
"""How estimates against targets of different difficulty become comparable; see `scores`."""

TRAIN_SHARE, VALIDATION_SHARE = 0.70, 0.15
# Repeated texts come back from an encoder equal but for the rounding of another batch.
REPEAT_TOLERANCE = 1e-4
# A dimension with less than this share of the largest spread carries rounding, not content.
FLAT = 1e-6
RIDGE_PENALTIES = tuple(10.0**p for p in range(-3, 4))
MAX_NEIGHBOUR_ROWS = 5000


def repeated_rows(members: Mapping[str, Float[np.ndarray, "n _"]]) -> Bool[np.ndarray, " n"]:
    """True for each row that repeats an earlier one in every member, so most likely in its text.

    Equality is up to rounding. Rows are grouped by four random projections in turn, each splitting
    the groups of the one before, which finds repeats in O(n log n) without comparing all pairs.
    """
    rng = np.random.default_rng(0)
    group = np.zeros(len(next(iter(members.values()))), dtype=np.int64)
    for embedding in members.values():
        for _ in range(4):
            projection = embedding @ rng.standard_normal(embedding.shape[1])
            tolerance = REPEAT_TOLERANCE * projection.std()
            order = np.lexsort((projection, group))
            apart = (np.diff(group[order]) > 0) | (np.diff(projection[order]) > tolerance)
            group[order] = np.concatenate([[0], np.cumsum(apart)])
    repeated = np.ones(len(group), dtype=bool)
    repeated[np.unique(group, return_index=True)[1]] = False
    return repeated


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of the texts to fit on, to stop by, and to judge on; the same for all members."""

    train: Int[np.ndarray, " a"]
    validation: Int[np.ndarray, " b"]
    test: Int[np.ndarray, " c"]

    @property
    def fitted(self) -> Int[np.ndarray, " ab"]:
        """Every row that an estimate may have seen."""
        return np.concatenate([self.train, self.validation])

    def shrunk(self, share: float) -> Split:
        """The same test rows with only a share of the others, for a learning curve."""
        n_train, n_validation = (int(share * len(r)) for r in (self.train, self.validation))
        return Split(self.train[:n_train], self.validation[:n_validation], self.test)


def split_texts(n: int, seed: int) -> Split:
    """Split n texts at random: 70 % to fit on, 15 % to stop by, 15 % to judge on."""
    order = np.random.default_rng(seed).permutation(n)
    first, second = round(TRAIN_SHARE * n), round((TRAIN_SHARE + VALIDATION_SHARE) * n)
    return Split(order[:first], order[first:second], order[second:])


def standardise(
    embedding: Float[np.ndarray, "n d"], train: Int[np.ndarray, " a"]
) -> Float[np.ndarray, "n d"]:
    """Centre and scale each dimension by the training rows; flat dimensions become zero."""
    seen = embedding[train].astype(np.float64)
    mean, spread = seen.mean(axis=0), seen.std(axis=0)
    scale = np.where(spread > FLAT * spread.max(), spread, np.inf)
    standardised: Float[np.ndarray, "n d"] = (embedding - mean) / scale
    return standardised


def prepare_target(
    embedding: Float[np.ndarray, "n d"],
    train: Int[np.ndarray, " a"],
    *,
    n_components: int | None,
    noise: float,
    seed: int,
) -> Float[np.ndarray, "n c"]:
    """Make a target: standardised, reduced to whitened principal components, with noise.

    Embeddings lie on spheres and low-dimensional sheets, where a density, and with it the
    information, is infinite; the noise bounds it at ``log(1 + 1 / noise**2) / 2`` nats a component.

    Args:
        embedding: (n, d) vectors of one member.
        train: rows that every statistic is computed from.
        n_components: c, principal components kept; None keeps the d standardised dimensions.
        noise: standard deviation of the noise, in units of a component's.
        seed: of the noise.
    """
    values = standardise(embedding, train)
    if n_components is not None:
        from sklearn.decomposition import PCA

        pca = PCA(n_components, random_state=seed).fit(values[train])
        values = standardise(pca.transform(values), train)
    return values + noise * np.random.default_rng(seed).standard_normal(values.shape)


@dataclass(frozen=True, slots=True)
class Ridge:
    """Ridge regression of target on source.

    Attributes:
        predicted: (n, c) predictions of every row; of the rows fitted on, each made without it.
        residual: (m, c) what the predictions of the m rows fitted on leave over.
        baseline: (c,) mean of the target over the rows fitted on.
    """

    predicted: Float[np.ndarray, "n c"]
    residual: Float[np.ndarray, "m c"]
    baseline: Float[np.ndarray, " c"]


def ridge(
    source: Float[np.ndarray, "n d"],
    target: Float[np.ndarray, "n c"],
    seen: Int[np.ndarray, " m"],
) -> Ridge:
    """Fit by ridge regression on the rows `seen`, the penalty by their leave-one-out residuals.

    In-sample residuals are far too small when d is near the number of texts; the exact
    leave-one-out ones are ``r_i / (1 - h_ii)`` (Hastie, Tibshirani and Friedman 2009, eq. 7.64).
    """
    source_mean, target_mean = source[seen].mean(axis=0), target[seen].mean(axis=0)
    outputs = target[seen] - target_mean
    left, singular, right = np.linalg.svd(source[seen] - source_mean, full_matrices=False)
    rotated = left.T @ outputs
    best_score, best_weights, best_residual = np.inf, rotated, outputs
    for penalty in RIDGE_PENALTIES:
        # Relative to the mean squared singular value, thus free of units.
        ridged = singular**2 + penalty * np.mean(singular**2)
        kept = singular**2 / ridged
        leverage = left**2 @ kept + 1 / len(seen)
        residual = (outputs - left @ (kept[:, None] * rotated)) / (1 - leverage)[:, None]
        score = float(np.log(residual.var(axis=0)).sum())
        if score < best_score:
            weights = right.T @ ((singular / ridged)[:, None] * rotated)
            best_score, best_weights, best_residual = score, weights, residual
    predicted = target_mean + (source - source_mean) @ best_weights
    predicted[seen] = target[seen] - best_residual
    return Ridge(predicted, best_residual, target_mean)


@dataclass(frozen=True, slots=True)
class LogDensities:
    """What an estimator makes of a target with and without sources, in nats, on test texts.

    Attributes:
        marginal: (t,) ``log p(v)``; less its mean is the entropy H(V).
        conditional: (sources, t) ``log p(v | u)``.
    """

    marginal: Float[np.ndarray, " t"]
    conditional: Float[np.ndarray, "sources t"]

    @property
    def information(self) -> Float[np.ndarray, "sources t"]:
        """``log p(v | u) - log p(v)``, whose mean over texts estimates I_s."""
        return np.asarray(self.conditional - self.marginal)


def ridge_gaussian(
    sources: Sequence[Float[np.ndarray, "n _"]], target: Float[np.ndarray, "n c"], split: Split
) -> LogDensities:
    """Plug-in estimate that takes sources and target for jointly Gaussian, on held-out rows.

    ``V | U ~ N(W U, R)`` with W by `ridge` and R from its leave-one-out residuals, ``V ~ N(m, S)``;
    both covariances shrunk as Ledoit and Wolf do (2004). Nothing is trained in steps, so train and
    validation rows are both fitted on.
    """
    from sklearn.covariance import LedoitWolf

    shrinkage = LedoitWolf(assume_centered=True)
    centred = target - target[split.fitted].mean(axis=0)
    covariance = shrinkage.fit(centred[split.fitted]).covariance_
    conditional = []
    for source in sources:
        fitted = ridge(source, target, split.fitted)
        left_over = (target - fitted.predicted)[split.test]
        conditional.append(_log_normal(left_over, shrinkage.fit(fitted.residual).covariance_))
    return LogDensities(_log_normal(centred[split.test], covariance), np.stack(conditional))


def reduce_source(
    source: Float[np.ndarray, "n d"],
    target: Float[np.ndarray, "n c"],
    train: Int[np.ndarray, " a"],
    *,
    rank: int,
) -> Float[np.ndarray, "n r"]:
    """A(u) of FLARE's branch B(A(u)), in closed form: at most `rank` numbers a text.

    Up to half are the main directions of the ridge prediction of the target, the others the main
    principal components of the source. Departure: the paper learns A; with about a thousand texts a
    free A of hundreds of inputs a row fits them by heart (on 1,180 sentences 2.0 of the 6.9 nats
    that the ridge plug-in finds held out). By data processing a fixed A can
    only lower the information. Training rows get leave-one-out predictions, as unseen rows do.
    """
    from sklearn.decomposition import PCA

    n_predicted = min(target.shape[1], rank // 2)
    n_own = min(rank - n_predicted, len(train) - 1, source.shape[1])
    parts = []
    for values, n_kept in ((ridge(source, target, train).predicted, n_predicted), (source, n_own)):
        pca = PCA(n_kept, random_state=0).fit(values[train])
        reduced = pca.transform(values)
        # One scale for the whole part: weak directions are mostly noise and stay small.
        parts.append(reduced / max(reduced[train].std(axis=0).max(), FLAT))
    return np.hstack(parts)


def _log_normal(
    rows: Float[np.ndarray, "n c"], covariance: Float[np.ndarray, "c c"]
) -> Float[np.ndarray, " n"]:
    """Log-density of centred Gaussian rows."""
    solved = np.linalg.solve(covariance, rows.T)
    exponent: Float[np.ndarray, " n"] = np.einsum("nc,cn->n", rows, solved)
    log_normaliser = float(np.linalg.slogdet(2 * np.pi * covariance)[1])
    return -0.5 * (exponent + log_normaliser)


def scores(
    information: Float[np.ndarray, "targets sources"],
    n_dims: Sequence[int],
    normalisation: Normalisation,
) -> Float[np.ndarray, " sources"]:
    """Median over the targets of each source's normalised information.

    Args:
        information: nats; NaN where source and target are the same member, which is left out.
        n_dims: dimensions of each target.
        normalisation: ``"dimension"`` divides by the dimensions of the target, as EMIR does;
            ``"column"`` standardises each target's values over the sources, so that a target
            that is hard for all does not count against those it was asked of. With fewer than
            three other sources for a target this keeps only who was better.
    """
    if normalisation == "dimension":
        normalised = information / np.asarray(n_dims)[:, None]
    else:
        spread = np.nanstd(information, axis=1, keepdims=True)
        centred = information - np.nanmean(information, axis=1, keepdims=True)
        normalised = centred / np.where(spread > 0, spread, 1.0)
    medians: Float[np.ndarray, " sources"] = np.nanmedian(normalised, axis=0)
    return medians


def neighbour_radii(
    embedding: Float[np.ndarray, "n d"], n_neighbours: int = 20, seed: int = 0
) -> Float[np.ndarray, "m neighbours"]:
    """Euclidean radii to the nearest rows, nearest first, of at most 5,000 rows drawn at random.

    Rows that coincide with their neighbour are dropped: their ratio of radii is undefined.
    """
    from sklearn.neighbors import NearestNeighbors

    rows = embedding.astype(np.float64)
    if len(rows) > MAX_NEIGHBOUR_ROWS:
        rows = rows[np.random.default_rng(seed).choice(len(rows), MAX_NEIGHBOUR_ROWS, False)]
    n_neighbours = min(n_neighbours, len(rows) - 1)
    radii, _ = NearestNeighbors(n_neighbors=n_neighbours).fit(rows).kneighbors()
    apart: Float[np.ndarray, "m neighbours"] = radii[radii[:, 0] > 0]
    return apart


def two_nn(radii: Float[np.ndarray, "m neighbours"]) -> float:
    """Intrinsic dimension from the ratio of the two nearest radii.

    ``d = m / sum_i log(r_i2 / r_i1)``, the maximum-likelihood form of TwoNN (Facco et al. 2017,
    Scientific Reports 7:12140, eq. 3), over the 90 % smallest ratios with the correction for that
    censoring, since the largest ratios come from the edges of the data.
    """
    ratios = np.sort(np.log(radii[:, 1] / radii[:, 0]))
    kept = max(1, int(0.9 * len(ratios)))
    observed = ratios[:kept].sum() + (len(ratios) - kept) * ratios[kept - 1]
    return float(kept / observed)


def levina_bickel(radii: Float[np.ndarray, "m neighbours"]) -> float:
    """Intrinsic dimension by maximum likelihood over the k nearest radii.

    ``1/d_i = mean_{j<k} log(r_ik / r_ij)`` (Levina and Bickel 2004, eq. 8), with the inverses and
    not the dimensions averaged over rows, as MacKay and Ghahramani noted (2005).
    """
    k = radii.shape[1]
    inverse = np.log(radii[:, -1:] / radii[:, :-1]).sum(axis=1) / max(1, k - 2)
    return float(1 / inverse.mean())
