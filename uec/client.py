"""The service as if it were the library: same questions, same records, over gRPC.

Needs the extra ``client`` only: it imports neither encoders nor the vector store. Every call has a
deadline, and gRPC itself repeats calls that a server could not take (UNAVAILABLE), with growing
pauses.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from google.protobuf import json_format
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from jaxtyping import Float

from uec.errors import DependencyError, InputError, ServiceError
from uec.records import Document, Hit, MemberHit, Ranking, Role
from uec.v1 import uec_pb2 as pb

try:
    import grpc

    from uec.v1 import uec_pb2_grpc
except ImportError as error:
    raise DependencyError("grpcio", "client", "the gRPC client") from error

if TYPE_CHECKING:
    from uec.retriever import SearchOptions

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Largest request or reply by default, here and in the server. gRPC's own default, 4 MiB, is less
than the hits of a few hundred queries."""

MAX_ATTEMPTS = 5
"""Times that a call is tried in all; gRPC allows no more."""

_POLL_S = 0.1
_HEALTH = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")

Request = TypeVar("Request")
Reply = TypeVar("Reply")


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


class Client:
    """Talks to one server; safe to use from many threads. A context manager.

    Example:
        >>> from uec.client import Client
        >>> with Client("localhost:50051") as client:          # doctest: +SKIP
        ...     client.search(["how do I parse JSON?"])[0].hits
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 30.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        initial_backoff_s: float = 0.2,
    ) -> None:
        """Connect on the first call.

        Args:
            address: ``HOST:PORT``.
            timeout_s: deadline of every call, its repetitions included.
            max_message_bytes: largest request or reply.
            initial_backoff_s: pause before the first repetition; doubles with each.

        Raises:
            InputError: a number is not positive.
        """
        for name, value in (("timeout_s", timeout_s), ("max_message_bytes", max_message_bytes)):
            if not value > 0:
                raise InputError(f"{name} must be positive; got {value}")
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(
            address, _channel_options(max_message_bytes, initial_backoff_s)
        )
        self._stub = uec_pb2_grpc.RetrievalStub(self._channel)
        # The two messages of the health protocol have one field each, so that these well-known
        # types are the same bytes; saves the client a package.
        self._check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )

    def close(self) -> None:
        """Close the connection; calls under way are cancelled. Idempotent."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(
        self, queries: Sequence[str], options: SearchOptions | None = None, **changes: Any
    ) -> list[Ranking]:
        """Find the best documents for each query; as `uec.Retriever.search`.

        Args:
            queries: n texts.
            options: a `uec.SearchOptions`; None leaves every choice to the server.
            **changes: single options by name, such as ``top_k=20``.

        Returns:
            n rankings, in the order of the queries.

        Raises:
            InputError: an option or text that no message can hold.
            ServiceError: the server refused or failed; `code` says how.
        """
        if not _texts(queries):
            return []
        message = _options(options, changes)
        request = _message(pb.SearchRequest, queries=queries, options=message)
        reply = self._call(self._stub.Search, request)
        timings = _timings(reply.timings)
        return [
            _ranking(query, ranking, timings)
            for query, ranking in zip(queries, reply.rankings, strict=True)
        ]

    def rerank(
        self,
        query: str,
        documents: Sequence[Document],
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> Ranking:
        """Order given documents by the score of a search; as `uec.Retriever.rerank`.

        Args:
            query: the query.
            documents: c documents with distinct identifiers; embedded by the server now.
            options: as for `search`; `top_k` still limits the hits.
            **changes: single options by name.

        Raises:
            InputError: an option or text that no message can hold.
            ServiceError: the server refused or failed; `code` says how.
        """
        items = [
            _message(pb.CandidateText, doc_id=d.doc_id, title=d.title, text=d.text)
            for d in documents
        ]
        by_id = {document.doc_id: document for document in documents}
        ranking = self._rerank(query, options, changes, texts=pb.CandidateTexts(items=items))
        # The caller's own documents, with metadata that was not sent.
        hits = tuple(dataclasses.replace(hit, document=by_id[hit.doc_id]) for hit in ranking.hits)
        return dataclasses.replace(ranking, hits=hits)

    def rerank_ids(
        self,
        query: str,
        doc_ids: Sequence[str],
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> Ranking:
        """Order documents of the index, named by id; otherwise as `rerank`."""
        ids = _message(pb.CandidateIds, doc_ids=_texts(doc_ids))
        return self._rerank(query, options, changes, ids=ids)

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        include_members: bool = False,
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> list[EncodedText]:
        """Embed texts, with what each member knows of its own certainty.

        Args:
            texts: n texts.
            role: "query" or "document".
            include_members: also return each member's own embedding.
            options: `posterior`, `temperature` and `weights` count.
            **changes: single options by name.

        Raises:
            InputError: an option or text that no message can hold.
            ServiceError: the server refused or failed; `code` says how.
        """
        if not _texts(texts):
            return []
        request = _message(
            pb.EncodeRequest,
            texts=texts,
            role=_choice(pb.Role, "ROLE", role),
            include_members=include_members,
            options=_options(options, changes),
        )
        reply = self._call(self._stub.Encode, request)
        return [_encoded(text, one) for text, one in zip(texts, reply.encodings, strict=True)]

    def info(self) -> ServiceInfo:
        """What is served.

        Raises:
            ServiceError: the server refused or failed; `code` says how.
        """
        reply = self._call(self._stub.Info, pb.InfoRequest())
        return ServiceInfo(
            members=tuple(_plain(member) for member in reply.members),
            index_fingerprint=reply.index_fingerprint,
            n_documents=reply.n_documents,
            stored_variance=reply.stored_variance,
            defaults=_plain(reply.defaults)
            | {
                "posterior": _name(pb.Posterior, reply.defaults.posterior),
                "fusion": _name(pb.Fusion, reply.defaults.fusion),
            },
            limits=_plain(reply.limits),
            versions=dict(reply.versions),
        )

    def health(self, service: str = "") -> str:
        """State of the server, or of one of its services, such as ``"SERVING"``.

        Raises:
            ServiceError: no server answers, or NOT_FOUND: it has no such service.
        """
        return _HEALTH[self._call(self._check, StringValue(value=service)).value]

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Return as soon as the server can answer.

        Raises:
            ServiceError: DEADLINE_EXCEEDED, it was not ready in time.
        """
        end = time.monotonic() + timeout_s
        state = "not reachable"
        while (left := end - time.monotonic()) > 0:
            try:
                # Waits for the connection, which gRPC else gives up at the first failure.
                state = _HEALTH[self._check(StringValue(), timeout=left, wait_for_ready=True).value]
            except grpc.RpcError as error:
                state = f"not reachable ({_code(error)})"
            if state == "SERVING":
                return
            time.sleep(min(_POLL_S, max(end - time.monotonic(), 0)))
        raise ServiceError("DEADLINE_EXCEEDED", f"the server is {state} after {timeout_s:g} s")

    def _rerank(
        self,
        query: str,
        options: SearchOptions | None,
        changes: Mapping[str, Any],
        **candidates: Any,
    ) -> Ranking:
        request = _message(
            pb.RerankRequest, query=query, options=_options(options, changes), **candidates
        )
        reply = self._call(self._stub.Rerank, request)
        return _ranking(query, reply.ranking, _timings(reply.timings))

    def _call(self, method: Callable[..., Reply], request: Any) -> Reply:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise ServiceError(_code(error), error.details() or "") from error


def _channel_options(max_message_bytes: int, initial_backoff_s: float) -> list[tuple[str, Any]]:
    policy = {
        "maxAttempts": MAX_ATTEMPTS,
        "initialBackoff": f"{initial_backoff_s}s",
        "maxBackoff": f"{initial_backoff_s * 2 ** (MAX_ATTEMPTS - 2)}s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    name = pb.DESCRIPTOR.services_by_name["Retrieval"].full_name
    config = {"methodConfig": [{"name": [{"service": name}], "retryPolicy": policy}]}
    return [
        ("grpc.service_config", json.dumps(config)),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A request that outgrows this buffer (256 KiB by default) is not repeated.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),
    ]


def _code(error: grpc.RpcError) -> str:
    return str(error.code().name)


# --- records to messages --------------------------------------------------------------------------


def _message(kind: Callable[..., Request], **fields: Any) -> Request:
    """A message, or an `InputError` where a value does not fit its field."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InputError(f"the request cannot be sent: {error}") from error


def _texts(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise InputError("expected a list of texts, got one text; put it in a list")
    return texts


def _options(options: SearchOptions | None, changes: Mapping[str, Any]) -> pb.SearchOptions:
    """Only what is given: the rest is the server's choice."""
    given: dict[str, Any] = {}
    if options is not None:
        given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    given = {name: value for name, value in (given | dict(changes)).items() if value is not None}
    for name, enum in (("posterior", pb.Posterior), ("fusion", pb.Fusion)):
        if name in given:
            given[name] = _choice(enum, name.upper(), given[name])
    if "weights" in given:
        given["weights"] = _message(pb.MemberWeights, by_member=given["weights"])
    return _message(pb.SearchOptions, **given)


def _choice(enum: Any, prefix: str, value: str) -> Any:
    """``"diag"`` to ``POSTERIOR_DIAG``."""
    known = [name.removeprefix(f"{prefix}_").lower() for name in enum.keys()[1:]]
    if value not in known:
        raise InputError(f"{prefix.lower()} must be one of {', '.join(known)}; got {value!r}")
    return enum.Value(f"{prefix}_{value.upper()}")


# --- messages to records --------------------------------------------------------------------------


def _ranking(query: str, message: pb.Ranking, timings: Mapping[str, float]) -> Ranking:
    return Ranking(
        query=query,
        hits=tuple(_hit(hit) for hit in message.hits),
        weights={member.member: member.weight for member in message.members},
        traces={member.member: member.trace for member in message.members},
        truncated=tuple(member.member for member in message.members if member.truncated),
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
        members=tuple(
            MemberHit(member.member, member.similarity, member.standardised, member.trace)
            for member in message.members
        ),
    )


def _encoded(text: str, message: pb.TextEncoding) -> EncodedText:
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


def _timings(message: Sequence[pb.StageTiming]) -> dict[str, float]:
    return {timing.stage: timing.duration_ms for timing in message}


def _plain(message: Any) -> dict[str, Any]:
    """A message as a mapping with every field in it, those without a value included."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _name(enum: Any, value: int) -> str:
    """``POSTERIOR_DIAG`` to ``"diag"``."""
    return str(enum.Name(value)).split("_", 1)[1].lower()
