"""Encoders: text in, `Encoding` out, behind one Protocol.

`load` turns a `MemberSpec` into an encoder. Torch lives behind it and never in a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from uec.records import Encoding, MemberSpec, Role, Similarity

Progress = Callable[[int], None]
"""Called with the number of texts done since the last call."""


@runtime_checkable
class Encoder(Protocol):
    """One embedding model whose last linear layer can be read."""

    # Name, model and overrides that it was made from.
    spec: MemberSpec
    # Length d of the embedding and number h of inputs of the last linear layer.
    dimension: int
    n_features: int
    # "cosine": means are unit vectors; "dot": they keep their length.
    similarity: Similarity
    # Everything that changes an embedding, JSON-able: model, revision, weights_sha256, pooling,
    # prompts, max_length, similarity, dtype, dimension, readout. Two encoders with equal identity
    # give equal embeddings; an artefact refuses to open with another identity.
    identity: Mapping[str, Any]
    # Constant gain of each output (d,), or ones where `Encoding.gain` varies with the text.
    gain: Float[np.ndarray, " d"]
    # Weight matrix (d, h) of the last linear layer, as trained.
    weight: Float[np.ndarray, "d h"]

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Encoding:
        """Embed texts; rows keep the order of `texts`, and an empty list gives zero rows."""
        ...


def is_static(encoder: Encoder) -> bool:
    """Whether a text's embedding is the mean of a table's rows, blind to order and context."""
    return bool(encoder.identity["readout"]["kind"] == "static")


def load(spec: MemberSpec) -> Encoder:
    """Make the encoder that a spec describes.

    Raises:
        NotFoundError: no such model.
        UnsupportedEncoderError: the model has no readout whose variance is known.
        DependencyError: the model needs an extra that is not installed.
    """
    if spec.model.startswith("hashing:"):
        from uec.encoders.hashing import HashingEncoder

        return HashingEncoder(spec)
    if spec.model == "pkg:use":
        from uec.encoders.use import UseEncoder

        return UseEncoder(spec)
    from uec.encoders.transformer import TransformerEncoder

    return TransformerEncoder(spec)
