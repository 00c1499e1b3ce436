"""When to answer nothing: a threshold on the best hit's probability, for a risk the caller sets.

The risk of a service is the share of its queries that it answers with a wrong best hit. Conformal
risk control (Angelopoulos et al. 2024, ICLR, eq. 4) takes the least threshold at which the texts it
was calibrated on, and one more that went wrong, stay within it:

    (sum over n texts of loss(threshold) + 1) / (n + 1)  <=  risk

The expected risk of further texts *of the same kind* is then at most that. The texts here are the
spans of `uec.selfretrieval`: real queries may be harder or easier, and the bound does not cover the
difference; benchmarks/results says how large it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float


@dataclass(frozen=True, slots=True)
class Abstention:
    """Best hits that were wrong, by their probability.

    Attributes:
        n_texts: texts that were looked for.
        n_tasks: times that each of them was looked for; its loss is the mean.
        wrong: probabilities of the wrong best hits, largest first.
    """

    n_texts: int
    n_tasks: int
    wrong: Sequence[float]

    @classmethod
    def measure(
        cls, probabilities: Float[np.ndarray, "t n"], right: Bool[np.ndarray, "t n"]
    ) -> Abstention:
        """Keep the wrong ones.

        Args:
            probabilities: (t, n) of the best hit of n texts in t tasks.
            right: (t, n) whether it was the one looked for.
        """
        n_tasks, n_texts = probabilities.shape
        wrong = np.sort(probabilities[~right])[::-1]
        return cls(n_texts, n_tasks, tuple(wrong.round(5).tolist()))

    def threshold(self, risk: float) -> float:
        """Answer where the best hit's probability is above this; infinite to answer never.

        Args:
            risk: share of all queries that may be answered wrongly, between 0 and 1.
        """
        allowed = self.n_tasks * (risk * (self.n_texts + 1) - 1)
        if allowed < 0:
            return math.inf
        # Rounding must not cost a whole answer.
        n_allowed = math.floor(allowed + 1e-9)
        return self.wrong[n_allowed] if n_allowed < len(self.wrong) else 0.0
