"""Vectors for texts without a query side: the cosine is what the module says, and is learnt."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import uec
from uec.calibration import Calibration
from uec.errors import InputError
from uec.laplace import FitSettings
from uec.symmetric import SymmetricEncoder, pair_spread


class _Stretched:
    """An encoder whose embeddings are not unit vectors."""

    def __init__(self, encoder):
        self._encoder = encoder

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, texts, role, **settings):
        encoding = self._encoder.encode(texts, role, **settings)
        lengths = np.linspace(0.5, 3, len(encoding.mean), dtype=np.float32)[:, None]
        return replace(encoding, mean=encoding.mean * lengths)


class _Listening:
    """An encoder that writes down the roles that it is asked for."""

    def __init__(self, encoder, roles):
        self._encoder = encoder
        self._roles = roles

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, texts, role, **settings):
        self._roles.append(role)
        return self._encoder.encode(texts, role, **settings)


def wrapped(ensemble, wrap):
    members = tuple(replace(m, encoder=wrap(m.encoder)) for m in ensemble.members)
    return replace(ensemble, members=members)


def cosines(encoding):
    rows = encoding.mean / np.linalg.norm(encoding.mean, axis=1, keepdims=True)
    return rows @ rows.T


def test_pair_spread_is_the_deviation_over_all_pairs():
    mean = np.random.default_rng(0).normal(size=(7, 4))
    unit = [row / math.sqrt(sum(row**2)) for row in mean]
    values = [float(a @ b) for a, b in combinations(unit, 2)]
    expected = math.sqrt(sum((v - sum(values) / 21) ** 2 for v in values) / 21)
    assert pair_spread(mean) == pytest.approx(expected)
    assert pair_spread(mean[:1]) == 1.0


@pytest.mark.parametrize("wrap", [lambda encoder: encoder, _Stretched])
def test_cosine_is_the_weighted_mean_of_the_members_cosines(ensemble, texts, wrap):
    own = wrapped(ensemble, wrap)
    fitted = SymmetricEncoder.fit(own, texts)
    shares = np.array(list(fitted.coefficients.values()))
    prior = np.exp(fitted.calibration.log_prior)
    spreads = [pair_spread(e.mean) for e in own.encode(texts, "query")]
    assert fitted.spread == pytest.approx(spreads, rel=1e-4)
    assert shares == pytest.approx(prior / fitted.spread / (prior / fitted.spread).sum())
    if fitted.calibration.temperature < math.inf:
        fitted = replace(fitted, calibration=replace(fitted.calibration, temperature=math.inf))
    some = texts[:20]
    vectors = fitted.encode(some)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(20), abs=1e-5)
    parts = [cosines(e) for e in own.encode(some, "query")]
    expected = sum(c * part for c, part in zip(shares, parts, strict=True))
    assert vectors @ vectors.T == pytest.approx(expected, abs=1e-5)


def test_finite_temperature_weighs_by_the_traces_of_both_texts(ensemble, texts):
    calibration = Calibration(np.log([0.5, 0.3, 0.2]), temperature=0.7)
    own = replace(ensemble, calibration=calibration)
    fitted = SymmetricEncoder.fit(own, texts, calibrated=False, posterior="diag")
    some = texts[:6]
    encodings = own.encode(some, "query")
    raw = np.array(
        [
            [
                prior * math.exp(-e.calibrated["diag"][n] / 0.7) / spread
                for prior, e, spread in zip([0.5, 0.3, 0.2], encodings, fitted.spread, strict=True)
            ]
            for n in range(6)
        ]
    )
    shares = raw / raw.sum(axis=1, keepdims=True)
    assert np.ptp(shares[:, 0]) > 0.01
    expected = sum(
        np.sqrt(np.outer(shares[:, k], shares[:, k])) * cosines(e) for k, e in enumerate(encodings)
    )
    vectors = fitted.encode(some)
    assert vectors @ vectors.T == pytest.approx(expected, abs=1e-5)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(6), abs=1e-5)


def test_weights_are_learnt_and_every_text_is_a_query(texts):
    """An encoder of eight numbers finds less than one of a thousand; only one role is asked for."""
    pairs = [uec.Pair(" ".join(text.split()[:4]), text) for text in texts]
    specs = [uec.MemberSpec("coarse", "hashing:8"), uec.MemberSpec("fine", "hashing:1024")]
    made = uec.fit_ensemble(specs, {s.name: pairs for s in specs}, FitSettings(rank=8))
    roles: list[str] = []
    fitted = SymmetricEncoder.fit(wrapped(made, lambda e: _Listening(e, roles)), texts)
    weights = np.exp(fitted.calibration.log_prior)
    assert weights[1] > 0.7
    assert fitted.calibration.report["best_member"] == "fine"
    assert set(roles) == {"query"}
    fitted.encode(texts[:2], "document")
    assert roles[-1] == "document"


def test_too_few_texts_are_an_error_unless_weights_are_given(ensemble, texts):
    with pytest.raises(InputError, match="expected at least 30 documents"):
        SymmetricEncoder.fit(ensemble, texts[:10])
    few = SymmetricEncoder.fit(ensemble, texts[:10], calibrated=False)
    assert few.calibration is ensemble.calibration
    with pytest.raises(InputError, match="no texts to learn"):
        SymmetricEncoder.fit(ensemble, [], calibrated=False)
