"""Turns a table with one row a token, as WordLlama's package has it, into a model folder.

The embedding of a text is the mean of its tokens' rows. Tables trained Matryoshka-style may be cut
to their first columns.
"""

from __future__ import annotations

from pathlib import Path

from uec.errors import CorruptArtefactError

TENSOR = "embedding.weight"


def convert(weights: Path, tokenizer: Path, folder: Path, *, dimension: int) -> None:
    """Write a static table as a sentence-transformers folder.

    Args:
        weights: safetensors file with the table (v, d).
        tokenizer: JSON file of the ``tokenizers`` library.
        folder: where; it exists.
        dimension: first columns to keep, at most d.

    Raises:
        CorruptArtefactError: the file holds no such table.
    """
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    table = load_file(weights).get(TENSOR)
    if table is None or table.ndim != 2 or table.shape[1] < dimension:
        raise CorruptArtefactError(
            f"{weights}: expected a table {TENSOR!r} with at least {dimension} columns; "
            f"got {None if table is None else table.shape}"
        )
    static = StaticEmbedding(
        Tokenizer.from_file(str(tokenizer)),
        embedding_weights=table[:, :dimension].astype("float32"),
    )
    SentenceTransformer(modules=[static], device="cpu").save(str(folder), create_model_card=False)
