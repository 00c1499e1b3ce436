"""From an index to its calibration: how far each member can be trusted on this corpus, label-free.

    spans of the corpus ─look for each─> k views of m spans among p documents
        ─rank─> reciprocal ranks (m, k) at two tasks ─log-odds─> prior (k,)
        ─halves against each other─> temperature, beta, expected gain

Trust and prior of the k members are

    trust_k ∝ (odds MRR_k(quotation) · odds MRR_k(cloze)) ^ SHARPNESS
    prior   ∝ (R + I)^-1 trust,  negative entries cut to zero

The tasks are those of `uec.selfretrieval`: two tests of one member, so their odds multiply. Neither
alone will do: quotation prefers an encoder that matches the wording of a language that it cannot
read, cloze one that knows topics but not what was said. R is the correlation of the members'
similarities over the corpus. Solving with it keeps two members that say the same from being
counted twice, as in Fisher's discriminant; the identity, of the size of R's own diagonal, stands
for what each member has to itself.

Temperature, beta and the expected gain come from cross-fitting: the spans are halved and each half
is ranked with the prior of the other. A finite temperature, or a beta above zero, is used only
where it makes those ranks significantly better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax
from scipy.stats import rankdata, ttest_1samp

from uec.calibration import Calibration
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import Document, PosteriorKind, SearchOptions
from uec.retriever import Retriever
from uec.selfretrieval import Span, draw_spans, log_odds, reciprocal_ranks
from uec.similarity import probit, sketched_variance
from uec.weights import member_weights

SHARPNESS = 2.0
"""Log-odds of a mean reciprocal rank to log prior weight. The value of the first prototype, where
weights were odds over a temperature of one half; not tuned since."""

N_SPANS = 400

MIN_SPANS = 30
"""Fewer rank nothing."""

MAX_POOL = 10_000
"""Documents that a span is looked for in. A sample of a larger corpus tells the members apart as
well, and its similarities fit in memory."""

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
    """

    mean: Float[np.ndarray, "m p k"]
    variance: Float[np.ndarray, "m p k"]
    own_mean: Mapping[Task, Float[np.ndarray, "m k"]]
    own_variance: Mapping[Task, Float[np.ndarray, "m k"]]
    targets: Int[np.ndarray, " m"]
    traces: Float[np.ndarray, "m k"]

    def correlation(self) -> Float[np.ndarray, "k k"]:
        """Correlation of the members' similarities over all spans and documents, (k, k)."""
        products = np.einsum("mpk,mpj->kj", self.mean, self.mean, optimize=True)
        scale = np.sqrt(np.diag(products))
        return np.asarray(products / np.outer(scale, scale), dtype=np.float64)

    def by_member(self, task: Task) -> Float[np.ndarray, "m k"]:
        """Reciprocal ranks of each member alone, (m, k)."""
        alone = [
            reciprocal_ranks(self.mean[..., k], own, self.targets)
            for k, own in enumerate(self.own_mean[task].T)
        ]
        return np.stack(alone, axis=1)

    def together(
        self, weights: Float[np.ndarray, "m k"], beta: float = 0.0
    ) -> Float[np.ndarray, " m"]:
        """Reciprocal ranks by the fused score, mean of both tasks, (m,)."""
        weights = weights.astype(np.float32)

        def score(mean: np.ndarray, variance: np.ndarray, dims: str) -> np.ndarray:
            fused = np.einsum(f"{dims},mk->{dims[:-1]}", mean, weights)
            if beta == 0.0:
                return np.asarray(fused)
            return probit(fused, np.einsum(f"{dims},mk->{dims[:-1]}", variance, weights**2), beta)

        others = score(self.mean, self.variance, "mpk")
        ranks = [
            reciprocal_ranks(
                others, score(self.own_mean[task], self.own_variance[task], "mk"), self.targets
            )
            for task in TASKS
        ]
        return np.asarray(np.mean(ranks, axis=0))


