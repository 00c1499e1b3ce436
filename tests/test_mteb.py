"""The MTEB integration and its scripts, through MTEB's own task classes on local files, offline."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import spearmanr

pytest.importorskip("mteb", reason="needs mteb (extra 'integrations')")
pytest.importorskip("ir_measures", reason="needs ir-measures (extra 'bench')")

import datasets as hub_datasets
import mteb
from mteb.models import EncoderProtocol, ModelMeta, SearchProtocol
from mteb.similarity_functions import dot_score, pairwise_dot_score

from benchmarks import measures, mteblocal, run_miracl, run_mteb, run_sts, sentencesets
from uec import SearchOptions
from uec.calibration import Calibration
from uec.ensemble import Ensemble
from uec.errors import InputError, UECError
from uec.integrations.mteb import UECEncoder, UECSearch, fingerprint
from uec.readers import read_beir
from uec.symmetric import SymmetricEncoder, pair_spread

# The paper's own tasks are among those that MTEB has revised since.
pytestmark = pytest.mark.filterwarnings("ignore:The task .* is superseded:UserWarning")

SETTINGS = {"hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
TASK = mteb.get_task("SciFact").metadata.model_copy(update={"name": "Small"})


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is left in the home of whoever runs the tests."""
    monkeypatch.setattr(hub_datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.fixture(scope="session")
def ensemble_dir(ensemble, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("mteb") / "ensemble"
    ensemble.save(path)
    return path


@pytest.fixture(scope="session")
def beir(texts, tmp_path_factory) -> Path:
    """Sixty documents, half of them with a title that no text repeats, and twenty queries."""
    folder = tmp_path_factory.mktemp("beir")
    titles = ["" if i % 2 else f"  title{i} of{i}" for i in range(60)]
    corpus = [
        {"_id": f"d{i}", "title": title, "text": f" {text} "}
        for i, (title, text) in enumerate(zip(titles, texts, strict=False))
    ]
    queries = [
        {"_id": f"q{i}", "text": f"{titles[i]} {' '.join(texts[i].split()[:3])}".strip()}
        for i in range(20)
    ]
    write_lines(folder / "corpus.jsonl", corpus)
    write_lines(folder / "queries.jsonl", queries)
    qrels = "".join(f"q{i}\td{i}\t1\nq{i}\td{i + 20}\t1\n" for i in range(20))
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return folder


@pytest.fixture
def scifact(beir, tmp_path):
    return run_mteb.prepared(run_mteb.get_task("SciFact"), beir, tmp_path / "aside")


def write_lines(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")


def invoke(command, *arguments):
    done = CliRunner().invoke(command, [str(a) for a in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(Path(arguments[arguments.index("--out") + 1]).read_text())


class Plain:
    """A member by MTEB's own search: what a baseline of MTEB would be."""

    def __init__(self, member):
        self._member = member

    def encode(self, inputs, *, prompt_type=None, **_):
        texts = [text for batch in inputs for text in batch["text"]]
        return self._member.encoder.encode(texts, prompt_type.value).mean

    def similarity(self, a, b):
        return dot_score(a, b)

    def similarity_pairwise(self, a, b):
        return pairwise_dot_score(a, b)

    @property
    def mteb_model_meta(self):
        return ModelMeta.create_empty({"name": "test/plain", "revision": "0"})


def test_a_member_scores_as_by_mtebs_own_search(ensemble, scifact):
    """Titles are joined as MTEB joins them, and nothing is lost on the way."""
    for member in ensemble.members:
        own = UECSearch(mteblocal.alone(ensemble, member.name), calibrated=False)
        assert isinstance(own, SearchProtocol)
        assert not isinstance(own, EncoderProtocol)
        got = mteblocal.evaluate(own, scifact, None)["default/test"]
        expected = mteblocal.evaluate(Plain(member), scifact, None)["default/test"]
        # Standardised by query, scores are another confidence than cosines: the order is the same.
        assert got.pop("nAUC@10") != expected.pop("nAUC@10")
        assert got == pytest.approx(expected, abs=1e-9)
        assert 0.3 < got["main"] < 1


def test_search_is_the_product(ensemble, scifact, beir, tmp_path):
    """MTEB's figure is that of the calibrated index asked directly."""
    from uec.retriever import Retriever

    # The index loads the ensemble's members anew: they must be made of the same specs.
    model = UECSearch(ensemble, folder=tmp_path / "kept")
    figures = mteblocal.evaluate(model, scifact, None)["default/test"]
    [report] = model.calibrations.values()
    assert report["n_spans"] == 60
    retriever = Retriever.open(tmp_path / "kept" / "SciFact--default--test")
    source = read_beir(beir, "test")
    rankings = retriever.search([q.text for q in source.queries], top_k=60)
    run = {
        query.query_id: {hit.doc_id: hit.score for hit in ranking.hits}
        for query, ranking in zip(source.queries, rankings, strict=True)
    }
    summary = measures.summary(measures.per_query("direct", run, source.qrels))
    # MTEB rounds to five digits.
    assert figures["main"] == pytest.approx(summary["nDCG@10"], abs=1e-5)
    assert figures["Recall@100"] == pytest.approx(summary["Recall@100"], abs=1e-5)


def test_fingerprint_follows_all_that_decides_a_score(ensemble, ensemble_dir, monkeypatch):
    first = fingerprint(ensemble, {})
    assert fingerprint(Ensemble.load(ensemble_dir), {}) == first
    member = ensemble.members[0]
    posterior = replace(member.posteriors["diag"], profile=member.posteriors["diag"].profile[::-1])
    others = [
        replace(ensemble, members=ensemble.members[:2]),
        replace(ensemble, members=ensemble.members[::-1]),
        replace(ensemble, calibration=Calibration(np.log([0.5, 0.3, 0.2]))),
        replace(ensemble, calibration=replace(ensemble.calibration, temperature=1.0)),
        replace(
            ensemble,
            members=(
                replace(member, posteriors={**member.posteriors, "diag": posterior}),
                *ensemble.members[1:],
            ),
        ),
    ]
    seen = {first, *(fingerprint(other, {}) for other in others)}
    seen |= {
        model.mteb_model_meta.revision
        for model in (
            UECSearch(ensemble),
            UECSearch(ensemble, calibrated=False),
            UECSearch(ensemble, seed=1),
            UECSearch(ensemble, options=SearchOptions(weights={"a": 1.0})),
            UECEncoder(ensemble),
            UECEncoder(ensemble, posterior="diag"),
        )
    }
    monkeypatch.setattr("uec.__version__", "another")
    seen.add(fingerprint(ensemble, {}))
    assert len(seen) == 1 + len(others) + 6 + 1
    more_hits = UECSearch(ensemble, options=SearchOptions(top_k=20, explain=True))
    assert more_hits.mteb_model_meta.revision == UECSearch(ensemble).mteb_model_meta.revision


def test_result_cache_never_gives_another_ensembles_or_datas_figures(
    ensemble, scifact, beir, tmp_path
):
    cache = tmp_path / "results"
    one, two = (UECSearch(mteblocal.alone(ensemble, name), calibrated=False) for name in "ac")
    assert one.mteb_model_meta.name == two.mteb_model_meta.name
    first = mteblocal.evaluate(one, scifact, cache)
    second = mteblocal.evaluate(two, scifact, cache)
    assert first != second
    again = UECSearch(mteblocal.alone(ensemble, "a"), calibrated=False)
    assert mteblocal.evaluate(again, scifact, cache) == first
    with pytest.raises(InputError, match="index is of none"):
        # It came from the cache: nothing was indexed.
        again.search([], task_metadata=scifact.metadata, top_k=1, **SETTINGS)
    # The same task on other data: the judgements name other documents.
    other = tmp_path / "other"
    mteblocal.from_beir(beir, other, "test")
    judgements = [{"query-id": f"q{i}", "corpus-id": f"d{59 - i}", "score": 1} for i in range(20)]
    write_lines(other / "default.jsonl", judgements)
    moved = mteblocal.localised(run_mteb.get_task("SciFact"), other)
    assert mteblocal.evaluate(again, moved, cache)["default/test"]["main"] < 0.3
    assert run_mteb.get_task("SciFact").metadata.dataset["path"] == "mteb/scifact"


def test_an_answer_that_mteb_would_swallow_is_an_error(ensemble, texts, monkeypatch):
    rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts[:40])]
    model = UECSearch(ensemble)
    question = [{"id": "q1", "text": texts[0]}]
    with pytest.raises(InputError, match=r"index is of none; call index\(\) first"):
        model.search(question, task_metadata=TASK, top_k=5, **SETTINGS)
    model.index(rows, task_metadata=TASK, num_proc=None, **SETTINGS)
    answer = model.search(question, task_metadata=TASK, top_k=50, num_proc=None, **SETTINGS)
    assert len(answer["q1"]) == 40 and max(answer["q1"], key=answer["q1"].get) == "d0"
    search = type(model._indexed[1]).search
    for damage in (
        lambda hits: hits[:-1],
        lambda hits: (replace(hits[0], score=float("nan")), *hits[1:]),
        lambda hits: (),
    ):
        monkeypatch.setattr(
            "uec.retriever.Retriever.search",
            lambda *a, damage=damage, **k: [
                replace(r, hits=damage(r.hits)) for r in search(*a, **k)
            ],
        )
        with pytest.raises(UECError, match=r"Small/default/test: query 'q1' got .* expected 5"):
            model.search(question, task_metadata=TASK, top_k=5, **SETTINGS)
    monkeypatch.setattr("uec.retriever.Retriever.search", search)
    for wrong, message in (
        ([*question, *question], "occurs twice"),
        ([{"id": "q1", "text": [{"role": "user", "content": "x"}]}], "expected text, got list"),
    ):
        with pytest.raises(InputError, match=message):
            model.search(wrong, task_metadata=TASK, top_k=5, **SETTINGS)
    other = {**SETTINGS, "hf_subset": "de"}
    with pytest.raises(InputError, match="search of Small/de/test: the index is of Small/default"):
        model.search(question, task_metadata=TASK, top_k=5, **other)
    with pytest.raises(InputError, match="precision 'int8' is not offered"):
        settings = {**SETTINGS, "encode_kwargs": {"precision": "int8"}}
        model.search(question, task_metadata=TASK, top_k=5, **settings)


def test_a_temporary_index_leaves_nothing_behind(ensemble, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = UECSearch(ensemble, calibrated=False)
    rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts[:9])]
    for subset in ("de", "sw"):
        model.index(rows, task_metadata=TASK, **{**SETTINGS, "hf_subset": subset})
    assert len(list(tmp_path.glob("uec-mteb-*/*/data-*"))) == 1
    del model
    gc.collect()
    assert not list(tmp_path.glob("uec-mteb-*"))


def test_reranking_orders_the_given_documents_and_instructions_follow_the_query(ensemble, texts):
    model = UECSearch(ensemble)
    rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts[:40])]
    model.index(rows, task_metadata=TASK, **SETTINGS)
    question = [{"id": "q", "text": texts[3]}]
    given = {"q": ["d7", "d3", "d9", "d7"]}
    own = model.search(question, task_metadata=TASK, top_k=50, top_ranked=given, **SETTINGS)["q"]
    whole = model.search(question, task_metadata=TASK, top_k=50, **SETTINGS)["q"]
    assert set(own) == {"d7", "d3", "d9"}
    assert own == pytest.approx({doc_id: whole[doc_id] for doc_id in own})
    with pytest.raises(InputError, match="query 'q' has no documents to rerank"):
        model.search(question, task_metadata=TASK, top_k=5, top_ranked={}, **SETTINGS)
    parted = [{"id": "q", "text": texts[3][:20], "instruction": texts[3][21:]}]
    joined = [{"id": "q", "text": f"{texts[3][:20]} {texts[3][21:]}"}]
    answers = [
        model.search(q, task_metadata=TASK, top_k=9, **SETTINGS)["q"] for q in (parted, joined)
    ]
    assert answers[0] == answers[1]


