"""Messages of ``uec.v1`` as a client sees them: records to requests, replies to records.

The server's side of the same is ``uec_server.convert``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf import json_format
from jaxtyping import Float

from uec.errors import InputError
from uec.records import Document, Hit, MemberHit, Ranking, SearchOptions
from uec.v1 import uec_pb2 as pb

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedMember:
    """One text as one member sees it.

    Attributes:
        member: the member's name.
        mean: (d,) its embedding, or None unless asked for.
        trace: of the embedding's covariance, median 1 over held-out texts of the role.
        raw_trace: the same in squared units of the embedding.
        weight: how much the member counts for this query; None for documents.
        tokens: tokens read.
        truncated: whether the text was cut to the member's maximum length.
    """

    member: str
    mean: Float[np.ndarray, " d"] | None
    trace: float
    raw_trace: float
    weight: float | None
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True, eq=False)
class EncodedText:
    """One text as the ensemble sees it.

    Attributes:
        text: the text.
        vector: (sum of the members' d,) float32. The inner product of a query's and a document's is
            their fused similarity plus a constant of the query.
        members: one for each member, in order.
    """

    text: str
    vector: Float[np.ndarray, " total"]
    members: tuple[EncodedMember, ...]


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What a server serves.

    Attributes:
        members: a mapping each: name, model, revision, dimension, max_length, query_prompt,
            document_prompt, similarity, fit.
        index_fingerprint: equal fingerprints mean equal indexes.
        n_documents: documents in the index.
        stored_variance: "sketch" or "full".
        defaults: what unset options mean, by name.
        limits: what the server refuses to go beyond, by name.
        versions: package to version.
    """

    members: tuple[Mapping[str, Any], ...]
    index_fingerprint: str
    n_documents: int
    stored_variance: str
    defaults: Mapping[str, Any]
    limits: Mapping[str, int]
    versions: Mapping[str, str]


# --- records to messages --------------------------------------------------------------------------


def build(kind: Callable[..., Request], **fields: Any) -> Request:
    """Make a message.

    Raises:
        InputError: a value does not fit its field, such as an integer beyond 32 bits or half of a
            surrogate pair.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InputError(f"the request cannot be sent: {error}") from error


def require_list(texts: Sequence[str]) -> Sequence[str]:
    """Refuse the mistake that every text is also a sequence of texts.

    Raises:
        InputError: it is one text.
    """
    if isinstance(texts, str):
        raise InputError("expected a list of texts, got one text; put it in a list")
    return texts


def search_options(options: SearchOptions | None, changes: Mapping[str, Any]) -> pb.SearchOptions:
    """Options as a message; only what is given, for the rest is the server's choice.

    Raises:
        InputError: a name or value that the message does not have.
    """
    given: dict[str, Any] = {}
    if options is not None:
        given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    given = {name: value for name, value in (given | dict(changes)).items() if value is not None}
    for name, enum in (("posterior", pb.Posterior), ("fusion", pb.Fusion)):
        if name in given:
            given[name] = enum_value(enum, name.upper(), given[name])
    if "weights" in given:
        given["weights"] = build(pb.MemberWeights, by_member=given["weights"])
    return build(pb.SearchOptions, **given)


def enum_value(enum: Any, prefix: str, value: str) -> Any:
    """``"diag"`` to ``POSTERIOR_DIAG``.

    Raises:
        InputError: the enum has no such value.
    """
    known = [name.removeprefix(f"{prefix}_").lower() for name in enum.keys()[1:]]
    if value not in known:
        raise InputError(f"{prefix.lower()} must be one of {', '.join(known)}; got {value!r}")
    return enum.Value(f"{prefix}_{value.upper()}")


# --- messages to records --------------------------------------------------------------------------


def read_ranking(query: str, message: pb.Ranking, timings: Mapping[str, float]) -> Ranking:
    """One ranking; its query is not in the message."""
    return Ranking(
        query=query,
        hits=tuple(_hit(hit) for hit in message.hits),
        weights={member.member: member.weight for member in message.members},
        traces={member.member: member.trace for member in message.members},
        truncated=tuple(member.member for member in message.members if member.truncated),
        abstained=message.abstained,
        timings_ms=timings,
    )


def _hit(message: pb.Hit) -> Hit:
    metadata = json_format.MessageToDict(message.metadata)
    return Hit(
        doc_id=message.doc_id,
        score=message.score,
        similarity=message.similarity,
        variance=message.variance,
        document=Document(message.doc_id, message.text, message.title, metadata),
        probability=message.probability if message.HasField("probability") else None,
        members=tuple(
            MemberHit(member.member, member.similarity, member.standardised, member.trace)
            for member in message.members
        ),
    )


def read_encoding(text: str, message: pb.TextEncoding) -> EncodedText:
    """One encoded text; the text is not in the message."""
    members = tuple(
        EncodedMember(
            member=member.member,
            mean=np.array(member.mean, np.float32) if member.mean else None,
            trace=member.trace,
            raw_trace=member.raw_trace,
            weight=member.weight if member.HasField("weight") else None,
            tokens=member.tokens,
            truncated=member.truncated,
        )
        for member in message.members
    )
    return EncodedText(text, np.array(message.vector, np.float32), members)


def read_timings(message: Sequence[pb.StageTiming]) -> dict[str, float]:
    """Milliseconds by stage."""
    return {timing.stage: timing.duration_ms for timing in message}


def read_info(message: pb.InfoResponse) -> ServiceInfo:
    """What a server says of itself."""
    defaults = message.defaults
    exact = {
        "posterior": _enum_name(pb.Posterior, defaults.posterior),
        "fusion": _enum_name(pb.Fusion, defaults.fusion),
        # JSON spells infinity as text.
        "temperature": defaults.temperature,
        "beta": defaults.beta,
    }
    return ServiceInfo(
        members=tuple(_as_mapping(member) for member in message.members),
        index_fingerprint=message.index_fingerprint,
        n_documents=message.n_documents,
        stored_variance=message.stored_variance,
        defaults=_as_mapping(defaults) | exact,
        limits=_as_mapping(message.limits),
        versions=dict(message.versions),
    )


def _as_mapping(message: Any) -> dict[str, Any]:
    """A message as a mapping with every field in it, those without a value included."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _enum_name(enum: Any, value: int) -> str:
    """``POSTERIOR_DIAG`` to ``"diag"``."""
    return str(enum.Name(value)).split("_", 1)[1].lower()
