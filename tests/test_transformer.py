"""The encoder on sentence-transformers models: same vectors, same tokens, sound errors."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import tiny
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize

from uec.encoders import load
from uec.encoders.loading import weights_sha256
from uec.encoders.transformer import TransformerEncoder
from uec.errors import EmbeddingError, InputError, NotFoundError, UnsupportedEncoderError
from uec.records import Encoding, MemberSpec

TEXTS = [tiny.text(n, n) for n in (3, 17, 1, 40, 8, 5, 26)]


def wrap(model: SentenceTransformer, **overrides: Any) -> TransformerEncoder:
    return TransformerEncoder.from_model(MemberSpec("m", "org/model", **overrides), model)


def features_of(encoding: Encoding) -> np.ndarray:
    features = encoding.features
    return features if isinstance(features, np.ndarray) else features.toarray()


@pytest.mark.parametrize("name", tiny.MODELS)
def test_same_vectors_as_sentence_transformers(name: str) -> None:
    model = tiny.MODELS[name]()
    model.prompts = {"query": "w1 w2 ", "document": "w3 "}
    encoder = wrap(model)
    for role, encode in (("query", model.encode_query), ("document", model.encode_document)):
        expected = encode(TEXTS, batch_size=3, normalize_embeddings=True)
        given = encoder.encode(TEXTS, role, batch_size=3)
        np.testing.assert_allclose(given.mean, expected, atol=1e-5)
        assert given.mean.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(given.mean, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_text_does_not_depend_on_its_neighbours(name: str) -> None:
    encoder = wrap(tiny.MODELS[name]())
    texts = [TEXTS[1], tiny.text(1, 90), tiny.text(500, 91)]
    alone = encoder.encode(texts[:1], "document")
    for neighbours in ([0, 1], [0, 2], [2, 1, 0]):
        together = encoder.encode([texts[i] for i in neighbours], "document")
        row = neighbours.index(0)
        np.testing.assert_allclose(together.mean[row], alone.mean[0], atol=1e-5)
        np.testing.assert_allclose(
            features_of(together)[row], features_of(alone)[0], rtol=1e-5, atol=1e-5
        )
        if alone.gain is not None and together.gain is not None:
            np.testing.assert_allclose(together.gain[row], alone.gain[0], atol=1e-5)


@pytest.mark.parametrize("name", ["bert-mean", "qwen3", "dense-tanh", "static"])
def test_rows_follow_the_texts(name: str) -> None:
    encoder = wrap(tiny.MODELS[name]())
    order = np.random.default_rng(0).permutation(len(TEXTS))
    done: list[int] = []
    plain = encoder.encode(TEXTS, "query", batch_size=2, progress=done.append)
    mixed = encoder.encode([TEXTS[i] for i in order], "query", batch_size=3)
    assert done == [2, 2, 2, 1]
    np.testing.assert_allclose(mixed.mean, plain.mean[order], atol=1e-5)
    np.testing.assert_allclose(features_of(mixed), features_of(plain)[order], atol=1e-5)
    np.testing.assert_array_equal(mixed.tokens, plain.tokens[order])
    if plain.gain is not None and mixed.gain is not None:
        np.testing.assert_allclose(mixed.gain, plain.gain[order], atol=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), [("qwen3", "lasttoken"), ("llama", "weightedmean")])
def test_padding_side_does_not_matter(kind: str, pooling: str) -> None:
    left, right = (
        wrap(tiny.model(kind, pooling=pooling, padding_side=side)).encode(TEXTS, "document")
        for side in ("left", "right")
    )
    np.testing.assert_allclose(left.mean, right.mean, atol=1e-5)
    np.testing.assert_allclose(left.features, right.features, rtol=1e-5, atol=1e-5)


def test_prompt_left_out_of_the_pooling() -> None:
    prompts = {"query": "w1 w2 w3 ", "document": ""}
    included = wrap(tiny.model("bert", prompts=prompts))
    model = tiny.model("bert", include_prompt=False, prompts=prompts)
    excluded = wrap(model)
    expected = model.encode_query(TEXTS, normalize_embeddings=True)
    given = excluded.encode(TEXTS, "query")
    np.testing.assert_allclose(given.mean, expected, atol=1e-5)
    # The prompt's tokens are read all the same: <s>, three words, the text, </s>.
    assert given.tokens.tolist() == [n + 5 for n in (3, 17, 1, 40, 8, 5, 26)]
    # The same network, so that only the pooling tells the two apart, in mean and features alike.
    other = included.encode(TEXTS, "query")
    assert np.abs(other.mean - given.mean).max() > 0.01
    assert np.abs(other.features - given.features).max() > 0.01
    assert excluded.identity["include_prompt"] is False


def test_prompts() -> None:
    e5 = {"query": "w1 ", "passage": "w2 "}
    chosen = wrap(tiny.model("bert", prompts=e5)).identity
    assert (chosen["query_prompt"], chosen["document_prompt"]) == ("w1 ", "w2 ")
    chosen = wrap(tiny.model("bert", prompts=e5), query_prompt="", document_prompt="w9 ").identity
    assert (chosen["query_prompt"], chosen["document_prompt"]) == ("", "w9 ")
    # encode_query and encode_document do not fall back on the default prompt either ...
    model = tiny.model("bert", prompts={"other": "w5 "})
    model.default_prompt_name = "other"
    assert wrap(model).identity["query_prompt"] == ""
    # ... unless the model has no prompt of that name at all.
    del model.prompts["query"], model.prompts["document"]
    assert wrap(model).identity["document_prompt"] == "w5 "
    given = wrap(model).encode(TEXTS, "query")
    glued = wrap(tiny.model("bert")).encode([f"w5 {text}" for text in TEXTS], "query")
    np.testing.assert_allclose(given.mean, glued.mean, atol=1e-5)


def test_dot_product_keeps_the_length() -> None:
    model = tiny.model("bert", similarity="dot")
    dot, cosine = wrap(model), wrap(tiny.model("bert"))
    raw, unit = dot.encode(TEXTS, "document"), cosine.encode(TEXTS, "document")
    np.testing.assert_allclose(raw.mean, model.encode_document(TEXTS), atol=1e-5)
    length = np.linalg.norm(raw.mean, axis=1)[:, None]
    np.testing.assert_allclose(unit.features, raw.features / length, rtol=1e-5, atol=1e-7)
    assert (dot.similarity, cosine.similarity) == ("dot", "cosine")
    assert wrap(tiny.model("bert", similarity="dot", head=[Normalize()])).similarity == "cosine"
    for name in ("euclidean", "manhattan"):
        with pytest.raises(UnsupportedEncoderError, match=name):
            wrap(tiny.model("bert", similarity=name))


def test_matryoshka_keeps_the_first_outputs() -> None:
    model = tiny.MODELS["dense-tanh"]()
    whole = wrap(model).encode(TEXTS, "document")
    model.truncate_dim = 5
    encoder = wrap(model)
    cut = encoder.encode(TEXTS, "document")
    assert (encoder.dimension, encoder.weight.shape, encoder.gain.shape) == (5, (5, 16), (5,))
    expected = model.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(cut.mean, expected, atol=1e-5)
    assert whole.gain is not None and cut.gain is not None
    np.testing.assert_allclose(cut.gain, whole.gain[:, :5])
    # Divided by the length of five outputs, not of twelve.
    ratio = np.linalg.norm(whole.mean[:, :5], axis=1)[:, None]
    np.testing.assert_allclose(cut.features * ratio, whole.features, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_truncation_is_told_exactly(kind: str) -> None:
    special = 2 if kind == "bert" else 1
    encoder = wrap(tiny.model(kind, max_length=30), query_prompt="w1 w2 ", max_length=20)
    fits = 20 - special
    texts = [tiny.text(n, n) for n in (fits - 1, fits, fits + 1, 90)]
    given = encoder.encode(texts, "document")
    assert given.tokens.tolist() == [19, 20, 20, 20]
    assert given.truncated.tolist() == [False, False, True, True]
    # The prompt takes two tokens of the same room.
    given = encoder.encode([tiny.text(n, n) for n in (fits - 2, fits - 1)], "query")
    assert given.tokens.tolist() == [20, 20]
    assert given.truncated.tolist() == [False, True]
    # What was cut does not count.
    words = tiny.text(90, 5).split()
    pair = [" ".join(words[:count]) for count in (fits, 90)]
    np.testing.assert_allclose(*encoder.encode(pair, "document").mean, atol=1e-6)
    assert encoder.identity["max_length"] == 20


def test_truncation_where_the_tokenizer_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("bert", max_length=12)
    encoder = wrap(model)
    preprocess = model.preprocess
    monkeypatch.setattr(model, "preprocess", lambda *a, **k: dict(preprocess(*a, **k)))
    given = encoder.encode([tiny.text(n, n) for n in (9, 10, 11)], "document")
    assert given.tokens.tolist() == [11, 12, 12]
    assert given.truncated.tolist() == [False, False, True]


def test_truncation_hidden_in_a_static_tokenizer() -> None:
    given = wrap(tiny.static(truncation=6)).encode([tiny.text(n, n) for n in (5, 6, 7)], "document")
    assert given.tokens.tolist() == [5, 6, 6]
    assert given.truncated.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("kind", "limit"), [("bert", 600), ("roberta", 599), ("mpnet", 598), ("qwen3", 600)]
)
def test_positions_limit_the_length(kind: str, limit: int) -> None:
    # RoBERTa starts its positions after the padding index, here 0; MPNet's is always 1.
    text = tiny.text(700)
    encoder = wrap(tiny.model(kind), max_length=limit)
    assert encoder.encode([text], "query").tokens.tolist() == [limit]
    with pytest.raises(InputError, match=f"max_length {limit + 1}.*at most {limit}"):
        wrap(tiny.model(kind), max_length=limit + 1)
    with pytest.raises(InputError, match="more than"):
        wrap(tiny.model(kind), max_length=1)
    # A tokenizer that would allow more is held to what the model can take.
    assert wrap(tiny.model(kind, max_length=5000)).identity["max_length"] == limit


def test_static_models_have_no_length_to_set() -> None:
    with pytest.raises(InputError, match="whole texts"):
        wrap(tiny.static(), max_length=8)


@pytest.mark.parametrize("name", ["bert-mean", "dense-tanh", "static"])
def test_no_texts_give_no_rows(name: str) -> None:
    encoder = wrap(tiny.MODELS[name]())
    given = encoder.encode([], "query")
    assert given.mean.shape == (0, encoder.dimension)
    assert given.features.shape == (0, encoder.n_features)
    assert (len(given.tokens), len(given.truncated)) == (0, 0)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [(None, "NoneType"), (3, "int"), (b"w1", "bytes"), ("w1\0w2", "NUL"), ("\ud800", "Unicode")],
)
def test_unusable_texts_are_named(bad: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = wrap(tiny.model("bert"))
    # Users run without the type checker of the tests, which would refuse the list first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=f"text 2 .*{reason}"):
        encoder.encode(["w1", "w2", bad], "query")


def test_other_unusable_arguments() -> None:
    encoder = wrap(tiny.model("bert"))
    with pytest.raises(InputError, match="batch_size 0"):
        encoder.encode(["w1"], "query", batch_size=0)
    with pytest.raises(InputError, match="single string"):
        encoder.encode("w1 w2", "query")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_unusable_vectors_are_named(value: float) -> None:
    model = tiny.model("bert")
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight[10] = value
    texts = ["w1 w2", "w3", f"w1 {tiny.WORDS[10 - len(tiny.SPECIALS)]} w5", "w7 w8 w9 w10"]
    with pytest.raises(EmbeddingError, match="NaN or infinite embedding for text 2") as raised:
        wrap(model).encode(texts, "document", batch_size=2)
    assert raised.value.row == 2


def test_zero_vectors_are_named() -> None:
    model = tiny.static()
    with torch.no_grad():
        model[0].embedding.weight[1] = 0
    with pytest.raises(EmbeddingError, match="a zero embedding for text 1") as raised:
        wrap(model).encode(["w1", "unknown words", "w3"], "document")
    assert raised.value.row == 1


@pytest.mark.parametrize("empty", ["", "   "])
def test_texts_without_tokens_are_named(empty: str) -> None:
    with pytest.raises(EmbeddingError, match="no token in text 1"):
        wrap(tiny.static()).encode(["w1", empty], "document")
    # With <s> and </s> an empty text has an embedding, as in sentence-transformers.
    model = tiny.model("bert")
    np.testing.assert_allclose(
        wrap(model).encode([empty], "query").mean,
        model.encode_query([empty], normalize_embeddings=True),
        atol=1e-5,
    )


def test_identity_tells_what_changes_an_embedding(tmp_path: Path) -> None:
    base = wrap(tiny.MODELS["bert-mean"]()).identity
    assert json.loads(json.dumps(base)) == base
    assert base == wrap(tiny.MODELS["bert-mean"]()).identity
    assert {"model": "org/model", "pooling": "mean", "similarity": "cosine"}.items() <= base.items()
    assert (base["dtype"], base["dimension"], base["n_features"]) == ("float32", 16, 24)
    changed = tiny.MODELS["bert-mean"]()
    with torch.no_grad():
        changed[0].model.embeddings.word_embeddings.weight[50, 3] += 1e-6
    differs = {key for key, value in wrap(changed).identity.items() if value != base[key]}
    assert differs == {"weights_sha256"}
    variants = {
        "pooling": wrap(tiny.model("bert", pooling="cls", head=[Normalize()])),
        "max_length": wrap(tiny.MODELS["bert-mean"](), max_length=40),
        "query_prompt": wrap(tiny.MODELS["bert-mean"](), query_prompt="w1"),
    }
    for key, encoder in variants.items():
        differs = {name for name, value in encoder.identity.items() if value != base[name]}
        assert differs == {key}


def test_hash_of_weights() -> None:
    layer = torch.nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.copy_(torch.tensor([3.0]))
    by_hand = b"bias torch.float32 (1,)\n" + np.float32(3).tobytes()
    by_hand += b"weight torch.float32 (1, 2)\n" + np.array([1, 2], np.float32).tobytes()
    assert weights_sha256(layer) == hashlib.sha256(by_hand).hexdigest()
    assert weights_sha256(layer.bfloat16()) != hashlib.sha256(by_hand).hexdigest()


def test_half_precision_is_read_in_float32() -> None:
    exact = wrap(tiny.model("bert")).encode(TEXTS, "document")
    encoder = wrap(tiny.model("bert").bfloat16())
    given = encoder.encode(TEXTS, "document")
    assert encoder.identity["dtype"] == "bfloat16"
    assert (given.mean.dtype, features_of(given).dtype) == (np.float32, np.float32)
    # bfloat16 keeps 8 bits; measured: cosine of features above 0.999.
    cosine = (given.features * exact.features).sum(1) / (
        np.linalg.norm(given.features, axis=1) * np.linalg.norm(exact.features, axis=1)
    )
    assert cosine.min() > 0.99


def test_loads_a_folder_and_a_hub_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("roberta", prompts={"query": "w1 ", "document": ""}, head=[tiny.dense(None)])
    folder = tiny.save(model, tmp_path / "model")
    expected = model.encode_query(TEXTS, normalize_embeddings=True)
    local = load(MemberSpec("m", folder))
    np.testing.assert_allclose(local.encode(TEXTS, "query").mean, expected, atol=1e-5)
    assert (local.identity["revision"], local.identity["query_prompt"]) == (None, "w1 ")
    # The layout of the hub's cache, so that nothing has to be downloaded.
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "cache" / "models--org--tiny"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cached = load(MemberSpec("m", "org/tiny"))
    assert cached.identity == {**local.identity, "model": "org/tiny", "revision": commit}


@pytest.mark.parametrize("source", ["org/none", "none", "./none", "/none/at/all", "a/b/c"])
def test_models_that_do_not_exist(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotFoundError, match=r"none|a/b/c"):
        TransformerEncoder(MemberSpec("m", source))


def test_code_in_a_folder_is_not_run(tmp_path: Path) -> None:
    folder = Path(tiny.save(tiny.model("bert"), tmp_path / "model"))
    (folder / "custom.py").write_text("raise SystemExit('ran')")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom.Module"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedEncoderError, match="trust_remote_code"):
        TransformerEncoder(MemberSpec("m", str(folder)))


def test_device_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.save(tiny.static(), tmp_path / "model")
    monkeypatch.setenv("UEC_DEVICE", "toaster")
    with pytest.raises(InputError, match="UEC_DEVICE=toaster"):
        TransformerEncoder(MemberSpec("m", folder))
    monkeypatch.setenv("UEC_DEVICE", "cpu")
    assert TransformerEncoder(MemberSpec("m", folder)).dimension == tiny.DIMENSION


def test_loading_and_encoding_write_nothing(tmp_path: Path) -> None:
    model = tiny.model("bert", max_length=20, head=[Dense(16, 4)])
    folder = tiny.save(model, tmp_path / "model")
    script = (
        "from uec.encoders import load; from uec.records import MemberSpec; import sys;"
        "load(MemberSpec('m', sys.argv[1])).encode(['w1 ' * 50], 'query')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, folder],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_threads_do_not_mix_their_readouts() -> None:
    encoder = wrap(tiny.model("bert"))
    batches = [[tiny.text(n, seed) for n in (3, 9, 30)] for seed in range(8)]
    expected = [encoder.encode(batch, "query") for batch in batches]
    given: dict[int, Encoding] = {}

    def work(index: int) -> None:
        for _ in range(5):
            given[index] = encoder.encode(batches[index], "query", batch_size=2)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, encoding in enumerate(expected):
        np.testing.assert_allclose(given[index].mean, encoding.mean, atol=1e-5)
        np.testing.assert_allclose(given[index].features, encoding.features, rtol=1e-5, atol=1e-5)
