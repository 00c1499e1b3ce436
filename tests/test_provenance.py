"""What a fit has seen is recognised in a corpus, in part, in any case, in any script."""

from __future__ import annotations

import numpy as np
import pytest

import uec
from uec.build import build_index
from uec.laplace import FitSettings
from uec.provenance import RUN_WORDS, SAMPLE, Occurrences, sample


def passages(n, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in rng.integers(0, 5000, 30)) for _ in range(n)]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_that_occurs_is_estimated(share):
    fitted, other = passages(300, 0), passages(300, 1)
    n = round(share * 300)
    corpus = [text.upper() for text in fitted[:n]] + other
    occurrences = Occurrences({"a": sample(fitted)})
    for text in corpus:
        occurrences.add([text])
    # 256 draws: a standard error of 0.03 at a share of 0.3.
    assert occurrences.shares()["a"] == pytest.approx(share, abs=0.1)


def test_a_passage_without_one_sentence_is_recognised():
    (text,) = passages(1, 2)
    words = text.split()
    cut = " ".join(words[:10] + words[15:])
    found = Occurrences({"a": sample([cut])})
    found.add([text])
    n_runs = len(words) - 5 - RUN_WORDS + 1
    # Runs across the cut, seven of them, are new.
    assert found.shares()["a"] == pytest.approx(1 - (RUN_WORDS - 1) / n_runs)


def test_scripts_without_spaces_and_short_texts():
    text = "水在常温下是无色无味的透明液体，覆盖地球表面约百分之七十一的面积。"
    found = Occurrences({"a": sample([text]), "b": sample(["short"]), "c": []})
    found.add([text])
    assert found.shares() == {"a": 1.0, "b": 0.0, "c": 0.0}


def test_a_sample_is_bounded_and_in_order():
    hashes = sample(passages(100, 3))
    assert len(hashes) == SAMPLE and hashes == sorted(hashes)


def test_an_index_says_what_its_posteriors_have_seen(tmp_path):
    texts = passages(60, 4)
    pairs = {
        "own": [uec.Pair(text[:20], text) for text in texts],
        "other": [uec.Pair(text[:20], text) for text in passages(60, 5)],
    }
    specs = [uec.MemberSpec(name, "hashing:16") for name in pairs]
    ensemble = uec.fit_ensemble(specs, pairs, FitSettings())
    located = [(f"c:{i}", uec.Document(str(i), text)) for i, text in enumerate(texts)]
    content = build_index(ensemble, located, tmp_path / "index").content
    assert content["fit_passages_in_corpus"] == {"own": 1.0, "other": 0.0}
