"""An opened index: the read-only side of what `uec.build` writes.

Vectors and sketches are memory-mapped and nothing here changes after opening, so one `Index` serves
many threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from uec import storage
from uec.ensemble import Ensemble
from uec.fusion import MemberCandidates
from uec.records import LEXICAL, POSTERIOR_KINDS, PosteriorKind
from uec.stores.bm25 import PARAMETERS, Bm25Store
from uec.stores.documents import DocumentStore
from uec.stores.faiss import FaissStore


@dataclass(frozen=True, slots=True)
class MemberCorpus:
    """What one member knows of the indexed corpus.

    Attributes:
        columns: its block in the rows of the index.
        mean: (d,) mean of the documents' embeddings.
        covariance: (d, d) of the same.
    """

    columns: slice
    mean: Float[np.ndarray, " d"]
    covariance: Float[np.ndarray, "d d"]


class Index:
    """One index folder, open.

    Attributes:
        artefact: manifest and files.
        ensemble: the members, loaded.
        documents: texts and metadata by row or id.
        store: the inner-product index.
        corpora: one `MemberCorpus` a member.
        lexical: the same documents by their words; None where the index was built without.
    """

    def __init__(self, artefact: storage.Artefact, ensemble: Ensemble) -> None:
        """Map the files; use `open`."""
        self.artefact = artefact
        self.ensemble = ensemble
        self.documents = DocumentStore(artefact.file("documents.sqlite"))
        self.store = FaissStore(artefact.file("vectors.faiss"))
        self.corpora = list(self._read_corpora())
        self.lexical = self._read_lexical()
        n, k = len(self.documents), len(ensemble.members)
        self._sketch = self._map("sketch.f32", (n, len(POSTERIOR_KINDS), 2, k))
        full = POSTERIOR_KINDS if artefact.content["variance"] == "full" else ()
        self._variances = {
            kind: self._map(f"variance.{kind}.f32", (n, sum(ensemble.dimensions))) for kind in full
        }

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Index:
        """Open an index folder and load its encoders.

        Args:
            path: folder written by `uec.build.build_index`.
            verify: read every file and compare its checksum; False checks presence and size only.

        Raises:
            NotFoundError: no index there, or a model cannot be found.
            CorruptArtefactError: a file is missing or altered.
            MismatchError: an encoder is not the one that the index was built with; names the field.
        """
        artefact = storage.open_artefact(Path(path), "index", verify=verify)
        return cls(artefact, Ensemble.read(artefact.content["ensemble"], artefact.file))

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def has_full_variance(self) -> bool:
        """Whether every variance is stored, not only the sketch."""
        return bool(self._variances)

    @property
    def names(self) -> tuple[str, ...]:
        """Everyone who has a weight: the ensemble's members, and the lexical one last."""
        own = self.ensemble.names
        return own if self.lexical is None else (*own, LEXICAL)

    def candidates(
        self, rows: Int[np.ndarray, " c"], posterior: PosteriorKind
    ) -> list[MemberCandidates]:
        """The documents of some rows as each member sees them."""
        vectors = self.store.fetch(rows)
        sketch = np.asarray(self._sketch[rows, POSTERIOR_KINDS.index(posterior)])
        full = np.asarray(self._variances[posterior][rows]) if self._variances else None
        return [
            MemberCandidates(
                mean=vectors[:, corpus.columns],
                trace=sketch[:, 0, k],
                moment=sketch[:, 1, k],
                variance=None if full is None else full[:, corpus.columns],
            )
            for k, corpus in enumerate(self.corpora)
        ]

    def _read_lexical(self) -> Bm25Store | None:
        content = self.artefact.content.get("lexical")
        if content is None:
            return None
        return Bm25Store(self.artefact.file(f"{LEXICAL}/{PARAMETERS}").parent, content)

    def _map(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.memmap(self.artefact.file(name), "<f4", mode="r", shape=shape)

    def _read_corpora(self) -> Iterator[MemberCorpus]:
        start = 0
        for member in self.ensemble.members:
            stop = start + member.encoder.dimension
            with np.load(self.artefact.file(f"{member.name}.corpus.npz")) as arrays:
                yield MemberCorpus(slice(start, stop), arrays["mean"], arrays["covariance"])
            start = stop
