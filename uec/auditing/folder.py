"""What an audit leaves behind: `Audited`, and the folder that keeps it.

report.json   all numbers; equal results give equal bytes
report.html   the page for readers (`uec.auditing.report`)
probes/       one word probe a member (`uec.auditing.words`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from uec import __version__
from uec.auditing.selection import Choice, Step
from uec.errors import CorruptArtefactError, InputError, NotFoundError
from uec.records import AuditReport

FORMAT, SCHEMA = "uec-audit", 2
REPORT, PROBES = "report.json", "probes"


@dataclass(slots=True)
class Audited:
    """What is known of the members afterwards; all of it JSON-able.

    Attributes:
        corpus: what was read and sampled.
        members: name, model, dimension, spec and identity of each.
        reports: by audit.
        refused: audit to why it has no answer.
        notes: what a reader has to know of the texts and members.
        choice: the recommended set; None without self-retrieval.
        seconds: by stage; not saved, for two equal runs give equal files.
    """

    corpus: dict[str, Any]
    members: list[dict[str, Any]]
    reports: dict[str, AuditReport] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    choice: Choice | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the members."""
        return [member["name"] for member in self.members]


def prepare(folder: Path) -> Path:
    """Make the folder of a report, before hours are spent on what could not be written.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write a report to {folder}: {error}") from error
    return folder


def save(result: Audited, folder: Path) -> Path:
    """Write ``report.json`` into an existing folder; equal results give equal bytes."""
    content = {
        "format": FORMAT,
        "schema": SCHEMA,
        "uec": __version__,
        "corpus": result.corpus,
        "members": result.members,
        "notes": result.notes,
        "audits": {name: asdict(report) for name, report in result.reports.items()},
        "refused": result.refused,
        "recommended": None
        if result.choice is None
        else {
            "members": list(result.choice.members),
            "steps": [asdict(step) for step in result.choice.steps],
        },
    }
    path = folder / REPORT
    text = json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def load(folder: Path) -> Audited:
    """Read what `save` wrote.

    Raises:
        NotFoundError: there is no report in the folder.
        CorruptArtefactError: the file is not such a report.
    """
    path = folder / REPORT
    if not path.is_file():
        raise NotFoundError(f"no {REPORT} in {folder}; write one with `uec audit --out {folder}`")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["schema"] != SCHEMA:
            raise CorruptArtefactError(
                f"{path} is {content['format']!r} of schema {content['schema']}; expected "
                f"{FORMAT!r} of schema {SCHEMA}"
            )
        recommended = content["recommended"]
        return Audited(
            content["corpus"],
            content["members"],
            {name: _report(report) for name, report in content["audits"].items()},
            content["refused"],
            content["notes"],
            None
            if recommended is None
            else Choice(
                tuple(Step(**step) for step in recommended["steps"]), len(recommended["members"])
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtefactError(
            f"{path} is not a report of `uec audit` ({error}); run it again"
        ) from error


def _report(fields: Mapping[str, Any]) -> AuditReport:
    listed = {key: tuple(fields[key]) for key in ("rows", "findings", "warnings")}
    return AuditReport(**{**fields, **listed})


def _plain(value: Any) -> Any:
    """The same for JSON: NumPy's scalars as Python's, and None where there is no number."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
