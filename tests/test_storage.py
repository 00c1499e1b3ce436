"""Artefact folders: what is published is what is opened, whatever happens in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uec import storage
from uec.errors import (
    BusyError,
    CorruptArtefactError,
    InputError,
    MismatchError,
    NotFoundError,
    UECError,
)
from uec.manifest import read_manifest

ROOT = Path(__file__).parents[1]

# Publishes version after version; the file's text and the content must always belong together.
WRITER = """
import sys
from uec import storage

def publish(path, version):
    with storage.create(path, "index") as draft:
        draft.path("part/a.txt").write_text(f"{version}" * 1000)
        draft.path("b.txt").write_text(f"b{version}")
        draft.publish({"version": version})
"""


# A killed process loses nothing that it handed to the system, so flushing to the disk only costs
# the tests time; that it happens, and in which order, has a test of its own.
NO_FLUSH = "import os; os.fsync = lambda descriptor: None\n"


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def write(path: Path, version: int = 1, **content: Any) -> storage.Artefact:
    with storage.create(path, "index") as draft:
        draft.path("part/a.txt").write_text(f"{version}" * 1000)
        draft.path("b.txt").write_text(f"b{version}")
        return draft.publish({"version": version, **content})


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_whole(path: Path) -> int:
    """The version that opens; its files must be of that same version."""
    with storage.open_artefact(path, "index") as artefact:
        version = artefact.content["version"]
        assert artefact.file("part/a.txt").read_text() == f"{version}" * 1000
        assert artefact.file("b.txt").read_text() == f"b{version}"
        return int(version)


def data_folders(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir() if entry.name.startswith("data-")]


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_what_is_published_is_what_opens(tmp_path: Path) -> None:
    content: dict[str, Any] = {"prompt": "查询: ", "layers": (1, 2), "scale": 0.1}
    written = write(tmp_path / "new" / "index", **content)
    opened = storage.open_artefact(tmp_path / "new" / "index", "index")
    assert opened.content == {"version": 1, "prompt": "查询: ", "layers": [1, 2], "scale": 0.1}
    assert opened.content == written.content
    assert opened.file("b.txt").read_text() == "b1"
    assert opened.manifest["files"]["b.txt"] == {
        "size": 2,
        # sha256sum of the two bytes "b1"
        "sha256": "7dc96f776c8423e57a2785489a3f9c43fb6e756876d6ad9a9cac4aa4e72ec193",
    }


def test_equal_artefacts_have_equal_fingerprints_and_others_do_not(tmp_path: Path) -> None:
    first = write(tmp_path / "a", 1, note="x")
    assert write(tmp_path / "b", 1, note="x").fingerprint == first.fingerprint
    assert write(tmp_path / "b", 1, note="y").fingerprint != first.fingerprint
    with storage.create(tmp_path / "c", "index") as draft:  # the same but for one byte of a file
        draft.path("part/a.txt").write_text("1" * 999 + "2")
        draft.path("b.txt").write_text("b1")
        assert draft.publish({"version": 1, "note": "x"}).fingerprint != first.fingerprint


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1)
    before = sorted(data_folders(tmp_path))
    with pytest.raises(RuntimeError), storage.create(tmp_path, "index") as draft:
        draft.path("b.txt").write_text("half")
        raise RuntimeError
    with storage.create(tmp_path, "index") as draft:
        draft.path("b.txt").write_text("never published")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path, 2, scale=float("nan"))
    assert assert_whole(tmp_path) == 1
    assert sorted(data_folders(tmp_path)) == before


def test_all_is_on_disk_before_the_manifest_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    replace = Path.replace

    def fsync(descriptor: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))

    def rename(path: Path, target: Path) -> Path:
        events.append("rename")
        return replace(path, target)

    path = tmp_path / "index"
    write(path, 0).close()
    (old,) = data_folders(path)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    write(path, 1).close()
    (new,) = data_folders(path)
    assert new != old
    renamed = events.index("rename")
    files = {f"index/{new}/{name}" for name in ("b.txt", "part", "part/a.txt")}
    assert set(events[:renamed]) == files | {f"index/{new}", "index/manifest.json.tmp", "index"}
    # A folder is flushed after what it names.
    assert events.index(f"index/{new}/part/a.txt") < events.index(f"index/{new}")
    assert events[renamed - 2 : renamed + 2] == [
        "index/manifest.json.tmp",
        "index",
        "rename",
        "index",
    ]


def test_killed_at_20_random_moments_the_old_or_the_new_version_opens(tmp_path: Path) -> None:
    script = WRITER + (
        "for version in range(int(sys.argv[2]), 10**9):\n"
        "    publish(sys.argv[1], version)\n"
        "    print(version, flush=True)\n"
    )
    write(tmp_path, 0)
    moments = random.Random(0)
    version = 0
    for _ in range(20):
        writer = python(script, str(tmp_path), str(version + 1))
        assert writer.stdout is not None
        last = int(writer.stdout.readline())
        time.sleep(moments.uniform(0, 0.02))
        writer.kill()
        last = int((writer.communicate()[0].split() or [str(last)])[-1])
        version = assert_whole(tmp_path)
        # All that it reported stands; at most the one that it was publishing came on top.
        assert version in (last, last + 1)
    write(tmp_path, 1)
    assert len(data_folders(tmp_path)) == 1


def test_killed_before_every_single_file_operation(tmp_path: Path) -> None:
    # Each child dies just before its n-th file operation, until one survives them all. The folder
    # is then a fresh artefact, and the next writer leaves no debris of the others.
    script = (
        NO_FLUSH
        + WRITER
        + """
