"""Geometry: how a member's embeddings fill their space, and whether they have collapsed.

Cheap measures without labels, each with a known value for a sound and for a collapsed member. They
describe and explain; they do not rank members, for a member may fill its space beautifully and
still have the meanings wrong. Where pairs are given, alignment says how close partners are; where
adversarial pairs are given too (the same words, another meaning), the gap between both says whether
the member reads more than words.

Everything over pairs of texts (uniformity, near-duplicates, hubness, clusters) is taken on one
seeded sample, the same for all members; the spectrum is taken on all texts. The measures are in
`uec.audits.sphere` and `uec.audits.spectrum`, the diagnosis in `uec.audits.collapse`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from uec.audits import collapse, maps, spectrum, sphere
from uec.audits.inputs import (
    Members,
    Pairs,
    check_members,
    check_pairs,
    repeat_warnings,
    repeats,
    subsample,
    unit_rows,
)
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

_MIN_TEXTS = 20
"""Hubness needs clearly more texts than its ten neighbours."""
_TEXTS_A_DIMENSION = 5
"""Fewer texts than this many a dimension bias every count of dimensions downwards."""
_HUB_K = 10
_VANISHED = 1e-6
"""A row this short beside the others, once the mean is off, has no direction left."""


def audit(
    members: Members,
    *,
    pairs: Pairs | None = None,
    adversarial: Pairs | None = None,
    labels: Sequence[str] | None = None,
    n_clusters: int = 8,
    max_texts: int = 5000,
    map_texts: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Describe how each member's embeddings fill their space, and diagnose collapse.

    Args:
        members: member name to (n, d) embeddings of the same texts.
        pairs: embeddings of pairs that mean the same, for the same members.
        adversarial: embeddings of pairs with the same words and another meaning, likewise.
        labels: a label for each text, for purity, silhouette and the colours of the maps.
        n_clusters: clusters of k-means; with labels, their number is used instead.
        max_texts: texts of the sample on which everything over pairs of texts is taken.
        map_texts: texts of that sample that are mapped; 0 draws no maps.
        seed: seed of the sample, of ties, of k-means and of t-SNE.
        progress: called with texts done since the last call; sums to n times the members.

    Returns:
        One row a member. `details` holds the spectra, the figures before and after taking off the
        mean and whitening (``"views"``), the diagnoses and the maps.

    Raises:
        InputError: embeddings that cannot be compared, fewer than 20 texts, pairs of other
            members, or labels that do not fit the texts.
    """
    n = check_members(members, min_texts=_MIN_TEXTS)
    given = {"alignment": pairs, "alignment_adversarial": adversarial}
    kinds = {key: both for key, both in given.items() if both is not None}
    for both in kinds.values():
        _check_same_members(members, both)
    numbers = _check_labels(labels, n)
    chosen = subsample(n, max_texts, seed)
    common = np.logical_and.reduce([repeats(matrix) for matrix in members.values()])
    rows, details = [], _empty_details(labels, chosen[:map_texts])
    for name, matrix in members.items():
        member_pairs = {key: both[name] for key, both in kinds.items()}
        views = _views(matrix, chosen, member_pairs, seed)
        row = {"member": name, **_counts(matrix, common if len(members) > 1 else None)}
        row |= views["before"] or {}
        if len(kinds) == 2:
            row["alignment_gap"] = row["alignment_adversarial"] - row["alignment"]
        row |= _grouping(matrix[chosen], numbers, chosen, n_clusters, seed)
        rows.append(row)
        details["views"][name] = views
        details["spectrum"][name] = spectrum.covariance_eigenvalues(matrix).tolist()
        found = collapse.diagnose(row, n, matrix.shape[1])
        details["diagnosis"][name] = [asdict(diagnosis) for diagnosis in found]
        if map_texts:
            details["maps"][name] = maps.plane(unit_rows(matrix[chosen[:map_texts]]), seed)
        if progress:
            progress(n)
    return AuditReport(
        audit="geometry",
        settings={
            "n_pairs": {key: len(next(iter(both.values()))[0]) for key, both in kinds.items()},
            "n_clusters": n_clusters if numbers is None else int(numbers.max()) + 1,
            "hubness_k": _HUB_K,
            "max_texts": max_texts,
            "map_texts": map_texts,
            "seed": seed,
        },
        n_texts=n,
        rows=tuple(rows),
        findings=_findings(rows, details),
        warnings=_warnings(members, n, len(chosen)),
        details=details,
    )


