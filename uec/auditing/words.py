"""Which words an embedding holds: the probes that `uec audit` trained, asked about any text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uec import audits, encoders, storage
from uec.auditing.folder import PROBES, load
from uec.ensemble import check_vectors
from uec.errors import InputError, NotFoundError
from uec.records import MemberSpec


@dataclass(frozen=True, slots=True)
class WordsHeld:
    """What the members' embeddings of one text hold.

    Attributes:
        text: the text.
        members: member to entry and score, best first; the score is in nats, of evidence beyond
            the entry's frequency.
    """

    text: str
    members: Mapping[str, list[tuple[str, float]]]


def words_held(folder: Path, texts: Sequence[str], k: int = 10) -> list[WordsHeld]:
    """Embed texts with the members of an audit and read off the words that they hold.

    Args:
        folder: written by `uec audit`.
        texts: n texts.
        k: words a member.

    Returns:
        One a text. Members that were given to the audit as files cannot embed a text and are left
        out.

    Raises:
        NotFoundError: no report, or no probes in it.
        MismatchError: a member is not the encoder that was audited; names the field.
        InputError: an empty text, or k below one.
        DependencyError: the extra ``audit`` is not installed.
    """
    for text in texts:
        if not text.strip():
            raise InputError("a text is empty; expected words")
    audits.load("flip")
    from uec.audits.flip import Probe, words

    audited = load(folder)
    able = [member for member in audited.members if member["spec"] is not None]
    # A folder may hold probes of an earlier audit, of other texts.
    if not able or "flip" not in audited.reports:
        raise NotFoundError(
            f"no word probes of members that encode text in {folder}; run `uec audit` with models "
            "as members, without --skip flip"
        )
    held: list[dict[str, Any]] = [{} for _ in texts]
    for member in able:
        name = member["name"]
        probe = Probe.load(folder / PROBES / f"{name}.npz")
        encoder = encoders.load(MemberSpec(**member["spec"]))
        storage.require_equal(f"members.{name}", encoder.identity, member["identity"])
        embeddings = encoder.encode(texts, "document").mean
        check_vectors(name, embeddings)
        for own, embedding in zip(held, embeddings, strict=True):
            own[name] = words(probe, embedding, k)
    return [WordsHeld(text, own) for text, own in zip(texts, held, strict=True)]
