"""Neighbourhood overlap: do neighbours stay neighbours on the other side of a pair?

For n pairs of texts (question and passage, sentence and translation), the neighbours of text i
among the left sides and those of its partner among the right sides are two sets of pair numbers. A
member that puts both sides into one order of meaning keeps the sets alike. No labels, no training:

    overlap_k = mean_i |A_i ∩ B_i| / |A_i ∪ B_i|          A_i, B_i the k nearest of each side

Chance alone gives more than zero; `uec.audits.neighbours.chance` is the floor to read every figure
against. The same measure between two members on the same texts is the audit `agreement`.

References:
    "Structure retention" (arXiv 2605.22202), neighbourhood retention Ret_k. Three departures: self
    is left out by index, not as the first hit; ties are settled in a random order of each side
    (`uec.audits.neighbours` says why); and members are judged with the mean of each side taken off.
    Many encoders lean all texts towards one direction, and near it neighbours are decided by how
    far a text leans; the lean differs between questions and passages, and says nothing of search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float

from uec.audits.inputs import Pairs, check_pairs, few_texts, percent, repeat_warnings
from uec.audits.neighbours import Measure, Neighbours, block_rows, chance, overlap, shared
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

_MIN_TEXTS = 10
"""Below this even k = 1 has a floor above a tenth, and no k tells members apart."""
_RANK_K = 5
"""Nearest to what a search shows. The published figures have ten, and found that the choice hardly
moves the ranking; on a few hundred questions five went better with labels (benchmarks/results)."""
_HIGH_FLOOR = 0.1
"""A floor that hides a good part of the scale from a reader."""


def retention(
    left: Float[np.ndarray, "n d"],
    right: Float[np.ndarray, "n e"],
    ks: Sequence[int],
    *,
    measure: Measure = "jaccard",
    centre: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Float[np.ndarray, "n s"]:
    """Overlap of each text's neighbourhoods in two embeddings of n items.

    Exact, in blocks: memory is that of the two matrices in float32 and of one block.

    Args:
        left: (n, d) one side of the pairs, or one member's embeddings.
        right: (n, e) the other side, or another member's embeddings.
        ks: numbers of neighbours, each below n.
        measure: ``"jaccard"`` or ``"recall"``.
        centre: take the mean of each side off first.
        seed: seed of the order of ties; the two sides get independent orders.
        progress: called with the number of items done since the last call.

    Returns:
        (n, len(ks)) overlaps in 0..1; their mean over texts is Ret_k.
    """
    n = len(left)
    sides = Neighbours(left, seed, centre=centre), Neighbours(right, seed + 1, centre=centre)
    found = np.empty((n, len(ks)))
    for start in range(0, n, block_rows(n)):
        stop = min(start + block_rows(n), n)
        near = [side.rows(start, stop, max(ks)) for side in sides]
        found[start:stop] = overlap(shared(near[0], near[1], ks, n), ks, measure)
        if progress:
            progress(stop - start)
    return found


def sizes(
    n: int, fixed: Sequence[int], percents: Sequence[int | float]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Neighbourhood sizes by label: ``"10"`` for k = 10, ``"5%"`` for k = ceil(0.05 n).

    Args:
        n: texts.
        fixed: numbers of neighbours.
        percents: shares of the texts, in percent.

    Returns:
        Label to k, and the labels that were left out because k would be n - 1 or more: every text
        is then everyone's neighbour, and the overlap is one whatever the member does.

    Raises:
        InputError: a size that is not positive.
    """
    # Exact arithmetic: in floats, ceil(0.1 * 30) is 4.
    wanted = {str(k): k for k in fixed}
    wanted |= {f"{p:g}%": math.ceil(Fraction(str(p)) * n / 100) for p in percents}
    for label, k in wanted.items():
        if k < 1:
            raise InputError(f"neighbourhood size {label}: got k = {k}, expected at least 1")
    usable = {label: k for label, k in wanted.items() if k < n - 1}
    return usable, tuple(label for label in wanted if label not in usable)


