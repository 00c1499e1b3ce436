"""Information sufficiency without a model of its own: what FLARE and its baselines share.

The quantity is ``I(U -> V) = H(V) - H(V | U)`` in nats: how much a source embedding U of some texts
says about a target embedding V of the same texts. This module checks and prepares the embeddings,
gives the closed-form Gaussian estimate, turns a matrix of estimates into one score per member, and
estimates intrinsic dimensions. It is NumPy throughout and does not know how densities are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from uec.errors import EmbeddingError, InputError

Normalisation: TypeAlias = Literal["dimension", "column"]
"""How estimates against targets of different difficulty become comparable; see `scores`."""

MIN_TEXTS = 50
FEW_TEXTS = 200
TRAIN_SHARE, VALIDATION_SHARE = 0.70, 0.15
# Repeated texts come back from an encoder equal but for the rounding of another batch.
REPEAT_TOLERANCE = 1e-4
# A dimension with less than this share of the largest spread carries rounding, not content.
FLAT = 1e-6
RIDGE_PENALTIES = tuple(10.0**p for p in range(-3, 4))
MAX_NEIGHBOUR_ROWS = 5000


def check_members(
    members: Mapping[str, Float[np.ndarray, "_ _"]], *, minimum: int = MIN_TEXTS
) -> int:
    """Check that the members embed the same number of texts, and that all values are finite.

    Returns:
        n, the number of texts.

    Raises:
        InputError: no two-dimensional array, unequal n, or fewer than `minimum` texts.
        EmbeddingError: a row with NaN or infinite values, or a member whose rows are all equal.
    """
    for name, embedding in members.items():
        if embedding.ndim != 2 or embedding.shape[1] < 2:
            raise InputError(
                f"member {name!r} has an array of shape {embedding.shape}; expected one row a text "
                "and at least two columns"
            )
        bad = np.flatnonzero(~np.isfinite(embedding).all(axis=1))
        if len(bad):
            raise EmbeddingError(
                f"member {name!r}: {len(bad)} rows are NaN or infinite, the first is row {bad[0]}; "
                "embed these texts again or leave them out for every member"
            )
        if len(embedding) and np.ptp(embedding, axis=0).max() == 0:
            raise EmbeddingError(
                f"member {name!r} gives every text the same vector; check how it was embedded"
            )
    lengths = {name: len(embedding) for name, embedding in members.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"members embed different numbers of texts: {lengths}; use the same texts")
    n = next(iter(lengths.values()), 0)
    if n < minimum:
        raise InputError(f"got {n} texts; expected at least {minimum}: add texts of the corpus")
    return n


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
    return (embedding - mean) / scale


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


def ridge_gaussian(
    source: Float[np.ndarray, "n d"], target: Float[np.ndarray, "n c"], split: Split
) -> Float[np.ndarray, " t"]:
    """Plug-in estimate that takes source and target for jointly Gaussian, on held-out rows.

    ``V | U ~ N(W U, R)`` with W by ridge regression and R from leave-one-out residuals (in-sample
    ones are too small), ``V ~ N(m, S)``; both covariances shrunk as Ledoit and Wolf do (2004).
    Nothing is trained in steps, so train and validation rows are both fitted on.

    Returns:
        (t,) ``log p(v | u) - log p(v)`` in nats of each test row.
    """
    from sklearn.covariance import LedoitWolf

    seen = split.fitted
    source_mean, target_mean = source[seen].mean(axis=0), target[seen].mean(axis=0)
    inputs, outputs = source[seen] - source_mean, target[seen] - target_mean
    left, singular, right = np.linalg.svd(inputs, full_matrices=False)
    rotated = left.T @ outputs
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    for penalty in RIDGE_PENALTIES:
        # Penalties are relative to the mean squared singular value, thus free of units.
        ridge = penalty * np.mean(singular**2)
        kept = singular**2 / (singular**2 + ridge)
        leverage = np.einsum("ij,j,ij->i", left, kept, left) + 1 / len(seen)
        residual = (outputs - left @ (kept[:, None] * rotated)) / (1 - leverage)[:, None]
        covariance = LedoitWolf(assume_centered=True).fit(residual).covariance_
        score = float(np.linalg.slogdet(covariance)[1])
        if best is None or score < best[0]:
            weights = right.T @ ((singular / (singular**2 + ridge))[:, None] * rotated)
            best = (score, weights, covariance)
    assert best is not None
    _, weights, covariance = best
    test_target = target[split.test] - target_mean
    marginal = LedoitWolf(assume_centered=True).fit(outputs).covariance_
    predicted = (source[split.test] - source_mean) @ weights
    return _log_normal(test_target - predicted, covariance) - _log_normal(test_target, marginal)


def _log_normal(
    rows: Float[np.ndarray, "n c"], covariance: Float[np.ndarray, "c c"]
) -> Float[np.ndarray, " n"]:
    """Log-density of centred Gaussian rows, up to the constant that cancels between entropies."""
    solved = np.linalg.solve(covariance, rows.T)
    return -0.5 * (np.einsum("nc,cn->n", rows, solved) + np.linalg.slogdet(covariance)[1])


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
    return np.nanmedian(normalised, axis=0)


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
    return radii[radii[:, 0] > 0]


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
