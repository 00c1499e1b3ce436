"""FLARE: how much each member's embedding says about what other encoders make of the same texts.

For a source U and a target V, ``I_s(U -> V) = H(V) - H(V | U)`` in nats, both entropies from the
exact likelihood of normalising flows on the same held-out texts; a member's score is the median of
its normalised I_s over a pool of references, itself excluded (arXiv 2604.17344, no code published;
architecture, training and normaliser are this project's reading). EMIR (arXiv 2406.07640) and a
ridge-Gaussian plug-in stand beside it on the same pairs and rows, for a flow has to earn its cost.

Reads as `audit`, then the study that measures every pair, then the report on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float

from uec.audits import flare_words, sufficiency
from uec.audits.flare_study import CURVE_SHARES, Estimated, Steps, Study, learning_curve, measure
from uec.audits.information import ESTIMATORS, RANK
from uec.audits.inputs import Members, check_members
from uec.audits.sufficiency import Normalisation
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

MIN_TEXTS = 50
# A component for so many training texts at least: fewer leave its density a guess.
TEXTS_PER_COMPONENT = 4
OTHERS = 3
"""Members that a reference must have for values standardised over them to say more than who won."""


def audit(
    members: Members,
    *,
    references: Members | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    n_components: int | None = 32,
    noise: float = 0.05,
    normalisation: Normalisation | None = None,
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
            None for ``"column"`` where every reference has `OTHERS` members to compare, else
            ``"dimension"``. On eight sets ``"column"`` went with labels far better
            (benchmarks/results): references differ more than members do.
        device: torch device; None for ``"cuda"`` where there is one, else ``"cpu"``.
        progress: called with texts done since the last call; sums to n times the members.

    Returns:
        One row a member: ``flare``, its spread over seeds, the same for ``emir`` and ``ridge``, by
        the ranking normalisation; by both with ``_dimension`` (nats a component of a target, with
        its spread) and ``_column`` (standard deviations) behind the name; and intrinsic dimensions.
        `details` holds every pair, the entropies, the learning curve, and ``order_holds``: whether
        half of the texts put the members in the same order.

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
    study = Study(
        everyone,
        members=tuple(members),
        pool=tuple(pool),
        n_components=_components(everyone, n, n_components),
        noise=noise,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    if normalisation is None:
        fewest = min(len(set(members) - {name}) for name in pool)
        normalisation = "column" if fewest >= OTHERS else "dimension"
    n_steps = (len(ESTIMATORS) * len(seeds) + len(CURVE_SHARES)) * len(pool)
    steps = Steps(n_steps, n_given * len(members), progress)
    estimated = measure(study, seeds, steps)
    curve = learning_curve(study, seeds[0], steps)
    return _report(
        study,
        estimated,
        curve,
        settings={
            "seeds": list(seeds),
            "n_components": study.n_components,
            "noise": noise,
            "normalisation": normalisation,
            "rank": RANK,
            "references": list(pool),
            "train_share": sufficiency.TRAIN_SHARE,
            "validation_share": sufficiency.VALIDATION_SHARE,
            "device": study.device,
        },
        limits={"n_repeated": n_given - n, "components": (n_components, study.n_components)},
    )


def _check_settings(
    members: Members,
    pool: Members,
    seeds: Sequence[int],
    n_components: int | None,
    noise: float,
    normalisation: str | None,
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
    if normalisation not in (None, *get_args(Normalisation)):
        raise InputError(
            f"normalisation is {normalisation!r}; expected one of {get_args(Normalisation)}, or "
            "None"
        )


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
    return min(wanted, int(smallest), n_train // TEXTS_PER_COMPONENT)


def _report(
    study: Study,
    estimated: dict[str, Estimated],
    curve: Float[np.ndarray, "shares targets members"],
    *,
    settings: dict[str, Any],
    limits: dict[str, Any],
) -> AuditReport:
    nats = {name: own.information.mean(axis=-1) for name, own in estimated.items()}
    entropies = {name: -own.marginal.mean(axis=-1) for name, own in estimated.items()}
    by_seed = {
        (name, rule): np.stack([sufficiency.scores(m, study.n_dims, rule) for m in matrices])
        for name, matrices in nats.items()
        for rule in get_args(Normalisation)
    }
    rule = settings["normalisation"]
    rows = _rows(study, by_seed, rule)
    shares = np.stack([*curve, nats["flare"][0]])
    learning = np.stack([sufficiency.scores(m, study.n_dims, "dimension") for m in shares])
    half, full = (sufficiency.scores(m, study.n_dims, rule) for m in shares[-2:])
    order_holds = bool((half.argsort(kind="stable") == full.argsort(kind="stable")).all())
    return AuditReport(
        audit="flare",
        settings=settings,
        n_texts=study.n_texts,
        rows=tuple(rows),
        rank_by="flare",
        findings=flare_words.findings(rows, rule, nats, entropies, learning, order_holds),
        warnings=flare_words.warnings(
            members=study.members,
            targets=study.pool,
            nats=np.maximum(nats["flare"], nats["ridge"]).mean(axis=0),
            n_dims=study.n_dims,
            n_texts=study.n_texts,
            **limits,
        ),
        details={**_details(study, estimated, learning), "order_holds": order_holds},
    )


def _rows(
    study: Study,
    by_seed: dict[tuple[str, Normalisation], Float[np.ndarray, "seeds members"]],
    ranking: Normalisation,
) -> list[dict[str, Any]]:
    rows = []
    for j, member in enumerate(study.members):
        row: dict[str, Any] = {"member": member}
        for name in ESTIMATORS:
            row[name] = float(by_seed[name, ranking][:, j].mean())
            row[f"{name}_spread"] = float(by_seed[name, ranking][:, j].std())
            for rule in get_args(Normalisation):
                row[f"{name}_{rule}"] = float(by_seed[name, rule][:, j].mean())
            row[f"{name}_dimension_spread"] = float(by_seed[name, "dimension"][:, j].std())
        radii = sufficiency.neighbour_radii(study.embeddings[member])
        row["two_nn"] = sufficiency.two_nn(radii)
        row["levina_bickel"] = sufficiency.levina_bickel(radii)
        row["dimension"] = study.embeddings[member].shape[1]
        rows.append(row)
    return rows


def _details(
    study: Study,
    estimated: dict[str, Estimated],
    learning: Float[np.ndarray, "shares members"],
) -> dict[str, Any]:
    n_fitted = len(sufficiency.split_texts(study.n_texts, 0).fitted)
    information = {name: own.information for name, own in estimated.items()}
    nats = {name: values.mean(axis=-1) for name, values in information.items()}
    errors = {
        name: (values.std(axis=-1) / np.sqrt(values.shape[-1])).mean(axis=0)
        for name, values in information.items()
    }
    entropies = {name: -own.marginal.mean(axis=(0, -1)) for name, own in estimated.items()}
    return {
        "unit": "nats; rows are targets, columns members, null where both are the same",
        "targets": list(study.pool),
        "members": list(study.members),
        "n_dims": study.n_dims,
        "information": {name: _listed(matrix.mean(axis=0)) for name, matrix in nats.items()},
        "spread": {name: _listed(matrix.std(axis=0)) for name, matrix in nats.items()},
        "standard_error": {name: _listed(matrix) for name, matrix in errors.items()},
        "entropy": {name: _listed(own[None])[0] for name, own in entropies.items()},
        "learning_curve": {
            "n_fitted": [int(share * n_fitted) for share in (*CURVE_SHARES, 1.0)],
            "flare": {member: learning[:, j].tolist() for j, member in enumerate(study.members)},
        },
    }


def _listed(matrix: Float[np.ndarray, "targets members"]) -> list[list[float | None]]:
    """The matrix for JSON, which knows no NaN."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]
