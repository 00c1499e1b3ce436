"""Abstention: thresholds by hand, the bound in simulation, and the flag of a search."""

from __future__ import annotations

import math

import numpy as np
import pytest

import uec
from uec.abstention import Abstention
from uec.build import build_index
from uec.calibrating import calibrate_index
from uec.errors import InputError
from uec.retriever import Retriever


def test_thresholds_by_hand():
    """Nine texts, one task: wrong best hits at .9, .6 and .2."""
    probabilities = np.array([[0.9, 0.6, 0.2, 0.95, 0.8, 0.7, 0.5, 0.4, 0.3]])
    right = np.array([[False, False, False, True, True, True, True, True, True]])
    abstention = Abstention.measure(probabilities, right)
    assert abstention.wrong == (0.9, 0.6, 0.2)
    # (wrong above the threshold + 1) / 10 must not exceed the risk.
    assert abstention.threshold(0.05) == math.inf
    assert abstention.threshold(0.1) == 0.9
    assert abstention.threshold(0.2) == 0.6
    assert abstention.threshold(0.35) == 0.2
    assert abstention.threshold(0.4) == 0.0


def test_two_tasks_count_half_each():
    wrong = np.zeros((2, 9), dtype=bool)
    abstention = Abstention.measure(np.linspace(0.1, 0.9, 18).reshape(2, 9), wrong)
    # Two of the eighteen make the loss of one text.
    assert abstention.threshold(0.2) == pytest.approx(abstention.wrong[2])


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.3])
def test_the_risk_of_texts_of_the_same_kind_stays_within_the_bound(risk):
    rng = np.random.default_rng(0)
    risks = []
    for _ in range(400):
        probability = rng.uniform(size=(1, 300))
        right = rng.uniform(size=(1, 300)) < probability**2  # overconfident
        threshold = Abstention.measure(probability[:, :100], right[:, :100]).threshold(risk)
        risks.append((~right & (probability > threshold))[:, 100:].mean())
    assert np.mean(risks) <= risk + 0.003
    assert np.mean(risks) >= risk - 0.02  # and it does not abstain for nothing


@pytest.fixture(scope="module")
def calibrated(ensemble, located, tmp_path_factory):
    path = tmp_path_factory.mktemp("abstention") / "index"
    build_index(ensemble, located, path)
    calibrate_index(path)
    return Retriever.open(path)


def test_a_search_abstains_where_its_best_hit_is_not_sure_enough(calibrated, texts):
    queries = [texts[3], texts[40], "zzz 我", "planet"]
    threshold = calibrated.ensemble.calibration.abstention.threshold(0.1)
    assert 0 < threshold < 1
    for ranking in calibrated.search(queries, max_risk=0.1):
        assert ranking.abstained == (ranking.hits[0].probability <= threshold)
    assert [r.abstained for r in calibrated.search(queries, max_risk=0.1)][::2] == [False, True]
    assert not any(ranking.abstained for ranking in calibrated.search(queries))


def test_where_there_are_no_probabilities_there_is_no_risk_to_bound(calibrated, texts):
    with pytest.raises(InputError, match="max_risk needs probabilities"):
        calibrated.search(["river"], max_risk=0.1, weights={"a": 1.0})
    with pytest.raises(InputError, match="max_risk needs a search"):
        calibrated.rerank("river", [uec.Document("d", texts[0])], max_risk=0.1)
