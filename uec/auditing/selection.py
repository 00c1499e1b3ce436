"""Which members to keep: self-retrieval as an audit, and the set that earns its keep.

Pieces of the corpus are looked for with every member, as `uec.calibrating` does on an index, but
from plain embeddings: no posterior, no index. What a member, or a set of them by its fused score,
makes of both tasks is one number between 0 and 1,

    trust = logistic( (log odds MRR(quotation) + log odds MRR(cloze)) / 2 )

the trust of `uec.trust` with its root taken, and for the same reason: the mean of both ranks would
prefer a member that is poor at one task over one that is good at both. `choose` adds one member
after the other, each time the one that raises the trust most:

    chosen_0 = argmax_k trust(k),   chosen_t = argmax_k trust(chosen_<t + k)

Members that match words one by one count as no better at a task than the best member that reads
(`uec.trust.capped`), and their addition to a set cannot raise the trust by quotations.

Fused rankings are cross-fitted: the weights of one half of the pieces come from the other half. The
p value of an addition is that of a paired test, times the number of members tried for the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit

from uec.errors import InputError
from uec.records import AuditReport
from uec.selfretrieval import MIN_SPANS, log_odds, reciprocal_ranks
from uec.trust import SIGNIFICANCE, TASKS, Views, capped, log_prior, log_trust, paired_p_value

FIRST, DEEP = 1.0, 0.1
"""Reciprocal ranks of the first and of the tenth place."""

MISSES = 0.5
"""Share of pieces beyond the tenth place above which a member is called unfit."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one member makes of m spans.

    Attributes:
        spans: (m, d) the spans as queries.
        rests: (m, d) the spans' own texts without them.
        wording: whether the member matches words one by one.
    """

    spans: Float[np.ndarray, "m d"]
    rests: Float[np.ndarray, "m d"]
    wording: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One addition to the set.

    Attributes:
        member: who is added.
        trust: of the members so far together.
        gain: of trust over the set before; 0 for the first.
        standard_error: of the gain, over spans.
        p_value: of the gain, corrected for the members tried; 1 for the first.
        mrr: mean reciprocal rank with the members so far, mean of both tasks.
        weights: member to its weight in the set.
        worth: the first, or a gain that is significant.
    """

    member: str
    trust: float
    gain: float
    standard_error: float
    p_value: float
    mrr: float
    weights: Mapping[str, float]
    worth: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The whole order of additions, and how many of them to keep.

    Attributes:
        steps: one a member, in the order of addition.
        n_kept: members of the recommended set: all before the first addition that is not worth it.
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
    return Views(
        mean,
        none,
        own,
        dict.fromkeys(TASKS, still),
        targets,
        np.ones(shape[::2]),
        wording=np.array([member.wording for member in looked.values()]),
    )


def audit(views: Views, names: Sequence[str], settings: Mapping[str, Any]) -> AuditReport:
    """Judge members by the pieces of the corpus that they find.

    Args:
        views: of m spans by the members.
        names: of the members.
        settings: go into the report.

    Returns:
        One row a member: ``trust`` with its ``standard_error`` over spans, ``quotation_mrr`` and
        ``cloze_mrr``, ``first`` (share ranked first) and ``lost`` (share not among the first ten),
        both means of the tasks. `details` holds the ``leaders`` (members that the spans cannot tell
        from the best one) and the ``correlation`` of the members' similarities.

    Raises:
        InputError: fewer than `MIN_SPANS` spans.
    """
    m, p, k = views.mean.shape
    if m < MIN_SPANS:
        raise InputError(
            f"the corpus gives {m} spans to look for; expected at least {MIN_SPANS} texts of six "
            "words or more"
        )
    by_task = {task: views.by_member(task) for task in TASKS}
    ranks = [{task: own[:, i] for task, own in by_task.items()} for i in range(k)]
    fair = capped(by_task, views.wording)
    shares = [evidence({task: own[:, i] for task, own in fair.items()}) for i in range(k)]
    rows = tuple(
        {
            "member": name,
            "trust": float(expit(share.mean())),
            "standard_error": _in_trust(share, share),
            **{f"{task}_mrr": float(own[task].mean()) for task in TASKS},
            "first": float(np.mean([own[task] >= FIRST for task in TASKS])),
            "lost": float(np.mean([own[task] < DEEP for task in TASKS])),
        }
        for name, own, share in zip(names, ranks, shares, strict=True)
    )
    leaders = _leaders(rows, shares)
    changed = np.any([(fair[task] != by_task[task]).any(axis=0) for task in TASKS], axis=0)
    return AuditReport(
        audit="selfretrieval",
        settings={**settings, "n_spans": m, "n_pool": p},
        n_texts=p,
        rows=rows,
        rank_by="trust",
        findings=_findings(rows, leaders, np.array(names)[changed], m, p),
        details={
            "members": list(names),
            "leaders": leaders,
            "correlation": views.correlation().tolist(),
        },
    )


def evidence(ranks: Mapping[str, Float[np.ndarray, " m"]]) -> Float[np.ndarray, " m"]:
    """Each span's share in the log-odds of trust, (m,).

    Their mean is those log-odds. Their spread is its error, to first order, since
    ``d log odds(x) / dx = 1 / (x (1 - x))``; differences between members are paired by span.

    Args:
        ranks: task to reciprocal ranks.
    """
    total = np.zeros(len(next(iter(ranks.values()))))
    for own in ranks.values():
        centre = expit(log_odds(own[:, None])[0])
        total += np.log(centre / (1 - centre)) + (own - own.mean()) / (centre * (1 - centre))
    return total / len(ranks)


