"""The inner product of two Gaussians: against Monte Carlo, by hand, and as laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uec.gaussian import Gaussian, SketchedGaussian
from uec.similarity import moments, probit, sketched_variance, wasserstein2


def gaussians(n: int, d: int, seed: int) -> Gaussian:
    rng = np.random.default_rng(seed)
    return Gaussian(rng.normal(size=(n, d)), rng.uniform(0.01, 0.5, (n, d)))


def test_moments_equal_a_million_samples():
    q, c = gaussians(1, 5, 0), gaussians(1, 5, 1)
    rng = np.random.default_rng(2)
    draw = lambda g: g.mean + np.sqrt(g.variance) * rng.normal(size=(1_000_000, 5))  # noqa: E731
    samples = (draw(q) * draw(c)).sum(axis=1)
    mean, variance = moments(q, c)
    # Standard errors of the two estimates at a million samples are below 0.003 and 0.01.
    assert mean[0, 0] == pytest.approx(samples.mean(), abs=0.01)
    assert variance[0, 0] == pytest.approx(samples.var(), rel=0.01)


def test_moments_by_hand():
    q = Gaussian(np.array([[1.0, 2.0]]), np.array([[0.5, 0.0]]))
    c = Gaussian(np.array([[3.0, -1.0]]), np.array([[0.1, 0.2]]))
    mean, variance = moments(q, c)
    # 1*3 - 2*1; (1*.1 + .5*9 + .5*.1) + (4*.2 + 0 + 0)
    assert mean[0, 0] == pytest.approx(1.0)
    assert variance[0, 0] == pytest.approx(0.1 + 4.5 + 0.05 + 0.8)


def test_sketch_equals_dense():
    rng = np.random.default_rng(3)
    profile = rng.dirichlet(np.ones(6))
    q = SketchedGaussian(rng.normal(size=(4, 6)), rng.uniform(0.1, 2, 4), profile)
    c = SketchedGaussian(rng.normal(size=(7, 6)), rng.uniform(0.1, 2, 7), profile)
    _, expected = moments(q.dense(), c.dense())
    wide = lambda a: np.tile(a, (4, 1))  # noqa: E731
    got = sketched_variance(q, wide(c.trace), wide(c.profile_moment))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_sketch_keeps_the_trace():
    rng = np.random.default_rng(4)
    sketch = SketchedGaussian(rng.normal(size=(3, 5)), np.array([0.0, 1.0, 2.5]), np.full(5, 0.2))
    np.testing.assert_allclose(sketch.dense().trace, sketch.trace)


def test_probit_by_hand():
    # Variance 8/pi makes the root sqrt(2); beta 3 makes it 2.
    assert probit(np.array(1.0), np.array(8 / np.pi)) == pytest.approx(2**-0.5)
    assert probit(np.array(1.0), np.array(8 / np.pi), 3.0) == pytest.approx(0.5)


@given(
    mean=st.floats(-5, 5),
    variance=st.floats(0, 100),
    more=st.floats(0.1, 100),
    beta=st.floats(0, 10),
)
def test_probit_laws(mean, variance, more, beta):
    score = float(probit(np.array(mean), np.array(variance), beta))
    assert abs(score) <= abs(mean)
    assert score * mean >= 0
    assert abs(float(probit(np.array(mean), np.array(variance + more), beta))) <= abs(score)
    assert float(probit(np.array(mean), np.array(variance), 0.0)) == mean


def test_wasserstein_of_equal_variances_is_the_squared_chord():
    q, c = gaussians(2, 4, 5), gaussians(3, 4, 6)
    c = Gaussian(c.mean, np.tile(q.variance[:1], (3, 1)))
    expected = np.square(q.mean[:1, None] - c.mean[None]).sum(-1)
    np.testing.assert_allclose(wasserstein2(Gaussian(q.mean[:1], q.variance[:1]), c), expected)


def test_the_score_follows_cosine_where_it_leaves_wasserstein():
    """The claim of the module's docstring: with wide variances the order is cosine's, not W2's."""
    rng = np.random.default_rng(7)

    def unit(n: int) -> Gaussian:
        mean = rng.normal(size=(n, 768))
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        widest = rng.uniform(0, 0.1, (n, 1))
        return Gaussian(mean, np.square(rng.uniform(0, widest, (n, 768))))

    q, c = unit(1), unit(300)
    mean, variance = moments(q, c)
    score = probit(mean, variance)[0]
    ranks = lambda a: np.argsort(np.argsort(a))  # noqa: E731
    with_cosine = np.corrcoef(ranks(score), ranks(mean[0]))[0, 1]
    with_w2 = np.corrcoef(ranks(score), ranks(-wasserstein2(q, c)[0]))[0, 1]
    assert with_cosine > 0.99
    assert with_w2 < 0.5