def test_a_corpus_too_small_to_calibrate_is_searched_and_said(ensemble, texts, caplog):
    model = UECSearch(ensemble)
    rows = [{"id": f"d{i}", "text": text, "title": None} for i, text in enumerate(texts[:5])]
    model.index(rows, task_metadata=TASK, **SETTINGS)
    answer = model.search([{"id": "q", "text": texts[2]}], task_metadata=TASK, top_k=3, **SETTINGS)
    assert max(answer["q"], key=answer["q"].get) == "d2"
    assert "expected at least 30" in model.calibrations["Small/default/test"]["not calibrated"]
    assert "Small/default/test is not calibrated" in caplog.text


def sts_folder(folder: Path, texts) -> tuple[list[str], list[str], list[float]]:
    rng = np.random.default_rng(0)
    left = texts[:60]
    n_kept = rng.integers(0, 13, 60)
    right = [
        " ".join([*text.split()[:n], *texts[i + 60].split()[n:]])
        for i, (text, n) in enumerate(zip(left, n_kept, strict=True))
    ]
    gold = (n_kept / 13 * 5 + rng.uniform(0, 1, 60)).tolist()
    rows = [
        {"sentence1": a, "sentence2": b, "score": g}
        for a, b, g in zip(left, right, gold, strict=True)
    ]
    write_lines(folder / "test.jsonl", rows)
    return left, right, gold


