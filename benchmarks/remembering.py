"""Encode each text once, within a run and, with a folder, across runs.

The systems under comparison differ after the encoders, so encoding once is fair, and changing a
measure, a system or the pooling of sets does not cost the hours of encoding again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uec.encoders import Encoder, Progress
from uec.ensemble import Ensemble
from uec.records import Encoding, Role


class RememberingEncoder:
    """An encoder that keeps what it encoded, in memory and optionally on disk.

    Args:
        encoder: does the work; must give dense features and a constant gain.
        folder: where encodings are kept, by the encoder's identity, the role and the text; None
            keeps none.
    """

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self._encoder = encoder
        self._folder = folder
        self._known: dict[Role, _Known] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Encoding:
        """As the encoder's own `encode`; only texts that are new are encoded."""
        known = self._remembered(role)
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            # A run beside this one may have encoded them meanwhile.
            known.read()
            new = [text for text in new if text not in known]
        if new:
            known.add(new, self._encoder.encode(new, role, batch_size=batch_size))
        if progress is not None:
            progress(len(texts))
        return known.encoding(texts)

    def _remembered(self, role: Role) -> _Known:
        if role not in self._known:
            folder = None
            if self._folder is not None:
                described = json.dumps([dict(self._encoder.identity), role], sort_keys=True)
                folder = self._folder / hashlib.sha256(described.encode()).hexdigest()[:16]
            self._known[role] = _Known(folder)
        return self._known[role]


class _Known:
    """Encodings of one encoder in one role, in parts: one file for each call that had new texts."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._places: dict[str, tuple[int, int]] = {}
        self._parts: list[dict[str, np.ndarray]] = []
        self._read: set[Path] = set()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.read()

    def read(self) -> None:
        """Take in the files that are new in the folder."""
        if self._folder is None:
            return
        for path in sorted(set(self._folder.glob("*.npz")) - self._read):
            with np.load(path) as arrays:
                self._take_in(dict(arrays))
            self._read.add(path)

    def __contains__(self, text: str) -> bool:
        return _hash(text) in self._places

    def add(self, texts: Sequence[str], encoding: Encoding) -> None:
        assert encoding.gain is None, "only encoders with a constant gain are remembered"
        part: dict[str, np.ndarray] = {
            "hashes": np.array([_hash(text) for text in texts]),
            "mean": encoding.mean,
            "features": np.asarray(encoding.features),
            "tokens": encoding.tokens,
            "truncated": encoding.truncated,
        }
        if self._folder is not None:
            name = hashlib.sha256("".join(part["hashes"]).encode()).hexdigest()[:16]
            aside = self._folder / f"{name}.part"
            with aside.open("wb") as file:
                np.savez(file, **part)  # type: ignore[arg-type]
            aside.replace(self._folder / f"{name}.npz")
            self._read.add(self._folder / f"{name}.npz")
        self._take_in(part)

    def encoding(self, texts: Sequence[str]) -> Encoding:
        places = [self._places[_hash(text)] for text in texts]
        fields = {
            name: np.stack([self._parts[part][name][row] for part, row in places])
            for name in ("mean", "features", "tokens", "truncated")
        }
        return Encoding(gain=None, **fields)

    def _take_in(self, part: dict[str, np.ndarray]) -> None:
        for row, key in enumerate(part["hashes"].tolist()):
            self._places[key] = (len(self._parts), row)
        self._parts.append(part)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def remembered(encoder: Encoder, folder: Path | None) -> Encoder:
    """The encoder as one that remembers; as it is where its encodings cannot be kept.

    Those have sparse features or a gain of each text, as static tables and `pkg:use` do, and are
    quickly made again.
    """
    made = encoder.encode(["a word"], "document")
    if made.gain is not None or not isinstance(made.features, np.ndarray):
        return encoder
    return RememberingEncoder(encoder, folder)


def remembering(ensemble: Ensemble, folder: Path | None) -> Ensemble:
    """The same ensemble with members that encode each text once."""
    members = tuple(
        replace(member, encoder=RememberingEncoder(member.encoder, folder))
        for member in ensemble.members
    )
    return replace(ensemble, members=members)
