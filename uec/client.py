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
from typing import Any, TypeVar

from uec.errors import DependencyError, InputError, ServiceError
from uec.records import Document, Ranking, Role, SearchOptions

try:
    import grpc
    from google.protobuf.wrappers_pb2 import Int32Value, StringValue

    from uec import messages
    from uec.v1 import uec_pb2 as pb
    from uec.v1 import uec_pb2_grpc
except ModuleNotFoundError as error:
    raise DependencyError(str(error.name), "client", "the gRPC client") from error

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Largest request or reply by default, here and in the server. gRPC's own default, 4 MiB, is less
than the hits of a few hundred queries."""

MAX_ATTEMPTS = 5
"""Times that a call is tried in all; gRPC allows no more."""

_POLL_S = 0.1
_HEALTH = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")

Reply = TypeVar("Reply")


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
        given = {
            "timeout_s": timeout_s,
            "max_message_bytes": max_message_bytes,
            "initial_backoff_s": initial_backoff_s,
        }
        for name, value in given.items():
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
        if not messages.require_list(queries):
            return []
        message = messages.search_options(options, changes)
        request = messages.build(pb.SearchRequest, queries=queries, options=message)
        reply = self._call(self._stub.Search, request)
        timings = messages.read_timings(reply.timings)
        return [
            messages.read_ranking(query, ranking, timings)
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
            messages.build(pb.CandidateText, doc_id=d.doc_id, title=d.title, text=d.text)
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
        ids = messages.build(pb.CandidateIds, doc_ids=messages.require_list(doc_ids))
        return self._rerank(query, options, changes, ids=ids)

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        include_members: bool = False,
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> list[messages.EncodedText]:
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
        if not messages.require_list(texts):
            return []
        request = messages.build(
            pb.EncodeRequest,
            texts=texts,
            role=messages.enum_value(pb.Role, "ROLE", role),
            include_members=include_members,
            options=messages.search_options(options, changes),
        )
        reply = self._call(self._stub.Encode, request)
        return [
            messages.read_encoding(text, one)
            for text, one in zip(texts, reply.encodings, strict=True)
        ]

    def info(self) -> messages.ServiceInfo:
        """What is served.

        Raises:
            ServiceError: the server refused or failed; `code` says how.
        """
        reply = self._call(self._stub.Info, pb.InfoRequest())
        return messages.read_info(reply)

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
        request = messages.build(
            pb.RerankRequest,
            query=query,
            options=messages.search_options(options, changes),
            **candidates,
        )
        reply = self._call(self._stub.Rerank, request)
        return messages.read_ranking(query, reply.ranking, messages.read_timings(reply.timings))

    def _call(self, method: Callable[..., Reply], request: Any) -> Reply:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise ServiceError(_code(error), error.details() or "") from error


def _channel_options(max_message_bytes: int, initial_backoff_s: float) -> list[tuple[str, Any]]:
    policy = {
        "maxAttempts": MAX_ATTEMPTS,
        "initialBackoff": f"{initial_backoff_s:.3f}s",
        "maxBackoff": f"{initial_backoff_s * 2 ** (MAX_ATTEMPTS - 2):.3f}s",
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