def test_similarity_task_scores_the_weighted_mean_of_cosines(ensemble, texts, tmp_path):
    left, right, gold = sts_folder(tmp_path / "sts", texts)
    task = mteblocal.localised(run_mteb.get_task("STSBenchmark"), tmp_path / "sts")
    model = UECEncoder(ensemble)
    assert isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol)
    got = mteblocal.evaluate(model, task, None)["default/test"]["main"]
    fitted = SymmetricEncoder.fit(ensemble, left)
    learnt = model.calibrations["STSBenchmark/default"]
    assert learnt["coefficients"] == pytest.approx(fitted.coefficients)
    assert learnt["report"]["n_spans"] == 60
    pairs = zip(ensemble.encode(left, "query"), ensemble.encode(right, "query"), strict=True)
    cosines = [np.einsum("nd,nd->n", a.mean, b.mean) for a, b in pairs]
    weights = np.exp(fitted.calibration.log_prior) / [
        pair_spread(e.mean) for e in ensemble.encode(left, "query")
    ]
    assert fitted.calibration.temperature == np.inf
    expected = spearmanr(gold, weights @ cosines)[0]
    assert got == pytest.approx(expected, abs=1e-4)
    assert got > 0.5


def test_encoder_says_when_it_could_not_learn(ensemble, texts):
    model = UECEncoder(ensemble)
    settings = {"task_metadata": TASK, "hf_split": "test", "hf_subset": "default"}
    vectors = model.encode([{"text": texts[:4]}, {"text": texts[4:5]}], **settings)
    assert vectors.shape == (5, sum(ensemble.dimensions))
    assert "expected at least 30" in model.calibrations["Small/default"]["not calibrated"]
    assert float(model.similarity(vectors, vectors)[1, 3]) == pytest.approx(
        float(vectors[1] @ vectors[3]), abs=1e-6
    )
    with pytest.raises(InputError, match="expected text, got int"):
        model.encode([{"text": [3]}], **settings)


