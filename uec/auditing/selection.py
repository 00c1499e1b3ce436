"""Which members to keep: self-retrieval as an audit, and the set that earns its keep.

A piece is cut out of each text, and every member looks for it among what is left of all the texts:
the inverse cloze task (Lee et al. 2019, arXiv 1906.00300),

    similarity_ij = (piece_i - mean of the pieces / 2) . rest_j
    MRR           = mean_i 1 / rank of rest_i among the rests

Two things bring its ranking of members near that of labels (benchmarks/results). All candidates
are cut: a whole text has an advantage over a torn one, which differs by member. And of what all
pieces share half is taken off. Some of it says only that they are no questions: they lie near
whatever is as broken as they are. Some of it real questions would share too, above all with a
member that cannot read the language; without it such a member would look better than it is.

The MRR of the whole text by the piece as it stands is reported beside it. It shows who is unfit,
but does not rank: it is the higher the more a member goes by wording.

`choose` adds one member after the other, each time the one that raises the MRR of the fused score
most. Weights in a set are those of `uec.trust` with the odds of the MRR squared in place of the
product of two tasks' odds; those for one half of the pieces come from the other half. The p value
of an addition is that of a paired test, times the number of members tried for the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from uec.errors import InputError
from uec.fusion import SPREAD_FLOOR, correlation
from uec.records import AuditReport
from uec.selfretrieval import MIN_SPANS, log_odds, reciprocal_ranks
from uec.trust import SIGNIFICANCE, log_prior, paired_p_value

FIRST, DEEP = 1.0, 0.1
"""Reciprocal ranks of the first and of the tenth place."""

MISSES = 0.5
"""Share of pieces whose whole text is beyond the tenth place, above which a member is unfit."""


LEAN = 0.5
"""Share of the pieces' mean that is taken off. Chosen on twelve sets; from .3 to .7 all go about as
well with labels, none of it and all of it worse."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one member makes of m pieces.

    Attributes:
        spans: (m, d) the pieces as queries.
        rests: (m, d) the pieces' own texts without them.
    """

    spans: Float[np.ndarray, "m d"]
    rests: Float[np.ndarray, "m d"]


@dataclass(frozen=True, slots=True)
class Views:
    """m pieces among what is left of their texts, as k members see them.

    Attributes:
        similarity: (m, m, k) of every piece with every rest, its own on the diagonal; less the
            piece's mean and over its spread, so that members can be summed; float32.
        quotation: (m, k) reciprocal rank of each piece's whole text among the texts.
        n_texts: how many texts those are.
    """

    similarity: Float[np.ndarray, "m m k"]
    quotation: Float[np.ndarray, "m k"]
    n_texts: int

    def ranks(self, weights: Float[np.ndarray, "m k"]) -> Float[np.ndarray, " m"]:
        """Reciprocal ranks of each piece's rest by the members' weighted sum, (m,)."""
        fused = np.einsum("mpk,mk->mp", self.similarity, weights.astype(np.float32))
        return reciprocal_ranks(fused, np.arange(len(fused)))

    def by_member(self) -> Float[np.ndarray, "m k"]:
        """Reciprocal ranks by each member alone, (m, k)."""
        m, _, k = self.similarity.shape
        own = np.arange(m)
        alone = [reciprocal_ranks(self.similarity[..., i], own) for i in range(k)]
        return np.stack(alone, axis=1)


@dataclass(frozen=True, slots=True)
class Step:
    """One addition to the set.

    Attributes:
        member: who is added.
        mrr: mean reciprocal rank by the members so far together.
        gain: of it over the set before; 0 for the first.
        standard_error: of the gain, over spans.
        p_value: of the gain, corrected for the members tried; 1 for the first.
        weights: member to its weight in the set.
        worth: the first, or a gain that is significant.
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
    """Look for every piece with every member.

    Args:
        texts: member to its embeddings of the p texts.
        looked: member to its embeddings of the pieces; only these members take part.
        targets: (m,) row of each piece's own text.
    """
    m, k = len(targets), len(looked)
    similarity = np.empty((m, m, k), np.float32)
    quotation = np.empty((m, k))
    for i, (name, member) in enumerate(looked.items()):
        spans = member.spans - LEAN * member.spans.mean(axis=0)
        own = spans @ member.rests.T
        # Without a spread a member knows nothing of a piece: all rests tie.
        spread = np.maximum(own.std(axis=1, keepdims=True), SPREAD_FLOOR)
        similarity[..., i] = (own - own.mean(axis=1, keepdims=True)) / spread
        quotation[:, i] = reciprocal_ranks(spans @ texts[name].T, targets)
    return Views(similarity, quotation, len(next(iter(texts.values()))))


