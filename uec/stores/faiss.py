"""The embedded store: one flat inner-product index file of FAISS, searched exactly.

`FaissStoreWriter` streams rows to disk and never holds more than the rows of one call, so a corpus
may be larger than memory. The result is the file that ``faiss.write_index`` would write for an
``IndexFlatIP``; any FAISS of the same format reads it. `FaissStore` maps it, so that opening costs
nothing and several processes share one copy.

FAISS checks its inputs with ``assert``, which ``python -O`` removes, and trusts its files; so every
check here comes before the call.

Threads: searches may run concurrently. FAISS uses OpenMP inside one search; its
``omp_set_num_threads`` acts on the calling thread only, so a server with a pool of workers sets
``OMP_NUM_THREADS`` before Python starts, or calls it inside each worker.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Float32, Int, Int64

from uec.errors import (
    CorruptArtefactError,
    EmbeddingError,
    InputError,
    MismatchError,
    NotFoundError,
)

# Header of a flat index: fourcc, dimension, rows, two unused words, trained, metric, floats.
_HEADER = struct.Struct("=4siqqq?iQ")
_FOURCC = b"IxFI"
_UNUSED = 1 << 20
_BYTES_PER_FLOAT = 4


class FaissStoreWriter:
    """Writes a store row by row; a context manager that closes it.

    Args:
        path: file to write; an existing one is replaced.
        dimension: length of each row.

    Raises:
        MismatchError: the installed FAISS writes another file format than the one known here.
    """

    def __init__(self, path: str | Path, dimension: int) -> None:
        if dimension < 1:
            raise InputError(f"dimension: got {dimension}, expected at least 1")
        _require_known_format(dimension)
        self.dimension = dimension
        self.n_documents = 0
        self._path = Path(path)
        self._file = self._path.open("wb")
        self._file.write(_header(dimension, 0))

    def add(self, rows: Float32[np.ndarray, "n dimension"]) -> None:
        """Append rows.

        Args:
            rows: (n, dimension) finite vectors.

        Raises:
            InputError: wrong shape or dtype.
            EmbeddingError: a row is NaN or infinite, which FAISS would store and never find.
        """
        _require_rows(rows, self.dimension)
        if rows.dtype != np.float32:
            raise InputError(f"dtype: got {rows.dtype}, expected float32")
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise EmbeddingError(
                f"row {self.n_documents + int(bad[0])} has NaN or infinite entries "
                f"({len(bad)} such rows of {len(rows)})",
                int(bad[0]),
            )
        self._file.write(np.ascontiguousarray(rows).data)
        self.n_documents += len(rows)

    def close(self) -> None:
        """Complete the file. Idempotent.

        Raises:
            InputError: no row was added.
        """
        if self._file.closed:
            return
        with self._file:
            self._file.seek(0)
            self._file.write(_header(self.dimension, self.n_documents))
        if not self.n_documents:
            raise InputError(f"{self._path}: no vectors were added; an index needs at least one")

    def __enter__(self) -> FaissStoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._file.close()


class FaissStore:
    """A flat inner-product index, memory-mapped and read only; satisfies `uec.stores.Store`.

    Args:
        path: a file written by `FaissStoreWriter`, or by ``faiss.write_index`` from an IndexFlatIP.

    Raises:
        NotFoundError: no such file.
        MismatchError: another kind of index or another metric.
        CorruptArtefactError: the size of the file does not fit its header.
    """

    def __init__(self, path: str | Path) -> None:
        self.dimension, self.n_documents = _read_header(Path(path))
        self._index: Any = faiss.read_index(os.fspath(path), faiss.IO_FLAG_MMAP_IFC)
        assert (self._index.d, self._index.ntotal) == (self.dimension, self.n_documents)

    def search(
        self, vectors: Float[np.ndarray, "n dimension"], n_candidates: int
    ) -> tuple[Float32[np.ndarray, "n c"], Int64[np.ndarray, "n c"]]:
        """Rows with the largest inner product; see `uec.stores.Store.search`.

        FAISS computes batches of 20 and more queries by matrix product, smaller ones row by row:
        the same query may differ by float32 rounding between the two.
        """
        _require_rows(vectors, self.dimension)
        if n_candidates < 1:
            raise InputError(f"n_candidates: got {n_candidates}, expected at least 1")
        queries = np.ascontiguousarray(vectors, dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
        if len(bad):
            raise InputError(f"query vector {int(bad[0])} has NaN or infinite entries")
        similarities, rows = self._index.search(queries, min(n_candidates, self.n_documents))
        # FAISS pads with row -1 where it cannot rank; that must never look like a document.
        if (rows < 0).any() or not np.isfinite(similarities).all():
            raise InputError("a query vector is so long that its inner products overflow float32")
        return similarities, rows

    def fetch(self, rows: Int[np.ndarray, " c"]) -> Float32[np.ndarray, "c dimension"]:
        """Vectors of some rows; see `uec.stores.Store.fetch`. Reads only these rows."""
        wanted = np.ascontiguousarray(rows, dtype=np.int64)
        bad = wanted[(wanted < 0) | (wanted >= self.n_documents)]
        if len(bad):
            raise NotFoundError(
                f"row {int(bad[0])}: the index has rows 0 to {self.n_documents - 1}"
            )
        vectors: np.ndarray = self._index.reconstruct_batch(wanted)
        return vectors


def _header(dimension: int, n_documents: int) -> bytes:
    return _HEADER.pack(
        _FOURCC,
        dimension,
        n_documents,
        _UNUSED,
        _UNUSED,
        True,
        faiss.METRIC_INNER_PRODUCT,
        n_documents * dimension,
    )


def _require_known_format(dimension: int) -> None:
    """Compare our file with FAISS's own, byte for byte, on one row."""
    row = np.arange(1, dimension + 1, dtype=np.float32)[None, :]
    index = faiss.IndexFlatIP(dimension)
    index.add(row)
    if faiss.serialize_index(index).tobytes() != _header(dimension, 1) + row.tobytes():
        raise MismatchError(
            f"faiss: version {faiss.__version__} writes a flat index in another file format than "
            "this version of uec expects; install faiss-cpu 1.15 or upgrade uec"
        )


def _read_header(path: Path) -> tuple[int, int]:
    """Dimension and number of rows, checked against the size of the file."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise NotFoundError(f"no vector index at {path}; run `uec index` to make one") from None
    if len(head) < _HEADER.size:
        raise CorruptArtefactError(f"{path}: size: got {size} bytes, less than an index header")
    fourcc, dimension, n_documents, _, _, _, metric, n_floats = _HEADER.unpack(head)
    if fourcc != _FOURCC:
        raise MismatchError(f"{path}: index type: got {fourcc!r}, expected {_FOURCC!r} (flat, IP)")
    if metric != faiss.METRIC_INNER_PRODUCT:
        raise MismatchError(f"{path}: metric: got {metric}, expected inner product (0)")
    expected = _HEADER.size + dimension * n_documents * _BYTES_PER_FLOAT
    if dimension < 1 or n_documents < 1 or n_floats != dimension * n_documents or size != expected:
        raise CorruptArtefactError(
            f"{path}: size: got {size} bytes, expected {expected} for the header's "
            f"{n_documents} rows of dimension {dimension}"
        )
    return dimension, n_documents


def _require_rows(rows: np.ndarray, dimension: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise InputError(f"vectors: got shape {rows.shape}, expected (n, {dimension})")
