"""A trained log-linear probe: the words that a linear map reads off an embedding.

For an embedding u (d,) the logits of the v entries of a vocabulary are z = b + A (B u), with
A (v, r) and B (r, d), for the factorised probe, FLiP, and z = b + A u, with A (v, d), for the plain
one, LiP.
`uec.audits.probefit` trains them; here they are plain arrays that need no torch.

It must know nothing of texts, members or reports.

References:
    Kesiraju et al. 2026, FLiP (arXiv 2604.18109), equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float, Float32, Int

from uec.audits.extraction import top_entries
from uec.errors import CorruptArtefactError, InputError, MismatchError, NotFoundError

_LOGITS_AT_ONCE = 8_000_000
"""Logits held at once (32 MB): bounds memory for any vocabulary and number of texts."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A trained probe, in plain arrays.

    Attributes:
        entries: (v) the vocabulary, in the order of `factor`'s rows.
        factor: A (v, r); (v, d) for the plain probe.
        projection: B (r, d), or None for the plain probe.
        bias: b (v,), the frequency of each entry in the logarithm, as trained.
        centre: (d,) subtracted from an embedding.
        scale: (d,) that the difference is multiplied with.
        curve: epoch and held-out recall at each evaluation.
    """

    entries: tuple[str, ...]
    factor: Float32[np.ndarray, "v r"]
    projection: Float32[np.ndarray, "r d"] | None
    bias: Float32[np.ndarray, " v"]
    centre: Float32[np.ndarray, " d"]
    scale: Float32[np.ndarray, " d"]
    curve: tuple[tuple[int, float], ...] = ()

    def scores(
        self, embeddings: Float[np.ndarray, "n d"], *, with_bias: bool = False
    ) -> Float32[np.ndarray, "n v"]:
        """Logits of every entry for n embeddings, without the bias unless asked for.

        The bias says how common a word is in any text. Left out, as in the paper, the scores say
        what this embedding adds to that.

        Raises:
            MismatchError: the embeddings have another length than those trained on.
        """
        if embeddings.shape[1] != len(self.centre):
            raise MismatchError(
                f"dimension: the probe was trained on {len(self.centre)}, got embeddings of "
                f"{embeddings.shape[1]}; use the probe of the same member"
            )
        inner = (embeddings.astype(np.float32) - self.centre) * self.scale
        if self.projection is not None:
            inner = inner @ self.projection.T
        scores: np.ndarray = inner @ self.factor.T
        return scores + self.bias if with_bias else scores

    def extract(
        self,
        embeddings: Float[np.ndarray, "n d"],
        sizes: Sequence[int],
        *,
        with_bias: bool = False,
    ) -> list[Int[np.ndarray, " _"]]:
        """The `sizes[i]` best entries of text i, best first, in bounded memory."""
        rows = max(1, _LOGITS_AT_ONCE // len(self.entries))
        found: list[np.ndarray] = []
        for start in range(0, len(embeddings), rows):
            part = slice(start, start + rows)
            scores = self.scores(embeddings[part], with_bias=with_bias)
            found.extend(top_entries(scores, sizes[part]))
        return found

    def save(self, path: Path) -> None:
        """Write the probe as one ``.npz`` file of plain arrays."""
        arrays: dict[str, Any] = {
            # Bytes, not NumPy's fixed-width strings: one long word would set the width of all.
            "entries": np.frombuffer("\n".join(self.entries).encode(), dtype=np.uint8),
            "factor": self.factor,
            "bias": self.bias,
            "centre": self.centre,
            "scale": self.scale,
            "curve": np.array(self.curve, dtype=np.float64).reshape(-1, 2),
        }
        if self.projection is not None:
            arrays["projection"] = self.projection
        with path.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Probe:
        """Read what `save` wrote.

        Raises:
            NotFoundError: there is no such file.
            CorruptArtefactError: the file is not a probe.
        """
        if not path.is_file():
            raise NotFoundError(f"no probe at {path}; train one with `uec audit`")
        try:
            # NumPy leaves a file that it opened itself open when its end is missing.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(
                    entries=tuple(arrays["entries"].tobytes().decode().split("\n")),
                    factor=arrays["factor"],
                    projection=arrays.get("projection"),
                    bias=arrays["bias"],
                    centre=arrays["centre"],
                    scale=arrays["scale"],
                    curve=tuple((int(e), float(r)) for e, r in arrays["curve"]),
                )
        except (ValueError, KeyError, EOFError, OSError, BadZipFile) as error:
            raise CorruptArtefactError(
                f"{path} is not a probe ({error}); train it again with `uec audit`"
            ) from error


def words(
    probe: Probe, embedding: Float[np.ndarray, " d"], k: int = 10, *, with_bias: bool = False
) -> list[tuple[str, float]]:
    """The k entries that an embedding holds most clearly, with their scores, best first.

    Args:
        probe: of the member that made the embedding.
        embedding: (d,) one text.
        k: how many.
        with_bias: add how common each word is; function words then come first.

    Returns:
        Entry and logit, whose unit is nats; without the bias, of evidence beyond the frequency.

    Raises:
        InputError: k is less than one.
        MismatchError: an embedding of another length.
    """
    if k < 1:
        raise InputError(f"k: got {k}, expected at least 1")
    scores = probe.scores(embedding[None], with_bias=with_bias)
    return [(probe.entries[i], float(scores[0, i])) for i in top_entries(scores, [k])[0]]
