"""Writes a BERT of NumPy arrays as a local folder in sentence-transformers format.

Holds the names that transformers gives to the tensors of a BERT and the small JSON files around
them. It knows nothing of where the arrays come from, nor of torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

EMBEDDINGS = ("word", "position", "token_type")
"""Tables of a BERT's input, each saved as ``embeddings.NAME_embeddings.weight``."""

LAYER_MODULES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
"""Modules of one layer, each with a weight and a bias."""


@dataclass(frozen=True, slots=True)
class BertSize:
    """The sizes of a BERT encoder that its weights do not name.

    Attributes:
        vocabulary: rows of the word embeddings.
        hidden: length of a token's state (d dims).
        layers: number of transformer layers.
        heads: attention heads a layer.
        feed_forward: width of the inner layer.
        positions: longest input in tokens, special tokens included.
        token_types: rows of the token type embeddings.
        epsilon: added to the variance in every LayerNorm.
        pad_id: token id that fills short rows of a batch.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    feed_forward: int
    positions: int
    token_types: int
    epsilon: float
    pad_id: int


def write(
    folder: Path,
    size: BertSize,
    weights: Mapping[str, Float[np.ndarray, "*_shape"]],
    *,
    max_length: int,
    prompts: Mapping[str, str],
    normalise: bool,
) -> None:
    """Write weights and configuration; the tokenizer's files are the caller's part.

    Args:
        folder: an existing folder.
        size: sizes of the network.
        weights: transformers' `BertModel` tensor name to array, saved as float32. The pooler may
            be missing: it is not read by mean pooling, and zeros are written in its place because
            transformers would otherwise report it as missing and fill it at random.
        max_length: tokens a text is cut to, special tokens included.
        prompts: prompt name to the text put before a text.
        normalise: whether embeddings are scaled to unit length.
    """
    from safetensors.numpy import save_file

    pooler = {
        "pooler.dense.weight": np.zeros((size.hidden, size.hidden), np.float32),
        "pooler.dense.bias": np.zeros(size.hidden, np.float32),
    }
    arrays = {
        name: np.ascontiguousarray(array, dtype=np.float32)
        for name, array in {**pooler, **weights}.items()
    }
    assert arrays.keys() == tensor_names(size), arrays.keys() ^ tensor_names(size)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", _transformers_config(size))
    # The library makes its file private; a cache filled by one user may be read by another.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": max_length, "do_lower_case": False},
    )
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "prompts": dict(prompts),
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )
    _write_modules(folder, size.hidden, normalise)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tensor_names(size: BertSize) -> set[str]:
    """Return the name of every tensor of a BERT of this size."""
    modules = ["embeddings.LayerNorm", "pooler.dense"]
    modules += [layer_prefix(i) + part for i in range(size.layers) for part in LAYER_MODULES]
    names = {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}
    return names | {f"embeddings.{kind}_embeddings.weight" for kind in EMBEDDINGS}


def layer_prefix(layer: int) -> str:
    """Return what comes before every tensor name of one layer, counted from 0."""
    return f"encoder.layer.{layer}."


def _transformers_config(size: BertSize) -> dict[str, object]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.feed_forward,
        "max_position_embeddings": size.positions,
        "type_vocab_size": size.token_types,
        "layer_norm_eps": size.epsilon,
        "hidden_act": "gelu",
        "pad_token_id": size.pad_id,
        "dtype": "float32",
    }


def _write_modules(folder: Path, hidden: int, normalise: bool) -> None:
    """Write the list of modules, under the class names that every release of the library reads."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if normalise:
        kinds.append(("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    for path, _ in kinds[1:]:
        (folder / path).mkdir()
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True},
    )
