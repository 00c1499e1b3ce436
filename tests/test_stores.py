"""Stores: vectors and documents come back as they went in, and are found as NumPy finds them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest

from uec.errors import (
    CorruptArtefactError,
    EmbeddingError,
    InputError,
    MismatchError,
    NotFoundError,
    UECError,
)
from uec.records import Document
from uec.stores import Store
from uec.stores.documents import DocumentStore, DocumentWriter
from uec.stores.faiss import FaissStore, FaissStoreWriter

ROOT = Path(__file__).parents[1]
N, D = 1000, 24


def random_rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, D)).astype(np.float32)


ROWS = random_rows(N, 0)
# 50 queries take FAISS's matrix-product path, 3 its row-by-row path.
QUERIES = random_rows(50, 1)


def write(path: Path, rows: np.ndarray, chunk: int = 300) -> Path:
    with FaissStoreWriter(path, rows.shape[1]) as writer:
        for start in range(0, len(rows), chunk):
            writer.add(rows[start : start + chunk])
    return path


def run(script: str, *arguments: str, optimise: bool = False) -> str:
    command = [sys.executable, *(["-O"] if optimise else []), "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> FaissStore:
    return FaissStore(write(tmp_path / "vectors.faiss", ROWS))


@pytest.mark.parametrize(("n", "d", "chunk"), [(1, 1, 1), (1000, D, 300), (1000, D, 1), (7, 3, 9)])
def test_the_file_is_the_one_that_faiss_writes(tmp_path: Path, n: int, d: int, chunk: int) -> None:
    rows = np.random.default_rng(n).standard_normal((n, d)).astype(np.float32)
    index = faiss.IndexFlatIP(d)
    index.add(rows)
    faiss.write_index(index, str(tmp_path / "theirs"))
    ours = write(tmp_path / "ours", rows, chunk)
    assert ours.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_rows_that_are_not_contiguous_are_written_as_seen(tmp_path: Path) -> None:
    for view in (ROWS[::2, ::-1], np.asfortranarray(ROWS)):
        store = FaissStore(write(tmp_path / "x", view))
        np.testing.assert_array_equal(store.fetch(np.arange(len(view))), view)


@pytest.mark.parametrize("n_queries", [1, 3, 50])
@pytest.mark.parametrize("n_candidates", [1, 10, N, N + 5])
def test_search_equals_brute_force(store: FaissStore, n_queries: int, n_candidates: int) -> None:
    queries = QUERIES[:n_queries]
    exact = queries.astype(np.float64) @ ROWS.T.astype(np.float64)
    order = np.argsort(-exact, axis=1)
    ranked = np.take_along_axis(exact, order, axis=1)
    similarities, rows = store.search(queries, n_candidates)
    c = min(n_candidates, N)
    assert rows.shape == (n_queries, c)
    assert all(len(set(found)) == c for found in rows)
    np.testing.assert_allclose(similarities, ranked[:, :c], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(exact, rows, axis=1), ranked[:, :c], atol=1e-5)
    # Where float32 can tell a similarity from its neighbours, the row is the very one.
    gaps = -np.diff(ranked, axis=1, prepend=np.inf, append=-np.inf)
    clear = (np.minimum(gaps[:, :-1], gaps[:, 1:]) > 1e-5)[:, :c]
    np.testing.assert_array_equal(rows[clear], order[:, :c][clear])
    assert clear.mean() > 0.9


def test_fetch_returns_the_rows_asked_for(store: FaissStore) -> None:
    rows = np.array([N - 1, 0, 5, 5])
    np.testing.assert_array_equal(store.fetch(rows), ROWS[rows])
    assert store.fetch(np.array([], dtype=np.int64)).shape == (0, D)
    similarities, found = store.search(QUERIES[:0], 5)
    assert similarities.shape == found.shape == (0, 5)


def test_it_is_a_store(store: FaissStore) -> None:
    contract: Store = store
    assert (contract.n_documents, contract.dimension) == (N, D)


# Under -O the checks that FAISS makes by `assert` are gone; ours must stand.
BAD_CALLS = """
import sys
import numpy as np
from uec.errors import UECError
from uec.stores.faiss import FaissStore, FaissStoreWriter

