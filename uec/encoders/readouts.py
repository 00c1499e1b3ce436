"""The last linear layer of a sentence-transformers model: what it reads and how it is felt.

Write W (d, h) for the last weight matrix, h_t for what it reads at token t, u_t for what the final
normalisation reads (``u_t = W h_t + b + residual``) and s_t for the scale it divides by. Then, to
first order and on the diagonal of the normalisation's Jacobian,

    d z_j / d W_ji = gain_j * features_i,      features = pool_t(h_t / s_t),

where `pool` is the model's own pooling, so that mean and variance see the same tokens:

    norm    Linear + residual -> LayerNorm or RMSNorm -> Pooling      gain_j = the norm's weight_j
    dense   Pooling -> Dense                                          features = the Dense's input,
                                                                      gain_j = activation'(u_j)
    static  mean of embedding rows; W is the transposed table         features = bag / count, gain 1

`uec.encoders.finding` finds which of them a model has. This module knows nothing of prompts,
batches or the length of z.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Reading:
    """One batch as the last linear layer sees it; z is not yet divided by its length.

    Attributes:
        embedding: (n, d) the raw embedding z, before any `Normalize`.
        features: (n, h) pooled and scaled inputs of the last linear layer.
        gain: (n, d) where it varies with the text, else None.
    """

    embedding: Float[np.ndarray, "n d"]
    features: Float[np.ndarray, "n h"] | csr_array
    gain: Float[np.ndarray, "n d"] | None


class Readout(ABC):
    """The last linear layer of one model.

    Attributes:
        weight: (d, h) its weight matrix, as trained.
        gain: (d,) constant gain of each output; ones where `Reading.gain` is given.
    """

    weight: Float[np.ndarray, "d h"]
    gain: Float[np.ndarray, " d"]

    def __init__(self, model: SentenceTransformer, last: nn.Module) -> None:
        self._model = model
        # The module that gives the raw embedding: what follows only normalises it.
        self._last = last

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What was found, JSON-able, for the member's identity."""

    @abstractmethod
    def read(self, inputs: Mapping[str, Any], **kwargs: Any) -> Reading:
        """Run the model on one preprocessed batch; kwargs go to its forward."""

    def _forward(
        self, inputs: Mapping[str, Any], taps: Mapping[str, nn.Module], **kwargs: Any
    ) -> dict[str, Any]:
        """Forward once; gives the model's output, each tap's input, and z under ``"raw"``."""
        seen: dict[str, Any] = {}

        def keep_raw(_module: nn.Module, _args: Any, output: dict[str, Any]) -> None:
            seen["raw"] = output["sentence_embedding"]

        handles = [self._last.register_forward_hook(keep_raw)]
        for name, tap in taps.items():
            handles.append(tap.register_forward_pre_hook(keep_input(seen, name)))
        with removed_after(handles), torch.inference_mode():
            seen["output"] = self._model(dict(inputs), **kwargs)
        return seen


class NormReadout(Readout):
    """A Linear whose output, plus a residual, is normalised and then pooled."""

    def __init__(
        self,
        model: SentenceTransformer,
        pooling: Pooling,
        linear: tuple[str, nn.Linear],
        norm: tuple[str, nn.Module],
        form: NormForm,
    ) -> None:
        super().__init__(model, pooling)
        self._pooling = pooling
        self._linear_name, self._linear = linear
        self._norm_name, self._norm = norm
        self._form = form
        self.weight = _numpy(self._linear.weight)
        self.gain = _numpy(form.gain)

    def describe(self) -> dict[str, Any]:
        """Kind of the normalisation and the names of both modules."""
        return {"kind": self._form.kind, "linear": self._linear_name, "norm": self._norm_name}

    def read(self, inputs: Mapping[str, Any], **kwargs: Any) -> Reading:
        """Run the model; features are pool_t(h_t / s_t), as one product (n, T) x (n, T, h)."""
        seen = self._forward(inputs, {"h": self._linear, "u": self._norm}, **kwargs)
        weights = token_weights(self._pooling, seen["output"])
        with torch.inference_mode():
            per_token = weights / self._form.scale(seen["u"])
            features = torch.bmm(per_token[:, None, :], seen["h"].float())[:, 0]
        return Reading(_numpy(seen["raw"]), _numpy(features), None)


