"""An ensemble as MTEB's models: `UECSearch` for retrieval, `UECEncoder` for every other task.

`UECSearch` is the product itself: `index` builds an index and calibrates it without labels,
`search` is `uec.retriever.Retriever.search`. `UECEncoder` gives the unit vectors of
`uec.symmetric`, whose cosine is the members' fused similarity.

    >>> import mteb                                                    # doctest: +SKIP
    >>> model = UECSearch(uec.Ensemble.load("my-ensemble"))            # doctest: +SKIP
    >>> mteb.evaluate(model, mteb.get_task("SciFact"))                 # doctest: +SKIP

Both put the ensemble's content into `mteb_model_meta.revision`: MTEB's result cache goes by name
and revision, and would hand one ensemble's figures to another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

import uec
from uec.build import build_index, recalibrate
from uec.calibrating import calibrate
from uec.ensemble import Ensemble
from uec.errors import DependencyError, InputError, UECError
from uec.index import Index
from uec.records import Document, PosteriorKind, Ranking, Role, SearchOptions
from uec.retriever import DEFAULTS, Retriever
from uec.symmetric import SymmetricEncoder

try:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.similarity_functions import dot_score, pairwise_dot_score
    from mteb.types import PromptType
except ModuleNotFoundError as error:
    raise DependencyError(str(error.name), "integrations", "the MTEB integration") from error

logger = logging.getLogger(__name__)

BATCH = 64
"""Queries a search: a thousand hits each, with their texts, are held at a time."""


def fingerprint(ensemble: Ensemble, settings: Mapping[str, Any]) -> str:
    """Sixteen hex digits of all that decides a score.

    Args:
        ensemble: the identity of every encoder, its posteriors and the calibration count; what the
            fit recorded of itself does not.
        settings: JSON-able; options of the search or of the encoding.

    Returns:
        Part of a sha256. The version of this package goes in, since other code is another score.
    """
    digest = hashlib.sha256()
    members: list[dict[str, Any]] = []
    for member in ensemble.members:
        described = {"name": member.name, "identity": dict(member.encoder.identity)}
        members.append({**described, "medians": member.scale.medians})
        for kind in sorted(member.posteriors):
            for name, array in sorted(member.posteriors[kind].arrays().items()):
                digest.update(f"{member.name}/{kind}/{name}{array.shape}{array.dtype}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
    calibration = ensemble.calibration.to_json() | {"report": None}
    content = [uec.__version__, members, calibration, dict(settings)]
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _model_meta(name: str, ensemble: Ensemble, settings: Mapping[str, Any]) -> ModelMeta:
    known = {
        "name": f"uec/{name}",
        "revision": fingerprint(ensemble, settings),
        "embed_dim": sum(ensemble.dimensions),
    }
    return ModelMeta.create_empty(known)


class UECSearch:
    """MTEB's ``SearchProtocol``: the offline build and the online path of this package.

    Args:
        ensemble: embeds corpus and queries; its calibration is replaced by that of each corpus.
        name: the model is called ``uec/NAME`` in results.
        options: how to search; MTEB says how many hits.
        calibrated: learn the weights on each corpus. A corpus too small for it keeps the
            ensemble's own, and `calibrations` says so.
        seed: of the calibration.
        folder: keep the index of each task here; None builds it in a temporary folder.

    Attributes:
        calibrations: ``TASK/SUBSET/SPLIT`` to the report of its calibration, or to
            ``{"not calibrated": why}``.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        name: str = "ensemble",
        options: SearchOptions = DEFAULTS,
        calibrated: bool = True,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        self.calibrations: dict[str, Mapping[str, Any]] = {}
        self._ensemble = ensemble
        self._options = options
        self._calibrated = calibrated
        self._seed = seed
        self._kept = folder is not None
        self._folder = folder or _temporary(self)
        self._indexed: tuple[str, Retriever] | None = None
        settings = dataclasses.asdict(options) | {"calibrated": calibrated, "seed": seed}
        for of_the_answer_only in ("top_k", "explain"):
            del settings[of_the_answer_only]
        self._meta = _model_meta(name, ensemble, {"door": "search", **settings})

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and revision; the revision is the `fingerprint` of ensemble and settings."""
        return self._meta

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Build and calibrate an index of a corpus; it takes the place of the last one.

        The corpus has ``id``, ``text`` and perhaps ``title``, joined as MTEB joins them for
        encoders. Of `encode_kwargs` the ``batch_size`` counts.

        Raises:
            InputError: a row is not text, an identifier occurs twice, or there are no rows.
            EmbeddingError: a member gave a vector that cannot be indexed; names the document.
        """
        key = _key(task_metadata, hf_subset, hf_split)
        # Let go of the last index first: the build may then remove it.
        self._indexed = None
        path = self._folder / (key.replace("/", "--") if self._kept else "index")
        artefact = build_index(
            self._ensemble, _documents(corpus, key), path, batch_size=_batch_size(encode_kwargs)
        )
        retriever = Retriever(Index(artefact, self._ensemble))
        if self._calibrated:
            try:
                calibration = calibrate(
                    retriever, posterior=self._options.posterior, seed=self._seed
                )
            except InputError as error:
                # As `uec index` does: a corpus of a few texts can be searched all the same.
                self.calibrations[key] = {"not calibrated": _note(key, error)}
            else:
                artefact = recalibrate(path, artefact, calibration)
                ensemble = dataclasses.replace(self._ensemble, calibration=calibration)
                retriever = Retriever(Index(artefact, ensemble))
                self.calibrations[key] = calibration.report or {}
        self._indexed = (key, retriever)

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Search the index that `index` made last; order `top_ranked` where it is given.

        Queries have ``id`` and ``text``; an ``instruction`` follows the text, as in MTEB.

        Returns:
            Query id to document id to score: for every query as many as were asked for and there
            are, all finite. MTEB would drop a query without an answer from its mean, and take NaN.

        Raises:
            InputError: no index of this task was built, or a query is not text or occurs twice.
            UECError: the answer to a query is incomplete or not finite; names the query.
        """
        key = _key(task_metadata, hf_subset, hf_split)
        _batch_size(encode_kwargs)
        if self._indexed is None or self._indexed[0] != key:
            there = "none" if self._indexed is None else self._indexed[0]
            raise InputError(f"search of {key}: the index is of {there}; call index() first")
        retriever = self._indexed[1]
        options = dataclasses.replace(
            self._options, top_k=top_k, n_candidates=max(top_k, self._options.n_candidates)
        )
        texts = _queries(queries, key)
        answers: dict[str, dict[str, float]] = {}
        for query_id, ranking in _rankings(retriever, texts, options, top_ranked):
            among = len(retriever.index) if top_ranked is None else len(set(top_ranked[query_id]))
            answers[query_id] = _complete(key, query_id, ranking, min(top_k, among))
        return answers


class UECEncoder:
    """MTEB's ``EncoderProtocol``: unit vectors by `uec.symmetric`.

    Spreads and weights of a task (and subset) are learnt, without labels, on the texts of its first
    `encode` call, and stay for the calls that follow: sentences 1 and 2 of a similarity task,
    training and test texts of a classification. Texts are encoded as queries, the role that
    encoders with two prompts ask for in symmetric tasks, unless MTEB says that they are documents.

    Args:
        ensemble: its members encode.
        name: the model is called ``uec/NAME`` in results.
        calibrated: learn weights; otherwise they are the ensemble's own, equal as it comes. So they
            are where the texts of a task are too few or too short, and `calibrations` says so.
        posterior: whose traces may weigh.
        seed: of the sample of texts and of the calibration.

    Attributes:
        calibrations: ``TASK/SUBSET`` to what was learnt: "coefficients" by member and the
            calibration's "report", or "not calibrated" with the reason.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        name: str = "ensemble",
        calibrated: bool = True,
        posterior: PosteriorKind = "kron",
        seed: int = 0,
    ) -> None:
        self.calibrations: dict[str, Mapping[str, Any]] = {}
        self._ensemble = ensemble
        self._calibrated = calibrated
        self._settings: dict[str, Any] = {"posterior": posterior, "seed": seed}
        self._encoders: dict[str, SymmetricEncoder] = {}
        settings = {"door": "encode", "calibrated": calibrated, **self._settings}
        self._meta = _model_meta(name, ensemble, settings)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and revision; the revision is the `fingerprint` of ensemble and settings."""
        return self._meta

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Float[np.ndarray, "n total"]:
        """Encode batches whose ``text`` is a list; of `kwargs` the ``batch_size`` counts.

        Returns:
            (n, sum of d_k) unit vectors, in the order of the texts.

        Raises:
            InputError: there are no texts, or one is not text.
            EmbeddingError: a member gave a vector that cannot be compared.
        """
        batch_size = _batch_size(kwargs)
        key = f"{task_metadata.name}/{hf_subset}"
        texts = [_text(text, key) for batch in inputs for text in batch["text"]]
        if key not in self._encoders:
            self._encoders[key] = self._learn(key, texts, batch_size)
        role: Role = "document" if prompt_type == PromptType.document else "query"
        return self._encoders[key].encode(texts, role, batch_size=batch_size)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Inner products of all pairs, which are their cosines, (n, m)."""
        return dot_score(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Inner products of corresponding vectors, (n,)."""
        return pairwise_dot_score(embeddings1, embeddings2)

    def _learn(self, key: str, texts: Sequence[str], batch_size: int) -> SymmetricEncoder:
        settings = {**self._settings, "batch_size": batch_size}
        calibrated = self._calibrated
        said: dict[str, Any] = {}
        if calibrated:
            try:
                fitted = SymmetricEncoder.fit(self._ensemble, texts, **settings)
                said["report"] = fitted.calibration.report
            except InputError as error:
                said["not calibrated"] = _note(key, error)
                calibrated = False
        if not calibrated:
            fitted = SymmetricEncoder.fit(self._ensemble, texts, calibrated=False, **settings)
        self.calibrations[key] = {"coefficients": fitted.coefficients, **said}
        return fitted


def _temporary(owner: UECSearch) -> Path:
    made = Path(tempfile.mkdtemp(prefix="uec-mteb-"))
    weakref.finalize(owner, shutil.rmtree, made, ignore_errors=True)
    return made


def _note(key: str, error: InputError) -> str:
    logger.warning("%s is not calibrated: %s", key, error)
    return str(error)


def _key(task_metadata: TaskMetadata, hf_subset: str, hf_split: str) -> str:
    return f"{task_metadata.name}/{hf_subset}/{hf_split}"


def _batch_size(encode_kwargs: Mapping[str, Any]) -> int:
    precision = encode_kwargs.get("precision")
    if precision not in (None, "float32"):
        raise InputError(f"precision {precision!r} is not offered; expected float32 or none")
    return int(encode_kwargs.get("batch_size", 32))


def _text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise InputError(
            f"{where}: expected text, got {type(text).__name__}; only tasks of plain texts can "
            "be run, no conversations, images or sound"
        )
    return text


def _documents(corpus: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[str, Document]]:
    for number, row in enumerate(corpus, 1):
        where = f"{key}: document {number}"
        title = row.get("title") or ""
        text = _text(row["text"], where)
        # MTEB strips after joining; `Document.passage` leaves a text without title alone.
        yield where, Document(str(row["id"]), text if title else text.strip(), title)


def _queries(queries: Iterable[Mapping[str, Any]], key: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in queries:
        query_id = str(row["id"])
        if query_id in texts:
            raise InputError(f"{key}: query id {query_id!r} occurs twice")
        text = _text(row["text"], f"{key}: query {query_id!r}")
        instruction = row.get("instruction")
        texts[query_id] = text if instruction is None else f"{text} {instruction}"
    return texts


def _rankings(
    retriever: Retriever,
    texts: Mapping[str, str],
    options: SearchOptions,
    top_ranked: Mapping[str, Sequence[str]] | None,
) -> Iterator[tuple[str, Ranking]]:
    if top_ranked is not None:
        for query_id, text in texts.items():
            if query_id not in top_ranked:
                raise InputError(f"query {query_id!r} has no documents to rerank")
            chosen = list(dict.fromkeys(top_ranked[query_id]))
            yield query_id, retriever.rerank_ids(text, chosen, options)
        return
    ids = list(texts)
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        yield from zip(some, retriever.search([texts[i] for i in some], options), strict=True)


def _complete(key: str, query_id: str, ranking: Ranking, n_expected: int) -> dict[str, float]:
    scores = {hit.doc_id: hit.score for hit in ranking.hits}
    if len(scores) != n_expected or not np.isfinite(list(scores.values())).all():
        finite = int(np.isfinite(list(scores.values())).sum())
        raise UECError(
            f"{key}: query {query_id!r} got {finite} finite scores of {len(scores)} documents; "
            f"expected {n_expected}. The index or a member's encoder is faulty"
        )
    return scores
