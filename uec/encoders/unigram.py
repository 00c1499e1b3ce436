"""A SentencePiece unigram vocabulary as a `tokenizers` file that gives the same ids.

A text x of characters is cut into the pieces p with the largest sum of scores (Viterbi),

    argmax over p_1 … p_m = x of  Σ score(p_i),        score(unknown character) = min score - 10,

after each character was replaced by the normalisation map, runs of spaces were collapsed to one, a
space was put in front, and spaces became "▁" (U+2581). The `tokenizers` library does nearly that;
the differences that change ids, and what removes each, stand in `tokenizer`.

References:
    Kudo, "Subword Regularization", ACL 2018, section 3.2 (the unigram model).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from uec.encoders.bert_folder import write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space inside pieces."""

UNKNOWN_PENALTY = 10.0
"""What SentencePiece takes from the lowest score for a character without a piece."""


@dataclass(frozen=True, slots=True)
class Unigram:
    """A unigram vocabulary with its normalisation.

    Attributes:
        pieces: text of each piece; the index is the token id.
        scores: log-probability of each piece.
        replacements: character to what it becomes; a character that is not here stays.
        bos_id: id put before a text.
        eos_id: id put after a text.
        pad_id: id that fills short rows of a batch.
        unk_id: id of a character that no piece covers.
    """

    pieces: tuple[str, ...]
    scores: Float[np.ndarray, " p"]
    replacements: Mapping[str, str]
    bos_id: int
    eos_id: int
    pad_id: int
    unk_id: int

    @property
    def unknown_score(self) -> float:
        """Score of a character that no piece covers."""
        return float(self.scores.min()) - UNKNOWN_PENALTY

    @property
    def characters(self) -> set[str]:
        """Characters that occur in pieces."""
        return {character for piece in self.pieces for character in piece}

    @property
    def specials(self) -> tuple[int, int, int, int]:
        """Ids that stand for no text: begin, end, padding, unknown."""
        return self.bos_id, self.eos_id, self.pad_id, self.unk_id


def write(folder: Path, vocabulary: Unigram, *, max_length: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Args:
        folder: an existing folder.
        vocabulary: pieces, scores and normalisation.
        max_length: tokens a text is cut to, special tokens included.
    """
    built = tokenizer(vocabulary)
    built.save(str(folder / "tokenizer.json"), pretty=False)
    bos, eos, pad, unk = (built.id_to_token(i) for i in vocabulary.specials)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "bos_token": bos,
            "cls_token": bos,
            "eos_token": eos,
            "sep_token": eos,
            "pad_token": pad,
            "unk_token": unk,
            # A text that spells "<s>" is not cut there before it is normalised.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    )


def tokenizer(vocabulary: Unigram) -> Tokenizer:
    """Build the tokenizer, begin and end tokens included.

    Left to itself the library differs from SentencePiece's per-character rule in three places:

    - it looks replacements up by grapheme and then drops what follows the first character, so a
      character that the map removes is first put between a replaced character and a mark;
    - it fuses neighbouring unknowns into one token, so each unknown character is a word of its own,
      and a character known only inside longer pieces has an alias (see `aliases`);
    - it would read a text that spells the unknown token as that token, so that token is spelt with
      a space, which no normalised text holds.

    Splitting before each "▁" changes nothing, because no piece holds one inside, and lets the
    library remember words.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    assert not any(SPACE in piece[1:] for piece in vocabulary.pieces)
    scored = list(zip(vocabulary.pieces, vocabulary.scores.tolist(), strict=True))
    name, score = scored[vocabulary.unk_id]
    scored[vocabulary.unk_id] = (name + " ", score)
    scored += [(character, vocabulary.unknown_score) for character in aliases(vocabulary)]

    built = Tokenizer(models.Unigram(scored, vocabulary.unk_id, byte_fallback=False))
    built.normalizer = _normaliser(vocabulary.replacements)
    unknown = Regex(f"[^{_character_class(vocabulary.characters)}]")
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(SPACE, "merged_with_next"),
            pre_tokenizers.Split(unknown, "isolated"),
        ]
    )
    bos, eos = vocabulary.pieces[vocabulary.bos_id], vocabulary.pieces[vocabulary.eos_id]
    built.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} $B {eos}",
        special_tokens=[(bos, vocabulary.bos_id), (eos, vocabulary.eos_id)],
    )
    built.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return built


