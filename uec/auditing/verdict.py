"""What all audits together say, in sentences for a reader who knows none of them.

It knows the audits' figures by name and nothing of how they came about or of how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uec.auditing.folder import Audited
from uec.auditing.selection import Choice, Step
from uec.records import AuditReport
from uec.trust import SIGNIFICANCE


@dataclass(frozen=True, slots=True)
class Headline:
    """An audit's one figure for the table of members.

    Attributes:
        audit: the audit.
        key: the measure; "rank_by" for the audit's own choice.
        name: heading of the column.
        form: format.
        hint: what it means.
    """

    audit: str
    key: str
    name: str
    form: str
    hint: str


TITLES: Mapping[str, str] = {
    "selfretrieval": "self-retrieval",
    "overlap": "neighbour overlap",
    "ica": "ICA",
    "agreement": "agreement",
    "geometry": "geometry",
    "flip": "words held (FLiP)",
    "flare": "information (FLARE)",
}
"""Audits as a sentence names them."""

HEADLINES = (
    Headline(
        "selfretrieval",
        "rank_by",
        "finds pieces",
        ".3f",
        "mean reciprocal rank of the text that a piece was cut out of; the nearest to search",
    ),
    Headline(
        "overlap",
        "rank_by",
        "keeps neighbours",
        ".3f",
        "share of a text's neighbours that its partner has too, 0 to 1",
    ),
    Headline(
        "ica",
        "rank_by",
        "differs in few",
        ".3f",
        "Gini coefficient of the differences between the sides of a pair over components, 0 to 1",
    ),
    Headline(
        "flare",
        "rank_by",
        "knows the others",
        ".3f",
        "what its vector says about the others': nats a component, or with four members and more "
        "standard deviations from their mean",
    ),
    Headline(
        "flip",
        "rank_by",
        "holds words",
        ".3f",
        "share of a text's words that a linear probe reads off its vector, 0 to 1",
    ),
    Headline(
        "geometry",
        "participation_ratio",
        "directions used",
        ".0f",
        "about how many directions its vectors spread over; describes, does not rank",
    ),
)
"""Columns of the table of members. Only the measures that an audit ranks by have a best value."""


def figure_of(report: AuditReport, headline: Headline, member: str) -> float | None:
    """The member's value, or None where the audit did not judge it."""
    key = report.rank_by if headline.key == "rank_by" else headline.key
    row = row_of(report, member)
    return None if row is None or key is None else row[key]


def row_of(report: AuditReport, member: str) -> Mapping[str, Any] | None:
    """The member's row, or None."""
    return next((row for row in report.rows if row["member"] == member), None)


def ranked(result: Audited) -> list[str]:
    """Members by the first audit that ranks them, best first; those without a figure last."""
    for headline in HEADLINES:
        report = result.reports.get(headline.audit)
        if report is not None and report.rank_by is not None:
            judged = by_rank(report)
            return judged + [name for name in result.names if name not in judged]
    return list(result.names)


def by_rank(report: AuditReport) -> list[str]:
    """The members that an audit judged, best first; it must rank."""
    key = report.rank_by
    assert key is not None, "the caller asks audits that rank"
    rows = sorted(report.rows, key=lambda row: row[key], reverse=report.higher_is_better)
    return [row["member"] for row in rows]


def findings(result: Audited) -> list[str]:
    """The sentences that open the report."""
    found = [] if result.choice is None else [recommendation(result.choice, result.reports)]
    if "selfretrieval" in result.reports:
        found.append(" ".join(result.reports["selfretrieval"].findings))
    if "overlap" in result.reports:
        report = result.reports["overlap"]
        # With several members its last finding says who leads; that is said once, for all audits.
        found.append(" ".join(report.findings[: -1 if len(report.rows) > 1 else None]))
    found += _consensus(result)
    if "agreement" in result.reports:
        found.append(" ".join(result.reports["agreement"].findings))
    found += _collapses(result.reports.get("geometry"))
    if "flip" in result.reports:
        found.append(result.reports["flip"].findings[0])
    if "flare" in result.reports:
        found.append(_information(result.reports["flare"]))
    return found


def recommendation(choice: Choice, reports: Mapping[str, AuditReport]) -> str:
    """Which members to keep, and what the next one would add."""
    kept, rest = choice.steps[: choice.n_kept], choice.steps[choice.n_kept :]
    n_spans = reports["selfretrieval"].settings["n_spans"]
    if len(kept) == 1:
        said = (
            f"**{kept[0].member} alone is enough here.** It puts together {n_spans} pieces and "
            f"their texts with a mean reciprocal rank of {kept[0].mrr:.3f} (1: always first)."
        )
    else:
        additions = "; ".join(f"{step.member} adds {_gain(step)}" for step in kept[1:])
        said = (
            f"**Keep {listed([step.member for step in kept])}.** They put together {n_spans} "
            f"pieces and their texts with a mean reciprocal rank of {kept[-1].mrr:.3f} (1: always "
            f"first), {kept[0].member} alone with {kept[0].mrr:.3f}: {additions}."
        )
    if not rest:
        return said
    next_one = rest[0]
    worse = next_one.gain < 0 and next_one.p_value < SIGNIFICANCE
    meaning = "it makes things worse" if worse else "nothing that these pieces can show"
    return f"{said} {next_one.member} as the next one would add {_gain(next_one)}: {meaning}."


def _gain(step: Step) -> str:
    return f"{signed(step.gain)} ({p_words(step.p_value)})"


def _consensus(result: Audited) -> list[str]:
    """Who comes first in which audit."""
    first: dict[str, list[str]] = {}
    for name, report in result.reports.items():
        if report.rank_by is not None and len(report.rows) > 1:
            first.setdefault(by_rank(report)[0], []).append(TITLES[name])
    if sum(map(len, first.values())) < 2:
        return []
    if len(first) == 1:
        member, names = next(iter(first.items()))
        return [
            f"All audits that rank put {member} first ({listed(names)}): on this corpus expect the "
            "best retrieval from it."
        ]
    by_count = sorted(first.items(), key=lambda item: -len(item[1]))
    said = "; ".join(f"{member} comes first by {listed(names)}" for member, names in by_count)
    said = f"The audits differ: {said}. They ask different questions"
    if "selfretrieval" not in result.reports or not result.reports["selfretrieval"].rows[1:]:
        return [f"{said}."]
    leaders = result.reports["selfretrieval"].details["leaders"]
    if len(leaders) > 1:
        return [
            f"{said}; self-retrieval asks the one nearest to search, and cannot tell "
            f"{listed(leaders)} apart."
        ]
    return [
        f"{said}; self-retrieval asks the one nearest to search, so on this corpus expect the best "
        f"retrieval from {leaders[0]}."
    ]


def _information(report: AuditReport) -> str:
    """The first finding, and whether the order holds."""
    said = report.findings[0]
    if report.details["order_holds"]:
        return said
    return f"{said} With half of the texts the order is another: do not rely on it."


def _collapses(report: AuditReport | None) -> list[str]:
    if report is None:
        return []
    found = {
        member: [diagnosis["kind"] for diagnosis in diagnoses]
        for member, diagnoses in report.details["diagnosis"].items()
    }
    ill = [f"{member} ({listed(kinds)})" for member, kinds in found.items() if kinds]
    if not ill:
        return ["No member's vectors have collapsed."]
    return [
        f"Collapsed vectors: {', '.join(ill)}; the section on geometry says what to do about them."
    ]


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def signed(value: float) -> str:
    """A difference with its sign, to three places."""
    return f"{value:+.3f}".replace("-", "−")


def p_words(p_value: float) -> str:
    """A p value as papers write it."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
