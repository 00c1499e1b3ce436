"""The systems that are compared, each a function from an index and queries to a run.

Every fused system is the product itself (`Retriever.search`) with other options; only the baselines
that the product does not offer are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.measures import Run
from uec.records import Query, Ranking, SearchOptions
from uec.retriever import Retriever

DEPTH = 100
"""Documents kept a query: enough for Recall@100."""

RRF_K = 60
"""Constant of reciprocal rank fusion (Cormack et al. 2009, SIGIR)."""

System = Callable[[Retriever, Sequence[Query]], Run]


def systems(retriever: Retriever) -> dict[str, System]:
    """Every system that an index can be asked for, by name."""
    names = retriever.ensemble.names
    uniform = dict.fromkeys(names, 1.0)
    table: dict[str, System] = {name: _searched(weights={name: 1.0}, beta=0.0) for name in names}
    table["uniform-average"] = uniform_average
    table["uniform-fusion"] = _searched(weights=uniform, beta=0.0)
    table["rrf"] = reciprocal_rank_fusion
    table["uec-diag"] = _searched(posterior="diag", temperature=1.0)
    table["uec-kron"] = _searched(posterior="kron", temperature=1.0)
    table["uec"] = _searched()
    return table


def _searched(**changes: Any) -> System:
    def run(retriever: Retriever, queries: Sequence[Query]) -> Run:
        texts = [query.text for query in queries]
        rankings = retriever.search(texts, SearchOptions(top_k=DEPTH), **changes)
        return _as_run(queries, rankings)

    return run


def _as_run(queries: Sequence[Query], rankings: Sequence[Ranking]) -> Run:
    return {
        query.query_id: {hit.doc_id: hit.score for hit in ranking.hits}
        for query, ranking in zip(queries, rankings, strict=True)
    }


def uniform_average(retriever: Retriever, queries: Sequence[Query]) -> Run:
    """Raw vectors averaged on both sides, by brute force, over members of one dimension."""
    weighed = retriever.weigh([query.text for query in queries])
    index = retriever.index
    everything = index.store.fetch(np.arange(len(index)))
    width = retriever.ensemble.dimensions[0]
    usable = [k for k, d in enumerate(retriever.ensemble.dimensions) if d == width]
    documents = np.sum([everything[:, index.corpora[k].columns] for k in usable], axis=0)
    averaged = np.sum([weighed.members[k].mean for k in usable], axis=0)
    similarities = averaged @ documents.T
    run = {}
    for query, row in zip(queries, similarities, strict=True):
        best = np.argsort(-row, kind="stable")[:DEPTH]
        ids = index.documents.ids(best)
        run[query.query_id] = dict(zip(ids, row[best].tolist(), strict=True))
    return run


def reciprocal_rank_fusion(retriever: Retriever, queries: Sequence[Query]) -> Run:
    """Sum over members of ``1 / (60 + rank)`` in their own rankings of 1000."""
    texts = [query.text for query in queries]
    fused: dict[str, dict[str, float]] = {query.query_id: {} for query in queries}
    for name in retriever.ensemble.names:
        options = SearchOptions(top_k=1000, weights={name: 1.0}, beta=0.0)
        for query, ranking in zip(queries, retriever.search(texts, options), strict=True):
            scores = fused[query.query_id]
            for rank, hit in enumerate(ranking.hits, 1):
                scores[hit.doc_id] = scores.get(hit.doc_id, 0.0) + 1.0 / (RRF_K + rank)
    return {
        query_id: dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:DEPTH])
        for query_id, scores in fused.items()
    }
