"""The closed-form curvature and what becomes of it: against dense and against exact back ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laplace import DiagLaplace, KronLaplace
from laplace.curvature import CurvlinopsGGN
from scipy.sparse import csr_array

from uec.curvature import Batches, ContrastiveCurvature, LinearisedReadout, side_of
from uec.errors import InputError
from uec.laplace import FitSettings, _held_out_damping, fit
from uec.records import Encoding

N, D, H = 12, 4, 5


def encoding(seed: int, *, varying_gain: bool = False, n: int = N) -> Encoding:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, D)).astype(np.float32)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    gain = rng.uniform(0.5, 1.5, (n, D)).astype(np.float32) if varying_gain else None
    return Encoding(
        mean,
        rng.normal(size=(n, H)).astype(np.float32),
        gain,
        np.ones(n, np.int64),
        np.zeros(n, dtype=np.bool_),
    )


WEIGHT = np.random.default_rng(9).normal(size=(D, H)).astype(np.float32)
GAIN = np.random.default_rng(8).uniform(0.5, 1.5, D).astype(np.float32)


def batches(varying_gain: bool = False, size: int = N) -> Batches:
    active = np.arange(H)
    sides = tuple(side_of(encoding(s, varying_gain=varying_gain), GAIN, active) for s in (0, 1))
    return Batches(sides, size)


def model() -> LinearisedReadout:
    return LinearisedReadout(torch.tensor(WEIGHT, dtype=torch.float64), 0.3)


def dense_ggn(model: LinearisedReadout, batch: dict) -> torch.Tensor:
    """sum_n J_n' (diag p - p p') J_n over the (d * h) weights, from torch.func."""
    outputs = lambda w: torch.func.functional_call(model, {"weight": w}, (batch,))  # noqa: E731
    jacobian = torch.func.jacrev(outputs)(model.weight.detach()).flatten(2)
    p = torch.softmax(model(batch).detach(), dim=-1)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return torch.einsum("ncp,ncm,nmq->pq", jacobian, inner, jacobian)


@pytest.mark.parametrize("varying_gain", [False, True])
def test_diagonal_equals_the_dense_ggn(varying_gain):
    la = DiagLaplace(model(), "classification", backend=ContrastiveCurvature)
    la.fit(batches(varying_gain))
    expected = sum(dense_ggn(model(), b).diagonal() for b in batches(varying_gain))
    torch.testing.assert_close(la.H, expected, rtol=1e-9, atol=1e-12)


def test_diagonal_equals_the_exact_back_end_of_laplace_torch():
    ours = DiagLaplace(model(), "classification", backend=ContrastiveCurvature)
    theirs = DiagLaplace(model(), "classification", backend=CurvlinopsGGN)
    ours.fit(batches(size=6))
    theirs.fit(batches(size=6))
    torch.testing.assert_close(ours.H, theirs.H, rtol=1e-9, atol=1e-12)
    assert float(ours.loss) == pytest.approx(float(theirs.loss))


@pytest.mark.parametrize("varying_gain", [False, True])
def test_kronecker_factors_equal_loops(varying_gain):
    la = KronLaplace(model(), "classification", backend=ContrastiveCurvature)
    la.fit(batches(varying_gain, size=6))
    b_expected, a_expected, n = np.zeros((D, D)), np.zeros((H, H)), 2 * N
    for batch in batches(varying_gain, size=6):
        p = torch.softmax(model()(batch).detach(), dim=-1).numpy()
        for n_text in range(len(p)):
            scaled = batch["candidates"].numpy() * batch["gain"][n_text].numpy()
            centred = scaled - p[n_text] @ scaled
            b_expected += (centred.T * p[n_text]) @ centred / 0.3**2
            feature = batch["features"][n_text].numpy()
            a_expected += np.outer(feature, feature) / n
    b_got, a_got = (factor.numpy() for factor in la.H_facs.kfacs[0])
    np.testing.assert_allclose(b_got, b_expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(a_got, a_expected, rtol=1e-8, atol=1e-10)


def test_empirical_fisher_equals_autograd():
    la = DiagLaplace(
        model(),
        "classification",
        backend=ContrastiveCurvature,
        backend_kwargs={"empirical_fisher": True},
    )
    la.fit(batches())
    expected = torch.zeros(D * H, dtype=torch.float64)
    for batch in batches():
        for n in range(N):
            m = model()
            loss = torch.nn.functional.cross_entropy(
                m(batch)[n : n + 1], batch["labels"][n : n + 1]
            )
            (gradient,) = torch.autograd.grad(loss, m.weight)
            expected += gradient.flatten().square()
    torch.testing.assert_close(la.H, expected, rtol=1e-9, atol=1e-12)


def fitted(settings: FitSettings, *, varying_gain: bool = False):
    # An encoder whose gain varies with the text has ones for its constant gain.
    gain = np.ones(D, np.float32) if varying_gain else GAIN
    sides = (encoding(seed, varying_gain=varying_gain) for seed in (0, 1))
    return fit(*sides, weight=WEIGHT, gain=gain, settings=settings)


def functional_variance(la, text: Encoding) -> np.ndarray:
    """Variance of the embedding from laplace-torch's own posterior and a dense Jacobian."""
    gain = np.broadcast_to(GAIN if text.gain is None else text.gain, text.mean.shape)
    jacobian = np.einsum("nj,ni,jk->njki", gain, text.features, np.eye(D)).reshape(-1, D, D * H)
    covariance = la.functional_variance(torch.tensor(jacobian))
    return torch.diagonal(covariance, dim1=1, dim2=2).numpy()


