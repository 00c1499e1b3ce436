"""Readers: the field's formats come out as records; each bad line is named by path and number."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from uec.errors import InputError, NotFoundError, UECError
from uec.readers import (
    read_beir,
    read_corpus,
    read_corpus_lines,
    read_pairs,
    read_qrels,
    read_queries,
)
from uec.records import Document, Pair, Query

GOOD = '{"_id": "1", "text": "t"}\n'


def corpus(path: Path) -> list[Document]:
    return list(read_corpus(path))


def pairs(path: Path) -> list[Pair]:
    return list(read_pairs(path))


def file(tmp_path: Path, content: str | bytes, name: str = "file") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_corpus_line_becomes_a_document(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        '\ufeff{"_id": "a", "title": "T", "text": "x", "url": "u", "metadata": {"year": 1}}\r\n'
        "\n"
        '{"id": 7, "text": "", "title": null, "metadata": {}}\n'
        '{"docid": "39#0", "text": "line\\u2028break \\ud83d\\ude00 \\u0000", "metadata": "m"}',
    )
    assert corpus(path) == [
        Document("a", "x", "T", {"url": "u", "year": 1}),
        Document("7", "", "", {}),
        Document("39#0", "line\u2028break \U0001f600 \0", "", {"metadata": "m"}),
    ]
    assert [position for position, _ in read_corpus_lines(path)] == [
        f"{path}:{number}" for number in (1, 3, 4)
    ]


def test_unicode_line_separators_do_not_split_lines(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x1cf"
    path = file(tmp_path, json.dumps({"_id": "1", "text": text}, ensure_ascii=False) + "\n" + GOOD)
    assert [d.text for d in corpus(path)[:1]] == [text]
    queries = file(tmp_path, f"q1\t{text} \rg\nq2\th\n", "topics.tsv")
    assert read_queries(queries) == [Query("q1", f"{text} \rg"), Query("q2", "h")]


def test_the_first_known_id_key_counts_and_the_others_are_metadata(tmp_path: Path) -> None:
    path = file(tmp_path, '{"docid": "d", "id": "i", "_id": "_", "text": "t"}')
    assert corpus(path) == [Document("_", "t", "", {"docid": "d", "id": "i"})]


def test_a_corpus_is_streamed(tmp_path: Path) -> None:
    # The bad third line is not reached, so the file is not read beyond what is asked for.
    path = file(tmp_path, GOOD + '{"_id": "2", "text": "t"}\n' + "bad\n")
    done: list[int] = []
    stream = read_corpus(path, done.append)
    assert [d.doc_id for d in itertools.islice(stream, 2)] == ["1", "2"]
    assert done == [1]  # counted once the next one is asked for
    with pytest.raises(InputError, match=r"file:3: not a JSON object"):
        next(stream)
    assert done == [1, 1]


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    for name in ("corpus.jsonl.gz", "corpus.jsonl"):
        path = file(tmp_path, gzip.compress(GOOD.encode()), name)
        assert corpus(path) == [Document("1", "t")]
    folder = tmp_path / "beir"
    file(folder, gzip.compress(GOOD.encode()), "corpus.jsonl.gz")
    assert corpus(folder) == [Document("1", "t")]


def test_damaged_gzip_is_an_input_error(tmp_path: Path) -> None:
    lines = "".join(f'{{"_id": "{i}", "text": "{os.urandom(9).hex()}"}}\n' for i in range(2000))
    data = gzip.compress(lines.encode())
    with pytest.raises(InputError, match=r"cut:\d+: damaged gzip"):
        corpus(file(tmp_path, data[: len(data) // 2], "cut"))
    with pytest.raises(InputError, match=r"crc:\d+: damaged gzip"):
        corpus(file(tmp_path, data[:-8] + bytes(4) + data[-4:], "crc"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object: Expecting property name"),
        ("[1]", "not a JSON object but list"),
        ("7", "not a JSON object but int"),
        ("[" * 100_000, "not a JSON object: maximum recursion"),
        ('{"text": "t", "name": "x"}', "no key '_id' or 'id' or 'doc_id' or 'docid'; the keys are"),
        ('{"_id": "2"}', "no key 'text'; the keys are []"),
        ('{"_id": null, "text": "t"}', "id: got None, expected a non-empty string or a whole"),
        ('{"_id": "", "text": "t"}', "id: got '', expected"),
        ('{"_id": 1.5, "text": "t"}', "id: got 1.5, expected"),
        ('{"_id": true, "text": "t"}', "id: got True, expected"),
        ('{"_id": ["2"], "text": "t"}', "id: got ['2'], expected"),
        ('{"_id": "2", "text": null}', "text: got None, expected a string"),
        ('{"_id": "2", "text": 3}', "text: got 3, expected a string"),
        ('{"_id": "2", "text": "t", "title": 3}', "title: got 3, expected a string"),
        ('{"_id": "2", "text": "t", "text": "u"}', "not a JSON object: duplicate key 'text'"),
        ('{"_id": "2", "text": "t", "metadata": {"a": 1, "a": 2}}', "duplicate key 'a'"),
        ('{"_id": "2", "text": "t", "a": 1, "metadata": {"a": 2}}', "key 'a' stands both at"),
        ('{"_id": "2", "text": "t", "a": NaN}', "not a JSON object: NaN is not JSON"),
        ('{"_id": "2", "text": "t", "a": -Infinity}', "-Infinity is not JSON"),
        ('{"_id": "2", "text": "\\ud800"}', "a string has half of a surrogate pair"),
        ('{"_id": "2", "text": "t", "a": ["\\uDFFF"]}', "a string has half of a surrogate pair"),
        ('{"_id": "2", "text": "t", "\\udc00": 1}', "a string has half of a surrogate pair"),
        (b'{"_id": "2", "text": "caf\xe9"}', "not UTF-8"),
    ],
)
def test_a_bad_corpus_line_is_named(tmp_path: Path, line: str | bytes, message: str) -> None:
    data = line.encode() if isinstance(line, str) else line
    path = file(tmp_path, GOOD.encode() + b"\n" + data + b"\n")
    with pytest.raises(InputError) as caught:
        corpus(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("read", "what"),
    [(corpus, "documents"), (read_queries, "queries"), (read_qrels, "judgem"), (pairs, "pairs")],
)
def test_nothing_to_read_is_an_error(
    tmp_path: Path, read: Callable[[Path], object], what: str
) -> None:
    for content in ("", "\n \n", b"\xef\xbb\xbf", gzip.compress(b"")):
        with pytest.raises(InputError, match=f"no {what}"):
            read(file(tmp_path, content))
    with pytest.raises(NotFoundError, match="no such file"):
        read(tmp_path / "absent")


def test_a_missing_file_is_reported_before_iteration(tmp_path: Path) -> None:
    for read in (read_corpus, read_pairs):
        with pytest.raises(NotFoundError):
            read(tmp_path / "absent")
    with pytest.raises(NotFoundError, match=r"no corpus\.jsonl or corpus\.jsonl\.gz in folder"):
        read_corpus(tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        read_pairs(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"_id": "0", "text": "why?"}\n{"_id": "20#1", "text": "x\\ty"}',
        '{"query_id": 0, "query": "why?", "lang": "en"}\n{"qid": "20#1", "text": "x\\ty"}',
    ],
)
def test_queries_from_jsonl(tmp_path: Path, content: str) -> None:
    assert read_queries(file(tmp_path, content)) == [Query("0", "why?"), Query("20#1", "x\ty")]
    assert read_queries(file(tmp_path, content, "beir/queries.jsonl").parent) == [
        Query("0", "why?"),
        Query("20#1", "x\ty"),
    ]


@pytest.mark.parametrize("header", ["", "qid\tquery\n", "query-id\ttext\n", "_id\tText\n"])
def test_queries_from_tsv(tmp_path: Path, header: str) -> None:
    path = file(tmp_path, header + '0\t"why?\n20#1\tКогда начался Кари́бский кризис?\n')
    assert read_queries(path) == [
        Query("0", '"why?'),  # a lone quotation mark is text
        Query("20#1", "Когда начался Кари́бский кризис?"),
    ]


@pytest.mark.parametrize(
    ("content", "number", "message"),
    [
        ("1\ta\n1\tb\n", 2, "duplicate query id '1', first at "),
        ('{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}', 2, "duplicate query id '1'"),
        ("1\ta\n2\tb\tc\n", 2, "got 3 tab-separated columns, expected 2"),
        ("1\ta\n2 b\n", 2, "got 1 tab-separated columns, expected 2"),
        ("1\ta\n2\t \n", 2, "query is empty"),
        ("1\ta\n\tb\n", 2, "query id is empty"),
        ('{"_id": "1", "text": ""}', 1, "query is empty"),
        ('{"_id": "1"}', 1, "no key 'text' or 'query'"),
        ('{"_id": "1", "text": "a"}\n2\tb', 2, "not a JSON object"),
    ],
)
def test_a_bad_query_line_is_named(tmp_path: Path, content: str, number: int, message: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_queries(path)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq 1\td1\t1\nq 1\td2\t0\nq2\td1\t-1\n",
        "q 1\td1\t1\nq 1\td2\t0\nq2\td1\t-1\n",
        "q 1\tQ0\td1\t1\nq 1\tQ0\td2\t0\nq2\tQ0\td1\t-1\n",
    ],
)
def test_qrels_of_beir_and_trec(tmp_path: Path, content: str) -> None:
    assert read_qrels(file(tmp_path, content)) == {"q 1": {"d1": 1, "d2": 0}, "q2": {"d1": -1}}


def test_qrels_of_trec_with_spaces(tmp_path: Path) -> None:
    assert read_qrels(file(tmp_path, "q1 0  d1 1\r\nq1 0 d2 2\r\n")) == {"q1": {"d1": 1, "d2": 2}}


@pytest.mark.parametrize(
    ("content", "number", "message"),
    [
        ("q d 1\nq e 1.0\n", 2, "relevance: got '1.0', expected a whole number"),
        ("q d x\n", 1, "relevance: got 'x'"),
        ("q d\n", 1, "got 2 columns, expected 3 (BEIR) or 4 (TREC)"),
        ("q 0 d 1\nq d 1\n", 2, "got 3 columns, expected 4"),
        ("q d 1\nq e 0\nq d 0\n", 3, "query 'q' and document 'd' are judged twice"),
        ("q\td\t1\n\te\t1\n", 2, "query id is empty"),
        ("q\td\t1\nq\t\t1\n", 2, "document id is empty"),
    ],
)
def test_a_bad_judgement_is_named(tmp_path: Path, content: str, number: int, message: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_qrels(path)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        '{"query": "a", "passage": "x"}\n{"query": "b", "passage": "y"}\n',
        '{"anchor": "a", "positive": "x", "negative": "z"}\n{"anchor": "b", "document": "y"}\n',
        '{"query": "a", "text": "x"}\n{"query": "b", "passage": "y", "text": "z"}\n',
        "a\tx\nb\ty\n",
        "query\tpassage\na\tx\nb\ty\n",
        "Label\tPositive\tAnchor\n1\tx\ta\n1\ty\tb\n",
    ],
)
def test_pairs_in_all_spellings(tmp_path: Path, content: str) -> None:
    expected = [Pair("a", "x"), Pair("b", "y")]
    assert pairs(file(tmp_path, content)) == expected
    assert pairs(file(tmp_path, gzip.compress(content.encode()))) == expected


@pytest.mark.parametrize(
    ("content", "number", "message"),
    [
        ("query\tpassage\na\tx\nb\n", 3, "got 1 tab-separated columns, expected 2"),
        ("label\tquestion\tsentence\n1\ta\tx\n", 1, "got 3 tab-separated columns, expected 2"),
        ("a\tx\nb\t \n", 2, "passage is empty"),
        ("a\tx\n\ty\n", 2, "query is empty"),
        ("a\tx\n\t\n", 2, "query is empty"),
        ('{"query": "a", "passage": "x"}\n{"query": "b"}\n', 2, "no key 'passage' or 'positive'"),
        ('{"query": "a", "passage": ["x"]}\n', 1, "passage: got ['x'], expected a string"),
    ],
)
def test_a_bad_pair_is_named(tmp_path: Path, content: str, number: int, message: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(InputError) as caught:
        pairs(path)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert message in str(caught.value)


def beir(tmp_path: Path, judgements: str) -> Path:
    file(tmp_path, GOOD, "corpus.jsonl")
    file(tmp_path, "".join(f'{{"_id": "{q}", "text": "t{q}"}}\n' for q in "cab"), "queries.jsonl")
    file(tmp_path, "query-id\tcorpus-id\tscore\n" + judgements, "qrels/dev.tsv")
    return tmp_path


def test_beir_gives_the_judged_queries_in_file_order(tmp_path: Path) -> None:
    opened = read_beir(beir(tmp_path, "b\t1\t1\nc\t1\t2\n"), "dev")
    assert opened.queries == [Query("c", "tc"), Query("b", "tb")]
    assert opened.qrels == {"b": {"1": 1}, "c": {"1": 2}}
    assert list(opened.corpus) == [Document("1", "t")]


@pytest.mark.parametrize(
    ("split", "judgements", "error", "message"),
    [
        ("test", "b\t1\t1\n", NotFoundError, r"no test\.tsv or test\.tsv\.gz in folder"),
        ("dev", "x\t1\t1\ny\t1\t1\n", InputError, "2 judged queries of split 'dev'.*first is 'x'"),
    ],
)
def test_beir_that_does_not_fit_together(
    tmp_path: Path, split: str, judgements: str, error: type[UECError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_beir(beir(tmp_path, judgements), split)


@pytest.mark.skipif("UEC_TEST_DATA" not in os.environ, reason="UEC_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("name", "n_documents", "n_queries", "n_judgements"),
    [("scifact", 5183, 300, 339), ("cranfield", 1400, 225, 1837), ("xquadr-zh", 1196, 1190, 1190)],
)
def test_published_sets_have_their_published_counts(
    name: str, n_documents: int, n_queries: int, n_judgements: int
) -> None:
    opened = read_beir(Path(os.environ["UEC_TEST_DATA"]) / name)
    assert len(list(opened.corpus)) == n_documents
    assert len(opened.queries) == n_queries
    assert sum(map(len, opened.qrels.values())) == n_judgements


@pytest.mark.skipif("UEC_TEST_DATA" not in os.environ, reason="UEC_TEST_DATA is not set")
def test_miracls_own_files(tmp_path: Path) -> None:
    folder = Path(os.environ["UEC_TEST_DATA"]) / "miracl-format"
    topics = read_queries(folder / "topics.miracl-v1.0-en-dev.head50.tsv")
    assert len(topics) == 50
    assert topics[0] == Query("0", "Is Creole a pidgin of French?")
    qrels = read_qrels(folder / "qrels.miracl-v1.0-en-dev.head50.tsv")
    assert qrels["0"]["462221#4"] == 1
    assert qrels["0"]["1170520#2"] == 0
    (document,) = read_corpus(folder / "corpus.example.jsonl")
    assert (document.doc_id, document.title) == ("39#0", "Albedo")