path, d = sys.argv[1], int(sys.argv[2])
store = FaissStore(path)
nan, inf = np.zeros((2, d), np.float32), np.zeros((2, d), np.float32)
nan[1, 0], inf[1, 0] = np.nan, np.inf
writer = FaissStoreWriter(path + ".new", d)
calls = [
    lambda: store.search(np.zeros((1, d - 1), np.float32), 5),
    lambda: store.search(np.zeros((1, d + 1), np.float32), 5),
    lambda: store.search(nan, 5),
    lambda: store.search(inf, 5),
    lambda: store.search(np.full((1, d), 3e38, np.float32), 5),
    lambda: store.search(np.zeros((1, d), np.float32), 0),
    lambda: store.fetch(np.array([0, -1])),
    lambda: store.fetch(np.array([store.n_documents])),
    lambda: writer.add(np.zeros((1, d - 1), np.float32)),
    lambda: writer.add(np.zeros((1, d))),
    lambda: writer.add(nan),
    lambda: writer.add(inf),
    lambda: FaissStoreWriter(path + ".new", 0),
]
for call in calls:
    try:
        print("answered", call())
    except UECError as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("optimise", [False, True])
def test_bad_calls_are_refused_before_faiss_sees_them(tmp_path: Path, optimise: bool) -> None:
    path = write(tmp_path / "vectors.faiss", ROWS)
    lines = run(BAD_CALLS, str(path), str(D), optimise=optimise).splitlines()
    assert lines == [
        "InputError: vectors: got shape (1, 23), expected (n, 24)",
        "InputError: vectors: got shape (1, 25), expected (n, 24)",
        "InputError: query vector 1 has NaN or infinite entries",
        "InputError: query vector 1 has NaN or infinite entries",
        "InputError: a query vector is so long that its inner products overflow float32",
        "InputError: n_candidates: got 0, expected at least 1",
        "NotFoundError: row -1: the index has rows 0 to 999",
        "NotFoundError: row 1000: the index has rows 0 to 999",
        "InputError: vectors: got shape (1, 23), expected (n, 24)",
        "InputError: dtype: got float64, expected float32",
        "EmbeddingError: row 1 has NaN or infinite entries (1 such rows of 2)",
        "EmbeddingError: row 1 has NaN or infinite entries (1 such rows of 2)",
        "InputError: dimension: got 0, expected at least 1",
    ]


def test_a_refused_row_is_counted_from_the_start_and_within_the_call(tmp_path: Path) -> None:
    bad = ROWS[:3].copy()
    bad[2, 4] = np.nan
    with FaissStoreWriter(tmp_path / "x", D) as writer:
        writer.add(ROWS[:10])
        with pytest.raises(EmbeddingError, match="row 12 has") as caught:
            writer.add(bad)
        assert caught.value.row == 2
    assert FaissStore(tmp_path / "x").n_documents == 10  # and nothing of the refused call


def test_an_index_needs_a_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no vectors were added"):
        write(tmp_path / "x", ROWS[:0])


def hnsw(path: Path) -> None:
    index = faiss.IndexHNSWFlat(D, 8, faiss.METRIC_INNER_PRODUCT)
    index.add(ROWS[:50])
    faiss.write_index(index, str(path))


def squared(path: Path) -> None:
    index = faiss.IndexFlatL2(D)
    index.add(ROWS[:50])
    faiss.write_index(index, str(path))


def generic_l2(path: Path) -> None:
    index = faiss.IndexFlat(D, faiss.METRIC_L2)
    index.add(ROWS[:50])
    faiss.write_index(index, str(path))


