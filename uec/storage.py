"""Artefact folders: a manifest, checksums, and a publish step that a crash cannot break.

    DIR/manifest.json            written last; names every file with its sha256 and size
    DIR/data-<16 hex digits>/    the files of one version
    DIR/.lock                    held by the one process that may write

A new version is written into a fresh data folder, flushed to disk, and becomes visible by one
atomic rename of ``manifest.json``. A process killed at any moment leaves the old version or the new
one; whatever else it leaves behind is removed by the next writer that succeeds. An open `Artefact`
pins its data folder with a shared lock, so a reader keeps the version it opened while newer ones
are published; the first writer that publishes after the last reader has closed removes the folder.
Locks reach as far as the file system's ``flock``: on most network file systems, one host.

This module knows nothing of what the files hold: no encoder, no index, no torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from uec.errors import BusyError, CorruptArtefactError, InputError, MismatchError, NotFoundError
from uec.manifest import (
    DATA_FOLDER,
    MANIFEST,
    is_inside,
    make_manifest,
    read_manifest,
    sha256,
)
from uec.manifest import Kind as Kind
from uec.manifest import require_equal as require_equal

_DRAFT_MANIFEST = f"{MANIFEST}.tmp"
_LOCK = ".lock"


class Artefact:
    """One published version of an artefact folder, open for reading.

    Keep it for as long as its files are in use: that is what protects them from removal.

    Attributes:
        path: the folder.
        manifest: the whole manifest.
        content: the mapping that the writer published.
        fingerprint: sha256 of kind, schema, content and file checksums, in hex. Equal fingerprints
            mean equal artefacts, whenever and wherever they were written.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], pin: int) -> None:
        self.path = path
        self.manifest = manifest
        self.content: Mapping[str, Any] = manifest["content"]
        self.fingerprint: str = manifest["fingerprint"]
        # Closing the descriptor drops the shared lock; garbage collection does it for those who
        # forget to.
        self._unpin = weakref.finalize(self, os.close, pin)

    def file(self, name: str) -> Path:
        """Path of one file of this version.

        Raises:
            NotFoundError: the manifest names no such file.
        """
        files = self.manifest["files"]
        if name not in files:
            raise NotFoundError(f"{self.path}: no file {name!r} in it; it has {sorted(files)}")
        return self.path / str(self.manifest["data"]) / name

    def close(self) -> None:
        """Let writers remove this version once a newer one is published. Idempotent."""
        self._unpin()

    def __enter__(self) -> Artefact:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Draft:
    """A version being written; a context manager made by `create`."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self._root = path
        self._kind = kind
        self._data = path / f"data-{secrets.token_hex(8)}"
        self._lock: int | None = None
        self._published = False

    def __enter__(self) -> Draft:
        _require_ours(self._root, self._kind)
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._root)
        try:
            self._data.mkdir()
        except BaseException:
            self._unlock()
            raise
        return self

    def path(self, name: str) -> Path:
        """Where to write a file; folders within the name are made.

        Args:
            name: relative path with forward slashes, such as ``"ensemble/weights.npz"``.

        Raises:
            InputError: the name is absolute or leaves the folder.
        """
        if not is_inside(name):
            raise InputError(f"file name {name!r} is not a plain relative path")
        path = self._data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def adopt(self, artefact: Artefact) -> None:
        """Take over every file of a published version, which stays as it is.

        Hard links where the file system has them, copies where not: published files never change.
        """
        for name in artefact.manifest["files"]:
            try:
                os.link(artefact.file(name), self.path(name))
            except OSError:
                shutil.copyfile(artefact.file(name), self.path(name))

    def publish(self, content: Mapping[str, Any]) -> Artefact:
        """Make everything written so far the folder's current version.

        On return the version is on disk. Older versions that no reader holds open are removed.

        Args:
            content: JSON-able description of the artefact; NaN and infinity are refused.

        Returns:
            The version just published, open for reading.

        Raises:
            ValueError, TypeError: `content` cannot be written as JSON.
        """
        assert self._lock is not None and not self._published, "publish once, inside the with block"
        document = make_manifest(
            self._kind, self._data.name, content, dict(_flush_tree(self._data))
        )
        draft = self._root / _DRAFT_MANIFEST
        draft.write_text(
            json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        _fsync(draft)
        # The data folder's own name must be on disk before a manifest that points to it.
        _fsync(self._root)
        draft.replace(self._root / MANIFEST)
        self._published = True
        _fsync(self._root)
        _fsync(self._root.parent)
        _remove_older(self._root, keep=self._data.name)
        return open_artefact(self._root, self._kind, verify=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._published:
            shutil.rmtree(self._data, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        # Closing is not enough: a forked worker may hold a copy of the descriptor. The file itself
        # stays, for unlinking it would let two writers lock two different files.
        assert self._lock is not None
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)
        self._lock = None


def create(path: str | Path, kind: Kind) -> Draft:
    """Start a new version of the artefact in a folder, which may hold an older one.

    Use it as ``with create(path, "index") as draft: ...; draft.publish(content)``. Leaving the
    block without publishing, by an exception or not, removes the draft and changes nothing else.

    Raises (on entering the block):
        InputError: the folder is not empty and not an artefact of this kind.
        BusyError: another process is writing it.
    """
    return Draft(Path(path), kind)


def open_artefact(path: str | Path, kind: Kind | None, *, verify: bool = True) -> Artefact:
    """Open the current version of an artefact.

    Args:
        path: the folder.
        kind: what it must be; None takes any.
        verify: read every file and compare its sha256; otherwise only presence and size.

    Raises:
        NotFoundError: nothing is published there.
        MismatchError: another kind, or a schema newer than this package.
        CorruptArtefactError: the manifest or a file is damaged or missing.
    """
    root = Path(path)
    manifest = read_manifest(root, kind)
    while True:
        try:
            return _pinned(root, manifest, verify)
        except CorruptArtefactError:
            # A writer may have replaced and removed this version since its manifest was read.
            current = read_manifest(root, kind)
            if current["data"] == manifest["data"]:
                raise
            manifest = current


def _require_ours(root: Path, kind: Kind) -> None:
    """Refuse any folder that is not empty and not an artefact: we never delete a user's files."""
    if not root.exists():
        return
    if not root.is_dir():
        raise InputError(f"{root} is a file; give a folder for the {kind}")
    names = {entry.name for entry in root.iterdir()}
    if MANIFEST in names:
        try:
            # Damaged files do not matter, they are about to be replaced; the manifest must be ours.
            read_manifest(root, kind)
        except (CorruptArtefactError, MismatchError) as error:
            raise InputError(
                f"{root} cannot be overwritten by {_article(kind)}: {error}; "
                "remove the folder or choose another"
            ) from error
        return
    # A first build that was killed leaves its lock and parts, and nothing else.
    leftovers = {n for n in names if n in (_LOCK, _DRAFT_MANIFEST) or DATA_FOLDER.fullmatch(n)}
    if names and (_LOCK not in names or names != leftovers):
        strange = sorted(names - leftovers or names)[:3]
        raise InputError(
            f"{root} is not empty and not {_article(kind)} (it has {', '.join(strange)}); "
            "choose an empty or new folder"
        )


