"""FLiP: tokenisation, training, measures and the audit, on texts whose words are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from uec.audits import flip
from uec.audits.extraction import (
    entity_recalls,
    jaccard,
    mean_and_error,
    most_frequent,
    recalls,
    references,
    sparse_codes,
    top_entries,
)
from uec.audits.probe import Probe, words
from uec.audits.probefit import Training, fit, loss_and_gradients, proximal_l1
from uec.audits.vocabulary import Vocabulary, tokenise
from uec.errors import CorruptArtefactError, InputError, MismatchError, NotFoundError

NOUNS = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ano", "elu", "iri", "osta", "umi")]
QUICK = Training(max_epochs=40, batch_size=64)


def corpus(n: int = 400, seed: int = 0, d: int = 80, noise: float = 0.0):
    """Texts of four nouns, and embeddings that are the sum of one random vector per noun."""
    rng = np.random.default_rng(seed)
    chosen = np.array([rng.choice(len(NOUNS), 4, replace=False) for _ in range(n)])
    vectors = np.random.default_rng(99).normal(size=(len(NOUNS), d))
    embeddings = vectors[chosen].sum(axis=1) + noise * rng.normal(size=(n, d))
    return [" ".join(NOUNS[i] for i in row) for row in chosen], embeddings, vectors


# --- tokens and vocabulary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don\u2019t say 'I'!", ["don't", "say", "i"]),
        ("naïve CAFE\u0301, 3.5%", ["naïve", "café", "3", "5"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("我该去OK 我", ["我该", "该去", "ok", "我"]),
        ("校長先生は", ["校長", "長先", "先生", "生は"]),
        ("ที่นี่", ["ที่นี่"]),  # two consonants, each with its vowel and tone marks: one pair
        ("한국어 문장", ["한국어", "문장"]),
        ("…—!'", []),
    ],
)
def test_words_of_several_scripts(text, expected):
    assert tokenise(text) == expected


@given(st.text())
def test_tokens_survive_being_joined_and_cut_again(text):
    assert tokenise(" ".join(tokenise(text))) == tokenise(text)


@given(st.lists(st.text(alphabet="abc '.我该去éÉ", max_size=30), min_size=1, max_size=5))
def test_every_word_of_the_training_texts_is_counted_as_it_is_evaluated(texts):
    if not any(tokenise(text) for text in texts):
        return
    vocabulary = Vocabulary.build(texts, min_count=1)
    counts = vocabulary.counts(texts)
    for text, row in zip(texts, counts.toarray(), strict=True):
        counted = {entry: int(n) for entry, n in zip(vocabulary.entries, row, strict=True) if n}
        tokens = tokenise(text)
        assert counted == {token: tokens.count(token) for token in tokens}


def test_vocabulary_takes_frequent_words_then_attracted_spans():
    texts = ["new york is far", "far is new york", "is it far", "it is it"] * 5
    vocabulary = Vocabulary.build(texts, n_spans=5, min_count=10, min_span_count=10)
    # 65 tokens. new york: log(10 * 65 / (10 * 10)) = 1.87 >= 1.5. "it is", "is it": both words too
    # common on their own.
    assert vocabulary.entries == ("is", "far", "it", "new", "york", "new york")
    assert Vocabulary.build(texts, n_words=2).entries == ("is", "far")


def test_spans_are_matched_greedily_from_the_left():
    vocabulary = Vocabulary(("a", "b", "c", "a b", "b c"))
    named = [vocabulary.entries[i] for i in vocabulary.units("A b c x b c a")]
    assert named == ["a b", "c", "b c", "a"]


# --- measures


def test_accuracy_and_span_aware_accuracy_by_hand():
    vocabulary = Vocabulary(("new", "york", "in", "rain", "new york"))
    counts = vocabulary.counts(["New York in rain", "in in in", "unknown"])
    wanted = references(counts)
    assert [sorted(w.tolist()) for w in wanted] == [[2, 3, 4], [2], []]
    scores = np.array([[9.0, 8, 1, 2, 7], [0, 0, 1, 0, 0], [1, 2, 3, 4, 5]])
    values = recalls(top_entries(scores, [len(w) for w in wanted]), wanted)
    # Text 1: "new" and "york" outrank the span that is wanted; only 1 of 3 is right. Text 3: none.
    assert values[:2].tolist() == [pytest.approx(1 / 3), 1.0]
    assert math.isnan(values[2])
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(2 / 3)
    assert error == pytest.approx((1 / 3) / math.sqrt(2))


def test_ties_go_to_the_first_entry():
    assert [r.tolist() for r in top_entries(np.array([[1.0, 2, 1, 1]]), [2])] == [[1, 0]]


def test_unigram_baseline_by_hand():
    counts = csr_array(np.array([[1, 0, 2], [0, 1, 3], [0, 1, 0]]))
    found = most_frequent(counts, [1, 2])
    assert [f.tolist() for f in found] == [[2], [2, 1]]
    assert recalls(found, [np.array([0]), np.array([0, 1])]).tolist() == [0.0, 0.5]


def test_jaccard_of_hits_by_hand():
    values = jaccard([{1, 2}, set(), {3}], [{2, 4}, set(), {3}])
    assert values[0] == pytest.approx(1 / 3)
    assert math.isnan(values[1])
    assert values[2] == 1.0


def test_entities_strict_and_partial_by_hand():
    strict, partial = entity_recalls(
        [["new york", "rain"], ["tom"]], [["New York City", "Rain"], ["Tom's", "!"]]
    )
    assert strict.tolist() == [0.0, 1.0, 0.0]
    assert partial.tolist() == pytest.approx([2 / 3, 1.0, 0.0])


def test_sparse_code_names_the_words_an_embedding_is_made_of():
    texts, embeddings, vectors = corpus(d=200)
    vocabulary = Vocabulary(tuple(NOUNS))
    wanted = references(vocabulary.counts(texts[:20]))
    found = sparse_codes(embeddings[:20], embeddings, vectors, [4] * 20)
    assert recalls(found, wanted).mean() > 0.9


# --- training


@pytest.mark.parametrize("rank", [3, None])
def test_chunked_loss_and_gradients_equal_autograd(rank):
    generator = torch.Generator().manual_seed(1)
    v, d, n = 11, 5, 7
    shapes = [(v,), (v, rank), (rank, d)] if rank else [(v,), (v, d)]
    parameters = [
        torch.randn(*s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64)
    counts = np.random.default_rng(0).poisson(0.5, size=(n, v)).astype(np.float32)
    counts[2] = 0
    bias, factor, *rest = parameters
    logits = bias + (rows @ rest[0].T if rest else rows) @ factor.T
    dense = -(torch.from_numpy(counts) * torch.log_softmax(logits, dim=1)).sum()
    dense.backward()
    with torch.no_grad():
        for logits_at_once in (1, 2 * v, 10**6):
            loss, gradients = loss_and_gradients(
                rows, csr_array(counts), parameters, logits_at_once
            )
            assert loss == pytest.approx(dense.item(), rel=1e-12)
            for got, parameter in zip(gradients, parameters, strict=True):
                torch.testing.assert_close(got, parameter.grad, rtol=1e-10, atol=1e-12)


def test_proximal_step_by_hand():
    factor = torch.tensor([[0.5, -0.2], [0.1, -0.7]])
    proximal_l1(factor, 0.2)
    torch.testing.assert_close(factor, torch.tensor([[0.3, 0.0], [0.0, -0.5]]))


def test_l1_silences_entries():
    texts, embeddings, _ = corpus(200)
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)

    def zeros(l1):
        training = Training(max_epochs=6, batch_size=64, l1=l1)
        probe = fit(
            [embeddings], counts, [embeddings], counts, vocabulary.entries, training=training
        )
        return float((probe.factor == 0).mean())

    assert zeros(0.0) == 0.0
    assert zeros(0.5) > 0.2


@pytest.mark.parametrize("rank", [512, None])
@pytest.mark.parametrize("scaling", ["none", "centre", "standardise"])
def test_words_that_are_linearly_readable_are_read(rank, scaling):
    texts, embeddings, _ = corpus()
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)
    probe = fit(
        [embeddings[:300]],
        counts[:300],
        [embeddings[300:350]],
        counts[300:350],
        vocabulary.entries,
        training=Training(
            rank=rank, max_epochs=60, batch_size=64, scaling=scaling, learning_rate=2e-2
        ),
    )
    wanted = references(counts[350:])
    found = probe.extract(embeddings[350:], [len(w) for w in wanted])
    assert recalls(found, wanted).mean() > 0.95
    named = {word for word, _ in words(probe, embeddings[350], 4)}
    assert named == set(texts[350].split())


def test_start_is_the_unigram_model_in_a_white_space():
    texts, embeddings, _ = corpus(1000, d=40)
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)
    still = Training(max_epochs=1, evaluate_every=1, learning_rate=1e-12)
    probe = fit([embeddings], counts, [embeddings], counts, vocabulary.entries, training=still)
    frequency = counts.sum(axis=0) + 1
    np.testing.assert_allclose(np.exp(probe.bias), frequency / frequency.sum(), rtol=1e-5)
    scores = probe.scores(embeddings, with_bias=True)
    np.testing.assert_allclose(scores, np.broadcast_to(probe.bias, scores.shape), atol=1e-6)
    inner = (embeddings - probe.centre) * probe.scale @ probe.projection.T
    np.testing.assert_allclose(np.cov(inner.T, bias=True), np.eye(40), atol=1e-3)


def test_a_dimension_of_rounding_noise_is_silenced():
    texts, embeddings, _ = corpus(100)
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)
    noise = 1e-9 * np.random.default_rng(3).normal(size=(100, 1))
    padded = np.hstack([embeddings, np.zeros((100, 1)), noise])
    probe = fit([padded], counts, [padded], counts, vocabulary.entries, training=QUICK)
    assert probe.scale[-2:].tolist() == [0.0, 0.0]
    assert (probe.scale[:-2] > 0).all()


def test_two_views_weigh_as_told():
    texts, embeddings, _ = corpus(200)
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)
    noise = np.random.default_rng(5).normal(size=embeddings.shape)
    # The plain probe starts at zero whatever the views; only the loss can tell them apart.
    training = Training(
        rank=None, max_epochs=6, evaluate_every=6, batch_size=64, scaling="none", learning_rate=1e-2
    )

    def trained(views, weights):
        return fit(
            views,
            counts,
            views,
            counts,
            vocabulary.entries,
            training=training,
            view_weights=weights,
        ).factor

    alone = trained([embeddings], None)
    np.testing.assert_allclose(trained([embeddings, noise], [1.0, 0.0]), alone, atol=1e-6)
    np.testing.assert_allclose(trained([embeddings, embeddings], None), alone, atol=1e-6)
    assert np.abs(trained([embeddings, noise], [0.5, 0.5]) - alone).max() > 0.01


def test_same_seed_same_probe_and_another_seed_another():
    texts, embeddings, _ = corpus(120)
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)

    def factor(seed):
        return fit(
            [embeddings],
            counts,
            [embeddings],
            counts,
            vocabulary.entries,
            training=Training(max_epochs=6, batch_size=64),
            seed=seed,
        ).factor

    np.testing.assert_array_equal(factor(0), factor(0))
    assert not np.array_equal(factor(0), factor(1))


def test_probe_survives_disk(tmp_path: Path):
    texts, embeddings, _ = corpus(100)
    vocabulary = Vocabulary(tuple(NOUNS))
    counts = vocabulary.counts(texts)
    for rank in (8, None):
        training = Training(rank=rank, max_epochs=3)
        probe = fit(
            [embeddings], counts, [embeddings], counts, vocabulary.entries, training=training
        )
        probe.save(tmp_path / "probe.npz")
        again = Probe.load(tmp_path / "probe.npz")
        assert words(again, embeddings[0]) == words(probe, embeddings[0])
        assert again.curve == probe.curve
    whole = (tmp_path / "probe.npz").read_bytes()
    for broken in (b"not a probe", whole[: len(whole) // 2]):
        (tmp_path / "bad.npz").write_bytes(broken)
        with pytest.raises(CorruptArtefactError, match=r"bad\.npz"):
            Probe.load(tmp_path / "bad.npz")
    with pytest.raises(NotFoundError, match=r"none\.npz"):
        Probe.load(tmp_path / "none.npz")
    with pytest.raises(MismatchError, match="dimension"):
        words(probe, embeddings[0, :7])


# --- the audit


def test_audit_ranks_compares_and_explains():
    texts, embeddings, vectors = corpus(400)
    rng = np.random.default_rng(7)
    members = {"clear": embeddings, "noisy": embeddings + 6 * rng.normal(size=embeddings.shape)}
    made = flip.plan(texts, n_spans=0)
    order = [NOUNS.index(entry) for entry in made.spans.entries]
    foreign = embeddings[:40] + 6 * rng.normal(size=(40, 80))
    calls: list[int] = []
    probes: dict[str, Probe] = {}
    report = flip.audit(
        members,
        texts,
        parallel={
            "xx": flip.Parallel(
                ["new " + text for text in texts[:40]], {"clear": (embeddings[:40], foreign)}
            )
        },
        entities=[text.split()[:1] for text in texts],
        word_embeddings=dict.fromkeys(members, vectors[order]),
        training=QUICK,
        lip_rates=(2e-3, 2e-2),
        n_spans=0,
        entity_k=4,
        progress=calls.append,
        on_probe=probes.__setitem__,
    )
    clear, noisy = report.rows
    assert clear["accuracy"] > 0.95 > 0.7 > noisy["accuracy"] > clear["unigram"]
    assert clear["entities_strict"] > 0.9 > noisy["entities_strict"]
    assert any(said.startswith("Of the names in a text") for said in report.findings)
    assert clear["lip_rate"] in (2e-3, 2e-2)
    assert clear["splice"] > 0.7
    assert clear["drop_xx"] == pytest.approx(
        report.details["parallel"]["xx"]["clear"]["own"]
        - report.details["parallel"]["xx"]["clear"]["other"]
    )
    assert clear["drop_xx"] > 0.2
    assert sum(calls) == 2 * 400
    assert set(probes) == {"clear", "noisy"}
    assert report.details["jaccard"][0]["members"] == ["clear", "noisy"]
    assert any("clear holds the exact words best" in sentence for sentence in report.findings)
    assert any("SpLiCE" in sentence for sentence in report.findings)
    again = flip.audit(members, texts, training=QUICK, lip_rates=(), n_spans=0)
    assert [row["accuracy"] for row in again.rows] == pytest.approx(
        [row["accuracy"] for row in report.rows]
    )


def test_span_aware_figure_where_spans_are_frequent():
    texts, embeddings, _ = corpus(300)
    texts = [text.replace("bano", "bano grande") for text in texts]
    report = flip.audit({"one": embeddings}, texts, training=QUICK, lip_rates=())
    assert report.details["n_spans"] == 1
    assert report.rows[0]["span_accuracy"] > 0.85 > report.rows[0]["span_unigram"]


def test_parallel_and_repeated_texts_never_reach_training():
    texts, embeddings, _ = corpus(200)
    texts = [*texts, *texts[:10]]
    held_out = texts[:50]
    parallel = {"xx": flip.Parallel(held_out, {"m": (embeddings[:50], embeddings[:50])})}
    made = flip.plan(texts, parallel=parallel, n_spans=0)
    learned = {texts[i] for i in [*made.train, *made.held]}
    assert not learned & set(held_out)
    assert not learned & {texts[i] for i in made.test}
    assert made.n_repeated == 10
    parts = np.concatenate([made.train, made.held, made.test])
    assert len(set(parts.tolist())) == len(parts)


def test_thirty_texts_give_a_flagged_answer_and_fewer_an_error():
    texts, embeddings, _ = corpus(30)
    report = flip.audit({"m": embeddings}, texts, training=QUICK, lip_rates=(), min_count=1)
    assert 0 <= report.rows[0]["accuracy"] <= 1
    assert any("Only 30 texts" in warning for warning in report.warnings)
    with pytest.raises(InputError, match="too few"):
        flip.audit({"m": embeddings[:29]}, texts[:29])


def test_bad_input_is_named():
    texts, embeddings, _ = corpus(100)
    with pytest.raises(InputError, match=r"99 texts .* 100 texts"):
        flip.audit({"m": embeddings}, texts[:99])
    broken = embeddings.copy()
    broken[17, 3] = np.nan
    with pytest.raises(InputError, match=r"'bad'.*row 17"):
        flip.audit({"good": embeddings, "bad": broken}, texts)
    with pytest.raises(InputError, match="different numbers of texts"):
        flip.audit({"a": embeddings, "b": embeddings[:50]}, texts)
    with pytest.raises(InputError, match="word embeddings"):
        flip.audit({"m": embeddings}, texts, word_embeddings={"m": embeddings[:3]})
    with pytest.raises(InputError, match="no such member: other"):
        flip.audit({"m": embeddings}, texts, word_embeddings={"other": embeddings})
    short = {"xx": flip.Parallel(texts[:5], {"m": (embeddings[:4], embeddings[:4])})}
    with pytest.raises(InputError, match="xx: 5 texts"):
        flip.audit({"m": embeddings}, texts, parallel=short)
    with pytest.raises(InputError, match="no word"):
        flip.audit({"m": embeddings}, [f"word{i}" for i in range(100)])
    with pytest.raises(InputError, match="rank: got 0"):
        Training(rank=0)