import os, signal
path, version = sys.argv[1], 1
for n in range(1, 1000):
    child = os.fork()
    if child == 0:
        count = 0
        def hook(event, arguments):
            global count
            # Only what touches the folder; rmtree gives names relative to an open descriptor.
            if path in str(arguments) or event in ("fcntl.flock", "os.remove", "os.rmdir"):
                count += 1
                if count == n:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        publish(path, version)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with storage.open_artefact(path, "index") as artefact:
        found = artefact.content["version"]
        text = artefact.file("part/a.txt").read_text()
    print(found, text == f"{found}" * 1000, version, flush=True)
    if status == 0:
        break
    version += 1
"""
    )
    write(tmp_path, 0)
    output, _ = python(script, str(tmp_path)).communicate()
    rows = [line.split() for line in output.splitlines()]
    assert len(rows) > 20  # so many operations does a publish have
    old = 0
    outcomes = set()
    for found, whole, new in rows:
        assert whole == "True"
        assert int(found) in (old, int(new))
        outcomes.add(int(found) == int(new))
        old = int(found)
    assert outcomes == {True, False}  # deaths before and after the rename were both met
    assert int(rows[-1][0]) == int(rows[-1][2])
    assert len(data_folders(tmp_path)) == 1


def test_readers_see_whole_versions_only_while_others_are_published(tmp_path: Path) -> None:
    # The writer goes on until the reader has met twenty versions, however slow the machine is.
    script = (
        NO_FLUSH
        + WRITER
        + "version = 0\nwhile not os.path.exists(sys.argv[2]):\n"
        + "    version += 1\n    publish(sys.argv[1], version)\nprint(version)\n"
    )
    folder, stop = tmp_path / "index", tmp_path / "stop"
    write(folder, 0)
    writer = python(script, str(folder), str(stop))
    seen = [0]
    try:
        while len(set(seen)) < 20 and writer.poll() is None:
            seen.append(assert_whole(folder))
    finally:
        stop.touch()
    last, _ = writer.communicate()
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) >= 20
    assert assert_whole(folder) == int(last)


def test_a_build_killed_before_its_first_publish_can_be_repeated(tmp_path: Path) -> None:
    script = WRITER + (
        "with storage.create(sys.argv[1], 'index') as draft:\n"
        "    draft.path('b.txt').write_text('half')\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    path = tmp_path / "index"
    writer = python(script, str(path))
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    with pytest.raises(NotFoundError, match="uec index"):
        storage.open_artefact(path, "index")
    with pytest.raises(BusyError, match="another process"), storage.create(path, "index"):
        pass
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert len(data_folders(path)) == 1
    write(path, 1)
    assert assert_whole(path) == 1
    assert len(data_folders(path)) == 1


def test_a_reader_keeps_its_version_until_it_lets_go(tmp_path: Path) -> None:
    old = write(tmp_path, 1)
    new = write(tmp_path, 2)
    assert old.file("b.txt").read_text() == "b1"
    assert assert_whole(tmp_path) == 2
    old.close()
    old.close()
    new.close()
    write(tmp_path, 3)
    assert len(data_folders(tmp_path)) == 1


def test_a_reader_that_loses_the_race_opens_the_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1).close()
    calls = []

    def slow_read(root: Path, kind: storage.Kind) -> dict[str, Any]:
        manifest = read_manifest(root, kind)
        calls.append(kind)
        if len(calls) == 1:  # between reading the manifest and opening its files
            monkeypatch.setattr(storage, "read_manifest", read_manifest)
            write(tmp_path, 2).close()
            monkeypatch.setattr(storage, "read_manifest", slow_read)
        return manifest

    monkeypatch.setattr(storage, "read_manifest", slow_read)
    assert assert_whole(tmp_path) == 2
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["part/a.txt", "b.txt"])
def test_damage_to_any_file_is_found_and_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1).file(name)
    whole = path.read_bytes()
    for position in (0, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        storage.open_artefact(tmp_path, "index", verify=False)  # by design: sizes only
        with pytest.raises(CorruptArtefactError, match=rf"{name}: sha256: got \w+, expected \w+"):
            storage.open_artefact(tmp_path, "index")
    for verify in (True, False):
        path.write_bytes(whole[:-1])
        with pytest.raises(CorruptArtefactError, match=f"{name}: size: got {len(whole) - 1}, "):
            storage.open_artefact(tmp_path, "index", verify=verify)
        path.unlink()
        with pytest.raises(CorruptArtefactError, match=f"{name} is missing"):
            storage.open_artefact(tmp_path, "index", verify=verify)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m.update(kind="ensemble"), MismatchError, "kind: got 'ensemble', expected 'ind"),
        (lambda m: m.update(schema=2), MismatchError, "schema: got 2, expected at most 1"),
        (lambda m: m.update(schema="1"), CorruptArtefactError, "schema: got '1'"),
        (lambda m: m.pop("format"), CorruptArtefactError, "not the manifest"),
        (lambda m: m["content"].update(version=9), CorruptArtefactError, "fingerprint is damaged"),
        (lambda m: m.update(content=None), CorruptArtefactError, "content is damaged"),
        (lambda m: m.update(files=[]), CorruptArtefactError, "files is damaged"),
        (lambda m: m["files"].update(x={}), CorruptArtefactError, "files is damaged"),
        (lambda m: m["files"].pop("b.txt"), CorruptArtefactError, "fingerprint is damaged"),
        (lambda m: m.update(data="../elsewhere"), CorruptArtefactError, "data is damaged"),
        (lambda m: m["files"].update({"../b": {"size": 1}}), CorruptArtefactError, "outside"),
        (lambda m: m["files"].update({"/b": {"size": 1}}), CorruptArtefactError, "outside"),
        (lambda m: m["files"].update({"a/../../b": {"size": 1}}), CorruptArtefactError, "outside"),
        (lambda m: m["content"].update(x=float("nan")), CorruptArtefactError, "NaN"),
    ],
)
def test_a_wrong_manifest_is_refused_by_field(
    tmp_path: Path,
    change: Callable[[dict[str, Any]], Any],
    error: type[UECError],
    message: str,
) -> None:
    write(tmp_path, 1)
    edit_manifest(tmp_path, change)
    with pytest.raises(error, match=message):
        storage.open_artefact(tmp_path, "index", verify=False)
    with pytest.raises(InputError, match="remove the folder or choose another"):
        write(tmp_path, 2)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_a_manifest_that_is_no_json_object_is_corrupt(tmp_path: Path, text: str) -> None:
    write(tmp_path, 1)
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CorruptArtefactError, match=r"manifest\.json"):
        storage.open_artefact(tmp_path, "index")


def test_nothing_there_says_what_to_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "such"):
        with pytest.raises(NotFoundError, match="run `uec fit`"):
            storage.open_artefact(path, "ensemble")
    with pytest.raises(NotFoundError, match=r"'c\.txt'.*part/a\.txt"):
        write(tmp_path, 1).file("c.txt")


@pytest.mark.parametrize(
    "name", ["notes.txt", "data-0123456789abcdef", "data-mine", "manifest.json"]
)
def test_a_users_folder_is_never_written_to(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("data-0"):
        path.mkdir()
    else:
        path.write_text("{}")
    with pytest.raises(InputError, match=r"not empty and not an index|cannot be overwritten"):
        write(tmp_path, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_users_files_beside_an_artefact_survive(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "README").write_text("mine")
    (tmp_path / "data-mine").mkdir()
    write(tmp_path, 2)
    assert (tmp_path / "README").read_text() == "mine"
    assert (tmp_path / "data-mine").is_dir()


def test_a_file_or_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        write(tmp_path / "file", 1)
    with storage.create(tmp_path / "fit", "ensemble") as draft:
        draft.publish({})
    with pytest.raises(InputError, match="kind: got 'ensemble', expected 'index'"):
        write(tmp_path / "fit", 1)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/../../x", "/x", "a\\b", "a\0b"])
def test_a_draft_writes_only_inside_its_folder(tmp_path: Path, name: str) -> None:
    with storage.create(tmp_path, "index") as draft, pytest.raises(InputError, match="plain"):
        draft.path(name)


def test_two_writers_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    with storage.create(tmp_path, "index") as draft:
        with pytest.raises(BusyError), storage.create(tmp_path, "index"):
            pass
        draft.publish({})
    with storage.create(tmp_path, "index"):
        pass  # and the lock is free again


def test_require_equal_names_every_field_that_differs() -> None:
    expected = {"minilm": {"max_length": 256, "pooling": ["mean"], "prompt": None}, "k": 1}
    storage.require_equal(
        "members",
        {"minilm": {"max_length": 256, "pooling": ("mean",), "prompt": None}, "k": 1},
        expected,
    )
    with pytest.raises(MismatchError) as caught:
        storage.require_equal(
            "members",
            {"minilm": {"max_length": 512, "pooling": ["mean"], "dtype": "f4"}, "k": 1},
            expected,
        )
    assert str(caught.value).split("; ") == [
        "members.minilm.dtype: got 'f4', expected nothing",
        "members.minilm.max_length: got 512, expected 256",
        "members.minilm.prompt: got nothing, expected None",
    ]


def test_storage_needs_no_heavy_package() -> None:
    script = "import sys, uec.storage; print(*sys.modules)"
    modules = set(python(script).communicate()[0].split())
    assert not modules & {"torch", "faiss", "numpy", "sentence_transformers"}
