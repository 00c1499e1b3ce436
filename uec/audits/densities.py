"""Conditional densities of one embedding given another, fitted by maximum likelihood.

Two families share one training loop and one interface, ``log_prob(target, source)`` in nats:

* `CouplingFlow`: affine coupling flow whose conditioners take the source through a low-rank branch
  that is zero at the start (FLARE, arXiv 2604.17344);
* `Mixture`: Gaussian mixture with diagonal scales, its parameters free or computed from the source
  (KNIFE, arXiv 2202.06618, as EMIR uses it, arXiv 2406.07640).

This module knows tensors only: no members, no splits, no reports.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from zuko.distributions import DiagNormal
from zuko.lazy import Flow, LazyTransform, UnconditionalDistribution
from zuko.transforms import CouplingTransform, DependentTransform, MonotonicAffineTransform

# Bound of the log-scale of one coupling: deep stacks of unbounded scales diverge on small samples.
LOG_SCALE_BOUND = 2.0
# High, for an audit has about a thousand texts and a conditioner tens of thousands of weights.
DROPOUT = 0.3
MIN_WIDTH, MAX_WIDTH = 128, 512


class Density(nn.Module, ABC):
    """A density of targets, given sources or not."""

    @abstractmethod
    def log_prob(self, target: Tensor, source: Tensor | None) -> Tensor:
        """Log-density in nats of each row of `target` (n, d), given the rows of `source`."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from torch's generator as if freshly seeded, and leave the caller's state alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread.

    These matrices are too small to share: two threads took as long as one and half as much again of
    processor time, and threads that wait for each other cost most on a busy machine.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


class Conditioner(nn.Module):
    """MLP with two hidden layers; reduced sources enter the first one through the branch B.

    The first layer also feeds the output directly, so that a linear relation need not find its way
    through two nonlinearities, which takes more texts than an audit has.
    """

    def __init__(self, n_inputs: int, n_outputs: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_inputs, width)
        self.middle = nn.Sequential(
            nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(width, width), nn.GELU(), nn.Dropout(DROPOUT)
        )
        self.straight = nn.Linear(width, n_outputs)
        self.curved = nn.Linear(width, n_outputs, bias=False)
        self.branch: nn.Linear | None = None
        # The flow starts as the identity, which is nearly right already for whitened targets.
        for layer in (self.straight, self.curved):
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.straight.bias)

    def add_branch(self, rank: int) -> None:
        """Add B = 0, which changes no output until it is trained."""
        self.branch = nn.Linear(rank, self.first.out_features, bias=False)
        nn.init.zeros_(self.branch.weight)

    def forward(self, kept: Tensor, reduced: Tensor | None) -> Tensor:
        """Shift and log-scale of the changed half, each (n, changed)."""
        hidden: Tensor = self.first(kept)
        if self.branch is not None:
            hidden = hidden + self.branch(reduced)
        shift_and_scale: Tensor = self.straight(hidden) + self.curved(self.middle(hidden))
        return shift_and_scale


class Coupling(LazyTransform):  # type: ignore[misc]  # zuko ships no types
    """Affine coupling: the masked half is kept and says how to shift and scale the other half."""

    def __init__(self, mask: Tensor, width: int) -> None:
        super().__init__()
        n_kept = int(mask.sum())
        self.register_buffer("mask", mask)
        self.conditioner = Conditioner(n_kept, 2 * (len(mask) - n_kept), width)

    def forward(self, c: Tensor | None = None) -> CouplingTransform:
        """The transform for a source (n, d_u), or the marginal one for None."""
        return CouplingTransform(partial(self._affine, c), self.mask)

    def _affine(self, reduced: Tensor | None, kept: Tensor) -> DependentTransform:
        shift, log_scale = self.conditioner(kept, reduced).chunk(2, dim=-1)
        affine = MonotonicAffineTransform(shift, log_scale, slope=math.exp(-LOG_SCALE_BOUND))
        return DependentTransform(affine, 1)