def test_run_mteb_on_three_kinds_of_task(ensemble_dir, beir, texts, tmp_path):
    sts_folder(tmp_path / "sts", texts)
    labelled = [{"text": text, "label": int("river" in text)} for text in texts]
    write_lines(tmp_path / "classes" / "train.jsonl", labelled[:80])
    write_lines(tmp_path / "classes" / "test.jsonl", labelled[80:])
    arguments = [
        *("--ensemble", ensemble_dir, "--cache", tmp_path / "cache"),
        *("--out", tmp_path / "out.json"),
        *("--tasks", "SciFact,STSBenchmark,Banking77Classification"),
        *("--data-path", f"SciFact={beir}"),
        *("--data-path", f"STSBenchmark={tmp_path / 'sts'}"),
        *("--data-path", f"Banking77Classification={tmp_path / 'classes'}"),
    ]
    content = invoke(run_mteb.main, *arguments)
    for name, row in content["tasks"].items():
        assert list(row["systems"]) == ["a", "b", "c", "equal weights", "uec"]
        assert row["data"] == "local files"
        for system in row["systems"].values():
            assert 0 < system["main"] <= 1
        assert set(row["calibrations"]) >= {"uec"}, name
    # Five systems, two doors.
    assert len(set(content["revisions"].values())) == 10
    together = content["tasks"]["STSBenchmark"]["systems"]
    assert together["uec"]["main"] > max(together[name]["main"] for name in "abc") - 0.05
    averages = [content["tasks"][n]["systems"]["uec"]["main"] for n in content["tasks"]]
    assert content["average"]["uec"] == pytest.approx(sum(averages) / 3)
    # Kept results give the same figures.
    again = invoke(run_mteb.main, *arguments)
    assert {n: r["systems"] for n, r in again["tasks"].items()} == {
        n: r["systems"] for n, r in content["tasks"].items()
    }