def _check_same_members(members: Members, pairs: Pairs) -> None:
    check_pairs(pairs, min_texts=1)
    if set(pairs) != set(members):
        raise InputError(
            f"pairs are of members {sorted(pairs)}, the texts of {sorted(members)}: give both for "
            "the same members"
        )
    for name, (left, _) in pairs.items():
        if left.shape[1] != members[name].shape[1]:
            raise InputError(
                f"member {name!r}: pairs have {left.shape[1]} dimensions, texts "
                f"{members[name].shape[1]}"
            )


def _check_labels(labels: Sequence[str] | None, n: int) -> Int[np.ndarray, " n"] | None:
    """Labels as numbers from zero."""
    if labels is None:
        return None
    if len(labels) != n:
        raise InputError(f"{len(labels)} labels for {n} texts: give one a text")
    names, numbers = np.unique(np.asarray(labels), return_inverse=True)
    if not 2 <= len(names) < n:
        raise InputError(f"{len(names)} different labels for {n} texts: expected 2 to {n - 1}")
    return numbers.astype(np.int64)


def _empty_details(labels: Sequence[str] | None, mapped: Int[np.ndarray, " m"]) -> dict[str, Any]:
    return {
        "views": {},
        "spectrum": {},
        "diagnosis": {},
        "maps": {},
        "map_rows": mapped.tolist(),
        "map_labels": None if labels is None else [str(labels[i]) for i in mapped],
    }


def _counts(
    matrix: Float[np.ndarray, "n d"], common: Bool[np.ndarray, " n"] | None
) -> dict[str, Any]:
    """Measures on all texts; `common` marks repeats that every member shares, None for one member.

    With one member a repeated text and a confused one look the same; its repeats are then taken for
    repeated texts as long as they are few.
    """
    eigenvalues = spectrum.covariance_eigenvalues(matrix)
    singular = spectrum.singular_values(matrix)
    own = repeats(matrix)
    return {
        "participation_ratio": spectrum.participation_ratio(eigenvalues),
        "isoscore": spectrum.isoscore(eigenvalues, matrix.shape[1]),
        "effective_rank": spectrum.effective_rank(singular),
        "stable_rank": spectrum.stable_rank(singular),
        "top_share": spectrum.top_share(eigenvalues),
        "directions_90": spectrum.directions_for(eigenvalues, 0.90),
        "directions_99": spectrum.directions_for(eigenvalues, 0.99),
        "repeats": float(own.mean()),
        "own_repeats": float((own if common is None else own & ~common).mean()),
        "codes_8bit": sphere.distinct_codes(matrix),
        "codes_1bit": sphere.distinct_codes(matrix, bits=1),
        "levels": sphere.levels(matrix),
    }


def _views(
    matrix: Float[np.ndarray, "n d"],
    chosen: Int[np.ndarray, " m"],
    pairs: Mapping[str, tuple[Float[np.ndarray, "p d"], Float[np.ndarray, "p d"]]],
    seed: int,
) -> dict[str, dict[str, float] | None]:
    """Figures of the sample and the pairs as they are, without the mean, and whitened.

    Mean and whitening are those of all texts. None where the view does not exist: rows that vanish
    with the mean, or no more texts than dimensions, where whitening makes all texts equally far
    from each other whatever they are.
    """
    arrays = {"sample": matrix[chosen].astype(np.float64)}
    for key, (left, right) in pairs.items():
        arrays |= {f"{key} left": left.astype(np.float64), f"{key} right": right.astype(np.float64)}
    mean = matrix.mean(axis=0, dtype=np.float64)
    centred = {key: rows - mean for key, rows in arrays.items()}
    views: dict[str, dict[str, float] | None] = {
        "before": _figures(arrays, pairs, seed),
        "centred": None,
        "whitened": None,
    }
    size = np.linalg.norm(arrays["sample"], axis=1).mean()
    if any(np.linalg.norm(rows, axis=1).min() < _VANISHED * size for rows in centred.values()):
        return views
    views["centred"] = _figures(centred, pairs, seed)
    if len(matrix) > matrix.shape[1]:
        transform = sphere.whitening(matrix)
        whitened = {key: rows @ transform for key, rows in centred.items()}
        views["whitened"] = _figures(whitened, pairs, seed)
    return views


