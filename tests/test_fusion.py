"""Fusing members: against loops over the formulas, and as laws."""

from __future__ import annotations

import numpy as np
import pytest

from uec.fusion import (
    SPREAD_FLOOR,
    MemberCandidates,
    MemberQuery,
    average,
    concat,
    spread_of,
)
from uec.gaussian import Gaussian, SketchedGaussian
from uec.similarity import moments

K, C, D = 3, 6, 4


def unit(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    rows = rng.normal(size=(n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def problem(seed: int = 0, dims: tuple[int, ...] = (D, D, D)):
    rng = np.random.default_rng(seed)
    queries, candidates = [], []
    for d in dims:
        profile = rng.dirichlet(np.ones(d)).astype(np.float32)
        q = SketchedGaussian(unit(rng, 1, d), rng.uniform(0.1, 1, 1).astype(np.float32), profile)
        c = SketchedGaussian(unit(rng, C, d), rng.uniform(0.1, 1, C).astype(np.float32), profile)
        queries.append(MemberQuery(q, None, rng.uniform(-0.2, 0.2), rng.uniform(0.1, 0.3)))
        candidates.append(MemberCandidates(c.mean, c.trace, c.profile_moment, None))
    return queries, candidates, rng.dirichlet(np.ones(len(dims)))


def test_concat_equals_the_sum_over_members():
    queries, candidates, weights = problem(dims=(4, 7, 3))
    fused = concat(queries, candidates, weights)
    for row in range(C):
        mean = variance = 0.0
        for q, c, w in zip(queries, candidates, weights, strict=True):
            own = float(c.mean[row] @ q.gaussian.mean[0])
            dense = SketchedGaussian(
                c.mean[row : row + 1], c.trace[row : row + 1], q.gaussian.profile
            )
            _, v = moments(q.gaussian.dense(), dense.dense())
            mean += w * (own - q.centre) / q.spread
            variance += (w / q.spread) ** 2 * v[0, 0]
        assert fused.mean[row] == pytest.approx(mean, rel=1e-5)
        assert fused.variance[row] == pytest.approx(variance, rel=1e-5)


def test_concat_is_one_inner_product_of_gaussians_over_the_joined_space():
    queries, candidates, weights = problem(dims=(4, 7, 3))
    scales = [w / q.spread for q, w in zip(queries, weights, strict=True)]
    joined_query = Gaussian(
        np.concatenate([s * q.gaussian.mean for s, q in zip(scales, queries, strict=True)], axis=1),
        np.concatenate(
            [s**2 * q.gaussian.dense().variance for s, q in zip(scales, queries, strict=True)],
            axis=1,
        ),
    )
    joined_candidates = Gaussian(
        np.concatenate([c.mean for c in candidates], axis=1),
        np.concatenate(
            [
                c.trace[:, None] * q.gaussian.profile
                for q, c in zip(queries, candidates, strict=True)
            ],
            axis=1,
        ),
    )
    mean, variance = moments(joined_query, joined_candidates)
    centre = sum(s * q.centre for s, q in zip(scales, queries, strict=True))
    fused = concat(queries, candidates, weights)
    np.testing.assert_allclose(fused.mean, mean[0] - centre, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fused.variance, variance[0], rtol=1e-4)


def test_full_variances_that_follow_the_profile_change_nothing():
    queries, candidates, weights = problem()
    full_queries = [
        MemberQuery(q.gaussian, q.gaussian.dense().variance, q.centre, q.spread) for q in queries
    ]
    full_candidates = [
        MemberCandidates(c.mean, c.trace, c.moment, c.trace[:, None] * q.gaussian.profile)
        for q, c in zip(queries, candidates, strict=True)
    ]
    for fuse in (concat, average):
        sketch = fuse(queries, candidates, weights)
        full = fuse(full_queries, full_candidates, weights)
        np.testing.assert_allclose(full.variance, sketch.variance, rtol=1e-5)
        np.testing.assert_allclose(full.mean, sketch.mean, rtol=1e-6)


def test_permuting_members_changes_nothing():
    queries, candidates, weights = problem()
    order = [2, 0, 1]
    for fuse in (concat, average):
        direct = fuse(queries, candidates, weights)
        permuted = fuse([queries[i] for i in order], [candidates[i] for i in order], weights[order])
        np.testing.assert_allclose(permuted.mean, direct.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(permuted.variance, direct.variance, rtol=1e-5)


def test_one_member_alone_keeps_its_own_order_exactly():
    queries, candidates, _ = problem()
    fused = concat(queries, candidates, np.array([0.0, 1.0, 0.0]))
    alone = concat(queries[1:2], candidates[1:2], np.ones(1))
    np.testing.assert_array_equal(fused.mean, alone.mean)
    np.testing.assert_array_equal(fused.variance, alone.variance)


def test_average_by_hand():
    profile = np.array([0.5, 0.5], np.float32)
    one = np.ones(1, np.float32)
    q = [
        MemberQuery(SketchedGaussian(np.array([m], np.float32), 2 * one, profile), None, 0.0, 1.0)
        for m in ([1.0, 0.0], [0.0, 1.0])
    ]
    c = [
        MemberCandidates(np.array([[1.0, 0.0]], np.float32), 0 * one, 0 * one, None),
        MemberCandidates(np.array([[1.0, 0.0]], np.float32), 0 * one, 0 * one, None),
    ]
    # Query mean (.5, .5), length sqrt(.5); variance .25*1 + .25*1 = .5 a dim, over .5 gives 1.
    # Document mean (1, 0), no variance: similarity 1/sqrt(2), variance 1 * 1^2.
    fused = average(q, c, np.array([0.5, 0.5]))
    assert fused.mean[0] == pytest.approx(2**-0.5)
    assert fused.variance[0] == pytest.approx(1.0)


def test_spread_is_the_standard_deviation_over_the_corpus():
    rng = np.random.default_rng(1)
    corpus, queries = unit(rng, 200, 5), unit(rng, 3, 5)
    covariance = np.cov(corpus.T, bias=True).astype(np.float32)
    expected = (queries @ corpus.T).std(axis=1)
    np.testing.assert_allclose(spread_of(queries, covariance), expected, rtol=1e-4)


def test_a_corpus_of_one_text_has_the_floor_for_spread():
    spread = spread_of(unit(np.random.default_rng(2), 2, 5), np.zeros((5, 5), np.float32))
    np.testing.assert_array_equal(spread, SPREAD_FLOOR)
