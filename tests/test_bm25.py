"""The lexical member: its grams and scores by hand, and a search that it takes part in."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

import uec
from uec.build import build_index
from uec.calibrating import calibrate_index, view
from uec.errors import InputError
from uec.retriever import Retriever, SearchOptions
from uec.selfretrieval import draw_spans, log_odds
from uec.stores.bm25 import Bm25Store, Bm25Writer, grams
from uec.trust import TASKS, Views, learn, log_trust

CORPUS = ["Rivers flow.", "rivers, rivers and a lake", "数据压缩 in Python", "…", "lake"]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Bm25Store:
    folder = tmp_path_factory.mktemp("bm25") / "store"
    writer = Bm25Writer()
    writer.add(CORPUS[:2])
    writer.add(CORPUS[2:])
    return Bm25Store(folder, writer.save(folder))


@pytest.fixture(scope="session")
def worded(ensemble, located, tmp_path_factory):
    """An index of three encoders and the words of its corpus."""
    path = tmp_path_factory.mktemp("shared") / "worded"
    build_index(ensemble, located, path, bm25=True)
    return Retriever.open(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Lakes", ["_lak", "lake", "akes", "kes_"]),
        ("a ML", ["_a_", "_ml_"]),
        ("ﬁt-2", ["_fit", "fit_", "_2_"]),
        ("数据压缩", ["数据", "据压", "压缩"]),
        ("用Python写", ["用", "_pyt", "pyth", "ytho", "thon", "hon_", "写"]),
        ("!? …", []),
    ],
)
def test_grams_by_hand(text, expected):
    assert list(grams(text)) == expected


def by_hand(query: str, document: str) -> float:
    """BM25 as its definition has it."""
    corpus = [Counter(grams(text)) for text in CORPUS]
    mean = sum(c.total() for c in corpus) / len(corpus)
    own = Counter(grams(document))
    score = 0.0
    for gram in grams(query):
        df = sum(gram in c for c in corpus)
        if df:
            idf = math.log(1 + (len(corpus) - df + 0.5) / (df + 0.5))
            saturation = 1.5 * (1 - 0.75 + 0.75 * own.total() / mean)
            score += idf * own[gram] / (own[gram] + saturation)
    return score


@pytest.mark.parametrize("query", ["rivers", "lake lake river", "压缩", "PYTHON", "nothing", "!"])
def test_scores_equal_the_definition(store, query):
    expected = [by_hand(query, document) for document in CORPUS]
    np.testing.assert_allclose(store.scores(query), expected, rtol=1e-5)
    np.testing.assert_allclose(store.score(query, CORPUS), expected, rtol=1e-5)
    outside = "a lake, two rivers"
    assert store.score(query, [outside])[0] == pytest.approx(by_hand(query, outside))


def test_known_share_of_a_query(store):
    assert store.known("rivers") == 1.0
    assert store.known("zzzz") == store.known("!") == 0.0
    # "lake" is cut into _lak, lake, ake_, all in two documents; "zz" is one gram that none has.
    own, unseen = 3 * math.log1p(3.5 / 2.5), math.log1p(5.5 / 0.5)
    assert store.known("lake zz") == pytest.approx(own / (own + unseen))


def test_search_equals_brute_force(worded):
    n = len(worded.index)
    options = SearchOptions(top_k=20, n_candidates=25, beta=0.5)
    weights = {"a": 0.2, "b": 0.1, "c": 0.3, "bm25": 0.4}
    everything = dataclasses.replace(options, top_k=n, n_candidates=n, explain=True)
    for query in ("river mountain database", "violin theory 17", "zzz"):
        all_hits = worded.search([query], everything, weights=weights)[0].hits
        scores = worded.index.lexical.scores(query)
        z = (scores - scores.mean()) / max(scores.std(), 1e-6)
        for hit in all_hits:
            row = worded.index.documents.rows([hit.doc_id])[0]
            lexical = hit.members[-1]
            assert lexical.member == "bm25"
            assert lexical.similarity == pytest.approx(float(scores[row]), abs=1e-5)
            assert lexical.standardised == pytest.approx(float(z[row]), abs=1e-4)
            total = sum(weights[m.member] * m.standardised for m in hit.members)
            assert hit.similarity == pytest.approx(total, abs=1e-4)
        few = worded.search([query], options, weights=weights)[0].hits
        assert [h.doc_id for h in few[:5]] == [h.doc_id for h in all_hits[:5]]


def test_words_bring_in_candidates_that_no_encoder_finds(worded, texts):
    """The number at the end of a text is one gram; encoders that ignore it see twenty words."""
    wanted = worded.search(["17"], weights={"bm25": 1.0}, top_k=1)[0].hits[0]
    assert wanted.document.text == texts[17]
    options = SearchOptions(top_k=1, n_candidates=1)
    both = worded.search(["17"], options, weights={"a": 0.01, "bm25": 0.99})[0].hits[0]
    assert both.doc_id == wanted.doc_id
    encoders = worded.search(["17"], options, weights={"a": 1.0})[0].hits[0]
    assert (
        encoders.doc_id
        == Retriever(worded.index)
        .search(["17"], options, weights={"a": 1.0, "bm25": 0.0})[0]
        .hits[0]
        .doc_id
    )


def test_rerank_scores_as_a_search(worded, located):
    query = "kernel of the forest engine"
    hits = worded.search([query], top_k=10)[0].hits
    texts = worded.rerank(query, [hit.document for hit in hits])
    rows = worded.rerank_ids(query, [hit.doc_id for hit in reversed(hits)])
    for ranking in (texts, rows):
        assert [hit.doc_id for hit in ranking.hits] == [hit.doc_id for hit in hits]
        np.testing.assert_allclose(
            [hit.score for hit in ranking.hits], [hit.score for hit in hits], rtol=1e-4
        )


def test_traces_tell_how_much_of_a_query_is_known(worded):
    known, unknown = worded.search(["river mountain", "zzzz"])
    assert known.traces["bm25"] == pytest.approx(1.0)
    assert unknown.traces["bm25"] == pytest.approx(100.0)
    trusting, doubting = worded.search(["river mountain", "zzzz"], temperature=1.0)
    assert doubting.weights["bm25"] < 1e-6 < trusting.weights["bm25"]


def test_views_are_what_a_search_says(worded, texts):
    spans = draw_spans(((i, uec.Document(str(i), t)) for i, t in enumerate(texts)), 5, 0)
    pool = np.random.default_rng(0).permutation(len(worded.index))
    views = view(worded, spans, pool, "kron")
    assert views.lexical
    n = len(pool)
    rankings = worded.search([s.text for s in spans], top_k=n, n_candidates=n, explain=True)
    for m, (span, ranking) in enumerate(zip(spans, rankings, strict=True)):
        rows = worded.index.documents.rows([hit.doc_id for hit in ranking.hits])
        columns = [int(np.flatnonzero(pool == row)[0]) for row in rows]
        says = [[member.standardised for member in hit.members] for hit in ranking.hits]
        np.testing.assert_allclose(views.mean[m, columns], says, atol=1e-4)
        rest = worded.rerank(span.text, [uec.Document("r", span.rest)], explain=True).hits[0]
        cloze = [member.standardised for member in rest.members]
        np.testing.assert_allclose(views.own_mean["cloze"][m], cloze, atol=1e-4)
    assert not views.variance[..., -1].any()


def test_the_lexical_member_is_trusted_no_more_than_the_best_encoder():
    ranks = {
        "quotation": np.full((99, 3), [0.5, 0.4, 0.99]),
        "cloze": np.full((99, 3), [0.2, 0.3, 0.4]),
    }
    wording = np.array([False, False, True])
    trust, free = log_trust(ranks, wording), log_trust(ranks)
    best = [log_odds(own)[:2].max() for own in ranks.values()]
    assert trust[2] == pytest.approx(sum(best))
    assert free[2] > trust[2] + 4
    assert list(free[:2]) == list(trust[:2])
    poor = {**ranks, "cloze": np.full((99, 3), [0.2, 0.3, 0.1])}
    assert log_trust(poor, wording)[2] < trust[2]


def test_skewed_scores_weigh_less():
    """Twins but for the unit of the second: its peaks are twice as many deviations high."""
    rng = np.random.default_rng(0)
    n, p = 400, 50
    own = {task: rng.normal(size=(n, 2)) + 2.0 for task in TASKS}
    mean = rng.normal(size=(n, p, 2))
    targets = rng.integers(0, p, n)
    mean[np.arange(n), targets] = own["quotation"]
    zeros = np.zeros((n, p, 2))
    views = Views(mean, zeros, own, dict.fromkeys(TASKS, zeros[:, 0]), targets, np.ones((n, 2)))
    unit = np.array([1.0, 2.0])
    skewed = dataclasses.replace(
        views,
        mean=mean * unit,
        own_mean={task: values * unit for task, values in own.items()},
        lexical=True,
    )
    plain = learn(dataclasses.replace(views, lexical=True), ["a", "bm25"], {})
    other = learn(skewed, ["a", "bm25"], {})
    odds = [float(np.diff(c.log_prior)[0]) for c in (plain, other)]
    assert odds[0] - odds[1] == pytest.approx(np.log(2), abs=1e-6)
    # So the fused ranking is the same.
    assert other.report["ensemble_mrr"] == pytest.approx(plain.report["ensemble_mrr"], abs=0.02)


def test_calibration_says_whether_words_pay(ensemble, located, tmp_path):
    build_index(ensemble, located, tmp_path / "index", bm25=True)
    calibration = calibrate_index(tmp_path / "index", n_spans=60)
    assert len(calibration.log_prior) == 4
    assert set(calibration.report["members"]) == {"a", "b", "c", "bm25"}
    paid = calibration.report["lexical"]
    assert 0 < paid["mrr_without"] < 1 and 0 <= paid["p_value"] <= 1
    again = Retriever.open(tmp_path / "index")
    ranking = again.search(["river"])[0]
    assert set(ranking.weights) == {"a", "b", "c", "bm25"}
    assert ranking.hits[0].probability is not None


def test_what_cannot_be(ensemble, located, tmp_path, worded):
    named = dataclasses.replace(
        ensemble,
        members=(
            dataclasses.replace(
                ensemble.members[0],
                spec=dataclasses.replace(ensemble.members[0].spec, name="bm25"),
            ),
        ),
    )
    with pytest.raises(InputError, match="named 'bm25' already"):
        build_index(named, located, tmp_path / "x", bm25=True)
    wordless = [("line 1", uec.Document("d", "…"))]
    with pytest.raises(InputError, match="no document of the corpus has a letter"):
        build_index(ensemble, wordless, tmp_path / "x", bm25=True)
    with pytest.raises(InputError, match="average fusion has no place for bm25"):
        worded.search(["river"], fusion="average")
