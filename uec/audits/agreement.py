"""Agreement: how alike do two members see the same texts?

The overlap of the neighbourhoods that two members give to one text, averaged over texts, for every
two members. It needs no pairs and ranks nobody, for two members that agree may both be wrong; it
shows which member adds another view to an ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from uec.audits.inputs import Members, check_members, few_texts, percent, repeat_warnings
from uec.audits.neighbours import Measure, Neighbours, block_rows, chance, overlap, shared
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

_MIN_TEXTS = 10


def agreement(
    members: Members,
    k: int,
    *,
    measure: Measure = "jaccard",
    seed: int = 0,
    progress: Progress | None = None,
) -> Float[np.ndarray, "m m"]:
    """Mean overlap of neighbourhoods between every two members on the same texts.

    Args:
        members: member name to (n, d) embeddings; dimensions may differ.
        k: neighbours a text.
        measure: ``"jaccard"`` or ``"recall"``.
        seed: seed of the order of ties; every member gets an order of its own.
        progress: called with texts done; the calls sum to n times the number of members.

    Returns:
        (members, members) symmetric, ones on the diagonal, in the order of `members`.
    """
    n = len(next(iter(members.values())))
    searches = [Neighbours(matrix, seed + i) for i, matrix in enumerate(members.values())]
    total = np.zeros((len(searches), len(searches)))
    for start in range(0, n, block_rows(n)):
        stop = min(start + block_rows(n), n)
        near = []
        for search in searches:
            near.append(search.rows(start, stop, k))
            if progress:
                progress(stop - start)
        for i, j in zip(*np.triu_indices(len(near), 1), strict=True):
            total[i, j] += overlap(shared(near[i], near[j], (k,), n), (k,), measure).sum()
    matrix: Float[np.ndarray, "m m"] = (total + total.T) / n + np.eye(len(searches))
    return matrix


def audit(
    members: Members,
    *,
    measure: Measure = "jaccard",
    k: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Compare members by their neighbourhoods on the same texts, where there are no pairs.

    This ranks nobody: two members that agree may both be wrong. It shows who adds another view.

    Args:
        members: member name to (n, d) embeddings of the same texts.
        measure: ``"jaccard"`` or ``"recall"``.
        k: neighbours a text, below n - 1.
        seed: seed of the order in which ties are settled.
        progress: called with texts done since the last call; sums to n times the members.

    Returns:
        One row a member with its ``mean_agreement`` with the others; `details` holds the matrix.

    Raises:
        InputError: embeddings that cannot be compared, fewer than 10 texts, fewer than two members.
    """
    n = check_members(members, min_texts=_MIN_TEXTS)
    if len(members) < 2:
        raise InputError("agreement needs at least two members")
    if not 1 <= k < n - 1:
        raise InputError(f"k = {k} neighbours of {n} texts: expected 1 to {n - 2}")
    floor = chance(k, n, measure)
    matrix = agreement(members, k, measure=measure, seed=seed, progress=progress)
    mean = (matrix.sum(axis=1) - 1) / (len(members) - 1)
    rows = tuple(
        {"member": name, "mean_agreement": float(value)}
        for name, value in zip(members, mean, strict=True)
    )
    return AuditReport(
        audit="agreement",
        settings={"measure": measure, "k": k, "seed": seed},
        n_texts=n,
        rows=rows,
        findings=_findings(list(members), matrix, floor),
        warnings=few_texts(n) + repeat_warnings([members], ["texts"]),
        details={"members": list(members), "overlap": matrix.tolist(), "chance": floor},
    )


def _findings(
    names: Sequence[str], matrix: Float[np.ndarray, "m m"], floor: float
) -> tuple[str, ...]:
    def pair(pick: Callable[[Float[np.ndarray, " p"]], np.integer[Any]]) -> str:
        i, j = np.triu_indices(len(names), 1)
        best = pick(matrix[i, j])
        a, b = i[best], j[best]
        return f"{names[a]} and {names[b]} ({percent(float(matrix[a, b]))})"

    findings = [f"Most alike in their neighbourhoods: {pair(np.argmax)}; chance: {percent(floor)}."]
    if len(names) > 2:
        findings.append(
            f"Least alike: {pair(np.argmin)}. Members that differ and are both good add most to "
            "an ensemble."
        )
    return tuple(findings)
