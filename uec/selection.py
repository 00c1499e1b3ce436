"""Which members to keep: self-retrieval as an audit, and the set that earns its keep.

Pieces of the corpus are looked for with every member, as `uec.calibrating` does on an index, but
from plain embeddings: no posterior, no index. `audit` reports each member alone. `choose` adds one
member after the other, each time the one whose fused ranking finds the pieces best, and says what
each addition gained:

    chosen_0 = argmax_k MRR(k),   chosen_t = argmax_k MRR(chosen_<t + k)

Fused rankings are cross-fitted: the weights of one half of the pieces come from the other half. The
p value of an addition is that of a paired test, times the number of members tried for the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import ttest_1samp

from uec.errors import InputError
from uec.records import AuditReport
from uec.trust import TASKS, Views, log_prior

MIN_SPANS = 30
"""Fewer rank nothing."""
SIGNIFICANCE = 0.05
FIRST, DEEP = 1.0, 0.1
"""Reciprocal ranks of the first and of the tenth place."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one member makes of m spans and of the p texts that they are looked for in.

    Attributes:
        spans: (m, d) the spans as queries.
        rests: (m, d) the spans' own texts without them.
    """

    spans: Float[np.ndarray, "m d"]
    rests: Float[np.ndarray, "m d"]


@dataclass(frozen=True, slots=True)
class Step:
    """One addition to the set.

    Attributes:
        member: who is added.
        mrr: mean reciprocal rank of the spans with the members so far.
        gain: over the set before; for the first, over the runner-up alone (0 without one).
        standard_error: of the gain, over spans.
        p_value: of the gain, corrected for the members tried.
        weights: member to its weight in the set.
        worth: a gain that is significant.
    """

    member: str
    mrr: float
    gain: float
    standard_error: float
    p_value: float
    weights: Mapping[str, float]
    worth: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The whole order of additions, and how many of them to keep.

    Attributes:
        steps: one a member, in the order of addition.
        n_kept: members of the recommended set: the first, and all up to the first addition that
            gained nothing measurable.
    """

    steps: tuple[Step, ...]
    n_kept: int

    @property
    def members(self) -> tuple[str, ...]:
        """The recommended set."""
        return tuple(step.member for step in self.steps[: self.n_kept])


def view(
    texts: Mapping[str, Float[np.ndarray, "p _"]],
    looked: Mapping[str, Looked],
    targets: Int[np.ndarray, " m"],
) -> Views:
    """Standardised similarities of every span with every text, by every member.

    Args:
        texts: member to its embeddings of the p texts.
        looked: member to its embeddings of the spans; only these members take part.
        targets: (m,) row of each span's own text.

    Returns:
        Views without variance: weights that follow traces need posteriors, which an audit has not.
    """
    shape = (len(targets), len(next(iter(texts.values()))), len(looked))
    mean = np.empty(shape, np.float32)
    own = {task: np.empty(shape[::2], np.float32) for task in TASKS}
    rows = np.arange(len(targets))
    for k, (name, member) in enumerate(looked.items()):
        similarity = member.spans @ texts[name].T
        centre, spread = similarity.mean(axis=1), similarity.std(axis=1)
        mean[..., k] = (similarity - centre[:, None]) / spread[:, None]
        rest = np.einsum("md,md->m", member.spans, member.rests)
        own["quotation"][:, k] = mean[rows, targets, k]
        own["cloze"][:, k] = (rest - centre) / spread
    still = np.zeros(shape[::2], np.float32)
    none = np.broadcast_to(np.zeros(1, np.float32), shape)
    return Views(mean, none, own, dict.fromkeys(TASKS, still), targets, np.ones(shape[::2]))


def audit(views: Views, names: Sequence[str], settings: Mapping[str, Any]) -> AuditReport:
    """Judge members by the pieces of the corpus that they find.

    Args:
        views: of m spans by the members.
        names: of the members.
        settings: go into the report.

    Returns:
        One row a member: ``mrr`` (mean of both tasks) with its ``standard_error`` over spans,
        ``quotation_mrr``, ``cloze_mrr``, ``first`` (share ranked first) and ``lost`` (share not
        among the first ten), both means of the tasks. `details` holds the ``correlation`` of the
        members' similarities.

    Raises:
        InputError: fewer than `MIN_SPANS` spans.
    """
    m, p, _ = views.mean.shape
    if m < MIN_SPANS:
        raise InputError(
            f"the corpus gives {m} spans to look for; expected at least {MIN_SPANS} texts of six "
            "words or more"
        )
    ranks = {task: views.by_member(task) for task in TASKS}
    both = np.mean([ranks[task] for task in TASKS], axis=0)
    rows = tuple(
        {
            "member": name,
            "mrr": float(both[:, k].mean()),
            "standard_error": _error(both[:, k]),
            **{f"{task}_mrr": float(ranks[task][:, k].mean()) for task in TASKS},
            "first": float(np.mean([ranks[task][:, k] >= FIRST for task in TASKS])),
            "lost": float(np.mean([ranks[task][:, k] < DEEP for task in TASKS])),
        }
        for k, name in enumerate(names)
    )
    return AuditReport(
        audit="selfretrieval",
        settings={**settings, "n_spans": m, "n_pool": p},
        n_texts=p,
        rows=rows,
        rank_by="mrr",
        findings=_findings(rows, both, m, p),
        details={"members": list(names), "correlation": views.correlation().tolist()},
    )


