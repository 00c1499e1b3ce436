"""Find the last linear layer of a model by what its modules do, never by name or by sizes.

The pipeline's modules say which kind of readout there can be. For a transformer without a Dense
head, a traced probe gives the rest: the normalisation whose output the pooling reads, and the last
Linear called before it. Both are then verified: the normalisation must compute what its kind
computes, and a change of the Linear's output must be the same change of the normalisation's input.
A model that fails is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    Normalize,
    Pooling,
    StaticEmbedding,
)
from torch import Tensor, nn

from uec.encoders.readouts import (
    DenseReadout,
    NormForm,
    NormReadout,
    Readout,
    StaticReadout,
    keep_input,
    removed_after,
    token_weights,
)
from uec.errors import UnsupportedEncoderError

LINEAR_POOLINGS = ("cls", "lasttoken", "mean", "mean_sqrt_len_tokens", "weightedmean")
PROBE_TEXTS = ["probe", "a longer probe of several words, so that one row of the batch is padded"]
# Relative error allowed where a module must do on the probe exactly what is claimed of it.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 2e-2, torch.bfloat16: 1e-1}
EPSILON_NAMES = ("eps", "variance_epsilon", "epsilon")


def find_readout(model: SentenceTransformer, name: str) -> Readout:
    """Find the last linear layer of a model by its pipeline and a traced probe.

    Args:
        model: the model, in evaluation mode.
        name: what to call it in errors.

    Raises:
        UnsupportedEncoderError: the model has no readout of the kinds above; says why.
    """
    # Dropout does nothing in evaluation; Normalize only where a Dense may follow it.
    pipeline = [(key, m) for key, m in model.named_children() if not isinstance(m, Dropout)]
    kinds = [type(module).__name__ for _, module in pipeline]
    first, rest = pipeline[0][1], pipeline[1:]
    if not isinstance(first, Transformer | StaticEmbedding):
        raise _refuse(name, f"its first module is {kinds[0]}, not Transformer or StaticEmbedding")
    if isinstance(first, Transformer) and not (rest and isinstance(rest[0][1], Pooling)):
        raise _refuse(name, f"its modules are {kinds}; expected Pooling right after Transformer")
    head = rest[1:] if isinstance(first, Transformer) else rest
    for key, module in head:
        if not isinstance(module, Dense | Normalize):
            raise _refuse(name, f"module {key}, {type(module).__name__}, has no known readout")
        names = (module.module_input_name, module.module_output_name)
        if names != ("sentence_embedding", "sentence_embedding"):
            raise _refuse(name, f"module {key} works on {names}, not on the sentence embedding")
    denses = [(key, module) for key, module in head if isinstance(module, Dense)]
    if denses:
        return _dense_readout(model, name, *denses[-1])
    if isinstance(first, StaticEmbedding):
        bag = first.embedding
        if bag.mode != "mean" or bag.padding_idx is not None or bag.max_norm is not None:
            raise _refuse(name, f"its embedding bag is not a plain mean: {bag}")
        return StaticReadout(model, first)
    return _norm_readout(model, name, first, cast(Pooling, rest[0][1]))


def _dense_readout(model: SentenceTransformer, name: str, key: str, dense: Dense) -> DenseReadout:
    """Check that the activation works on each output alone, so that its Jacobian is a diagonal."""
    activation = dense.activation_function
    if not isinstance(activation, nn.Module):
        raise _refuse(name, f"the activation of its Dense module {key} is not a torch module")
    generator = torch.Generator().manual_seed(0)
    u, direction = torch.randn(2, 2, dense.out_features, generator=generator).to(
        dense.linear.weight
    )
    with torch.inference_mode(False), torch.enable_grad():
        output, pull_back = torch.func.vjp(activation, u)[:2]
        # J^T v = diag(J^T 1) v for a random v only where J is diagonal.
        whole, diagonal = pull_back(direction)[0], direction * pull_back(torch.ones_like(u))[0]
    if output.shape != u.shape or not _close(whole, diagonal):
        raise _refuse(
            name, f"the activation {activation} of its Dense module {key} mixes the outputs"
        )
    return DenseReadout(model, key, dense)


def _norm_readout(
    model: SentenceTransformer, name: str, transformer: Transformer, pooling: Pooling
) -> NormReadout:
    """Trace a probe, take the last Linear before the final normalisation and verify both."""
    if pooling.pooling_mode not in LINEAR_POOLINGS:
        raise _refuse(
            name,
            f"its pooling is {pooling.pooling_mode!r}; the variance is known for one of "
            f"{', '.join(LINEAR_POOLINGS)}",
        )
    inputs = model.preprocess(PROBE_TEXTS)
    inputs = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    calls, output = _trace(model, transformer, inputs)
    tokens = output["token_embeddings"]
    norms = [call for call in calls if call.is_norm and _same(call.output, tokens)]
    if not norms:
        raise _refuse(name, "its token embeddings are not the output of a normalisation")
    norm = norms[-1]
    linears = [
        call
        for call in calls[: calls.index(norm)]
        if isinstance(call.module, nn.Linear) and call.output.shape == norm.input.shape
    ]
    if not linears:
        raise _refuse(name, f"no Linear layer feeds its final normalisation {norm.name}")
    linear = linears[-1]
    if sum(call.weight is linear.weight for call in calls) > 1:
        raise _refuse(name, f"the weight of {linear.name} is used several times in one pass")
    real = inputs["attention_mask"].bool()
    form = _norm_form(norm, real)
    if form is None:
        raise _refuse(name, f"{norm.name} is neither a LayerNorm nor an RMSNorm in what it does")
    if not _reaches(model, linear, norm, inputs, real):
        raise _refuse(
            name,
            f"the output of {linear.name} does not reach {norm.name} by addition alone",
        )
    pooled = torch.einsum("nt,nth->nh", token_weights(pooling, output), tokens.float())
    if not _close(pooled, output["raw"].float(), tokens.dtype):
        raise _refuse(name, "its pooling is not a weighted sum of the token embeddings")
    assert isinstance(linear.module, nn.Linear)
    return NormReadout(model, pooling, (linear.name, linear.module), (norm.name, norm.module), form)


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of a Linear or of a module that may be a normalisation."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor

    @property
    def is_norm(self) -> bool:
        return not isinstance(self.module, nn.Linear) and self.input.shape == self.output.shape

    @property
    def weight(self) -> Any:
        return self.module.weight


def _trace(
    model: SentenceTransformer, transformer: Transformer, inputs: Mapping[str, Any]
) -> tuple[list[_Call], dict[str, Any]]:
    """Forward a probe; gives the calls in order and the output, with z under ``"raw"``."""
    calls: list[_Call] = []

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                calls.append(_Call(name, module, args[0], output))

        return hook

    handles = [
        module.register_forward_hook(record(name))
        for name, module in transformer.model.named_modules()
        if isinstance(module, nn.Linear) or _may_normalise(module)
    ]
    with removed_after(handles), torch.inference_mode():
        output: dict[str, Any] = dict(inputs)
        for _, module in model.named_children():
            output = module(output)
            if isinstance(module, Pooling):
                output["raw"] = output["sentence_embedding"]
    return calls, output


def _may_normalise(module: nn.Module) -> bool:
    """Whether it is a norm by type, or a leaf with one weight a dimension and at most a bias."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return True
    own = dict(module.named_parameters(recurse=False))
    leaf = next(module.children(), None) is None
    return leaf and "weight" in own and set(own) <= {"weight", "bias"} and own["weight"].ndim == 1