def patched(position: int, value: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(write(path, ROWS).read_bytes())
        data[position] = value
        path.write_bytes(data)

    return damage


def cut(path: Path) -> None:
    path.write_bytes(write(path, ROWS).read_bytes()[:-1])


def longer(path: Path) -> None:
    path.write_bytes(write(path, ROWS).read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: None, NotFoundError, "run `uec index`"),
        (lambda path: path.write_bytes(b""), CorruptArtefactError, "got 0 bytes"),
        (hnsw, MismatchError, "index type: got b'IHN"),
        (squared, MismatchError, "index type: got b'IxF2'"),
        (patched(33, faiss.METRIC_L1), MismatchError, "metric: got 2"),
        (cut, CorruptArtefactError, "size: got 96044 bytes, expected 96045"),
        (longer, CorruptArtefactError, "size: got 96046 bytes, expected 96045"),
        (patched(4, D + 1), CorruptArtefactError, "rows of dimension 25"),
        (patched(7, 0xFF), CorruptArtefactError, "rows of dimension -"),  # the sign bit
        (patched(8, 0), CorruptArtefactError, "768 rows"),
        (patched(15, 0x40), CorruptArtefactError, "rows of dimension 24"),  # 2^62 more rows
        (patched(37, 0), CorruptArtefactError, "1000 rows"),
    ],
)
def test_a_wrong_file_is_refused_before_faiss_reads_it(
    tmp_path: Path, make: Callable[[Path], None], error: type[UECError], message: str
) -> None:
    path = tmp_path / "vectors.faiss"
    make(path)
    with pytest.raises(error, match=message):
        FaissStore(path)


def test_concurrent_searches_agree_with_a_lone_one(store: FaissStore) -> None:
    alone = [store.search(QUERIES[i : i + 1], 20) for i in range(len(QUERIES))]

    def search(i: int) -> bool:
        similarities, rows = store.search(QUERIES[i : i + 1], 20)
        fetched = store.fetch(rows[0])
        return (
            np.array_equal(rows, alone[i][1])
            and np.array_equal(similarities, alone[i][0])
            and np.array_equal(fetched, ROWS[rows[0]])
        )

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(search, [i for _ in range(10) for i in range(len(QUERIES))]))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_building_and_opening_take_memory_that_does_not_grow_with_the_corpus(
    tmp_path: Path,
) -> None:
    # 300 MB of vectors. Building: peak resident memory. Opening and fetching: resident memory.
    script = """
import sys
import numpy as np
from uec.stores.faiss import FaissStore, FaissStoreWriter

def memory(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) / 1024

path = sys.argv[1]
chunk = np.random.default_rng(0).standard_normal((10_000, 500)).astype(np.float32)
before = memory("VmHWM:")
with FaissStoreWriter(path, 500) as writer:
    for i in range(15):
        chunk[0] = i
        writer.add(chunk)
print(memory("VmHWM:") - before)
before = memory("VmRSS:")
store = FaissStore(path)
rows = np.arange(15) * 10_000
assert (store.fetch(rows)[:, 7] == np.arange(15)).all()
print(memory("VmRSS:") - before)
"""
    path = tmp_path / "vectors.faiss"
    building, opening = map(float, run(script, str(path)).split())
    assert path.stat().st_size > 300e6
    assert building < 120
    assert opening < 60
    path.unlink()


DOCUMENTS = [
    Document("a", "text", "title", {"url": "u", "tags": ["x", 1, None], "日本": {"n": 1.5}}),
    Document("39#0", "", "", {}),
    Document("Ä é e\u0301 \U0001f600", "line\u2028break\r\n\ttab \0 nul", "\0", {"\0": "\0"}),
    Document("A", "another case", "", {}),
    Document(" a", "another space", "", {}),
]


