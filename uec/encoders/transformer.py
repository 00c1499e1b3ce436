"""An encoder on a sentence-transformers model: its embedding and what its last layer read.

The model is run as ``SentenceTransformer.encode_query`` and ``encode_document`` run it: same
prompts, same tokens, same modules. The readout (`uec.encoders.readouts`) listens in the same pass,
so that uncertainty costs about a percent of it. For the cosine, z/|z| is given and the features are
divided by |z|: first order, the radial part not removed. This module knows nothing of posteriors.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array, vstack
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding
from torch import Tensor, nn

from uec.encoders import Progress
from uec.encoders.finding import find_readout
from uec.encoders.loading import load_model, quiet, weights_sha256
from uec.encoders.readouts import Reading
from uec.errors import EmbeddingError, InputError, UnsupportedEncoderError
from uec.records import Encoding, MemberSpec, Role, Similarity

DEVICE_VARIABLE = "UEC_DEVICE"
# Prompt names by role, most specific first; E5's models call a document a passage.
PROMPT_NAMES: Mapping[str, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
# Tokenizers without a limit report a huge number as theirs.
NO_LIMIT = 10**9
NOISY_LOGGERS = ("sentence_transformers", "transformers", "huggingface_hub")


class TransformerEncoder:
    """A sentence-transformers model with a known last linear layer; see `uec.encoders.Encoder`.

    Safe to call from several threads: the batches of one encoder take turns.
    """

    spec: MemberSpec
    similarity: Similarity

    def __init__(self, spec: MemberSpec) -> None:
        """Load the model that a spec names; code that comes with a model is never run.

        Raises:
            NotFoundError: no such model, folder or package.
            InputError: the spec's maximum length or the device is not usable.
            UnsupportedEncoderError: the model's variance is not known.
        """
        model, revision = load_model(spec)
        self._set_up(spec, model, revision)

    @classmethod
    def from_model(cls, spec: MemberSpec, model: SentenceTransformer) -> TransformerEncoder:
        """Wrap a model that is already in memory; its maximum length may be changed.

        Raises:
            InputError: the spec's maximum length is not usable.
            UnsupportedEncoderError: the model's variance is not known.
        """
        encoder = cls.__new__(cls)
        encoder._set_up(spec, model, None)
        return encoder

    def _set_up(self, spec: MemberSpec, model: SentenceTransformer, revision: str | None) -> None:
        self.spec = spec
        self._model = model.eval()
        self._lock = threading.Lock()
        self.similarity = _similarity(model, spec.model)
        with quiet():
            self._max_length = _set_max_length(model, spec.max_length)
            readout = find_readout(model, spec.model)
        self._readout = readout
        self._prompts = {role: _prompt(model, spec, cast(Role, role)) for role in PROMPT_NAMES}
        # Matryoshka truncation keeps the first outputs, that is, the first rows of W.
        self.weight: Float[np.ndarray, "d h"] = readout.weight[: model.truncate_dim]
        self.gain: Float[np.ndarray, " d"] = readout.gain[: model.truncate_dim]
        self.dimension, self.n_features = self.weight.shape
        pooling = next((m for m in model.children() if isinstance(m, Pooling)), None)
        self.identity: Mapping[str, Any] = {
            "model": spec.model,
            "revision": revision,
            "weights_sha256": weights_sha256(model),
            "pooling": pooling.pooling_mode if pooling else None,
            "include_prompt": pooling.include_prompt if pooling else None,
            "query_prompt": self._prompts["query"],
            "document_prompt": self._prompts["document"],
            "max_length": self._max_length,
            "similarity": self.similarity,
            "dtype": str(model.dtype).removeprefix("torch."),
            "dimension": self.dimension,
            "n_features": self.n_features,
            "readout": readout.describe(),
        }

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Encoding:
        """Embed texts, longest first so that a batch carries little padding.

        Args:
            texts: n texts; an empty list gives zero rows.
            role: chooses the prompt.
            batch_size: texts a forward pass.
            progress: called after each batch with its number of texts.

        Raises:
            InputError: a text is not a string of valid Unicode without NUL; says which.
            EmbeddingError: the model gave NaN, infinite or zero vectors; says for which text.
        """
        _check_texts(texts, role, batch_size)
        n, d = len(texts), self.dimension
        mean = np.empty((n, d), np.float32)
        tokens, truncated = np.zeros(n, np.int64), np.zeros(n, bool)
        gain: Float[np.ndarray, "n d"] | None = None
        features: list[Any] = []
        order = np.argsort([-len(text) for text in texts], kind="stable")
        for start in range(0, n, batch_size):
            rows = order[start : start + batch_size]
            with self._lock:
                reading, counts, cut = self._read([texts[row] for row in rows], rows, role)
            tokens[rows], truncated[rows] = counts, cut
            mean[rows], scaled = self._finish(reading, rows)
            features.append(scaled)
            if reading.gain is not None:
                gain = np.empty((n, d), np.float32) if gain is None else gain
                gain[rows] = reading.gain[:, :d]
            if progress is not None:
                progress(len(rows))
        return Encoding(mean, self._in_order(features, order), gain, tokens, truncated)

    def _read(
        self, batch: list[str], rows: Int[np.ndarray, " n"], role: Role
    ) -> tuple[Reading, Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Tokenize and run one batch; gives its reading, tokens read, and where text was cut."""
        inputs = self._model.preprocess(batch, prompt=self._prompts[role] or None, task=role)
        counts = _count_tokens(inputs, len(batch))
        cut = self._cut(batch, inputs, counts, role)
        if not counts.all():
            row = int(rows[counts == 0][0])
            raise EmbeddingError(
                f"{self.spec.name!r} finds no token in text {row}, so it has no embedding; "
                "leave that text out",
                row,
            )
        device = self._model.device
        placed = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        return self._readout.read(placed, task=role), counts, cut

    def _cut(
        self, batch: list[str], inputs: Mapping[str, Any], counts: Int[np.ndarray, " n"], role: Role
    ) -> Bool[np.ndarray, " n"]:
        """Where the text, prompt included, was longer than what was read."""
        encodings = getattr(inputs, "encodings", None)
        first = self._model[0]
        prompt = self._prompts[role]
        if isinstance(first, StaticEmbedding):
            if not first.tokenizer.truncation:
                return np.zeros(len(batch), bool)
            encodings = first.tokenizer.encode_batch(
                [prompt + text for text in batch], add_special_tokens=False
            )
        if encodings is not None:
            return np.array([bool(encoding.overflowing) for encoding in encodings])
        # A tokenizer written in Python does not say what it cut: count again without a limit.
        with quiet():
            whole = self._model.preprocess(
                batch,
                prompt=prompt or None,
                task=role,
                processing_kwargs={"text": {"truncation": False}},
            )
        return np.asarray(_count_tokens(whole, len(batch)) > counts)

    def _finish(
        self, reading: Reading, rows: Int[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, "n d"], Any]:
        """Check z, cut it to the member's dimension and, for the cosine, divide by its length."""
        raw = reading.embedding[:, : self.dimension]
        length = np.linalg.norm(raw, axis=1)
        data = (
            reading.features.data if isinstance(reading.features, csr_array) else reading.features
        )
        usable = np.isfinite(length) & (length > 0)
        if data is reading.features:
            usable &= np.isfinite(data).all(1)
        if not usable.all():
            bad = int(np.flatnonzero(~usable)[0])
            row, what = int(rows[bad]), "a zero" if length[bad] == 0 else "a NaN or infinite"
            raise EmbeddingError(
                f"{self.spec.name!r} gave {what} embedding for text {row}; leave that text out", row
            )
        if self.similarity == "dot":
            return raw, reading.features
        inverse = (1 / length)[:, None]
        if isinstance(reading.features, csr_array):
            return raw * inverse, csr_array(reading.features.multiply(inverse))
        return raw * inverse, reading.features * inverse

    def _in_order(self, features: list[Any], order: Int[np.ndarray, " n"]) -> Any:
        """Stack the batches' features and put the rows back into the order of the texts."""
        if not features:
            return np.empty((0, self.n_features), np.float32)
        back = np.argsort(order)
        if isinstance(features[0], csr_array):
            return csr_array(vstack(features, format="csr")[back])
        return np.concatenate(features)[back]


