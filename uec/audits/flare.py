"""FLARE: how much each member's embedding says about what other encoders make of the same texts.

For a source U and a target V, ``I_s(U -> V) = H(V) - H(V | U)`` in nats, both entropies from the
exact likelihood of normalising flows on the same held-out texts; a member's score is the median of
its normalised I_s over a pool of references, itself excluded (arXiv 2604.17344, no code published;
architecture, training and normaliser are this project's reading). EMIR (arXiv 2406.07640) and a
ridge-Gaussian plug-in stand beside it on the same pairs and rows, for a flow has to earn its cost.

Reads as `audit`, then the estimators it calls, then the sentences it ends with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float

from uec.audits import sufficiency
from uec.audits.densities import CouplingFlow, Density, Mixture, Rows, Training, fit, log_prob
from uec.audits.densities import seeded as torch_seeded
from uec.audits.inputs import Members, check_members, few_texts
from uec.audits.sufficiency import Normalisation, Split
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

MIN_TEXTS = 50
RANK = 64
CURVE_SHARES = (0.25, 0.5)
# A component for so many training texts at least: fewer leave its density a guess.
TEXTS_PER_COMPONENT = 4
# Above this many nats a component one vector all but determines the other.
NEAR_IDENTICAL = 2.0

# The first has no published value; methods and data of this size want no more than the defaults.
FLOW = Training(learning_rate=1e-3)
MIXTURE = Training(learning_rate=1e-3, batch_size=128)

Array: TypeAlias = Float[np.ndarray, "..."]
Information: TypeAlias = dict[str, list[Array]]
"""Estimator to one array a seed: (targets, sources, t) log-ratios in nats of the t test texts."""


def audit(
    members: Members,
    *,
    references: Members | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    n_components: int | None = 32,
    noise: float = 0.05,
    normalisation: Normalisation = "dimension",
    device: str | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Rank members by the information their embeddings hold about the references'.

    Texts that repeat an earlier one, judged by their vectors in every member, are left out.

    Args:
        members: name to (n, d) embeddings of the same n texts; d may differ.
        references: pool of targets, on the same texts; None for the members themselves. A member
            is never its own reference.
        seeds: each draws another split, noise and start; the report has mean and spread.
        n_components: whitened principal components kept of every target, the same number for all;
            None keeps every dimension, which takes far longer and needs more texts.
        noise: standard deviation of the noise on targets, in units of a component's.
        normalisation: which median ranks the members, see `sufficiency.scores`; both are reported.
        device: torch device; None for ``"cuda"`` where there is one, else ``"cpu"``.
        progress: called with texts done since the last call; sums to n times the members.

    Returns:
        One row a member: ``flare``, its spread over seeds, the same for ``emir`` and ``ridge``, in
        nats per target component, the ``_column`` readings, and intrinsic dimensions. `details`
        holds every pair and the learning curve.

    Raises:
        InputError: unequal n, rows that are not finite or zero, under 50 distinct texts, a member
            without a reference, or a setting out of range.
    """
    pool = members if references is None else references
    _check_settings(members, pool, seeds, n_components, noise, normalisation)
    everyone = {**pool, **members}
    n_given = check_members(everyone, min_texts=MIN_TEXTS)
    fresh = ~sufficiency.repeated_rows(everyone)
    everyone = {name: matrix[fresh] for name, matrix in everyone.items()}
    n = check_members(everyone, min_texts=MIN_TEXTS)
    used = _components(everyone, n, n_components)
    study = _Study(
        everyone, tuple(members), tuple(pool), used, noise, device or _default_device(), n_given
    )
    information, curve = study.run(tuple(seeds), progress)
    settings = {
        "seeds": list(seeds),
        "n_components": used,
        "noise": noise,
        "normalisation": normalisation,
        "rank": RANK,
        "references": list(pool),
        "split": [sufficiency.TRAIN_SHARE, sufficiency.VALIDATION_SHARE],
        "device": study.device,
    }
    warnings = _warnings(study, information, n, n_components)
    return _report(study, information, curve, settings, n, warnings)


