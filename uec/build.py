"""Build an index: stream a corpus through every member into one self-describing folder.

Files of an *index*: ``vectors.faiss`` (the members' means side by side in one inner-product index),
``sketch.f32`` (two floats for each posterior, member and document: the trace and the profile
moment), ``documents.sqlite`` (identifiers, texts, metadata), ``NAME.corpus.npz`` (mean and
covariance of each member's document means, for the spread of its similarities), the ensemble's own
files, and, on request, ``variance.KIND.f32`` (the full variances, for comparison). One pass, in
memory that does not grow with the corpus, but for the grams of ``bm25/``, the lexical store on
request; published atomically by `uec.storage`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from uec import storage
from uec.calibration import Calibration
from uec.encoders import Progress
from uec.ensemble import Ensemble, Member, MemberEncoding, encode_member
from uec.errors import EmbeddingError, InputError, MismatchError
from uec.provenance import Occurrences
from uec.records import LEXICAL, POSTERIOR_KINDS, Document
from uec.stores.bm25 import PARAMETERS, Bm25Writer
from uec.stores.documents import DocumentWriter
from uec.stores.faiss import FaissStoreWriter

Variance: TypeAlias = Literal["sketch", "full"]
VARIANCES: tuple[Variance, ...] = ("sketch", "full")

CHUNK = 1024
"""Documents embedded between two writes: large enough to sort by length, small enough to hold."""

Located: TypeAlias = tuple[str, Document]
"""Where a document was read (``path:line``) and the document."""


class CorpusMoments:
    """Running mean and covariance of one member's document means, in float64."""

    def __init__(self, dimension: int) -> None:
        self._count = 0
        self._sum = np.zeros(dimension)
        self._products = np.zeros((dimension, dimension))

    def add(self, mean: np.ndarray) -> None:
        """Take in n more documents, (n, d)."""
        rows = mean.astype(np.float64)
        self._count += len(rows)
        self._sum += rows.sum(axis=0)
        self._products += rows.T @ rows

    def arrays(self) -> dict[str, np.ndarray]:
        """``mean`` (d,) and ``covariance`` (d, d) in float32."""
        mean = self._sum / self._count
        covariance = self._products / self._count - np.outer(mean, mean)
        return {"mean": mean.astype(np.float32), "covariance": covariance.astype(np.float32)}