def _similarity(model: SentenceTransformer, name: str) -> Similarity:
    """The cosine wherever vectors are normalised; else what the model was trained for."""
    given = model.similarity_fn_name
    if given not in {"cosine", "dot"}:
        raise UnsupportedEncoderError(
            f"model {name!r} compares by {given}; only cosine and dot product are known"
        )
    normalised = isinstance(list(model.children())[-1], Normalize)
    return "dot" if given == "dot" and not normalised else "cosine"


def _prompt(model: SentenceTransformer, spec: MemberSpec, role: Role) -> str:
    """The spec's prompt, else the model's for the role, else its default; "" for none."""
    override = spec.query_prompt if role == "query" else spec.document_prompt
    if override is not None:
        return override
    names = [name for name in PROMPT_NAMES[role] if name in model.prompts]
    if not names and model.default_prompt_name is not None:
        names = [model.default_prompt_name]
    # sentence-transformers adds an empty "document" to a model that only has a "passage".
    return next((text for name in names if (text := model.prompts[name])), "")


def _set_max_length(model: SentenceTransformer, wanted: int | None) -> Any:
    """Apply the spec's maximum length; gives the one in force, by role where roles differ.

    Raises:
        InputError: the length leaves no room for text or exceeds the model's positions.
        UnsupportedEncoderError: queries are padded with expansion tokens.
    """
    first = model[0]
    if not isinstance(first, Transformer):
        if wanted is not None:
            raise InputError(f"max_length {wanted}: this model reads whole texts; leave it out")
        return None
    if first.query_expansion is not None:
        raise UnsupportedEncoderError("the model expands queries with tokens of its own")
    # Rows of tokens and rows of texts must agree, so texts are padded, never run together.
    first.unpad_inputs = False
    text_options = first.processing_kwargs.get("text", {})
    limit = _position_limit(first.model)
    if wanted is not None:
        special = first.tokenizer.num_special_tokens_to_add() if first.tokenizer else 0
        if not special < wanted <= limit:
            most = f"at most {limit}" if limit < NO_LIMIT else "no limit known"
            raise InputError(f"max_length {wanted}: expected more than {special}, {most}")
        text_options.pop("max_length", None)
        first.query_length = first.document_length = None
        first.max_seq_length = wanted
    elif (first.max_seq_length or NO_LIMIT) > limit:
        # A tokenizer that allows more tokens than there are positions crashes on long texts.
        first.max_seq_length = limit
    shared = text_options.get("max_length")
    lengths = {
        role: int(shared or own or first.max_seq_length or NO_LIMIT)
        for role, own in (("query", first.query_length), ("document", first.document_length))
    }
    finite = {role: length if length < NO_LIMIT else None for role, length in lengths.items()}
    return finite["query"] if len(set(finite.values())) == 1 else finite


