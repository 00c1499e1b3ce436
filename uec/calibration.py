"""The constants that make members comparable, kept beside their posteriors.

These are the median trace of each member on texts that its fit has not seen, a prior weight for
each member, the temperature of the weights and the weight of the variance in the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from uec.abstention import Abstention
from uec.errors import InputError
from uec.records import POSTERIOR_KINDS, PosteriorKind, Role
from uec.relevance import RelevanceModel

LEAST_DEVIATION = 0.2
"""Of peaks, in parts of their mean. On eleven corpora it was .21 to .62; where all texts are alike
it is less, and would make evidence of nothing."""

ROLES: tuple[Role, ...] = ("query", "document")

DEFAULT_TEMPERATURE = float("inf")
"""Weigh by the prior. The published form, a softmax of the traces themselves, lost to equal weights
on most measured corpora (benchmarks/results): a trace says how new a text is to the fit, and a
member may master what is new."""

DEFAULT_BETA = 0.0
"""Rank by the mean and report the variance. On eleven sets 0.1, the released code's value, changed
nDCG@10 by less than .001, and 1, the published formula's, did not improve it (benchmarks/results).
"""


@dataclass(frozen=True, slots=True)
class TraceScale:
    """Median trace of one member on held-out texts, by posterior and role.

    Queries are shorter than documents and their traces larger, so each role has its own median.
    """

    medians: Mapping[PosteriorKind, Mapping[Role, float]]

    def calibrate(
        self, trace: Float[np.ndarray, " n"], posterior: PosteriorKind, role: Role
    ) -> Float[np.ndarray, " n"]:
        """Divide traces by the median of their kind, (n,); no unit afterwards."""
        return np.asarray(trace / self.medians[posterior][role])

    @classmethod
    def measure(
        cls, traces: Mapping[PosteriorKind, Mapping[Role, Float[np.ndarray, " n"]]]
    ) -> TraceScale:
        """Take the medians.

        Raises:
            InputError: a median is zero or not finite: the posterior says nothing of these texts.
        """
        medians = {
            kind: {role: float(np.median(traces[kind][role])) for role in ROLES}
            for kind in POSTERIOR_KINDS
        }
        for kind, by_role in medians.items():
            for role, value in by_role.items():
                if not (np.isfinite(value) and value > 0):
                    raise InputError(
                        f"median {kind} trace of the held-out {role} texts is {value}; "
                        "expected a positive number: use more, and more varied, pairs"
                    )
        return cls(medians)


@dataclass(frozen=True, slots=True)
class PeakScale:
    """What peaks each member has on the corpus's own text; see `uec.weighing`.

    Attributes:
        mean: (k,) of the peaks.
        deviation: (k,) their standard deviation.
    """

    mean: Float[np.ndarray, " k"]
    deviation: Float[np.ndarray, " k"]

    @classmethod
    def measure(cls, peaks: Float[np.ndarray, "m k"]) -> PeakScale:
        """Take mean and deviation of the peaks of m texts."""
        mean = peaks.mean(axis=0)
        return cls(mean, np.maximum(peaks.std(axis=0), LEAST_DEVIATION * np.abs(mean)))

    def evidence(self, peaks: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """Log-odds for each member, (n, k): how many deviations its peak is above the mean."""
        return np.asarray((peaks - self.mean) / self.deviation)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What turns traces into weights and variances into scores.

    Attributes:
        log_prior: (k,) log prior weight of each member, in the ensemble's order; an index with
            the words of its corpus has the lexical member last.
        temperature: T of `uec.weights.member_weights`.
        beta: weight of the variance in `uec.similarity.probit`.
        peaks: turns a member's peak for a query into evidence for it; None where not learnt.
        relevance: turns scores under these weights into probabilities; None where not learnt.
        abstention: turns a risk into a threshold on them; None where not learnt.
        report: what `uec.calibrating` measured, JSON-able; None where nothing was.
    """

    log_prior: Float[np.ndarray, " k"]
    temperature: float = DEFAULT_TEMPERATURE
    beta: float = DEFAULT_BETA
    peaks: PeakScale | None = None
    relevance: RelevanceModel | None = None
    abstention: Abstention | None = None
    report: Mapping[str, Any] | None = None

    @classmethod
    def uniform(cls, n_members: int) -> Calibration:
        """Equal prior weights."""
        return cls(np.full(n_members, -np.log(n_members)))

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; `from_json` is the inverse. Infinity, which JSON lacks, becomes text."""
        return {
            "log_prior": [_written(value) for value in self.log_prior.tolist()],
            "temperature": _written(self.temperature),
            "beta": self.beta,
            "peaks": None
            if self.peaks is None
            else {name: value.tolist() for name, value in asdict(self.peaks).items()},
            "relevance": None if self.relevance is None else asdict(self.relevance),
            "abstention": None if self.abstention is None else asdict(self.abstention),
            "report": None if self.report is None else dict(self.report),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Calibration:
        """Inverse of `to_json`."""
        peaks, relevance = content.get("peaks"), content.get("relevance")
        abstention = content.get("abstention")
        return cls(
            log_prior=np.array([float(value) for value in content["log_prior"]]),
            temperature=float(content["temperature"]),
            beta=float(content["beta"]),
            peaks=None
            if peaks is None
            else PeakScale(**{name: np.array(value) for name, value in peaks.items()}),
            relevance=None if relevance is None else RelevanceModel(**relevance),
            abstention=None if abstention is None else Abstention(**abstention),
            report=content.get("report"),
        )


def _written(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
