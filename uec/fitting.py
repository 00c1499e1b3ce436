"""From encoders and pairs to an ensemble: split, encode, fit, calibrate.

Pairs are for *competence*: they should look like what the encoder was trained on, in languages that
it knows. A posterior fitted where an encoder is incompetent calls it certain exactly there (it has
seen those activations), so the corpus to be searched is the wrong place to fit unless it is of that
kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from uec import encoders, laplace, provenance
from uec.calibration import ROLES, Calibration, TraceScale
from uec.encoders import Progress
from uec.ensemble import Ensemble, Member, check_specs, check_vectors
from uec.errors import InputError
from uec.laplace import FitSettings
from uec.posterior import Posterior
from uec.records import POSTERIOR_KINDS, Encoding, MemberSpec, Pair, PosteriorKind, Role

HELD_OUT_SHARE = 0.2
"""Share of the pairs that calibrates the traces. In-sample medians are far too small when there are
fewer texts than last-layer inputs."""

MIN_PAIRS = 20
"""Fewer cannot be split into a fit and a median worth the name."""


def fit_ensemble(
    specs: Sequence[MemberSpec],
    pairs: Mapping[str, Sequence[Pair]],
    settings: FitSettings,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Ensemble:
    """Fit every member and put them together with equal prior weights.

    Args:
        specs: the members.
        pairs: member name to its competence pairs.
        settings: of the Laplace fit.
        seed: of the split into fit and held-out pairs.
        progress: called with the texts encoded; twice the pairs of all members in total.

    Returns:
        An ensemble; `Ensemble.save` writes it.

    Raises:
        InputError: bad names, a member without pairs, or fewer than `MIN_PAIRS` of them.
    """
    check_specs(specs)
    for spec in specs:
        if len(pairs.get(spec.name, ())) < MIN_PAIRS:
            raise InputError(
                f"member {spec.name!r} has {len(pairs.get(spec.name, ()))} pairs; "
                f"expected at least {MIN_PAIRS}, better a thousand"
            )
    members = tuple(
        _fit_member(spec, list(pairs[spec.name]), settings, seed, progress) for spec in specs
    )
    return Ensemble(members, Calibration.uniform(len(members)))


def _fit_member(
    spec: MemberSpec,
    pairs: list[Pair],
    settings: FitSettings,
    seed: int,
    progress: Progress | None,
) -> Member:
    encoder = encoders.load(spec)
    order = np.random.default_rng(seed).permutation(len(pairs))
    n_held_out = max(round(HELD_OUT_SHARE * len(pairs)), MIN_PAIRS // 2)
    held_out, fitted = order[:n_held_out], order[n_held_out:]

    def encode(rows: np.ndarray, role: Role) -> Encoding:
        side = [pairs[i].query if role == "query" else pairs[i].passage for i in rows]
        encoding = encoder.encode(side, role, progress=progress)
        check_vectors(spec.name, encoding.mean)
        return encoding

    fit = laplace.fit(
        encode(fitted, "query"),
        encode(fitted, "document"),
        weight=encoder.weight,
        gain=encoder.gain,
        settings=settings,
    )
    posteriors: dict[PosteriorKind, Posterior] = {"diag": fit.diag, "kron": fit.kron}
    unseen = {role: encode(held_out, role) for role in ROLES}
    traces: dict[PosteriorKind, dict[Role, np.ndarray]] = {
        kind: {role: posteriors[kind].trace(unseen[role]) for role in ROLES}
        for kind in POSTERIOR_KINDS
    }
    record = {
        "settings": asdict(settings),
        "report": fit.report,
        "n_held_out": int(n_held_out),
        "seed": seed,
        "pairs_sha256": fingerprint(pairs),
        "passage_sample": provenance.sample(pair.passage for pair in pairs),
    }
    return Member(spec, encoder, posteriors, TraceScale.measure(traces), record)


def fingerprint(pairs: Sequence[Pair]) -> str:
    """sha256 of the pairs, in order: tells whether two fits used the same ones."""
    digest = hashlib.sha256()
    for pair in pairs:
        for side in (pair.query, pair.passage):
            encoded = side.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