@pytest.mark.parametrize("varying_gain", [False, True])
def test_diagonal_variances_equal_those_of_laplace_torch(varying_gain):
    settings = FitSettings(batch_size=6, temperature=0.3, prior_precision=2.0)
    ours = fitted(settings, varying_gain=varying_gain).diag
    text = encoding(5, varying_gain=varying_gain)
    la = DiagLaplace(model(), "classification", backend=ContrastiveCurvature)
    la.fit(batches(varying_gain, size=6))
    la.prior_precision = 2.0
    expected = functional_variance(la, text)
    np.testing.assert_allclose(ours.variance(text), expected, rtol=1e-4)
    np.testing.assert_allclose(ours.trace(text), expected.sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("varying_gain", [False, True])
def test_kronecker_variances_equal_the_dense_inverse(varying_gain):
    damping, delta = 0.2, 2.0
    settings = FitSettings(
        batch_size=6, temperature=0.3, prior_precision=delta, damping=damping, rank=H
    )
    ours = fitted(settings, varying_gain=varying_gain).kron
    text = encoding(5, varying_gain=varying_gain)
    la = KronLaplace(model(), "classification", backend=ContrastiveCurvature)
    la.fit(batches(varying_gain, size=6))
    b, a = (factor.numpy() for factor in la.H_facs.kfacs[0])
    precision = np.kron(b + delta / damping * np.eye(D), a + damping * np.eye(H))
    covariance = np.linalg.inv(precision)
    gain = np.broadcast_to(GAIN if text.gain is None else text.gain, text.mean.shape)
    expected = np.zeros_like(text.mean)
    for n in range(N):
        for j in range(D):
            jacobian = np.zeros((D, H))
            jacobian[j] = gain[n, j] * text.features[n]
            expected[n, j] = jacobian.ravel() @ covariance @ jacobian.ravel()
    np.testing.assert_allclose(ours.variance(text), expected, rtol=1e-5)
    np.testing.assert_allclose(ours.trace(text), expected.sum(axis=1), rtol=1e-5)


def test_damping_is_the_held_out_optimum():
    rng = np.random.default_rng(3)
    # Three strong directions and noise of variance 0.01 in all: lambda must come out near 0.01.
    strong = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 20))
    features = strong + 0.1 * rng.normal(size=(400, 20))
    few = features[:30]
    found = _held_out_damping(few)
    split = few[:-6], few[-6:]
    second_moment = split[0].T @ split[0] / 24

    def loss(damping: float) -> float:
        covariance = second_moment + damping * np.eye(20)
        inverse = np.linalg.inv(covariance)
        quadratic = np.einsum("ni,ij,nj->n", split[1], inverse, split[1]).mean()
        return np.linalg.slogdet(covariance)[1] + quadratic

    assert loss(found) <= min(loss(found * 1.2), loss(found / 1.2))
    assert 0.001 < found < 0.1


