"""Encode each list of texts once, within a run and, with a folder, across runs.

The systems under comparison differ after the encoders, so encoding once is fair, and changing a
measure or a system does not cost the hours of encoding again.
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
        encoder: does the work; must give dense features.
        folder: where encodings are kept by the encoder's identity and the texts; None keeps none.
    """

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self._encoder = encoder
        self._folder = folder
        self._identity = json.dumps(dict(encoder.identity), sort_keys=True)
        self._remembered: dict[str, Encoding] = {}

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
        """As the encoder's own `encode`."""
        key = self.key(texts, role)
        if key not in self._remembered:
            self._remembered[key] = self._from_disk(key) or self._to_disk(
                key,
                self._encoder.encode(texts, role, batch_size=batch_size, progress=progress),
            )
        return self._remembered[key]

    def key(self, texts: Sequence[str], role: Role) -> str:
        """sha256 of the encoder's identity, the role and the texts."""
        content = json.dumps([self._identity, role, list(texts)])
        return hashlib.sha256(content.encode()).hexdigest()

    def _from_disk(self, key: str) -> Encoding | None:
        if self._folder is None or not (path := self._folder / f"{key}.npz").exists():
            return None
        with np.load(path) as arrays:
            gain = arrays.get("gain")
            return Encoding(
                arrays["mean"], arrays["features"], gain, arrays["tokens"], arrays["truncated"]
            )

    def _to_disk(self, key: str, encoding: Encoding) -> Encoding:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            arrays = {
                "mean": encoding.mean,
                "features": encoding.features,
                "tokens": encoding.tokens,
                "truncated": encoding.truncated,
            }
            if encoding.gain is not None:
                arrays["gain"] = encoding.gain
            aside = self._folder / f"{key}.part.npz"
            np.savez(aside, **arrays)  # type: ignore[arg-type]
            aside.replace(self._folder / f"{key}.npz")
        return encoding


def remembering(ensemble: Ensemble, folder: Path | None) -> Ensemble:
    """The same ensemble with members that encode each list of texts once."""
    members = tuple(
        replace(member, encoder=RememberingEncoder(member.encoder, folder))
        for member in ensemble.members
    )
    return replace(ensemble, members=members)
