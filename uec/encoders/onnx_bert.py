"""Reads a BERT that PyTorch exported to ONNX back into named tensors.

The exporter keeps the names of embeddings, biases and LayerNorms but folds each dense weight W into
an anonymous constant: a layer y = x Wᵀ + b becomes

    MatMul(x, constant) -> Add(b, ·),        constant = Wᵀ,

so the name of the bias tells whose weight the constant is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from uec.encoders import bert_folder
from uec.encoders.bert_folder import BertSize
from uec.errors import DependencyError

if TYPE_CHECKING:
    from onnx import ModelProto

# Where sentence-transformers keeps the network among its modules.
_PREFIX = "model.0.auto_model."
# The graph holds these only inside reshapes; they are those of every MiniLM with 384 dims.
_HEADS = 12
_EPSILON = 1e-12
_PAD_ID = 0


def convert(source: Path, tokenizer_files: Path, folder: Path, *, max_length: int) -> None:
    """Write an exported sentence-transformers BERT with mean pooling and no normalisation.

    Args:
        source: the ``.onnx`` file.
        tokenizer_files: folder whose ``tokenizer.json`` and ``vocab.txt`` are the model's, of the
            uncased English BERT.
        folder: an existing, empty folder.
        max_length: tokens a text is cut to, special tokens included.

    Raises:
        DependencyError: the package onnx is not installed.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise DependencyError("onnx", "demo", f"reading {source.name}") from error
    weights = bert_weights(onnx.load(source))
    for name in ("tokenizer.json", "vocab.txt"):
        shutil.copyfile(tokenizer_files / name, folder / name)
    bert_folder.write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": max_length},
    )
    bert_folder.write(
        folder, size_of(weights), weights, max_length=max_length, prompts={}, normalise=False
    )


def bert_weights(model: ModelProto) -> dict[str, Float[np.ndarray, "*_shape"]]:
    """Return the tensors of an exported network under transformers' `BertModel` names."""
    from onnx import numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {
        name.removeprefix(_PREFIX): array
        for name, array in constants.items()
        if name.startswith(_PREFIX)
    }
    # Output of a MatMul to the constant it multiplies by.
    factors = {
        node.output[0]: constants[node.input[1]]
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in constants
    }
    for node in model.graph.node:
        if node.op_type == "Add" and node.input[1] in factors:
            bias = node.input[0].removeprefix(_PREFIX)
            weights[bias.removesuffix("bias") + "weight"] = factors[node.input[1]].T
    return weights


def size_of(weights: dict[str, Float[np.ndarray, "*_shape"]]) -> BertSize:
    """Read the sizes of a BERT off the shapes of its tensors."""
    vocabulary, hidden = weights["embeddings.word_embeddings.weight"].shape
    layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
    first = bert_folder.layer_prefix(0)
    return BertSize(
        vocabulary=vocabulary,
        hidden=hidden,
        layers=layers,
        heads=_HEADS,
        feed_forward=len(weights[f"{first}intermediate.dense.bias"]),
        positions=len(weights["embeddings.position_embeddings.weight"]),
        token_types=len(weights["embeddings.token_type_embeddings.weight"]),
        epsilon=_EPSILON,
        pad_id=_PAD_ID,
    )
