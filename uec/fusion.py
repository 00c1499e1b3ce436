"""One similarity out of k: how the members' Gaussians are put together for one query.

Two ways. ``concat`` (the default) keeps each member in a space of its own: the query block of
member k is ``w_k m_k(q)`` with ``w_k = weight_k / spread_k(q)``, the document block is ``m_k(d)``,
so that

    mean     = sum_k w_k (m_k(q) . m_k(d) - centre_k(q))
    variance = sum_k w_k^2 Var[m_k(q) . m_k(d)]

is still the inner product of two Gaussians, over the concatenated space. ``spread_k(q)^2`` is
the variance of member k's similarity over the corpus, ``m' C_k m`` with C_k the covariance of its
document means, and ``centre_k(q)`` its mean: members whose cosines live in
0.7..1 and in 0..1 meet on one scale. The centre never changes the order of the means, but it is
what the probit score shrinks towards. A lexical member has no space: its score, standardised over
the corpus in the same way, joins the mean and adds no variance.

``average`` is the paper's (arXiv 2507.20718): ``m(q) = sum_k weight_k m_k(q)`` against the plain
average of the document means, both normalised. Its cross terms compare unrelated spaces, which is
why it is not the default. Members must share one dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from uec.gaussian import Gaussian, SketchedGaussian
from uec.similarity import moments, sketched_variance

SPREAD_FLOOR = 1e-6
"""Below this all similarities are one value (a corpus of one text): nothing to standardise."""


@dataclass(frozen=True, slots=True)
class MemberQuery:
    """One query as one member sees it.

    Attributes:
        gaussian: one sketched Gaussian over the member's d dims.
        variance: (1, d) full variances, or None where the index keeps the sketch only.
        centre: mean of the member's similarity to this query over the corpus.
        spread: standard deviation of the same, at least `SPREAD_FLOOR`.
    """

    gaussian: SketchedGaussian
    variance: Float[np.ndarray, "1 d"] | None
    centre: float
    spread: float


@dataclass(frozen=True, slots=True)
class MemberCandidates:
    """The c candidates as one member sees them.

    Attributes:
        mean: (c, d).
        trace: (c,) of the covariance.
        moment: (c,) `SketchedGaussian.profile_moment`.
        variance: (c, d) full variances, or None where the index keeps the sketch only.
    """

    mean: Float[np.ndarray, "c d"]
    trace: Float[np.ndarray, " c"]
    moment: Float[np.ndarray, " c"]
    variance: Float[np.ndarray, "c d"] | None


@dataclass(frozen=True, slots=True)
class LexicalScores:
    """How the lexical member scores one query against some documents.

    Attributes:
        scores: (c,) its own scores.
        centre: mean of its scores over the corpus.
        spread: standard deviation of the same, at least `SPREAD_FLOOR`.
    """

    scores: Float[np.ndarray, " c"]
    centre: float
    spread: float

    @property
    def standardised(self) -> Float[np.ndarray, " c"]:
        """(c,) scores less the centre, over the spread."""
        return (self.scores - self.centre) / self.spread


@dataclass(frozen=True, slots=True)
class Fused:
    """Similarity of one query with c candidates, by m members: k encoders and the lexical one.

    Attributes:
        mean: (c,) of the fused similarity.
        variance: (c,) of the fused similarity.
        similarities: (c, m) each member's own inner product, or score.
        standardised: (c, m) the same less its centre, over its spread.
    """

    mean: Float[np.ndarray, " c"]
    variance: Float[np.ndarray, " c"]
    similarities: Float[np.ndarray, "c m"]
    standardised: Float[np.ndarray, "c m"]


def spread_of(
    mean: Float[np.ndarray, "n d"], covariance: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, " n"]:
    """Spread of the similarity of each query over a corpus: ``sqrt(m' C m)``; (n,)."""
    exact = mean.astype(np.float64)
    squared = np.einsum("nd,nd->n", exact @ covariance, exact)
    return np.asarray(np.maximum(np.sqrt(np.maximum(squared, 0.0)), SPREAD_FLOOR))


def scores_of(scores: Float[np.ndarray, " N"]) -> LexicalScores:
    """Scores of a whole corpus with their own mean and spread."""
    return LexicalScores(scores, float(scores.mean()), max(float(scores.std()), SPREAD_FLOOR))


def correlation(similarity: Float[np.ndarray, "m p k"]) -> Float[np.ndarray, "k k"]:
    """Correlation of the members' similarities over all spans and documents, (k, k).

    Args:
        similarity: (m, p, k) standardised similarities of m spans with p documents by k members.
    """
    products = np.einsum("mpk,mpj->kj", similarity, similarity, optimize=True)
    # A member that gives all documents the same similarity goes with nobody.
    scale = np.maximum(np.sqrt(np.diag(products)), SPREAD_FLOOR)
    return np.asarray(products / np.outer(scale, scale), dtype=np.float64)


def _member_variance(query: MemberQuery, candidates: MemberCandidates) -> np.ndarray:
    if query.variance is not None and candidates.variance is not None:
        _, variance = moments(
            Gaussian(query.gaussian.mean, query.variance),
            Gaussian(candidates.mean, candidates.variance),
        )
    else:
        variance = sketched_variance(
            query.gaussian, candidates.trace[None], candidates.moment[None]
        )
    return np.asarray(variance[0])


def _similarities(
    queries: list[MemberQuery], candidates: list[MemberCandidates]
) -> tuple[np.ndarray, np.ndarray]:
    # Not by BLAS, which rounds a row by where it stands: equal documents must tie.
    own = np.stack(
        [
            np.einsum("cd,d->c", c.mean, q.gaussian.mean[0])
            for q, c in zip(queries, candidates, strict=True)
        ],
        axis=1,
    ).astype(np.float64)
    centres = np.array([q.centre for q in queries])
    spreads = np.array([q.spread for q in queries])
    return own, (own - centres) / spreads


def concat(
    queries: list[MemberQuery],
    candidates: list[MemberCandidates],
    weights: Float[np.ndarray, " m"],
    lexical: LexicalScores | None = None,
) -> Fused:
    """Fuse by concatenation of the members' spaces; see the module's docstring.

    Args:
        queries: one view of the query for each of the k encoders.
        candidates: theirs of the c candidates.
        weights: (m,) of the encoders and, where there is one, the lexical member last.
        lexical: its scores of the candidates.
    """
    own, standardised = _similarities(queries, candidates)
    if lexical is not None:
        own = np.column_stack([own, lexical.scores])
        standardised = np.column_stack([standardised, lexical.standardised])
    scales = weights[: len(queries)] / np.array([q.spread for q in queries])
    variances = np.stack(
        [_member_variance(q, c) for q, c in zip(queries, candidates, strict=True)], axis=1
    )
    mean = np.einsum("cm,m->c", standardised, weights)
    variance = np.einsum("cm,m->c", variances, np.square(scales))
    return Fused(mean, variance, own, standardised)


def average(
    queries: list[MemberQuery],
    candidates: list[MemberCandidates],
    weights: Float[np.ndarray, " k"],
) -> Fused:
    """Fuse by averaging vectors, as in the paper; documents are averaged with equal weights.

    The variance of a mean of length L is divided by L^2 when the mean is normalised (a step that
    the paper leaves open).
    """
    own, standardised = _similarities(queries, candidates)
    k = len(queries)
    query = _normalised_mixture(
        [q.gaussian.mean for q in queries],
        [q.gaussian.dense().variance if q.variance is None else q.variance for q in queries],
        weights,
    )
    documents = _normalised_mixture(
        [c.mean for c in candidates],
        [
            c.trace[:, None] * q.gaussian.profile if c.variance is None else c.variance
            for q, c in zip(queries, candidates, strict=True)
        ],
        np.full(k, 1 / k),
    )
    mean, variance = moments(query, documents)
    return Fused(mean[0].astype(np.float64), variance[0].astype(np.float64), own, standardised)


def _normalised_mixture(
    means: list[np.ndarray], variances: list[np.ndarray], weights: np.ndarray
) -> Gaussian:
    mean = sum(w * m for w, m in zip(weights, means, strict=True))
    variance = sum(w**2 * v for w, v in zip(weights, variances, strict=True))
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    return Gaussian(mean / length, variance / length**2)
