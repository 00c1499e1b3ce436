"""How far each member can be trusted on a corpus, from what it made of pieces of that corpus.

Trust and prior of the k members are

    trust_k ∝ odds MRR_k(quotation) · odds MRR_k(cloze)
    prior   ∝ (R + I)^-1 trust,  negative entries cut to zero

The tasks are those of `uec.selfretrieval`: two tests of one member, so their odds multiply. Neither
alone will do: quotation prefers an encoder that matches the wording of a language that it cannot
read, cloze one that knows topics but not what was said. R is the correlation of the members'
similarities over the corpus. Solving with it keeps two members that say the same from being
counted twice, as in Fisher's discriminant; the identity, of the size of R's own diagonal, stands
for what each member has to itself.

A member that matches words one by one, the lexical one or a static table of embeddings, finds
quotations by their wording, and the rest of a text by the words it repeats, which flatters it: in
neither task does it get better odds than the best encoder that reads. With a lexical member gains
are measured by the cloze alone. Its scores over a corpus are skewed, so that a standard deviation
is a small unit for them: its weight is divided by how much higher its mean peak is than the
encoders'.

Evidence for a member and a query (`uec.weighing`) is how many deviations its peak is above the mean
peak of all spans in both tasks. It joins the log prior as it is: spans are text of the corpus and
cannot teach what to do with a query that is not.

Temperature, beta and the expected gain come from cross-fitting: the spans are halved and each half
is ranked with the prior of the other. A finite temperature, or a beta above zero, is used only
where it makes those ranks significantly better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp, softmax
from scipy.stats import rankdata, ttest_1samp

from uec.abstention import Abstention
from uec.calibration import Calibration, PeakScale
from uec.fusion import correlation
from uec.relevance import DEPTH, RelevanceModel
from uec.selfretrieval import log_odds, reciprocal_ranks
from uec.similarity import probit
from uec.weights import member_weights

SPANS_WORTH = 30
"""Judged queries that all spans together count as: with fewer, five unlucky queries can undo what
the spans know."""

TEMPERATURES = (8.0, 4.0, 2.0, 1.0, 0.5)
"""Tried against infinity, which weighs by the prior alone."""

BETAS = (0.1, 0.3, 1.0)
"""Tried against zero, which ranks by the mean alone: from the released code's to the paper's."""

SIGNIFICANCE = 0.05
"""Of the paired test that a finite temperature or a beta must pass, divided by the values tried."""

FAILED = 0.1
"""Reciprocal rank below which a member failed on a span: its document is not among the best ten."""

Task = str
TASKS: tuple[Task, ...] = ("quotation", "cloze")


@dataclass(frozen=True, slots=True)
class Views:
    """m spans among p documents, as k members see them.

    Similarities are standardised: less their mean over the corpus, over their spread.

    Attributes:
        mean: (m, p, k) similarity of every span with every document; float32.
        variance: (m, p, k) its variance; float32.
        own_mean: task to (m, k), the similarity with the span's own document: whole for
            "quotation", without the span for "cloze".
        own_variance: task to (m, k), its variance.
        targets: (m,) the column of each span's own document.
        traces: (m, k) calibrated traces of the spans as queries.
        lexical: whether the last member is the lexical one, which has no variance.
        wording: (k,) the members that match words one by one; None for none.
    """

    mean: Float[np.ndarray, "m p k"]
    variance: Float[np.ndarray, "m p k"]
    own_mean: Mapping[Task, Float[np.ndarray, "m k"]]
    own_variance: Mapping[Task, Float[np.ndarray, "m k"]]
    targets: Int[np.ndarray, " m"]
    traces: Float[np.ndarray, "m k"]
    lexical: bool = False
    wording: Bool[np.ndarray, " k"] | None = None

    @property
    def fair_tasks(self) -> tuple[Task, ...]:
        """Those that no member solves by its nature."""
        return TASKS[1:] if self.lexical else TASKS

    def scores(
        self, task: Task, weights: Float[np.ndarray, "m k"], beta: float = 0.0
    ) -> Float[np.ndarray, "m p"]:
        """Fused scores of every span with every document, its own as the task has it; (m, p)."""
        weights = weights.astype(np.float32)
        fused = np.einsum("mpk,mk->mp", self.mean, weights)
        own = np.einsum("mk,mk->m", self.own_mean[task], weights)
        if beta > 0:
            squared = weights**2
            fused = probit(fused, np.einsum("mpk,mk->mp", self.variance, squared), beta)
            own = probit(own, np.einsum("mk,mk->m", self.own_variance[task], squared), beta)
        fused[np.arange(len(own)), self.targets] = own
        return np.asarray(fused)

    def by_member(self, task: Task) -> Float[np.ndarray, "m k"]:
        """Reciprocal ranks of each member alone, (m, k)."""
        alone = np.tile(np.eye(self.mean.shape[-1])[:, None], (1, len(self.targets), 1))
        ranks = [reciprocal_ranks(self.scores(task, one), self.targets) for one in alone]
        return np.stack(ranks, axis=1)

    def peaks(self, task: Task) -> Float[np.ndarray, "m k"]:
        """Largest similarity of each member, with the own document as the task has it; (m, k)."""
        others = self.mean.copy()
        others[np.arange(len(self.targets)), self.targets] = -np.inf
        highest = np.maximum(others.max(axis=1), self.own_mean[task])
        return np.asarray(highest, dtype=np.float64)

    def together(
        self, weights: Mapping[Task, Float[np.ndarray, "m k"]], beta: float = 0.0
    ) -> Float[np.ndarray, " m"]:
        """Reciprocal ranks by the fused score, mean of the fair tasks, (m,)."""
        scores = [self.scores(task, weights[task], beta) for task in self.fair_tasks]
        return np.asarray(np.mean([reciprocal_ranks(own, self.targets) for own in scores], axis=0))


def learn(
    views: Views,
    names: Sequence[str],
    settings: Mapping[str, Any],
    labelled: Float[np.ndarray, "q k"] | None = None,
    trust: Float[np.ndarray, " k"] | None = None,
) -> Calibration:
    """Prior, temperature, beta and report from what the members made of the spans.

    Args:
        views: of m spans by k members.
        names: of the members.
        settings: go into the report.
        labelled: each member's reciprocal ranks of q judged queries, if there are any.
        trust: log trust of the members from elsewhere, for the prior in place of the spans'.
    """
    ranks = {task: views.by_member(task) for task in TASKS}
    alike = correlation(views.mean)
    half = np.arange(len(views.targets)) % 2 == 0
    peaks = {task: views.peaks(task) for task in TASKS}
    scale = PeakScale.measure(np.concatenate(list(peaks.values())))
    evidence = {task: scale.evidence(own) for task, own in peaks.items()}

    def prior_of(part: np.ndarray, n_members: int = len(names)) -> np.ndarray:
        seen = {task: own[part] for task, own in ranks.items()}
        known = log_trust(seen, views.wording, labelled) if trust is None else trust
        prior = np.full(len(names), -np.inf)
        prior[:n_members] = log_prior(known[:n_members], alike[:n_members, :n_members])
        if views.lexical:
            prior[-1] -= np.log(scale.mean[-1] / scale.mean[:-1].mean())
            prior -= logsumexp(prior)
        return prior

    def together(
        temperature: float, beta: float, n_members: int = len(names), peaks: bool = True
    ) -> np.ndarray:
        weights = {task: np.empty_like(views.traces) for task in TASKS}
        for part in (half, ~half):
            prior = prior_of(~part, n_members)
            for task, own in weights.items():
                known = evidence[task][part] if peaks else None
                own[part] = member_weights(views.traces[part], prior, temperature, known)
        return views.together(weights, beta)

    temperature, temperatures = _choose(lambda value: together(value, 0.0), np.inf, TEMPERATURES)
    beta, betas = _choose(lambda value: together(temperature, value), 0.0, BETAS)
    prior = prior_of(np.full(len(half), True))
    alone = np.mean([ranks[task] for task in views.fair_tasks], axis=0)
    best = int(np.argmax(log_trust(ranks, views.wording)))
    fused = together(temperature, beta)
    gain = fused - alone[:, best]
    report = {
        **settings,
        "members": {
            name: {
                "weight": float(np.exp(prior[k])),
                **{f"{task}_mrr": float(ranks[task][:, k].mean()) for task in TASKS},
                "trace_auroc": _auroc(ranks["cloze"][:, k] < FAILED, views.traces[:, k]),
            }
            for k, name in enumerate(names)
        },
        "n_labelled": 0 if labelled is None else len(labelled),
        "temperatures": temperatures,
        "betas": betas,
        "best_member": names[best],
        "best_member_mrr": float(alone[:, best].mean()),
        "ensemble_mrr": float(fused.mean()),
        "p_value": paired_p_value(gain),
        "peaks": _gain(fused - together(temperature, beta, peaks=False)),
    }
    if views.lexical:
        without = together(temperature, beta, len(names) - 1)
        report["lexical"] = {
            "mrr_without": float(without.mean()),
            "p_value": paired_p_value(fused - without),
        }
    scores = [
        views.scores(task, member_weights(views.traces, prior, temperature, known), beta)
        for task, known in evidence.items()
    ]
    relevance, abstention = _relevance(scores, views.targets)
    return Calibration(prior, temperature, beta, scale, relevance, abstention, report)


def _relevance(
    scores: Sequence[Float[np.ndarray, "m p"]], targets: Int[np.ndarray, " m"]
) -> tuple[RelevanceModel, Abstention]:
    """A model of which of the best hits is the one looked for, and where it is wrong of the best.

    Args:
        scores: (m, p) fused scores of m spans by task.
        targets: (m,) column of each span's own document.
    """
    best = [np.argsort(-own, axis=1, kind="stable")[:, :DEPTH] for own in scores]
    pairs = zip(scores, best, strict=True)
    ranked = [np.take_along_axis(own, order, axis=1).astype(np.float64) for own, order in pairs]
    right = [order == targets[:, None] for order in best]
    model = RelevanceModel.fit(np.concatenate(ranked), np.concatenate(right))
    first = [[model.probabilities(row)[0] for row in own] for own in ranked]
    return model, Abstention.measure(np.array(first), np.stack(right)[:, :, 0])


def log_trust(
    ranks: Mapping[Task, Float[np.ndarray, "m k"]],
    wording: Bool[np.ndarray, " k"] | None = None,
    labelled: Float[np.ndarray, "q k"] | None = None,
) -> Float[np.ndarray, " k"]:
    """Log trust of each member, up to a constant; see the module's docstring.

    Args:
        ranks: task to reciprocal ranks of each member alone.
        wording: members that match words one by one; None for none.
        labelled: reciprocal ranks of q judged queries; log trust is then the mean of what the spans
            and what the queries say, the spans counting as `SPANS_WORTH` queries.
    """
    odds = [log_odds(own) for own in capped(ranks, wording).values()]
    trust: np.ndarray = np.sum(odds, axis=0)
    if labelled is None:
        return trust
    # A real query stands for both tasks.
    judged = len(TASKS) * log_odds(labelled)
    total = SPANS_WORTH + len(labelled)
    return np.asarray((SPANS_WORTH * trust + len(labelled) * judged) / total)


def capped(
    ranks: Mapping[Task, Float[np.ndarray, "m k"]], wording: Bool[np.ndarray, " k"] | None
) -> dict[Task, Float[np.ndarray, "m k"]]:
    """The ranks, with the best reader's for members of `wording` that are above it."""
    if wording is None or wording.all():
        return dict(ranks)
    found = {}
    for task, own in ranks.items():
        odds = log_odds(own)
        best = int(np.argmax(np.where(wording, -np.inf, odds)))
        above = wording & (odds > odds[best])
        found[task] = np.where(above, own[:, [best]], own)
    return found