def _norm_form(norm: _Call, real: Tensor) -> NormForm | None:
    """Decide by behaviour, on the probe and on noise, which normalisation a module is."""
    u = norm.input[real]
    weight = norm.weight if norm.weight is not None else torch.ones_like(u[0])
    epsilon = next((getattr(norm.module, n) for n in EPSILON_NAMES if hasattr(norm.module, n)), 0.0)
    epsilon = torch.finfo(u.dtype).eps if epsilon is None else float(epsilon)
    generator = torch.Generator().manual_seed(0)
    noise = 1 + 2 * torch.randn(u.shape, generator=generator).to(u)
    bias = getattr(norm.module, "bias", None)
    shift = bias.detach().float() if isinstance(bias, Tensor) else 0.0
    gain = weight.detach().float()
    # Gemma keeps its weight as a difference from one.
    for kind, scale in (("layernorm", gain), ("rmsnorm", gain), ("rmsnorm", 1 + gain)):
        form = NormForm(kind, scale, epsilon)
        with torch.inference_mode():
            given = [(norm.output[real], u), (norm.module(noise), noise)]
            if all(_close(out.float(), form.apply(x) + shift, u.dtype) for out, x in given):
                return form
    return None


def _reaches(
    model: SentenceTransformer, linear: _Call, norm: _Call, inputs: Mapping[str, Any], real: Tensor
) -> bool:
    """Whether a change of the Linear's output is the same change of the norm's input."""
    noise = torch.randn(linear.output.shape, generator=torch.Generator().manual_seed(1))
    change = noise.to(norm.input) * norm.input[real].float().square().mean().sqrt().to(norm.input)
    seen: dict[str, Any] = {}
    handles = [
        linear.module.register_forward_hook(lambda _module, _args, output: output + change),
        norm.module.register_forward_pre_hook(keep_input(seen, "u")),
    ]
    with removed_after(handles), torch.inference_mode():
        model(dict(inputs))
        moved = (seen["u"] - norm.input)[real].float()
        return _close(moved, change[real].float(), norm.input.dtype)


def _same(output: Tensor, tokens: Any) -> bool:
    # Rows of padding may be NaN in both.
    return (
        isinstance(tokens, Tensor)
        and output.shape == tokens.shape
        and torch.allclose(output, tokens, rtol=0, atol=0, equal_nan=True)
    )


def _close(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the largest difference is within the type's tolerance of the typical size of b."""
    size = b.float().square().mean().sqrt()
    return bool(((a - b).abs().amax() <= TOLERANCE.get(dtype, 1e-1) * size).item())


def _refuse(name: str, reason: str) -> UnsupportedEncoderError:
    return UnsupportedEncoderError(
        f"model {name!r} has no last linear layer whose variance is known: {reason}"
    )
