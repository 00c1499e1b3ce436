"""Probability of relevance: calibrated where its model holds, and monotone always."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from uec.relevance import PAGE, RelevanceModel, properties


def rankings(m=4000, c=20, seed=0):
    """Scores of m rankings whose one relevant document, if it is there, tends to stand out."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(m, c))
    target = rng.integers(0, c, m)
    # The stronger the match, the likelier the target leads; some targets are not to be told.
    scores[np.arange(m), target] += rng.choice([0.0, 4.0], m)
    order = np.argsort(-scores, axis=1)
    return np.take_along_axis(scores, order, axis=1), order == target[:, None]


def calibration_error(probabilities, relevant):
    bins = np.minimum((probabilities * 10).astype(int), 9)
    return sum(
        abs(probabilities[bins == b].mean() - relevant[bins == b].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    )


def test_properties_by_hand():
    scores = np.array([[5.0, 3.0, 1.0]])
    expected = [
        [5.0, 4.0, 2.0, 0.0],
        [3.0, 2.0, -2.0, -np.log(2)],
        [1.0, 0.0, -4.0, -np.log(3)],
    ]
    np.testing.assert_allclose(properties(scores)[0], expected)
    many = np.arange(20.0, 0.0, -1)[None]
    # Hits after the first ten score 10 to 1, 5.5 on average.
    assert properties(many)[0, 0, 1] == 20 - 5.5
    assert PAGE == 10


def test_probabilities_are_calibrated_on_new_rankings_and_labels_carry_it():
    scores, relevant = rankings()
    model = RelevanceModel.fit(scores, relevant)
    fresh, truth = rankings(seed=1)
    given = np.stack([model.probabilities(row) for row in fresh])
    assert calibration_error(given.ravel(), truth.ravel()) < 0.02
    shuffled = np.random.default_rng(2).permutation(truth.ravel())
    assert calibration_error(given.ravel(), shuffled) > 0.05


def test_labels_at_random_teach_nothing():
    scores, relevant = rankings()
    noise = np.random.default_rng(3).permutation(relevant.ravel()).reshape(relevant.shape)
    given = RelevanceModel.fit(scores, noise).probabilities(scores[0])
    np.testing.assert_allclose(given, relevant.mean(), atol=0.03)


@pytest.mark.parametrize("c", [2, 5, 11, 20])
def test_a_lower_hit_never_gets_more(c):
    model = RelevanceModel.fit(*rankings())
    for row in rankings(m=50, seed=4)[0]:
        given = model.probabilities(row[:c])
        assert (np.diff(given) <= 1e-12).all() and (given > 0).all() and (given < 1).all()


def test_the_fit_finds_the_model_that_made_the_labels():
    rng = np.random.default_rng(5)
    scores = -np.sort(-rng.normal(1, 2, (5000, 20)), axis=1)
    truth = [-1.0, 0.8, 0.5, 0.3, 0.4]
    odds = truth[0] + properties(scores) @ np.array(truth[1:])
    model = RelevanceModel.fit(scores, rng.random(scores.shape) < expit(odds))
    given = np.stack([model.probabilities(row) for row in scores])
    np.testing.assert_allclose(given, expit(odds), atol=0.03)


def test_a_corpus_where_all_is_found_keeps_finite_odds():
    scores = -np.sort(-np.random.default_rng(6).normal(size=(100, 20)), axis=1)
    first = np.zeros(scores.shape, bool)
    first[:, 0] = True
    model = RelevanceModel.fit(scores, first)
    assert np.isfinite([model.constant, *model.coefficients]).all()
    assert model.probabilities(scores[0])[0] > 0.8
