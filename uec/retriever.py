"""Text to ranked hits: the whole method on one screen.

    n queries ─encode─> k members × n Gaussians          mean (n, d_k), trace (n,)
              ─weigh──> weights (n, k)                   prior_k exp(-r_k / T), normalised
              ─seek───> fused query vectors (n, sum d_k)  -> candidates (n, c) by inner product
              ─rerank─> mean and variance of each similarity (c,) -> probit score -> Ranking

A `Retriever` holds no state that a search changes, so one instance serves many threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from uec import fusion, weighing
from uec.encoders import Progress
from uec.errors import InputError
from uec.fusion import Fused, LexicalScores, MemberCandidates, MemberQuery
from uec.gaussian import SketchedGaussian
from uec.index import Index
from uec.records import LEXICAL, Document, Hit, MemberHit, Ranking, SearchOptions
from uec.relevance import DEPTH, RelevanceModel
from uec.similarity import probit
from uec.weighing import WeighedQueries

DEFAULTS = SearchOptions()


class Retriever:
    """Searches one index.

    Example:
        >>> import uec
        >>> retriever = uec.Retriever.open("my-index")          # doctest: +SKIP
        >>> retriever.search(["how do I parse JSON?"])[0].hits  # doctest: +SKIP
    """

    def __init__(self, index: Index) -> None:
        """Search an index that is open already."""
        self.index = index
        self.ensemble = index.ensemble

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Retriever:
        """Open an index folder; errors as for `Index.open`."""
        return cls(Index.open(path, verify=verify))

    def search(
        self, queries: Sequence[str], options: SearchOptions = DEFAULTS, **changes: Any
    ) -> list[Ranking]:
        """Find the best documents for each query.

        Args:
            queries: n texts.
            options: how to search.
            **changes: single fields of `options` to replace, such as ``top_k=20``.

        Returns:
            n rankings, in the order of the queries.

        Raises:
            InputError: an option is out of range or a query is not text.
            EmbeddingError: a member gave a vector that cannot be compared.
        """
        options = self._checked(options, changes)
        if not queries:
            return []
        timings: dict[str, float] = {}
        return self.rank(self.weigh(queries, options, timings), options, timings)

    def rank(
        self,
        weighed: WeighedQueries,
        options: SearchOptions = DEFAULTS,
        timings: dict[str, float] | None = None,
    ) -> list[Ranking]:
        """Find the best documents for queries weighed already; the second half of `search`.

        Args:
            weighed: from `weigh` or `reweigh`, with the same `posterior`.
            options: how to search; those that weigh have done their work.
            timings: receives the milliseconds of the stages "retrieve" and "rerank".
        """
        timings = {} if timings is None else timings
        with _timed(timings, "retrieve"):
            rows = weighing.candidates(
                self.index, weighed, self._n_candidates(options), options.fusion == "average"
            )
        relevance = self._relevance(options)
        threshold = self._threshold(options, relevance)
        with _timed(timings, "rerank"):
            rankings = [
                self._rank_rows(weighed, n, rows[n], options, relevance)
                for n in range(len(weighed.texts))
            ]
        return [
            replace(ranking, timings_ms=timings, abstained=_abstains(ranking, threshold))
            for ranking in rankings
        ]

    def reweigh(self, weighed: WeighedQueries, options: SearchOptions) -> WeighedQueries:
        """The same queries with the weights of other options; nothing is encoded again."""
        return weighing.reweigh(self.index, self.ensemble.calibration, weighed, options)

    def rerank(
        self,
        query: str,
        documents: Sequence[Document],
        options: SearchOptions = DEFAULTS,
        **changes: Any,
    ) -> Ranking:
        """Order given documents by the score that a search would give them.

        Args:
            query: the query.
            documents: c documents with distinct identifiers, in the index or not; embedded now.
            options: as for `search`; `top_k` still limits the hits.
            **changes: single fields of `options` to replace.

        Raises:
            InputError: no documents, an identifier twice, or an option out of range.
        """
        options = self._checked(options, changes)
        ids = [document.doc_id for document in documents]
        _check_rerank(ids, options)
        timings: dict[str, float] = {}
        weighed = self.weigh([query], options, timings)
        with _timed(timings, "encode"):
            encoded = self.ensemble.encode(
                [document.passage for document in documents], "document", kinds=[options.posterior]
            )
        with _timed(timings, "rerank"):
            lexical = self._lexical_scores(weighed, 0, [d.passage for d in documents])
            gaussians = [member.gaussians[options.posterior] for member in encoded]
            candidates = [
                MemberCandidates(g.mean, g.trace, g.profile_moment, None) for g in gaussians
            ]
            ranking = self._rank(
                weighed,
                0,
                candidates,
                lexical,
                options,
                lambda rows: [ids[row] for row in rows],
                lambda rows: [documents[row] for row in rows],
            )
        return replace(ranking, timings_ms=timings)

    def rerank_ids(
        self,
        query: str,
        doc_ids: Sequence[str],
        options: SearchOptions = DEFAULTS,
        **changes: Any,
    ) -> Ranking:
        """Order documents of the index by the score that a search would give them.

        Args:
            query: the query.
            doc_ids: c distinct identifiers; nothing but the query is embedded.
            options: as for `search`; `top_k` still limits the hits.
            **changes: single fields of `options` to replace.

        Raises:
            InputError: no identifiers, one twice, or an option out of range.
            NotFoundError: names identifiers that no document has.
        """
        options = self._checked(options, changes)
        _check_rerank(doc_ids, options)
        rows = self.index.documents.rows(doc_ids)
        timings: dict[str, float] = {}
        weighed = self.weigh([query], options, timings)
        with _timed(timings, "rerank"):
            ranking = self._rank_rows(weighed, 0, rows, options)
        return replace(ranking, timings_ms=timings)

    def weigh(
        self,
        queries: Sequence[str],
        options: SearchOptions = DEFAULTS,
        timings: dict[str, float] | None = None,
        progress: Progress | None = None,
    ) -> WeighedQueries:
        """Encode queries with every member and weigh the members for each.

        Args:
            queries: n texts.
            options: `posterior`, `temperature`, `fusion` and `weights` count.
            timings: receives the milliseconds of the stages "encode" and "weigh".
            progress: called with the texts done by each member.
        """
        timings = {} if timings is None else timings
        with _timed(timings, "encode"):
            members = self.ensemble.encode(
                queries, "query", kinds=[options.posterior], progress=progress
            )
        with _timed(timings, "weigh"):
            return weighing.weigh(self.index, self.ensemble.calibration, queries, members, options)

    def _lexical_scores(
        self, weighed: WeighedQueries, n: int, passages: Sequence[str]
    ) -> LexicalScores | None:
        """What the lexical member says of texts that need not be in the index."""
        if weighed.lexical is None or self.index.lexical is None:
            return None
        scores = self.index.lexical.score(weighed.texts[n], passages)
        return replace(weighed.lexical[n], scores=scores)

    def _rank_rows(
        self,
        weighed: WeighedQueries,
        n: int,
        rows: Int[np.ndarray, " c"],
        options: SearchOptions,
        relevance: RelevanceModel | None = None,
    ) -> Ranking:
        documents = self.index.documents
        lexical = None
        if weighed.lexical is not None:
            own = weighed.lexical[n]
            lexical = replace(own, scores=own.scores[rows])
        return self._rank(
            weighed,
            n,
            self.index.candidates(rows, options.posterior),
            lexical,
            options,
            lambda picked: documents.ids(rows[picked]),
            lambda picked: documents.get(rows[picked]),
            relevance,
        )

    def _rank(
        self,
        weighed: WeighedQueries,
        n: int,
        candidates: list[MemberCandidates],
        lexical: LexicalScores | None,
        options: SearchOptions,
        ids: Callable[[np.ndarray], list[str]],
        documents: Callable[[np.ndarray], list[Document]],
        relevance: RelevanceModel | None = None,
    ) -> Ranking:
        """Score the candidates of query n and keep the best."""
        queries = self._as_members_see_it(weighed, n, options)
        if options.fusion == "average":
            fused = fusion.average(queries, candidates, weighed.weights[n])
        else:
            fused = fusion.concat(queries, candidates, weighed.weights[n], lexical)
        score = probit(fused.mean, fused.variance, self._beta(options))
        # The model of relevance compares the hits with those that follow them.
        best = _best(score, max(options.top_k, DEPTH), ids)
        likely = None if relevance is None else relevance.probabilities(score[best]).tolist()
        best = best[: options.top_k]
        hits = tuple(
            Hit(
                doc_id=document.doc_id,
                score=float(score[row]),
                similarity=float(fused.mean[row]),
                variance=float(fused.variance[row]),
                document=document,
                probability=None if likely is None else likely[rank],
                members=self._explain(fused, candidates, row, options) if options.explain else (),
            )
            for rank, (row, document) in enumerate(zip(best.tolist(), documents(best), strict=True))
        )
        names = self.index.names
        return Ranking(
            query=weighed.texts[n],
            hits=hits,
            weights=dict(zip(names, weighed.weights[n].tolist(), strict=True)),
            traces=dict(zip(names, weighed.traces[n].tolist(), strict=True)),
            truncated=tuple(
                name
                for name, member in zip(self.ensemble.names, weighed.members, strict=True)
                if member.truncated[n]
            ),
        )

    def _as_members_see_it(
        self, weighed: WeighedQueries, n: int, options: SearchOptions
    ) -> list[MemberQuery]:
        one = slice(n, n + 1)
        views = []
        for k, (member, encoded) in enumerate(
            zip(self.ensemble.members, weighed.members, strict=True)
        ):
            gaussian = encoded.gaussians[options.posterior]
            posterior = member.posteriors[options.posterior]
            full = self.index.has_full_variance
            views.append(
                MemberQuery(
                    SketchedGaussian(gaussian.mean[one], gaussian.trace[one], gaussian.profile),
                    posterior.variance(encoded.encoding.rows(one)) if full else None,
                    float(weighed.centre[n, k]),
                    float(weighed.spread[n, k]),
                )
            )
        return views

    def _explain(
        self, fused: Fused, candidates: list[MemberCandidates], row: int, options: SearchOptions
    ) -> tuple[MemberHit, ...]:
        traces = [
            float(member.scale.calibrate(own.trace[[row]], options.posterior, "document")[0])
            for member, own in zip(self.ensemble.members, candidates, strict=True)
        ]
        if self.index.lexical is not None:
            traces.append(0.0)
        similarities, standardised = fused.similarities[row], fused.standardised[row]
        return tuple(
            MemberHit(*said)
            for said in zip(
                self.index.names, similarities.tolist(), standardised.tolist(), traces, strict=True
            )
        )

    def _beta(self, options: SearchOptions) -> float:
        return self.ensemble.calibration.beta if options.beta is None else options.beta

    def _n_candidates(self, options: SearchOptions) -> int:
        """Candidates to look at: fewer than asked for where their order is final already.

        Inner products with the fused query order documents as the score does, unless the variance
        moderates it, vectors are averaged or words join them. Then the hits and what the model of
        relevance reads are enough, and as many again for documents that tie.
        """
        if self._beta(options) > 0 or options.fusion == "average" or self.index.lexical is not None:
            return options.n_candidates
        return min(options.n_candidates, 2 * max(options.top_k, DEPTH))

    def _relevance(self, options: SearchOptions) -> RelevanceModel | None:
        """The index's model of relevance, if these options give the scores it was fitted on."""
        calibration = self.ensemble.calibration
        if calibration.relevance is None or calibration.report is None or len(self.index) < 2:
            return None
        # The posterior shapes scores through the temperature and beta only.
        idle = calibration.temperature == np.inf and calibration.beta == 0
        as_fitted = (
            options.fusion == "concat"
            and options.weights is None
            and options.temperature in (None, calibration.temperature)
            and options.beta in (None, calibration.beta)
            and (idle or options.posterior == calibration.report["posterior"])
        )
        return calibration.relevance if as_fitted else None

    def _threshold(self, options: SearchOptions, relevance: RelevanceModel | None) -> float | None:
        """The probability that a best hit must exceed; None where every query is answered."""
        if options.max_risk is None:
            return None
        abstention = self.ensemble.calibration.abstention
        if relevance is None or abstention is None:
            raise InputError(
                "max_risk needs probabilities: an index calibrated by this version, searched with "
                "the fusion, weights, temperature and beta of its calibration; run `uec calibrate`"
            )
        return abstention.threshold(options.max_risk)

    def _checked(self, options: SearchOptions, changes: Mapping[str, Any]) -> SearchOptions:
        options = replace(options, **changes)
        if options.fusion == "average" and self.index.lexical is not None:
            raise InputError(f"average fusion has no place for {LEXICAL}; use concat")
        dimensions = dict(zip(self.ensemble.names, self.ensemble.dimensions, strict=True))
        if options.fusion == "average" and len(set(dimensions.values())) > 1:
            listed = ", ".join(f"{name} {d}" for name, d in dimensions.items())
            raise InputError(
                f"average fusion needs members of one dimension; got {listed}; use concat"
            )
        return options


def _abstains(ranking: Ranking, threshold: float | None) -> bool:
    if threshold is None:
        return False
    probability = ranking.hits[0].probability
    assert probability is not None
    return probability <= threshold


def _check_rerank(ids: Sequence[str], options: SearchOptions) -> None:
    if options.max_risk is not None:
        raise InputError("max_risk needs a search: candidates of a rerank have no probabilities")
    if not ids or len(set(ids)) < len(ids):
        raise InputError("rerank needs at least one document, and distinct document ids")


def _best(
    score: Float[np.ndarray, " c"], top_k: int, ids: Callable[[np.ndarray], list[str]]
) -> Int[np.ndarray, " b"]:
    """Positions of the best scores, best first, equal scores by document id.

    Only candidates that can make the list have their ids looked up: the top k and whatever ties
    with the last of them.
    """
    k = min(top_k, len(score))
    last = np.partition(score, len(score) - k)[len(score) - k]
    contenders = np.flatnonzero(score >= last)
    keyed = sorted(zip(-score[contenders], ids(contenders), contenders.tolist(), strict=True))
    return np.array([position for _, _, position in keyed[:k]], dtype=np.int64)


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[stage] = timings.get(stage, 0.0) + 1000 * (time.perf_counter() - start)