def _check_settings(
    members: Members,
    pool: Members,
    seeds: Sequence[int],
    n_components: int | None,
    noise: float,
    normalisation: str,
) -> None:
    for name in members:
        if not set(pool) - {name}:
            raise InputError(
                f"member {name!r} has no reference but itself; give a second member, or references"
            )
        if name in pool and pool[name] is not members[name]:
            raise InputError(
                f"{name!r} names a member and another reference; give the reference another name"
            )
    if not seeds:
        raise InputError("seeds is empty; give at least one")
    if n_components is not None and n_components < 2:
        raise InputError(f"n_components is {n_components}; expected at least 2, or None for all")
    if noise <= 0:
        raise InputError(
            f"noise is {noise}; expected a positive number: without noise the information between "
            "unit vectors is infinite"
        )
    if normalisation not in get_args(Normalisation):
        raise InputError(
            f"normalisation is {normalisation!r}; expected one of {get_args(Normalisation)}"
        )


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _components(members: Members, n: int, wanted: int | None) -> int | None:
    """Components kept of every target: as many as wanted, and as members and texts allow."""
    for name, matrix in members.items():
        if np.ptp(matrix, axis=0).max() == 0:
            raise InputError(
                f"member {name!r} gives every text the same vector; check how it was embedded"
            )
        if matrix.shape[1] < 2:
            raise InputError(f"member {name!r} has one dimension; expected at least 2")
    if wanted is None:
        return None
    n_train = round(sufficiency.TRAIN_SHARE * n)
    smallest = min(matrix.shape[1] for matrix in members.values())
    return min(wanted, smallest, n_train // TEXTS_PER_COMPONENT)


# ------------------------------------------------------------------ estimators


@dataclass(frozen=True, slots=True)
class Family:
    """One way of fitting a marginal density and a conditional one beside it.

    Attributes:
        marginal: makes the marginal density of targets with d dimensions.
        conditional: makes the conditional one from the fitted marginal, d and the source's length.
        training: how both are fitted.
    """

    marginal: Callable[[int], Density]
    conditional: Callable[[Density, int, int], Density]
    training: Training


def _conditioned(marginal: Density, _: int, n_source: int) -> Density:
    assert isinstance(marginal, CouplingFlow)
    return marginal.conditioned(n_source)


COUPLING = Family(CouplingFlow, _conditioned, FLOW)
KNIFE = Family(
    lambda n_dims: Mixture(n_dims, None),
    lambda _, n_dims, n_source: Mixture(n_dims, n_source),
    MIXTURE,
)


def held_out_information(
    target: Float[np.ndarray, "n c"],
    sources: Sequence[Float[np.ndarray, "n _"]],
    split: Split,
    family: Family,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Float[np.ndarray, "sources t"]:
    """Fit ``p(v)`` once and ``p(v | u)`` for each source, and compare them on the test rows.

    Args:
        target: (n, c) standardised target V.
        sources: standardised sources U, each with n rows.
        split: rows to fit on, to stop by and to judge on.
        family: `COUPLING` for FLARE (its sources as `sufficiency.reduce_source` makes them) or
            `KNIFE` for EMIR.
        seed: of initialisation, batches and dropout.
        device: torch device.

    Returns:
        ``log p(v | u) - log p(v)`` in nats of each test row; the mean over rows estimates I.
        Departure from EMIR, which judges on the rows it fitted: here they are held out, and the
        fit stops by the validation rows instead of after a fixed number of epochs.
    """

    def rows(indices: np.ndarray, source: np.ndarray | None = None) -> Rows:
        return Rows(
            *(
                None if a is None else torch.as_tensor(a[indices], dtype=torch.float32).to(device)
                for a in (target, source)
            )
        )

    found = []
    with torch_seeded(seed):
        marginal = family.marginal(target.shape[1]).to(device)
        fit(marginal, rows(split.train), rows(split.validation), family.training)
        baseline = log_prob(marginal, rows(split.test))
        for source in sources:
            conditional = family.conditional(marginal, target.shape[1], source.shape[1]).to(device)
            train, validation, test = (
                rows(indices, source) for indices in (split.train, split.validation, split.test)
            )
            fit(conditional, train, validation, family.training)
            found.append((log_prob(conditional, test) - baseline).cpu().numpy())
    return np.stack(found).astype(np.float64)


def flow_information(
    target: Float[np.ndarray, "n c"],
    sources: Sequence[Float[np.ndarray, "n _"]],
    split: Split,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Float[np.ndarray, "sources t"]:
    """FLARE's estimate: `held_out_information` by coupling flows on reduced sources."""
    reduced = [sufficiency.reduce_source(s, target, split.train, rank=RANK) for s in sources]
    return held_out_information(target, reduced, split, COUPLING, seed=seed, device=device)