def test_spearman_and_bootstrap_tell_a_difference_from_none():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 6, 300).astype(float)
    good, bad = gold + rng.normal(size=300), gold + 3 * rng.normal(size=300)
    both = run_sts.spearman(np.stack([gold, gold]), np.stack([good, bad]))
    assert both == pytest.approx([spearmanr(gold, good)[0], spearmanr(gold, bad)[0]])
    equal = gold + rng.normal(size=300)
    drawn = run_sts.bootstrap(gold, {"good": good, "bad": bad, "equal": equal, "same": good})
    difference = drawn["good"] - drawn["bad"]
    assert difference.mean() == pytest.approx(both[0] - both[1], abs=0.02)
    assert run_sts.p_value(difference) == pytest.approx(2 / 2001)
    assert run_sts.p_value(-difference) == run_sts.p_value(difference)
    assert run_sts.p_value(drawn["good"] - drawn["same"]) == 1.0
    assert run_sts.p_value(drawn["good"] - drawn["same"] + 1e-6) == 1.0
    assert run_sts.p_value(drawn["good"] - drawn["equal"]) > 0.01


def test_vector_baselines_by_hand(ensemble, texts):
    """Two members of 32 numbers: the uniform average, and the paper's mean, variance and score."""
    two = replace(ensemble, members=ensemble.members[:2])
    settings = {"task_metadata": run_mteb.get_task("STSBenchmark").metadata}
    batch = [{"text": texts[:3]}]
    a, b = two.encode(texts[:3], "query")
    average = run_sts.Vectors(two, paper=False).encode(batch, **settings)
    summed = a.mean[0] + b.mean[0]
    assert average[0] == pytest.approx(summed / np.linalg.norm(summed), abs=1e-6)
    paper = run_sts.Vectors(two, paper=True)
    vectors = paper.encode(batch, **settings)
    parts = []
    for n in range(3):
        shares = np.exp([-a.calibrated["diag"][n], -b.calibrated["diag"][n]])
        w, v = shares / shares.sum()
        mean = w * a.mean[n] + v * b.mean[n]
        variances = [
            member.posteriors["diag"].variance(e.encoding)[n]
            for member, e in zip(two.members, (a, b), strict=True)
        ]
        length = np.linalg.norm(mean)
        parts.append((mean / length, (w**2 * variances[0] + v**2 * variances[1]) / length**2))
        assert vectors[n] == pytest.approx(np.concatenate(parts[n]), abs=1e-6)
    (m1, v1), (m2, v2) = parts[:2]
    variance = sum(m1[i] ** 2 * v2[i] + v1[i] * m2[i] ** 2 + v1[i] * v2[i] for i in range(len(m1)))
    score = m1 @ m2 / np.sqrt(1 + np.pi / 8 * variance)
    assert paper.similarity_pairwise(vectors[:1], vectors[1:2])[0] == pytest.approx(score)
    assert paper.similarity(vectors, vectors)[0, 1] == pytest.approx(score)
    classified = {"task_metadata": sentencesets.ArticleClassification.metadata}
    means = paper.encode(batch, **classified)
    assert means == pytest.approx(vectors[:, :32])


