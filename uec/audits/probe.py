"""Log-linear probes: which words of a vocabulary can be read off an embedding by a linear map.

For an embedding u (d,) and the word counts x (v,) of its text,

    theta = softmax(b + A (B u)),   loss = - sum_n x_n' log theta_n + l1 |A|_1,

with A (v, r) and B (r, d): the factorised probe, FLiP. With A = W (v, d) and no B it is LiP. Both
are trained here by one loop, so that a comparison between them compares the models alone.

It must know nothing of texts, members or reports; torch stays inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from uec.audits.vocabulary import Vocabulary, references

Scaling = Literal["none", "centre", "standardise"]

LOGITS_IN_MEMORY = 8_000_000
"""Logits held at once (32 MB in float32): what bounds memory whatever the vocabulary."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a probe is trained.

    Attributes:
        rank: inner size r of the factorised probe, cut to the embedding's length; None for LiP.
        learning_rate: AdamW's first step size.
        l1: weight of |A|_1, taken as a proximal step after each step of AdamW.
        max_epochs: passes over the training texts at most.
        batch_size: texts a step.
        evaluate_every: epochs between two looks at the held-out recall.
        halve_after: evaluations without gain after which the learning rate is halved.
        stop_after: evaluations without gain after which training stops.
        scaling: what is done to each dimension of the embeddings, learned from the training rows.
        seed: of the start values and of the order of the texts.
    """

    rank: int | None = 512
    learning_rate: float = 5e-3
    l1: float = 1e-4
    max_epochs: int = 100
    batch_size: int = 512
    evaluate_every: int = 3
    halve_after: int = 2
    stop_after: int = 5
    scaling: Scaling = "none"
    seed: int = 0
    wd: float = 0.0
    bias_init: str = "freq"
    select_bias: bool = False


@dataclass(frozen=True)
class Probe:
    vocabulary: Vocabulary
    words: Float[np.ndarray, "v r"]
    projection: Float[np.ndarray, "r d"] | None
    bias: Float[np.ndarray, " v"]
    centre: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    history: tuple = ()

    def scores(self, embeddings, *, with_bias=False):
        inner = (np.asarray(embeddings, dtype=np.float32) - self.centre) * self.scale
        if self.projection is not None:
            inner = inner @ self.projection.T
        scores = inner @ self.words.T
        return scores + self.bias if with_bias else scores

    def top(self, embeddings, sizes, *, with_bias=False):
        rows = max(1, LOGITS_IN_MEMORY // len(self.vocabulary))
        found = []
        for start in range(0, len(embeddings), rows):
            part = slice(start, start + rows)
            found.extend(
                top_entries(self.scores(embeddings[part], with_bias=with_bias), sizes[part])
            )
        return found


def top_entries(scores, sizes):
    n, v = scores.shape
    largest = int(min(max(sizes, default=0), v))
    if largest == 0:
        return [np.empty(0, dtype=np.int64)] * n
    candidates = np.sort(np.argpartition(-scores, largest - 1, axis=1)[:, :largest], axis=1)
    order = np.argsort(-np.take_along_axis(scores, candidates, axis=1), axis=1, kind="stable")
    ranked = np.take_along_axis(candidates, order, axis=1)
    return [row[:size] for row, size in zip(ranked, sizes)]


def recall(found, wanted):
    return np.array([len(np.intersect1d(f, w)) / len(w) for f, w in zip(found, wanted) if len(w)])


def loss_and_gradients(embeddings, counts, bias, factors):
    """torch; accumulates"""
    v = bias.shape[0]
    grads = [torch.zeros_like(f) for f in factors]
    gb = torch.zeros_like(bias)
    total = 0.0
    rows = max(1, LOGITS_IN_MEMORY // v)
    for start in range(0, embeddings.shape[0], rows):
        u = embeddings[start : start + rows]
        x = counts[start : start + rows]
        inner = u @ factors[1].T if len(factors) == 2 else u
        logits = torch.addmm(bias, inner, factors[0].T)
        lens = torch.from_numpy(np.asarray(x.sum(axis=1), dtype=np.float32)).to(u.device)
        rr = torch.from_numpy(np.repeat(np.arange(x.shape[0]), np.diff(x.indptr)))
        cc = torch.from_numpy(x.indices.astype(np.int64))
        val = torch.from_numpy(x.data.astype(np.float32))
        logp = torch.log_softmax(logits, dim=1)
        total -= float((val * logp[rr, cc]).sum())
        logits = logp.exp_().mul_(lens[:, None])
        logits[rr, cc] -= val
        gb += logits.sum(0)
        grads[0].addmm_(logits.T, inner)
        if len(factors) == 2:
            grads[1].addmm_((logits @ factors[0]).T, u)
    return total, gb, grads


def fit(vocabulary, views, counts, held_views, held_counts, training, weights=None):
    gen = torch.Generator().manual_seed(training.seed)
    stacked = np.concatenate(views)
    d = stacked.shape[1]
    centre = stacked.mean(0) if training.scaling != "none" else np.zeros(d)
    scale = 1 / (stacked.std(0) + 1e-9) if training.scaling == "standardise" else np.ones(d)
    if training.scaling == "unit":
        scale = np.full(d, 1 / stacked.std(0).mean())
    if training.scaling == "norm":
        scale = np.full(d, np.sqrt(d))
        centre = np.zeros(d)
    centre, scale = centre.astype(np.float32), scale.astype(np.float32)
    U = [torch.from_numpy((np.asarray(z, np.float32) - centre) * scale) for z in views]
    weights = weights or [1 / len(U)] * len(U)
    v = len(vocabulary)
    if training.rank is None:
        shapes = [(v, d)]
    else:
        r = min(training.rank, d)
        shapes = [(v, r), (r, d)]
    factors = [torch.randn(*s, generator=gen) * (2 / sum(s)) ** 0.5 for s in shapes]
    freq = np.asarray(counts.sum(axis=0)).ravel() + 1
    bias = torch.from_numpy(np.log(freq / freq.sum()).astype(np.float32))
    if training.bias_init == "zero":
        bias = torch.zeros(v)
    params = [bias, *factors]
    for p in params:
        p.grad = torch.zeros_like(p)
    opt = torch.optim.AdamW([{"params":[bias],"weight_decay":0.0},{"params":factors,"weight_decay":training.wd}], lr=training.learning_rate, fused=True)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(
        opt, mode="max", factor=0.5, patience=training.halve_after
    )
    n = counts.shape[0]
    wanted = references(held_counts)
    sizes = [2 * len(w) for w in wanted]
    best, best_epoch, stale, hist = -1.0, 0, 0, []
    best_probe = None
    for epoch in range(1, training.max_epochs + 1):
        order = torch.randperm(n, generator=gen).numpy()
        tot = 0.0
        for s in range(0, n, training.batch_size):
            idx = np.sort(order[s : s + training.batch_size])
            x = counts[idx]
            gb = torch.zeros_like(bias)
            gf = [torch.zeros_like(f) for f in factors]
            for u, w in zip(U, weights):
                l, b, f = loss_and_gradients(u[idx], x, bias, factors)
                tot += w * l
                gb += w * b
                for a, c in zip(gf, f):
                    a += w * c
            for p, g in zip(params, [gb, *gf]):
                p.grad = g
            opt.step()
            lr = opt.param_groups[0]["lr"]
            if training.l1:
                t = lr * training.l1
                A = factors[0]
                A.copy_(torch.nn.functional.softshrink(A, t))
        if epoch % training.evaluate_every == 0 or epoch == training.max_epochs:
            probe = Probe(
                vocabulary,
                factors[0].numpy(),
                factors[1].numpy() if len(factors) == 2 else None,
                bias.numpy(),
                centre,
                scale,
            )
            r = float(
                np.mean(
                    [
                        recall(probe.top(z, sizes, with_bias=training.select_bias), wanted).mean()
                        for z in held_views
                    ]
                )
            )
            hist.append((epoch, tot / n, r, lr))
            sched.step(r)
            if r > best:
                best, stale = r, 0
                best_probe = replace(
                    probe,
                    words=probe.words.copy(),
                    projection=None if probe.projection is None else probe.projection.copy(),
                    bias=probe.bias.copy(),
                )
            else:
                stale += 1
                if stale >= training.stop_after:
                    break
    return replace(best_probe, history=tuple(hist))