class CouplingFlow(Density):
    """RealNVP: affine couplings over alternating, fixed random halves (arXiv 1605.08803).

    Args:
        n_dims: d, length of a target; at least 2.
        n_couplings: number of coupling layers, even.
        width: hidden width of the conditioners; None for 2 d, within [128, 512].

    The log-scale is bounded to (-2, 2) by zuko's softsign.
    """

    def __init__(self, n_dims: int, *, n_couplings: int = 6, width: int | None = None) -> None:
        super().__init__()
        width = min(MAX_WIDTH, max(MIN_WIDTH, 2 * n_dims)) if width is None else width
        couplings: list[LazyTransform] = []
        while len(couplings) < n_couplings:
            half = torch.randperm(n_dims) < n_dims // 2
            couplings += [Coupling(half, width), Coupling(~half, width)]
        base = UnconditionalDistribution(
            DiagNormal, torch.zeros(n_dims), torch.ones(n_dims), buffer=True
        )
        self.flow = Flow(couplings, base)

    def log_prob(self, target: Tensor, source: Tensor | None) -> Tensor:
        """(n,) log densities of the targets given the sources."""
        density: Tensor = self.flow(source).log_prob(target)
        return density

    def conditioned(self, rank: int) -> CouplingFlow:
        """A copy of this flow with branches B = 0 for sources reduced to `rank` numbers, A(u).

        Until it is trained, its density is exactly that of this flow, whatever the source.
        """
        copied = copy.deepcopy(self)
        for module in copied.modules():
            if isinstance(module, Conditioner):
                module.add_branch(rank)
        return copied


class Mixture(Density):
    """KNIFE's Gaussian mixture; with a source, a network of it gives all the parameters.

    Args:
        n_dims: d, length of a target.
        n_source: length of a source, or None for the marginal density.
        n_modes: number of Gaussians.
        width: hidden width of the network; None for d, as EMIR has it.

    The inverse scale is ``exp(tanh(.))``, thus within [1/e, e]: for z-scored targets the
    information this family can show is bounded by about 1.5 nats per dimension.
    """

    def __init__(
        self, n_dims: int, n_source: int | None, *, n_modes: int = 8, width: int | None = None
    ) -> None:
        super().__init__()
        self.shape = (n_modes, 2 * n_dims + 1)
        n_outputs = math.prod(self.shape)
        width = n_dims if width is None else width
        self.network: nn.Module | None = None
        if n_source is None:
            self.free = nn.Parameter(0.01 * torch.randn(n_outputs))
        else:
            self.network = nn.Sequential(
                nn.LayerNorm(n_source),
                nn.Linear(n_source, width),
                nn.ReLU(),
                nn.LayerNorm(width),
                nn.Linear(width, n_outputs),
            )

    def log_prob(self, target: Tensor, source: Tensor | None) -> Tensor:
        """(n,) log densities of the targets given the sources."""
        n_dims = target.shape[-1]
        parameters = self.free if self.network is None else self.network(source)
        parameters = parameters.unflatten(-1, self.shape)
        means, logits = parameters[..., :n_dims], parameters[..., -1]
        log_inverse_scales = parameters[..., n_dims:-1].tanh()
        standardised = (target.unsqueeze(-2) - means) * log_inverse_scales.exp()
        modes = log_inverse_scales.sum(-1) - 0.5 * standardised.square().sum(-1)
        log_two_pi = math.log(2 * math.pi)
        return torch.logsumexp(logits.log_softmax(-1) + modes, -1) - 0.5 * n_dims * log_two_pi


@dataclass(frozen=True, slots=True)
class Rows:
    """Targets (n, d) and, for a conditional density, sources (n, d_source) of the same texts."""

    target: Tensor
    source: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """How a density is fitted.

    Attributes:
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        batch_size: texts a step.
        max_epochs: passes over the training rows at most.
        patience: epochs without a better validation likelihood before the fit stops.
        clip: largest norm of the gradient.
    """

    learning_rate: float
    weight_decay: float = 0.01
    batch_size: int = 256
    max_epochs: int = 200
    patience: int = 10
    clip: float = 1.0


def fit(density: Density, train: Rows, validation: Rows, training: Training) -> int:
    """Fit by maximum likelihood and keep the weights with the best validation likelihood.

    The weights before the first step take part, so a fit never ends worse on the validation rows
    than it began.

    Returns:
        The epoch whose weights were kept; 0 where no step helped.
    """
    optimiser = torch.optim.AdamW(
        density.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    best, best_epoch = float(log_prob(density, validation).mean()), 0
    best_state = copy.deepcopy(density.state_dict())
    for epoch in range(1, training.max_epochs + 1):
        density.train()
        for batch in torch.split(torch.randperm(len(train.target)), training.batch_size):
            source = None if train.source is None else train.source[batch]
            loss = -density.log_prob(train.target[batch], source).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(density.parameters(), training.clip)
            optimiser.step()
        value = float(log_prob(density, validation).mean())
        if value > best:
            best, best_epoch = value, epoch
            best_state = copy.deepcopy(density.state_dict())
        elif epoch - best_epoch >= training.patience:
            break
    density.load_state_dict(best_state)
    return best_epoch


def log_prob(density: Density, rows: Rows) -> Tensor:
    """Log-density of each row in nats, without dropout."""
    density.eval()
    with torch.no_grad():
        return density.log_prob(rows.target, rows.source)
