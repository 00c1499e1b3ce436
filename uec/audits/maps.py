"""Groups and pictures of embeddings: k-means, silhouette, purity and two-dimensional maps."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

_SILHOUETTE_TEXTS = 2000
"""Sample of the silhouette: it needs all pairs and steadies early."""
_STARTS = 4
"""k-means starts; the best is kept."""
_PERPLEXITY = 30.0


def clusters(unit: Float[np.ndarray, "n d"], n_clusters: int, seed: int) -> Int[np.ndarray, " n"]:
    """k-means clusters of unit vectors; fewer than asked for where there are fewer points."""
    with warnings.catch_warnings():
        # Fewer distinct points than clusters: the caller sees that from the labels.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters, n_init=_STARTS, random_state=seed)
        found: Int[np.ndarray, " n"] = model.fit_predict(unit)
    return found


def silhouette(
    unit: Float[np.ndarray, "n d"], groups: Int[np.ndarray, " n"], seed: int
) -> float | None:
    """Mean of (b - a) / max(a, b) in cosine terms; -1..1, high for compact, separate groups.

    a is the mean 1 - cosine to the own group, b that to the nearest other one. On k-means groups
    this says how clustered the texts lie, not how good the member is.

    Args:
        unit: (n, d) unit vectors.
        groups: (n,) number of each text's group.
        seed: seed of the sample of 2,000 texts that is judged.

    Returns:
        None where there is one group only, or as many as texts.
    """
    chosen = np.random.default_rng(seed).permutation(len(unit))[:_SILHOUETTE_TEXTS]
    if not 2 <= len(np.unique(groups[chosen])) < len(chosen):
        return None
    return float(silhouette_score(unit[chosen], groups[chosen], metric="cosine"))


def purity(groups: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> float:
    """Share of texts whose label is the commonest one of their cluster; 0..1."""
    table = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(table, (groups, labels), 1)
    return float(table.max(axis=1).sum() / len(groups))


def plane(unit: Float[np.ndarray, "n d"], seed: int) -> dict[str, list[list[float]]] | None:
    """Two maps of the texts: principal components and t-SNE, rounded for a figure.

    Args:
        unit: (n, d) unit vectors, n >= 5.
        seed: seed of t-SNE.

    Returns:
        ``"pca"`` and ``"tsne"``, each n points [x, y]; None where there are not two directions to
        draw. On the t-SNE map only who lies together has a meaning, not how far apart groups lie.
    """
    if unit.shape[1] < 2:
        return None
    pca = PCA(2, random_state=seed)
    flat = pca.fit_transform(unit)
    if pca.explained_variance_[1] <= np.finfo(np.float64).eps:
        return None
    tsne = TSNE(
        perplexity=min(_PERPLEXITY, (len(unit) - 1) / 4), init="pca", random_state=seed
    ).fit_transform(unit)
    return {"pca": _points(flat), "tsne": _points(tsne)}


def _points(flat: Float[np.ndarray, "n 2"]) -> list[list[float]]:
    points: list[list[float]] = np.round(flat.astype(np.float64), 4).tolist()
    return points
