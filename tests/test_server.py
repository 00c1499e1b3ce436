"""The service: readiness, statuses, limits, deadlines, drain; real servers on free ports."""

from __future__ import annotations

import inspect
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("grpc_health", reason="needs the extra 'server'")

from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status
from serving import WORDS, hooked, make_index
from uec_server.app import SPARE_CALLS, Service, create_server, serve
from uec_server.convert import _public_name
from uec_server.gate import SLICE, Abandoned, Gate
from uec_server.interceptors import STATUS, refusal
from uec_server.options import ServerOptions

from uec import errors
from uec.client import Client
from uec.errors import InputError, NotFoundError, ServiceError
from uec.index import Index
from uec.retriever import Retriever
from uec.v1 import uec_pb2 as pb
from uec.v1 import uec_pb2_grpc

Code = grpc.StatusCode
LOCAL = "127.0.0.1:0"
Status = health_pb2.HealthCheckResponse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("secret-place") / "index")


@pytest.fixture(scope="module")
def channel(folder: Path) -> Iterator[grpc.Channel]:
    server, port = create_server(folder)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None).wait()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., grpc.Channel]]:
    """Starts servers with a hook before every encoding; returns a channel to each."""
    servers, channels = [], []

    def start(before: Callable[[Sequence[str]], None], **options: Any) -> grpc.Channel:
        server, port = create_server(hooked(folder, before), LOCAL, ServerOptions(**options))
        servers.append(server)
        channels.append(grpc.insecure_channel(f"127.0.0.1:{port}"))
        return channels[-1]

    yield start
    for channel in channels:
        channel.close()
    for server in servers:
        server.stop(None).wait()


def search(channel: grpc.Channel, *queries: str, timeout: float = 20, **options: Any) -> Any:
    request = pb.SearchRequest(queries=queries, options=pb.SearchOptions(**options))
    return uec_pb2_grpc.RetrievalStub(channel).Search(request, timeout=timeout)


def later(channel: grpc.Channel, *queries: str, timeout: float = 20) -> Any:
    request = pb.SearchRequest(queries=queries)
    return uec_pb2_grpc.RetrievalStub(channel).Search.future(request, timeout=timeout)


