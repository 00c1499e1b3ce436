"""Audits: judge the members of an ensemble without labels.

Every module here has the same anatomy: pure functions, one a measure, and `audit`, which takes the
members' embeddings of the same texts (or of the same pairs of texts) and gives an
`uec.records.AuditReport`. An audit knows arrays only; reading texts, encoding them and drawing the
report are the business of its callers.

    overlap    do neighbours stay neighbours on the other side of a pair?
    ica        in how few independent components do the two sides of a pair differ?
    agreement  how alike do two members see the same texts?
    geometry   how do the embeddings fill their space, and have they collapsed?
    flare      how much does one member know of another?
    flip       which words does an embedding hold?

Below these lie their parts, which import no audit: `inputs` (checks), `neighbours` (exact search),
`concentration`, `spectrum`, `sphere` (measures), `maps`, `collapse` (words); for flare `densities`,
`sufficiency`, `information`, `flare_study` and `flare_words`; for flip `vocabulary`, `extraction`,
`probe`, `probefit`, `wordjudge` and `wordfindings`; and `relation`: does a measure rank models as
a supervised score does?

The audits need the extra ``audit``; `load` imports one only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType

from uec.errors import DependencyError, NotFoundError
from uec.records import AuditReport

AUDITS: Mapping[str, str] = MappingProxyType(
    {
        name: f"uec.audits.{name}"
        for name in ("flare", "overlap", "agreement", "ica", "flip", "geometry")
    }
)
"""Name of an audit to the module that holds its `audit`."""


PACKAGES = ("faiss", "jinja2", "matplotlib", "sentencex", "sklearn", "torch", "zuko")
"""What an audit and its page import, all of it brought by the extra ``audit``."""


def check_installed() -> None:
    """Refuse to start what would fail for want of a package after hours of embedding.

    Raises:
        DependencyError: names a missing package and the command that installs it.
    """
    for package in PACKAGES:
        if find_spec(package) is None:
            raise DependencyError(package, "audit", "uec audit")


def load(name: str) -> Callable[..., AuditReport]:
    """The `audit` function of one audit.

    Args:
        name: a key of `AUDITS`.

    Raises:
        NotFoundError: no such audit.
        DependencyError: the extra ``audit`` is not installed.
    """
    if name not in AUDITS:
        raise NotFoundError(f"no audit {name!r}; there are: {', '.join(AUDITS)}")
    try:
        module = import_module(AUDITS[name])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "uec"):
            raise
        raise DependencyError(package, "audit", f"the audit {name!r}") from error
    audit: Callable[..., AuditReport] = module.audit
    return audit
