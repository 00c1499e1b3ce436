"""Self-retrieval and the choice of a set: equal to loops, and no member is bought twice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from uec.auditing.selection import Looked, Views, audit, choose, view
from uec.errors import InputError
from uec.fusion import correlation
from uec.selfretrieval import log_odds, reciprocal_ranks
from uec.trust import log_prior


def synthetic(signal, n=400, seed=0, copies=()):
    """Views of n pieces: noise, plus each member's signal for the right text.

    `copies` are (member, of) pairs: the member sees what the other sees.
    """
    rng = np.random.default_rng(seed)
    similarity = rng.normal(size=(n, n, len(signal))).astype(np.float32)
    own = np.arange(n)
    similarity[own, own] += np.asarray(signal, dtype=np.float32)
    for copy, of in copies:
        noise = 0.01 * rng.normal(size=(n, n))
        similarity[..., copy] = similarity[..., of] + noise
    return Views(similarity, rng.uniform(0.2, 1.0, size=(n, len(signal))), 600)


def members(rng, m, p):
    """Two members of other dimensions, m pieces and p texts."""
    texts = {"a": rng.normal(size=(p, 4)), "b": rng.normal(size=(p, 3))}
    looked = {
        name: Looked(rng.normal(size=(m, matrix.shape[1])), rng.normal(size=(m, matrix.shape[1])))
        for name, matrix in texts.items()
    }
    return texts, looked


def test_views_are_equal_to_loops():
    texts, looked = members(np.random.default_rng(0), 5, 7)
    targets = np.array([3, 0, 6, 2, 1])
    views = view(texts, looked, targets)
    assert views.n_texts == 7
    for k, (name, member) in enumerate(looked.items()):
        spans = member.spans - member.spans.mean(axis=0) / 2
        for i, target in enumerate(targets):
            row = np.array([spans[i] @ rest for rest in member.rests])
            standardised = (row - row.mean()) / row.std()
            np.testing.assert_allclose(views.similarity[i, :, k], standardised, atol=1e-5)
            whole = [spans[i] @ text for text in texts[name]]
            place = 1 + sum(score > whole[target] for score in whole)
            assert views.quotation[i, k] == 1 / place
            place = 1 + sum(score > row[i] for score in row)
            assert views.by_member()[i, k] == 1 / place


def test_what_all_pieces_share_decides_less():
    """A member that sets pieces apart finds more of them; one that sees no text finds none."""
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(60, 16))
    # Near all pieces, and near the first texts most.
    apart = texts + 0.1 * rng.normal(size=texts.shape) + 10 * texts[:5].mean(axis=0)
    blind = np.ones_like(texts)
    looked = {"apart": Looked(apart, texts), "blind": Looked(blind, blind)}
    views = view({"apart": texts, "blind": blind}, looked, np.arange(60))
    found, none = views.by_member().mean(axis=0)
    assert found > 0.1 + reciprocal_ranks(apart @ texts.T, np.arange(60)).mean()
    # All texts tie, and half of them count as better.
    assert none == pytest.approx(1 / 30.5)
    # Nor does the blind one break what is asked of all together.
    assert np.isfinite(correlation(views.similarity)).all()
    assert choose(views, ["apart", "blind"]).steps[-1].member == "blind"


def test_whole_texts_among_cut_ones_decide_nothing():
    """A member that puts torn texts far from whole ones finds pieces as well as another.

    Among whole texts it would lose them: each rest alone would stand against whole texts.
    """
    rng = np.random.default_rng(1)
    texts = rng.normal(size=(60, 16))
    torn = rng.normal(size=16)
    spans, rests = texts + 0.5 * rng.normal(size=texts.shape), texts - 3 * torn
    targets = np.arange(60)
    views = view({"a": texts}, {"a": Looked(spans, rests)}, targets)
    assert views.by_member().mean() > 0.9
    among_whole = spans @ texts.T
    among_whole[targets, targets] = np.einsum("md,md->m", spans, rests)
    assert reciprocal_ranks(among_whole, targets).mean() < 0.8


def test_the_report_holds_the_ranks_of_each_member_alone():
    views = synthetic([2.0, 0.5])
    report = audit(views, ["a", "b"], {"seed": 0})
    for k, row in enumerate(report.rows):
        scores = views.similarity[..., k]
        reciprocal = 1 / (1 + (scores > np.diag(scores)[:, None]).sum(axis=1))
        assert row["cloze_mrr"] == pytest.approx(reciprocal.mean())
        assert row["standard_error"] == pytest.approx(reciprocal.std(ddof=1) / 20)
        assert row["first"] == pytest.approx(np.mean(reciprocal == 1))
        assert row["quotation_mrr"] == pytest.approx(views.quotation[:, k].mean())
        assert row["lost"] == 0
    assert report.settings == {"seed": 0, "n_spans": 400, "n_pool": 600}
    assert report.rank_by == "cloze_mrr"
    assert report.findings[1] == "a searches this corpus best."


def test_equal_members_are_called_equal_and_bad_ones_unfit():
    views = synthetic([2.0, 2.0, -1.0])
    views.quotation[:300, 2] = 0.05
    report = audit(views, ["a", "b", "c"], {})
    findings = report.findings
    assert "equally well" in findings[1] and sorted(report.details["leaders"]) == ["a", "b"]
    (unfit,) = [finding for finding in findings if "not fit" in finding]
    assert unfit.startswith("c ") and "75%" in unfit


def test_few_spans_are_refused():
    with pytest.raises(InputError, match="gives 20 spans to look for; expected at least 30"):
        audit(synthetic([1.0], n=20), ["a"], {})


def test_members_that_add_are_kept_and_a_copy_is_not():
    choice = choose(synthetic([2.6, 2.2, 2.6], copies=[(2, 0)]), ["a", "b", "copy"])
    first, second, third = choice.steps
    assert {first.member, third.member} == {"a", "copy"} and second.member == "b"
    assert choice.members == (first.member, "b")
    assert second.worth and second.gain > 0.05 and second.p_value < 1e-4
    # It shares the weight of what it copies, and takes some from the other.
    assert not third.worth and third.gain < 0.005
    assert sum(second.weights.values()) == pytest.approx(1.0)
    assert second.mrr == pytest.approx(first.mrr + second.gain)


def test_a_useless_member_is_left_out():
    choice = choose(synthetic([3.0, -0.5]), ["good", "bad"])
    assert choice.members == ("good",)
    assert not choice.steps[1].worth


def test_fused_ranks_are_those_of_weights_learnt_on_the_other_half():
    views = synthetic([2.2, 2.0])
    alone = views.by_member()
    alike = correlation(views.similarity)
    even = np.arange(len(alone)) % 2 == 0
    fused = np.empty(views.similarity.shape[:2])
    for part in (even, ~even):
        weights = np.exp(log_prior(2 * log_odds(alone[~part]), alike))
        fused[part] = views.similarity[part] @ weights
    expected = reciprocal_ranks(fused, np.arange(len(fused)))
    first, second = choose(views, ["a", "b"]).steps
    assert first.mrr == pytest.approx(alone[:, 0].mean())
    assert second.mrr == pytest.approx(expected.mean(), abs=1e-4)
    gains = expected - alone[:, 0]
    assert second.p_value == pytest.approx(ttest_1samp(gains, 0.0).pvalue, rel=0.05)
    assert second.gain == pytest.approx(second.mrr - first.mrr)
    assert second.standard_error == pytest.approx(gains.std(ddof=1) / 20, rel=0.01)
    whole = np.exp(log_prior(2 * log_odds(alone), alike))
    assert second.weights == {"a": pytest.approx(whole[0]), "b": pytest.approx(whole[1])}


def test_p_values_are_corrected_for_the_members_tried():
    """The second place of three is fought over by two: its p value counts double."""
    views = synthetic([2.4, 1.8, 1.7], n=60)
    first, second, _ = choose(views, ["a", "b", "c"]).steps
    pair = [["a", "b", "c"].index(step.member) for step in (first, second)]
    two = dataclasses.replace(
        views, similarity=views.similarity[..., pair], quotation=views.quotation[:, pair]
    )
    alone = choose(two, ["x", "y"]).steps[1]
    assert alone.mrr == pytest.approx(second.mrr)
    assert second.p_value == pytest.approx(min(1.0, 2 * alone.p_value))


def test_permuting_members_permutes_nothing_but_names():
    views = synthetic([2.6, 1.4, 2.0])
    order = [2, 0, 1]
    moved = dataclasses.replace(
        views, similarity=views.similarity[..., order], quotation=views.quotation[:, order]
    )
    one, other = choose(views, ["a", "b", "c"]), choose(moved, ["c", "a", "b"])
    assert [s.member for s in one.steps] == [s.member for s in other.steps]
    assert [s.mrr for s in one.steps] == pytest.approx([s.mrr for s in other.steps])
    assert one.n_kept == other.n_kept


def test_one_member_is_a_set():
    choice = choose(synthetic([1.0]), ["a"])
    assert choice.members == ("a",) and choice.steps[0].gain == 0
