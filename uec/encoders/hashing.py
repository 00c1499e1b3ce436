"""An encoder without weights: hashed character n-grams through a fixed random matrix.

For tests, documentation and smoke runs of a service, where no model may be loaded. It has a true
linear readout (features = hashed n-gram counts), so posteriors, traces and every later stage work
on it as they do on a transformer. Its quality is that of a character n-gram model.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uec.encoders import Progress
from uec.errors import InputError
from uec.records import Encoding, MemberSpec, Role, Similarity

N_FEATURES = 512
NGRAM = 4
DEFAULT_MAX_LENGTH = 2048


class HashingEncoder:
    """``hashing:DIM`` or ``hashing:DIM:SEED``: d = DIM, cosine, one token a character."""

    similarity: Similarity = "cosine"

    def __init__(self, spec: MemberSpec) -> None:
        """Parse DIM and SEED from ``spec.model``.

        Raises:
            InputError: DIM or SEED is not a number.
        """
        parts = spec.model.split(":")[1:]
        if not 1 <= len(parts) <= 2 or not all(part.isdigit() for part in parts) or parts[0] == "0":
            raise InputError(f"expected hashing:DIM or hashing:DIM:SEED, got {spec.model!r}")
        self.spec = spec
        self.dimension = int(parts[0])
        self.n_features = N_FEATURES
        seed = int(parts[1]) if len(parts) == 2 else 0
        scale = 1 / np.sqrt(self.dimension)
        self.weight = np.random.default_rng(seed).normal(0, scale, (self.dimension, N_FEATURES))
        self.weight = self.weight.astype(np.float32)
        self.gain = np.ones(self.dimension, np.float32)
        self._prompts = {
            "query": spec.query_prompt or "",
            "document": spec.document_prompt or "",
        }
        self._max_length = spec.max_length or DEFAULT_MAX_LENGTH
        self.identity: Mapping[str, Any] = {
            "model": spec.model,
            "revision": None,
            "weights_sha256": None,
            "pooling": "sum",
            "query_prompt": self._prompts["query"],
            "document_prompt": self._prompts["document"],
            "max_length": self._max_length,
            "similarity": self.similarity,
            "dtype": "float32",
            "dimension": self.dimension,
            "n_features": N_FEATURES,
            "readout": {"kind": "linear"},
        }

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Encoding:
        """Embed texts; see `uec.encoders.Encoder`."""
        prompted = [self._prompts[role] + text for text in texts]
        cut = [text[: self._max_length] for text in prompted]
        counts = np.zeros((len(texts), N_FEATURES), np.float32)
        for row, text in zip(counts, cut, strict=True):
            padded = f"\x02{text.lower()}\x03"
            for start in range(max(len(padded) - NGRAM, 0) + 1):
                row[zlib.crc32(padded[start : start + NGRAM].encode()) % N_FEATURES] += 1
        raw = counts @ self.weight.T
        length = np.linalg.norm(raw, axis=1, keepdims=True)
        if progress is not None:
            progress(len(texts))
        return Encoding(
            mean=(raw / length).astype(np.float32),
            features=(counts / length).astype(np.float32),
            gain=None,
            tokens=np.array([len(text) for text in cut], np.int64),
            truncated=np.array([len(text) > self._max_length for text in prompted], dtype=np.bool_),
        )
