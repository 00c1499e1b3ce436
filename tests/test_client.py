"""The client gives what the library gives, and fails in an orderly way."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("grpc_health", reason="needs the extra 'server'")

from serving import make_documents, make_index
from uec_server.app import Service, create_server

from uec.client import MAX_ATTEMPTS, Client
from uec.errors import InputError, ServiceError
from uec.records import Document, Ranking, SearchOptions
from uec.retriever import Retriever
from uec.v1 import uec_pb2 as pb
from uec.v1 import uec_pb2_grpc
from uec.weighing import fused_queries

QUERIES = ["river database", "python vector storm", "Übersicht 今日", "lemma " * 30]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    return Retriever.open(make_index(tmp_path_factory.mktemp("index") / "index"))


@pytest.fixture(scope="module")
def client(retriever: Retriever) -> Iterator[Client]:
    server, port = create_server(retriever)
    with Client(f"127.0.0.1:{port}") as client:
        yield client
    server.stop(None).wait()


def same(one: Ranking, other: Ranking) -> None:
    """Equal in everything but the timings; floats to 1e-6."""
    assert flat(asdict(one)) == flat(asdict(other))


def flat(value: Any) -> Any:
    """Nested values with floats made comparable and timings left out."""
    if isinstance(value, dict):
        return {key: flat(inner) for key, inner in value.items() if key != "timings_ms"}
    if isinstance(value, list | tuple):
        return [flat(inner) for inner in value]
    return pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 3, "explain": True},
        {"posterior": "diag", "beta": 0.0, "n_candidates": 20},
        {"temperature": 0.25, "beta": 2.5},
        {"temperature": math.inf},
        {"weights": {"b": 2.0}},
        {"weights": {"a": 1.0, "b": 3.0}, "explain": True, "top_k": 60},
    ],
)
def test_search_is_congruent(client: Client, retriever: Retriever, changes: dict[str, Any]) -> None:
    got = client.search(QUERIES, **changes)
    expected = retriever.search(QUERIES, **changes)
    assert len(got) == len(expected) == len(QUERIES)
    for one, other in zip(got, expected, strict=True):
        same(one, other)
    assert set(got[0].timings_ms) == {"queue", "encode", "weigh", "retrieve", "rerank"}
    assert list(got[0].weights) == ["a", "b"]
    assert got[3].truncated == ("a", "b")
    # Each hit has its probability unless weights or beta are not those of the calibration.
    calibrated = changes.get("temperature", math.inf) == math.inf and "weights" not in changes
    assert (got[0].hits[0].probability is not None) == calibrated


def test_search_takes_the_options_of_the_library(client: Client, retriever: Retriever) -> None:
    options = SearchOptions(top_k=4, posterior="diag", explain=True)
    [got] = client.search(QUERIES[:1], options, top_k=2)
    [expected] = retriever.search(QUERIES[:1], options, top_k=2)
    same(got, expected)
    assert len(got.hits) == 2


def test_average_fusion_is_congruent(tmp_path: Path) -> None:
    retriever = Retriever.open(make_index(tmp_path / "index", ("hashing:32", "hashing:32:1")))
    server, port = create_server(retriever)
    with Client(f"127.0.0.1:{port}") as client:
        for got, expected in zip(
            client.search(QUERIES, fusion="average"),
            retriever.search(QUERIES, fusion="average"),
            strict=True,
        ):
            same(got, expected)
    server.stop(None).wait()


def test_many_queries_in_slices(client: Client, retriever: Retriever) -> None:
    queries = [f"{QUERIES[n % 2]} {n}" for n in range(75)]
    got = client.search(queries, top_k=5)
    assert [ranking.query for ranking in got] == queries
    for one, other in zip(got, retriever.search(queries, top_k=5), strict=True):
        same(one, other)


@pytest.mark.parametrize("n", [1, 12, 50])
def test_rerank_is_congruent(client: Client, retriever: Retriever, n: int) -> None:
    documents = [Document(f"new{i}", d.text, d.title, d.metadata) for i, d in enumerate(DOCS[:n])]
    got = client.rerank(QUERIES[0], documents, explain=True, top_k=40)
    same(got, retriever.rerank(QUERIES[0], documents, explain=True, top_k=40))
    assert got.hits[0].document.metadata == documents[0].metadata | {
        "year": got.hits[0].document.metadata["year"],
        "ok": got.hits[0].document.metadata["ok"],
    }


def test_rerank_by_id_gives_the_scores_of_a_search(client: Client) -> None:
    [searched] = client.search(QUERIES[:1], top_k=60)
    ids = ["d07", "d42", "d00"]
    got = client.rerank_ids(QUERIES[0], ids)
    # Given documents are not the best of a corpus, so they have no probability.
    expected = [replace(hit, probability=None) for hit in searched.hits if hit.doc_id in ids]
    assert flat([asdict(hit) for hit in got.hits]) == flat([asdict(hit) for hit in expected])


def test_rerank_numbers_candidates_without_id(client: Client, retriever: Retriever) -> None:
    items = [pb.CandidateText(text="river"), pb.CandidateText(text="database river")]
    request = pb.RerankRequest(query=QUERIES[0], texts=pb.CandidateTexts(items=items))
    reply = client._stub.Rerank(request)
    named = [Document("0", "river"), Document("1", "database river")]
    expected = retriever.rerank(QUERIES[0], named)
    assert [h.doc_id for h in reply.ranking.hits] == [h.doc_id for h in expected.hits]


def test_encoded_queries_are_congruent(client: Client, retriever: Retriever) -> None:
    got = client.encode(QUERIES, "query", include_members=True, posterior="diag", temperature=0.5)
    options = SearchOptions(posterior="diag", temperature=0.5)
    weighed = retriever.weigh(QUERIES, options)
    np.testing.assert_allclose([one.vector for one in got], fused_queries(weighed), rtol=1e-6)
    for n, one in enumerate(got):
        assert one.text == QUERIES[n]
        for k, (member, view) in enumerate(zip(weighed.members, one.members, strict=True)):
            assert view.mean is not None
            np.testing.assert_allclose(view.mean, member.mean[n], rtol=1e-6)
            assert view.member == "ab"[k]
            assert view.trace == pytest.approx(member.calibrated["diag"][n], rel=1e-6)
            assert view.raw_trace == pytest.approx(member.gaussians["diag"].trace[n], rel=1e-6)
            assert view.trace == pytest.approx(view.raw_trace / 0.8, rel=1e-5)
            assert view.weight == pytest.approx(weighed.weights[n, k], rel=1e-6)
            assert (view.tokens, view.truncated) == (member.tokens[n], member.truncated[n])


def test_vectors_order_documents_as_a_search_does(client: Client) -> None:
    """Inner products of encoded texts differ from fused similarities by one constant."""
    documents = client.encode([d.passage for d in DOCS], "document")
    assert documents[0].members[0].weight is None
    assert documents[0].members[0].mean is None
    [query] = client.encode(QUERIES[:1], "query")
    [ranking] = client.search(QUERIES[:1], top_k=60)
    products = {d.doc_id: one.vector @ query.vector for d, one in zip(DOCS, documents, strict=True)}
    offsets = [products[hit.doc_id] - hit.similarity for hit in ranking.hits]
    assert len(offsets) == 60
    assert np.ptp(offsets) < 1e-4
    assert np.ptp([hit.similarity for hit in ranking.hits]) > 1


def test_info(client: Client, retriever: Retriever) -> None:
    info = client.info()
    assert info.index_fingerprint == retriever.index.artefact.fingerprint
    assert (info.n_documents, info.stored_variance) == (60, "sketch")
    assert [member["name"] for member in info.members] == ["a", "b"]
    assert info.members[1]["dimension"] == 48
    assert info.members[0]["max_length"] == 60
    assert info.members[0]["fit"] == {"report": {"steps": 3}}
    assert info.defaults == {
        "top_k": 10,
        "n_candidates": 1000,
        "posterior": "kron",
        "temperature": float("inf"),
        "beta": 0.0,
        "fusion": "concat",
        "explain": False,
    }
    assert info.limits["max_texts"] == 256
    assert info.limits["max_concurrent"] == 64
    assert {"uec", "numpy", "grpcio"} <= set(info.versions)


def test_health(client: Client) -> None:
    assert client.health() == "SERVING"
    assert client.health("uec.v1.Retrieval") == "SERVING"
    with pytest.raises(ServiceError) as caught:
        client.health("uec.v1.Nothing")
    assert caught.value.code == "NOT_FOUND"


def test_refusals_carry_code_and_message(client: Client) -> None:
    with pytest.raises(ServiceError, match=r"options\.top_k: got 1001, expected 1 to 1000") as got:
        client.search(["river"], top_k=1001)
    assert got.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"posterior": "full"}, "posterior must be one of diag, kron; got 'full'"),
        ({"fusion": ""}, "fusion must be one of concat, average"),
        ({"top_k": 2**40}, "cannot be sent"),
        ({"topk": 3}, "cannot be sent"),
        ({"weights": {"a": "much"}}, "cannot be sent"),
    ],
)
def test_unsendable_options(client: Client, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        client.search(["river"], **changes)


def test_unsendable_texts(client: Client) -> None:
    with pytest.raises(InputError, match="cannot be sent"):
        client.search(["half a surrogate \ud800"])
    with pytest.raises(InputError, match="put it in a list"):
        client.search("river")


def test_no_texts_need_no_server() -> None:
    with Client("127.0.0.1:1") as client:
        assert client.search([]) == []
        assert client.encode([], "query") == []


class Flaky(uec_pb2_grpc.RetrievalServicer):
    """Answers `codes` in turn, then OK."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self.codes = list(codes)
        self.calls = 0

    def Info(self, request: Any, context: Any) -> Any:
        self.calls += 1
        if self.codes:
            context.abort(self.codes.pop(0), "not now")
        return pb.InfoResponse(n_documents=17)