def choose(views: Views, names: Sequence[str]) -> Choice:
    """Add members greedily by the reciprocal ranks of their fused score.

    Args:
        views: of m spans by k members.
        names: of the members.
    """
    ranks = {task: views.by_member(task) for task in TASKS}
    correlation = views.correlation()

    def together(subset: Sequence[int]) -> np.ndarray:
        return _crossed(views, ranks, correlation, subset)

    chosen: list[int] = []
    steps: list[Step] = []
    current = np.zeros(len(views.targets))
    while len(chosen) < len(names):
        tried = {k: together([*chosen, k]) for k in range(len(names)) if k not in chosen}
        order = sorted(tried, key=lambda k: -tried[k].mean())
        best = order[0]
        # The first member is compared with the runner-up: with nothing, everything is a gain.
        before = (tried[order[1]] if len(order) > 1 else tried[best]) if not chosen else current
        gains = tried[best] - before
        chosen.append(best)
        current = tried[best]
        p_value = min(1.0, _p_value(gains) * len(tried))
        steps.append(
            Step(
                names[best],
                float(current.mean()),
                float(gains.mean()),
                _error(gains),
                p_value,
                _weights(ranks, correlation, chosen, names),
                bool(gains.mean() > 0 and p_value < SIGNIFICANCE),
            )
        )
    n_kept = next((n for n in range(1, len(steps)) if not steps[n].worth), len(steps))
    return Choice(tuple(steps), n_kept)


def _crossed(
    views: Views,
    ranks: Mapping[str, Float[np.ndarray, "m k"]],
    correlation: Float[np.ndarray, "k k"],
    subset: Sequence[int],
) -> Float[np.ndarray, " m"]:
    """Reciprocal ranks by some members together, each half weighed by what the other half knows."""
    half = np.arange(len(views.targets)) % 2 == 0
    weights = np.zeros_like(views.traces)
    for part in (half, ~half):
        seen = {task: own[~part][:, subset] for task, own in ranks.items()}
        prior = log_prior(seen, correlation[np.ix_(subset, subset)])
        weights[np.ix_(part, subset)] = np.exp(prior)
    return views.together(weights)


def _weights(
    ranks: Mapping[str, Float[np.ndarray, "m k"]],
    correlation: Float[np.ndarray, "k k"],
    subset: Sequence[int],
    names: Sequence[str],
) -> dict[str, float]:
    seen = {task: own[:, subset] for task, own in ranks.items()}
    prior = log_prior(seen, correlation[np.ix_(subset, subset)])
    return {names[k]: float(np.exp(log)) for k, log in zip(subset, prior, strict=True)}


def _error(values: Float[np.ndarray, " m"]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _p_value(gains: Float[np.ndarray, " m"]) -> float:
    """Two-sided paired t test; 1 where nothing differs."""
    return float(ttest_1samp(gains, 0.0).pvalue) if gains.any() else 1.0


def _findings(
    rows: Sequence[Mapping[str, Any]], both: Float[np.ndarray, "m k"], m: int, p: int
) -> tuple[str, ...]:
    order = sorted(range(len(rows)), key=lambda k: -rows[k]["mrr"])
    listed = ", ".join(f"{rows[k]['member']} {rows[k]['first']:.0%}" for k in order)
    found = [
        f"Of {m} pieces of the corpus looked for among {p} texts, the share whose own text comes "
        f"first: {listed}."
    ]
    if len(order) > 1:
        first, second = order[:2]
        a, b = rows[first], rows[second]
        if _p_value(both[:, first] - both[:, second]) < SIGNIFICANCE:
            found.append(
                f"{a['member']} searches this corpus best: mean reciprocal rank {a['mrr']:.3f}, "
                f"{b['member']} {b['mrr']:.3f}."
            )
        else:
            found.append(
                f"{a['member']} ({a['mrr']:.3f}) and {b['member']} ({b['mrr']:.3f}) search this "
                "corpus equally well, as far as these pieces can tell."
            )
    found.extend(
        f"{row['member']} misses the first ten for {row['lost']:.0%} of the pieces: alone it is "
        "not fit to search this corpus."
        for row in (rows[k] for k in order)
        if row["lost"] > 0.5
    )
    return tuple(found)
