"""The four methods of ``uec.v1.Retrieval``: read, wait for a turn, compute in slices, write."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import grpc
import numpy as np
from google.protobuf.message import Message
from jaxtyping import Float

from uec.errors import ServiceError
from uec.records import Ranking, Role, SearchOptions
from uec.retriever import Retriever
from uec.v1 import uec_pb2 as pb
from uec.v1 import uec_pb2_grpc
from uec.weighing import fused_queries
from uec_server import convert
from uec_server.gate import SLICE, Gate
from uec_server.options import ServerOptions

Reply = TypeVar("Reply", bound=Message)


class RetrievalServicer(uec_pb2_grpc.RetrievalServicer):
    """Answers UNAVAILABLE until `open` gives it a retriever."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._gate = Gate(options.max_concurrent, options.max_parallel)
        self._retriever: Retriever | None = None

    def open(self, retriever: Retriever) -> None:
        """Answer from this retriever from now on."""
        self._retriever = retriever

    def Encode(  # noqa: N802 (gRPC's name)
        self, request: pb.EncodeRequest, context: grpc.ServicerContext
    ) -> pb.EncodeResponse:
        """See the proto."""
        retriever = self._ready()
        texts, role = convert.texts_to_encode(request, self._options)
        options = convert.encode_options(request, self._options)
        with self._gate.turn(context) as turn:
            times = {"queue": turn.waited_ms}
            encodings = turn.in_slices(
                lambda part: _encode(
                    retriever, part, role, options, request.include_members, times
                ),
                texts,
            )
        return self._sendable(
            pb.EncodeResponse(encodings=encodings, timings=convert.timings(times))
        )

    def Search(  # noqa: N802 (gRPC's name)
        self, request: pb.SearchRequest, context: grpc.ServicerContext
    ) -> pb.SearchResponse:
        """See the proto."""
        retriever = self._ready()
        queries = convert.queries(request, self._options)
        options = convert.search_options(request.options, self._options)
        with self._gate.turn(context) as turn:
            rankings = turn.in_slices(lambda part: retriever.search(part, options), queries)
        # The rankings of one slice share its timings.
        times = _total([{"queue": turn.waited_ms}, *(r.timings_ms for r in rankings[::SLICE])])
        return self._sendable(
            pb.SearchResponse(
                rankings=[convert.ranking(ranking) for ranking in rankings],
                timings=convert.timings(times),
            )
        )

    def Rerank(  # noqa: N802 (gRPC's name)
        self, request: pb.RerankRequest, context: grpc.ServicerContext
    ) -> pb.RerankResponse:
        """See the proto."""
        retriever = self._ready()
        query = convert.query(request, self._options)
        options = convert.search_options(request.options, self._options)
        documents = convert.documents_to_rerank(request, self._options)
        ids = convert.ids_to_rerank(request, self._options)
        with self._gate.turn(context) as turn:
            if ids:
                parts = [retriever.rerank_ids(query, ids, options)]
            else:
                # A document's score does not depend on the others. Each slice encodes the query
                # anew, one text more for every `SLICE`.
                parts = turn.in_slices(
                    lambda part: [retriever.rerank(query, part, options)], documents
                )
        times = _total([{"queue": turn.waited_ms}, *(part.timings_ms for part in parts)])
        return self._sendable(
            pb.RerankResponse(
                ranking=convert.ranking(_merged(parts, options.top_k)),
                timings=convert.timings(times),
            )
        )

    def Info(  # noqa: N802 (gRPC's name)
        self, request: pb.InfoRequest, context: grpc.ServicerContext
    ) -> pb.InfoResponse:
        """See the proto."""
        return convert.info(self._ready(), self._options)

    def _ready(self) -> Retriever:
        if self._retriever is None:
            raise ServiceError("UNAVAILABLE", "the index is loading; try again")
        return self._retriever

    def _sendable(self, reply: Reply) -> Reply:
        """Refuse what gRPC would not send, with a reason that helps."""
        if reply.ByteSize() > self._options.max_message_bytes:
            raise ServiceError(
                "RESOURCE_EXHAUSTED",
                f"the reply has {reply.ByteSize()} bytes, at most "
                f"{self._options.max_message_bytes} can be sent; ask for fewer texts or a "
                "smaller top_k",
            )
        return reply


def _encode(
    retriever: Retriever,
    texts: Sequence[str],
    role: Role,
    options: SearchOptions,
    include_members: bool,
    times: dict[str, float],
) -> list[pb.TextEncoding]:
    if role == "query":
        weighed = retriever.weigh(texts, options, times)
        members = weighed.members
        weights: Float[np.ndarray, "n k"] | None = weighed.weights[:, : len(members)]
        vectors = fused_queries(weighed)
    else:
        start = time.perf_counter()
        members = retriever.ensemble.encode(texts, "document", kinds=[options.posterior])
        times["encode"] = times.get("encode", 0.0) + 1000 * (time.perf_counter() - start)
        weights = None
        vectors = np.concatenate([member.mean for member in members], axis=1)
    return convert.encodings(
        retriever.ensemble.names, members, options.posterior, vectors, weights, include_members
    )


def _merged(parts: Sequence[Ranking], top_k: int) -> Ranking:
    """One ranking of the candidates of several."""
    hits = sorted(
        (hit for part in parts for hit in part.hits), key=lambda hit: (-hit.score, hit.doc_id)
    )
    return replace(parts[0], hits=tuple(hits[:top_k]))


def _total(timings: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Sums by stage, in order of first occurrence."""
    total: dict[str, float] = {}
    for by_stage in timings:
        for stage, duration_ms in by_stage.items():
            total[stage] = total.get(stage, 0.0) + duration_ms
    return total
