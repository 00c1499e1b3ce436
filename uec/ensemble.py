"""An ensemble: encoders, what is known of their uncertainty, and the constants that compare them.

`save` writes a self-describing *ensemble* folder, `load` makes the encoders again and refuses to go
on if any of them is not the one that was fitted: by identity (model, weights, prompts, pooling,
lengths) and by a probe, one text whose embedding is stored, which catches what no field says (a
tokeniser, a library that changed).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from uec import encoders, posterior, storage
from uec.calibration import ROLES, Calibration, TraceScale
from uec.encoders import Encoder, Progress
from uec.errors import EmbeddingError, InputError, MismatchError
from uec.gaussian import SketchedGaussian
from uec.posterior import Posterior
from uec.records import POSTERIOR_KINDS, Encoding, MemberSpec, PosteriorKind, Role

MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

PROBE_TEXT = "Uncertain embeddings, mesurées une fois: 今日は? 1/2"
"""A text with several scripts, digits and accents, so that a changed tokeniser shows."""

PROBE_COSINE = 0.999
"""Below this a member is not the encoder that was fitted; other devices stay above 0.99999."""


@dataclass(frozen=True, slots=True)
class Member:
    """One encoder with its posteriors.

    Attributes:
        spec: how the encoder was made.
        encoder: text to `Encoding`.
        posteriors: by kind.
        scale: median traces on held-out texts.
        fit: what the fit recorded of itself, JSON-able.
    """

    spec: MemberSpec
    encoder: Encoder
    posteriors: Mapping[PosteriorKind, Posterior]
    scale: TraceScale
    fit: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The member's name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class MemberEncoding:
    """n texts as one member sees them, with uncertainty.

    Attributes:
        gaussians: posterior kind to n sketched Gaussians; traces in squared embedding units.
        calibrated: posterior kind to (n,) traces divided by the member's median.
        encoding: the readout itself, for the full variance.
    """

    gaussians: Mapping[PosteriorKind, SketchedGaussian]
    calibrated: Mapping[PosteriorKind, Float[np.ndarray, " n"]]
    encoding: Encoding

    @property
    def mean(self) -> Float[np.ndarray, "n d"]:
        """(n, d) embeddings."""
        return self.encoding.mean

    @property
    def tokens(self) -> Int[np.ndarray, " n"]:
        """(n,) tokens read."""
        return self.encoding.tokens

    @property
    def truncated(self) -> Bool[np.ndarray, " n"]:
        """(n,) True where the text was cut."""
        return self.encoding.truncated


@dataclass(frozen=True, slots=True)
class Ensemble:
    """k members and their calibration."""

    members: tuple[Member, ...]
    calibration: Calibration

    @property
    def names(self) -> tuple[str, ...]:
        """Member names in order."""
        return tuple(member.name for member in self.members)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Dimension of each member in order."""
        return tuple(member.encoder.dimension for member in self.members)

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        kinds: Sequence[PosteriorKind] = POSTERIOR_KINDS,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[MemberEncoding]:
        """Embed texts with every member.

        Args:
            texts: n texts.
            role: which prompt the members put before them.
            kinds: posteriors to take traces from.
            batch_size: texts a forward pass.
            progress: called with the texts done by each member; n times k in all.

        Returns:
            One `MemberEncoding` a member, in order.

        Raises:
            EmbeddingError: a member gave a NaN, infinite or zero vector; names member and text.
        """
        return [
            encode_member(member, texts, role, kinds, batch_size, progress)
            for member in self.members
        ]

    def save(self, path: Path) -> storage.Artefact:
        """Write an ensemble folder, atomically."""
        with storage.create(path, "ensemble") as draft:
            content = self.write(draft.path)
            return draft.publish(content)

    def write(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """Write the ensemble's files where `place` says; return what a manifest must hold."""
        return {
            "members": [_write_member(member, place) for member in self.members],
            "calibration": self.calibration.to_json(),
        }

    @classmethod
    def load(cls, path: Path, *, verify: bool = True) -> Ensemble:
        """Open an ensemble folder and make its encoders.

        Raises:
            NotFoundError: no such folder, or a model cannot be found.
            CorruptArtefactError: a file is missing or altered.
            MismatchError: an encoder is not the one that was fitted; names the field.
        """
        artefact = storage.open_artefact(path, "ensemble", verify=verify)
        return cls.read(artefact.content, artefact.file)

    @classmethod
    def read(cls, content: Mapping[str, Any], file: Callable[[str], Path]) -> Ensemble:
        """Inverse of `write`."""
        members = tuple(_read_member(entry, file) for entry in content["members"])
        return cls(members, Calibration.from_json(content["calibration"]))


def check_specs(specs: Sequence[MemberSpec]) -> None:
    """Refuse an empty ensemble, bad names and names used twice.

    Raises:
        InputError: with the name and what is expected of names.
    """
    if not specs:
        raise InputError("an ensemble needs at least one member")
    for spec in specs:
        if not MEMBER_NAME.fullmatch(spec.name):
            raise InputError(
                f"member name {spec.name!r}: expected letters, digits, '_', '.' or '-', up to 64"
            )
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise InputError(f"member names must be unique; got {', '.join(names)}")


def encode_member(
    member: Member,
    texts: Sequence[str],
    role: Role,
    kinds: Sequence[PosteriorKind] = POSTERIOR_KINDS,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> MemberEncoding:
    """Embed texts with one member; see `Ensemble.encode`."""
    encoding = _encode_once(member.encoder, texts, role, batch_size, progress)
    check_vectors(member.name, encoding.mean)
    gaussians = {}
    calibrated = {}
    for kind in kinds:
        fitted = member.posteriors[kind]
        trace = fitted.trace(encoding)
        gaussians[kind] = SketchedGaussian(encoding.mean, trace, fitted.profile)
        calibrated[kind] = member.scale.calibrate(trace, kind, role)
    return MemberEncoding(gaussians, calibrated, encoding)


def _encode_once(
    encoder: Encoder, texts: Sequence[str], role: Role, batch_size: int, progress: Progress | None
) -> Encoding:
    """Encode each distinct text once, so that equal texts have equal vectors to the last bit.

    Otherwise their place in a batch decides how sums are rounded, on some processors, and documents
    that are the same tie no longer.
    """
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(places) == len(texts):
        return encoder.encode(texts, role, batch_size=batch_size, progress=progress)
    try:
        once = encoder.encode(list(places), role, batch_size=batch_size, progress=progress)
    except EmbeddingError:
        # Again as given, for the error to name the right row.
        return encoder.encode(texts, role, batch_size=batch_size)
    if progress is not None:
        progress(len(texts) - len(places))
    return once.rows(np.array([places[text] for text in texts]))


def check_vectors(name: str, mean: Float[np.ndarray, "n d"]) -> None:
    """Refuse vectors that would poison an index or a weight.

    Raises:
        EmbeddingError: names the member and the first bad row; ``row`` holds its number.
    """
    finite = np.isfinite(mean).all(axis=1)
    bad = ~finite | ~mean.any(axis=1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        what = "zero" if finite[row] else "NaN or infinite"
        raise EmbeddingError(f"member {name!r} gave a {what} vector for text {row}", row)


def _write_member(member: Member, place: Callable[[str], Path]) -> dict[str, Any]:
    for kind, fitted in member.posteriors.items():
        np.savez(place(f"{member.name}.{kind}.npz"), **fitted.arrays())  # type: ignore[arg-type]
    np.savez(place(f"{member.name}.probe.npz"), **_probe(member.encoder))  # type: ignore[arg-type]
    return {
        "spec": asdict(member.spec),
        "identity": dict(member.encoder.identity),
        "trace_medians": member.scale.medians,
        "fit": dict(member.fit),
    }


def _read_member(entry: Mapping[str, Any], file: Callable[[str], Path]) -> Member:
    spec = MemberSpec(**entry["spec"])
    encoder = encoders.load(spec)
    storage.require_equal(f"members.{spec.name}", encoder.identity, entry["identity"])
    with np.load(file(f"{spec.name}.probe.npz")) as stored:
        for role, vector in _probe(encoder).items():
            _require_same_vector(spec.name, role, vector, stored[role])
    posteriors: dict[PosteriorKind, Posterior] = {}
    for kind in POSTERIOR_KINDS:
        with np.load(file(f"{spec.name}.{kind}.npz")) as arrays:
            posteriors[kind] = posterior.from_arrays(kind, dict(arrays))
    return Member(spec, encoder, posteriors, TraceScale(entry["trace_medians"]), entry["fit"])


def _probe(encoder: Encoder) -> dict[str, np.ndarray]:
    return {role: encoder.encode([PROBE_TEXT], role).mean[0] for role in ROLES}


def _require_same_vector(name: str, role: str, got: np.ndarray, expected: np.ndarray) -> None:
    lengths = float(np.linalg.norm(got) * np.linalg.norm(expected))
    cosine = float(got @ expected) / lengths
    if not cosine >= PROBE_COSINE:
        raise MismatchError(
            f"members.{name}: its embedding of the {role} probe text has cosine {cosine:.4f} with "
            f"the one stored at the fit; expected at least {PROBE_COSINE}. The tokeniser or a "
            "library has changed: fit the ensemble again"
        )
