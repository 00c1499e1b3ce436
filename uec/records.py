"""The nouns of the package, in the words of the field (TREC's for retrieval).

Plain immutable records of Python and NumPy values. They know nothing of files, models or services.
Dimension letters are the same everywhere: n texts, k members, d dims, h last-layer inputs,
c candidates, N documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

from uec.errors import InputError

Role: TypeAlias = Literal["query", "document"]
"""What a text is for; members may put a different prompt before each."""

Similarity: TypeAlias = Literal["cosine", "dot"]

PosteriorKind: TypeAlias = Literal["diag", "kron"]
LEXICAL = "bm25"
"""Name of the member that no encoder is behind, in weights and reports."""

POSTERIOR_KINDS: tuple[PosteriorKind, ...] = ("diag", "kron")

Fusion: TypeAlias = Literal["concat", "average"]
FUSIONS: tuple[Fusion, ...] = ("concat", "average")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passage(self) -> str:
        """What is embedded: title and text joined by a space, as the field's benchmarks do."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """One query with its identifier."""

    query_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a passage that answers it."""

    query: str
    passage: str


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """How to make one member of an ensemble.

    Attributes:
        name: short name, unique within the ensemble.
        model: sentence-transformers hub id, local folder, ``pkg:NAME`` or ``hashing:DIM``.
        revision: hub revision, or None for the default one.
        query_prompt: text put before each query; None keeps the model's own.
        document_prompt: text put before each document; None keeps the model's own.
        max_length: tokens a text is cut to; None keeps the model's own.
    """

    name: str
    model: str
    revision: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Encoding:
    """What one member makes of n texts: the embedding and what its last linear layer read.

    To first order, entry j of the embedding depends on the last weight matrix W (d, h) only through
    its row j: ``d mean_j / d W_ji = gain_j * features_i``. Everything the posterior needs of a text
    is therefore in `features` (and `gain`, where it varies).

    Attributes:
        mean: (n, d) the embedding; unit rows where the member's similarity is the cosine.
        features: (n, h) pooled inputs of the last linear layer, divided by the scale of the
            normalisation that follows and, for the cosine, by the length of the raw embedding.
            Sparse for static embeddings, whose h is the vocabulary.
        gain: None where the gain of each output is a constant of the member
            (``Encoder.gain``); else (n, d), for a head with an activation.
        tokens: (n,) tokens read, prompt and special tokens included.
        truncated: (n,) True where the text was longer than the member's maximum length.
    """

    mean: Float[np.ndarray, "n d"]
    features: Float[np.ndarray, "n h"] | csr_array
    gain: Float[np.ndarray, "n d"] | None
    tokens: Int[np.ndarray, " n"]
    truncated: Bool[np.ndarray, " n"]

    def rows(self, which: slice | Int[np.ndarray, " m"]) -> Encoding:
        """The encoding of some of the texts."""
        return Encoding(
            self.mean[which],
            self.features[which],
            None if self.gain is None else self.gain[which],
            self.tokens[which],
            self.truncated[which],
        )


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search; the same for every door (library, command line, service).

    Attributes:
        top_k: hits to return.
        n_candidates: documents that are reranked; at least `top_k`. It does not follow `top_k`, so
            that the first k of 2k hits are the k hits. With beta 0 the order is final before, and
            fewer are looked at.
        posterior: whose traces weigh the members and moderate the score.
        temperature: of the weights; None takes the ensemble's.
        beta: weight of the variance in the score; None takes the ensemble's, 0 ranks by the mean.
        fusion: "concat", or "average" as in the paper, which has no place for bm25.
        weights: member name to weight, the same for every query; None weighs by trace.
        max_risk: share of all queries that may be answered with a wrong best hit; sets
            `Ranking.abstained`. None never abstains. Needs a calibrated index and its own options.
        explain: fill `Hit.members`.

    Raises:
        InputError: a value that no search can use; names the option.
    """

    top_k: int = 10
    n_candidates: int = 1000
    posterior: PosteriorKind = "kron"
    temperature: float | None = None
    beta: float | None = None
    fusion: Fusion = "concat"
    weights: Mapping[str, float] | None = None
    max_risk: float | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no search can use.

        Raises:
            InputError: names the option, what was got and what is expected.
        """
        if self.top_k < 1:
            raise InputError(f"top_k must be at least 1, got {self.top_k}")
        if self.n_candidates < self.top_k:
            raise InputError(
                f"top_k {self.top_k} is larger than n_candidates {self.n_candidates}; "
                "raise n_candidates, the number of documents that are reranked"
            )
        if self.temperature is not None and not self.temperature > 0:
            raise InputError(
                f"temperature must be positive (inf gives the prior); got {self.temperature}"
            )
        if self.beta is not None and not 0 <= self.beta < np.inf:
            raise InputError(f"beta must be a number >= 0, got {self.beta}")
        if self.max_risk is not None and not 0 < self.max_risk < 1:
            raise InputError(f"max_risk must be between 0 and 1, got {self.max_risk}")
        if self.posterior not in POSTERIOR_KINDS:
            raise InputError(f"posterior must be diag or kron; got {self.posterior!r}")
        if self.fusion not in FUSIONS:
            raise InputError(f"fusion must be concat or average; got {self.fusion!r}")


@dataclass(frozen=True, slots=True)
class MemberHit:
    """One member's view of one hit.

    Attributes:
        member: the member's name.
        similarity: its own inner product of query and document (bm25: its score), not standardised.
        standardised: the same, less its mean over the corpus, divided by its spread over the
            corpus.
        trace: trace of the covariance of the document's embedding, median 1 over held-out texts;
            0 for bm25, which knows no uncertainty of a document.
    """

    member: str
    similarity: float
    standardised: float
    trace: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved document.

    Attributes:
        doc_id: the document's identifier.
        score: the probit score; final, higher is better.
        similarity: mean of the fused similarity, before moderation.
        variance: variance of the fused similarity.
        document: the document as stored.
        probability: that the document answers the query, by `uec.relevance`; None where the index
            is not calibrated or the options are not those of its calibration.
        members: what each member says; empty unless asked for.
    """

    doc_id: str
    score: float
    similarity: float
    variance: float
    document: Document
    probability: float | None = None
    members: tuple[MemberHit, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer to one query.

    Attributes:
        query: the query's text.
        hits: best first; ties broken by document id.
        weights: member name to weight; sums to one.
        traces: member name to calibrated trace of the query's covariance (median 1); for bm25, one
            over the share of the query's information that the corpus has.
        truncated: members that cut the query to their maximum length.
        abstained: the best hit is not sure enough for `SearchOptions.max_risk`; the hits are there
            all the same.
        timings_ms: milliseconds by stage; of the whole batch when several queries went together.
    """

    query: str
    hits: tuple[Hit, ...]
    weights: Mapping[str, float]
    traces: Mapping[str, float]
    truncated: tuple[str, ...] = ()
    abstained: bool = False
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What one label-free audit says of the members.

    Attributes:
        audit: the audit's name, such as ``"overlap"``.
        settings: every parameter that shaped the numbers, seeds included.
        n_texts: how many texts (or pairs) each member was judged on; equal for all members.
        rows: one mapping a member: ``"member"`` and the measures by name.
        rank_by: the measure that ranks the members, or None where the audit does not rank.
        higher_is_better: direction of `rank_by`.
        findings: sentences for a reader who knows none of the measures.
        warnings: what limits the numbers (few texts, no convergence, duplicates).
        details: further JSON-able material for figures.
    """

    audit: str
    settings: Mapping[str, Any]
    n_texts: int
    rows: tuple[Mapping[str, Any], ...]
    rank_by: str | None = None
    higher_is_better: bool = True
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
