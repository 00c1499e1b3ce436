"""The evaluation: faults are errors, values by hand, and a member equals sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import spearmanr

pytest.importorskip("ir_measures", reason="needs ir-measures (extra 'bench')")

from benchmarks import datasets, measures
from benchmarks.report import main as report
from benchmarks.run_audits import main as audits
from benchmarks.run_flip import LIP_RATES, STS_FILES
from benchmarks.run_flip import main as flip
from benchmarks.run_labelled import main as labelled
from benchmarks.run_local import main
from benchmarks.run_traces import auroc
from uec.errors import InputError, MismatchError


def test_measures_by_hand():
    qrels = {"q1": {"a": 1}, "q2": {"b": 1, "c": 1}}
    run = {"q1": {"x": 2.0, "a": 1.0}, "q2": {"b": 1.0}}
    values = measures.per_query("system", run, qrels)
    # One relevant document at rank 2: 1/log2(3). Two relevant, one found first: 1/(1 + 1/log2(3)).
    assert values["nDCG@10"]["q1"] == pytest.approx(1 / np.log2(3))
    assert values["nDCG@10"]["q2"] == pytest.approx(1 / (1 + 1 / np.log2(3)))
    assert values["MRR"] == {"q1": 0.5, "q2": 1.0}
    assert values["Recall@100"] == {"q1": 1.0, "q2": 0.5}
    assert measures.summary(values)["queries"] == 2


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q1": {"a": 1.0}}, "1 judged queries have no result"),
        ({"q1": {"a": 1.0}, "q2": {}}, "no result"),
        ({"q1": {"a": float("nan")}, "q2": {"a": 1.0}}, "NaN or infinite"),
    ],
)
def test_faults_never_become_a_mean(run, message):
    with pytest.raises(InputError, match=message):
        measures.per_query("system", run, {"q1": {"a": 1}, "q2": {"a": 1}})


def test_randomisation_test_tells_a_difference_from_none():
    rng = np.random.default_rng(0)
    a = rng.uniform(size=200)
    assert measures.paired_p_value(a - a) == 1.0
    assert measures.paired_p_value(np.full(200, 0.1)) < 0.001
    assert measures.paired_p_value(a - rng.permutation(a)) > 0.01


def test_calibration_error_by_hand_and_labels_carry_it():
    probabilities = np.array([0.1, 0.1, 0.9, 0.9])
    # First bin: 0.1 against 0.5; last bin: 0.9 against 1.0.
    error = measures.calibration_error(probabilities, np.array([0.0, 1.0, 1.0, 1.0]))
    assert error["ECE"] == pytest.approx((0.4 + 0.1) / 2)
    assert error["Var-ECE"] == pytest.approx(0.15**2)
    rng = np.random.default_rng(0)
    honest = rng.uniform(size=5000)
    relevant = (rng.uniform(size=5000) < honest).astype(float)
    assert measures.calibration_error(honest, relevant)["ECE"] < 0.03
    assert measures.calibration_error(honest, rng.permutation(relevant))["ECE"] > 0.2


def test_abstention_is_worth_all_nothing_or_less():
    rng = np.random.default_rng(0)
    values = rng.uniform(size=2000)
    auc = measures.normalised_abstention_auc
    assert auc(values, values) == pytest.approx(1.0)
    assert auc(-values, values) < -0.5
    assert auc(values, rng.permutation(values)) == pytest.approx(0.0, abs=0.1)
    assert auc(values, np.full(2000, 0.5)) == 0.0


def test_auroc_by_hand():
    positive = np.array([True, True, False, False])
    assert auroc(positive, np.array([4.0, 3.0, 2.0, 1.0])) == 1.0
    # Pairs won: (3 > 2, 3 > 1), (1.5 > 1): 3 of 4.
    assert auroc(positive, np.array([3.0, 1.5, 2.0, 1.0])) == 0.75
    assert auroc(positive, np.ones(4)) == 0.5


def write_small(folder, texts):
    """Sixty documents and ten queries, the first words of one each."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "", "text": t} for i, t in enumerate(texts[:60])]
    queries = [{"_id": f"q{i}", "text": " ".join(t.split()[:5])} for i, t in enumerate(texts[:10])]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    qrels = "".join(f"q{i}\td{i}\t1\n" for i in range(10))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")


