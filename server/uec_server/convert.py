"""Messages of ``uec.v1`` to records and back: the one place where either knows the other.

Every check of a request is here and names the field as a client would write it, such as
``options.top_k`` or ``texts[3]``. What needs the index (member names, document ids) is checked by
the library.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, cast

import numpy as np
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from jaxtyping import Float

import uec
from uec.ensemble import Member, MemberEncoding
from uec.errors import InputError
from uec.records import LEXICAL, Document, Hit, PosteriorKind, Ranking, Role, SearchOptions
from uec.retriever import DEFAULTS, Retriever
from uec.v1 import uec_pb2 as pb
from uec_server.options import ServerOptions

# Packages whose version says how the server computes.
_PACKAGES = ("numpy", "torch", "sentence-transformers", "faiss-cpu", "grpcio", "protobuf")


class InvalidFieldError(InputError):
    """A field of a request cannot be used.

    Attributes:
        field: path of the field in the request.
        problem: what was got and what was expected.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


# --- requests -------------------------------------------------------------------------------------


def n_texts(request: Message) -> int:
    """How many texts a request brings, for the log; 0 where it brings none."""
    match request:
        case pb.EncodeRequest():
            return len(request.texts)
        case pb.SearchRequest():
            return len(request.queries)
        case pb.RerankRequest():
            return len(request.texts.items) + len(request.ids.doc_ids)
    return 0


def texts_to_encode(request: pb.EncodeRequest, limits: ServerOptions) -> tuple[list[str], Role]:
    """Texts and role of an Encode."""
    role = _choice(pb.Role, request.role, "role")
    if role is None:
        raise InvalidFieldError("role", "got none, expected ROLE_QUERY or ROLE_DOCUMENT")
    return _texts("texts", request.texts, limits), cast("Role", role)


def encode_options(request: pb.EncodeRequest, limits: ServerOptions) -> SearchOptions:
    """Options of an Encode."""
    options = search_options(request.options, limits)
    if options.fusion != "concat":
        raise InvalidFieldError("options.fusion", "Encode has vectors for FUSION_CONCAT only")
    return options


def queries(request: pb.SearchRequest, limits: ServerOptions) -> list[str]:
    """Queries of a Search."""
    return _texts("queries", request.queries, limits)


def query(request: pb.RerankRequest, limits: ServerOptions) -> str:
    """The query of a Rerank."""
    _check_text("query", request.query, limits)
    return request.query


def documents_to_rerank(request: pb.RerankRequest, limits: ServerOptions) -> list[Document]:
    """The candidates that a Rerank brings along; none where it names documents of the index.

    Raises:
        InvalidFieldError: no candidates of either kind, too many, a blank one, or an id twice.
    """
    match request.WhichOneof("candidates"):
        case "texts":
            documents = [
                Document(item.doc_id if item.HasField("doc_id") else str(n), item.text, item.title)
                for n, item in enumerate(request.texts.items)
            ]
            _check_count("texts.items", len(documents), limits)
            for n, document in enumerate(documents):
                _check_text(f"texts.items[{n}].text", document.passage, limits)
            _check_distinct("texts.items", [document.doc_id for document in documents])
            return documents
        case "ids":
            return []
    raise InvalidFieldError("candidates", "got none, expected texts or ids")


def ids_to_rerank(request: pb.RerankRequest, limits: ServerOptions) -> list[str]:
    """The documents of the index that a Rerank names; none where it brings texts.

    Raises:
        InvalidFieldError: too many, or an id twice.
    """
    if request.WhichOneof("candidates") != "ids":
        return []
    ids = list(request.ids.doc_ids)
    _check_count("ids.doc_ids", len(ids), limits)
    _check_distinct("ids.doc_ids", ids)
    return ids


def search_options(message: pb.SearchOptions, limits: ServerOptions) -> SearchOptions:
    """Options of a request; what is unset keeps the library's default.

    Raises:
        InvalidFieldError: a value is out of range or not one of the enum's.
    """
    given: dict[str, Any] = {
        name: getattr(message, name)
        for name in ("top_k", "n_candidates", "temperature", "beta", "max_risk")
        if message.HasField(name)
    }
    for name, enum in (("posterior", pb.Posterior), ("fusion", pb.Fusion)):
        choice = _choice(enum, getattr(message, name), f"options.{name}")
        if choice is not None:
            given[name] = choice
    if message.HasField("weights"):
        given["weights"] = dict(message.weights.by_member)
    for name, most in (("top_k", limits.max_top_k), ("n_candidates", limits.max_candidates)):
        if not 1 <= given.get(name, 1) <= most:
            raise InvalidFieldError(f"options.{name}", f"got {given[name]}, expected 1 to {most}")
    try:
        return SearchOptions(explain=message.explain, **given)
    except InputError as error:
        raise InvalidFieldError("options", str(error)) from error


def _choice(enum: Any, value: int, field: str) -> str | None:
    """``POSTERIOR_DIAG`` to ``"diag"``; None for unspecified. Any integer may arrive here."""
    if value not in enum.values():
        raise InvalidFieldError(field, f"got {value}, expected one of {', '.join(enum.keys()[1:])}")
    return str(enum.Name(value)).split("_", 1)[1].lower() if value else None