def audit(views: Views, names: Sequence[str], settings: Mapping[str, Any]) -> AuditReport:
    """Judge members by the pieces of the corpus that they find.

    Args:
        views: of m pieces by the members.
        names: of the members.
        settings: go into the report.

    Returns:
        One row a member: ``cloze_mrr``, which ranks, with its ``standard_error`` over pieces;
        ``first``, the share of pieces whose rest is ranked first; ``quotation_mrr``, and ``lost``,
        the share of pieces whose whole text is not among the first ten. `details` holds the
        ``leaders`` (members that the pieces cannot tell from the best one) and the ``correlation``
        of the members' similarities.

    Raises:
        InputError: fewer than `MIN_SPANS` pieces.
    """
    m = len(views.quotation)
    if m < MIN_SPANS:
        raise InputError(
            f"the corpus gives {m} spans to look for; expected at least {MIN_SPANS} texts of six "
            "words or more"
        )
    ranks = views.by_member()
    rows = tuple(
        {
            "member": name,
            "cloze_mrr": float(cloze.mean()),
            "standard_error": _error(cloze),
            "first": float(np.mean(cloze >= FIRST)),
            "quotation_mrr": float(quotation.mean()),
            "lost": float(np.mean(quotation < DEEP)),
        }
        for name, cloze, quotation in zip(names, ranks.T, views.quotation.T, strict=True)
    )
    leaders = _leaders(names, ranks)
    return AuditReport(
        audit="selfretrieval",
        settings={**settings, "n_spans": m, "n_pool": views.n_texts},
        n_texts=views.n_texts,
        rows=rows,
        rank_by="cloze_mrr",
        findings=_findings(rows, leaders, m),
        details={
            "members": list(names),
            "leaders": leaders,
            "correlation": correlation(views.similarity).tolist(),
        },
    )


def choose(views: Views, names: Sequence[str]) -> Choice:
    """Add members greedily by the mean reciprocal rank that their fused score earns.

    Args:
        views: of m pieces by k members.
        names: of the members.
    """
    alone, alike = views.by_member(), correlation(views.similarity)
    chosen: list[int] = []
    steps: list[Step] = []
    before = np.zeros(len(alone))
    while len(chosen) < len(names):
        left = [k for k in range(len(names)) if k not in chosen]
        if chosen:
            ranks = {k: _crossed(views, alone, alike, [*chosen, k]) for k in left}
        else:
            ranks = {k: alone[:, k] for k in left}
        best = max(left, key=lambda k: ranks[k].mean())
        is_first, after = not chosen, ranks[best]
        chosen.append(best)
        gains = np.zeros_like(after) if is_first else after - before
        p_value = min(1.0, paired_p_value(gains) * len(left))
        weights = _weights(alone, alike, chosen)
        steps.append(
            Step(
                names[best],
                float(after.mean()),
                float(gains.mean()),
                _error(gains),
                p_value,
                {names[k]: float(weight) for k, weight in zip(chosen, weights, strict=True)},
                is_first or bool(gains.mean() > 0 and p_value < SIGNIFICANCE),
            )
        )
        before = after
    n_kept = next((n for n, step in enumerate(steps) if not step.worth), len(steps))
    return Choice(tuple(steps), n_kept)


def _crossed(
    views: Views,
    alone: Float[np.ndarray, "m k"],
    alike: Float[np.ndarray, "k k"],
    subset: Sequence[int],
) -> Float[np.ndarray, " m"]:
    """Ranks by some members together, each half weighed by what the other half knows."""
    half = np.arange(len(alone)) % 2 == 0
    weights = np.zeros_like(alone)
    for part in (half, ~half):
        weights[np.ix_(part, subset)] = _weights(alone[~part], alike, subset)
    return views.ranks(weights)


def _weights(
    alone: Float[np.ndarray, "n k"], alike: Float[np.ndarray, "k k"], subset: Sequence[int]
) -> Float[np.ndarray, " s"]:
    """Weights of some members from their own ranks of some pieces and the correlation of all."""
    trust = 2 * log_odds(alone[:, subset])
    return np.asarray(np.exp(log_prior(trust, alike[np.ix_(subset, subset)])))


def _error(values: Float[np.ndarray, " m"]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _leaders(names: Sequence[str], ranks: Float[np.ndarray, "m k"]) -> list[str]:
    """The best member and those that the pieces cannot tell from it, best first."""
    order = sorted(range(len(names)), key=lambda k: -ranks[:, k].mean())
    best = ranks[:, order[0]]
    return [names[k] for k in order if paired_p_value(best - ranks[:, k]) >= SIGNIFICANCE]


def _findings(rows: Sequence[Mapping[str, Any]], leaders: Sequence[str], m: int) -> tuple[str, ...]:
    ranked: list[Mapping[str, Any]] = sorted(rows, key=lambda row: -row["cloze_mrr"])
    listed = ", ".join(f"{row['member']} {row['cloze_mrr']:.3f}" for row in ranked)
    found = [
        f"{m} pieces were cut out of the texts and looked for among what is left of them. Mean "
        f"reciprocal rank of the right one (1: always first): {listed}."
    ]
    if len(leaders) > 1:
        found.append(
            f"{', '.join(leaders[:-1])} and {leaders[-1]} search this corpus equally well, as far "
            "as these pieces can tell."
        )
    elif len(ranked) > 1:
        found.append(f"{leaders[0]} searches this corpus best.")
    found.extend(
        f"{row['member']} does not have the text among the first ten for {row['lost']:.0%} of the "
        "pieces taken from it word by word: alone it is not fit to search this corpus."
        for row in ranked
        if row["lost"] > MISSES
    )
    return tuple(found)
