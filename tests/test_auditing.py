"""Audits end to end: the audits' own numbers, and nothing is left out in silence."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest

import uec
from uec import audits
from uec.auditing import running, selection
from uec.auditing.folder import Audited, load, save
from uec.auditing.gathering import Subject
from uec.auditing.running import chosen, run
from uec.auditing.sampling import PairSample, PairSets, Sample, draw
from uec.encoders.hashing import HashingEncoder
from uec.errors import CorruptArtefactError, DependencyError, InputError, NotFoundError

QUICK = ("selfretrieval", "overlap", "ica", "agreement", "geometry")


def sample_of(texts, **changes):
    documents = tuple(uec.Document(f"d{i}", text) for i, text in enumerate(texts))
    rows = np.arange(len(texts))
    return Sample(documents, rows, len(texts), 0, 0, **changes)


def some_pairs(texts):
    sides = tuple(" ".join(text.split()[:6]) for text in texts), tuple(texts)
    return PairSample(*sides, np.arange(len(texts)), len(texts))


def pairs_of(texts):
    return PairSets(some_pairs(texts))


def hashing(name, model):
    return Subject(name, model, HashingEncoder(uec.MemberSpec(name, model)))


@pytest.fixture(scope="module")
def subjects():
    return [hashing("a", "hashing:48"), hashing("b", "hashing:32:1")]


@pytest.fixture(scope="module")
def result(subjects, texts):
    return run(subjects, sample_of(texts), pairs_of(texts), names=QUICK, seed=3)


def test_the_audits_are_asked_what_a_reader_would_ask_them(result, subjects, texts):
    """The same numbers as calling each audit on the members' embeddings oneself."""
    encoders = {subject.name: subject.encoder for subject in subjects}
    matrices = {name: one.encode(texts, "document").mean for name, one in encoders.items()}
    sides = {
        name: (one.encode(some_pairs(texts).queries, "query").mean, matrices[name])
        for name, one in encoders.items()
    }
    expected = {
        "overlap": audits.load("overlap")(sides, seed=3),
        # b has 32 dimensions, so 64 components do not exist for both.
        "ica": audits.load("ica")(sides, components=(32,), seed=3),
        "agreement": audits.load("agreement")(matrices, seed=3),
        "geometry": audits.load("geometry")(matrices, pairs=sides, map_texts=600, seed=3),
    }
    for name, report in expected.items():
        assert result.reports[name].rows == report.rows, name
        assert result.reports[name].findings == report.findings


def test_self_retrieval_looks_for_spans_of_the_same_texts(result, subjects, texts):
    spans = draw(sample_of(texts), running.N_SPANS, 3)
    looked = {
        one.name: selection.Looked(
            one.encoder.encode([span.text for span in spans], "query").mean,
            one.encoder.encode([span.rest for span in spans], "document").mean,
        )
        for one in subjects
    }
    matrices = {one.name: one.encoder.encode(texts, "document").mean for one in subjects}
    views = selection.view(matrices, looked, np.array([span.row for span in spans]))
    expected = selection.audit(views, ["a", "b"], {"seed": 3})
    found = result.reports["selfretrieval"]
    assert replace(found, warnings=()) == expected
    assert found.warnings[0].startswith("The texts are short: half have under 8")
    assert result.choice == selection.choose(views, ["a", "b"])
    # Character n-grams find pieces of texts of twenty words; more dimensions find more.
    a, b = (row["quotation_mrr"] for row in expected.rows)
    assert a > b > 0.7


def test_words_and_information_are_audited_too(subjects, texts, tmp_path):
    result = run(
        subjects, sample_of(texts), names=("flip", "flare"), insist=True, probes=tmp_path / "p"
    )
    assert result.reports["flip"].n_texts == result.reports["flare"].n_texts == 150
    # Every text has its own number and twelve of twenty words: guessing finds most of them.
    assert result.reports["flip"].rows[0]["accuracy"] > 0.5
    assert result.reports["flare"].settings["seeds"] == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["a.npz", "b.npz"]
    from uec.audits.flip import Probe

    assert "river" in Probe.load(tmp_path / "p" / "a.npz").entries


