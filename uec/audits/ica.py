"""Independent components: in how few directions do the two sides of a pair differ?

FastICA splits the embeddings of both sides, thrown together, into independent components of unit
variance. For pairs that a member understands, nearly all components agree on both sides, and the
rest of the difference sits in a few (such as *the language*): the mean absolute differences

    delta_j = mean_i |A_ij - B_ij|                A, B (n, c) sources of the two sides

are unequal, and their Gini coefficient is high. A member to which the sides are unrelated differs
in all components alike: Gini near zero. The same on *shuffled pairs* is the control: what stays
high there belongs to the side (a prompt before one side is enough), not to the pairs.

The Gini coefficient does not grow steadily with the gap between the sides, and FastICA may fail to
converge; max/mean, the control, the iterations and the spread over seeds are therefore part of the
answer.

References:
    "Structure retention" (arXiv 2605.22202), the ICA peak. Departures: at most 2,000 iterations
    instead of 500,000; three seeds instead of one; the data are projected on the leading principal
    components once, which is what FastICA's own whitening does first in every run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import PCA, FastICA
from sklearn.exceptions import ConvergenceWarning

from uec.audits.concentration import gini, peak, peak_set, variation
from uec.audits.inputs import Pairs, check_pairs, repeat_warnings, unit_rows
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

_RANK_TOLERANCE = 1e-10
"""A component whose variance is below this share of the first is rounding error."""
_ROWS_A_COMPONENT = 20
"""Fewer rows a component than this, and FastICA finds structure in noise."""
_FLAT = 0.07
"""English-only models reach 0.03 to 0.06 on Finnish pairs, multilingual ones 0.07 to 0.20."""
_SIDE_SHARE = 0.7
"""Share of the Gini that survives broken pairs above which the peak belongs to the side."""


def differences(
    left: Float[np.ndarray, "n c"], right: Float[np.ndarray, "n c"]
) -> Float[np.ndarray, " c"]:
    """delta_j = mean_i |left_ij - right_ij|; near 2 for a unit-variance source that tells sides."""
    delta: Float[np.ndarray, " c"] = np.abs(left - right).mean(axis=0)
    return delta


@dataclass(frozen=True, slots=True)
class Sources:
    """One run of FastICA on both sides of n pairs.

    Attributes:
        left: (n, c) sources of the left sides; unit variance over both sides together.
        right: (n, c) sources of the right sides.
        n_iter: iterations used.
        converged: False where the iterations ran out first.
    """

    left: Float[np.ndarray, "n c"]
    right: Float[np.ndarray, "n c"]
    n_iter: int
    converged: bool


def principal(
    left: Float[np.ndarray, "n d"], right: Float[np.ndarray, "n d"], n_components: int
) -> Float[np.ndarray, "r c"]:
    """Both sides, one below the other, on their leading principal components, centred.

    Args:
        left: (n, d) left sides.
        right: (n, d) right sides.
        n_components: how many to keep; at most d and below 2 n.

    Raises:
        InputError: d or 2 n is too small, or the texts do not span that many directions.
    """
    stacked = np.concatenate([left, right]).astype(np.float64)
    rows, d = stacked.shape
    if d < n_components or rows <= n_components:
        raise InputError(
            f"{n_components} components need at least as many dimensions (got {d}) and more rows "
            f"on both sides together (got {rows}); ask for fewer components"
        )
    solver = "covariance_eigh" if rows > d else "full"
    pca = PCA(n_components, svd_solver=solver)
    projected: Float[np.ndarray, "r c"] = pca.fit_transform(stacked)
    spanned = int(np.sum(pca.explained_variance_ > _RANK_TOLERANCE * pca.explained_variance_[0]))
    if spanned < n_components:
        raise InputError(
            f"the texts span only {spanned} directions, so {n_components} components do not exist; "
            "ask for fewer components"
        )
    return projected


def sources(
    projected: Float[np.ndarray, "r d"],
    n_components: int,
    *,
    seed: int = 0,
    max_iter: int = 2000,
    tol: float = 1e-4,
) -> Sources:
    """Independent components of both sides by scikit-learn's FastICA.

    Args:
        projected: (2 n, d) left sides above right sides, as `principal` gives them.
        n_components: components to find, at most d.
        seed: seed of the start and of the order of rows.
        max_iter: iterations at most.
        tol: largest change of a direction at which the run counts as converged.
    """
    rows = np.random.default_rng(seed).permutation(len(projected))
    ica = FastICA(
        n_components, whiten="unit-variance", max_iter=max_iter, tol=tol, random_state=seed
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ica.fit(projected[rows])
    stopped = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    for other in caught:
        if other not in stopped:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    found = ica.transform(projected)
    half = len(found) // 2
    return Sources(found[:half], found[half:], int(ica.n_iter_), not stopped)


def audit(
    pairs: Pairs,
    *,
    components: Sequence[int] = (32, 64),
    n_seeds: int = 3,
    max_iter: int = 2000,
    tol: float = 1e-4,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Judge members by how few components hold the difference between the sides of the pairs.

    Args:
        pairs: member name to the (n, d) embeddings of the left and of the right sides; rows are
            brought to unit length.
        components: numbers of components; the first ranks.
        n_seeds: runs for each number, with seeds `seed`, `seed` + 1, ...
        max_iter: iterations of FastICA at most.
        tol: tolerance of FastICA.
        seed: first seed; also of the shuffled pairs.
        progress: called with pairs done since the last call; sums to n times the members.

    Returns:
        One row a member; for every number C of components the means over seeds of ``giniC``,
        ``peakC`` (max/mean), ``variationC``, ``peaksC`` (size of the peak set) and
        ``giniC_shuffled``, the range of the Gini over seeds ``giniC_spread``, the most iterations
        ``n_iterC``, and ``convergedC``, True if all runs converged. `details` holds the
        differences of the first seed, largest first.

    Raises:
        InputError: embeddings that cannot be compared, too few pairs for the smallest number of
            components, or a member with too few dimensions.
    """
    n = check_pairs(pairs, min_texts=2)
    if not components or n_seeds < 1:
        raise InputError("give at least one number of components and one seed")
    used = [c for c in components if c < 2 * n]
    if not used:
        raise InputError(
            f"{n} pairs are too few for {min(components)} components: give more than "
            f"{min(components) // 2} pairs, better {_ROWS_A_COMPONENT * min(components) // 2}"
        )
    seeds = range(seed, seed + n_seeds)
    rows: list[dict[str, Any]] = []
    details: dict[str, dict[str, list[float]]] = {}
    for name, (left, right) in pairs.items():
        try:
            projected = principal(unit_rows(left), unit_rows(right), max(used))
        except InputError as error:
            raise InputError(f"member {name!r}: {error}") from error
        runs: dict[int, list[dict[str, Any]]] = {c: [] for c in used}
        for step, (c, s) in enumerate(product(used, seeds), start=1):
            runs[c].append(_run(projected, c, s, max_iter, tol))
            if progress:
                steps = len(used) * n_seeds
                progress(n * step // steps - n * (step - 1) // steps)
        row: dict[str, Any] = {"member": name}
        for c in used:
            row |= _summary(c, runs[c])
        details[name] = {str(c): runs[c][0]["differences"] for c in used}
        rows.append(row)
    return AuditReport(
        audit="ica",
        settings={
            "components": used,
            "seeds": list(seeds),
            "max_iter": max_iter,
            "tol": tol,
        },
        n_texts=n,
        rows=tuple(rows),
        rank_by=f"gini{used[0]}",
        findings=_findings(rows, used[0]),
        warnings=_warnings(pairs, rows, n, used, components, max_iter),
        details={"differences": details},
    )


def _run(
    projected: Float[np.ndarray, "r d"], c: int, seed: int, max_iter: int, tol: float
) -> dict[str, Any]:
    """One run of FastICA and everything that is read off it."""
    found = sources(projected, c, seed=seed, max_iter=max_iter, tol=tol)
    delta = differences(found.left, found.right)
    broken = np.random.default_rng(seed).permutation(len(found.right))
    return {
        "gini": gini(delta),
        "peak": peak(delta),
        "variation": variation(delta),
        "peaks": len(peak_set(delta)),
        "gini_shuffled": gini(differences(found.left, found.right[broken])),
        "n_iter": found.n_iter,
        "converged": found.converged,
        "differences": np.sort(delta)[::-1].tolist(),
    }


def _summary(c: int, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return float(np.mean([run[key] for run in runs]))

    ginis = [run["gini"] for run in runs]
    return {
        f"gini{c}": mean("gini"),
        f"gini{c}_spread": max(ginis) - min(ginis),
        f"gini{c}_shuffled": mean("gini_shuffled"),
        f"peak{c}": mean("peak"),
        f"variation{c}": mean("variation"),
        f"peaks{c}": mean("peaks"),
        f"n_iter{c}": max(run["n_iter"] for run in runs),
        f"converged{c}": all(run["converged"] for run in runs),
    }


def _findings(rows: Sequence[dict[str, Any]], c: int) -> tuple[str, ...]:
    ranked = sorted(rows, key=lambda row: -row[f"gini{c}"])
    listed = ", ".join(f"{row['member']} {row[f'gini{c}']:.2f}" for row in ranked)
    findings = [
        f"How much the difference between the two sides of a pair gathers in few of {c} components "
        f"(0 in all alike, {(c - 1) / c:.2f} in one): {listed}. The higher, the more of the rest "
        "is shared by both sides."
    ]
    for row in ranked:
        whole, broken = row[f"gini{c}"], row[f"gini{c}_shuffled"]
        if whole < _FLAT:
            findings.append(
                f"{row['member']}: the sides differ in all components alike, as texts do that have "
                "nothing to do with each other."
            )
        elif broken > _SIDE_SHARE * whole:
            findings.append(
                f"{row['member']}: with the pairs broken the figure is {broken:.2f} of "
                f"{whole:.2f}: most of the peak tells the sides apart (their language, a prompt "
                "before one of them), and says little about the pairs."
            )
    if len(ranked) > 1:
        first, second = ranked[:2]
        gap = first[f"gini{c}"] - second[f"gini{c}"]
        if gap < max(first[f"gini{c}_spread"], second[f"gini{c}_spread"]):
            findings.append(
                f"{first['member']} and {second['member']} differ by less than two runs of the "
                "same member do."
            )
    return tuple(findings)


def _warnings(
    pairs: Pairs,
    rows: Sequence[dict[str, Any]],
    n: int,
    used: Sequence[int],
    asked: Sequence[int],
    max_iter: int,
) -> tuple[str, ...]:
    found = []
    if len(used) < len(asked):
        left_out = ", ".join(str(c) for c in asked if c not in used)
        found.append(f"{n} pairs have too few rows for {left_out} components: left out.")
    thin = [c for c in used if 2 * n < _ROWS_A_COMPONENT * c]
    if thin:
        found.append(
            f"Only {2 * n} rows for {max(thin)} components: FastICA finds structure in noise below "
            f"{_ROWS_A_COMPONENT} a component; give {_ROWS_A_COMPONENT * max(thin) // 2} pairs."
        )
    for c in used:
        stopped = [row for row in rows if not row[f"converged{c}"]]
        if stopped:
            moved = ", ".join(f"{row['member']} ({row[f'gini{c}_spread']:.3f})" for row in stopped)
            found.append(
                f"FastICA with {c} components did not converge within {max_iter} iterations for "
                f"{moved}; in brackets, how far its Gini moves between seeds: believe it if "
                "that is small."
            )
    sides = [{name: both[i] for name, both in pairs.items()} for i in (0, 1)]
    found.extend(repeat_warnings(sides, ["left texts", "right texts"]))
    return tuple(found)
