"""Search end to end on a small index of real parts: against brute force, and as laws."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import uec
from uec.build import build_index
from uec.calibration import Calibration
from uec.ensemble import Ensemble
from uec.errors import InputError, NotFoundError
from uec.retriever import Retriever, SearchOptions
from uec.similarity import probit

QUERIES = ["river mountain database", "violin theory", "kernel of the forest engine", "zzz 我"]


def ids(ranking) -> list[str]:
    return [hit.doc_id for hit in ranking.hits]


def brute_force(retriever, query: str, options: SearchOptions) -> list[tuple[float, str]]:
    """Score every document by the formulas, with dense variances and loops."""
    weighed = retriever.weigh([query], options)
    index, kind = retriever.index, options.posterior
    rows = np.arange(len(index))
    candidates = index.candidates(rows, kind)
    scored = []
    for row, doc_id in enumerate(index.documents.ids(rows)):
        mean = variance = 0.0
        for k, member in enumerate(weighed.members):
            q, c = member.gaussians[kind], candidates[k]
            own = float(np.dot(q.mean[0].astype(float), c.mean[row].astype(float)))
            mean += weighed.weights[0, k] * (own - weighed.centre[0, k]) / weighed.spread[0, k]
            vq, vc = q.trace[0] * q.profile, c.trace[row] * q.profile
            own_variance = (q.mean[0] ** 2 * vc + vq * c.mean[row] ** 2 + vq * vc).sum()
            variance += (weighed.weights[0, k] / weighed.spread[0, k]) ** 2 * own_variance
        scored.append((float(probit(np.array(mean), np.array(variance))), doc_id))
    return sorted(scored, key=lambda item: (-item[0], item[1]))


@pytest.mark.parametrize("posterior", ["diag", "kron"])
def test_search_equals_brute_force(retriever, posterior):
    options = SearchOptions(top_k=20, posterior=posterior, beta=1.0)
    for query in QUERIES:
        ranking = retriever.search([query], options)[0]
        expected = brute_force(retriever, query, options)[:20]
        assert ids(ranking) == [doc_id for _, doc_id in expected]
        np.testing.assert_allclose(
            [hit.score for hit in ranking.hits], [score for score, _ in expected], rtol=1e-4
        )


def test_a_batch_equals_its_queries_one_by_one(retriever):
    together = retriever.search(QUERIES)
    for query, ranking in zip(QUERIES, together, strict=True):
        alone = retriever.search([query])[0]
        assert ids(alone) == ids(ranking)
        assert alone.weights == pytest.approx(ranking.weights)


def test_the_first_k_of_2k_hits_are_the_k_hits(retriever):
    for query in QUERIES:
        short, long = (retriever.search([query], top_k=k)[0] for k in (10, 20))
        assert ids(long)[:10] == ids(short)


def test_one_member_alone_gives_its_own_cosine_ranking(retriever):
    index = retriever.index
    rows = np.arange(len(index))
    for k, name in enumerate(retriever.ensemble.names):
        ranking = retriever.search(QUERIES[:1], weights={name: 1.0}, beta=0.0, top_k=50)[0]
        query = retriever.weigh(QUERIES[:1]).members[k].mean[0]
        cosine = index.candidates(rows, "kron")[k].mean @ query
        expected = sorted(zip(-cosine, index.documents.ids(rows), strict=True))[:50]
        assert ids(ranking) == [doc_id for _, doc_id in expected]


def test_one_member_of_many_ranks_as_an_ensemble_of_one(ensemble, located, retriever, tmp_path):
    alone = Ensemble(ensemble.members[:1], Calibration.uniform(1))
    build_index(alone, located, tmp_path / "alone")
    single = Retriever.open(tmp_path / "alone")
    for query in QUERIES:
        of_many = retriever.search([query], weights={"a": 1.0})[0]
        of_one = single.search([query])[0]
        assert ids(of_many) == ids(of_one)
        assert [h.score for h in of_many.hits] == [h.score for h in of_one.hits]


def test_permuting_the_members_changes_no_hit(ensemble, located, retriever, tmp_path):
    turned = Ensemble(ensemble.members[::-1], Calibration.uniform(3))
    build_index(turned, located, tmp_path / "turned")
    other = Retriever.open(tmp_path / "turned")
    for query in QUERIES:
        one, two = retriever.search([query])[0], other.search([query])[0]
        assert ids(one) == ids(two)
        assert one.weights == pytest.approx(two.weights, rel=1e-5)


def test_permuting_the_documents_changes_no_hit(ensemble, located, retriever, tmp_path):
    build_index(ensemble, located[::-1], tmp_path / "reversed")
    other = Retriever.open(tmp_path / "reversed")
    for query in QUERIES:
        assert ids(retriever.search([query])[0]) == ids(other.search([query])[0])


def test_equal_documents_are_ordered_by_id(ensemble, tmp_path):
    documents = [(f"c:{i}", uec.Document(name, "river mountain")) for i, name in enumerate("qbzam")]
    build_index(ensemble, documents, tmp_path / "ties")
    ranking = Retriever.open(tmp_path / "ties").search(["river"], top_k=3)[0]
    assert ids(ranking) == ["a", "b", "m"]


def test_a_corpus_of_one_document(ensemble, tmp_path):
    build_index(ensemble, [("c:1", uec.Document("only", "a text"))], tmp_path / "one")
    ranking = Retriever.open(tmp_path / "one").search(["query"])[0]
    assert ids(ranking) == ["only"]
    assert np.isfinite(ranking.hits[0].score)


def test_full_variance_gives_the_sketch_ranking_under_the_kronecker_posterior(
    retriever, full_index_dir
):
    """There the sketch is exact; under the diagonal one it is close."""
    full = Retriever.open(full_index_dir)
    for query in QUERIES:
        sketch, dense = (r.search([query], posterior="kron")[0] for r in (retriever, full))
        assert ids(sketch) == ids(dense)
        for one, two in zip(sketch.hits, dense.hits, strict=True):
            assert one.variance == pytest.approx(two.variance, rel=1e-4)
        sketch, dense = (r.search([query], posterior="diag")[0] for r in (retriever, full))
        for one, two in zip(sketch.hits, dense.hits, strict=True):
            assert one.variance == pytest.approx(two.variance, rel=0.1)


def test_more_beta_moves_scores_towards_zero(retriever):
    plain, moderated = (retriever.search(QUERIES[:1], beta=b)[0] for b in (0.0, 5.0))
    assert [h.score for h in plain.hits] == [h.similarity for h in plain.hits]
    assert all(abs(h.score) < abs(h.similarity) for h in moderated.hits)


def test_weights_follow_the_traces(retriever):
    ranking = retriever.search(QUERIES[:1], temperature=0.5)[0]
    order = sorted(ranking.traces, key=ranking.traces.__getitem__)
    assert order == sorted(ranking.weights, key=lambda name: -ranking.weights[name])
    assert sum(ranking.weights.values()) == pytest.approx(1)
    even = retriever.search(QUERIES[:1], temperature=float("inf"))[0]
    assert list(even.weights.values()) == pytest.approx([1 / 3] * 3)


def test_explain_adds_up_to_the_similarity(retriever):
    ranking = retriever.search(QUERIES[:1], explain=True)[0]
    for hit in ranking.hits:
        total = sum(ranking.weights[m.member] * m.standardised for m in hit.members)
        assert hit.similarity == pytest.approx(total, rel=1e-6)


def test_rerank_of_indexed_texts_gives_the_search_order(retriever):
    found = retriever.search(QUERIES[:1], top_k=10)[0]
    documents = [hit.document for hit in reversed(found.hits)]
    ranking = retriever.rerank(QUERIES[0], documents)
    assert ids(ranking) == ids(found)
    np.testing.assert_allclose(
        [h.score for h in ranking.hits], [h.score for h in found.hits], rtol=1e-4
    )


def test_rerank_by_id_gives_the_search_scores_exactly(retriever):
    found = retriever.search(QUERIES[:1], top_k=10)[0]
    ranking = retriever.rerank_ids(QUERIES[0], [hit.doc_id for hit in reversed(found.hits)])
    assert ids(ranking) == ids(found)
    np.testing.assert_allclose(
        [h.score for h in ranking.hits], [h.score for h in found.hits], rtol=1e-6
    )
    with pytest.raises(NotFoundError, match="no document with id 'nobody'"):
        retriever.rerank_ids("a query", ["nobody"])
    with pytest.raises(InputError, match="distinct"):
        retriever.rerank_ids("a query", ["d1", "d1"])


def test_average_fusion_equals_the_paper_by_hand(ensemble, located, tmp_path):
    pair = Ensemble(ensemble.members[:2], Calibration.uniform(2))
    build_index(pair, located, tmp_path / "pair")
    retriever = Retriever.open(tmp_path / "pair")
    weighed = retriever.weigh(QUERIES[:1])
    query = sum(w * m.mean[0] for w, m in zip(weighed.weights[0], weighed.members, strict=True))
    rows = np.arange(len(retriever.index))
    blocks = retriever.index.candidates(rows, "kron")
    documents = (blocks[0].mean + blocks[1].mean) / 2
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    cosine = documents @ query / np.linalg.norm(query)
    expected = sorted(zip(-cosine, retriever.index.documents.ids(rows), strict=True))
    ranking = retriever.search(QUERIES[:1], fusion="average", beta=0.0, top_k=150)[0]
    assert ids(ranking) == [doc_id for _, doc_id in expected]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_k": 20, "n_candidates": 10}, "raise n_candidates"),
        ({"beta": -1.0}, "beta must be"),
        ({"beta": float("nan")}, "beta must be"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"fusion": "average"}, "one dimension"),
        ({"weights": {"nobody": 1.0}}, "weights name nobody"),
        ({"weights": {"a": -1.0}}, "weights must be"),
        ({"max_risk": 0.0}, "max_risk must be between"),
        ({"max_risk": 0.1}, "max_risk needs probabilities"),
    ],
)
def test_unusable_options(retriever, changes, message):
    with pytest.raises(InputError, match=message):
        retriever.search(["a query"], **changes)


def test_no_queries_no_rankings(retriever):
    assert retriever.search([]) == []


def test_options_have_a_field_for_every_change(retriever):
    with pytest.raises(TypeError):
        retriever.search(["a query"], top_q=3)
    assert {f.name for f in dataclasses.fields(SearchOptions)} >= {"top_k", "posterior", "beta"}


def test_beta_zero_looks_at_fewer_candidates_and_finds_the_same(retriever, texts):
    """The hits of the short list are those of an exhaustive rerank."""
    queries = texts[:20]
    options = {"top_k": 10, "beta": 0.0}
    short = retriever.search(queries, **options)
    everything = retriever.search(queries, **{**options, "top_k": len(retriever.index)})
    for few, all_ in zip(short, everything, strict=True):
        assert [h.doc_id for h in few.hits] == [h.doc_id for h in all_.hits[:10]]
        assert [h.score for h in few.hits] == pytest.approx([h.score for h in all_.hits[:10]])
    assert len(everything[0].hits) == len(retriever.index)
