"""FLARE: how much each member's embedding says about what other encoders make of the same texts.

For a source U and a target V, ``I_s(U -> V) = H(V) - H(V | U)`` in nats, both entropies from the
exact likelihood of normalising flows on the same held-out texts; a member's score is the median of
its normalised I_s over a pool of references, itself excluded (arXiv 2604.17344, no code published;
architecture, training and normaliser are this project's reading). EMIR (arXiv 2406.07640) and a
ridge-Gaussian plug-in stand beside it on the same pairs and rows, for a flow has to earn its cost.

Reads as `audit`, then the estimators it calls, then the sentences it ends with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from uec.audits import sufficiency
from uec.audits.densities import CouplingFlow, Mixture, Rows, Training, fit, seeded
from uec.audits.sufficiency import Normalisation, Split
from uec.errors import InputError
from uec.records import AuditReport

Progress = Callable[[int, int], None]
"""Called with the numbers of targets done and to do."""

ESTIMATORS = ("flare", "emir", "ridge")
CURVE_SHARES = (0.25, 0.5)
# Above this many nats a component one vector all but determines the other.
NEAR_IDENTICAL = 2.0

MARGINAL = Training(learning_rate=1e-3)
CONDITIONAL = Training(learning_rate=5e-4)
MIXTURE = Training(learning_rate=1e-3, batch_size=128)


def audit(
    members: Mapping[str, Float[np.ndarray, "_ _"]],
    *,
    references: Mapping[str, Float[np.ndarray, "_ _"]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    n_components: int | None = 32,
    noise: float = 0.05,
    normalisation: Normalisation = "dimension",
    device: str | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Rank members by the information their embeddings hold about the references'.

    Args:
        members: name to (n, d) embeddings of the same n texts; d may differ.
        references: pool of targets, also on the same texts; None for the members themselves. A
            member never counts as its own reference.
        seeds: each seed draws another split, noise and start; the report has mean and spread.
        n_components: whitened principal components kept of every target, the same for all; None
            keeps every dimension, at much greater cost and with a need for more texts.
        noise: standard deviation of the noise on targets, in units of a component's.
        normalisation: which median ranks the members, see `sufficiency.scores`; both are reported.
        device: torch device; None for ``"cuda"`` where there is one, else ``"cpu"``.
        progress: called after each target of each seed.

    Returns:
        The report; `rank_by` is ``"flare"``, in nats per target dimension or in standard
        deviations, by `normalisation`.

    Raises:
        InputError: unequal n, under 50 distinct texts, or no reference for some member.
        EmbeddingError: NaN or infinite rows, or a member with one vector for all texts.
        DependencyError: zuko is not installed.
    """
    pool = members if references is None else references
    _check_settings(members, pool, seeds, n_components, noise, normalisation)
    everyone = {**pool, **members}
    n_given = sufficiency.check_members(everyone)
    kept = ~sufficiency.repeated_rows(everyone)
    everyone = {name: embedding[kept] for name, embedding in everyone.items()}
    n = sufficiency.check_members(everyone)
    study = Study(
        everyone,
        tuple(members),
        tuple(pool),
        n_components=_common_components(everyone, n, n_components),
        noise=noise,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    results = study.run(seeds, progress)
    return _report(study, results, n, n_given - n, tuple(seeds), n_components, normalisation)