def log_prior(
    log_trust: Float[np.ndarray, " k"], alike: Float[np.ndarray, "k k"]
) -> Float[np.ndarray, " k"]:
    """Log prior weights, normalised; see the module's docstring.

    Args:
        log_trust: of each member, up to a constant.
        alike: correlation of the members' similarities.

    Returns:
        (k,), ``-inf`` for a member that adds nothing to the others.
    """
    trust = softmax(log_trust)
    weights = np.linalg.solve(alike + np.eye(len(trust)), trust)
    positive = weights > 0
    logs = np.full(len(weights), -np.inf)
    logs[positive] = np.log(weights[positive] / weights[positive].sum())
    return logs


def _choose(
    measure: Callable[[float], np.ndarray], neutral: float, others: Sequence[float]
) -> tuple[float, dict[str, dict[str, float]]]:
    """The value with the best ranks, if it is significantly better than the neutral one."""
    base = measure(neutral)
    gains = {value: measure(value) - base for value in others}
    tried = {str(value): _gain(gain) for value, gain in gains.items()}
    best = max(others, key=lambda value: tried[str(value)]["gain"])
    outcome = tried[str(best)]
    passed = outcome["gain"] > 0 and outcome["p_value"] < SIGNIFICANCE / len(others)
    return (best if passed else neutral), tried


def _gain(differences: Float[np.ndarray, " m"]) -> dict[str, float]:
    return {"gain": float(differences.mean()), "p_value": paired_p_value(differences)}


def paired_p_value(differences: Float[np.ndarray, " m"]) -> float:
    """Two-sided paired t test; 1 where nothing differs."""
    if not differences.any():
        return 1.0
    return float(ttest_1samp(differences, 0.0).pvalue)


def _auroc(failed: np.ndarray, trace: Float[np.ndarray, " m"]) -> float | None:
    """Chance that a span on which the member failed has the larger trace; None if all are alike."""
    n_failed = int(failed.sum())
    n_found = len(failed) - n_failed
    if not n_failed or not n_found:
        return None
    above = rankdata(trace)[failed].sum() - n_failed * (n_failed + 1) / 2
    return float(above / (n_failed * n_found))
