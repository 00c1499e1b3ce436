"""UEC: several text embedders behind one search, each trusted as far as it knows the query.

The modules in reading order:

    records, errors         the nouns, and what can go wrong
    gaussian, similarity    an embedding is a Gaussian; the similarity of two of them
    weights, fusion         how much each member counts; k similarities put together
    posterior, laplace      from what a last layer read to a variance; how that is fitted
    encoders, ensemble      text to readouts; several encoders with their posteriors
    storage, stores         folders that survive a crash; vectors and documents on disk
    build, index            corpus to index folder; an index folder opened
    weighing, retriever     queries to weights; text to ranked hits, on one screen
    selfretrieval, trust    pieces of the corpus as queries; how far each member can be trusted
    calibrating, relevance  an index to its calibration; scores to probabilities
    audits, auditing        each audit as a function of arrays; all of them, to a report
    page, drawing, svg      pages of prose, tables and figures
    symmetric               one fused vector a text, where there is no query side
    client                  the same over gRPC

Importing this package loads no torch; names below are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uec.build import build_index as build_index
    from uec.calibrating import calibrate_index as calibrate_index
    from uec.client import Client as Client
    from uec.ensemble import Ensemble as Ensemble
    from uec.errors import UECError as UECError
    from uec.fitting import fit_ensemble as fit_ensemble
    from uec.records import Document as Document
    from uec.records import Hit as Hit
    from uec.records import MemberSpec as MemberSpec
    from uec.records import Pair as Pair
    from uec.records import Query as Query
    from uec.records import Ranking as Ranking
    from uec.records import SearchOptions as SearchOptions
    from uec.retriever import Retriever as Retriever

_HOMES = {
    "Client": "uec.client",
    "Document": "uec.records",
    "Ensemble": "uec.ensemble",
    "Hit": "uec.records",
    "MemberSpec": "uec.records",
    "Pair": "uec.records",
    "Query": "uec.records",
    "Ranking": "uec.records",
    "Retriever": "uec.retriever",
    "SearchOptions": "uec.records",
    "UECError": "uec.errors",
    "build_index": "uec.build",
    "calibrate_index": "uec.calibrating",
    "fit_ensemble": "uec.fitting",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 (names are strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'uec' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
