"""Weights from what each member finds: peaks by brute force, evidence as a law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import softmax

from uec.calibration import Calibration, PeakScale
from uec.records import SearchOptions
from uec.retriever import Retriever
from uec.weighing import PEAK_DEPTH, peaks

QUERIES = ["river mountain database", "violin theory", "zzz 我"]
OPTIONS = SearchOptions()


@pytest.fixture
def following(retriever):
    """The shared index with a scale of peaks, as a calibration would give it."""
    scale = PeakScale(np.array([3.0, 2.5, 4.0]), np.array([0.5, 1.0, 2.0]))
    calibration = dataclasses.replace(Calibration.uniform(3), peaks=scale)
    other = Retriever(retriever.index)
    other.ensemble = dataclasses.replace(retriever.ensemble, calibration=calibration)
    return other


def best_of_each(retriever, query):
    """Standardised similarity of each member's best hit, by a search of its own."""
    best = []
    for k, name in enumerate(retriever.ensemble.names):
        hit = retriever.search([query], weights={name: 1.0}, beta=0.0, explain=True)[0].hits[0]
        best.append(hit.members[k].standardised)
    return np.array(best)


def test_peaks_are_the_best_hits_of_each_member(retriever, monkeypatch):
    monkeypatch.setattr("uec.weighing.PEAK_DEPTH", len(retriever.index))
    found = peaks(retriever.index, retriever.weigh(QUERIES))
    expected = [best_of_each(retriever, query) for query in QUERIES]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_hundred_documents_show_the_peaks(retriever):
    assert len(retriever.index) > PEAK_DEPTH
    found = peaks(retriever.index, retriever.weigh(QUERIES[:2]))
    expected = [best_of_each(retriever, query) for query in QUERIES[:2]]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_weights_are_prior_times_evidence(following):
    for query in QUERIES[:2]:
        scale = following.ensemble.calibration.peaks
        evidence = (best_of_each(following, query) - scale.mean) / scale.deviation
        got = list(following.search([query])[0].weights.values())
        np.testing.assert_allclose(got, softmax(evidence), rtol=1e-3)


def test_given_weights_ignore_the_evidence(following):
    ranking = following.search(QUERIES[:1], weights={"a": 3.0, "b": 1.0})[0]
    assert list(ranking.weights.values()) == [0.75, 0.25, 0.0]


def test_reweighing_equals_weighing(following):
    fixed = following.weigh(QUERIES, dataclasses.replace(OPTIONS, weights={"a": 1.0}))
    np.testing.assert_array_equal(
        following.reweigh(fixed, OPTIONS).weights, following.weigh(QUERIES).weights
    )


def test_a_scale_says_how_far_above_the_usual_a_peak_is():
    scale = PeakScale.measure(np.array([[1.0, 4.0], [3.0, 4.0]]))
    # The second member's peaks were all the same: a fifth of their mean stands for the deviation.
    np.testing.assert_allclose(scale.evidence(np.array([[4.0, 4.4]])), [[2.0, 0.5]])
