"""What every audit asks of the embeddings it is given, and the words it refuses them with.

An audit compares members, so all of them must have embedded the same n texts; their dimensions may
differ. A row that is not finite or has no direction is an error that names the member and the row:
an audit that dropped it would compare the members on different texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Shaped

from uec.errors import InputError

# Shapes are not annotated at the door: a wrong one is the user's mistake and gets an InputError
# that names the member, where a type checker would only name a parameter.
Members: TypeAlias = Mapping[str, Shaped[np.ndarray, "..."]]
"""Member name to its embeddings (n, d) of the same n texts; d may differ between members."""

Pairs: TypeAlias = Mapping[str, tuple[Shaped[np.ndarray, "..."], Shaped[np.ndarray, "..."]]]
"""Member name to its embeddings (n, d) of the two sides of the same n pairs of texts."""

_STEADY_TEXTS = 200
"""Below this, means over texts wander by several hundredths from sample to sample."""


def check_members(members: Members, *, min_texts: int) -> int:
    """Check embeddings of the same texts by several members.

    Args:
        members: member name to (n, d) embeddings.
        min_texts: fewest texts the audit has an answer for.

    Returns:
        n, the number of texts.

    Raises:
        InputError: no members, an array that is not a matrix of finite floats with a direction in
            every row, unequal numbers of texts, or too few texts.
    """
    if not members:
        raise InputError("no members to audit; give the embeddings of at least one")
    for name, matrix in members.items():
        _check_matrix(name, matrix)
    sizes = {name: len(matrix) for name, matrix in members.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            f"the members have different numbers of texts: {sizes}; "
            "all must embed the same texts in the same order"
        )
    n = next(iter(sizes.values()))
    if n < min_texts:
        raise InputError(f"{n} texts are too few for this audit; give at least {min_texts}")
    return n


def check_pairs(pairs: Pairs, *, min_texts: int) -> int:
    """Check embeddings of the same pairs of texts by several members.

    Args:
        pairs: member name to the (n, d) embeddings of the left and of the right sides.
        min_texts: fewest pairs the audit has an answer for.

    Returns:
        n, the number of pairs.

    Raises:
        InputError: as `check_members`, or the sides of a member differ in number or dimension.
    """
    for name, (left, right) in pairs.items():
        _check_matrix(f"{name} (left side)", left)
        _check_matrix(f"{name} (right side)", right)
        if left.shape != right.shape:
            raise InputError(
                f"member {name!r}: the left side is {left.shape} and the right side {right.shape} "
                "(texts, dimensions); row i of both must be pair i, embedded by the same member"
            )
    return check_members({name: left for name, (left, _) in pairs.items()}, min_texts=min_texts)


def _check_matrix(name: str, matrix: np.ndarray) -> None:
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.floating):
        raise InputError(
            f"member {name!r}: got an array of shape {matrix.shape} and type {matrix.dtype}; "
            "expected floats of shape (texts, dimensions)"
        )
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if bad.size:
        raise InputError(
            f"member {name!r}: row {bad[0]} holds NaN or infinite values ({bad.size} such rows); "
            "find out why the encoder fails on this text, or leave the text out for all members"
        )
    zero = np.flatnonzero(~matrix.any(axis=1))
    if zero.size:
        raise InputError(
            f"member {name!r}: row {zero[0]} is all zeros ({zero.size} such rows), so its cosine "
            "is undefined; leave the text out for all members"
        )


def unit_rows(matrix: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows divided by their Euclidean length, in float64; no row may be zero."""
    rows = matrix.astype(np.float64)
    # The largest entry first, so that squares of very long or short rows do not leave the range.
    rows /= np.maximum(rows.max(axis=1), -rows.min(axis=1))[:, None]
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows


def repeats(matrix: Shaped[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
    """True where a row is bit for bit equal to an earlier one."""
    rows = np.ascontiguousarray(matrix)
    seen: set[bytes] = set()
    found = np.zeros(len(rows), dtype=bool)
    for i, row in enumerate(rows):
        key = row.tobytes()
        found[i] = key in seen
        seen.add(key)
    return found


def repeat_warnings(sides: Sequence[Members], names: Sequence[str]) -> tuple[str, ...]:
    """Say how many texts are there twice, judged by rows that repeat in every member.

    Args:
        sides: the members' embeddings of one or two sides.
        names: what to call the texts of each side, such as ``"left texts"``.

    Returns:
        One sentence for each side with repeats.
    """
    sentences = []
    for members, name in zip(sides, names, strict=True):
        everywhere = np.logical_and.reduce([repeats(matrix) for matrix in members.values()])
        count = int(everywhere.sum())
        if count:
            sentences.append(
                f"{count} of {len(everywhere)} {name} have exactly the vector of an earlier one in "
                "every member: most likely the same text twice; the figures are cleaner without."
            )
    return tuple(sentences)


def subsample(n: int, limit: int, seed: int) -> np.ndarray:
    """Indices of at most `limit` of n texts, ascending; the same for every member of one n.

    Args:
        n: number of texts.
        limit: how many to keep at most.
        seed: seed of the draw.
    """
    if n <= limit:
        return np.arange(n)
    chosen: np.ndarray = np.sort(np.random.default_rng(seed).permutation(n)[:limit])
    return chosen


def few_texts(n: int) -> tuple[str, ...]:
    """The warning due to a mean over few texts, if n is few."""
    if n >= _STEADY_TEXTS:
        return ()
    return (
        f"Only {n} texts: figures move by several hundredths with the sample; "
        f"{_STEADY_TEXTS} or more make them steady.",
    )


def percent(share: float) -> str:
    """A share in 0..1 as a reader wants it: ``"41 %"``, ``"0.5 %"``."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.1f} %"