def build_index(
    ensemble: Ensemble,
    documents: Iterable[Located],
    path: Path,
    *,
    variance: Variance = "sketch",
    bm25: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> storage.Artefact:
    """Embed a corpus and write an index folder.

    Args:
        ensemble: its members embed the documents; a copy of it goes into the folder.
        documents: read once, in order; ``(where, document)``.
        path: the folder; an index that is there is replaced when the new one is whole.
        variance: "full" also stores every variance (as large as the vectors, for each posterior).
        bm25: also index the words, as a member that no encoder is behind; it takes four bytes of
            memory a character meanwhile.
        batch_size: texts a forward pass.
        progress: called with the documents done.

    Returns:
        The published artefact.

    Raises:
        InputError: no documents, or an identifier twice; says where. With `bm25`, a member of that
            name, or a corpus without words.
        EmbeddingError: a member gave a vector that cannot be indexed; names the document.
        BusyError: another build is writing this folder.
    """
    if bm25:
        if LEXICAL in ensemble.names:
            raise InputError(f"a member is named {LEXICAL!r} already; give it another name")
        ensemble = replace(ensemble, calibration=Calibration.uniform(len(ensemble.members) + 1))
    with storage.create(path, "index") as draft, contextlib.ExitStack() as files:
        writer = _Writer(ensemble, draft.path, variance, bm25, files)
        for chunk in _chunks(documents, CHUNK):
            writer.add(chunk, batch_size)
            if progress is not None:
                progress(len(chunk))
        if not writer.n_documents:
            raise InputError("the corpus has no documents; an index needs at least one")
        writer.close()
        content = {
            "n_documents": writer.n_documents,
            "dimensions": dict(zip(ensemble.names, ensemble.dimensions, strict=True)),
            "variance": variance,
            "truncated": writer.truncated,
            "fit_passages_in_corpus": writer.occurrences.shares(),
            "lexical": writer.lexical,
            "ensemble": ensemble.write(draft.path),
        }
        files.close()
        return draft.publish(content)


def recalibrate(
    path: Path, artefact: storage.Artefact, calibration: Calibration
) -> storage.Artefact:
    """Publish an index anew with another calibration; vectors and documents stay.

    Args:
        path: the index folder.
        artefact: the version that was calibrated, open.
        calibration: takes the place of the one in it.

    Raises:
        BusyError: another process is writing this folder.
        MismatchError: another version was published meanwhile; nothing was changed.
    """
    with storage.create(path, "index") as draft:
        with storage.open_artefact(path, "index", verify=False) as current:
            if current.fingerprint != artefact.fingerprint:
                raise MismatchError(
                    f"{path}: another version was published while this one was calibrated; "
                    "run `uec calibrate` again"
                )
        draft.adopt(artefact)
        ensemble = {**artefact.content["ensemble"], "calibration": calibration.to_json()}
        return draft.publish({**artefact.content, "ensemble": ensemble})


class _Writer:
    """The open files of one build."""

    def __init__(
        self,
        ensemble: Ensemble,
        place: Callable[[str], Path],
        variance: Variance,
        bm25: bool,
        files: contextlib.ExitStack,
    ) -> None:
        self._ensemble = ensemble
        self._place = place
        self._vectors = files.enter_context(
            FaissStoreWriter(place("vectors.faiss"), sum(ensemble.dimensions))
        )
        self._documents = files.enter_context(DocumentWriter(place("documents.sqlite")))
        self._sketch: BinaryIO = files.enter_context(place("sketch.f32").open("wb"))
        self._variances = {
            kind: files.enter_context(place(f"variance.{kind}.f32").open("wb"))
            for kind in (POSTERIOR_KINDS if variance == "full" else ())
        }
        self._moments = {m.name: CorpusMoments(m.encoder.dimension) for m in ensemble.members}
        self._bm25 = Bm25Writer() if bm25 else None
        self.lexical: Mapping[str, Any] | None = None
        self.truncated = dict.fromkeys(ensemble.names, 0)
        self.occurrences = Occurrences(
            {m.name: m.fit.get("passage_sample", []) for m in ensemble.members}
        )
        self.n_documents = 0

    def add(self, chunk: list[Located], batch_size: int) -> None:
        # Identifiers first: a duplicate is found before its chunk is embedded.
        self._documents.add(chunk)
        encodings = [_encode(member, chunk, batch_size) for member in self._ensemble.members]
        self._vectors.add(np.concatenate([e.mean for e in encodings], axis=1))
        sketch = np.stack([_sketch(e) for e in encodings], axis=-1)
        self._sketch.write(sketch.astype("<f4").tobytes())
        for kind, file in self._variances.items():
            full = [
                member.posteriors[kind].variance(e.encoding)
                for member, e in zip(self._ensemble.members, encodings, strict=True)
            ]
            file.write(np.concatenate(full, axis=1).astype("<f4").tobytes())
        for member, encoding in zip(self._ensemble.members, encodings, strict=True):
            self._moments[member.name].add(encoding.mean)
            self.truncated[member.name] += int(encoding.truncated.sum())
        passages = [document.passage for _, document in chunk]
        if self._bm25 is not None:
            self._bm25.add(passages)
        self.occurrences.add(passages)
        self.n_documents += len(chunk)

    def close(self) -> None:
        if self._bm25 is not None:
            self.lexical = self._bm25.save(self._place(f"{LEXICAL}/{PARAMETERS}").parent)
        for name, corpus in self._moments.items():
            np.savez(self._place(f"{name}.corpus.npz"), **corpus.arrays())  # type: ignore[arg-type]


def _encode(member: Member, chunk: list[Located], batch_size: int) -> MemberEncoding:
    texts = [document.passage for _, document in chunk]
    try:
        return encode_member(member, texts, "document", batch_size=batch_size)
    except EmbeddingError as error:
        where, document = chunk[error.row]
        raise EmbeddingError(
            f"{where}: document {document.doc_id!r}: {error}; nothing was indexed", error.row
        ) from error


def _sketch(encoding: MemberEncoding) -> np.ndarray:
    """(n, posteriors, 2): trace and profile moment."""
    gaussians = [encoding.gaussians[kind] for kind in POSTERIOR_KINDS]
    return np.stack([np.stack([g.trace, g.profile_moment], axis=1) for g in gaussians], axis=1)


def _chunks(documents: Iterable[Located], size: int) -> Iterator[list[Located]]:
    stream = iter(documents)
    while chunk := list(islice(stream, size)):
        yield chunk