def test_run_sts_on_small_sets(ensemble, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(run_sts, "N_DRAWS", 200)
    left, right, gold = sts_folder(tmp_path / "aside", texts)
    lines = [f"{g}\t{a}\t{b}" for g, a, b in zip(gold, left, right, strict=True)]
    for name in ("stsb-en-test", "stsb-de-test"):
        path = tmp_path / "data" / "sts" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("score\tsentence1\tsentence2\n" + "\n".join(lines) + "\n")
    # Three articles of five paragraphs; a question repeats words of its article.
    folder = tmp_path / "data" / "xquadr-en"
    corpus = [
        {"_id": f"s{p}", "text": f"{texts[p // 5]} {p}", "paragraph": f"p{p:03d}"}
        for p in range(15)
    ]
    queries = [
        {"_id": f"q{p}x{i}", "text": " ".join(texts[p // 5].split()[i : i + 9])}
        for p in range(15)
        for i in range(3)
    ]
    write_lines(folder / "corpus.jsonl", corpus)
    write_lines(folder / "queries.jsonl", queries)
    (folder / "qrels").mkdir()
    qrels = "".join(f"{q['_id']}\ts{q['_id'][1:].partition('x')[0]}\t1\n" for q in queries)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    two = replace(ensemble, members=ensemble.members[:2], calibration=Calibration.uniform(2))
    two.save(tmp_path / "two")
    content = invoke(
        run_sts.main,
        *("--data", tmp_path / "data", "--ensemble", tmp_path / "two", "--seeds", "0"),
        *("--sets", "stsb-en-test,stsb-de-test,articles-en", "--out", tmp_path / "out.json"),
    )
    assert content["n"] == {"stsb-en-test": 60, "stsb-de-test": 60, "articles-en": 18}
    table = content["sets"]["stsb-en-test"]
    assert set(table) == {
        *("a", "b", "uniform-average", "paper", "traces, diagonal", "equal weights", "uec")
    }
    a, b = (ensemble.members[0].encoder.encode(side, "query").mean for side in (left, right))
    assert table["a"]["Spearman"] == pytest.approx(spearmanr(gold, (a * b).sum(1))[0], abs=1e-4)
    # The same pairs: the same figures, though MTEB's class is another.
    assert content["sets"]["stsb-de-test"] == table
    classified = content["sets"]["articles-en"]["uec"]
    assert classified["accuracy"] > 0.9 and classified["F1"] > 0.9
    against = content["uec against"]["by set"]["stsb-en-test"]
    best = max(table["a"]["Spearman"], table["b"]["Spearman"])
    assert against["difference"] == pytest.approx(table["uec"]["Spearman"] - best)
    for row in content["uec against"]["by set"].values():
        low, high = row["95 %"]
        assert low <= row["difference"] <= high
    shown = run_sts.markdown(content)
    assert f"| uec | {table['uec']['Spearman']:.3f} |" in shown
    assert (
        f"| stsb-en-test | 60 | {against['best member']} | {against['difference']:+.4f} |" in shown
    )
    with pytest.raises(InputError, match="no set 'sts99'; there are stsb-en-test"):
        sentencesets.load(tmp_path / "data", "sts99", tmp_path / "x")
    path.write_text("score\tsentence1\tsentence2\nhigh\ta\tb\n")
    with pytest.raises(InputError, match=r"stsb-de-test.tsv:2: expected score, sentence1"):
        list(sentencesets.read_sts(path))


def test_run_mteb_refuses_what_it_cannot_run(ensemble, beir, tmp_path):
    with pytest.raises(InputError, match="expected TASK=FOLDER"):
        run_mteb.local_folders(("SciFact",), ["SciFact"])
    with pytest.raises(InputError, match="names 'ArguAna'; the tasks are SciFact"):
        run_mteb.local_folders((f"ArguAna={tmp_path}",), ["SciFact"])
    with pytest.raises(InputError, match="NoSuchTask"):
        run_mteb.get_task("NoSuchTask")
    with pytest.raises(InputError, match="no system 'rrf'; there are: a, b, c, equal weights, uec"):
        list(mteblocal.models(ensemble, run_mteb.get_task("SciFact"), ["rrf"]))
    several = run_mteb.get_task("MIRACLRetrieval")
    with pytest.raises(InputError, match="a BEIR folder holds one set, and MIRACLRetrieval has"):
        run_mteb.prepared(several, beir, tmp_path)
    with pytest.raises(InputError, match="no files in it"):
        mteblocal.localised(run_mteb.get_task("SciFact"), tmp_path)


def test_the_papers_tasks_exist():
    kinds = [run_mteb.get_task(name).metadata.type for name in run_mteb.PRESETS["paper"]]
    assert [kinds.count(kind) for kind in ("Retrieval", "Classification", "STS")] == [5, 5, 10]


def miracl_rows() -> dict[str, list[tuple[str, str, str, str]]]:
    """Language to (question, title, passage, unrelated passage), of XQuAD-R or made up."""
    import os

    from tests.conftest import passages

    folder = os.environ.get("UEC_TEST_DATA")
    rows = {}
    for language, seed in (("zh", 1), ("ru", 2)):
        own = passages(120, seed)
        questions = [" ".join(text.split()[:5]) for text in own[:40]]
        answers, others = own[:40], own[40:80]
        if folder:
            source = read_beir(Path(folder) / f"xquadr-{language}", "test")
            corpus = {d.doc_id: d.text for d in source.corpus}
            judged = [(q, next(iter(source.qrels[q.query_id]))) for q in source.queries[::25]][:40]
            questions = [q.text for q, _ in judged]
            answers = [corpus[doc_id] for _, doc_id in judged]
            used = set(answers)
            others = [text for text in corpus.values() if text not in used][:40]
        rows[language] = [
            (question, f"Article {i}", answer, other)
            for i, (question, answer, other) in enumerate(
                zip(questions, answers, others, strict=True)
            )
        ]
    return rows


def write_miracl(folder: Path, language: str, rows, rel0: bool = True) -> None:
    """A language in MIRACL's layout: two corpus files, judgements with lines of relevance 0."""
    (folder / language).mkdir(parents=True)
    passages: dict[str, dict[str, str]] = {}
    topics, qrels = [], []
    for i, (question, title, answer, other) in enumerate(rows):
        ids = [f"{i}#0", f"{i}#7"]
        for doc_id, text in zip(ids, (answer, other), strict=True):
            passages[doc_id] = {"docid": doc_id, "title": title, "text": text}
        topics.append(f"{i}\t{question}\n")
        qrels.append(f"{i}\tQ0\t{ids[0]}\t1\n")
        qrels += [f"{i}\tQ0\t{ids[1]}\t0\n"] * rel0
    (folder / language / "topics.tsv").write_text("".join(topics), encoding="utf-8")
    (folder / language / "qrels.tsv").write_text("".join(qrels), encoding="utf-8")
    lines = [json.dumps(p, ensure_ascii=False) + "\n" for p in passages.values()]
    for part, some in enumerate((lines[::2], lines[1::2])):
        path = folder / language / f"docs-{part}.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(some)


def test_run_miracl_offline_through_mtebs_own_tasks(ensemble_dir, tmp_path):
    rows = miracl_rows()
    for language, own in rows.items():
        write_miracl(tmp_path / "miracl", language, own)
    write_miracl(tmp_path / "positives", "zh", rows["zh"], rel0=False)
    common = ("--ensemble", ensemble_dir, "--systems", "a,uec", "--cache", tmp_path / "cache")
    content = invoke(
        run_miracl.main,
        *common,
        *("--languages", "zh,ru", "--data", tmp_path / "miracl", "--out", tmp_path / "out.json"),
    )
    assert tuple(content["tasks"]) == run_miracl.TASKS
    asked = "prompt of the task (not used)"
    assert content["tasks"]["MIRACLRetrievalHardNegatives"][asked] is None
    assert "Wikipedia" in content["tasks"]["MIRACLRetrievalHardNegatives.v2"][asked]["query"]
    assert set(content["prompts of the members"]) == {"a", "b", "c"}
    for row in content["tasks"].values():
        languages = row["systems"]["uec"]["languages"]
        assert set(languages) == {"zh", "ru"}
        mean = (languages["zh"]["main"] + languages["ru"]["main"]) / 2
        assert row["systems"]["uec"]["main"] == pytest.approx(mean)
        assert row["calibrations"]["uec"]["/".join((row_name(content, row), "zh", "dev"))]
        assert all(0.05 < own["main"] < 1 for own in languages.values())
    # The three tasks differ by corpus on the hub; on the same files their figures are the same.
    first, *others = [row["systems"] for row in content["tasks"].values()]
    assert all(other == first for other in others)
    # Lines of relevance 0 are no hits.
    positives = invoke(
        run_miracl.main,
        *(*common, "--languages", "zh", "--tasks", "MIRACLRetrieval"),
        *("--data", tmp_path / "positives", "--out", tmp_path / "positives.json"),
    )["tasks"]["MIRACLRetrieval"]["systems"]["uec"]["languages"]["zh"]
    assert positives == first["uec"]["languages"]["zh"]


def row_name(content, row) -> str:
    return next(name for name, other in content["tasks"].items() if other is row)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("topics.tsv", "1 no tab", r"topics.tsv:1: 1 cells parted by tabs; expected qid<TAB>text"),
        ("topics.tsv", "1\t ", "query '1' has no text"),
        ("qrels.tsv", "1\tQ0\td", r"qrels.tsv:1: 3 cells"),
        ("qrels.tsv", "1\tQ0\td\t-1", "relevance '-1'; expected 0 or more"),
    ],
)
def test_faults_in_miracls_files_are_named(tmp_path, file, line, message):
    write_miracl(tmp_path, "sw", [("question", "title", "answer", "other")])
    (tmp_path / "sw" / file).write_text(line + "\n")
    with pytest.raises(InputError, match=message):
        run_miracl.convert(tmp_path, tmp_path / "out", ["sw"])


def test_miracls_own_file_names_are_found_and_missing_ones_named(tmp_path):
    with pytest.raises(InputError, match="0 files of topics for 'sw'"):
        run_miracl.convert(tmp_path, tmp_path / "out", ["sw"])
    write_miracl(tmp_path / "plain", "sw", [("question", "title", "answer", "other")])
    for what in ("topics", "qrels"):
        target = tmp_path / "own" / what / f"{what}.miracl-v1.0-sw-dev.tsv"
        target.parent.mkdir(parents=True)
        (tmp_path / "plain" / "sw" / f"{what}.tsv").rename(target)
    with pytest.raises(InputError, match=r"no sw/docs-\*.jsonl.gz"):
        run_miracl.convert(tmp_path / "own", tmp_path / "out", ["sw"])
    (tmp_path / "plain" / "sw").rename(tmp_path / "own" / "miracl-corpus-v1.0-sw")
    run_miracl.convert(tmp_path / "own", tmp_path / "out", ["sw"])
    corpus = (tmp_path / "out" / "sw-corpus.jsonl").read_text().splitlines()
    assert json.loads(corpus[0]) == {"_id": "0#0", "title": "title", "text": "answer"}
    (tmp_path / "own" / "miracl-corpus-v1.0-sw" / "docs-0.jsonl.gz").write_bytes(
        gzip.compress(b'{"docid": "1"}\n')
    )
    with pytest.raises(InputError, match=r"docs-0.jsonl.gz:1: expected JSON with docid, title"):
        run_miracl.convert(tmp_path / "own", tmp_path / "again", ["sw"])


def test_without_mteb_the_extra_is_named():
    code = (
        "import sys; sys.modules['mteb'] = None\n"
        "from uec.errors import DependencyError\n"
        "try:\n    import uec.integrations.mteb\n"
        "except DependencyError as error:\n    print(error)\n"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert "pip install 'uec[integrations]'" in done.stdout