def calibrate(
    retriever: Retriever,
    *,
    n_spans: int = N_SPANS,
    posterior: PosteriorKind = "kron",
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Learn prior, temperature and beta on the corpus that is searched; no labels.

    Args:
        retriever: of the index.
        n_spans: spans to look for, one a document at the most.
        posterior: whose traces the temperature and beta are for.
        seed: of the sample.
        progress: called with the texts embedded; at most ``2 k n_spans`` in total.

    Returns:
        A calibration with a report; `uec.build.recalibrate` writes it into the index.

    Raises:
        InputError: the corpus gives fewer than `MIN_SPANS` spans.
    """
    pool = np.random.default_rng(seed).permutation(len(retriever.index))[:MAX_POOL]
    spans = draw_spans(_documents(retriever, pool), n_spans, seed)
    if len(spans) < MIN_SPANS:
        raise InputError(
            f"the corpus gives {len(spans)} spans to look for; expected at least {MIN_SPANS} "
            "documents of six words or more. Members keep equal weights; --weights of a search "
            "sets others"
        )
    views = view(retriever, spans, pool, posterior, progress)
    settings = {"seed": seed, "posterior": posterior, "n_spans": len(spans), "n_pool": len(pool)}
    return learn(views, retriever.ensemble.names, settings)


def view(
    retriever: Retriever,
    spans: Sequence[Span],
    pool: Int[np.ndarray, " p"],
    posterior: PosteriorKind,
    progress: Progress | None = None,
) -> Views:
    """Look for spans in the documents of some rows.

    Args:
        retriever: of the index.
        spans: m of them.
        pool: (p,) rows that hold the spans' own documents and others.
        posterior: whose variances to take.
        progress: called with the texts embedded; 2 k m in total.
    """
    index, ensemble = retriever.index, retriever.ensemble
    column = np.full(len(index), -1)
    column[pool] = np.arange(len(pool))
    targets = column[[span.row for span in spans]]
    weighed = retriever.weigh(
        [span.text for span in spans], SearchOptions(posterior=posterior), progress=progress
    )
    rests = ensemble.encode(
        [span.rest for span in spans], "document", kinds=[posterior], progress=progress
    )
    shape = (len(spans), len(pool), len(ensemble.members))
    mean, variance = np.empty(shape, np.float32), np.empty(shape, np.float32)
    cloze_mean, cloze_variance = np.empty(shape[::2]), np.empty(shape[::2])
    documents = index.candidates(pool, posterior)
    for k, (span, rest, document) in enumerate(zip(weighed.members, rests, documents, strict=True)):
        centre, spread = weighed.centre[:, k : k + 1], weighed.spread[:, k : k + 1]
        asked, answer = span.gaussians[posterior], rest.gaussians[posterior]
        mean[..., k] = (asked.mean @ document.mean.T - centre) / spread
        sketch = (np.tile(part, (len(spans), 1)) for part in (document.trace, document.moment))
        variance[..., k] = sketched_variance(asked, *sketch) / spread**2
        own = np.einsum("md,md->m", asked.mean, answer.mean)[:, None]
        cloze_mean[:, k : k + 1] = (own - centre) / spread
        cloze_variance[:, k : k + 1] = (
            sketched_variance(asked, answer.trace[:, None], answer.profile_moment[:, None])
            / spread**2
        )
    rows = np.arange(len(spans))
    return Views(
        mean,
        variance,
        {"quotation": mean[rows, targets], "cloze": cloze_mean.astype(np.float32)},
        {"quotation": variance[rows, targets], "cloze": cloze_variance.astype(np.float32)},
        targets,
        weighed.traces,
    )


def learn(views: Views, names: Sequence[str], settings: Mapping[str, Any]) -> Calibration:
    """Prior, temperature, beta and report from what the members made of the spans.

    Args:
        views: of m spans by k members.
        names: of the members.
        settings: go into the report.
    """
    ranks = {task: views.by_member(task) for task in TASKS}
    correlation = views.correlation()
    half = np.arange(len(views.targets)) % 2 == 0
    priors = [
        (part, log_prior({task: own[~part] for task, own in ranks.items()}, correlation))
        for part in (half, ~half)
    ]

    def together(temperature: float, beta: float) -> np.ndarray:
        weights = np.empty_like(views.traces)
        for part, prior in priors:
            weights[part] = member_weights(views.traces[part], prior, temperature)
        return views.together(weights, beta)

    temperature, temperatures = _choose(lambda value: together(value, 0.0), np.inf, TEMPERATURES)
    beta, betas = _choose(lambda value: together(temperature, value), 0.0, BETAS)
    prior = log_prior(ranks, correlation)
    alone = np.mean([ranks[task] for task in TASKS], axis=0)
    best = int(np.argmax(sum(log_odds(own) for own in ranks.values())))
    gain = together(temperature, beta) - alone[:, best]
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
        "temperatures": temperatures,
        "betas": betas,
        "best_member": names[best],
        "best_member_mrr": float(alone[:, best].mean()),
        "ensemble_mrr": float(alone[:, best].mean() + gain.mean()),
        "p_value": _p_value(gain),
    }
    return Calibration(prior, temperature, beta, report)


def log_prior(
    ranks: Mapping[Task, Float[np.ndarray, "m k"]], correlation: Float[np.ndarray, "k k"]
) -> Float[np.ndarray, " k"]:
    """Log prior weights, normalised; see the module's docstring.

    Args:
        ranks: task to reciprocal ranks of each member alone.
        correlation: of the members' similarities.

    Returns:
        (k,), ``-inf`` for a member that adds nothing to the others.
    """
    trust = softmax(SHARPNESS * sum(log_odds(own) for own in ranks.values()))
    weights = np.linalg.solve(correlation + np.eye(len(trust)), trust)
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
    tried = {
        str(value): {"gain": float(gain.mean()), "p_value": _p_value(gain)}
        for value, gain in gains.items()
    }
    best = max(others, key=lambda value: tried[str(value)]["gain"])
    outcome = tried[str(best)]
    passed = outcome["gain"] > 0 and outcome["p_value"] < SIGNIFICANCE / len(others)
    return (best if passed else neutral), tried


def _p_value(differences: Float[np.ndarray, " m"]) -> float:
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


def _documents(retriever: Retriever, rows: Int[np.ndarray, " p"]) -> Iterator[tuple[int, Document]]:
    for row in rows.tolist():
        yield row, retriever.index.documents.get([row])[0]
