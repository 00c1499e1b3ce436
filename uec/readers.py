"""Corpora, queries, judgements and training pairs, read from the field's usual file formats.

Files are UTF-8 (a byte order mark is tolerated), plain or gzip (told by content, not by name), and
are streamed line by line. A complaint about a line is an `InputError` that begins with
``path:line``.

JSONL has one object a line. TSV has no quoting: a line is split at its tabs and nothing else, as
the benchmarks write it. Blank lines are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from uec.errors import InputError
from uec.lines import Line, find_file, not_empty, parse_objects, read_lines, sniff
from uec.records import Document, Pair, Query

DOCUMENT_ID_KEYS = ("_id", "id", "doc_id", "docid")
"""Keys that may hold a document's id; the first one present does."""
QUERY_ID_KEYS = ("_id", "id", "query_id", "qid")
"""Keys that may hold a query's id; the first one present does."""
QUERY_TEXT_KEYS = ("text", "query")
"""Keys that may hold a query's text."""
PAIR_QUERY_KEYS = ("query", "anchor")
"""Keys or columns that may hold the query of a pair."""
PAIR_PASSAGE_KEYS = ("passage", "positive", "document", "text")
"""Keys or columns that may hold the passage of a pair."""

_BEIR_COLUMNS = 3
_TREC_COLUMNS = 4
_QRELS_HEADER = ("score", "relevance")


class Beir(NamedTuple):
    """A retrieval set in the BEIR layout; `corpus` is read as it is iterated."""

    corpus: Iterator[Document]
    queries: list[Query]
    qrels: dict[str, dict[str, int]]


def read_corpus(
    path: str | Path, progress: Callable[[int], None] | None = None
) -> Iterator[Document]:
    """Stream the documents of a corpus.

    Args:
        path: JSONL file, or a BEIR folder with ``corpus.jsonl`` or ``corpus.jsonl.gz``. An object
            has an id (`DOCUMENT_ID_KEYS`; a whole number becomes its decimal string), ``text`` (may
            be empty), optionally ``title``; all other keys are metadata, and so are those inside a
            ``metadata`` object.
        progress: called with 1 after each document.

    Raises:
        NotFoundError: no such file; at once.
        InputError: a bad line or an empty corpus; while iterating.
    """
    lines = read_corpus_lines(path)

    def documents() -> Iterator[Document]:
        for _, document in lines:
            yield document
            if progress:
                progress(1)

    return documents()


def read_corpus_lines(path: str | Path) -> Iterator[tuple[str, Document]]:
    """As `read_corpus`, each document with its position ``path:line``."""
    file = find_file(path, "corpus.jsonl")

    def documents() -> Iterator[tuple[str, Document]]:
        for line, record in parse_objects(read_lines(file)):
            yield line.position, _document(line, record)

    return not_empty(documents(), file, "documents")


