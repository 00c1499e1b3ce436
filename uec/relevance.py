"""From the scores of a ranking to a probability of relevance.

A logistic model of four properties that a hit has in any corpus: its score, how far it stands above
the hits that follow the first page, how far below the best hit (the best: above the second), and
its rank. It is fitted without labels, on the spans of `uec.selfretrieval` and their own documents
(Platt 1999, with the tasks' labels in place of human ones), so its probability is that of a corpus
in which one document answers a query; where many do, the lower hits deserve more than they get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize
from scipy.special import expit

PAGE = 10
"""Hits that are compared with those after them."""

DEPTH = 2 * PAGE
"""Scores that the model reads."""

RIDGE = 1.0
"""Precision of the prior on each coefficient but the constant: keeps the fit finite on a corpus
where every span is found at the top."""


def properties(scores: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m c 4"]:
    """The four properties of each hit.

    Args:
        scores: (m, c) of m rankings, best first; at least two.

    Returns:
        (m, c, 4). Signs are such that more of each speaks for relevance.
    """
    c = scores.shape[1]
    following = scores[:, PAGE:DEPTH] if c > PAGE else scores[:, -1:]
    best, second = scores[:, :1], scores[:, 1:2]
    below = scores - best
    below[:, :1] = best - second
    rank = np.broadcast_to(-np.log1p(np.arange(c)), scores.shape)
    return np.stack([scores, scores - following.mean(axis=1, keepdims=True), below, rank], axis=-1)


@dataclass(frozen=True, slots=True)
class RelevanceModel:
    """Logistic model of `properties`.

    Attributes:
        constant: log-odds at zero.
        coefficients: four, none negative, so that a lower hit never gets more than a higher one.
    """

    constant: float
    coefficients: Sequence[float]

    def probabilities(self, scores: Float[np.ndarray, " c"]) -> Float[np.ndarray, " c"]:
        """Probability that each hit of one ranking answers the query.

        Args:
            scores: (c,) of one ranking, best first; at least two.
        """
        values = properties(scores[None])[0] @ np.array(self.coefficients)
        return np.asarray(expit(values + self.constant))

    @classmethod
    def fit(
        cls, scores: Float[np.ndarray, "m c"], relevant: Bool[np.ndarray, "m c"]
    ) -> RelevanceModel:
        """The most likely model with a ridge.

        Args:
            scores: (m, c) of m rankings, best first.
            relevant: (m, c) whether each hit is the one looked for.
        """
        rows = properties(scores).reshape(-1, 4)
        sign = np.where(relevant.ravel(), -1.0, 1.0)
        extended = np.column_stack([np.ones(len(rows)), rows])

        def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            margin = sign * (extended @ parameters)
            gradient = extended.T @ (sign * expit(margin))
            gradient[1:] += RIDGE * parameters[1:]
            penalty = RIDGE / 2 * np.square(parameters[1:]).sum()
            return float(np.logaddexp(0, margin).sum() + penalty), gradient

        bounds = [(None, None)] + [(0.0, None)] * 4
        found = minimize(loss, np.zeros(5), jac=True, bounds=bounds, method="L-BFGS-B").x
        return cls(float(found[0]), tuple(found[1:].tolist()))
