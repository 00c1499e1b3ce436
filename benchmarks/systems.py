"""The systems that are compared, each a function from queries to a run.

Every fused system is the product itself (`Retriever.search`) with other options or another
calibration; only the baselines that the product does not offer are written here.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit

from benchmarks.datasets import RetrievalSet
from benchmarks.measures import Run
from uec.build import build_index
from uec.calibration import Calibration
from uec.demo import RRF_K
from uec.ensemble import Ensemble
from uec.records import LEXICAL, Query, Ranking, SearchOptions
from uec.retriever import Retriever

DEPTH = 100
"""Documents kept a query: enough for Recall@100."""

FUSION_DEPTH = 1000
"""Documents of each member that a late fusion sees."""

GRID_STEP = 0.1

System = Callable[[Sequence[Query]], Run]


def systems(retriever: Retriever, calibration: Calibration) -> dict[str, System]:
    """Every system that an index can be asked for, by name.

    Args:
        retriever: of an index whose ensemble is not calibrated.
        calibration: what `uec.calibrating.calibrate` made of it.
    """
    names = retriever.ensemble.names
    equal = Calibration.uniform(len(names))
    plain = calibrated(retriever, replace(equal, beta=0.0))
    paper = calibrated(retriever, replace(equal, temperature=1.0, beta=1.0))
    uec = calibrated(retriever, calibration)

    def other(**changes: Any) -> System:
        return _searched(calibrated(retriever, replace(calibration, **changes)))

    @cache
    def lists(queries: tuple[Query, ...]) -> list[Run]:
        return Exhaustive(plain, queries).lists(FUSION_DEPTH)

    table: dict[str, System] = {name: _searched(plain, weights={name: 1.0}) for name in names}
    table |= {
        "uniform-average": lambda queries: uniform_average(plain, queries),
        "uniform-fusion": _searched(plain),
        "rrf": lambda queries: late_fusion(lists(tuple(queries)), _reciprocal_rank),
        "dbsf": lambda queries: late_fusion(lists(tuple(queries)), _three_sigma),
        "rsf": lambda queries: late_fusion(lists(tuple(queries)), _min_max),
    }
    if len(set(retriever.ensemble.dimensions)) == 1:
        published: dict[str, Any] = {"fusion": "average", "posterior": "diag"}
        table |= {
            "paper": _searched(paper, **published),
            "paper, similarity off": _searched(paper, **published, beta=0.0),
            "paper, coefficients off": _searched(paper, **published, temperature=np.inf),
        }
    table |= {
        "traces, diagonal": _searched(paper, posterior="diag", beta=0.0),
        "traces, Kronecker": _searched(paper, beta=0.0),
        "uec": _searched(uec),
        "uec, peaks off": other(peaks=None),
        "uec, correlation off": other(log_prior=trusted(calibration)),
        "uec, quotation alone": other(log_prior=trusted(calibration, ["quotation"])),
        "uec, cloze alone": other(log_prior=trusted(calibration, ["cloze"])),
        "uec, beta 0": _searched(uec, beta=0.0),
        "uec, beta 0.1": _searched(uec, beta=0.1),
        "uec, beta 1": _searched(uec, beta=1.0),
        "uec, T = 4": _searched(uec, temperature=4.0),
        "uec, T = 1": _searched(uec, temperature=1.0),
        "uec, T = 1, diagonal": _searched(uec, temperature=1.0, posterior="diag"),
    }
    return table


def worded_systems(retriever: Retriever, calibration: Calibration) -> dict[str, System]:
    """Those of an index that has the words of its corpus too; names and arguments as above."""
    names = retriever.index.names
    plain = calibrated(retriever, Calibration.uniform(len(names)))
    return {
        "bm25": _searched(plain, weights={LEXICAL: 1.0}),
        "uniform-fusion + bm25": _searched(plain),
        "uec + bm25": _searched(calibrated(retriever, calibration)),
        "uec + bm25, peaks off": _searched(calibrated(retriever, replace(calibration, peaks=None))),
    }


@contextmanager
def opened(ensemble: Ensemble, dataset: RetrievalSet, *, bm25: bool = False) -> Iterator[Retriever]:
    """An index of one set, not calibrated, for the length of a with block.

    Opening loads the encoders again; the retriever has the ensemble's own, which may remember.
    """
    with tempfile.TemporaryDirectory() as folder:
        located = ((f"{dataset.name}:{i}", d) for i, d in enumerate(dataset.corpus, 1))
        build_index(ensemble, located, Path(folder) / "index", bm25=bm25)
        retriever = Retriever.open(Path(folder) / "index", verify=False)
        uniform = Calibration.uniform(len(retriever.index.names))
        retriever.ensemble = retriever.index.ensemble = replace(ensemble, calibration=uniform)
        yield retriever


def calibrated(retriever: Retriever, calibration: Calibration) -> Retriever:
    """The same index and encoders with another calibration."""
    other = copy.copy(retriever)
    other.ensemble = replace(retriever.ensemble, calibration=calibration)
    return other


def trusted(calibration: Calibration, tasks: Sequence[str] = ("quotation", "cloze")) -> np.ndarray:
    """Log prior by the odds of some tasks, not decorrelated; (k,)."""
    assert calibration.report is not None
    members = calibration.report["members"].values()
    return np.array(
        [sum(float(logit(member[f"{task}_mrr"])) for task in tasks) for member in members]
    )


def _searched(retriever: Retriever, **changes: Any) -> System:
    def run(queries: Sequence[Query]) -> Run:
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
    return _best(retriever, queries, averaged @ documents.T)


def late_fusion(lists: list[Run], normalise: Callable[[np.ndarray], np.ndarray]) -> Run:
    """Sum over members of the normalised scores in their own lists, best first.

    The rules are those of mteb's hybrid search: reciprocal rank, distribution-based and relative
    score fusion.
    """
    run = {}
    for query_id in lists[0]:
        fused: dict[str, float] = {}
        for own in lists:
            scores = normalise(np.array(list(own[query_id].values())))
            for doc_id, score in zip(own[query_id], scores.tolist(), strict=True):
                fused[doc_id] = fused.get(doc_id, 0.0) + score
        ranked = sorted(fused.items(), key=lambda item: (-item[1], item[0]))
        run[query_id] = dict(ranked[:DEPTH])
    return run


def _reciprocal_rank(scores: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (RRF_K + np.arange(1, len(scores) + 1)))


def _three_sigma(scores: np.ndarray) -> np.ndarray:
    low, width = scores.mean() - 3 * scores.std(), 6 * scores.std()
    return np.asarray((scores - low) / max(width, 1e-9))


def _min_max(scores: np.ndarray) -> np.ndarray:
    return np.asarray((scores - scores.min()) / max(np.ptp(scores), 1e-9))


class Exhaustive:
    """Fusion of some queries over all documents by any weights; beta 0, encoders only.

    Args:
        retriever: of the index.
        queries: n of them.
    """

    def __init__(self, retriever: Retriever, queries: Sequence[Query]) -> None:
        weighed = retriever.weigh([query.text for query in queries])
        index = retriever.index
        everything = index.store.fetch(np.arange(len(index)))
        self._retriever = retriever
        self._queries = queries
        self._standardised = [
            (
                (member.mean @ everything[:, corpus.columns].T - weighed.centre[:, k : k + 1])
                / weighed.spread[:, k : k + 1]
            ).astype(np.float32)
            for k, (member, corpus) in enumerate(zip(weighed.members, index.corpora, strict=True))
        ]

    def run(self, weights: Sequence[float] | np.ndarray, depth: int = 10) -> Run:
        """The best documents of each query under some weights.

        Args:
            weights: (k,) for all queries, or (n, k).
            depth: documents a query.
        """
        columns = np.asarray(weights, np.float32).T
        fused = np.zeros_like(self._standardised[0])
        for column, own in zip(columns, self._standardised, strict=True):
            fused += column[..., None] * own if column.ndim else column * own
        return _best(self._retriever, self._queries, fused, depth)

    def lists(self, depth: int) -> list[Run]:
        """Each member's own best documents, best first."""
        return [_best(self._retriever, self._queries, own, depth) for own in self._standardised]

    def peaks(self) -> np.ndarray:
        """(n, k) largest standardised similarity of each member."""
        return np.stack([own.max(axis=1) for own in self._standardised], axis=1)


def weight_grid(n_members: int) -> Iterator[tuple[float, ...]]:
    """All weightings in steps of `GRID_STEP`; for an oracle that picks the best by labels."""
    for parts in _simplex(n_members, round(1 / GRID_STEP)):
        yield tuple(part * GRID_STEP for part in parts)


def _simplex(parts: int, total: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for others in _simplex(parts - 1, total - first):
            yield (first, *others)


def _best(
    retriever: Retriever, queries: Sequence[Query], scores: np.ndarray, depth: int = DEPTH
) -> Run:
    depth = min(depth, scores.shape[1])
    every = retriever.index.documents.ids(np.arange(scores.shape[1]))
    run = {}
    for query, row in zip(queries, scores, strict=True):
        best = np.argpartition(-row, depth - 1)[:depth]
        best = best[np.argsort(-row[best], kind="stable")]
        run[query.query_id] = {every[n]: float(row[n]) for n in best.tolist()}
    return run