def _position_limit(transformer: nn.Module) -> int:
    """Most tokens that the model has positions for; `NO_LIMIT` where it says none."""
    for module in transformer.modules():
        table, padding = (
            getattr(module, "position_embeddings", None),
            getattr(module, "padding_idx", None),
        )
        if isinstance(table, nn.Embedding) and isinstance(padding, int):
            # RoBERTa's family counts positions from padding_idx + 1.
            return table.num_embeddings - padding - 1
    config: Any = transformer.config
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else NO_LIMIT


def _check_texts(texts: Sequence[str], role: str, batch_size: int) -> None:
    if role not in PROMPT_NAMES:
        raise InputError(f"role {role!r}: expected 'query' or 'document'")
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}: expected at least 1")
    if isinstance(texts, str):
        raise InputError("texts is a single string: expected a list of strings")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {index} is {type(text).__name__}: expected a string")
        if "\0" in text:
            raise InputError(f"text {index} contains a NUL character; remove it")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"text {index} is not valid Unicode: {error.reason}") from error


def _count_tokens(inputs: Mapping[str, Any], n: int) -> Int[np.ndarray, " n"]:
    """Tokens read for each text, padding excluded."""
    if "offsets" in inputs:
        ends = np.append(inputs["offsets"].numpy(), len(inputs["input_ids"]))
        return np.diff(ends)
    if "attention_mask" not in inputs:
        return np.full(n, inputs["input_ids"].shape[1])
    return np.asarray(inputs["attention_mask"].sum(1).cpu().numpy())