def test_run_local_on_a_small_set(tmp_path, texts):
    write_small(tmp_path / "small", texts)
    pairs = [{"query": t[:20], "passage": t} for t in texts[60:120]]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    arguments = ["--data", tmp_path, "--sets", "small", "--members", "a=hashing:32,b=hashing:32:1"]
    arguments += ["--pairs", tmp_path / "pairs.jsonl", "--out", tmp_path / "out.json"]
    arguments += ["--cache", tmp_path / "cache", "--seeds", "0,1"]
    arguments += ["--ensemble", tmp_path / "ensemble", "--bm25"]
    first = CliRunner().invoke(main, [str(a) for a in arguments])
    assert first.exit_code == 0, first.output
    content = json.loads((tmp_path / "out.json").read_text())
    row = content["sets"]["small"]
    assert {"a", "b", "uniform-fusion", "rrf", "paper", "uec", "uec, seed 1"} <= set(row)
    assert {"bm25", "uec + bm25", "uec + bm25, seed 1"} <= set(row)
    assert row["bm25"]["MRR"] > row["a"]["MRR"]  # few words, in any order
    assert all(system["queries"] == 10 for system in row.values())
    assert 0.3 < row["uniform-fusion"]["nDCG@10"] <= 1.0
    assert content["average"]["uec"]["MRR"] == row["uec"]["MRR"]
    oracles = content["oracles"]["small"]
    alone = max(row["a"]["nDCG@10"], row["b"]["nDCG@10"])
    assert oracles["best member of the set"] == pytest.approx(alone)
    assert oracles["best fixed weights"] >= alone - 1e-9
    assert oracles["best member of each query"] >= alone
    confidence = content["confidence"]["small"]["uec"]
    assert 0 <= confidence["ECE, ten best hits"] <= 1
    assert confidence["nAUC@10, uec, probability"] <= 1
    assert 0 <= confidence["answered wrongly, max_risk 0.1"] <= confidence["answered, max_risk 0.1"]
    difference = content["against"]["uec"]["by set"]["small"]["difference"]
    assert difference == pytest.approx(row["uec"]["nDCG@10"] - alone)
    lines = (tmp_path / "out.runs" / "small" / "uec.trec").read_text().splitlines()
    assert lines[0].split()[1:4:2] == ["Q0", "1"] and len(lines) == 600
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(report, [str(tmp_path / "out.json"), "--html", str(page)])
    assert shown.exit_code == 0, shown.output
    assert f"| uec | {row['uec']['nDCG@10']:.3f} |" in shown.output
    assert f"| uec, seed 1 | {row['uec, seed 1']['nDCG@10']:.3f} |" in shown.output
    drawn = page.read_text()
    assert drawn.count("<svg") == 9 and "http://" not in drawn.replace("http://www.w3.org", "")
    done = CliRunner().invoke(
        labelled,
        [
            *("--data", str(tmp_path), "--sets", "small", "--ensemble", str(tmp_path / "ensemble")),
            *("--n-draws", "2", "--out", str(tmp_path / "labelled.json")),
        ],
    )
    assert done.exit_code == 0, done.output
    curve = json.loads((tmp_path / "labelled.json").read_text())["sets"]["small"]
    assert curve["0"] == [pytest.approx(row["uec, beta 0"]["nDCG@10"])]
    assert len(curve["5"]) == 2
    # Encodings kept by the first run give the same figures in a second.
    CliRunner().invoke(main, [str(a) for a in arguments])
    assert json.loads((tmp_path / "out.json").read_text())["sets"] == content["sets"]


