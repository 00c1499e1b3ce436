"""Stores: where the vectors of a corpus live, behind one Protocol.

A store holds one vector a document, the members' means side by side, and answers which rows have
the largest inner product with a query vector. Rows count from 0 in the order of adding.
What a row's document says is in `uec.stores.documents`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Float, Float32, Int, Int64


class Store(Protocol):
    """Vectors of N documents, searched by inner product."""

    @property
    def n_documents(self) -> int:
        """Number N of rows."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a row: the sum of the members' dimensions."""
        ...

    def search(
        self, vectors: Float[np.ndarray, "n dimension"], n_candidates: int
    ) -> tuple[Float32[np.ndarray, "n c"], Int64[np.ndarray, "n c"]]:
        """Rows with the largest inner product, for each query vector.

        Args:
            vectors: (n, dimension) finite query vectors.
            n_candidates: how many rows to return; at least 1.

        Returns:
            Inner products (n, c), largest first, and their rows (n, c), where
            c = min(n_candidates, N). Every row is a real one.

        Raises:
            InputError: wrong dimension, NaN or infinite entries, or n_candidates below 1.
        """
        ...

    def fetch(self, rows: Int[np.ndarray, " c"]) -> Float32[np.ndarray, "c dimension"]:
        """Vectors of some rows, in the order asked for; rows may repeat.

        Raises:
            NotFoundError: a row is not in 0 .. N - 1.
        """
        ...
