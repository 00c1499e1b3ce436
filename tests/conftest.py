"""Fixtures shared by all tests: small ensembles and indexes of real parts, without weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

# Models are local in every test; a hub must never be asked.
os.environ["HF_HUB_OFFLINE"] = "1"

WORDS = (
    "river mountain database python query vector index kernel forest engine bridge signal market "
    "garden planet copper violin theory packet window"
).split()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the public evaluation sets; tests that need it are skipped without it."""
    folder = os.environ.get("UEC_TEST_DATA")
    if not folder:
        pytest.skip("UEC_TEST_DATA is not set: it names a folder with the public evaluation sets")
    return Path(folder)


def passages(n: int, seed: int = 0) -> list[str]:
    """n distinct texts of twelve words."""
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(WORDS, 12))} {i}" for i in range(n)]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return passages(150)


@pytest.fixture(scope="session")
def ensemble(texts):
    """Two hashing members of one dimension and one of another, fitted on 150 pairs."""
    import uec
    from uec.laplace import FitSettings

    specs = [
        uec.MemberSpec("a", "hashing:32"),
        uec.MemberSpec("b", "hashing:32:1"),
        uec.MemberSpec("c", "hashing:48:2"),
    ]
    pairs = [uec.Pair(" ".join(text.split()[:4]), text) for text in texts]
    return uec.fit_ensemble(specs, {s.name: pairs for s in specs}, FitSettings(rank=64))


@pytest.fixture(scope="session")
def located(texts):
    import uec

    return [
        (f"corpus:{i}", uec.Document(f"d{i}", text, metadata={"i": i}))
        for i, text in enumerate(texts)
    ]


@pytest.fixture(scope="session")
def index_dir(ensemble, located, tmp_path_factory) -> Path:
    from uec.build import build_index

    path = tmp_path_factory.mktemp("shared") / "index"
    build_index(ensemble, located, path)
    return path


@pytest.fixture(scope="session")
def full_index_dir(ensemble, located, tmp_path_factory) -> Path:
    """The same corpus with every variance stored."""
    from uec.build import build_index

    path = tmp_path_factory.mktemp("shared") / "full"
    build_index(ensemble, located, path, variance="full")
    return path


@pytest.fixture(scope="session")
def retriever(index_dir):
    import uec

    return uec.Retriever.open(index_dir)
