"""From an index to its calibration: look for pieces of the corpus with every member, label-free.

spans of the corpus ─look for each─> k views of m spans among p documents
─uec.trust─> prior, temperature, beta, model of relevance
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from uec.build import recalibrate
from uec.calibration import Calibration
from uec.encoders import Progress, is_static
from uec.errors import InputError
from uec.manifest import require_equal
from uec.records import LEXICAL, Document, PosteriorKind, Query, Ranking, SearchOptions
from uec.retriever import Retriever
from uec.selfretrieval import MIN_SPANS, Span, draw_spans
from uec.similarity import sketched_variance
from uec.trust import Views, learn
from uec.weighing import candidates

Judged: TypeAlias = tuple[Sequence[Query], Mapping[str, Mapping[str, int]]]
"""Queries and their judgements: query id to document id to relevance, as `uec.readers` gives."""

N_SPANS = 400

JUDGED_DEPTH = 100

MAX_LOGGED = 1000
"""Logged queries that are looked at, a random sample of longer logs."""

LOG_DEPTH = 10
"""Documents of each that count as asked for: a first page."""

MAX_SPANS = 2000
"""More tell nothing new, and their similarities with the pool fill the memory."""

MAX_POOL = 10_000
"""Documents that a span is looked for in. A sample of a larger corpus tells the members apart as
well, and its similarities fit in memory."""


@dataclass(frozen=True, slots=True)
class MemberTrust:
    """Trust in members that was found elsewhere, to be used in place of what the spans say.

    Attributes:
        source: what found it, for reports.
        log_trust: member to log trust, up to a constant.
        identity: member to the identity of the encoder that was judged.
    """

    source: str
    log_trust: Mapping[str, float]
    identity: Mapping[str, Mapping[str, Any]]


def calibrate_index(path: str | Path, **settings: Any) -> Calibration:
    """Calibrate an index and publish it anew with what was learnt.

    Args:
        path: folder written by `uec.build.build_index`.
        **settings: of `calibrate`.

    Raises:
        InputError: as for `calibrate`; the index stays as it is.
        BusyError: another process is writing the folder.
        MismatchError: another version was published meanwhile; nothing was changed.
    """
    retriever = Retriever.open(path)
    calibration = calibrate(retriever, **settings)
    recalibrate(Path(path), retriever.index.artefact, calibration)
    return calibration


def calibrate(
    retriever: Retriever,
    *,
    n_spans: int = N_SPANS,
    posterior: PosteriorKind = "kron",
    seed: int = 0,
    judged: Judged | None = None,
    log: Sequence[str] | None = None,
    trust: MemberTrust | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Learn prior, temperature and beta on the corpus that is searched; no labels needed.

    Args:
        retriever: of the index.
        n_spans: spans to look for, one a document at the most.
        posterior: whose traces the temperature and beta are for.
        seed: of the sample.
        judged: queries with their relevant documents, where there are some; fifty added .002
            nDCG@10 on average and .016 at the most (benchmarks/results).
        log: queries as they were asked, without judgements, where there are some: spans are then
            cut out of the documents that these find.
        trust: of the members, from elsewhere (`uec.auditing.prior`), for the prior in place of what
            the spans say; they still give everything else.
        progress: called with the texts embedded; at most ``2 k n_spans`` in total.

    Returns:
        A calibration with a report; `uec.build.recalibrate` writes it into the index.

    Raises:
        InputError: `n_spans` is out of range, the corpus gives fewer than `MIN_SPANS` of them, no
            judged query has a relevant document in it, the log is empty, `trust` does not know a
            member, or it is given beside `judged`.
        MismatchError: `trust` is of another encoder; names the field.
    """
    if not MIN_SPANS <= n_spans <= MAX_SPANS:
        raise InputError(f"n_spans must be from {MIN_SPANS} to {MAX_SPANS}, got {n_spans}")
    given = None if trust is None else _given(retriever, trust)
    if given is not None and judged is not None:
        raise InputError("judged queries and an audit cannot both give the prior; leave one out")
    labelled = None if judged is None else judged_ranks(retriever, judged)
    views = look(retriever, n_spans, posterior, seed, log, progress)
    n_looked_for, n_pool, _ = views.mean.shape
    settings = {
        "seed": seed,
        "posterior": posterior,
        "n_spans": n_looked_for,
        "n_pool": n_pool,
        "n_logged": 0 if log is None else len(log),
        "prior": "spans" if trust is None else trust.source,
    }
    return learn(views, retriever.index.names, settings, labelled, given)