def _figures(
    arrays: Mapping[str, Float[np.ndarray, "_ _"]], pair_kinds: Mapping[str, Any], seed: int
) -> dict[str, float]:
    sample = arrays["sample"]
    figures = {
        "mean_cosine": sphere.mean_cosine(sample),
        "uniformity": sphere.uniformity(sample),
        "near_duplicates": sphere.near_duplicates(sample),
        "hubness": sphere.hubness(sample, k=_HUB_K, seed=seed),
    }
    for key in pair_kinds:
        figures[key] = sphere.alignment(arrays[f"{key} left"], arrays[f"{key} right"])
    return figures


def _grouping(
    sample: Float[np.ndarray, "m d"],
    numbers: Int[np.ndarray, " n"] | None,
    chosen: Int[np.ndarray, " m"],
    n_clusters: int,
    seed: int,
) -> dict[str, float | None]:
    """Silhouette of k-means clusters; with labels also theirs, and the purity of the clusters."""
    unit = unit_rows(sample)
    if numbers is None:
        groups = maps.clusters(unit, n_clusters, seed)
        return {"silhouette": maps.silhouette(unit, groups, seed)}
    groups = maps.clusters(unit, int(numbers.max()) + 1, seed)
    return {
        "silhouette": maps.silhouette(unit, groups, seed),
        "label_silhouette": maps.silhouette(unit, numbers[chosen], seed),
        "purity": maps.purity(groups, numbers[chosen]),
    }


def _findings(rows: Sequence[Mapping[str, Any]], details: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for row in rows:
        name = row["member"]
        diagnoses = details["diagnosis"][name]
        for diagnosis in diagnoses:
            found.append(
                f"{name}: {diagnosis['kind']} collapse: {diagnosis['evidence']}. "
                f"What to do: {diagnosis['advice']}."
            )
        if not diagnoses:
            found.append(
                f"{name}: no collapse. It spreads the texts over about "
                f"{row['participation_ratio']:.0f} directions; {row['directions_99']} hold 99 % of "
                "the variance."
            )
        found.extend(collapse.remarks(name, details["views"][name]))
        if "alignment_gap" in row:
            found.append(_adversarial_finding(row))
    return tuple(found)


def _adversarial_finding(row: Mapping[str, Any]) -> str:
    gap = (
        f"{row['member']}: pairs that mean the same lie {row['alignment']:.2f} apart, pairs with "
        f"the same words and another meaning {row['alignment_adversarial']:.2f} (0 to 4)"
    )
    if row["alignment_gap"] <= 0:
        return f"{gap}: it goes by the words, not by what they say."
    return f"{gap}: it tells them apart by {row['alignment_gap']:.2f}."


def _warnings(members: Members, n: int, sampled: int) -> tuple[str, ...]:
    found = []
    short = [
        f"{name} ({matrix.shape[1]})"
        for name, matrix in members.items()
        if n < _TEXTS_A_DIMENSION * matrix.shape[1]
    ]
    if short:
        found.append(
            f"{n} texts are fewer than {_TEXTS_A_DIMENSION} a dimension for {', '.join(short)}: "
            f"counts of dimensions come out too low (they cannot exceed {n - 1}); compare them "
            "only between members of one dimension and at one number of texts."
        )
    if sampled < n:
        found.append(
            f"Measures over pairs of texts are taken on a sample of {sampled} of {n} texts."
        )
    found.extend(repeat_warnings([members], ["texts"]))
    return tuple(found)