def _lock(root: Path) -> int:
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BusyError(f"{root} is being written by another process; try again later") from None
    return descriptor


def _flush_tree(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Put a folder on disk; yield each file's relative name with its size and checksum."""
    for path in sorted(folder.rglob("*")):
        _fsync(path)
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            yield name, {"size": path.stat().st_size, "sha256": sha256(path)}
    _fsync(folder)


def _remove_older(root: Path, keep: str) -> None:
    for entry in root.iterdir():
        if entry.name == keep or not DATA_FOLDER.fullmatch(entry.name) or entry.is_symlink():
            continue
        pin = os.open(entry, os.O_RDONLY)
        # A version that a reader still holds (its lock blocks ours) waits for the next writer.
        try:
            with suppress(BlockingIOError):
                fcntl.flock(pin, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
        finally:
            os.close(pin)


def _pinned(root: Path, manifest: Mapping[str, Any], verify: bool) -> Artefact:
    """Hold a version against removal, then check its files."""
    folder = root / str(manifest["data"])
    try:
        pin = os.open(folder, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        raise CorruptArtefactError(f"{folder} is missing") from None
    artefact = Artefact(root, manifest, pin)
    try:
        try:
            fcntl.flock(pin, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorruptArtefactError(f"{folder} is being removed") from None
        for name, entry in manifest["files"].items():
            _check_file(folder / name, entry, verify)
    except BaseException:
        artefact.close()
        raise
    return artefact


def _check_file(path: Path, entry: Mapping[str, Any], verify: bool) -> None:
    try:
        size = path.stat().st_size
        if size != entry["size"]:
            raise CorruptArtefactError(f"{path}: size: got {size}, expected {entry['size']} bytes")
        if verify and (got := sha256(path)) != entry.get("sha256"):
            raise CorruptArtefactError(f"{path}: sha256: got {got}, expected {entry.get('sha256')}")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise CorruptArtefactError(f"{path} is missing") from None


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _article(kind: Kind) -> str:
    return f"an {kind}"  # both kinds begin with a vowel