def read_queries(path: str | Path) -> list[Query]:
    """Read queries, in the order of the file.

    Args:
        path: JSONL with an id (`QUERY_ID_KEYS`) and a text (`QUERY_TEXT_KEYS`), a BEIR folder with
            ``queries.jsonl`` or ``queries.jsonl.gz``, or TSV lines of id and text, as MIRACL's
            topics are, with or without a header.

    Raises:
        NotFoundError: no such file.
        InputError: a bad line, an id that occurs twice, an empty query, or no queries at all.
    """
    file = find_file(path, "queries.jsonl")
    seen: dict[str, str] = {}
    queries = []
    for line, query in not_empty(_queries(file), file, "queries"):
        if query.query_id in seen:
            first = seen[query.query_id]
            line.refuse(f"duplicate query id {query.query_id!r}, first at {first}")
        seen[query.query_id] = line.position
        queries.append(query)
    return queries


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read relevance judgements: query id to document id to relevance; zeros are kept.

    Args:
        path: three columns ``query-id corpus-id score`` (BEIR, with or without the header) or four
            columns ``query-id 0 doc-id relevance`` (TREC); tabs, or spaces where a line has no tab.

    Raises:
        NotFoundError: no such file.
        InputError: a bad line, a pair judged twice, or no judgements at all.
    """
    file = find_file(path)
    qrels: dict[str, dict[str, int]] = {}
    for line, (query_id, doc_id, relevance) in not_empty(_judgements(file), file, "judgements"):
        judged = qrels.setdefault(query_id, {})
        if doc_id in judged:
            line.refuse(f"query {query_id!r} and document {doc_id!r} are judged twice")
        judged[doc_id] = relevance
    return qrels


def read_beir(folder: str | Path, split: str = "test") -> Beir:
    """Open a BEIR folder.

    Args:
        folder: has ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, each also ``.gz``.
        split: which judgements.

    Returns:
        The corpus as an iterator, the queries judged in this split, and the judgements.

    Raises:
        NotFoundError: a file is missing.
        InputError: a bad line, or a judgement for a query that does not exist.
    """
    qrels = read_qrels(find_file(Path(folder) / "qrels", f"{split}.tsv"))
    queries = [query for query in read_queries(folder) if query.query_id in qrels]
    missing = sorted(qrels.keys() - {query.query_id for query in queries})
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} judged queries of split {split!r} are not in the queries; "
            f"the first is {missing[0]!r}"
        )
    return Beir(read_corpus(folder), queries, qrels)


def read_pairs(path: str | Path) -> Iterator[Pair]:
    """Stream pairs of a query and a passage that answers it.

    Args:
        path: JSONL with a query (`PAIR_QUERY_KEYS`) and a passage (`PAIR_PASSAGE_KEYS`); or TSV
            whose header has a column of each; or TSV of two columns without a header. Other keys
            and columns are ignored; of several spellings the first one listed counts.

    Raises:
        NotFoundError: no such file; at once.
        InputError: a bad line, an empty text, or no pairs at all; while iterating.
    """
    file = find_file(path)
    return not_empty(_pairs(file), file, "pairs")


def _document(line: Line, record: dict[str, Any]) -> Document:
    doc_id = _identifier(line, record, DOCUMENT_ID_KEYS)
    text = _text(line, record, ("text",))
    title = record.pop("title", None)
    if title is not None and not isinstance(title, str):
        line.refuse(f"title: got {title!r}, expected a string")
    nested = record.get("metadata")
    if nested is None or isinstance(nested, dict):
        record.pop("metadata", None)
        both = sorted(record.keys() & (nested or {}).keys())
        if both:
            line.refuse(f"key {both[0]!r} stands both at the top and in metadata")
        record |= nested or {}
    return Document(doc_id, text, title or "", record)


def _queries(file: Path) -> Iterator[tuple[Line, Query]]:
    json_lines, lines = sniff(file)
    if json_lines:
        for line, record in parse_objects(lines):
            query_id = _identifier(line, record, QUERY_ID_KEYS)
            yield (
                line,
                Query(query_id, _filled(line, "query", _text(line, record, QUERY_TEXT_KEYS))),
            )
        return
    header = {(i, t) for i in (*QUERY_ID_KEYS, "query-id") for t in QUERY_TEXT_KEYS}
    for number, line in enumerate(lines):
        cells = _cells(line, 2)
        if number or tuple(cell.strip().lower() for cell in cells) not in header:
            query_id = _filled(line, "query id", cells[0].strip())
            yield line, Query(query_id, _filled(line, "query", cells[1]))


def _judgements(file: Path) -> Iterator[tuple[Line, tuple[str, str, int]]]:
    n_columns = 0
    for number, line in enumerate(read_lines(file)):
        cells = line.text.split("\t") if "\t" in line.text else line.text.split()
        n_columns = n_columns or len(cells)
        if n_columns not in (_BEIR_COLUMNS, _TREC_COLUMNS) or len(cells) != n_columns:
            wanted = n_columns if number else f"{_BEIR_COLUMNS} (BEIR) or {_TREC_COLUMNS} (TREC)"
            line.refuse(f"got {len(cells)} columns, expected {wanted}")
        query_id, doc_id, relevance = (cells[i].strip() for i in (0, -2, -1))
        if number == 0 and relevance.lower() in _QRELS_HEADER:
            continue
        _filled(line, "query id", query_id)
        _filled(line, "document id", doc_id)
        try:
            grade = int(relevance)
        except ValueError:
            line.refuse(f"relevance: got {relevance!r}, expected a whole number")
        yield line, (query_id, doc_id, grade)


def _pairs(file: Path) -> Iterator[Pair]:
    for line, query, passage in _pair_texts(file):
        yield Pair(_filled(line, "query", query), _filled(line, "passage", passage))


def _pair_texts(file: Path) -> Iterator[tuple[Line, str, str]]:
    json_lines, lines = sniff(file)
    if json_lines:
        for line, record in parse_objects(lines):
            query = _text(line, record, PAIR_QUERY_KEYS)
            yield line, query, _text(line, record, PAIR_PASSAGE_KEYS)
        return
    query_column, passage_column, n_columns = 0, 1, 2
    for number, line in enumerate(lines):
        if number == 0:
            names = [cell.strip().lower() for cell in line.text.split("\t")]
            query_name, passage_name = (
                next((key for key in keys if key in names), None)
                for keys in (PAIR_QUERY_KEYS, PAIR_PASSAGE_KEYS)
            )
            if query_name and passage_name:
                query_column, passage_column = names.index(query_name), names.index(passage_name)
                n_columns = len(names)
                continue
        cells = _cells(line, n_columns)
        yield line, cells[query_column], cells[passage_column]


def _identifier(line: Line, record: dict[str, Any], keys: Sequence[str]) -> str:
    value = record.pop(_key(line, record, keys), None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        line.refuse(f"id: got {value!r}, expected a non-empty string or a whole number")
    return value


def _text(line: Line, record: dict[str, Any], keys: Sequence[str]) -> str:
    key = _key(line, record, keys)
    value = record.pop(key)
    if not isinstance(value, str):
        line.refuse(f"{key}: got {value!r}, expected a string")
    return value


def _key(line: Line, record: Mapping[str, Any], keys: Sequence[str]) -> str:
    key = next((key for key in keys if key in record), None)
    if key is None:
        line.refuse(f"no key {' or '.join(map(repr, keys))}; the keys are {sorted(record)}")
    return key


def _filled(line: Line, name: str, value: str) -> str:
    if not value.strip():
        line.refuse(f"{name} is empty")
    return value


def _cells(line: Line, n_columns: int) -> list[str]:
    cells = line.text.split("\t")
    if len(cells) != n_columns:
        line.refuse(f"got {len(cells)} tab-separated columns, expected {n_columns}")
    return cells
