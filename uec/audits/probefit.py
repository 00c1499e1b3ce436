"""Training of log-linear probes, factorised (FLiP) or plain (LiP), by one loop for both.

For embeddings u (d,) of texts with word counts x (v,),

    theta = softmax(b + A (B u)),   loss = - sum_n x_n' log theta_n + l1 |A|_1.

A comparison of the two kinds then compares nothing but the factorisation. At full rank they can
express the same maps, and differ only in the path that training takes.

It must know nothing of texts, members or reports; torch stays inside.

References:
    Kesiraju et al. 2026, FLiP (arXiv 2604.18109), equations 1-5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from scipy.sparse import csr_array

from uec.audits.extraction import recalls, references
from uec.audits.probe import Probe
from uec.errors import InputError

Scaling: TypeAlias = Literal["none", "centre", "standardise"]

_LOGITS_AT_ONCE = 8_000_000
"""Logits held at once (32 MB each copy): bounds memory for any vocabulary and batch."""
_DEAD = 1e-3
"""A dimension that varies less than this share of the median one carries rounding, not text."""
_WHITEST = 0.1
"""Directions with less than this share of the mean deviation keep some of their faintness."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a probe is trained; the paper's values but for rate, scaling and batch size.

    The loss is a sum over tokens, but AdamW's step does not depend on its scale, so a rate holds
    for any batch size. It does depend on the length of the inputs. On unit vectors as they come
    (``scaling="none"``) entries are near d**-0.5 and the plain probe needs a rate ten times higher
    to move as far. Standardised, it read 43 % of the words where it read 40 % (3,000 training
    texts, all-MiniLM-L6-v2, best rate of each). The factorised probe starts whitened, which makes
    it all but indifferent to scaling, and the paper's 5e-3 too high a rate.

    Attributes:
        rank: inner size r of the factorised probe, cut to d; None for the plain probe.
        learning_rate: AdamW's first rate, halved when the held-out recall stalls.
        l1: weight of |A|_1, as a proximal step after each of AdamW's. At the default it only
            silences entries that never move.
        weight_decay: AdamW's decoupled decay of A and B, never of the bias.
        max_epochs: most passes over the training texts.
        batch_size: texts a step. The paper's 6000 is for millions of texts.
        evaluate_every: epochs between two looks at the held-out recall.
        halve_after: evaluations without gain that are let pass before the rate is halved.
        stop_after: evaluations without gain after which training ends.
        scaling: ``"standardise"`` takes mean and deviation of each dimension from the training
            rows, ``"centre"`` the mean alone, ``"none"`` leaves embeddings as they are.
    """

    rank: int | None = 512
    learning_rate: float = 1e-3
    l1: float = 1e-4
    weight_decay: float = 0.0
    max_epochs: int = 100
    batch_size: int = 512
    evaluate_every: int = 3
    halve_after: int = 2
    stop_after: int = 5
    scaling: Scaling = "standardise"

    def __post_init__(self) -> None:
        for name in ("max_epochs", "batch_size", "evaluate_every", "stop_after", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: got {getattr(self, name)}, expected more than zero")
        if self.rank is not None and self.rank < 1:
            raise InputError(f"rank: got {self.rank}, expected at least 1, or None for no factors")
        for name in ("l1", "weight_decay", "halve_after"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}: got {getattr(self, name)}, expected zero or more")


def fit(
    views: Sequence[Float[np.ndarray, "n d"]],
    counts: csr_array,
    held_views: Sequence[Float[np.ndarray, "m d"]],
    held_counts: csr_array,
    entries: Sequence[str],
    *,
    training: Training | None = None,
    view_weights: Sequence[float] | None = None,
    seed: int = 0,
) -> Probe:
    """Train a probe and keep it as it was at its best held-out recall.

    Recall is that of a text's distinct entries among twice as many best-scored ones, without the
    bias (the paper's criterion), averaged over the views.

    Departures: A starts at zero and b at the log frequency, so training starts at the unigram model
    (in the released code b starts at random, against its intent, and A B u is noise that a small
    corpus never unlearns). B starts at the whitening of the training rows, not at random, so all
    words share a metric in which every direction of the embeddings counts, and go on learning it.
    With 3,000 training texts of all-MiniLM-L6-v2 a random start read 45 % of the words and the
    white one 49 %; a plain probe 43 %, or 47 % on rows whitened once and for all. The gain over a
    plain probe is thus largely the metric, which the factorisation makes room for; on
    paraphrase-MiniLM-L3-v2 the plain probe on whitened rows draws level. Texts are shuffled;
    embeddings are standardised (see `Training`).

    Args:
        views: one (n, d) embedding of the n texts, or several that share the counts, such as text
            and speech or a text and its translation.
        counts: (n, v) how often each entry occurs in each text.
        held_views: as `views`, of m texts that are not trained on.
        held_counts: (m, v).
        entries: (v) the vocabulary.
        training: how to train; the factorised probe by default.
        view_weights: weight of each view's loss; equal by default. For two views these are the
            paper's alpha and 1 - alpha.
        seed: of the order in which the texts are visited.

    Returns:
        The probe.

    Raises:
        InputError: no held-out text has an entry, or views and weights do not match.

    References:
        FLiP, equations 2-5 and section 3.5.
    """
    training = training or Training()
    weights = _view_weights(views, held_views, view_weights)
    if held_counts.nnz == 0:
        raise InputError("no held-out text has a word of the vocabulary; give more texts")
    centre, scale = _scaling(np.concatenate(views), training.scaling)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = [
        torch.from_numpy((view.astype(np.float32) - centre) * scale).to(device) for view in views
    ]
    generator = torch.Generator().manual_seed(seed)
    parameters = [p.to(device) for p in _start(counts, torch.cat(inputs).cpu(), training)]
    wanted = references(held_counts)

    def snapshot() -> Probe:
        bias, factor, *projection = [p.cpu().numpy().copy() for p in parameters]
        b = projection[0] if projection else None
        return Probe(tuple(entries), factor, b, bias, centre, scale)

    optimiser = _optimiser(parameters, training)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, mode="max", factor=0.5, patience=training.halve_after, threshold=0.0
    )
    best, best_recall, stale = snapshot(), -1.0, 0
    curve: list[tuple[int, float]] = []
    for epoch in range(1, training.max_epochs + 1):
        _epoch(inputs, weights, counts, parameters, optimiser, training, generator)
        if epoch % training.evaluate_every and epoch != training.max_epochs:
            continue
        probe = snapshot()
        recall = float(np.mean([_held_recall(probe, view, wanted) for view in held_views]))
        curve.append((epoch, recall))
        plateau.step(recall)
        stale += 1
        if recall > best_recall:
            best, best_recall, stale = probe, recall, 0
        if stale >= training.stop_after:
            break
    return replace(best, curve=tuple(curve))


def _held_recall(
    probe: Probe, embeddings: Float[np.ndarray, "m d"], wanted: Sequence[Int[np.ndarray, " _"]]
) -> float:
    """Mean recall of the wanted entries among twice as many extracted ones, without the bias."""
    found = probe.extract(embeddings, [2 * len(entries) for entries in wanted])
    return float(np.nanmean(recalls(found, wanted)))


def _view_weights(
    views: Sequence[Float[np.ndarray, "n d"]],
    held_views: Sequence[Float[np.ndarray, "m d"]],
    given: Sequence[float] | None,
) -> list[float]:
    """Weight of each view's loss, checked against the views."""
    weights = list(given) if given is not None else [1 / len(views)] * len(views)
    if len(weights) != len(views) or len(held_views) != len(views):
        raise InputError(
            f"{len(views)} views, {len(held_views)} held-out views and {len(weights)} weights; "
            "expected the same number of each"
        )
    return weights


def _scaling(
    rows: Float[np.ndarray, "n d"], scaling: Scaling
) -> tuple[Float32[np.ndarray, " d"], Float32[np.ndarray, " d"]]:
    """Centre and multiplier of each dimension."""
    d = rows.shape[1]
    centre, scale = np.zeros(d, np.float32), np.ones(d, np.float32)
    if scaling != "none":
        centre = rows.mean(axis=0).astype(np.float32)
    if scaling == "standardise":
        deviation = rows.std(axis=0)
        floor = _DEAD * np.median(deviation)
        # Some released models have dimensions that are constant but for rounding; dividing by
        # their deviation would hand the probe noise at full strength.
        scale = np.where(deviation > floor, 1 / np.maximum(deviation, floor or 1.0), 0.0)
    return centre, scale.astype(np.float32)


def _start(counts: csr_array, inputs: torch.Tensor, training: Training) -> list[torch.Tensor]:
    """Start values of b, A and, where factorised, B.

    B holds the r leading principal directions of the rows, each divided by its deviation, so that
    B u is white; directions below a tenth of the mean deviation are amplified no further.
    """
    v, d = counts.shape[1], inputs.shape[1]
    frequency = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel() + 1
    bias = torch.from_numpy(np.log(frequency / frequency.sum()).astype(np.float32))
    if training.rank is None:
        return [bias, torch.zeros(v, d)]
    rank = min(training.rank, d)
    covariance = torch.cov(inputs.T.double(), correction=0)
    variances, directions = torch.linalg.eigh(covariance)
    deviations = variances.clamp(min=0).sqrt()
    floor = _WHITEST * deviations.square().mean().sqrt()
    whitening = (directions / deviations.clamp(min=float(floor))).T.flip(0)[:rank]
    return [bias, torch.zeros(v, rank), whitening.float().contiguous()]


def _optimiser(parameters: Sequence[torch.Tensor], training: Training) -> torch.optim.Optimizer:
    """AdamW that decays the factors and never the bias."""
    return torch.optim.AdamW(
        [
            {"params": parameters[:1], "weight_decay": 0.0},
            {"params": parameters[1:], "weight_decay": training.weight_decay},
        ],
        lr=training.learning_rate,
        fused=True,
    )


def _epoch(
    inputs: Sequence[torch.Tensor],
    weights: Sequence[float],
    counts: csr_array,
    parameters: Sequence[torch.Tensor],
    optimiser: torch.optim.Optimizer,
    training: Training,
    generator: torch.Generator,
) -> None:
    """One pass over the texts: AdamW steps, each followed by the proximal step on A."""
    order = torch.randperm(counts.shape[0], generator=generator).numpy()
    for start in range(0, len(order), training.batch_size):
        # Ascending rows are cut out of the sparse counts much faster.
        rows = np.sort(order[start : start + training.batch_size])
        batch, total = counts[rows], [torch.zeros_like(p) for p in parameters]
        for view, weight in zip(inputs, weights, strict=True):
            _, gradients = loss_and_gradients(view[torch.from_numpy(rows)], batch, parameters)
            for sum_, gradient in zip(total, gradients, strict=True):
                sum_.add_(gradient, alpha=weight)
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        optimiser.step()
        if training.l1:
            proximal_l1(parameters[1], optimiser.param_groups[0]["lr"] * training.l1)


def proximal_l1(factor: torch.Tensor, threshold: float) -> None:
    """Soft threshold in place: sign(a) max(|a| - threshold, 0)."""
    factor.copy_(torch.nn.functional.softshrink(factor, threshold))


def loss_and_gradients(
    rows: torch.Tensor,
    counts: csr_array,
    parameters: Sequence[torch.Tensor],
    logits_at_once: int = _LOGITS_AT_ONCE,
) -> tuple[float, list[torch.Tensor]]:
    """Negative log-likelihood of the counts and its exact gradients, some rows at a time.

    With z the logits and N the tokens of a text, d loss / d z = N softmax(z) - x; the rest is the
    chain rule. Rows are independent, so cutting them into chunks changes nothing but memory.

    Args:
        rows: (n, d) scaled embeddings.
        counts: (n, v) sparse.
        parameters: b (v,), A (v, r) and, where factorised, B (r, d).
        logits_at_once: most logits held in memory.

    Returns:
        The loss, summed over tokens, in nats, and a gradient for each parameter.
    """
    bias, factor, *rest = parameters
    gradients = [torch.zeros_like(p) for p in parameters]
    loss, step = 0.0, max(1, logits_at_once // len(bias))
    for start in range(0, rows.shape[0], step):
        u, x = rows[start : start + step], counts[start : start + step]
        inner = u @ rest[0].T if rest else u
        log_theta = torch.log_softmax(torch.addmm(bias, inner, factor.T), dim=1)
        row, column, count, tokens = _sparse_parts(x, log_theta)
        loss -= float((count * log_theta[row, column]).sum())
        by_logit = log_theta.exp_().mul_(tokens[:, None])
        by_logit[row, column] -= count
        gradients[0] += by_logit.sum(dim=0)
        gradients[1].addmm_(by_logit.T, inner)
        if rest:
            gradients[2].addmm_((by_logit @ factor).T, u)
    return loss, gradients


def _sparse_parts(
    counts: csr_array, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row, column and value of each count, and the tokens of each row, where `like` lives."""
    coordinates = counts.tocoo()
    row = torch.from_numpy(coordinates.row.astype(np.int64))
    column = torch.from_numpy(coordinates.col.astype(np.int64))
    count = torch.from_numpy(coordinates.data).to(like.dtype)
    tokens = torch.from_numpy(np.asarray(counts.sum(axis=1)).ravel()).to(like.dtype)
    device = like.device
    return row.to(device), column.to(device), count.to(device), tokens.to(device)
