"""Texts and metadata of the documents, one SQLite file beside the vectors, in the same row order.

`DocumentWriter` is also where a document id that occurs twice is found: it is the one place that
knows all ids, in bounded memory. `DocumentStore` is read only and safe to use from many threads.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
from jaxtyping import Int, Int64

from uec.errors import CorruptArtefactError, InputError, NotFoundError
from uec.records import Document

Rows: TypeAlias = Int[np.ndarray, " c"] | Sequence[int]

_TABLE = """
CREATE TABLE documents (
    row INTEGER PRIMARY KEY,
    doc_id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL
)
"""
# How many unknown ids an error names.
_SHOWN = 5

# Rows a SELECT: well below the number of parameters that any SQLite takes (999 in old ones).
_AT_ONCE = 500


class DocumentWriter:
    """Writes documents in row order; a context manager that closes the file.

    Args:
        path: file to write; it must not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.n_documents = 0
        self._positions = _Positions()
        self._connection = sqlite3.connect(path, isolation_level=None)
        # A half-written file is thrown away as a whole and a finished one is flushed when it is
        # published, so SQLite's own journal and flushes would only cost time.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(_TABLE)
        self._connection.execute("BEGIN")

    def add(self, documents: Iterable[tuple[str, Document]]) -> None:
        """Append documents.

        Args:
            documents: pairs of where the document was read (``"path:line"``) and the document, as
                `uec.readers.read_corpus_lines` yields them.

        Raises:
            InputError: an id occurs a second time (names both positions), or a document that no
                file can hold.
        """
        for position, document in documents:
            try:
                self._insert(document)
            except sqlite3.IntegrityError:
                raise self._duplicate(position, document.doc_id) from None
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"{position}: document {document.doc_id!r} cannot be stored: {error}"
                ) from error
            self._positions.append(position)
            self.n_documents += 1

    def close(self) -> None:
        """Complete the file. Idempotent."""
        with closing(self._connection), suppress(sqlite3.ProgrammingError):
            self._connection.execute("COMMIT")

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _insert(self, document: Document) -> None:
        metadata = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
        self._connection.execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?)",
            (self.n_documents, document.doc_id, document.title, document.text, metadata),
        )

    def _duplicate(self, position: str, doc_id: str) -> InputError:
        query = "SELECT row FROM documents WHERE doc_id = ?"
        (row,) = self._connection.execute(query, (doc_id,)).fetchone()
        return InputError(
            f"{position}: duplicate document id {doc_id!r}, first at {self._positions[row]}"
        )


class _Positions:
    """The position of every row, as runs of consecutive lines: one entry for most files."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # first row of each run
        self._origins: list[tuple[str, int | None]] = []  # path and line of that row
        self._n_rows = 0

    def append(self, position: str) -> None:
        path, _, line = position.rpartition(":")
        origin = (path, int(line)) if line.isdecimal() else (position, None)
        if not self._starts or self._at(len(self._starts) - 1, self._n_rows) != origin:
            self._starts.append(self._n_rows)
            self._origins.append(origin)
        self._n_rows += 1

    def __getitem__(self, row: int) -> str:
        path, line = self._at(bisect_right(self._starts, row) - 1, row)
        return path if line is None else f"{path}:{line}"

    def _at(self, run: int, row: int) -> tuple[str, int | None]:
        path, line = self._origins[run]
        return path, None if line is None else line + row - self._starts[run]


class DocumentStore:
    """The documents of an index, by row or by id. Read only; safe to use from many threads.

    Args:
        path: a file written by `DocumentWriter`; it must not change while it is open.

    Raises:
        NotFoundError: no such file.
        CorruptArtefactError: not a database of documents.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise NotFoundError(f"no documents at {path}; run `uec index` to make them")
        # A connection serves one thread at a time; idle ones wait here for the next caller, so
        # there are as many as callers were ever concurrent.
        self._idle: deque[sqlite3.Connection] = deque()
        try:
            (last,) = self._one("SELECT max(row) FROM documents", ())
        except sqlite3.DatabaseError as error:
            self.close()
            raise CorruptArtefactError(f"{path} is not a database of documents: {error}") from error
        self._n_documents = 0 if last is None else int(last) + 1

    def __len__(self) -> int:
        return self._n_documents

    def get(self, rows: Rows) -> list[Document]:
        """Documents of some rows, in the order asked for.

        Raises:
            NotFoundError: a row is not in 0 .. N - 1.
        """
        query = "SELECT row, doc_id, text, title, metadata FROM documents WHERE row IN"
        return [
            Document(doc_id, text, title, json.loads(metadata))
            for doc_id, text, title, metadata in self._by_row(query, rows)
        ]

    def ids(self, rows: Rows) -> list[str]:
        """Document ids of some rows, in the order asked for.

        Raises:
            NotFoundError: a row is not in 0 .. N - 1.
        """
        query = "SELECT row, doc_id FROM documents WHERE row IN"
        return [str(doc_id) for (doc_id,) in self._by_row(query, rows)]

    def rows(self, doc_ids: Sequence[str]) -> Int64[np.ndarray, " c"]:
        """Rows of some documents, in the order asked for.

        Raises:
            NotFoundError: names ids that no document has.
        """
        query = "SELECT row FROM documents WHERE doc_id = ?"
        with self._connection() as connection:
            found = [connection.execute(query, (doc_id,)).fetchone() for doc_id in doc_ids]
        unknown = [doc_id for doc_id, row in zip(doc_ids, found, strict=True) if row is None]
        if unknown:
            more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
            names = ", ".join(repr(doc_id) for doc_id in unknown[:_SHOWN])
            raise NotFoundError(f"no document with id {names}{more}")
        return np.array([row for (row,) in found], dtype=np.int64)

    def known(self, doc_ids: Iterable[str]) -> set[str]:
        """Those of some ids that a document has."""
        query = "SELECT doc_id FROM documents WHERE doc_id = ?"
        with self._connection() as connection:
            return {one for one in doc_ids if connection.execute(query, (one,)).fetchone()}

    def close(self) -> None:
        """Close the idle connections. Idempotent."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_row(self, query: str, rows: Rows) -> list[tuple[Any, ...]]:
        wanted = [int(row) for row in rows]
        found: dict[int, tuple[Any, ...]] = {}
        with self._connection() as connection:
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(some))
                for row, *values in connection.execute(f"{query} ({marks})", some):
                    found[row] = tuple(values)
        missing = [row for row in wanted if row not in found]
        if missing:
            raise NotFoundError(f"row {missing[0]}: the index has rows 0 to {len(self) - 1}")
        return [found[row] for row in wanted]

    def _one(self, query: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
        with self._connection() as connection:
            found: tuple[Any, ...] = connection.execute(query, values).fetchone()
        return found

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            # immutable: no lock files and no writes, so a read-only mount will do.
            uri = f"file:{quote(str(self._path.absolute()))}?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            yield connection
        finally:
            self._idle.append(connection)
