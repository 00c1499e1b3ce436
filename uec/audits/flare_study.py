"""Every pair of target and source of the audit `flare`, estimated: the long part of it.

Embeddings in, log-ratios and entropies in nats out; the report on them is `flare`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from uec.audits import sufficiency
from uec.audits.information import ESTIMATORS
from uec.audits.inputs import Members
from uec.encoders import Progress

CURVE_SHARES = (0.25, 0.5)


@dataclass(frozen=True, slots=True)
class Study:
    """The embeddings (n, d) of members and references, and how their targets are prepared."""

    embeddings: Members
    members: tuple[str, ...]
    pool: tuple[str, ...]
    n_components: int | None
    noise: float
    device: str

    @property
    def n_texts(self) -> int:
        """Distinct texts."""
        return len(self.embeddings[self.members[0]])

    @property
    def n_dims(self) -> list[int]:
        """Dimensions of each target."""
        return [self.n_components or self.embeddings[name].shape[1] for name in self.pool]


class Steps:
    """Turns steps into texts, which is what a progress bar counts."""

    def __init__(self, n_steps: int, n_texts: int, progress: Progress | None) -> None:
        self._done, self._n_steps, self._n_texts = 0, n_steps, n_texts
        self._progress = progress

    def advance(self) -> None:
        """One step more is done."""
        before, after = (self._n_texts * s // self._n_steps for s in (self._done, self._done + 1))
        self._done += 1
        if self._progress:
            self._progress(after - before)


@dataclass(frozen=True, slots=True)
class Estimated:
    """What one estimator found, in nats.

    Attributes:
        information: (..., targets, members, t) log-ratios, NaN where a member would be its own
            reference.
        marginal: (..., targets, t) log densities of the targets without a source.
    """

    information: Float[np.ndarray, "*seeds targets members t"]
    marginal: Float[np.ndarray, "*seeds targets t"]


def _estimate(study: Study, name: str, seed: int, *, share: float, steps: Steps) -> Estimated:
    """Estimate all pairs from one split of the texts.

    Every target and source is prepared from all training texts; with a `share` below one only
    that share of them is fitted on, so that all shares estimate the same quantity.
    """
    split = sufficiency.split_texts(study.n_texts, seed)
    sources = {m: sufficiency.standardise(study.embeddings[m], split.train) for m in study.members}
    found = np.full((len(study.pool), len(study.members), len(split.test)), np.nan)
    marginal = np.full((len(study.pool), len(split.test)), np.nan)
    for i, reference in enumerate(study.pool):
        target = sufficiency.prepare_target(
            study.embeddings[reference],
            split.train,
            n_components=study.n_components,
            noise=study.noise,
            seed=seed,
        )
        others = [j for j, member in enumerate(study.members) if member != reference]
        if others:
            densities = ESTIMATORS[name](
                target,
                [sources[study.members[j]] for j in others],
                split.shrunk(share),
                seed=seed,
                device=study.device,
            )
            found[i, others], marginal[i] = densities.information, densities.marginal
        steps.advance()
    return Estimated(found, marginal)


def measure(study: Study, seeds: Sequence[int], steps: Steps) -> dict[str, Estimated]:
    """Every pair by every estimator, with the seeds as first axis."""
    found = {}
    for name in ESTIMATORS:
        runs = [_estimate(study, name, seed, share=1.0, steps=steps) for seed in seeds]
        found[name] = Estimated(
            np.stack([run.information for run in runs]), np.stack([run.marginal for run in runs])
        )
    return found


def learning_curve(
    study: Study, seed: int, steps: Steps
) -> Float[np.ndarray, "shares targets members"]:
    """FLARE's I_s in nats from a part of the training texts, judged on the same test texts."""
    return np.stack(
        [
            _estimate(study, "flare", seed, share=share, steps=steps).information.mean(axis=-1)
            for share in CURVE_SHARES
        ]
    )
