"""Tiny random sentence-transformers models, one for each architecture, made on the spot.

Their weights are random but far from an initialisation: normalisations have uneven weights and
biases, so that a forgotten gain or bias shows. Everything is seeded.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    Pooling,
    StaticEmbedding,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedTokenizerFast

DIMENSION, INNER, LAYERS, HEADS = 16, 24, 2, 2
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
WORDS = tuple(f"w{i}" for i in range(120))
N_TOKENS = len(SPECIALS) + len(WORDS)
POSITIONS = 600


def text(n_words: int, seed: int = 0) -> str:
    """`n_words` random words of the tiny vocabulary."""
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def tokenizer(framed: bool) -> Tokenizer:
    """One token a word; framed by <s> and </s>, or only ended by </s> as decoders' are."""
    vocabulary = {token: index for index, token in enumerate(SPECIALS + WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if framed else "$A </s>",
        special_tokens=[(token, vocabulary[token]) for token in ("<s>", "</s>")],
    )
    return made


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {}),
    "xlm-roberta": ("XLMRobertaConfig", {}),
    "mpnet": ("MPNetConfig", {}),
    "distilbert": (
        "DistilBertConfig",
        {"dim": DIMENSION, "hidden_dim": INNER, "n_layers": LAYERS, "n_heads": HEADS},
    ),
    "modernbert": ("ModernBertConfig", {"cls_token_id": 2, "sep_token_id": 3}),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 1, "head_dim": 8}),
    "llama": ("LlamaConfig", {"num_key_value_heads": 1}),
    "gemma2": ("Gemma2Config", {"num_key_value_heads": 1, "head_dim": 8}),
    "gemma": ("GemmaConfig", {"num_key_value_heads": 1, "head_dim": 8}),
    "albert": ("AlbertConfig", {"embedding_size": DIMENSION}),
}
DECODERS = ("qwen3", "llama", "gemma", "gemma2")


def transformer(
    kind: str, *, max_length: int = POSITIONS - 2, padding_side: str = "right", **options: Any
) -> Transformer:
    """The first module of a pipeline; `options` go to the configuration."""
    name, own = CONFIGS[kind]
    common = {
        "vocab_size": N_TOKENS,
        "hidden_size": DIMENSION,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "type_vocab_size": 1,
    }
    config: PreTrainedConfig = getattr(transformers, name)(**{**common, **own, **options})
    torch.manual_seed(0)
    network = AutoModel.from_config(config)
    roughen(network)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(framed=kind not in DECODERS),
        model_max_length=max_length,
        padding_side=padding_side,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        bos_token="<s>",
        eos_token="</s>",
    )
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        fast.save_pretrained(folder)
        return Transformer(folder, max_seq_length=max_length)


def roughen(network: nn.Module, seed: int = 0) -> None:
    """Give matrices a spread of 0.3 and vectors (gains, biases) an uneven part of 0.3."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise)
            else:
                parameter.add_(noise)


def model(
    kind: str,
    *,
    pooling: Any = None,
    include_prompt: bool = True,
    head: Sequence[nn.Module] = (),
    prompts: dict[str, str] | None = None,
    similarity: Any = None,
    **options: Any,
) -> SentenceTransformer:
    """Transformer, Pooling (last token for decoders, else mean) and `head`."""
    mode = pooling or ("lasttoken" if kind in DECODERS else "mean")
    modules = [
        transformer(kind, **options),
        Pooling(DIMENSION, pooling_mode=mode, include_prompt=include_prompt),
        *head,
    ]
    return SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts, similarity_fn_name=similarity
    )


def dense(activation: Callable[..., Any] | None, *, out: int = 12, residual: bool = False) -> Dense:
    """A roughened Dense head."""
    made = Dense(DIMENSION, out, activation_function=activation, use_residual=residual)
    roughen(made, seed=1)
    return made


def static(*head: nn.Module, truncation: int | None = None) -> SentenceTransformer:
    """A StaticEmbedding; `truncation` lets its tokenizer cut texts, unseen by max_seq_length."""
    made = tokenizer(framed=False)
    if truncation is not None:
        made.enable_truncation(truncation)
    module = StaticEmbedding(made, embedding_dim=DIMENSION)
    roughen(module)
    return SentenceTransformer(modules=[module, *head], device="cpu")


MODELS: dict[str, Callable[[], SentenceTransformer]] = {
    "bert-mean": lambda: model("bert", head=[Normalize()]),
    "bert-cls": lambda: model("bert", pooling="cls"),
    "bert-sqrt": lambda: model("bert", pooling="mean_sqrt_len_tokens"),
    "bert-weighted": lambda: model("bert", pooling="weightedmean"),
    "roberta": lambda: model("roberta"),
    "xlm-roberta": lambda: model("xlm-roberta"),
    "mpnet": lambda: model("mpnet"),
    "distilbert": lambda: model("distilbert"),
    "modernbert": lambda: model("modernbert", pooling="cls"),
    "qwen3": lambda: model("qwen3", padding_side="left"),
    "llama": lambda: model("llama", pooling="weightedmean"),
    "gemma": lambda: model("gemma"),
    "dense-identity": lambda: model("bert", head=[dense(nn.Identity()), Normalize()]),
    "dense-tanh": lambda: model("bert", head=[dense(nn.Tanh())]),
    "dense-residual": lambda: model(
        "bert", head=[dense(nn.Identity()), Dense(12, 8, use_residual=True), Normalize()]
    ),
    "static": static,
}
"""One maker for each supported architecture and readout."""


def save(made: SentenceTransformer, folder: Path) -> str:
    """Save as a user's local folder; gives its path."""
    made.save(str(folder), create_model_card=False)
    return str(folder)
