"""n queries to the weights of m members: the first half of a search.

    texts ─encode─> k encoders × n Gaussians, and the scores of the lexical member
          ─weigh──> prior_m exp(-r_m / T)                   weights before anything is found
          ─sound──> the best documents by these weights     m peaks a query
          ─weigh──> prior_m exp(-r_m / T + evidence_m)      the weights

A member's *peak* is the largest of its standardised similarities of a query with the documents. It
stands out where the member found something and drops where it does not understand the query: a
language it never learnt, a topic that is not there. Its *evidence* is the peak against those of the
corpus's own text, learnt by `uec.trust`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from uec import fusion
from uec.calibration import Calibration
from uec.ensemble import MemberEncoding
from uec.fusion import LexicalScores
from uec.index import Index
from uec.records import SearchOptions
from uec.weights import member_weights, named_weights

LEAST_KNOWN = 0.01
"""Floor of the share of a query that the corpus knows, so that its inverse stays finite."""

PEAK_DEPTH = 100
"""Documents that peaks are looked for among. On cross-lingual questions a hundred gave the ranking
that all documents give; twenty cost up to .02 nDCG@10."""


@dataclass(frozen=True, slots=True)
class WeighedQueries:
    """n queries, encoded and weighed: everything that candidates are scored against.

    Attributes:
        texts: the queries.
        members: one encoding for each of the k encoders.
        weights: (n, m), the lexical member last where the index has one.
        traces: (n, m) calibrated.
        centre: (n, k) mean of each encoder's similarity over the corpus.
        spread: (n, k) its standard deviation.
        lexical: scores of all N documents, one entry a query; None without a lexical member.
    """

    texts: Sequence[str]
    members: list[MemberEncoding]
    weights: Float[np.ndarray, "n m"]
    traces: Float[np.ndarray, "n m"]
    centre: Float[np.ndarray, "n k"]
    spread: Float[np.ndarray, "n k"]
    lexical: list[LexicalScores] | None = None


def weigh(
    index: Index,
    calibration: Calibration,
    queries: Sequence[str],
    members: list[MemberEncoding],
    options: SearchOptions,
) -> WeighedQueries:
    """Weigh queries that the encoders have read.

    Args:
        index: whose documents are asked for.
        calibration: prior, temperature and scale of the peaks.
        queries: n texts.
        members: their encodings.
        options: `posterior`, `temperature`, `fusion` and `weights` count.
    """
    traces = np.stack([m.calibrated[options.posterior] for m in members], axis=1)
    pairs = list(zip(members, index.corpora, strict=True))
    # Double precision: evidence must not depend on the size of the batch.
    centre = np.stack([m.mean.astype(np.float64) @ corpus.mean for m, corpus in pairs], axis=1)
    spread = np.stack([fusion.spread_of(m.mean, corpus.covariance) for m, corpus in pairs], axis=1)
    lexical = None
    if (store := index.lexical) is not None:
        lexical = [fusion.scores_of(store.scores(query)) for query in queries]
        unknown = [1 / max(store.known(query), LEAST_KNOWN) for query in queries]
        traces = np.column_stack([traces, unknown])
    unweighed = WeighedQueries(queries, members, traces, traces, centre, spread, lexical)
    return reweigh(index, calibration, unweighed, options)


def reweigh(
    index: Index, calibration: Calibration, weighed: WeighedQueries, options: SearchOptions
) -> WeighedQueries:
    """The same queries with the weights of other options; nothing is encoded again."""
    if options.weights is not None:
        weights = named_weights(options.weights, index.names, len(weighed.texts))
        return replace(weighed, weights=weights)
    prior = calibration.log_prior
    temperature = calibration.temperature if options.temperature is None else options.temperature
    weighed = replace(weighed, weights=member_weights(weighed.traces, prior, temperature))
    # Averaged vectors have no similarities of their own to peak.
    if calibration.peaks is None or options.fusion == "average":
        return weighed
    evidence = calibration.peaks.evidence(peaks(index, weighed))
    return replace(weighed, weights=member_weights(weighed.traces, prior, temperature, evidence))


def peaks(index: Index, weighed: WeighedQueries) -> Float[np.ndarray, "n m"]:
    """Largest standardised similarity of each member, (n, m).

    Of an encoder among the `PEAK_DEPTH` best documents by the weights so far, of the lexical member
    among all.
    """
    _, rows = index.store.search(fused_queries(weighed), PEAK_DEPTH)
    highest = np.empty(weighed.traces.shape)
    for n, own in enumerate(rows):
        vectors = index.store.fetch(own)
        for k, (member, corpus) in enumerate(zip(weighed.members, index.corpora, strict=True)):
            largest = (vectors[:, corpus.columns] @ member.mean[n].astype(np.float64)).max()
            highest[n, k] = (largest - weighed.centre[n, k]) / weighed.spread[n, k]
    if weighed.lexical is not None:
        highest[:, -1] = [own.standardised.max() for own in weighed.lexical]
    return highest


def fused_queries(weighed: WeighedQueries, average: bool = False) -> Float[np.ndarray, "n total"]:
    """Vectors whose inner product with an index row orders documents as the fused mean does.

    Args:
        weighed: n queries.
        average: whether vectors are averaged. Then the fused query stands in every block, so that
            the product is with the sum of a document's means; their normalisation waits for the
            rerank.

    Returns:
        (n, sum of d_k); the lexical member is not in them.
    """
    means = [member.mean for member in weighed.members]
    weights = weighed.weights[:, : len(means)]
    if average:
        fused = sum(w[:, None] * m for w, m in zip(weights.T, means, strict=True))
        return np.tile(fused, len(means)).astype(np.float32)
    scales = weights / weighed.spread
    blocks = [s[:, None] * m for s, m in zip(scales.T, means, strict=True)]
    return np.concatenate(blocks, axis=1).astype(np.float32)


def candidates(
    index: Index, weighed: WeighedQueries, n_candidates: int, average: bool
) -> list[Int[np.ndarray, " c"]]:
    """Rows to score for each query: the encoders' best and the lexical member's, none twice."""
    _, rows = index.store.search(fused_queries(weighed, average), n_candidates)
    if weighed.lexical is None:
        return list(rows)
    own = [_largest(lexical.scores, n_candidates) for lexical in weighed.lexical]
    used = weighed.weights[:, -1] > 0
    return [np.union1d(a, b) if yes else a for a, b, yes in zip(rows, own, used, strict=True)]


def _largest(scores: Float[np.ndarray, " N"], n: int) -> Int[np.ndarray, " c"]:
    """Positions of the n largest scores, in no order."""
    return np.argpartition(-scores, n - 1)[:n] if n < len(scores) else np.arange(len(scores))