class Held:
    """Holds back texts that contain "slow" until `release`; counts what it saw."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.release = threading.Event()
        self.batches: list[int] = []

    def __call__(self, texts: Sequence[str]) -> None:
        self.batches.append(len(texts))
        if any("slow" in text for text in texts):
            self.entered.release()
            assert self.release.wait(20)


# --- readiness ------------------------------------------------------------------------------------


def test_health_follows_the_life_of_the_server(folder: Path) -> None:
    service = Service(LOCAL, ServerOptions(grace_s=60.0))
    with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service=name))
            for name in ("", "uec.v1.Retrieval")
        ]
        assert [next(watch).status for watch in watches] == [Status.NOT_SERVING] * 2
        for call in ("Search", "Info"):
            with pytest.raises(grpc.RpcError) as caught:
                getattr(uec_pb2_grpc.RetrievalStub(channel), call)(
                    getattr(pb, f"{call}Request")(), timeout=5
                )
            assert caught.value.code() is Code.UNAVAILABLE
        service.load(folder)
        assert [next(watch).status for watch in watches] == [Status.SERVING] * 2
        assert len(search(channel, "river").rankings) == 1
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        # The streams end by themselves: watchers do not hold up the end.
        for watch in watches:
            assert [reply.status for reply in watch] == [Status.NOT_SERVING]
            assert watch.code() is Code.OK
        stopping.join(20)
        assert not stopping.is_alive()


def test_watchers_that_leave_as_the_status_changes() -> None:
    """The mode of the health library that is not used here deadlocks within a few rounds."""
    for _ in range(20):
        service = Service(LOCAL, ServerOptions(grace_s=1.0))
        with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(4)]
            for watch in watches:
                next(watch)
            stopping = threading.Thread(target=service.stop, daemon=True)
            stopping.start()
            for watch in watches:
                watch.cancel()
            stopping.join(20)
            assert not stopping.is_alive()


def test_ready_means_that_one_query_was_answered(folder: Path) -> None:
    held = Held()
    service = Service(LOCAL)
    try:
        retriever = hooked(folder, held)
        assert held.batches == []
        service.load(retriever)
        assert held.batches == [1]
    finally:
        service.stop()


def test_reflection_lists_the_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {"uec.v1.Retrieval", "grpc.health.v1.Health"} <= set(database.get_services())
    assert database.FindFileContainingSymbol("uec.v1.SearchRequest").name == "uec/v1/uec.proto"


def test_port_in_use(folder: Path) -> None:
    first = Service(LOCAL)
    try:
        with pytest.raises(InputError, match="port is in use"):
            create_server(folder, f"127.0.0.1:{first.port}")
        with pytest.raises(InputError, match="port is in use"):
            serve(folder, f"127.0.0.1:{first.port}")
    finally:
        first.stop()
    with pytest.raises(InputError, match="HOST:PORT of this machine"):
        create_server(folder, "no-such-host.invalid:1")


def test_an_index_that_does_not_open_frees_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        with pytest.raises(NotFoundError):
            create_server(tmp_path, f"127.0.0.1:{port}")


# --- statuses -------------------------------------------------------------------------------------


def all_errors() -> list[type[errors.UECError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.UECError) and kind is not errors.UECError
    ]


def test_every_error_has_a_status() -> None:
    assert set(all_errors()) == set(STATUS)
    assert len(STATUS) >= 9


def make(kind: type[errors.UECError]) -> errors.UECError:
    arguments: dict[type[errors.UECError], tuple[Any, ...]] = {
        errors.EmbeddingError: ("member 'a' gave a NaN vector for text 0", 0),
        errors.DependencyError: ("/secret/package", "gpu", "this"),
        errors.ServiceError: ("UNAVAILABLE", "not now"),
    }
    return kind(*arguments.get(kind, ("about /secret/file",)))


EXPECTED = {
    "InputError": Code.INVALID_ARGUMENT,
    "NotFoundError": Code.NOT_FOUND,
    "MismatchError": Code.FAILED_PRECONDITION,
    "CorruptArtefactError": Code.DATA_LOSS,
    "EmbeddingError": Code.INTERNAL,
    "UnsupportedEncoderError": Code.FAILED_PRECONDITION,
    "BusyError": Code.ABORTED,
    "DependencyError": Code.UNIMPLEMENTED,
    "ServiceError": Code.UNAVAILABLE,
}


def test_statuses_over_the_wire(
    start: Callable[..., grpc.Channel], caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[Exception] = []

    def fail(texts: Sequence[str]) -> None:
        if raised:
            raise raised[0]

    channel = start(fail)
    for kind in all_errors():
        raised[:] = [make(kind)]
        with pytest.raises(grpc.RpcError) as caught:
            search(channel, "river")
        assert caught.value.code() is EXPECTED[kind.__name__], kind
        # What the server's own files or packages are called is not the caller's business.
        own = kind not in (errors.InputError, errors.NotFoundError)
        assert not (own and "secret" in caught.value.details()), kind
    raised[:] = [RuntimeError("cannot read /secret/file of user bob")]
    with pytest.raises(grpc.RpcError) as caught:
        search(channel, "river")
    assert caught.value.code() is Code.INTERNAL
    told = re.fullmatch(
        r"the service failed; its log has incident ([0-9a-f]{12})", caught.value.details()
    )
    assert told is not None
    [record] = [record for record in caplog.records if told[1] in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert "user bob" in caplog.text
    assert "Traceback" in caplog.text
    raised.clear()
    assert search(channel, "river").rankings


class CustomInputError(InputError):
    pass


def test_errors_defined_elsewhere_count_as_their_base() -> None:
    assert refusal(CustomInputError("no")).code is Code.INVALID_ARGUMENT


def test_nan_vectors(start: Callable[..., grpc.Channel], monkeypatch: pytest.MonkeyPatch) -> None:
    from uec.encoders.hashing import HashingEncoder

    original = HashingEncoder.encode

    def poisoned(self: Any, texts: Sequence[str], role: Any, **settings: Any) -> Any:
        encoding = original(self, texts, role, **settings)
        encoding.mean[[n for n, text in enumerate(texts) if "poison" in text]] = np.nan
        return encoding

    monkeypatch.setattr(HashingEncoder, "encode", poisoned)
    channel = start(lambda texts: None)
    with pytest.raises(grpc.RpcError, match=r"member 'a' gave a NaN .* for text 1") as caught:
        search(channel, "river", "poison")
    assert caught.value.code() is Code.INTERNAL
    with pytest.raises(grpc.RpcError, match=f"from text {SLICE} on: member 'a' .* for text 2"):
        search(channel, *["river"] * (SLICE + 2), "poison")


NAN = float("nan")
OPTION = pb.SearchOptions


@pytest.mark.parametrize(
    ("method", "request_message", "field"),
    [
        ("Search", pb.SearchRequest(), "queries"),
        ("Search", pb.SearchRequest(queries=["x"] * 257), "queries"),
        ("Search", pb.SearchRequest(queries=["x", " \n"]), "queries[1]"),
        ("Search", pb.SearchRequest(queries=["x" * 200_001]), "queries[0]"),
        ("Search", pb.SearchRequest(queries="x", options=OPTION(top_k=0)), "options.top_k"),
        ("Search", pb.SearchRequest(queries="x", options=OPTION(top_k=-1)), "options.top_k"),
        ("Search", pb.SearchRequest(queries="x", options=OPTION(top_k=1001)), "options.top_k"),
        (
            "Search",
            pb.SearchRequest(queries="x", options=OPTION(n_candidates=10_001)),
            "options.n_candidates",
        ),
        (
            "Search",
            pb.SearchRequest(queries="x", options=OPTION(n_candidates=9)),
            "options: top_k 10 is larger than n_candidates 9",
        ),
        ("Search", pb.SearchRequest(queries="x", options=OPTION(beta=NAN)), "options: beta"),
        ("Search", pb.SearchRequest(queries="x", options=OPTION(beta=-0.5)), "options: beta"),
        (
            "Search",
            pb.SearchRequest(queries="x", options=OPTION(temperature=NAN)),
            "options: temperature",
        ),
        (
            "Search",
            pb.SearchRequest(queries="x", options=OPTION(temperature=0)),
            "options: temperature",
        ),
        ("Search", pb.SearchRequest(queries="x", options=OPTION(fusion=17)), "options.fusion"),  # type: ignore[arg-type]
        (
            "Search",
            pb.SearchRequest(queries="x", options=OPTION(posterior=-3)),  # type: ignore[arg-type]
            "options.posterior",
        ),
        ("Encode", pb.EncodeRequest(texts=["x"]), "role"),
        ("Encode", pb.EncodeRequest(texts=["x"], role=9), "role"),  # type: ignore[arg-type]
        ("Encode", pb.EncodeRequest(role=pb.ROLE_QUERY), "texts"),
        (
            "Encode",
            pb.EncodeRequest(
                texts=["x"], role=pb.ROLE_QUERY, options=OPTION(fusion=pb.FUSION_AVERAGE)
            ),
            "options.fusion",
        ),
        ("Rerank", pb.RerankRequest(query="x"), "candidates"),
        ("Rerank", pb.RerankRequest(ids=pb.CandidateIds(doc_ids=["d00"])), "query"),
        ("Rerank", pb.RerankRequest(query="x", texts=pb.CandidateTexts()), "texts.items"),
        (
            "Rerank",
            pb.RerankRequest(
                query="x", texts=pb.CandidateTexts(items=[pb.CandidateText(doc_id="i")])
            ),
            "texts.items[0].text",
        ),
        (
            "Rerank",
            # The second is "1" by its position, the third by its name.
            pb.RerankRequest(
                query="x",
                texts=pb.CandidateTexts(
                    items=[
                        pb.CandidateText(text="u"),
                        pb.CandidateText(text="v"),
                        pb.CandidateText(text="w", doc_id="1"),
                    ]
                ),
            ),
            "texts.items[2]",
        ),
        (
            "Rerank",
            pb.RerankRequest(query="x", ids=pb.CandidateIds(doc_ids=["d01", "d00", "d01"])),
            "ids.doc_ids[2]",
        ),
    ],
)
def test_bad_fields_are_named(
    channel: grpc.Channel, method: str, request_message: Any, field: str
) -> None:
    """`field` is the path, or the path and how the message goes on."""
    with pytest.raises(grpc.RpcError) as caught:
        getattr(uec_pb2_grpc.RetrievalStub(channel), method)(request_message, timeout=10)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    path = field.split(": ")[0]
    assert caught.value.details().startswith(field if path != field else f"{path}: ")
    status = rpc_status.from_call(caught.value)
    detail = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(detail)
    assert [violation.field for violation in detail.field_violations] == [path]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"z": 1.0}, "weights name z; the members are a, b"),
        ({"a": 0.0}, "not all zero"),
        ({}, "not all zero"),
        ({"a": float("nan")}, "weights must be"),
    ],
)
def test_weights_that_only_the_index_can_judge(
    channel: grpc.Channel, weights: dict[str, float], message: str
) -> None:
    with pytest.raises(grpc.RpcError, match=message) as caught:
        search(channel, "river", weights=pb.MemberWeights(by_member=weights))
    assert caught.value.code() is Code.INVALID_ARGUMENT


def test_unknown_document(channel: grpc.Channel) -> None:
    request = pb.RerankRequest(query="x", ids=pb.CandidateIds(doc_ids=["d00", "nope"]))
    with pytest.raises(grpc.RpcError, match="no document with id 'nope'") as caught:
        uec_pb2_grpc.RetrievalStub(channel).Rerank(request, timeout=10)
    assert caught.value.code() is Code.NOT_FOUND


def test_average_of_unequal_dimensions(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match="members of one dimension") as caught:
        search(channel, "river", fusion=pb.FUSION_AVERAGE)
    assert caught.value.code() is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "body", [b"\xff" * 40, b"\x0a\x02\xc3\x28", b"\x0a\x7f"], ids=["noise", "not UTF-8", "cut"]
)
def test_garbage(channel: grpc.Channel, body: bytes) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/uec.v1.Retrieval/Search")(body, timeout=10)
    assert caught.value.code() is Code.INTERNAL
    assert "Error" not in caught.value.details()
    assert search(channel, "river").rankings


def test_unknown_method(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/uec.v1.Retrieval/Nothing")(b"", timeout=10)
    assert caught.value.code() is Code.UNIMPLEMENTED


def test_info_has_no_path(folder: Path, channel: grpc.Channel) -> None:
    reply = uec_pb2_grpc.RetrievalStub(channel).Info(pb.InfoRequest(), timeout=10)
    assert str(folder) not in str(reply)
    assert "secret-place" not in str(reply)
    (folder.parent / "my-model").mkdir()
    assert _public_name(str(folder.parent / "my-model")) == "my-model"
    assert _public_name(str(folder.parent / "gone" / "my-model")) == "my-model"
    assert _public_name("sentence-transformers/all-MiniLM-L6-v2").count("/") == 1
    assert _public_name("hashing:32") == "hashing:32"


# --- limits ---------------------------------------------------------------------------------------


def test_too_many_calls_at_once(start: Callable[..., grpc.Channel]) -> None:
    n = 4
    held = Held()
    channel = start(held, max_concurrent=n)
    calls = [later(channel, "slow") for _ in range(n + 5)]
    wait_until(lambda: sum(call.done() for call in calls) == 5)
    refused = [call for call in calls if call.done()]
    admitted = [call for call in calls if call not in refused]
    assert [call.code() for call in refused] == [Code.RESOURCE_EXHAUSTED] * 5
    # A busy server is not a dead one.
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert check.status == Status.SERVING
    assert uec_pb2_grpc.RetrievalStub(channel).Info(pb.InfoRequest(), timeout=5).members
    held.release.set()
    assert all(call.result(timeout=10).rankings for call in admitted)
    assert search(channel, "river").rankings


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come true within ten seconds")


def test_a_flood_is_refused_and_then_over(start: Callable[..., grpc.Channel]) -> None:
    held = Held()
    channel = start(held, max_concurrent=2)
    calls = [later(channel, "slow") for _ in range(2 + SPARE_CALLS + 30)]
    wait_until(lambda: sum(call.done() for call in calls) == len(calls) - 2)
    held.release.set()
    codes = [call.code() for call in calls]
    assert codes.count(Code.OK) == 2
    assert codes.count(Code.RESOURCE_EXHAUSTED) == len(calls) - 2


def test_a_deadline_frees_the_server(start: Callable[..., grpc.Channel]) -> None:
    """A dead call stops after its current slice; the next one is answered."""
    held = Held()
    channel = start(held)
    held.batches.clear()
    call = later(channel, *(f"slow {i}" for i in range(6 * SLICE)), timeout=0.5)
    assert held.entered.acquire(timeout=5)
    assert call.exception(timeout=5).code() is Code.DEADLINE_EXCEEDED
    held.release.set()
    assert search(channel, "river").rankings
    # One slice of the dead call, then ours.
    assert held.batches == [SLICE, 1]


def test_a_deadline_of_50_ms(start: Callable[..., grpc.Channel]) -> None:
    held = Held()
    channel = start(held)
    with pytest.raises(grpc.RpcError) as caught:
        search(channel, "slow", timeout=0.05)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    held.release.set()
    assert search(channel, "river").rankings


def test_a_call_that_waits_leaves_when_its_caller_does(
    start: Callable[..., grpc.Channel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uec_server")
    held = Held()
    channel = start(held, max_concurrent=2)
    first = later(channel, "slow")
    assert held.entered.acquire(timeout=10)
    second = later(channel, "river", timeout=0.3)
    assert second.exception(timeout=5).code() is Code.DEADLINE_EXCEEDED
    # Caller and server race for whose clock ends the call first.
    wait_until(lambda: "code=DEADLINE_EXCEEDED" in caplog.text or "=CANCELLED" in caplog.text)
    # Its place is free although the first call still computes.
    third = later(channel, "river")
    held.release.set()
    assert first.result(timeout=10).rankings
    assert third.result(timeout=10).rankings


def test_cancellation_is_logged_as_such(
    start: Callable[..., grpc.Channel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uec_server")
    held = Held()
    channel = start(held)
    call = later(channel, *(f"slow {i}" for i in range(2 * SLICE)))
    assert held.entered.acquire(timeout=10)
    call.cancel()
    held.release.set()
    wait_until(lambda: "code=CANCELLED" in caplog.text)


def test_gate_gives_places_back() -> None:
    class Gone:
        def is_active(self) -> bool:
            return False

    gate = Gate(2, 1)
    for _ in range(3):
        with pytest.raises(Abandoned), gate.turn(Gone()) as turn:
            turn.in_slices(list, "abc")
    with gate.turn(Gone()):
        for _ in range(3):
            with pytest.raises(Abandoned), gate.turn(Gone()):
                pass


def test_messages_too_large(folder: Path) -> None:
    limit = 100_000
    server, port = create_server(folder, LOCAL, ServerOptions(max_message_bytes=limit))
    with Client(f"127.0.0.1:{port}") as client:
        with pytest.raises(ServiceError) as caught:
            client.search(["x" * (limit + 1)])
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        with pytest.raises(ServiceError, match=r"the reply has .* smaller top_k") as caught:
            client.search(["river"] * 40, top_k=60)
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        assert len(client.search(["river"], top_k=60)[0].hits) == 60
        assert client.info().limits["max_message_bytes"] == limit
    server.stop(None).wait()


def test_replies_beyond_the_default_of_grpc(folder: Path) -> None:
    server, port = create_server(folder)
    texts = [f"river {n}" for n in range(250)]
    request = pb.EncodeRequest(texts=texts, role=pb.ROLE_QUERY, include_members=True)
    long = pb.RerankRequest(query="x", texts=pb.CandidateTexts(items=[pb.CandidateText(text="y")]))
    long.texts.items[0].text = "y " * 90_000
    long.texts.items.extend(
        pb.CandidateText(text=long.texts.items[0].text, doc_id=f"n{n}") for n in range(29)
    )
    long.options.top_k = 30
    assert long.ByteSize() > 4 * 1024 * 1024
    with Client(f"127.0.0.1:{port}") as client:
        assert len(client._call(client._stub.Encode, request).encodings) == 250
        reply = client._call(client._stub.Rerank, long)
    server.stop(None).wait()
    assert reply.ByteSize() > 4 * 1024 * 1024
    assert len(reply.ranking.hits) == 30


def test_many_callers_get_their_own_answers(folder: Path) -> None:
    retriever = Retriever.open(folder)
    server, port = create_server(retriever, LOCAL, ServerOptions(max_parallel=3))
    queries = [f"river {word}" for word in WORDS[:6]] * 8
    with Client(f"127.0.0.1:{port}") as client, ThreadPoolExecutor(12) as pool:
        rankings = list(pool.map(lambda query: client.search([query], top_k=5)[0], queries))
    server.stop(None).wait()
    for query, ranking in zip(queries, rankings, strict=True):
        [expected] = retriever.search([query], top_k=5)
        assert [h.doc_id for h in ranking.hits] == [h.doc_id for h in expected.hits]
        assert ranking.weights == pytest.approx(expected.weights)


def test_bad_options() -> None:
    with pytest.raises(InputError, match="max_concurrent must be positive; got 0"):
        ServerOptions(max_concurrent=0)


def test_one_log_line_a_call_without_texts(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uec_server")
    search(channel, "confidential river", "another")
    with pytest.raises(grpc.RpcError):
        search(channel, "confidential river", top_k=0)
    wait_until(lambda: len(caplog.records) == 2)
    good, bad = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"method=/uec\.v1\.Retrieval/Search code=OK duration_ms=[\d.]+ n=2", good)
    assert "code=INVALID_ARGUMENT" in bad
    assert "confidential" not in caplog.text


# --- the process ----------------------------------------------------------------------------------

SERVE = """
import sys, time
from pathlib import Path
from uec.encoders.hashing import HashingEncoder
from uec_server.app import serve
from uec_server.options import ServerOptions