def choose(views: Views, names: Sequence[str]) -> Choice:
    """Add members greedily by the trust that their fused score earns.

    Args:
        views: of m spans by k members.
        names: of the members.
    """
    by_task = capped({task: views.by_member(task) for task in TASKS}, views.wording)
    correlation = views.correlation()
    chosen: list[int] = []
    steps: list[Step] = []
    before = quotations = np.zeros(len(views.targets))
    while len(chosen) < len(names):
        left = [k for k in range(len(names)) if k not in chosen]
        if not chosen:
            ranks = {k: {task: own[:, k] for task, own in by_task.items()} for k in left}
        else:
            ranks = {k: _crossed(views, by_task, correlation, [*chosen, k]) for k in left}
            for k, own in ranks.items():
                matches = views.wording is not None and views.wording[k]
                if matches and own["quotation"].mean() > quotations.mean():
                    own["quotation"] = quotations
        shares = {k: evidence(own) for k, own in ranks.items()}
        best = max(left, key=lambda k: shares[k].mean())
        is_first, after = not chosen, shares[best]
        chosen.append(best)
        gains = np.zeros_like(after) if is_first else after - before
        p_value = min(1.0, paired_p_value(gains) * len(left))
        steps.append(
            Step(
                names[best],
                float(expit(after.mean())),
                0.0 if is_first else float(expit(after.mean()) - expit(before.mean())),
                _in_trust(gains, after),
                p_value,
                float(np.mean(list(ranks[best].values()))),
                _weights(by_task, correlation, chosen, names),
                is_first or bool(gains.mean() > 0 and p_value < SIGNIFICANCE),
            )
        )
        before, quotations = after, ranks[best]["quotation"]
    n_kept = next((n for n, step in enumerate(steps) if not step.worth), len(steps))
    return Choice(tuple(steps), n_kept)


def _crossed(
    views: Views,
    by_task: Mapping[str, Float[np.ndarray, "m k"]],
    correlation: Float[np.ndarray, "k k"],
    subset: Sequence[int],
) -> dict[str, Float[np.ndarray, " m"]]:
    """Ranks by some members together, each half weighed by what the other half knows."""
    half = np.arange(len(views.targets)) % 2 == 0
    weights = np.zeros_like(views.traces)
    for part in (half, ~half):
        seen = {task: own[~part][:, subset] for task, own in by_task.items()}
        prior = log_prior(log_trust(seen), correlation[np.ix_(subset, subset)])
        weights[np.ix_(part, subset)] = np.exp(prior)
    return {task: reciprocal_ranks(views.scores(task, weights), views.targets) for task in TASKS}


def _weights(
    by_task: Mapping[str, Float[np.ndarray, "m k"]],
    correlation: Float[np.ndarray, "k k"],
    subset: Sequence[int],
    names: Sequence[str],
) -> dict[str, float]:
    seen = {task: own[:, subset] for task, own in by_task.items()}
    prior = log_prior(log_trust(seen), correlation[np.ix_(subset, subset)])
    return {names[k]: float(np.exp(log)) for k, log in zip(subset, prior, strict=True)}


def _in_trust(shares: Float[np.ndarray, " m"], at: Float[np.ndarray, " m"]) -> float:
    """Standard error of the mean of shares, in units of trust near the mean of `at`."""
    trust = expit(at.mean())
    return float(shares.std(ddof=1) / np.sqrt(len(shares)) * trust * (1 - trust))


def _leaders(
    rows: Sequence[Mapping[str, Any]], shares: Sequence[Float[np.ndarray, " m"]]
) -> list[str]:
    """The best member and those that the spans cannot tell from it, best first."""
    order = sorted(range(len(rows)), key=lambda k: -rows[k]["trust"])
    best = shares[order[0]]
    equal = [k for k in order if paired_p_value(best - shares[k]) >= SIGNIFICANCE]
    return [rows[k]["member"] for k in equal]


def _findings(
    rows: Sequence[Mapping[str, Any]],
    leaders: Sequence[str],
    matchers: Iterable[str],
    m: int,
    p: int,
) -> tuple[str, ...]:
    ranked: list[Mapping[str, Any]] = sorted(rows, key=lambda row: -row["trust"])
    listed = "; ".join(
        f"{row['member']} {row['quotation_mrr']:.2f} and {row['cloze_mrr']:.2f}" for row in ranked
    )
    found = [
        f"{m} pieces of the corpus were looked for among {p} texts. Mean reciprocal rank of the "
        f"text that holds the piece, and of that text with the piece cut out: {listed}."
    ]
    if len(ranked) > 1:
        trusts = ", ".join(f"{row['member']} {row['trust']:.2f}" for row in ranked)
        said = f"{leaders[0]} searches this corpus best"
        if len(leaders) > 1:
            said = (
                f"{', '.join(leaders[:-1])} and {leaders[-1]} search this corpus equally well, as "
                "far as these pieces can tell"
            )
        found.append(f"{said}; both figures as one, trust from 0 to 1: {trusts}.")
    found.extend(
        f"{name} matches words one by one: where it finds more than the best member that reads, "
        "it counts as that one's equal."
        for name in matchers
    )
    found.extend(
        f"{row['member']} misses the first ten for {row['lost']:.0%} of the pieces: alone it is "
        "not fit to search this corpus."
        for row in ranked
        if row["lost"] > MISSES
    )
    return tuple(found)