def test_adversarial_parallel_and_entities_are_looked_at(subjects, texts):
    """Each is the audit's own figure, and is asked of encoders only."""
    swapped = tuple(" ".join([*text.split()[6:], *text.split()[:6]]) for text in texts[:40])
    adversarial = PairSample(tuple(texts[:40]), swapped, np.arange(40), 40)
    parallel = PairSample(tuple(texts[60:90]), tuple(texts[90:120]), np.arange(30), 30)
    names = tuple((text.split()[0], text.split()[1]) for text in texts)
    pairs = PairSets(some_pairs(texts), adversarial, {"other": parallel})
    result = run(
        subjects, sample_of(texts, entities=names), pairs, names=("geometry", "flip"), insist=True
    )
    row = result.reports["geometry"].rows[0]
    left, right = (
        subjects[0].encoder.encode(side, role).mean
        for side, role in ((texts[:40], "query"), (swapped, "document"))
    )
    gaps = np.linalg.norm(left - right, axis=1) / np.linalg.norm(left, axis=1)
    assert row["alignment_adversarial"] == pytest.approx(float((gaps**2).mean()), rel=0.05)
    assert row["alignment_gap"] == row["alignment_adversarial"] - row["alignment"]
    probed = result.reports["flip"].rows[0]
    assert 0 < probed["entities_strict"] <= probed["entities_partial"] <= 1
    # The "translations" are other texts: what is read off them is not in their partners.
    assert probed["drop_other"] > 0.1
    stored = Subject(
        "closed", "c.npy", arrays={"corpus": np.random.default_rng(0).random((150, 7))}
    )
    both = run([*subjects, stored], sample_of(texts), pairs, names=("geometry",))
    assert "alignment_adversarial" not in both.reports["geometry"].rows[0]
    assert any("none of the adversarial pairs" in note for note in both.notes)


