"""`pkg:wordllama`: the mean of its tokens' rows, whole or cut to its first columns."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest

import uec
from uec.encoders import packaged, static_table
from uec.errors import CorruptArtefactError
from uec.records import MemberSpec

TEXTS = ("The river flows to the sea.", "Ein Fluss", "naïve 北京 ½", "a a a b")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def files():
    try:
        found = distribution("wordllama")
    except PackageNotFoundError:
        pytest.skip("package wordllama is not installed (extra demo)")
    return [Path(str(found.locate_file(one.path))) for one in packaged.MODELS["wordllama"].sources]


@pytest.mark.parametrize(
    ("name", "dimension"), [("wordllama", 256), ("wordllama-128", 128), ("wordllama-64", 64)]
)
def test_the_mean_of_the_rows(name, dimension, files):
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    table = load_file(files[0])["embedding.weight"].astype(np.float64)[:, :dimension]
    tokenizer = Tokenizer.from_file(str(files[1]))
    encoder = uec.encoders.load(MemberSpec("w", f"pkg:{name}"))
    encoding = encoder.encode(TEXTS, "document")
    assert encoder.dimension == dimension and encoder.similarity == "cosine"
    assert encoder.identity["readout"] == {"kind": "static"}
    for row, text in enumerate(TEXTS):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        mean = sum(table[i] for i in ids) / len(ids)
        np.testing.assert_allclose(encoding.mean[row], mean / np.linalg.norm(mean), atol=1e-5)
        assert encoding.tokens[row] == len(ids)
    # Static: linear in the table, so the features times it are the embedding itself.
    np.testing.assert_allclose(encoding.features @ encoder.weight.T, encoding.mean, atol=1e-5)


def test_another_file_is_refused(tmp_path, files):
    from safetensors.numpy import save_file

    save_file({"embedding.weight": np.ones((4, 8), np.float32)}, tmp_path / "t.safetensors")
    with pytest.raises(CorruptArtefactError, match=r"at least 64 columns; got \(4, 8\)"):
        static_table.convert(tmp_path / "t.safetensors", files[1], tmp_path, dimension=64)