def aliases(vocabulary: Unigram) -> tuple[str, ...]:
    """Return the characters that occur in longer pieces but have no piece of their own.

    On their own they are unknown. They get ids after the last piece, with the unknown's score, and
    the model's rows for these ids must equal the unknown's row.
    """
    return tuple(sorted(vocabulary.characters.difference(vocabulary.pieces)))


def _normaliser(replacements: Mapping[str, str]) -> Normalizer:
    from tokenizers import Regex, normalizers

    # A control character always ends a grapheme, and the map removes this one again.
    removed = min(character for character, text in replacements.items() if not text)
    replaced = _character_class(replacements)
    return normalizers.Sequence(
        [
            # Before the map, because the library's map may not remove the first character of all.
            normalizers.Prepend(" "),
            normalizers.Replace(Regex(f"(?<=[{replaced}])(?=[^\\x00-\\x7F])"), removed),
            normalizers.Precompiled(characters_map(replacements)),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(" ", SPACE),
        ]
    )


def _character_class(characters: Iterable[str]) -> str:
    """Return the inside of a regular expression's brackets that match these characters."""
    points = np.array(sorted(map(ord, characters)))
    starts = np.flatnonzero(np.diff(points, prepend=-2) != 1)
    ends = np.append(starts[1:], len(points)) - 1
    return "".join(
        f"\\x{{{first:X}}}-\\x{{{last:X}}}"
        for first, last in zip(points[starts], points[ends], strict=True)
    )


def characters_map(replacements: Mapping[str, str]) -> bytes:
    """Compile a replacement map as SentencePiece stores it (``precompiled_charsmap``).

    The layout is the byte length of a double-array trie over the UTF-8 keys, the trie as unsigned
    32-bit units, then the replacements, each ended by a zero byte. In a unit, bits 0 to 7 are the
    label, bit 8 says that a key ends here, and bits 10 and up are the offset: the child of unit i
    by byte c is unit ``i ^ offset ^ c``. A key's value, the position of its replacement, is the
    child by byte 0 and has bit 31 set. This is the format of the darts-clone library.

    Args:
        replacements: character to replacement; none may hold U+0000.
    """
    texts = bytearray()
    entries = []
    for key, text in sorted(replacements.items()):
        entries.append((key.encode() + b"\0", len(texts)))
        texts += text.encode() + b"\0"
    units = _DoubleArray(entries).units
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + bytes(texts)


class _DoubleArray:
    """Places the nodes of a trie over byte keys, each ended by a zero byte, in one array.

    Entries are keys in increasing order, each with its value.
    """

    _BLOCK = 256  # exclusive or with a byte stays within an aligned block of this length
    _VALUE_BIT = 1 << 31
    _HAS_VALUE_BIT = 1 << 8
    _OFFSET_SHIFT = 10

    def __init__(self, entries: Sequence[tuple[bytes, int]]) -> None:
        self.units = [0] * self._BLOCK
        # The root keeps the first block to itself, so no child lands on it.
        self._base = self._BLOCK - 1
        self._place(0, entries, 0)

    def _place(self, position: int, entries: Sequence[tuple[bytes, int]], depth: int) -> None:
        """Place the children of the node at `position`, whose keys agree up to `depth`."""
        groups = {
            byte: list(group) for byte, group in groupby(entries, key=lambda entry: entry[0][depth])
        }
        base = self._next_base(groups)
        self.units[position] |= (position ^ base) << self._OFFSET_SHIFT
        if 0 in groups:
            self.units[position] |= self._HAS_VALUE_BIT
        for byte, group in groups.items():
            self.units[base ^ byte] = byte or self._VALUE_BIT | group[0][1]
        for byte, group in groups.items():
            if byte:
                self._place(base ^ byte, group, depth + 1)

    def _next_base(self, labels: Collection[int]) -> int:
        """Return a base with room for these children; it only grows, so no two nodes share one."""
        while True:
            self._base += 1
            if self._base >= len(self.units):
                self.units += [0] * self._BLOCK
            if not any(self.units[self._base ^ label] for label in labels):
                return self._base
