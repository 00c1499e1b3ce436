"""Load sentence-transformers models by hub id, local folder or packaged weights, quietly.

Code that comes with a model is never run. This module knows nothing of readouts.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers.utils import logging as transformers_logging

from uec.errors import InputError, NotFoundError, UnsupportedEncoderError
from uec.records import MemberSpec

DEVICE_VARIABLE = "UEC_DEVICE"
NOISY_LOGGERS = ("sentence_transformers", "transformers", "huggingface_hub")


def load_model(spec: MemberSpec) -> tuple[SentenceTransformer, str | None]:
    """Load a hub id, a local folder or a packaged model; gives it and its hub revision.

    Raises:
        NotFoundError: nothing by that name; says what to do.
        InputError: the device in the environment is not usable.
        UnsupportedEncoderError: the model needs code of its own or is not a model of text.
    """
    source = spec.model
    if source.startswith("pkg:"):
        from uec.encoders.packaged import materialise

        source = str(materialise(source.removeprefix("pkg:")))
    folder = Path(source).expanduser()
    local = folder.is_dir()
    if local:
        source = str(folder)
    elif source.startswith((".", "~", os.sep)) or source.count("/") > 1:
        raise NotFoundError(f"no folder {source!r}; give an existing folder or a hub id")
    offline = _is_offline()
    try:
        with quiet():
            model = SentenceTransformer(
                source, revision=spec.revision, device=_device(), local_files_only=local or offline
            )
    except OSError as error:
        advice = (
            "HF_HUB_OFFLINE is set and the model is not in the cache; unset it to download it"
            if offline
            else "check the name, the revision and the connection, or give a local folder"
        )
        raise NotFoundError(f"cannot load model {spec.model!r}: {advice} ({error})") from error
    except ValueError as error:
        raise UnsupportedEncoderError(f"cannot load model {spec.model!r}: {error}") from error
    return model, None if local else _hub_revision(source, spec.revision)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _hub_revision(source: str, revision: str | None) -> str | None:
    """Commit of a model just loaded from the hub, from the name of its folder in the cache."""
    cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    for repository in (source,) if "/" in source else (f"sentence-transformers/{source}", source):
        for filename in ("modules.json", "config.json"):
            path = try_to_load_from_cache(repository, filename, cache, revision)
            if isinstance(path, str):
                return Path(path).parent.name
    return None


def _device() -> str:
    """The device in the environment variable, else the first GPU, else the CPU."""
    name = os.environ.get(DEVICE_VARIABLE) or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"{DEVICE_VARIABLE}={name} cannot be used here; use cpu, or unset it ({error})"
        ) from error
    return name


@contextmanager
def quiet() -> Iterator[None]:
    """Keep loaders and tokenizers from writing to the terminal; errors still do."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    hub_bars, bars = (
        not are_progress_bars_disabled(),
        transformers_logging.is_progress_bar_enabled(),
    )
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if hub_bars:
            enable_progress_bars()


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over a model's parameters and persistent buffers, in the order of their names.

    Each enters as its name, dtype and shape and then its bytes.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return digest.hexdigest()
