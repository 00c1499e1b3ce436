"""The command line: the same answers as the library, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import uec
from uec.cli import main
from uec.storage import open_artefact


def run(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def files(tmp_path, texts) -> Path:
    pairs = [{"query": " ".join(t.split()[:4]), "passage": t} for t in texts[:60]]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    corpus = [{"_id": f"d{i}", "text": t} for i, t in enumerate(texts[:60])]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    return tmp_path


def fit(files: Path, *extra: object):
    return run(
        "fit", "--member", "a=hashing:16", "--member", "b=hashing:16:1",
        "--pairs", files / "pairs.jsonl", "--out", files / "ensemble", *extra,
    )  # fmt: skip


def test_fit_index_search_info(files):
    assert fit(files).exit_code == 0
    built = run(
        "index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "index",
    )  # fmt: skip
    assert built.exit_code == 0
    assert "60 documents" in built.output and "60 pieces of text looked for" in built.output

    shown = run("search", "--index", files / "index", "--top-k", 3, "--explain", "river")
    assert shown.exit_code == 0
    assert "weights: a " in shown.output and "± " in shown.output and "spreads" in shown.output

    asked = run("search", "--index", files / "index", "--json", "river", "violin")
    rankings = [json.loads(line) for line in asked.output.splitlines()]
    expected = uec.Retriever.open(files / "index").search(["river", "violin"])
    for got, want in zip(rankings, expected, strict=True):
        assert [h["doc_id"] for h in got["hits"]] == [h.doc_id for h in want.hits]
        assert got["hits"][0]["score"] == pytest.approx(want.hits[0].score)

    told = run("info", files / "index")
    assert told.exit_code == 0
    assert "60 documents" in told.output and "hashing:16:1" in told.output
    assert "kind" in json.loads(run("info", "--json", files / "ensemble").output)


def test_calibrate_again_or_not_at_all(files):
    fit(files)
    index = ("index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl")
    index += ("--out", files / "index")
    plain = run(*index, "--no-calibrate")
    assert "looked for" not in plain.output
    assert "not calibrated" in run("info", files / "index").output
    asked = json.loads(run("search", "--index", files / "index", "--json", "river").output)
    assert asked["weights"] == {"a": 0.5, "b": 0.5} and asked["hits"][0]["probability"] is None

    done = run("calibrate", "--index", files / "index", "--n-spans", 40, "--seed", 1)
    assert done.exit_code == 0, done.output
    assert "40 pieces of text looked for among 60 documents" in done.output
    content = open_artefact(files / "index", "index").content["ensemble"]["calibration"]
    assert content["report"]["seed"] == 1
    assert sum(m["weight"] for m in content["report"]["members"].values()) == pytest.approx(1)
    asked = json.loads(run("search", "--index", files / "index", "--json", "river").output)
    assert asked["weights"] != {"a": 0.5, "b": 0.5}
    assert 0 < asked["hits"][0]["probability"] < 1
    assert " p 0." in run("search", "--index", files / "index", "river").output
    assert "40 pieces of text" in run("info", files / "index").output


def test_calibrate_with_judged_queries(files, texts):
    fit(files)
    run(
        "index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "index", "--no-calibrate",
    )  # fmt: skip
    (files / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": texts[3]}))
    (files / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
    command = ("calibrate", "--index", files / "index", "--queries", files / "queries.jsonl")
    done = run(*command, "--qrels", files / "qrels.tsv")
    assert done.exit_code == 0 and "also follow 1 judged queries" in done.output
    refused = run(*command)
    assert refused.exit_code == 1 and "both --queries and --qrels" in refused.output


def test_calibrate_by_the_places_in_an_audit(files):
    fit(files)
    run(
        "index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "index", "--no-calibrate",
    )  # fmt: skip
    audited = run(
        "audit", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "audit", "--only", "selfretrieval",
    )  # fmt: skip
    assert audited.exit_code == 0, audited.output
    command = ("calibrate", "--index", files / "index", "--n-spans", 40, "--prior", "audit")
    done = run(*command, "--audit", files / "audit")
    assert done.exit_code == 0, done.output
    assert "follow the members' places by audit selfretrieval (cloze_mrr)" in done.output
    refused = run(*command)
    assert refused.exit_code == 1 and "--prior audit and --audit DIR together" in refused.output
    unknown = run(*command, "--audit", files / "audit", "--by", "flip")
    assert unknown.exit_code == 1 and "it has: selfretrieval" in unknown.output


def test_words_logged_queries_and_a_bounded_risk(files, texts):
    fit(files)
    built = run(
        "index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "index", "--bm25",
    )  # fmt: skip
    assert built.exit_code == 0, built.output
    assert "bm25" in built.output and "the words (bm25)" in built.output
    (files / "log.jsonl").write_text(
        "\n".join(json.dumps({"_id": str(i), "text": texts[i]}) for i in range(9))
    )
    again = run("calibrate", "--index", files / "index", "--query-log", files / "log.jsonl")
    assert again.exit_code == 0 and "9 logged queries find" in again.output, again.output
    search = ("search", "--index", files / "index", "--max-risk", 0.02)
    unsure, sure = run(*search, "zzz"), run(*search, texts[3])
    assert "not sure enough to answer" in unsure.output
    assert json.loads(run(*search, "--json", "zzz").output)["abstained"] is True
    assert "bm25 0." in sure.output


def test_fitting_on_the_corpus_is_warned_of(files):
    """The fixture's pairs have the corpus's own texts as passages."""
    fit(files)
    built = run(
        "index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "index",
    )  # fmt: skip
    for output in (built.output, run("info", files / "index").output):
        assert "warning: 100% of the text that a's posterior was fitted on" in output


def test_a_small_corpus_is_indexed_uncalibrated_and_says_so(files):
    fit(files)
    few = "\n".join((files / "corpus.jsonl").read_text().splitlines()[:20])
    (files / "few.jsonl").write_text(few)
    index = ("index", "--ensemble", files / "ensemble", "--corpus", files / "few.jsonl")
    done = run(*index, "--out", files / "index")
    assert done.exit_code == 0
    assert "note: the index is not calibrated" in done.output and "20 spans" in done.output
    refused = run("calibrate", "--index", files / "index")
    assert refused.exit_code == 1 and "expected at least 30" in refused.output


def test_options_reach_the_library(files):
    fit(files)
    run(
        "index", "--ensemble", files / "ensemble", "--corpus", files / "corpus.jsonl",
        "--out", files / "index",
    )  # fmt: skip
    asked = run(
        "search", "--index", files / "index", "--json", "--weights", "a=3,b=1", "--beta", 0, "x"
    )
    ranking = json.loads(asked.output)
    assert ranking["weights"] == {"a": 0.75, "b": 0.25}
    assert ranking["hits"][0]["score"] == ranking["hits"][0]["similarity"]


def test_paper_mode_and_fixed_precision_are_recorded(files):
    fit(files, "--paper")
    content = open_artefact(files / "ensemble", "ensemble").content
    settings = content["members"][0]["fit"]["settings"]
    assert settings["curvature"] == "empirical-fisher"
    assert settings["prior_precision"] == 1e-5
    fit(files, "--prior-precision", 3)
    content = open_artefact(files / "ensemble", "ensemble").content
    report = content["members"][0]["fit"]["report"]
    assert report["diag_prior_precision"] == report["kron_prior_precision"] == 3


def test_pairs_by_member(files, texts):
    own = [{"query": t[:10], "passage": t} for t in texts[60:100]]
    (files / "own.jsonl").write_text("\n".join(map(json.dumps, own)))
    assert fit(files, "--pairs", f"b={files / 'own.jsonl'}").exit_code == 0
    members = open_artefact(files / "ensemble", "ensemble").content["members"]
    assert [m["fit"]["report"]["n_pairs"] for m in members] == [48, 30]
    assert members[0]["fit"]["pairs_sha256"] != members[1]["fit"]["pairs_sha256"]


def test_pairs_from_a_corpus(tmp_path):
    lines = [
        {"_id": str(i), "text": f"The number is {i} and it is long. Another sentence about {i}."}
        for i in range(40)
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = run(
        "fit", "--member", "a=hashing:16", "--corpus", tmp_path / "corpus.jsonl",
        "--out", tmp_path / "ensemble",
    )  # fmt: skip
    assert done.exit_code == 0, done.output


def test_members_file(files):
    members = [{"name": "a", "model": "hashing:16", "query_prompt": "q: ", "max_length": 50}]
    (files / "members.json").write_text(json.dumps(members))
    done = run(
        "fit", "--members-file", files / "members.json", "--pairs", files / "pairs.jsonl",
        "--out", files / "ensemble",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    identity = open_artefact(files / "ensemble", "ensemble").content["members"][0]["identity"]
    assert (identity["query_prompt"], identity["max_length"]) == ("q: ", 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--out", "e"], "no members: give --member NAME=MODEL"),
        (["fit", "--member", "a", "--out", "e"], "--member 'a': expected NAME=MODEL"),
        (["fit", "--member", "a=hashing:8", "--out", "e"], "no pairs: give --pairs FILE"),
        (["fit", "--member", "a=hashing:x", "--pairs", "p.tsv", "--out", "e"], "p.tsv"),
        (["index", "--ensemble", "no", "--corpus", "no", "--out", "o"], "error: "),
        (["search", "--index", "no", "q"], "no index in no"),
        (["search", "--index", "no", "--weights", "a", "q"], "error: "),
        (["info", "no"], "run `uec fit` or `uec index`"),
    ],
)
def test_mistakes_end_in_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_help_names_every_command():
    output = run("--help").output
    assert all(name in output for name in ("fit", "index", "search", "serve", "info", "demo"))
