"""Self-retrieval and the choice of a set: equal to loops, and no member is bought twice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from uec.auditing.selection import Looked, audit, choose, evidence, view
from uec.errors import InputError
from uec.selfretrieval import reciprocal_ranks
from uec.trust import TASKS, Views, log_prior, log_trust


def synthetic(signal, n=400, p=60, seed=0, copies=()):
    """Views of n spans: noise, plus each member's signal for the right text.

    `copies` are (member, of) pairs: the member sees what the other sees.
    """
    rng = np.random.default_rng(seed)
    k = len(signal)
    mean = rng.normal(size=(n, p, k))
    targets = rng.integers(0, p, n)
    own = {task: rng.normal(size=(n, k)) + np.asarray(signal) for task in TASKS}
    for copy, of in copies:
        mean[..., copy] = mean[..., of] + 0.01 * rng.normal(size=(n, p))
        for values in own.values():
            values[:, copy] = values[:, of]
    mean[np.arange(n), targets] = own["quotation"]
    zero = np.zeros((n, k))
    return Views(
        mean, np.zeros_like(mean), own, dict.fromkeys(TASKS, zero), targets, np.ones((n, k))
    )


def test_views_are_standardised_inner_products():
    rng = np.random.default_rng(0)
    texts = {"a": rng.normal(size=(7, 4)), "b": rng.normal(size=(7, 3))}
    looked = {
        name: Looked(rng.normal(size=(5, matrix.shape[1])), rng.normal(size=(5, matrix.shape[1])))
        for name, matrix in texts.items()
    }
    targets = np.array([3, 0, 6, 2, 3])
    views = view(texts, looked, targets)
    for k, name in enumerate(texts):
        for i, target in enumerate(targets):
            row = [looked[name].spans[i] @ text for text in texts[name]]
            standardised = (np.array(row) - np.mean(row)) / np.std(row)
            np.testing.assert_allclose(views.mean[i, :, k], standardised, atol=1e-6)
            assert views.own_mean["quotation"][i, k] == views.mean[i, target, k]
            rest = looked[name].spans[i] @ looked[name].rests[i]
            expected = (rest - np.mean(row)) / np.std(row)
            assert views.own_mean["cloze"][i, k] == pytest.approx(expected, abs=1e-6)


def test_the_report_holds_the_ranks_of_each_member_alone():
    views = synthetic([2.0, 0.5])
    report = audit(views, ["a", "b"], {"seed": 0})
    for k, row in enumerate(report.rows):
        reciprocal = np.empty((2, 400))
        for t, task in enumerate(TASKS):
            for i, target in enumerate(views.targets):
                scores = views.mean[i, :, k].copy()
                scores[target] = views.own_mean[task][i, k]
                reciprocal[t, i] = 1 / (1 + (scores > scores[target]).sum())
        assert row["quotation_mrr"] == pytest.approx(reciprocal[0].mean())
        assert row["cloze_mrr"] == pytest.approx(reciprocal[1].mean())
        assert row["first"] == pytest.approx(np.mean(reciprocal == 1))
        assert row["lost"] == pytest.approx(np.mean(reciprocal < 0.1))
        # One query more, half right, as in uec.trust; then the geometric mean of the odds.
        means = (reciprocal.sum(axis=1) + 0.5) / 401
        odds = np.sqrt(np.prod(means / (1 - means)))
        assert row["trust"] == pytest.approx(odds / (1 + odds))
    assert report.settings == {"seed": 0, "n_spans": 400, "n_pool": 60}
    assert report.findings[1].startswith("a searches this corpus best")


def test_the_error_of_trust_is_that_of_the_bootstrap():
    views = synthetic([1.5])
    ranks = {task: views.by_member(task)[:, 0] for task in TASKS}
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(400):
        rows = rng.integers(0, 400, 400)
        samples.append(evidence({task: own[rows] for task, own in ranks.items()}).mean())
    bootstrap = np.std(1 / (1 + np.exp(-np.array(samples))))
    (row,) = audit(views, ["a"], {}).rows
    assert row["standard_error"] == pytest.approx(bootstrap, rel=0.1)


def test_trust_asks_for_both_tasks():
    """Figures of two encoders on single sentences, where the labels put the first one first."""
    faithful = {"quotation": np.full(400, 0.96), "cloze": np.full(400, 0.25)}
    topical = {"quotation": np.full(400, 0.92), "cloze": np.full(400, 0.34)}
    assert np.mean(list(faithful.values())) < np.mean(list(topical.values()))
    assert evidence(faithful).mean() > evidence(topical).mean()


def test_equal_members_are_called_equal_and_bad_ones_unfit():
    report = audit(synthetic([2.0, 2.0, -1.0]), ["a", "b", "c"], {})
    findings = report.findings
    assert "equally well" in findings[1] and sorted(report.details["leaders"]) == ["a", "b"]
    assert next(f for f in findings if "not fit" in f).startswith("c misses the first ten")


def test_few_spans_are_refused():
    with pytest.raises(InputError, match="gives 20 spans to look for; expected at least 30"):
        audit(synthetic([1.0], n=20), ["a"], {})


def test_members_that_add_are_kept_and_a_copy_is_not():
    choice = choose(synthetic([1.8, 1.5, 1.8], copies=[(2, 0)]), ["a", "b", "copy"])
    first, second, third = choice.steps
    assert {first.member, third.member} == {"a", "copy"} and second.member == "b"
    assert choice.members == (first.member, "b")
    assert second.worth and second.gain > 0.05 and second.p_value < 1e-4
    # It shares the weight of what it copies, and takes some from the other.
    assert not third.worth and third.gain < 0.005
    assert sum(second.weights.values()) == pytest.approx(1.0)
    assert second.trust == pytest.approx(first.trust + second.gain)


def test_a_useless_member_is_left_out():
    choice = choose(synthetic([2.5, -0.5]), ["good", "bad"])
    assert choice.members == ("good",)
    assert not choice.steps[1].worth


def test_fused_ranks_are_those_of_weights_learnt_on_the_other_half():
    views = synthetic([1.5, 1.2])
    ranks = {task: views.by_member(task) for task in TASKS}
    even = np.arange(len(views.targets)) % 2 == 0
    weights = np.empty_like(views.traces)
    for part in (even, ~even):
        seen = {task: own[~part] for task, own in ranks.items()}
        weights[part] = np.exp(log_prior(log_trust(seen), views.correlation()))
    expected = {
        task: reciprocal_ranks(views.scores(task, weights), views.targets) for task in TASKS
    }
    first, second = choose(views, ["a", "b"]).steps
    assert second.mrr == pytest.approx(np.mean([own.mean() for own in expected.values()]))
    gains = evidence(expected) - evidence({task: ranks[task][:, 0] for task in TASKS})
    assert second.p_value == pytest.approx(ttest_1samp(gains, 0.0).pvalue)
    assert np.log(second.trust / (1 - second.trust)) == pytest.approx(evidence(expected).mean())
    assert second.gain == pytest.approx(second.trust - first.trust)
    # To first order: the error of the log-odds times the slope of the logistic function.
    slope = second.trust * (1 - second.trust)
    assert second.standard_error == pytest.approx(gains.std(ddof=1) / 20 * slope)


def test_p_values_are_corrected_for_the_members_tried():
    """The second place of three is fought over by two: its p value counts double."""
    views = synthetic([2.0, 1.5, 1.4], n=60)
    first, second, _ = choose(views, ["a", "b", "c"]).steps
    pair = [["a", "b", "c"].index(step.member) for step in (first, second)]
    two = dataclasses.replace(
        views,
        mean=views.mean[..., pair],
        own_mean={task: own[:, pair] for task, own in views.own_mean.items()},
        own_variance={task: own[:, pair] for task, own in views.own_variance.items()},
        variance=views.variance[..., pair],
        traces=views.traces[:, pair],
    )
    alone = choose(two, ["x", "y"]).steps[1]
    assert alone.trust == pytest.approx(second.trust)
    assert second.p_value == pytest.approx(min(1.0, 2 * alone.p_value))


def test_permuting_members_permutes_nothing_but_names():
    views = synthetic([2.0, 1.0, 1.5])
    order = [2, 0, 1]
    moved = dataclasses.replace(
        views,
        mean=views.mean[..., order],
        own_mean={task: own[..., order] for task, own in views.own_mean.items()},
    )
    one, other = choose(views, ["a", "b", "c"]), choose(moved, ["c", "a", "b"])
    assert [s.member for s in one.steps] == [s.member for s in other.steps]
    assert [s.trust for s in one.steps] == pytest.approx([s.trust for s in other.steps])
    assert one.n_kept == other.n_kept


def test_one_member_is_a_set():
    choice = choose(synthetic([1.0]), ["a"])
    assert choice.members == ("a",) and choice.steps[0].gain == 0


def test_a_member_that_matches_words_counts_as_no_better_than_the_best_reader():
    """It finds every quotation; its cloze is poor, and so is its search."""
    views = synthetic([2.0, 1.5, 1.0])
    quotation = views.own_mean["quotation"].copy()
    quotation[:, 2] = 9.0
    mean = views.mean.copy()
    mean[np.arange(len(views.targets)), views.targets] = quotation
    free = dataclasses.replace(
        views, mean=mean, own_mean={**views.own_mean, "quotation": quotation}
    )
    fair = dataclasses.replace(free, wording=np.array([False, False, True]))
    names = ["good", "fair", "static"]
    trusts = [[row["trust"] for row in audit(v, names, {}).rows] for v in (free, fair)]
    assert trusts[0][2] > trusts[0][0]  # what it would get
    assert trusts[1][:2] == trusts[0][:2] and trusts[1][2] < trusts[1][0]
    said = [f for f in audit(fair, names, {}).findings if "matches words one by one" in f]
    assert len(said) == 1 and said[0].startswith("static ")
    assert choose(free, names).steps[0].member == "static"
    assert choose(fair, names).steps[0].member == "good"
    # Alone among its kind, it is judged as it comes.
    alone = dataclasses.replace(free, wording=np.array([True, True, True]))
    assert [row["trust"] for row in audit(alone, names, {}).rows] == trusts[0]