encode = HashingEncoder.encode

def slow(self, texts, role, **settings):
    if any("slow" in text for text in texts):
        print("encoding", flush=True)
        time.sleep(0.7)
    return encode(self, texts, role, **settings)

HashingEncoder.encode = slow
if sys.argv[2] == "stuck":
    from uec.retriever import Retriever
    Retriever.open = lambda path: time.sleep(60)
sys.exit(serve(Path(sys.argv[1]), "127.0.0.1:0", ServerOptions(grace_s=10)))
"""


@pytest.fixture
def process(folder: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started = []

    def run(mode: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SERVE, str(folder), mode]
        paths = [path for path in sys.path if path]
        started.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        )
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.communicate()


def read_until(process: subprocess.Popen[str], event: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if f"event={event}" in line:
            return line
    raise AssertionError(f"the server ended without event={event}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(
    process: Callable[[str], subprocess.Popen[str]], number: signal.Signals
) -> None:
    server = process("normal")
    port = re.search(r"port=(\d+)", read_until(server, "serving"))
    assert port is not None and server.stdout is not None
    with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
        call = later(channel, "slow river")
        assert server.stdout.readline() == "encoding\n"
        server.send_signal(number)
        read_until(server, "draining")
        assert call.result(timeout=10).rankings[0].hits
        _, rest = server.communicate(timeout=10)
    assert server.returncode == 0
    assert "event=stopped" in rest
    assert "Traceback" not in rest


def test_a_signal_while_loading(process: Callable[[str], subprocess.Popen[str]]) -> None:
    server = process("stuck")
    read_until(server, "loading")
    server.send_signal(signal.SIGTERM)
    _, rest = server.communicate(timeout=10)
    assert server.returncode == 0
    assert "Traceback" not in rest


def test_a_damaged_index_is_not_served(tmp_path: Path) -> None:
    folder = make_index(tmp_path / "index")
    vectors = Index.open(folder).artefact.file("vectors.faiss")
    damaged = bytearray(vectors.read_bytes())
    damaged[-1] ^= 1
    vectors.write_bytes(damaged)
    with pytest.raises(errors.CorruptArtefactError):
        serve(folder, LOCAL)