def audit(
    pairs: Pairs,
    *,
    measure: Measure = "jaccard",
    fixed: Sequence[int] = (5, 10, 20, 50),
    percents: Sequence[int | float] = (1, 2, 5, 10, 20),
    subtract_chance: bool = False,
    centre: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Judge members by the neighbourhoods they keep from one side of the pairs to the other.

    Args:
        pairs: member name to the (n, d) embeddings of the left and of the right sides.
        measure: ``"jaccard"`` or ``"recall"``.
        fixed: numbers of neighbours.
        percents: numbers of neighbours as shares of n, in percent.
        subtract_chance: take the floor of `chance` off every figure.
        centre: take the mean of each side off first; without it the figures are the paper's.
        seed: seed of the order in which ties are settled.
        progress: called with pairs done since the last call; sums to n times the members.

    Returns:
        One row a member with ``overlap@K`` for every size K and ``standard_error``, that of the
        ranking figure over texts. `details` holds the sizes, the floors and a histogram of the
        texts' overlaps.

    Raises:
        InputError: embeddings that cannot be compared, or fewer than 10 pairs.
    """
    n = check_pairs(pairs, min_texts=_MIN_TEXTS)
    ks, dropped = sizes(n, fixed, percents)
    if not ks:
        raise InputError(f"no neighbourhood size below {n - 1} was asked for; got {dropped}")
    main = _main_size(ks)
    floors = {label: chance(k, n, measure) for label, k in ks.items()}
    rows, histograms = [], {}
    for name, (left, right) in pairs.items():
        values = retention(
            left,
            right,
            list(ks.values()),
            measure=measure,
            centre=centre,
            seed=seed,
            progress=progress,
        )
        ranking = values[:, list(ks).index(main)]
        rows.append(_row(name, values, ranking, floors if subtract_chance else {}, list(ks)))
        histograms[name] = np.histogram(ranking, bins=20, range=(0, 1))[0].tolist()
    return AuditReport(
        audit="overlap",
        settings={
            "measure": measure,
            "fixed": list(fixed),
            "percents": list(percents),
            "subtract_chance": subtract_chance,
            "centre": centre,
            "seed": seed,
        },
        n_texts=n,
        rows=tuple(rows),
        rank_by=f"overlap@{main}",
        findings=_findings(rows, main, ks[main], floors[main], n, subtract_chance),
        warnings=_warnings(pairs, n, dropped, main, floors[main]),
        details={
            "sizes": ks,
            "chance": {f"overlap@{label}": floor for label, floor in floors.items()},
            "histogram": {"edges": np.linspace(0, 1, 21).tolist(), "texts": histograms},
        },
    )


def _main_size(ks: Mapping[str, int]) -> str:
    """The label of the size that ranks: `_RANK_K` where asked for, else the nearest to it."""
    return min(ks, key=lambda label: (abs(ks[label] - _RANK_K), "%" in label))


def _row(
    name: str,
    values: Float[np.ndarray, "n s"],
    ranking: Float[np.ndarray, " n"],
    floors: Mapping[str, float],
    labels: Sequence[str],
) -> dict[str, Any]:
    means = values.mean(axis=0)
    row: dict[str, Any] = {"member": name}
    for label, mean in zip(labels, means, strict=True):
        row[f"overlap@{label}"] = float(mean - floors.get(label, 0.0))
    row["standard_error"] = float(ranking.std(ddof=1) / math.sqrt(len(ranking)))
    return row


def _findings(
    rows: Sequence[Mapping[str, Any]], main: str, k: int, floor: float, n: int, subtracted: bool
) -> tuple[str, ...]:
    key = f"overlap@{main}"
    ranked: list[Mapping[str, Any]] = sorted(rows, key=lambda row: -row[key])
    kept = ", ".join(f"{row['member']} {percent(row[key])}" for row in ranked)
    base = "chance, already taken off, is" if subtracted else "chance alone gives"
    findings = [
        f"Of a text's {k} nearest neighbours and its partner's {k} on the other side, the share "
        f"that are the same: {kept}; {base} {percent(floor)}."
    ]
    zero = 0.0 if subtracted else floor
    lost = [row["member"] for row in ranked if row[key] < zero + 3 * row["standard_error"]]
    if lost:
        findings.append(
            f"{_names(lost)}: no more than chance. The two sides of a pair are unrelated to this "
            "member (a language or a kind of text it never learned?); do not search with it here."
        )
    if len(ranked) > 1:
        findings.append(_lead(ranked[0], ranked[1], key))
    return tuple(findings)


def _lead(first: Mapping[str, Any], second: Mapping[str, Any], key: str) -> str:
    error = math.hypot(first["standard_error"], second["standard_error"])
    if first[key] - second[key] < 2 * error:
        return (
            f"{first['member']} and {second['member']} lie within the noise of this sample: "
            "the audit does not tell them apart."
        )
    return f"On this corpus expect the best retrieval from {first['member']}."


def _warnings(
    pairs: Pairs, n: int, dropped: Sequence[str], main: str, floor: float
) -> tuple[str, ...]:
    found = list(few_texts(n))
    if dropped:
        found.append(
            f"Left out, because every text would be a neighbour: k = {', '.join(dropped)}."
        )
    if floor > _HIGH_FLOOR:
        found.append(
            f"Chance alone gives {percent(floor)} at k = {main}; compare with that, not with zero."
        )
    sides = [{name: both[i] for name, both in pairs.items()} for i in (0, 1)]
    found.extend(repeat_warnings(sides, ["left texts", "right texts"]))
    return tuple(found)


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
