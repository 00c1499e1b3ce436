"""Calibration without labels: who finds the corpus weighs more, and nothing is claimed in vain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import softmax

import uec
from uec import calibrating
from uec.build import build_index, recalibrate
from uec.calibrating import calibrate, calibrate_index, judged_ranks, view
from uec.calibration import Calibration
from uec.errors import InputError, MismatchError
from uec.records import SearchOptions
from uec.retriever import Retriever
from uec.selfretrieval import draw_spans
from uec.similarity import probit
from uec.trust import TASKS, Views, learn, log_prior, log_trust
from uec.weighing import peaks


def synthetic(signal, traces=None, n=200, p=60, seed=0):
    """Views of n spans: each member's similarities are noise, plus its signal for the right one."""
    rng = np.random.default_rng(seed)
    signal = np.asarray(signal, dtype=float)
    if signal.ndim == 1:
        signal = np.tile(signal, (n, 1))
    k = signal.shape[1]
    mean = rng.normal(size=(n, p, k))
    targets = rng.integers(0, p, n)
    own = {task: rng.normal(size=(n, k)) + signal for task in TASKS}
    mean[np.arange(n), targets] = own["quotation"]
    variance = np.ones((n, p, k))
    traces = np.ones((n, k)) if traces is None else traces
    return Views(mean, variance, own, dict.fromkeys(TASKS, np.ones((n, k))), targets, traces)


def learnt(views, names=("a", "b", "c")):
    return learn(views, names[: views.mean.shape[-1]], {})


def test_the_member_that_finds_the_corpus_weighs_more():
    calibration = learnt(synthetic([2.0, 1.6, 1.2]))
    a, b, c = np.exp(calibration.log_prior)
    assert a + b + c == pytest.approx(1.0)
    assert a > 0.5 > b > c > 0
    assert calibration.report["best_member"] == "a"


def test_equal_members_weigh_alike_and_help_each_other():
    report = learnt(synthetic([1.5, 1.5, 1.5], n=600)).report
    weights = [member["weight"] for member in report["members"].values()]
    assert max(weights) < 0.55
    assert report["ensemble_mrr"] > report["best_member_mrr"] + 0.1
    assert report["p_value"] < 1e-6


def test_permuting_members_permutes_the_prior():
    views = synthetic([2.0, 1.0, 0.5])
    order = [2, 0, 1]
    swap = lambda array: array[..., order]  # noqa: E731
    moved = dataclasses.replace(
        views,
        mean=swap(views.mean),
        own_mean={task: swap(own) for task, own in views.own_mean.items()},
    )
    np.testing.assert_allclose(learnt(moved).log_prior, learnt(views).log_prior[order])


def test_a_trace_that_knows_who_fails_is_followed_and_an_idle_one_is_not():
    rng = np.random.default_rng(1)
    first = rng.random(400) < 0.5
    signal = np.stack([np.where(first, 3.0, 0.0), np.where(first, 0.0, 3.0)], axis=1)
    knows = np.stack([np.where(first, 0.5, 4.0), np.where(first, 4.0, 0.5)], axis=1)
    followed = learnt(synthetic(signal, knows, n=400))
    assert np.isfinite(followed.temperature)
    assert followed.report["members"]["a"]["trace_auroc"] > 0.8
    idle = learnt(synthetic(signal, rng.permutation(knows), n=400))
    assert idle.temperature == np.inf
    assert followed.report["ensemble_mrr"] > idle.report["ensemble_mrr"] + 0.05


def test_fused_ranks_equal_a_loop():
    views = synthetic([1.0, 0.5], n=30, p=20)
    rng = np.random.default_rng(3)
    views = dataclasses.replace(views, variance=rng.uniform(0, 3, views.variance.shape))
    weights = rng.dirichlet([1, 1], 30)
    beta = 0.7
    expected = []
    for n, target in enumerate(views.targets):
        ranks = []
        score = lambda m, v, w: probit(np.atleast_1d(m @ w), np.atleast_1d(v @ w**2), beta)  # noqa: E731
        for task in TASKS:
            mine = score(views.own_mean[task][n], views.own_variance[task][n], weights[n])
            others = np.delete(score(views.mean[n], views.variance[n], weights[n]), target)
            ranks.append(1 / (1 + (others > mine).sum()))
        expected.append(np.mean(ranks))
    np.testing.assert_allclose(
        views.together(dict.fromkeys(TASKS, weights), beta), expected, atol=1e-6
    )


def test_peaks_of_spans_equal_a_loop():
    views = synthetic([1.0, -3.0], n=8, p=20)
    for task in TASKS:
        for n, target in enumerate(views.targets):
            others = np.delete(views.mean[n], target, axis=0).max(axis=0)
            expected = np.maximum(others, views.own_mean[task][n])
            np.testing.assert_allclose(views.peaks(task)[n], expected, rtol=1e-6)


