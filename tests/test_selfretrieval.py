"""Spans, sentence pairs and ranks: what is cut is what is missing, and ranks equal a loop's."""

from __future__ import annotations

import numpy as np
import pytest

import uec
from uec.errors import InputError
from uec.selfretrieval import (
    SPAN_CHARACTERS,
    SPAN_WORDS,
    draw_spans,
    log_odds,
    reciprocal_ranks,
    sentence_pairs,
)


def spans_of(*texts, seed=0, n_spans=100):
    documents = [(row, uec.Document(str(row), text)) for row, text in enumerate(texts)]
    return draw_spans(documents, n_spans, seed)


def test_span_and_rest_make_the_document(texts):
    spans = spans_of(*texts)
    assert len(spans) == 100
    for span in spans:
        words = texts[span.row].split()
        assert len(span.text.split()) == min(SPAN_WORDS, len(words) // 2)
        assert sorted((span.text + " " + span.rest).split()) == sorted(words)
        assert span.text in texts[span.row]


def test_a_script_without_spaces_is_cut_by_characters():
    text = "水在常温下是无色无味的透明液体，覆盖地球表面约百分之七十一的面积，是生命的来源。"
    (span,) = spans_of(text)
    assert len(span.text) == SPAN_CHARACTERS
    assert span.text in text and len(span.rest) == len(text) - SPAN_CHARACTERS


def test_short_and_repeated_documents_give_no_span():
    assert spans_of("five words are too few", "", "  ") == []
    assert len(spans_of(*["the same six words once more"] * 50)) < 50


def test_spans_follow_the_seed(texts):
    assert spans_of(*texts, seed=1) == spans_of(*texts, seed=1)
    assert spans_of(*texts, seed=1) != spans_of(*texts, seed=2)


def test_reciprocal_ranks_equal_a_loop():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, (40, 25)).astype(float)
    targets = rng.integers(0, 25, 40)
    expected = []
    for row, target in zip(scores, targets, strict=True):
        others, mine = np.delete(row, target), row[target]
        expected.append(1 / (1 + (others > mine).sum() + (others == mine).sum() / 2))
    np.testing.assert_allclose(reciprocal_ranks(scores, targets), expected)


def test_log_odds_by_hand_and_at_the_ends():
    # (0.5 + 1 + 0.5) / (2 + 1) = 2/3: odds 2.
    assert log_odds(np.array([[0.5], [1.0]])) == pytest.approx([np.log(2)])
    everything, nothing = log_odds(np.stack([np.ones(100), np.zeros(100)], axis=1))
    assert np.isfinite(everything) and everything == pytest.approx(-nothing)


def test_sentence_pairs_part_a_sentence_from_its_passage():
    documents = [
        uec.Document("1", "The river is long and wide. It flows to the sea. Boats go there."),
        uec.Document("2", "One sentence only, with nothing to part."),
        uec.Document("3", "天气很好，我们去公园散步吧，然后去看电影。今天晚上我们一起吃饭，好吗？"),
    ]
    pairs = sentence_pairs(documents * 2, 10, seed=0)
    assert len(pairs) == len({p.query for p in pairs})
    for pair in pairs:
        source = next(d.text for d in documents if pair.query in d.text)
        assert pair.query not in pair.passage
        assert all(part.strip() in source for part in pair.passage.split(". "))


def test_sentence_pairs_need_sentences():
    with pytest.raises(InputError, match="only 0 documents"):
        sentence_pairs([uec.Document("1", "no end")], 10, seed=0)