def _given(retriever: Retriever, trust: MemberTrust) -> Float[np.ndarray, " k"]:
    """Trust from elsewhere in the order of the members, (k,)."""
    if retriever.index.lexical is not None:
        raise InputError(
            "an audit ranks encoders only, and this index has the words of its corpus too "
            f"({LEXICAL}); calibrate it without --prior audit"
        )
    missing = [name for name in retriever.index.names if name not in trust.log_trust]
    if missing:
        raise InputError(
            f"{trust.source} does not know {', '.join(missing)}; it knows "
            f"{', '.join(trust.log_trust)}"
        )
    for member in retriever.ensemble.members:
        # Embeddings from a file have no encoder to compare with.
        if (judged := trust.identity.get(member.name)) is not None:
            require_equal(f"members.{member.name}", member.encoder.identity, judged)
    return np.array([trust.log_trust[name] for name in retriever.index.names])


def look(
    retriever: Retriever,
    n_spans: int,
    posterior: PosteriorKind,
    seed: int,
    log: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Views:
    """Draw a pool of documents and spans of them, and look for the spans; see `calibrate`."""
    pool = np.random.default_rng(seed).permutation(len(retriever.index))
    if log is not None:
        asked_for = _asked_for(retriever, log, seed)
        n_spans = max(MIN_SPANS, min(n_spans, len(asked_for)))
        pool = np.concatenate([asked_for, pool[~np.isin(pool, asked_for)]])
    pool = pool[:MAX_POOL]
    spans = draw_spans(_documents(retriever, pool), n_spans, seed)
    if len(spans) < MIN_SPANS:
        raise InputError(
            f"the corpus gives {len(spans)} spans to look for; expected at least {MIN_SPANS} "
            "documents of six words or more. Members keep equal weights; --weights of a search "
            "sets others"
        )
    return view(retriever, spans, pool, posterior, progress)


def _asked_for(retriever: Retriever, log: Sequence[str], seed: int) -> Int[np.ndarray, " r"]:
    """Rows that logged queries find, in a random order in which those found often come early."""
    rng = np.random.default_rng(seed)
    sample = [log[n] for n in rng.permutation(len(log))[:MAX_LOGGED]]
    if not sample:
        raise InputError("the query log has no queries")
    weighed = retriever.weigh(sample, _equal(retriever))
    found = candidates(retriever.index, weighed, LOG_DEPTH, average=False)
    rows, votes = np.unique(np.concatenate(found), return_counts=True)
    # Exponential races: the chance to come first is in proportion to the votes.
    return np.asarray(rows[np.argsort(rng.exponential(size=len(rows)) / votes)])


def _equal(retriever: Retriever) -> SearchOptions:
    """Every member counts the same, whatever the index was calibrated to before."""
    return SearchOptions(weights=dict.fromkeys(retriever.index.names, 1.0))


def judged_ranks(retriever: Retriever, judged: Judged) -> Float[np.ndarray, "q k"]:
    """Reciprocal rank of the best relevant document by each member alone, (q, k).

    Zero where it is not among the first `JUDGED_DEPTH`. Queries without a relevant document in the
    index are left out.

    Raises:
        InputError: none is left.
    """
    queries, qrels = judged
    relevant = [
        {doc_id for doc_id, relevance in qrels.get(query.query_id, {}).items() if relevance > 0}
        for query in queries
    ]
    known = retriever.index.documents.known(set().union(*relevant))
    usable = [n for n, own in enumerate(relevant) if own & known]
    if not usable:
        raise InputError(
            f"none of the {len(queries)} judged queries has a relevant document in this index; "
            "expected the document ids of its corpus"
        )
    texts = [queries[n].text for n in usable]
    columns = []
    for name in retriever.index.names:
        rankings = retriever.search(
            texts, SearchOptions(top_k=JUDGED_DEPTH, weights={name: 1.0}, beta=0.0)
        )
        columns.append(
            [_reciprocal(ranking, relevant[n]) for n, ranking in zip(usable, rankings, strict=True)]
        )
    return np.array(columns).T


def _reciprocal(ranking: Ranking, relevant: set[str]) -> float:
    ranks = (rank for rank, hit in enumerate(ranking.hits, 1) if hit.doc_id in relevant)
    return 1.0 / next(ranks, np.inf)


def view(
    retriever: Retriever,
    spans: Sequence[Span],
    pool: Int[np.ndarray, " p"],
    posterior: PosteriorKind,
    progress: Progress | None = None,
) -> Views:
    """Look for spans in the documents of some rows.

    Args:
        retriever: of the index.
        spans: m of them.
        pool: (p,) rows that hold the spans' own documents and others.
        posterior: whose variances to take.
        progress: called with the texts embedded; 2 k m in total.
    """
    index, ensemble = retriever.index, retriever.ensemble
    column = np.full(len(index), -1)
    column[pool] = np.arange(len(pool))
    targets = column[[span.row for span in spans]]
    # Any weights will do.
    options = replace(_equal(retriever), posterior=posterior)
    weighed = retriever.weigh([span.text for span in spans], options, progress=progress)
    rests = ensemble.encode(
        [span.rest for span in spans], "document", kinds=[posterior], progress=progress
    )
    shape = (len(spans), len(pool), len(index.names))
    # A lexical member has no variance.
    mean, variance = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    cloze_mean, cloze_variance = np.zeros(shape[::2]), np.zeros(shape[::2])
    documents = index.candidates(pool, posterior)
    for k, (span, rest, document) in enumerate(zip(weighed.members, rests, documents, strict=True)):
        centre, spread = weighed.centre[:, k : k + 1], weighed.spread[:, k : k + 1]
        asked, answer = span.gaussians[posterior], rest.gaussians[posterior]
        mean[..., k] = (asked.mean @ document.mean.T - centre) / spread
        sketch = (np.tile(part, (len(spans), 1)) for part in (document.trace, document.moment))
        variance[..., k] = sketched_variance(asked, *sketch) / spread**2
        own = np.einsum("md,md->m", asked.mean, answer.mean)[:, None]
        cloze_mean[:, k : k + 1] = (own - centre) / spread
        cloze_variance[:, k : k + 1] = (
            sketched_variance(asked, answer.trace[:, None], answer.profile_moment[:, None])
            / spread**2
        )
    if weighed.lexical is not None and index.lexical is not None:
        for n, (cut, words) in enumerate(zip(spans, weighed.lexical, strict=True)):
            mean[n, :, -1] = words.standardised[pool]
            left = replace(words, scores=index.lexical.score(cut.text, [cut.rest]))
            cloze_mean[n, -1] = left.standardised[0]
    rows = np.arange(len(spans))
    return Views(
        mean,
        variance,
        {"quotation": mean[rows, targets], "cloze": cloze_mean.astype(np.float32)},
        {"quotation": variance[rows, targets], "cloze": cloze_variance.astype(np.float32)},
        targets,
        weighed.traces,
        lexical=index.lexical is not None,
        wording=_wording(retriever),
    )


def _wording(retriever: Retriever) -> Bool[np.ndarray, " k"]:
    """Members that match words one by one; of an ensemble of such, the lexical one alone."""
    static = np.array([is_static(member.encoder) for member in retriever.ensemble.members])
    if static.all():
        static[:] = False
    return np.append(static, True) if retriever.index.lexical is not None else static


def _documents(retriever: Retriever, rows: Int[np.ndarray, " p"]) -> Iterator[tuple[int, Document]]:
    for row in rows.tolist():
        yield row, retriever.index.documents.get([row])[0]
