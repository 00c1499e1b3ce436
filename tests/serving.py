"""A small index made by hand, without torch, and encoders that a test can hold back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uec import encoders
from uec.build import build_index
from uec.calibrating import calibrate_index
from uec.calibration import Calibration, TraceScale
from uec.ensemble import Ensemble, Member
from uec.index import Index
from uec.posterior import DiagonalPosterior, KroneckerPosterior
from uec.records import Document, Encoding, MemberSpec
from uec.retriever import Retriever

WORDS = ["alpha", "beta", "gamma", "delta", "river", "mountain", "database", "python", "lemma"]


def make_documents(n: int = 60) -> list[Document]:
    """Documents with titles, accents and nested metadata."""
    rng = np.random.default_rng(7)
    return [
        Document(
            f"d{i:02d}",
            " ".join(rng.choice(WORDS, 9)),
            title=f"Chapître {i}" if i % 3 else "",
            metadata={"year": 1990 + i, "tags": ["x", {"deep": None}], "ok": i % 2 == 0},
        )
        for i in range(n)
    ]


def make_member(spec: MemberSpec, seed: int) -> Member:
    """A hashing member with made-up posteriors whose traces differ from text to text."""
    rng = np.random.default_rng(seed)
    encoder = encoders.load(spec)
    d, h = encoder.weight.shape
    profile = rng.uniform(0.5, 1.5, d).astype(np.float32)
    profile /= profile.sum()
    weight_variance = rng.gamma(1.0, 0.02, (d, h)).astype(np.float32)
    basis, _ = np.linalg.qr(rng.normal(size=(h, 6)))
    kron = KroneckerPosterior(
        diagonal=rng.uniform(0.5, 1.0, h).astype(np.float32),
        basis=basis.astype(np.float32),
        shrinkage=np.full(6, 0.4, np.float32),
        outputs=profile,
        profile=profile,
    )
    diag = DiagonalPosterior(weight_variance, weight_variance.sum(axis=0), profile)
    scale = TraceScale(
        {"diag": {"query": 0.8, "document": 0.9}, "kron": {"query": 0.7, "document": 0.6}}
    )
    return Member(spec, encoder, {"diag": diag, "kron": kron}, scale, {"report": {"steps": 3}})


def make_index(folder: Path, models: Sequence[str] = ("hashing:32", "hashing:48:1")) -> Path:
    """A calibrated index folder with one member a model, named a, b, ..."""
    specs = [
        MemberSpec(name, model, max_length=60) for name, model in zip("abc", models, strict=False)
    ]
    ensemble = Ensemble(
        tuple(make_member(spec, seed) for seed, spec in enumerate(specs)),
        Calibration.uniform(len(specs)),
    )
    located = ((f"made:{n}", document) for n, document in enumerate(make_documents()))
    build_index(ensemble, located, folder)
    calibrate_index(folder, n_spans=40)
    return folder


class Hooked:
    """An encoder that calls `before` with the texts of every call."""

    def __init__(self, encoder: Any, before: Callable[[Sequence[str]], None]) -> None:
        self._encoder = encoder
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, texts: Sequence[str], role: Any, **settings: Any) -> Encoding:
        """As the encoder."""
        self._before(texts)
        encoding: Encoding = self._encoder.encode(texts, role, **settings)
        return encoding


def hooked(folder: Path, before: Callable[[Sequence[str]], None]) -> Retriever:
    """A retriever whose first member calls `before` with the texts of every call."""
    index = Index.open(folder)
    first, *others = index.ensemble.members
    first = replace(first, encoder=Hooked(first.encoder, before))
    index.ensemble = replace(index.ensemble, members=(first, *others))
    return Retriever(index)