def test_run_audits_relates_every_measure_to_the_labels(tmp_path, texts):
    write_small(tmp_path / "small", texts)
    (tmp_path / "sts").mkdir()
    scored = [(5.0, t, f"{t} again") for t in texts[:40]]
    scored += [(0.0, t, u) for t, u in zip(texts[40:60], texts[60:80], strict=True)]
    lines = "".join(f"{score}\t{a}\t{b}\n" for score, a, b in scored)
    (tmp_path / "sts" / "own-test.tsv").write_text(f"score\tsentence1\tsentence2\n{lines}")
    (tmp_path / "tatoeba").mkdir()
    pairs = "".join(f"{' '.join(t.split()[:9])}\t{t}\n" for t in texts)
    (tmp_path / "tatoeba" / "xxx-eng.tsv").write_text(f"xxx\teng\n{pairs}")
    rows = [("m1", 0.05, 1), ("m2", 0.2, 2), ("m3", 0.3, 3), ("m4", 0.4, 5), ("m5", 0.5, 4)]
    (tmp_path / "table.csv").write_text(
        "model,mteb_score,own\n" + "".join(f"{m},{score},{own}\n" for m, score, own in rows)
    )
    widths = (4, 8, 16, 32, 64)
    arguments = ["--data", tmp_path, "--sets", "small,sts/own,tatoeba/xxx", "--n-spans", 40]
    arguments += ["--members", ",".join(f"h{width}=hashing:{width}" for width in widths)]
    arguments += ["--only", "selfretrieval,overlap", "--table", tmp_path / "table.csv"]
    arguments += ["--cache", tmp_path / "cache", "--out", tmp_path / "audits.json"]
    done = CliRunner().invoke(audits, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "audits.json").read_text())
    [shown] = [line for line in done.output.splitlines() if "| selfretrieval cloze_mrr |" in line]
    assert f" {content['relations']['selfretrieval cloze_mrr']['average']['rho']:.2f} (" in shown
    for name in ("small", "sts/own", "tatoeba/xxx"):
        rows = content["members"][name]
        assert rows[-1]["labels"] > rows[0]["labels"]
        own = content["relations"]["overlap overlap@5"][name]
        ranks = spearmanr([r["overlap overlap@5"] for r in rows], [r["labels"] for r in rows])
        assert own["rho"] == pytest.approx(ranks.statistic)
        assert own["low"] <= own["rho"] <= own["high"] and set(own["without"]) == {
            f"h{width}" for width in widths
        }
    # What is there already is kept; other settings are not mixed with it.
    resumed = [str(a) for a in (*arguments, "--resume")]
    resumed[resumed.index("small,sts/own,tatoeba/xxx")] = "small,sts/own"
    again = CliRunner().invoke(audits, resumed)
    assert again.exit_code == 0 and "tatoeba/xxx" in again.output
    assert json.loads((tmp_path / "audits.json").read_text()) == content
    other = CliRunner().invoke(audits, [*resumed, "--seed", "1"])
    assert isinstance(other.exception, MismatchError)
    looked = content["relations"]["selfretrieval cloze_mrr"]
    assert set(looked) == {"small", "sts/own", "average"} == {*looked["average"]["sets"], "average"}
    assert looked["average"]["rho"] == pytest.approx(
        (looked["small"]["rho"] + looked["sts/own"]["rho"]) / 2
    )
    # A wider table of hashed words collides less, so it finds more of what stands word by word;
    # what is left of a text of random words says nothing of the piece cut out of it.
    assert content["relations"]["selfretrieval quotation_mrr"]["average"]["rho"] > 0.8
    assert content["published"]["table"]["own"]["rho"] == pytest.approx(0.9)
    assert content["published"]["table"]["own"]["without"]["English"] == pytest.approx(0.8)


def test_run_flip_compares_probes_and_tests_translations(tmp_path, texts):
    (tmp_path / "sts").mkdir()
    rows = "".join(f"1\t{a}\t{b}\n" for a, b in zip(texts[:60], texts[60:120], strict=True))
    for name in STS_FILES:
        (tmp_path / "sts" / f"{name}.tsv").write_text(f"score\tsentence1\tsentence2\n{rows}")
    (tmp_path / "tatoeba").mkdir()
    pairs = "".join(f"{text[::-1]}\t{text}\n" for text in texts[120:])
    (tmp_path / "tatoeba" / "xxx-eng.tsv").write_text(f"xxx\teng\n{pairs}")
    arguments = ["--data", tmp_path, "--members", "a=hashing:64", "--languages", "xxx"]
    arguments += ["--out", tmp_path / "flip.json"]
    done = CliRunner().invoke(flip, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "flip.json").read_text())
    [row] = content["comparison"]
    assert {"accuracy", "lip", "splice", "unigram"} <= set(row)
    assert [sweep["rate"] for sweep in content["sweeps"]["a"]] == list(LIP_RATES)
    abroad = content["languages"]["xxx"]["a"]
    # Words spelt backwards share nothing with a table of character n-grams.
    assert abroad["own"] > abroad["other"] and abroad["drop"] > 0
    settings = content["settings"]
    assert settings["n_train"] + settings["n_held"] + settings["n_test"] == 150
    assert settings["n_train, second part"] < settings["n_train"]


@pytest.mark.parametrize("name", ["minilm", "paraphrase", "e5"])
def test_a_member_equals_sentence_transformers_and_brute_force(data_dir, tmp_path, name):
    packaged = pytest.importorskip("uec.encoders.packaged", reason="needs the extra 'demo'")
    from sentence_transformers import SentenceTransformer

    from benchmarks.evaluation import evaluate_set
    from benchmarks.run_plain import plain_run
    from uec.fitting import fit_ensemble
    from uec.laplace import FitSettings
    from uec.records import MemberSpec

    whole = datasets.load_set(data_dir, "trecqa-wang")
    spec = MemberSpec(name, f"pkg:{name}")
    pairs = datasets.english_pairs(data_dir, 60)
    ensemble = fit_ensemble([spec], {name: pairs}, FitSettings())
    got = evaluate_set(ensemble, whole, tmp_path / "runs").table[name]

    model = SentenceTransformer(str(packaged.materialise(name)), local_files_only=True)
    expected = measures.summary(measures.per_query("plain", plain_run(model, whole), whole.qrels))
    for measure in measures.MEASURES:
        assert got[measure] == pytest.approx(expected[measure], abs=1e-4), measure
