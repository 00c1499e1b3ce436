"""The demo's data and measures, and the demo itself on encoders without weights."""

from __future__ import annotations

import pytest

from uec import demo, screen
from uec.demo import known_item_measures, load_data, reciprocal_rank_fusion
from uec.records import MemberSpec


@pytest.fixture(scope="module")
def data():
    return load_data()


def test_demo_data_keeps_queries_and_pairs_apart(data):
    assert len(data.queries) >= 500
    by_id = {document.doc_id: document for document in data.corpus}
    assert len(by_id) == len(data.corpus)
    fitted = {pair.query for pair in data.pairs}
    for query in data.queries:
        assert query.text not in fitted
        assert not by_id[query.query_id].text.startswith(query.text)


def test_known_item_measures_by_hand():
    # Ranks 1, 3 and not found: nDCG 1, 1/2, 0; reciprocal ranks 1, 1/3, 0.
    rankings = [["a", "b"], ["x", "y", "b"], ["z"]]
    assert known_item_measures(rankings, ["a", "b", "c"]) == ("0.500", "0.444")


def test_rrf_by_hand():
    # a: 1/61 + 1/62, b: 1/62 + 1/61, c: 1/63; the tie goes by id.
    assert reciprocal_rank_fusion([["a", "b", "c"], ["b", "a"]]) == ["a", "b", "c"]


def test_the_whole_demo_with_hashing_encoders(data, tmp_path, monkeypatch, capsys):
    pytest.importorskip("grpc", reason="the demo starts the service (extra 'demo')")
    small = demo.DemoData(data.corpus[:300], data.pairs[:40], data.queries)
    known = {document.doc_id for document in small.corpus}
    small = demo.DemoData(
        small.corpus, small.pairs, [q for q in small.queries if q.query_id in known]
    )
    monkeypatch.setattr(demo, "MEMBERS", (MemberSpec("a", "hashing:64"),))
    monkeypatch.setattr(demo, "load_data", lambda: small)
    tables: list[list[tuple]] = []
    monkeypatch.setattr(screen, "table", lambda headers, rows: tables.append(rows))
    demo.run(tmp_path)
    said = capsys.readouterr().out
    assert all(question in said for question in demo.QUESTIONS)
    calibrated, evaluated = tables
    assert calibrated[0][:2] == ("a", "1.00")
    systems = {row[0]: row for row in evaluated}
    assert list(systems) == ["a", "uniform fusion", "RRF", "UEC", "UEC, T = 1"]
    # Fusing one member is that member. By chance nDCG@10 would be 0.015 on 300 documents; a summary
    # shares words with its docstring, so even hashed n-grams do several times better.
    assert systems["a"][1:] == systems["uniform fusion"][1:]
    assert float(systems["a"][1]) > 0.06
    assert "uec serve" in said
    assert (tmp_path / "index" / "manifest.json").exists()
