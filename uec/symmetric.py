"""One vector a text, for texts that are compared with each other or sorted: no query side.

Both sides are fused alike. With u_k(x) member k's embedding of text x at unit length, a text
becomes

    v(x) = [ sqrt(c_1(x)) u_1(x), ..., sqrt(c_k(x)) u_k(x) ]
    c_k(x)  ∝  w_k(x) / spread_k,      sum_k c_k(x) = 1

where w_k(x) are the weights of `uec.weights` and spread_k is the standard deviation of
``u_k(x) . u_k(y)`` over pairs of distinct texts, so that members whose cosines live in 0.7..1 and
in 0..1 meet on one scale. v(x) has unit length, and the cosine of two of them, which is also their
inner product, is ``sum_k sqrt(c_k(x) c_k(y)) cos_k(x, y)``: where the weights do not depend on the
text (T infinite, the rule) it is the mean of the members' cosines under the coefficients c. A
vector cannot carry a variance, so the probit score of `uec.similarity` stays out of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from uec.build import build_index
from uec.calibrating import calibrate
from uec.calibration import Calibration
from uec.encoders import Encoder, Progress
from uec.ensemble import Ensemble
from uec.errors import InputError
from uec.fusion import SPREAD_FLOOR
from uec.index import Index
from uec.records import Document, Encoding, PosteriorKind, Role
from uec.retriever import Retriever
from uec.weights import member_weights

N_TEXTS, N_SPANS = 2000, 1000
"""Texts that weights and spreads are learnt on, and how many of them are cut. Sentences tell less
than passages: with `uec.calibrating.N_SPANS` the correlation on STS-B's development pairs varied by
.0013 over seeds, with these by .0005 (standard deviations)."""


@dataclass(frozen=True, slots=True)
class SymmetricEncoder:
    """k members as one encoder of unit vectors.

    Attributes:
        ensemble: the members.
        calibration: their prior and the temperature.
        spread: (k,) standard deviation of each member's cosine over pairs of texts.
        posterior: whose traces weigh where the temperature is finite.
    """

    ensemble: Ensemble
    calibration: Calibration
    spread: Float[np.ndarray, " k"]
    posterior: PosteriorKind = "kron"

    @classmethod
    def fit(
        cls,
        ensemble: Ensemble,
        texts: Sequence[str],
        *,
        calibrated: bool = True,
        posterior: PosteriorKind = "kron",
        seed: int = 0,
        batch_size: int = 32,
    ) -> SymmetricEncoder:
        """Learn the spreads and, by self-retrieval, the weights on some texts; no labels.

        Args:
            ensemble: the members; its own calibration stays where `calibrated` is False.
            texts: of the kind that will be encoded; at most `N_TEXTS` are drawn from them.
            calibrated: learn weights.
            posterior: whose traces may weigh.
            seed: of the draw and of the calibration.
            batch_size: texts a forward pass.

        Raises:
            InputError: no texts, or too few that are long enough to cut a piece out of.
        """
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            raise InputError("no texts to learn the members' spreads on; expected at least one")
        order = np.random.default_rng(seed).permutation(len(distinct))[:N_TEXTS]
        sample = [distinct[i] for i in order]
        means = ensemble.encode(sample, "query", kinds=[], batch_size=batch_size)
        spread = np.array([pair_spread(encoding.mean) for encoding in means])
        calibration = (
            calibrate_texts(ensemble, sample, posterior, seed)
            if calibrated
            else ensemble.calibration
        )
        return cls(ensemble, calibration, spread, posterior)

    @property
    def coefficients(self) -> dict[str, float]:
        """Member name to c_k at an infinite temperature; sums to one."""
        shares = np.exp(self.calibration.log_prior) / self.spread
        return dict(zip(self.ensemble.names, (shares / shares.sum()).tolist(), strict=True))

    def encode(
        self, texts: Sequence[str], role: Role = "query", *, batch_size: int = 32
    ) -> Float[np.ndarray, "n total"]:
        """Encode n texts.

        Args:
            texts: n texts.
            role: which prompt the members put before them; the query's is the one that encoders
                with two of them ask for in symmetric tasks.
            batch_size: texts a forward pass.

        Returns:
            (n, sum of d_k) unit vectors.

        Raises:
            EmbeddingError: a member gave a vector that cannot be compared.
        """
        encodings = self.ensemble.encode(texts, role, kinds=[self.posterior], batch_size=batch_size)
        traces = np.stack([e.calibrated[self.posterior] for e in encodings], axis=1)
        prior, temperature = self.calibration.log_prior, self.calibration.temperature
        shares = member_weights(traces, prior, temperature) / self.spread
        shares /= shares.sum(axis=1, keepdims=True)
        blocks = [
            np.sqrt(own)[:, None] * unit(encoding.mean)
            for own, encoding in zip(shares.T, encodings, strict=True)
        ]
        return np.concatenate(blocks, axis=1).astype(np.float32)


def calibrate_texts(
    ensemble: Ensemble, texts: Sequence[str], posterior: PosteriorKind, seed: int
) -> Calibration:
    """`uec.calibrating.calibrate` over a passing index of texts, all of them in the query's role.

    Raises:
        InputError: too few of them are long enough to cut a piece out of.
    """
    alike = replace(
        ensemble,
        members=tuple(
            replace(member, encoder=_OneRole(member.encoder)) for member in ensemble.members
        ),
    )
    located = ((f"text {i}", Document(str(i), text)) for i, text in enumerate(texts, 1))
    with tempfile.TemporaryDirectory() as folder:
        artefact = build_index(alike, located, Path(folder) / "index")
        retriever = Retriever(Index(artefact, alike))
        return calibrate(retriever, n_spans=N_SPANS, posterior=posterior, seed=seed)


class _OneRole:
    """An encoder for which documents are queries."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Encoding:
        return self._encoder.encode(texts, "query", batch_size=batch_size, progress=progress)


def pair_spread(mean: Float[np.ndarray, "n d"]) -> float:
    """Standard deviation of the cosine over all pairs of n distinct texts; 1 for a single text."""
    rows = unit(mean)
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), k=1)]
    return max(float(cosines.std(dtype=np.float64)), SPREAD_FLOOR) if cosines.size else 1.0


def unit(mean: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows at unit length."""
    return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))
