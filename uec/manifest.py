"""The manifest of an artefact folder: what it says, how it is read and what makes it sound.

A manifest names the version's data folder, every file in it with size and sha256, and a free JSON
mapping `content`. Its fingerprint is the sha256 of kind, schema, content and the files' checksums.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from platform import python_version
from typing import Any, Literal, NoReturn, TypeAlias

from uec.errors import CorruptArtefactError, MismatchError, NotFoundError

Kind: TypeAlias = Literal["ensemble", "index"]

SCHEMA = 1
"""Version of the folder layout that this package writes and the newest it reads."""

MANIFEST = "manifest.json"
DATA_FOLDER = re.compile(r"data-[0-9a-f]{16}")
"""Names of data folders."""

# The word that tells our manifest from the many other files of that name.
_FORMAT = "uec-artefact"
_COMMAND: Mapping[str, str] = {"ensemble": "uec fit", "index": "uec index"}
_ABSENT = object()
# Packages whose version can change the bytes of an artefact; those installed are recorded.
_RECORDED = (
    "uec",
    "numpy",
    "scipy",
    "torch",
    "transformers",
    "sentence-transformers",
    "laplace-torch",
    "faiss-cpu",
    "faiss-gpu",
)


def make_manifest(
    kind: Kind, data: str, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A new manifest.

    Args:
        kind: what the artefact is.
        data: name of its data folder.
        content: any JSON-able mapping without NaN or infinity.
        files: relative file name to its ``size`` in bytes and ``sha256`` in hex.

    Raises:
        ValueError, TypeError: `content` cannot be written as JSON.
    """
    manifest = {
        "format": _FORMAT,
        "kind": kind,
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "library versions": dict(_library_versions()),
        "data": data,
        # Through JSON and back, so that writer and reader see the same values.
        "content": json.loads(_canonical(content)),
        "files": dict(files),
    }
    return manifest | {"fingerprint": _fingerprint(manifest)}


def read_manifest(root: Path, kind: Kind | None) -> dict[str, Any]:
    """Read and check the manifest of a folder; `kind` None takes either.

    Raises:
        NotFoundError: there is none.
        MismatchError: another kind, or a schema newer than this package.
        CorruptArtefactError: it is damaged or not ours.
    """
    path = root / MANIFEST
    try:
        manifest = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except (FileNotFoundError, NotADirectoryError):
        commands = " or ".join(f"`{_COMMAND[k]}`" for k in ([kind] if kind else _COMMAND))
        raise NotFoundError(
            f"no {kind or 'artefact'} in {root} ({MANIFEST} is missing); run {commands} to make one"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CorruptArtefactError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CorruptArtefactError(f"{path} is not the manifest of an artefact of this package")
    schema = manifest.get("schema")
    if type(schema) is not int:
        raise CorruptArtefactError(f"{path}: field schema: got {schema!r}, expected a whole number")
    if schema > SCHEMA:
        raise MismatchError(
            f"{path}: schema: got {schema}, expected at most {SCHEMA}; "
            "it was written by a newer version of uec: upgrade uec"
        )
    expected = [kind] if kind else list(_COMMAND)
    if manifest.get("kind") not in expected:
        raise MismatchError(
            f"{path}: kind: got {manifest.get('kind')!r}, "
            f"expected {' or '.join(repr(k) for k in expected)}"
        )
    _require_sound(path, manifest)
    return manifest


def require_equal(field_prefix: str, got: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that two nested mappings agree in every field.

    Args:
        field_prefix: what both describe, such as ``"members.minilm"``; may be empty.
        got: the values at hand.
        expected: the values that the artefact was made with.

    Raises:
        MismatchError: names each differing field by its dotted path, with both values.
    """
    differences = list(_differences(field_prefix, got, expected))
    if differences:
        raise MismatchError("; ".join(differences))


def _differences(field: str, got: Any, expected: Any) -> Iterator[str]:
    if isinstance(got, Mapping) and isinstance(expected, Mapping):
        for key in sorted({*got, *expected}, key=str):
            inner = f"{field}.{key}" if field else str(key)
            yield from _differences(inner, got.get(key, _ABSENT), expected.get(key, _ABSENT))
    elif _listed(got) != _listed(expected):
        yield f"{field}: got {_shown(got)}, expected {_shown(expected)}"


def _listed(value: Any) -> Any:
    """JSON turns tuples into lists; that alone is no difference."""
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else repr(value)


def _require_sound(path: Path, manifest: Mapping[str, Any]) -> None:
    """Check everything of a manifest that later code relies on."""

    def broken(field: str) -> NoReturn:
        raise CorruptArtefactError(f"{path}: field {field} is damaged: {manifest.get(field)!r}")

    if not isinstance(manifest.get("content"), dict):
        broken("content")
    if not DATA_FOLDER.fullmatch(str(manifest.get("data"))):
        broken("data")
    files = manifest.get("files")
    if not isinstance(files, dict):
        broken("files")
    for name, entry in files.items():
        if not is_inside(name):
            raise CorruptArtefactError(f"{path}: file {name!r} would lie outside the folder")
        if not isinstance(entry, dict) or not isinstance(entry.get("size"), int):
            broken("files")
    if manifest.get("fingerprint") != _fingerprint(manifest):
        broken("fingerprint")


def is_inside(name: str) -> bool:
    """Tell whether a name is a plain relative path that stays within its folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not (
        path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name
    )


def sha256(path: Path) -> str:
    """Checksum of a file in hex, read in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fingerprint(manifest: Mapping[str, Any]) -> str:
    files = {name: entry.get("sha256") for name, entry in manifest["files"].items()}
    signed = {key: manifest[key] for key in ("kind", "schema", "content")} | {"files": files}
    return hashlib.sha256(_canonical(signed).encode()).hexdigest()


def _canonical(value: Any) -> str:
    """One spelling for equal values, so that their checksums are equal; ASCII, so any text fits."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_as_dict
    )


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON: {value!r}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@cache
def _library_versions() -> Mapping[str, str]:
    versions = {"python": python_version()}
    for package in _RECORDED:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