def located(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    return ((f"corpus.jsonl:{i}", document) for i, document in enumerate(documents, start=1))


@pytest.fixture(name="documents")
def _documents(tmp_path: Path) -> Iterator[DocumentStore]:
    # Characters that mean something in a URI must not in a path.
    path = tmp_path / "a b?c#d%20.sqlite"
    with DocumentWriter(path) as writer:
        writer.add(located(DOCUMENTS[:2]))
        writer.add(located(DOCUMENTS[2:]))
    with DocumentStore(path) as store:
        yield store


def test_documents_come_back_unchanged_in_the_order_asked(documents: DocumentStore) -> None:
    assert len(documents) == len(DOCUMENTS)
    assert documents.get(range(5)) == DOCUMENTS
    assert documents.get(np.array([2, 0, 2])) == [DOCUMENTS[i] for i in (2, 0, 2)]
    assert documents.ids([4, 1]) == [" a", "39#0"]
    ids = [document.doc_id for document in reversed(DOCUMENTS)]
    np.testing.assert_array_equal(documents.rows(ids), [4, 3, 2, 1, 0])
    assert documents.get([]) == [] and documents.rows([]).shape == (0,)


def test_unknown_documents_are_named(documents: DocumentStore) -> None:
    with pytest.raises(NotFoundError, match=r"no document with id 'b', '39'$"):
        documents.rows(["a", "b", "39"])
    with pytest.raises(NotFoundError, match="'0', '1', '2', '3', '4' and 2 more"):
        documents.rows([str(i) for i in range(7)])
    for row in (-1, 5):
        with pytest.raises(NotFoundError, match=f"row {row}: the index has rows 0 to 4"):
            documents.get([0, row])


def test_a_duplicate_id_is_named_with_both_positions(tmp_path: Path) -> None:
    def document(doc_id: str) -> Document:
        return Document(doc_id, "text")

    # Positions with gaps, a second file, and a source that has no lines.
    sources = [
        *((f"one.jsonl:{line}", document(f"1-{line}")) for line in (1, 2, 5, 6)),
        *((f"dir:x/two.jsonl:{line}", document(f"2-{line}")) for line in (1, 2)),
        ("json.dumps", document("3")),
        ("json.loads", document("4")),
    ]
    for i, (position, original) in enumerate(sources):
        with DocumentWriter(tmp_path / f"{i}.sqlite") as writer:
            writer.add(sources[:3])
            writer.add(sources[3:])
            with pytest.raises(InputError) as caught:
                writer.add([("new.jsonl:9", original)])
        assert str(caught.value) == (
            f"new.jsonl:9: duplicate document id {original.doc_id!r}, first at {position}"
        )


@pytest.mark.parametrize(
    "document",
    [
        Document("x", "\ud800"),
        Document("x", "t", "\udfff"),
        Document("x", "t", "", {"a": "\ud800"}),
        Document("x", "t", "", {"a": float("nan")}),
        Document("x", "t", "", {"a": {1, 2}}),
    ],
)
def test_a_document_that_no_file_can_hold_is_refused(tmp_path: Path, document: Document) -> None:
    with (
        DocumentWriter(tmp_path / "x.sqlite") as writer,
        pytest.raises(InputError, match=r"^c:1: document 'x' cannot be stored: "),
    ):
        writer.add([("c:1", document)])


def test_documents_are_read_by_many_threads(documents: DocumentStore) -> None:
    def read(i: int) -> bool:
        row = i % len(DOCUMENTS)
        return (
            documents.get([row]) == [DOCUMENTS[row]]
            and documents.rows([DOCUMENTS[row].doc_id])[0] == row
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(2000)))


def test_documents_are_opened_read_only(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with DocumentWriter(path) as writer:
        writer.add(located(DOCUMENTS))
    before = path.read_bytes()
    path.chmod(0o400)
    with DocumentStore(path) as store:
        store.get([0, 1])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.sqlite"]  # no journal beside it


def test_a_wrong_document_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="uec index"):
        DocumentStore(tmp_path / "absent")
    for i, content in enumerate((b"", b"no database, but long enough to be one" * 50)):
        path = tmp_path / str(i)
        path.write_bytes(content)
        with pytest.raises(CorruptArtefactError, match="not a database of documents"):
            DocumentStore(path)
