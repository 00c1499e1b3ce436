"""Has a member collapsed, and what is to be done? The figures of the geometry audit in words.

Three ways to collapse, each with its own cure:

    token         many different texts get nearly the same vector
    dimensional   the vectors lie in far fewer directions than they have entries
    quantisation  vectors that differ become equal once stored in few bits

The thresholds mark what no sound encoder shows on ordinary text; they are not tuned on labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_NEAR_DUPLICATE_PAIRS = 0.01
"""Different texts of one corpus are hardly ever this often above cosine 0.99."""
_OWN_REPEATS = 0.02
"""Share of texts that only this member confuses with another one entirely."""
_USED_DIRECTIONS = 0.05
"""Participation ratio over its upper bound; sound encoders lie around 0.1 to 0.5."""
_TOP_DIRECTION = 0.4
"""Share of the variance in a single direction."""
_LOST_CODES = 0.01
"""Share of distinct vectors that 8 bits a dimension may merge before search suffers."""
_FEW_LEVELS = 16
"""Distinct values a dimension; fewer mean that the vectors were quantised on the way."""
_COMMON_DIRECTION = 0.5
"""Mean cosine above which the common part of all vectors outweighs what tells texts apart."""
_HUBS = 2.0
"""Skewness of the k-occurrence above which a few texts are everybody's neighbour."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One kind of collapse found in one member.

    Attributes:
        kind: which.
        evidence: the figures, in words.
        advice: what to do.
    """

    kind: Literal["token", "dimensional", "quantisation"]
    evidence: str
    advice: str


def diagnose(row: Mapping[str, Any], n: int, d: int) -> tuple[Diagnosis, ...]:
    """The collapses that a row of the geometry audit shows; empty for a sound member.

    Args:
        row: near_duplicates, own_repeats, participation_ratio, top_share, directions_99,
            codes_8bit and levels of one member.
        n: texts.
        d: dimension of the embeddings.
    """
    found = (_token(row), _dimensional(row, n, d), _quantisation(row, n))
    return tuple(diagnosis for diagnosis in found if diagnosis)


def _token(row: Mapping[str, Any]) -> Diagnosis | None:
    near, own = row["near_duplicates"], row["own_repeats"]
    if near <= _NEAR_DUPLICATE_PAIRS and own <= _OWN_REPEATS:
        return None
    return Diagnosis(
        "token",
        f"{100 * near:.1f} % of all pairs of texts have a cosine above 0.99, and "
        f"{100 * own:.1f} % of the texts get exactly another text's vector",
        "check that long texts are not cut to the same beginning, and that pooling and prompts are "
        "the model's own; if that is not it, the member does not tell these texts apart: leave it "
        "out",
    )


def _dimensional(row: Mapping[str, Any], n: int, d: int) -> Diagnosis | None:
    bound = min(d, n - 1)
    used = row["participation_ratio"] / bound
    if used >= _USED_DIRECTIONS and row["top_share"] <= _TOP_DIRECTION:
        return None
    return Diagnosis(
        "dimensional",
        f"of {bound} possible directions it uses {row['participation_ratio']:.1f}, the first holds "
        f"{100 * row['top_share']:.0f} % of the variance, and {row['directions_99']} hold 99 %",
        f"reduce it to its first {row['directions_99']} principal components, which loses nothing "
        "and saves memory; try whitening; where one direction holds nearly all, look at what it "
        "is (length of the text, language)",
    )


def _quantisation(row: Mapping[str, Any], n: int) -> Diagnosis | None:
    merged, levels = 1 - row["codes_8bit"], row["levels"]
    if merged <= _LOST_CODES and (levels > _FEW_LEVELS or n <= _FEW_LEVELS):
        return None
    return Diagnosis(
        "quantisation",
        f"a dimension takes {levels:.0f} different values over the texts, and with 8 bits a "
        f"dimension {100 * merged:.1f} % of the distinct vectors become equal to another one",
        "keep this member in float16 or float32; where it was quantised before, do that again with "
        "a range of each dimension's own, after taking off the mean",
    )


def remarks(name: str, views: Mapping[str, Mapping[str, Any] | None]) -> tuple[str, ...]:
    """What taking off the mean or whitening would change, where that is worth a sentence.

    Args:
        name: the member.
        views: mean_cosine and hubness ``"before"``, ``"centred"`` and ``"whitened"``; None where
            a view does not exist.
    """
    before, centred = views["before"], views["centred"]
    assert before is not None, "the vectors as they are always have figures"
    found = []
    if before["mean_cosine"] > _COMMON_DIRECTION:
        found.append(
            f"{name}: two random texts have a cosine of {before['mean_cosine']:.2f}, because all "
            "its vectors share one direction. Its similarities are high everywhere: compare them "
            "with each other only, never with a fixed threshold or another member's."
        )
    if before["hubness"] > _HUBS:
        sentence = (
            f"{name}: a few texts are neighbours of very many others (hubness "
            f"{before['hubness']:.1f}) and will turn up for queries that they do not answer"
        )
        cures = {
            "taking off the mean": centred,
            "whitening": views["whitened"],
        }
        helped = [
            f"{cure} brings it to {view['hubness']:.1f}"
            for cure, view in cures.items()
            if view is not None and view["hubness"] < 0.7 * before["hubness"]
        ]
        found.append(f"{sentence}; {', '.join(helped)}." if helped else f"{sentence}.")
    return tuple(found)
