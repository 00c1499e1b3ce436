"""Weights of the members: laws of a softmax with a prior, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from uec.errors import InputError
from uec.weights import member_weights, named_weights

TRACES = arrays(np.float64, (3, 4), elements=st.floats(0, 20))
PRIOR = arrays(np.float64, 4, elements=st.floats(-3, 3))
TEMPERATURE = st.floats(0.05, 100)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_by_hand():
    weights = member_weights(np.array([[1.0, 1.0 + np.log(3)]]), np.zeros(2), 1.0)
    np.testing.assert_allclose(weights, [[0.75, 0.25]])


@given(TRACES, PRIOR, TEMPERATURE)
def test_each_query_has_weights_that_sum_to_one(traces, prior, temperature):
    weights = member_weights(traces, prior, temperature)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert (weights >= 0).all()


@given(PRIOR, TEMPERATURE, st.floats(0, 20))
def test_equal_traces_give_the_prior(prior, temperature, trace):
    weights = member_weights(np.full((2, 4), trace), prior, temperature)
    np.testing.assert_allclose(weights, np.tile(softmax(prior), (2, 1)), atol=1e-12)


@given(TRACES, PRIOR)
def test_infinite_temperature_gives_the_prior(traces, prior):
    weights = member_weights(traces, prior, np.inf)
    np.testing.assert_allclose(weights, np.tile(softmax(prior), (3, 1)), atol=1e-12)


@given(TRACES, PRIOR, st.floats(0.5, 10), st.integers(0, 3), st.floats(0.1, 5))
def test_more_variance_less_weight(traces, prior, temperature, member, more):
    wider = traces.copy()
    wider[:, member] += more
    before = member_weights(traces, prior, temperature)[:, member]
    after = member_weights(wider, prior, temperature)[:, member]
    assert ((after < before) | (before < 1e-12) | (before > 1 - 1e-12)).all()


@given(TRACES, PRIOR, TEMPERATURE, st.permutations(range(4)))
def test_permuting_members_permutes_weights(traces, prior, temperature, order):
    direct = member_weights(traces, prior, temperature)[:, order]
    permuted = member_weights(traces[:, order], prior[order], temperature)
    np.testing.assert_allclose(direct, permuted)


def test_minus_infinity_switches_a_member_off():
    weights = member_weights(np.array([[5.0, 0.0]]), np.array([0.0, -np.inf]), 1.0)
    np.testing.assert_array_equal(weights, [[1.0, 0.0]])


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(InputError, match="temperature must be positive"):
        member_weights(np.ones((1, 2)), np.zeros(2), temperature)


@pytest.mark.parametrize("trace", [np.nan, -0.1])
def test_bad_traces_never_become_weights(trace):
    with pytest.raises(InputError, match="traces must be finite"):
        member_weights(np.array([[1.0, trace]]), np.zeros(2), 1.0)


def test_named_weights_are_normalised():
    weights = named_weights({"a": 3.0, "c": 1.0}, ["a", "b", "c"], 2)
    np.testing.assert_allclose(weights, [[0.75, 0.0, 0.25]] * 2)


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 2.0), (np.nan, 1.0), (np.inf, 1.0)])
def test_unusable_named_weights(weights):
    with pytest.raises(InputError, match="weights must be"):
        named_weights(dict(zip("ab", weights, strict=True)), ["a", "b"], 1)


def test_unknown_names_are_told_from_known_ones():
    with pytest.raises(InputError, match="weights name x; the members are a, b"):
        named_weights({"a": 1.0, "x": 1.0}, ["a", "b"], 1)