def test_a_member_that_finds_nothing_unusual_loses_its_weight():
    """The second member is as good as the first on the corpus, and blind to some queries."""
    calibration = learnt(synthetic([2.0, 2.0], n=400))
    usual = calibration.peaks.mean
    evidence = calibration.peaks.evidence(np.array([usual, usual - [0.0, 3.0]]))
    sighted, blind = softmax(calibration.log_prior + evidence, axis=1)
    assert sighted[1] == pytest.approx(0.5, abs=0.1)
    assert blind[1] < 0.05


def test_views_are_what_a_search_says(retriever, texts):
    """Standardised similarity and variance of spans with documents, against `Retriever.search`."""
    spans = draw_spans(((i, uec.Document(str(i), t)) for i, t in enumerate(texts)), 5, 0)
    pool = np.random.default_rng(0).permutation(len(retriever.index))
    views = view(retriever, spans, pool, "kron")
    options = {"top_k": len(pool), "n_candidates": len(pool), "explain": True, "beta": 0.0}
    rankings = retriever.search([span.text for span in spans], **options)
    for n, ranking in enumerate(rankings):
        rows = retriever.index.documents.rows([hit.doc_id for hit in ranking.hits])
        columns = [int(np.flatnonzero(pool == row)[0]) for row in rows]
        says = [[member.standardised for member in hit.members] for hit in ranking.hits]
        np.testing.assert_allclose(views.mean[n, columns], says, atol=1e-4)
        weights = np.array(list(ranking.weights.values()))
        variance = views.variance[n, columns] @ weights**2
        np.testing.assert_allclose(variance, [hit.variance for hit in ranking.hits], rtol=1e-4)
        assert pool[views.targets[n]] == spans[n].row


def test_cloze_asks_for_the_document_without_the_span(retriever, texts):
    spans = draw_spans(((i, uec.Document(str(i), t)) for i, t in enumerate(texts)), 4, 0)
    views = view(retriever, spans, np.arange(len(retriever.index)), "kron")
    for n, span in enumerate(spans):
        rest = retriever.rerank(span.text, [uec.Document("r", span.rest)], explain=True).hits[0]
        says = [member.standardised for member in rest.members]
        np.testing.assert_allclose(views.own_mean["cloze"][n], says, atol=1e-4)


def test_a_calibrated_index_weighs_by_its_prior_and_peaks(ensemble, located, tmp_path):
    path = tmp_path / "index"
    build_index(ensemble, located, path)
    before = Retriever.open(path).index.artefact.fingerprint
    calibration = calibrate_index(path, seed=3)
    after = Retriever.open(path)
    assert after.ensemble.calibration.report == calibration.report
    assert after.index.artefact.fingerprint != before
    ranking = after.search(["river mountain database"])[0]
    found = peaks(after.index, after.weigh(["river mountain database"]))
    expected = softmax(calibration.log_prior + calibration.peaks.evidence(found)[0])
    np.testing.assert_allclose(list(ranking.weights.values()), expected, rtol=1e-6)
    assert sum(ranking.weights.values()) == pytest.approx(1.0)
    # Calibrating again from the same index and seed gives the same.
    assert calibrate(after, seed=3).report == calibration.report


def test_an_index_that_changed_meanwhile_is_left_alone(ensemble, located, tmp_path):
    path = tmp_path / "index"
    build_index(ensemble, located, path)
    old = Retriever.open(path).index.artefact
    build_index(ensemble, located[:100], path)
    current = Retriever.open(path).index.artefact.fingerprint
    with pytest.raises(MismatchError, match="another version was published"):
        recalibrate(path, old, Calibration.uniform(3))
    assert Retriever.open(path).index.artefact.fingerprint == current


def test_a_corpus_without_spans_is_refused(ensemble, tmp_path):
    documents = [(f"c:{i}", uec.Document(str(i), f"short text {i}")) for i in range(80)]
    build_index(ensemble, documents, tmp_path / "index")
    with pytest.raises(InputError, match=r"gives 0 spans .* expected at least 30"):
        calibrate(Retriever.open(tmp_path / "index"))


@pytest.mark.parametrize("n_spans", [-1, 0, 29, 2001])
def test_a_number_of_spans_that_cannot_do_is_refused(retriever, n_spans):
    with pytest.raises(InputError, match=f"from 30 to 2000, got {n_spans}"):
        calibrate(retriever, n_spans=n_spans)


