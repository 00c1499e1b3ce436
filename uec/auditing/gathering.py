"""The members of an audit, as encoders of text or as files, and what they make of its texts.

A member is ``NAME=MODEL``, any model that `uec fit` takes, or ``NAME=FILE`` with embeddings made
elsewhere, which lets closed models and other kinds of data be audited:

    FILE.npy   (N, d) floats, row i of document i of the corpus file
    FILE.npz   such an array ``corpus``, and for the pairs, in their order, ``queries`` and
               ``passages``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float, Int

from uec import encoders
from uec.auditing.sampling import PairSample, PairSets, Sample
from uec.auditing.selection import Looked
from uec.encoders import Encoder, Progress
from uec.ensemble import Ensemble, check_specs, check_vectors
from uec.errors import EmbeddingError, InputError, NotFoundError
from uec.records import MemberSpec, Role
from uec.selfretrieval import Span

FILES = (".npy", ".npz")
CORPUS, SIDES = "corpus", ("queries", "passages")
BATCH = 32


Sides: TypeAlias = tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]
"""Embeddings of both sides of m pairs."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One member to audit: an encoder, or the arrays of a file.

    Attributes:
        name: the member's name.
        model: model reference or file name.
        encoder: None for a file.
        arrays: of the file, ``corpus`` and perhaps ``queries`` and ``passages``.
    """

    name: str
    model: str
    encoder: Encoder | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def has_sides(self) -> bool:
        """Whether it can embed pairs, or has them embedded."""
        return self.encoder is not None or SIDES[0] in self.arrays


@dataclass(slots=True)
class Embedded:
    """What the members made of the texts; every mapping goes by member name.

    Attributes:
        texts: (n, d) of the sample.
        sides: (m, d) of both sides of the pairs, for the members that have them.
        adversarial: of the adversarial pairs, likewise.
        parallel: language to the same of its pairs.
        looked: of the spans, for the members that encode text.
        truncated: how many of the texts were cut to the member's maximum length.
    """

    texts: dict[str, Float[np.ndarray, "n _"]] = field(default_factory=dict)
    sides: dict[str, Sides] = field(default_factory=dict)
    adversarial: dict[str, Sides] = field(default_factory=dict)
    parallel: dict[str, dict[str, Sides]] = field(default_factory=dict)
    looked: dict[str, Looked] = field(default_factory=dict)
    truncated: dict[str, int] = field(default_factory=dict)


def open_members(ensemble: Path | None, references: Sequence[str]) -> list[Subject]:
    """Load the members of an ensemble folder and those given as ``NAME=MODEL`` or ``NAME=FILE``.

    Raises:
        InputError: no members, a name used twice, or a file that holds no embeddings.
        UECError: a model or an ensemble cannot be loaded.
    """
    specs = []
    for reference in references:
        name, equals, model = reference.partition("=")
        if not equals or not model:
            raise InputError(f"--members {reference!r}: expected NAME=MODEL or NAME=FILE.npy")
        specs.append(MemberSpec(name, model))
    fitted = () if ensemble is None else Ensemble.load(ensemble).members
    if not specs and not fitted:
        raise InputError("no members: give --ensemble DIR, --members NAME=MODEL, or both")
    check_specs([*(member.spec for member in fitted), *specs])
    subjects = [Subject(member.name, member.spec.model, member.encoder) for member in fitted]
    for spec in specs:
        if spec.model.endswith(FILES):
            arrays = _read_arrays(spec.name, Path(spec.model))
            subjects.append(Subject(spec.name, spec.model, arrays=arrays))
        else:
            subjects.append(Subject(spec.name, spec.model, encoders.load(spec)))
    return subjects


def _read_arrays(name: str, path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise NotFoundError(f"member {name!r}: no such file: {path}")
    try:
        if path.suffix == ".npy":
            # Mapped: a sample of a large corpus needs few of its rows.
            arrays = {CORPUS: np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise InputError(f"member {name!r}: {path} is not a NumPy file: {error}") from error
    known = {CORPUS, *SIDES}
    if CORPUS not in arrays or set(arrays) - known or len(set(arrays) & set(SIDES)) == 1:
        raise InputError(
            f"member {name!r}: {path} holds the arrays {sorted(arrays)}; expected {CORPUS!r}, "
            f"or all of {CORPUS!r}, {SIDES[0]!r} and {SIDES[1]!r}"
        )
    for key, array in arrays.items():
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"member {name!r}: {key!r} of {path} has shape {array.shape} and type "
                f"{array.dtype}; expected floats of shape (texts, dimensions)"
            )
    return arrays


def n_to_embed(
    subjects: Sequence[Subject], sample: Sample, pairs: PairSets, spans: Sequence[Span]
) -> int:
    """Texts that `embed` will encode."""
    one = len(sample.documents) + 2 * len(spans) + 2 * pairs.n_pairs
    return one * sum(subject.encoder is not None for subject in subjects)


def embed(
    subjects: Sequence[Subject],
    sample: Sample,
    pairs: PairSets,
    spans: Sequence[Span],
    progress: Progress | None = None,
) -> Embedded:
    """Embed everything that the audits need, or take it from the members' files.

    Args:
        subjects: the members.
        sample: texts.
        pairs: those that some audit wants. Files have no embeddings of other pairs than `same`.
        spans: empty where no audit wants them.
        progress: called with the texts encoded; `n_to_embed` in all.

    Raises:
        InputError: a file does not fit the corpus or the pairs, or has rows that are not finite.
        EmbeddingError: an encoder gave such a row; names the text.
    """
    found = Embedded()
    for subject in subjects:
        if subject.encoder is None:
            _take(subject, sample, pairs.same, found)
        else:
            _encode(subject.name, subject.encoder, sample, pairs, spans, progress, found)
    return found


def _encode(
    name: str,
    encoder: Encoder,
    sample: Sample,
    pairs: PairSets,
    spans: Sequence[Span],
    progress: Progress | None,
    found: Embedded,
) -> None:
    def made(texts: Sequence[str], role: Role, cut: list[int] | None = None) -> np.ndarray:
        means = []
        # In parts: of the readout's features, large for some members, only one part is kept.
        for start in range(0, len(texts), 8 * BATCH):
            part = texts[start : start + 8 * BATCH]
            encoding = encoder.encode(part, role, batch_size=BATCH, progress=progress)
            try:
                check_vectors(name, encoding.mean)
            except EmbeddingError as error:
                bad = part[error.row]
                raise EmbeddingError(f"{error} of the {role}s: {bad[:80]!r}", error.row) from None
            means.append(encoding.mean)
            if cut is not None:
                cut.append(int(encoding.truncated.sum()))
        return np.concatenate(means)

    cut: list[int] = []
    found.texts[name] = made(sample.texts, "document", cut)
    found.truncated[name] = sum(cut)
    for given, kept in ((pairs.same, found.sides), (pairs.adversarial, found.adversarial)):
        if given is not None:
            kept[name] = (made(given.queries, "query"), made(given.passages, "document"))
    for language, given in pairs.parallel.items():
        # As the texts that the probes learn from.
        sides = (made(given.queries, "document"), made(given.passages, "document"))
        found.parallel.setdefault(language, {})[name] = sides
    if spans:
        found.looked[name] = Looked(
            made([span.text for span in spans], "query"),
            made([span.rest for span in spans], "document"),
        )


def _take(subject: Subject, sample: Sample, pairs: PairSample | None, found: Embedded) -> None:
    found.texts[subject.name] = _rows(subject, CORPUS, sample.rows, sample.n_documents)
    if pairs is not None and subject.has_sides:
        left, right = (_rows(subject, side, pairs.rows, pairs.n_pairs) for side in SIDES)
        found.sides[subject.name] = (left, right)


def _rows(subject: Subject, key: str, rows: Int[np.ndarray, " n"], n: int) -> np.ndarray:
    array = subject.arrays[key]
    if len(array) != n:
        what = "documents in the corpus file" if key == CORPUS else "pairs in the pairs file"
        raise InputError(
            f"member {subject.name!r}: {key!r} of {subject.model} has {len(array)} rows for {n} "
            f"{what}; expected one row for each, in the same order"
        )
    taken = np.array(array[rows], dtype=np.float32)
    bad = ~np.isfinite(taken).all(axis=1) | ~taken.any(axis=1)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"member {subject.name!r}: row {rows[first]} of {key!r} in {subject.model} holds NaN "
            f"or infinite values, or nothing but zeros ({int(bad.sum())} such rows); find out why "
            "the encoder fails on this text, or leave the text out for all members"
        )
    return taken


def described(subject: Subject, found: Embedded) -> dict[str, Any]:
    """What a report says of a member, JSON-able."""
    spec = None
    if subject.encoder is not None:
        own = subject.encoder.spec
        spec = {key: getattr(own, key) for key in MemberSpec.__slots__}
    return {
        "name": subject.name,
        "model": subject.model,
        "dimension": int(found.texts[subject.name].shape[1]),
        "n_truncated": found.truncated.get(subject.name, 0),
        "spec": spec,
        "identity": None if subject.encoder is None else dict(subject.encoder.identity),
    }