class DenseReadout(Readout):
    """A Dense head after the pooling: Linear, activation, perhaps a residual."""

    def __init__(self, model: SentenceTransformer, name: str, dense: Dense) -> None:
        super().__init__(model, dense)
        self._name, self._dense = name, dense
        self._activation = cast(nn.Module, dense.activation_function)
        self.weight = _numpy(dense.linear.weight)
        self.gain = np.ones(len(self.weight), np.float32)

    def describe(self) -> dict[str, Any]:
        """The Dense module's place in the pipeline and its activation."""
        activation = type(self._activation).__name__
        return {"kind": "dense", "linear": f"{self._name}.linear", "activation": activation}

    def read(self, inputs: Mapping[str, Any], **kwargs: Any) -> Reading:
        """Run the model; features are the head's input, gain the activation's derivative."""
        taps = {"h": self._dense.linear, "u": self._activation}
        seen = self._forward(inputs, taps, **kwargs)
        gain = None
        if not isinstance(self._activation, nn.Identity):
            gain = _numpy(_derivative(self._activation, seen["u"]))
        return Reading(_numpy(seen["raw"]), _numpy(seen["h"]), gain)


class StaticReadout(Readout):
    """The mean of one embedding row a token: linear in the table, without any approximation."""

    def __init__(self, model: SentenceTransformer, static: StaticEmbedding) -> None:
        super().__init__(model, static)
        self.weight = _numpy(static.embedding.weight).T
        self.gain = np.ones(len(self.weight), np.float32)

    def describe(self) -> dict[str, Any]:
        """Only the kind: there is one layer."""
        return {"kind": "static"}

    def read(self, inputs: Mapping[str, Any], **kwargs: Any) -> Reading:
        """Run the model; features are the sparse bags of tokens over their counts."""
        seen = self._forward(inputs, {}, **kwargs)
        ids, offsets = inputs["input_ids"].cpu().numpy(), inputs["offsets"].cpu().numpy()
        pointers = np.append(offsets, len(ids))
        counts = np.diff(pointers)
        share = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
        features = csr_array((share, ids, pointers), shape=(len(counts), self.weight.shape[1]))
        features.sum_duplicates()
        return Reading(_numpy(seen["raw"]), features, None)


@dataclass(frozen=True, slots=True)
class NormForm:
    """How a normalisation module behaves: ``gain * centred(u) / scale(u) + bias``."""

    kind: str
    gain: Tensor
    epsilon: float

    def scale(self, u: Float[Tensor, "... d"]) -> Float[Tensor, ...]:
        """Scale sqrt(var(u) + eps) of a LayerNorm, sqrt(mean(u^2) + eps) of an RMSNorm."""
        # torch.var is ten times slower on a CPU than the two means.
        spread = self._centred(u).square().mean(-1)
        return (spread + self.epsilon).sqrt()

    def apply(self, u: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """The normalisation itself, without its bias."""
        return self.gain * self._centred(u) / self.scale(u)[..., None]

    def _centred(self, u: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        u = u.float()
        return u - u.mean(-1, keepdim=True) if self.kind == "layernorm" else u


def token_weights(pooling: Pooling, features: Mapping[str, Any]) -> Float[Tensor, "n t"]:
    """Weight of each token in the pooled vector, read off the model's own Pooling module.

    A linear pooling treats all dimensions alike, so its derivative with respect to one channel
    holds its weights. Asking the module keeps prompt exclusion, padding side and divisor its own.

    Args:
        pooling: a Pooling module with one of `LINEAR_POOLINGS`.
        features: the pipeline's dictionary, with ``token_embeddings`` and ``attention_mask``.
    """
    tokens = features["token_embeddings"]
    with torch.inference_mode(False), torch.enable_grad():
        channel = torch.ones(*tokens.shape[:2], 1, device=tokens.device, requires_grad=True)
        pooled = pooling({**features, "token_embeddings": channel})["sentence_embedding"]
        (weights,) = torch.autograd.grad(pooled.sum(), channel)
    return weights[..., 0]


def _derivative(activation: nn.Module, u: Tensor) -> Tensor:
    """Derivative of an elementwise activation at u, in float32."""
    with torch.inference_mode(False), torch.enable_grad():
        # An inference tensor cannot enter autograd; its clone can.
        pull_back = torch.func.vjp(activation, u.clone())[1]
        (derivative,) = pull_back(torch.ones_like(u))
    return cast(Tensor, derivative)


def keep_input(seen: dict[str, Any], name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """A forward pre-hook that puts what a module reads into `seen`."""

    def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
        seen[name] = args[0]

    return hook


@contextmanager
def removed_after(handles: list[Any]) -> Iterator[None]:
    """Remove hooks at the end of a block, whatever happens in it."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()
