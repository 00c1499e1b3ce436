"""The findings of the audit `flip`, in sentences for a reader who has never heard of a probe.

It knows the figures by name and nothing of how they came about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from uec.audits.inputs import percent

_NOISE = 2.0
"""Differences below this many standard errors are called none."""


def findings(
    rows: Sequence[Mapping[str, Any]],
    overlaps: Sequence[Mapping[str, Any]],
    abroad: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> tuple[str, ...]:
    """Say what the figures mean.

    Args:
        rows: one mapping a member, as in the report.
        overlaps: ``members`` (a pair of names) and ``jaccard`` of what both extract rightly.
        abroad: language to member to ``own``, ``other``, ``drop`` and ``drop_error``.
    """
    ranked = sorted(rows, key=lambda row: -row["accuracy"])
    said = [_held(ranked)]
    if len(ranked) > 1:
        said.append(_lead(ranked[0], ranked[1]))
    said.extend(_against_plain(row) for row in ranked if "gain_over_lip" in row)
    said.extend(_against_splice(row) for row in ranked if "splice" in row)
    if "entities_strict" in ranked[0]:
        said.append(_names(ranked))
    if overlaps:
        said.append(_alike(overlaps))
    for language, by_member in abroad.items():
        said.extend(_drop(language, name, figures) for name, figures in by_member.items())
    return tuple(said)


def _held(ranked: Sequence[Mapping[str, Any]]) -> str:
    shares = ", ".join(f"{row['member']} {percent(row['accuracy'])}" for row in ranked)
    counted = ", ".join(f"{row['member']} {percent(row['accuracy_with_bias'])}" for row in ranked)
    return (
        f"Of the different words of a text, this share can be read off its embedding by a linear "
        f"probe: {shares}. With a word's frequency added to the evidence: {counted}. Naming the "
        f"most frequent words without looking finds {percent(ranked[0]['unigram'])}."
    )


def _lead(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    error = math.hypot(first["standard_error"], second["standard_error"])
    if first["accuracy"] - second["accuracy"] < _NOISE * error:
        return (
            f"{first['member']} and {second['member']} hold the words of a text equally well, as "
            "far as these texts can tell."
        )
    return (
        f"{first['member']} holds the exact words best: expect it to be the strongest member where "
        "names and terms decide, which need not be where meaning decides."
    )


def _against_plain(row: Mapping[str, Any]) -> str:
    gain, noise = row["gain_over_lip"], _NOISE * row["gain_error"]
    verdict = "no different from"
    if gain > noise:
        verdict = "better than"
    elif gain < -noise:
        verdict = "worse than"
    return (
        f"{row['member']}: the factorised probe is {verdict} a plain linear probe with a tuned "
        f"learning rate ({percent(row['accuracy'])} and {percent(row['lip'])}; difference "
        f"{100 * gain:+.1f} ± {100 * row['gain_error']:.1f} points; with frequencies added "
        f"{percent(row['accuracy_with_bias'])} and {percent(row['lip_with_bias'])})."
    )


def _against_splice(row: Mapping[str, Any]) -> str:
    return (
        f"{row['member']}: rebuilding a text's embedding from embeddings of single words (SpLiCE) "
        f"names {percent(row['splice'])} of its words; a trained probe "
        f"{percent(row['accuracy'])}."
    )


def _names(ranked: Sequence[Mapping[str, Any]]) -> str:
    shown = ", ".join(
        f"{row['member']} {percent(row['entities_strict'])} "
        f"({percent(row['entities_partial'])} of their words)"
        for row in ranked
    )
    return f"Of the names in a text, these are whole among the words read off first: {shown}."


def _alike(overlaps: Sequence[Mapping[str, Any]]) -> str:
    shown = ", ".join(
        f"{' and '.join(entry['members'])} {percent(entry['jaccard'])}" for entry in overlaps
    )
    return f"Of the words that either of two members gives rightly, both give: {shown}."


def _drop(language: str, member: str, figures: Mapping[str, float]) -> str:
    return (
        f"{member}: a probe trained on these texts reads {percent(figures['own'])} of the words "
        f"off unseen texts of their language and {percent(figures['other'])} off the same texts in "
        f"{language}: {100 * figures['drop']:.0f} ± {100 * figures['drop_error']:.0f} points less."
    )
