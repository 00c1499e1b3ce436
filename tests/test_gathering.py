"""What is judged: the same distinct texts for all, and files that must fit them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import uec
from uec.auditing import sampling
from uec.auditing.gathering import Subject, embed, n_to_embed, open_members
from uec.auditing.sampling import PairSets, draw, read_sample
from uec.encoders.hashing import HashingEncoder
from uec.errors import EmbeddingError, InputError, NotFoundError
from uec.selfretrieval import Span


@pytest.fixture
def corpus(tmp_path, texts):
    """Texts 0 to 39, the first one again, one with nothing in it, text 40."""
    written = [*texts[:40], f" {texts[0]}", "  ", texts[40]]
    lines = [
        json.dumps({"_id": f"d{i}", "text": text, "language": "en" if i % 2 else "de"})
        for i, text in enumerate(written)
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    return tmp_path / "corpus.jsonl"


def pairs_of(tmp_path, *pairs):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"query": q, "passage": p}) for q, p in pairs))
    return path


def test_distinct_texts_are_drawn_and_counted(corpus, texts):
    sample = read_sample(corpus, 100, seed=0, label="language")
    assert sample.texts == texts[:41]
    assert sample.rows.tolist() == [*range(40), 42]
    assert (sample.n_documents, sample.n_repeated, sample.n_empty) == (43, 1, 1)
    assert sample.labels[:3] == ("de", "en", "de")


def test_a_sample_follows_the_seed_and_is_uniform(corpus):
    one, again, other = (read_sample(corpus, 20, seed).rows.tolist() for seed in (1, 1, 2))
    assert one == again != other and one == sorted(one) and len(set(one)) == 20
    counts = np.bincount(
        np.concatenate([read_sample(corpus, 10, seed).rows for seed in range(120)]), minlength=43
    )
    assert counts[40] == counts[41] == 0
    # 10 of 41 each time: 29 of 120 draws, give or take four deviations of 4.7.
    drawn = np.delete(counts, [40, 41])
    assert drawn.min() > 10 and drawn.max() < 48


def test_a_missing_label_names_the_document(corpus):
    with pytest.raises(InputError, match=r"document 'd\d+' has no key 'topic'.*\['language'\]"):
        read_sample(corpus, 5, seed=0, label="topic")


def test_pairs_that_share_a_side_are_left_out(tmp_path):
    path = pairs_of(tmp_path, ("a", "x"), ("b", "y"), ("a", "z"), ("c", "y"), ("d", "w"))
    pairs = sampling.read_pair_sample(path, 10, seed=0)
    assert pairs.queries == ("a", "b", "d") and pairs.passages == ("x", "y", "w")
    assert pairs.rows.tolist() == [0, 1, 4] and (pairs.n_pairs, pairs.n_repeated) == (5, 2)
    assert sampling.read_pair_sample(path, 2, seed=0).rows.size == 2


def test_spans_count_the_texts_of_the_sample(corpus):
    sample = read_sample(corpus, 15, seed=3)
    for span in draw(sample, 10, seed=0):
        assert span.text in sample.texts[span.row]


def test_members_of_all_kinds(tmp_path, ensemble):
    ensemble.save(tmp_path / "ensemble")
    np.save(tmp_path / "closed.npy", np.ones((3, 5), np.float32))
    found = open_members(
        tmp_path / "ensemble", ["plain=hashing:8", f"closed={tmp_path / 'closed.npy'}"]
    )
    assert [subject.name for subject in found] == ["a", "b", "c", "plain", "closed"]
    assert [subject.encoder is None for subject in found] == [False] * 4 + [True]
    assert not found[4].has_sides and found[3].has_sides


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ([], "no members: give --ensemble DIR, --members NAME=MODEL, or both"),
        (["hashing:8"], "expected NAME=MODEL or NAME=FILE.npy"),
        (["a=hashing:8", "a=hashing:9"], "member names must be unique"),
        (["a b=hashing:8"], "member name 'a b'"),
        (["a=text.npy"], "'a': text.npy is not a NumPy file"),
        (["a=flat.npy"], r"'corpus' of flat.npy has shape \(4,\) and type float64; expected"),
        (["a=whole.npy"], "type int64; expected floats"),
        (["a=half.npz"], r"holds the arrays \['corpus', 'queries'\]; expected 'corpus', or all"),
        (["a=other.npz"], r"holds the arrays \['x'\]"),
        (["a=object.npy"], "is not a NumPy file"),
    ],
)
def test_bad_members(references, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.npy").write_text("no array")
    np.save("flat.npy", np.ones(4))
    np.save("whole.npy", np.ones((4, 2), np.int64))
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("half.npz", corpus=np.ones((4, 2)), queries=np.ones((4, 2)))
    np.savez("other.npz", x=np.ones((4, 2)))
    with pytest.raises(InputError, match=message):
        open_members(None, references)


def test_a_missing_file_is_not_found():
    with pytest.raises(NotFoundError, match=r"'a': no such file: none\.npy"):
        open_members(None, ["a=none.npy"])


def test_encoders_embed_texts_pairs_and_spans(tmp_path, corpus, texts):
    sample = read_sample(corpus, 30, seed=0)
    pairs = sampling.read_pair_sample(pairs_of(tmp_path, ("a b", "c d"), ("e f", "g h")), 9, 0)
    spans = [Span(4, "a span of words", "what is left")]
    spec = uec.MemberSpec("a", "hashing:16", query_prompt="q: ", max_length=40)
    encoder, done = HashingEncoder(spec), []
    subjects = [Subject("a", "hashing:16", encoder)]
    found = embed(subjects, sample, PairSets(pairs), spans, done.append)
    assert sum(done) == n_to_embed(subjects, sample, PairSets(pairs), spans) == 30 + 4 + 2
    np.testing.assert_array_equal(found.texts["a"], encoder.encode(sample.texts, "document").mean)
    np.testing.assert_array_equal(found.sides["a"][0], encoder.encode(["a b", "e f"], "query").mean)
    np.testing.assert_array_equal(
        found.looked["a"].spans, encoder.encode([spans[0].text], "query").mean
    )
    np.testing.assert_array_equal(
        found.looked["a"].rests, encoder.encode([spans[0].rest], "document").mean
    )
    assert found.truncated == {"a": sum(len(text) > 40 for text in sample.texts)}


def test_rows_of_a_file_are_those_of_the_sample(tmp_path, corpus):
    numbers = np.arange(1, 44, dtype=np.float64)[:, None] * [1.0, 2.0]
    path = pairs_of(tmp_path, ("a", "x"), ("a", "y"), ("b", "z"))
    np.savez(
        tmp_path / "m.npz", corpus=numbers, queries=numbers[:3], passages=numbers[10:13]
    )  # fmt: skip
    sample = read_sample(corpus, 20, seed=0)
    found = embed(
        open_members(None, [f"m={tmp_path / 'm.npz'}"]),
        sample,
        PairSets(sampling.read_pair_sample(path, 9, 0)),
        [],
    )
    assert found.texts["m"][:, 0].tolist() == (sample.rows + 1).tolist()
    assert found.sides["m"][0][:, 0].tolist() == [1.0, 3.0]
    assert found.sides["m"][1][:, 0].tolist() == [11.0, 13.0]


def test_names_in_texts_must_be_lists_of_names(tmp_path):
    lines = [{"_id": str(i), "text": f"text {i}", "who": ["Ada", "Bo"]} for i in range(12)]
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_sample(path, 5, 0, entities="who").entities == (("Ada", "Bo"),) * 5
    with pytest.raises(InputError, match=r"has no key 'names'; its keys are \['who'\]"):
        read_sample(path, 5, 0, entities="names")
    path.write_text("\n".join(json.dumps({**line, "who": "Ada"}) for line in lines))
    with pytest.raises(InputError, match="'who' is 'Ada'; expected a list of names"):
        read_sample(path, 5, 0, entities="who")


def refused(tmp_path, file, pairs=None, **arrays):
    np.savez(tmp_path / "m.npz", **arrays)
    subjects = open_members(None, [f"m={tmp_path / 'm.npz'}"])
    with pytest.raises(InputError) as caught:
        embed(subjects, read_sample(file, 100, seed=0), PairSets(pairs), [])
    return str(caught.value)


def test_files_that_do_not_fit_are_refused(tmp_path, corpus):
    ones = np.ones((43, 2))
    message = refused(tmp_path, corpus, corpus=ones[:41])
    assert "has 41 rows for 43 documents in the corpus file; expected one row for each" in message
    pairs = sampling.read_pair_sample(pairs_of(tmp_path, ("a", "x"), ("b", "y")), 9, 0)
    message = refused(
        tmp_path, corpus, pairs, corpus=ones, queries=ones[:2], passages=ones[:3]
    )  # fmt: skip
    assert "'passages'" in message and "has 3 rows for 2 pairs in the pairs file" in message


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_a_bad_row_is_named_by_its_place_in_the_file(tmp_path, corpus, bad):
    matrix = np.ones((43, 2))
    matrix[[7, 42]] = bad
    message = refused(tmp_path, corpus, corpus=matrix)
    assert "row 7 of 'corpus'" in message and "(2 such rows)" in message


def test_a_bad_vector_of_an_encoder_names_the_text(corpus, monkeypatch):
    encoder = HashingEncoder(uec.MemberSpec("a", "hashing:8"))
    right = encoder.encode

    def wrong(texts, *arguments, **options):
        encoding = right(texts, *arguments, **options)
        encoding.mean[3] = np.nan
        return encoding

    monkeypatch.setattr(encoder, "encode", wrong)
    sample = read_sample(corpus, 20, seed=0)
    with pytest.raises(EmbeddingError) as caught:
        embed([Subject("a", "m", encoder)], sample, PairSets(), [])
    assert "'a' gave a NaN" in str(caught.value) and sample.texts[3][:60] in str(caught.value)