def test_equal_seeds_give_equal_files_and_others_do_not(subjects, texts, tmp_path):
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        sample, pairs = sample_of(texts), pairs_of(texts)
        save(run(subjects, sample, pairs, names=QUICK, n_spans=40, seed=seed), folder)
        contents.append((folder / "report.json").read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_what_is_saved_is_what_is_loaded(result, tmp_path):
    save(result, tmp_path)
    back = load(tmp_path)
    assert back.choice.members == result.choice.members and back.names == ["a", "b"]
    assert back.reports["overlap"].rows == result.reports["overlap"].rows
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["audits"]["overlap"]["rank_by"] == "overlap@5"
    assert content["recommended"]["members"] == list(result.choice.members)
    assert content["members"][0]["identity"]["model"] == "hashing:48"


@pytest.mark.parametrize("text", ["no json", "{}", '{"format": "uec-audit", "schema": 9}'])
def test_another_file_is_no_report(text, tmp_path):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(CorruptArtefactError):
        load(tmp_path)


def test_no_report_says_how_to_make_one(tmp_path):
    with pytest.raises(NotFoundError, match="write one with `uec audit --out"):
        load(tmp_path / "none")


def test_thirty_texts_give_what_they_can_and_say_what_they_cannot(subjects, texts):
    result = run(subjects, sample_of(texts[:30]), pairs_of(texts[:30]))
    assert result.refused == {
        "flare": "30 texts are too few for this audit; give at least 50"
    } or set(result.refused) == {"flare", "flip"}
    assert set(result.reports) == set(running.NAMES) - set(result.refused)
    assert any("Only 30 texts" in warning for warning in result.reports["overlap"].warnings)
    assert result.reports["selfretrieval"].settings["n_spans"] == 30


def test_nine_texts_are_refused(subjects, texts):
    with pytest.raises(InputError, match="gives 9 distinct texts; expected at least 10"):
        run(subjects, sample_of(texts[:9]))


def test_an_audit_asked_for_by_name_must_answer(subjects, texts):
    with pytest.raises(InputError, match="audit flare: 30 texts are too few"):
        run(subjects, sample_of(texts[:30]), names=("flare",), insist=True)
    with pytest.raises(InputError, match="audit overlap: it needs pairs of texts; give --pairs"):
        run(subjects, sample_of(texts), names=("overlap",), insist=True)


def test_no_answer_at_all_is_an_error(subjects, texts):
    with pytest.raises(InputError, match=r"no audit has an answer: overlap: .*; ica: "):
        run(subjects, sample_of(texts), names=("overlap", "ica"))


def test_stored_members_stand_beside_encoders_of_another_dimension(subjects, texts):
    rng = np.random.default_rng(0)
    stored = Subject("closed", "closed.npy", arrays={"corpus": rng.normal(size=(150, 7))})
    result = run([*subjects, stored], sample_of(texts), pairs_of(texts), names=QUICK)
    dimensions = {member["name"]: member["dimension"] for member in result.members}
    assert dimensions == {"a": 48, "b": 32, "closed": 7}
    judged = {
        name: [row["member"] for row in report.rows] for name, report in result.reports.items()
    }
    assert judged["agreement"] == judged["geometry"] == ["a", "b", "closed"]
    assert judged["selfretrieval"] == judged["overlap"] == judged["ica"] == ["a", "b"]
    assert any("closed: given as embeddings" in note for note in result.notes)
    assert any("closed: no embeddings of the pairs" in note for note in result.notes)
    # Noise shares no more neighbours with anybody than chance does.
    table = np.array(result.reports["agreement"].details["overlap"])
    assert table[0, 2] < 0.06 < table[0, 1]
    assert {step.member for step in result.choice.steps} == {"a", "b"}


def test_a_file_alone_cannot_be_looked_for_anything(texts):
    stored = Subject(
        "closed", "c.npy", arrays={"corpus": np.random.default_rng(0).normal(size=(150, 7))}
    )
    result = run([stored], sample_of(texts), names=("selfretrieval", "geometry"))
    assert result.choice is None
    assert result.refused == {
        "selfretrieval": "it looks for pieces of text, and no member here encodes text"
    }


def test_texts_too_short_for_pieces_are_said_to_be(subjects, texts):
    short = [" ".join(text.split()[:4]) + f" {i}" for i, text in enumerate(texts)]
    result = run(subjects, sample_of(short), names=("selfretrieval", "agreement"))
    assert result.refused["selfretrieval"].startswith("the corpus gives 0 pieces of text")
    assert result.choice is None


def test_labels_reach_the_maps(subjects, texts):
    labels = tuple("even" if i % 2 == 0 else "odd" for i in range(150))
    result = run(subjects, sample_of(texts, labels=labels), names=("geometry",))
    assert result.reports["geometry"].details["map_labels"] == list(labels)
    assert "purity" in result.reports["geometry"].rows[0]


def test_progress_reaches_its_total(subjects, texts):
    seen = {}

    @contextlib.contextmanager
    def bar(label, total):
        seen[label] = [0, total]

        def advance(n):
            seen[label][0] += n

        yield advance

    run(subjects, sample_of(texts), pairs_of(texts), names=QUICK, bar=bar)
    assert {label: done for label, (done, total) in seen.items() if done != total} == {}
    assert seen["embedding"] == [2 * (150 + 2 * 150 + 2 * 150)] * 2


def test_which_audits_run():
    assert chosen((), ()) == running.NAMES
    assert chosen(("flare", "overlap"), ()) == ("overlap", "flare")
    assert chosen((), ("flare", "flip")) == QUICK
    with pytest.raises(InputError, match=r"no audit magic; there are: selfretrieval, overlap"):
        chosen(("magic",), ())
    with pytest.raises(InputError, match="no audit is left"):
        chosen(("flip",), ("flip",))


def test_a_missing_package_is_told_before_anything_is_embedded(subjects, texts, monkeypatch):
    def missing(name):
        raise DependencyError("zuko", "audit", f"the audit {name!r}")

    monkeypatch.setattr(audits, "load", missing)
    monkeypatch.setattr(running, "embed", lambda *arguments: pytest.fail("embedded"))
    with pytest.raises(DependencyError, match=r"pip install 'uec\[audit\]'"):
        run(subjects, sample_of(texts))


def test_numbers_that_are_none_become_null(tmp_path):
    empty = Audited({"x": float("nan"), "y": np.float32(0.5), "z": (np.int64(3),)}, [])
    save(empty, tmp_path)
    corpus = json.loads((tmp_path / "report.json").read_text())["corpus"]
    assert corpus == {"x": None, "y": 0.5, "z": [3]}