def test_a_direction_that_was_seen_has_less_variance_than_the_prior_one_unseen_the_same():
    queries, passages = encoding(0), encoding(1)
    for side in (queries, passages):
        side.features[:, -1] = 0.0
    result = fit(
        queries,
        passages,
        weight=WEIGHT,
        gain=GAIN,
        settings=FitSettings(prior_precision=2.0, damping=0.01, temperature=10.0, rank=H),
    )
    basis = np.eye(H, dtype=np.float32)
    text = Encoding(
        np.eye(H, D, dtype=np.float32), basis, None, np.ones(H, np.int64), np.zeros(H, np.bool_)
    )
    # The prior's variance of the trace for a unit feature; B only makes it smaller.
    prior = np.square(GAIN).sum() / 2.0
    trace = result.kron.trace(text)
    assert trace[-1] <= prior * (1 + 1e-6)
    assert trace[-1] > 0.9 * prior
    assert (trace[:-1] < 0.2 * prior).all()


def test_the_marginal_likelihood_is_at_its_maximum():
    free = fitted(FitSettings(batch_size=6, temperature=0.3))
    for kind in ("diag", "kron"):
        best = free.report[f"{kind}_prior_precision"]
        at = lambda p, kind=kind: fitted(  # noqa: E731
            FitSettings(batch_size=6, temperature=0.3, prior_precision=p)
        ).report[f"{kind}_log_marginal_likelihood"]
        assert at(best) >= max(at(best * 1.3), at(best / 1.3))


def test_more_prior_precision_less_variance():
    text = encoding(5)
    loose, tight = (fitted(FitSettings(prior_precision=p)) for p in (1.0, 10.0))
    for kind in ("diag", "kron"):
        assert (getattr(tight, kind).trace(text) < getattr(loose, kind).trace(text)).all()


def test_rank_keeps_the_average_trace_over_feature_space():
    full, cut = (fitted(FitSettings(prior_precision=1.0, rank=r)).kron for r in (H, 2))
    # Features of all directions alike: the trace of the quadratic form is what the rank must keep.
    basis = Encoding(
        np.eye(H, D, dtype=np.float32),
        np.eye(H, dtype=np.float32),
        None,
        np.ones(H, np.int64),
        np.zeros(H, dtype=np.bool_),
    )
    assert cut.basis.shape == (H, 2)
    assert full.trace(basis).sum() == pytest.approx(cut.trace(basis).sum(), rel=1e-5)


def test_sparse_features_equal_dense_ones_where_seen_and_the_prior_elsewhere():
    def sparse(e: Encoding) -> Encoding:
        wide = np.zeros((len(e.mean), H + 3), np.float32)
        wide[:, :H] = e.features
        return Encoding(e.mean, csr_array(wide), None, e.tokens, e.truncated)

    wide_weight = np.concatenate([WEIGHT, np.ones((D, 3), np.float32)], axis=1)
    settings = FitSettings(prior_precision=2.0, damping=0.01, temperature=10.0, rank=H)
    got = fit(
        sparse(encoding(0)), sparse(encoding(1)), weight=wide_weight, gain=GAIN, settings=settings
    )
    expected = fitted(settings)
    text = encoding(5)
    for kind in ("diag", "kron"):
        np.testing.assert_allclose(
            getattr(got, kind).trace(sparse(text)), getattr(expected, kind).trace(text), rtol=1e-4
        )
    unseen = np.zeros((1, H + 3), np.float32)
    unseen[0, -1] = 1.0
    lone = Encoding(text.mean[:1], csr_array(unseen), None, text.tokens[:1], text.truncated[:1])
    # gain^2 / delta summed over outputs; lambda B takes a little off for kron.
    prior = np.square(GAIN).sum() / 2
    assert got.diag.trace(lone)[0] == pytest.approx(prior, rel=1e-4)
    assert 0.9 * prior < got.kron.trace(lone)[0] <= prior * (1 + 1e-6)


def test_profiles_sum_to_one():
    result = fitted(FitSettings())
    assert result.diag.profile.sum() == pytest.approx(1, abs=1e-5)
    assert result.kron.profile.sum() == pytest.approx(1, abs=1e-5)


def test_a_fit_needs_two_pairs():
    with pytest.raises(InputError, match="at least two pairs"):
        fit(
            encoding(0, n=1),
            encoding(1, n=1),
            weight=WEIGHT,
            gain=GAIN,
            settings=FitSettings(),
        )
