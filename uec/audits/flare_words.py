"""The FLARE audit in words: findings for a reader who knows none of the measures, and warnings.

Arrays and rows in, sentences out; `flare` computes what is said here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from uec.audits.inputs import few_texts

# Above this many nats a component (98 % of the variance) one vector all but fixes the other.
NEAR_IDENTICAL = 2.0
# A score that grows by more than this share from half the texts to all has not settled.
SETTLED = 0.05


def findings(
    rows: Sequence[Mapping[str, Any]],
    normalisation: str,
    nats: Mapping[str, Float[np.ndarray, "seeds targets members"]],
    entropies: Mapping[str, Float[np.ndarray, "seeds targets"]],
    learning: Float[np.ndarray, "shares members"],
    order_holds: bool,
) -> tuple[str, ...]:
    """What the figures mean.

    Args:
        rows: the report's rows.
        normalisation: that ranks them.
        nats: estimator to I_s in nats, NaN where target and member are the same.
        entropies: estimator to H(V) in nats, NaN for a target that nobody is judged against.
        learning: scores in nats a component from growing shares of the texts; the last is all.
        order_holds: whether half of the texts rank the members alike.
    """
    best_first = sorted(rows, key=lambda row: -row["flare"])
    return (
        _standing(best_first) if normalisation == "column" else _ranking(best_first),
        *_ties(best_first),
        _against_ridge(best_first, nats, entropies),
        *_settling(learning, order_holds),
        _intrinsic(rows),
    )


def _ranking(best_first: Sequence[Mapping[str, Any]]) -> str:
    best, worst = best_first[0], best_first[-1]
    if best["flare_dimension"] <= 0:
        return "No member says anything measurable about the references on these texts."
    said = (
        f"Knowing {best['member']}'s vector of a text takes {best['flare_dimension']:.2f} nats a "
        "component off the uncertainty about the references' vectors"
    )
    if worst is best:
        return said + "."
    return f"{said}; {worst['member']}, the least, takes {worst['flare_dimension']:.2f}."


def _standing(best_first: Sequence[Mapping[str, Any]]) -> str:
    best, worst = best_first[0], best_first[-1]
    listed = ", ".join(f"{row['member']} {row['flare_dimension']:.2f}" for row in best_first)
    return (
        f"{best['member']} says most about the references' vectors and {worst['member']} least: "
        f"{best['flare']:+.1f} and {worst['flare']:+.1f} standard deviations from what the members "
        f"say about the same reference. In nats a component of a reference's vector: {listed}."
    )


def _ties(best_first: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{upper['member']} and {lower['member']} differ by less than the spread between seeds: "
        "take them as equal."
        for upper, lower in pairwise(best_first)
        if upper["flare"] - lower["flare"] < max(upper["flare_spread"], lower["flare_spread"])
    ]


def _against_ridge(
    best_first: Sequence[Mapping[str, Any]],
    nats: Mapping[str, Float[np.ndarray, "seeds targets members"]],
    entropies: Mapping[str, Float[np.ndarray, "seeds targets"]],
) -> str:
    flow, linear = (
        (nats[name] - entropies[name][..., None]).mean(axis=0) for name in ("flare", "ridge")
    )
    asked = ~np.isnan(flow)
    higher = int((flow[asked] > linear[asked]).sum())
    excess = float(np.nanmean(entropies["ridge"] - entropies["flare"]))
    ridges = [row["ridge"] for row in best_first]
    order = "the same order" if ridges == sorted(ridges, reverse=True) else "another order"
    inflated = (
        f"; without one it is worse by {excess:.1f} nats a target, by which its figures of the "
        "information are too high"
        if excess > 0
        else ""
    )
    return (
        f"Given another member's vector, the flow predicts a target better than a linear Gaussian "
        f"model on {higher} of {asked.sum()} pairs. That model puts the members in {order}"
        f"{inflated}."
    )


def _settling(learning: Float[np.ndarray, "shares members"], order_holds: bool) -> list[str]:
    half, full = learning[-2], learning[-1]
    if np.median(full) <= 0:
        return []
    growth = float(np.median(full - half) / np.median(full))
    size = (
        f"from half of the texts to all the scores grow by {100 * growth:.0f} %: "
        "more texts would raise them further"
        if growth > SETTLED
        else "the scores have settled: half of the texts give nearly the same"
    )
    order = "does not change" if order_holds else "changes with their number: do not rely on it"
    return [f"As texts are added, {size}; the order of the members {order}."]


def _intrinsic(rows: Sequence[Mapping[str, Any]]) -> str:
    spans = ", ".join(
        f"{row['member']} {row['two_nn']:.0f} of {row['dimension']}"
        for row in sorted(rows, key=lambda row: row["two_nn"])
    )
    return (
        f"Intrinsic dimensions (TwoNN): {spans}; the error of FLARE grows with these, "
        "not with the length of the vectors."
    )


def warnings(
    *,
    members: Sequence[str],
    targets: Sequence[str],
    nats: Float[np.ndarray, "targets members"],
    n_dims: Sequence[int],
    n_texts: int,
    n_repeated: int,
    components: tuple[int | None, int | None],
) -> tuple[str, ...]:
    """What limits the figures.

    Args:
        members: names of the columns of `nats`.
        targets: names of its rows.
        nats: the larger of the flow's and the linear estimate of I_s, NaN on a member itself.
        n_dims: dimensions of each target.
        n_texts: distinct texts.
        n_repeated: repeated texts that were left out.
        components: wanted and used.
    """
    found = list(few_texts(n_texts))
    if n_repeated:
        found.append(f"{n_repeated} texts repeat an earlier one and were left out.")
    wanted, used = components
    if used != wanted:
        found.append(
            f"{used} components are kept of each target instead of {wanted}: the smallest member "
            "or the number of texts allows no more."
        )
    n_others = (~np.isnan(nats)).sum(axis=0).min()
    if n_others < 3:
        found.append(
            f"Some member is judged against {n_others} other(s) only, and no two members against "
            "the same ones; give more members or a pool of references."
            if set(members) <= set(targets)
            else f"Members are judged against {n_others} reference(s) only."
        )
    for i, j in zip(*np.nonzero(nats / np.asarray(n_dims)[:, None] > NEAR_IDENTICAL), strict=True):
        found.append(
            f"{members[j]} all but fixes {targets[i]}: near-identical models lift each other's "
            "scores; leave one of them out of the references."
        )
    return tuple(found)