@pytest.fixture
def serve_flaky() -> Iterator[Any]:
    servers = []

    def start(servicer: Flaky) -> Client:
        server = grpc.server(ThreadPoolExecutor(2))
        uec_pb2_grpc.add_RetrievalServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return Client(f"127.0.0.1:{port}", timeout_s=10.0, initial_backoff_s=0.01)

    yield start
    for server in servers:
        server.stop(None).wait()


def test_unavailable_is_tried_again(serve_flaky: Any) -> None:
    flaky = Flaky(*[grpc.StatusCode.UNAVAILABLE] * (MAX_ATTEMPTS - 1))
    with serve_flaky(flaky) as client:
        assert client.info().n_documents == 17
    assert flaky.calls == MAX_ATTEMPTS


def test_attempts_end(serve_flaky: Any) -> None:
    flaky = Flaky(*[grpc.StatusCode.UNAVAILABLE] * (MAX_ATTEMPTS + 3))
    with serve_flaky(flaky) as client, pytest.raises(ServiceError) as caught:
        client.info()
    assert (caught.value.code, flaky.calls) == ("UNAVAILABLE", MAX_ATTEMPTS)


@pytest.mark.parametrize("name", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL"])
def test_other_codes_are_final(serve_flaky: Any, name: str) -> None:
    flaky = Flaky(grpc.StatusCode[name])
    with serve_flaky(flaky) as client, pytest.raises(ServiceError, match="not now") as caught:
        client.info()
    assert (caught.value.code, flaky.calls) == (name, 1)


def test_nobody_there() -> None:
    with Client("127.0.0.1:1", timeout_s=5.0, initial_backoff_s=0.01) as client:
        with pytest.raises(ServiceError) as caught:
            client.search(["river"])
        assert caught.value.code == "UNAVAILABLE"
        with pytest.raises(ServiceError, match="not reachable") as caught:
            client.wait_until_ready(0.3)
        assert caught.value.code == "DEADLINE_EXCEEDED"


def test_wait_until_ready(retriever: Retriever) -> None:
    service = Service("127.0.0.1:0")
    try:
        with Client(f"127.0.0.1:{service.port}") as client:
            with pytest.raises(ServiceError, match="NOT_SERVING"):
                client.wait_until_ready(0.2)
            timer = threading.Timer(0.3, service.load, [retriever])
            timer.start()
            client.wait_until_ready(30.0)
            assert client.search(["river"], top_k=1)[0].hits
            timer.join()
    finally:
        service.stop()


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="timeout_s must be positive; got 0"):
        Client("127.0.0.1:1", timeout_s=0.0)


def test_client_is_light() -> None:
    """A client process loads neither torch nor the vector store nor the encoders."""
    code = (
        "import sys, uec.client\n"
        "heavy = {'torch', 'faiss', 'sentence_transformers', 'sklearn',"
        " 'uec.index', 'uec.encoders', 'uec.retriever'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_grpc_is_told() -> None:
    code = "import sys; sys.modules['grpc'] = None; import uec.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'uec[client]'" in done.stderr.splitlines()[-1]


DOCS = make_documents()