def test_a_large_corpus_is_sampled(retriever, monkeypatch):
    monkeypatch.setattr(calibrating, "MAX_POOL", 40)
    assert calibrate(retriever, n_spans=35).report["n_pool"] == 40


def test_spans_are_cut_out_of_what_logged_queries_find(retriever, texts, monkeypatch):
    drawn = []

    def record(documents, n_spans, seed):
        spans = draw_spans(documents, n_spans, seed)
        drawn.append([span.row for span in spans])
        return spans

    monkeypatch.setattr(calibrating, "draw_spans", record)
    log = texts[:12]
    equal = SearchOptions(top_k=10, weights=dict.fromkeys("abc", 1.0))
    found = {
        int(retriever.index.documents.rows([hit.doc_id])[0])
        for ranking in retriever.search(log, equal)
        for hit in ranking.hits
    }
    report = calibrate(retriever, log=log).report
    assert report["n_logged"] == 12 and report["n_pool"] == len(texts)
    assert set(drawn[0]) <= found and len(drawn[0]) == report["n_spans"] > 30
    with pytest.raises(InputError, match="the query log has no queries"):
        calibrate(retriever, log=[])


def test_log_prior_multiplies_the_odds_of_both_tasks():
    ranks = {"quotation": np.full((99, 2), [0.5, 0.25]), "cloze": np.full((99, 2), [0.2, 0.2])}
    odds = [q / (1 - q) for q in ((99 * 0.5 + 0.5) / 100, (99 * 0.25 + 0.5) / 100)]
    prior = log_prior(log_trust(ranks), np.eye(2))
    assert prior[0] - prior[1] == pytest.approx(np.log(odds[0] / odds[1]))


def test_members_that_say_the_same_share_one_weight():
    ranks = dict.fromkeys(TASKS, np.full((99, 3), 0.5))
    twins = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    a, b, c = np.exp(log_prior(log_trust(ranks), twins))
    # (R + I)^-1 1: 1 / 2.9 for the twins, 1 / 2 for the third.
    assert a == pytest.approx(b)
    assert c / a == pytest.approx(2.9 / 2)


def test_a_worse_twin_is_switched_off():
    ranks = dict.fromkeys(TASKS, np.full((99, 2), [0.5, 0.2]))
    prior = log_prior(log_trust(ranks), np.array([[1.0, 0.95], [0.95, 1.0]]))
    assert list(prior) == [0.0, -np.inf]


def test_judged_queries_pull_the_prior_towards_what_they_say():
    spans = dict.fromkeys(TASKS, np.full((99, 2), [0.5, 0.25]))
    plain = log_prior(log_trust(spans), np.eye(2))
    odds = [r / (1 - r) for r in ((29 * 0.2 + 0.5) / 30, (29 * 0.6 + 0.5) / 30)]
    few, many = (
        log_prior(log_trust(spans, labelled=np.full((n, 2), [0.2, 0.6])), np.eye(2))
        for n in (29, 2900)
    )
    free = plain[0] - plain[1]
    labelled = 2 * np.log(odds[0] / odds[1])
    assert few[0] - few[1] == pytest.approx((30 * free + 29 * labelled) / 59)
    assert plain[0] > few[0] > many[0]


def test_judged_ranks_by_hand(retriever, texts):
    queries = [uec.Query("q0", texts[0]), uec.Query("q1", texts[1]), uec.Query("q2", texts[2])]
    qrels = {"q0": {"d0": 1}, "q1": {"d1": 0, "d5": 1}, "q2": {"elsewhere": 1}}
    ranks = judged_ranks(retriever, (queries, qrels))
    # A text finds itself; q1's own document is not relevant; q2's is not in the index.
    assert ranks.shape == (2, 3)
    np.testing.assert_array_equal(ranks[0], 1.0)
    assert (ranks[1] <= 0.5).all()
    calibration = calibrate(retriever, n_spans=40, judged=(queries, qrels))
    assert calibration.report["n_labelled"] == 2
    with pytest.raises(InputError, match="none of the 1 judged queries"):
        judged_ranks(retriever, (queries[2:], qrels))


def test_static_members_are_known_as_matchers_of_words(retriever, texts, monkeypatch):
    spans = draw_spans(((i, uec.Document(str(i), t)) for i, t in enumerate(texts)), 4, 0)

    def wording():
        return view(retriever, spans, np.arange(len(retriever.index)), "kron").wording.tolist()

    assert wording() == [False, False, False]
    monkeypatch.setattr(calibrating, "is_static", lambda encoder: encoder.spec.name == "b")
    assert wording() == [False, True, False]
    monkeypatch.setattr(calibrating, "is_static", lambda encoder: True)
    assert wording() == [False, False, False]