def _texts(field: str, texts: Sequence[str], limits: ServerOptions) -> list[str]:
    _check_count(field, len(texts), limits)
    for n, text in enumerate(texts):
        _check_text(f"{field}[{n}]", text, limits)
    return list(texts)


def _check_count(field: str, n: int, limits: ServerOptions) -> None:
    if not 1 <= n <= limits.max_texts:
        raise InvalidFieldError(field, f"got {n} of them, expected 1 to {limits.max_texts}")


def _check_text(field: str, text: str, limits: ServerOptions) -> None:
    if not text.strip():
        raise InvalidFieldError(field, "got a blank text")
    if len(text) > limits.max_text_chars:
        raise InvalidFieldError(
            field, f"got {len(text)} characters, expected at most {limits.max_text_chars}"
        )


def _check_distinct(field: str, ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for n, doc_id in enumerate(ids):
        if first.setdefault(doc_id, n) != n:
            raise InvalidFieldError(
                f"{field}[{n}]", f"got the id {doc_id!r} again, first at [{first[doc_id]}]"
            )


# --- replies --------------------------------------------------------------------------------------


def timings(by_stage: Mapping[str, float]) -> list[pb.StageTiming]:
    """Milliseconds by stage."""
    return [pb.StageTiming(stage=stage, duration_ms=ms) for stage, ms in by_stage.items()]


def encodings(
    names: Sequence[str],
    members: Sequence[MemberEncoding],
    posterior: PosteriorKind,
    vectors: Float[np.ndarray, "n total"],
    weights: Float[np.ndarray, "n k"] | None,
    include_members: bool,
) -> list[pb.TextEncoding]:
    """Encoded texts; `weights` is None for documents."""
    encoded = [pb.TextEncoding(vector=vector.tolist()) for vector in vectors]
    for k, (name, member) in enumerate(zip(names, members, strict=True)):
        for n, message in enumerate(encoded):
            message.members.add(
                member=name,
                mean=member.mean[n].tolist() if include_members else (),
                trace=float(member.calibrated[posterior][n]),
                raw_trace=float(member.gaussians[posterior].trace[n]),
                weight=None if weights is None else float(weights[n, k]),
                tokens=int(member.tokens[n]),
                truncated=bool(member.truncated[n]),
            )
    return encoded


def ranking(record: Ranking) -> pb.Ranking:
    """One ranking."""
    return pb.Ranking(
        hits=[_hit(hit) for hit in record.hits],
        members=[
            pb.MemberQuery(
                member=name,
                weight=weight,
                trace=record.traces[name],
                truncated=name in record.truncated,
            )
            for name, weight in record.weights.items()
        ],
        abstained=record.abstained,
    )


def info(retriever: Retriever, limits: ServerOptions) -> pb.InfoResponse:
    """What is served. No path of the server's file system is in it."""
    index = retriever.index
    calibration = retriever.ensemble.calibration
    members = [_member(member) for member in retriever.ensemble.members]
    if index.lexical is not None:
        members.append(pb.MemberInfo(name=LEXICAL))
    return pb.InfoResponse(
        members=members,
        index_fingerprint=index.artefact.fingerprint,
        n_documents=len(index),
        stored_variance="full" if index.has_full_variance else "sketch",
        defaults=pb.SearchOptions(
            top_k=DEFAULTS.top_k,
            n_candidates=DEFAULTS.n_candidates,
            posterior=pb.Posterior.Value(f"POSTERIOR_{DEFAULTS.posterior.upper()}"),
            temperature=calibration.temperature,
            beta=calibration.beta,
            fusion=pb.Fusion.Value(f"FUSION_{DEFAULTS.fusion.upper()}"),
            explain=DEFAULTS.explain,
        ),
        limits=pb.Limits(
            **{field.name: getattr(limits, field.name) for field in pb.Limits.DESCRIPTOR.fields}
        ),
        versions=_versions(),
    )


def _hit(hit: Hit) -> pb.Hit:
    message = pb.Hit(
        doc_id=hit.doc_id,
        score=hit.score,
        similarity=hit.similarity,
        variance=hit.variance,
        probability=hit.probability,
        title=hit.document.title,
        text=hit.document.text,
        members=[
            pb.MemberHit(**{field.name: getattr(member, field.name) for field in fields(member)})
            for member in hit.members
        ],
    )
    message.metadata.update(dict(hit.document.metadata))
    return message


def _member(member: Member) -> pb.MemberInfo:
    identity = member.encoder.identity
    fit = Struct()
    fit.update(dict(member.fit))
    return pb.MemberInfo(
        name=member.name,
        model=_public_name(member.spec.model),
        revision=identity["revision"],
        dimension=member.encoder.dimension,
        max_length=identity["max_length"],
        query_prompt=identity["query_prompt"],
        document_prompt=identity["document_prompt"],
        similarity=member.encoder.similarity,
        fit=fit,
    )


def _public_name(model: str) -> str:
    """A hub id as it is; of a local folder only its last part."""
    path = Path(model).expanduser()
    return path.resolve().name if path.is_absolute() or path.exists() else model


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"uec": uec.__version__, "python": python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
