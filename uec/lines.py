"""Lines of a text file, each with its position, so that a complaint can say ``path:line``."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from uec.errors import InputError, NotFoundError

T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """One line without its line break, and where it stands, as ``path:line``."""

    position: str
    text: str

    def refuse(self, problem: str) -> NoReturn:
        """Raise an `InputError` that names this line."""
        raise InputError(f"{self.position}: {problem}")


def find_file(path: str | Path, inside: str | None = None) -> Path:
    """The file itself, or the one of name `inside` (also gzipped) where the path is a folder.

    Raises:
        NotFoundError: no such file.
        InputError: a folder where only a file will do.
    """
    file = Path(path)
    if inside and file.is_dir():
        for name in (inside, f"{inside}.gz"):
            if (file / name).is_file():
                return file / name
        raise NotFoundError(f"no {inside} or {inside}.gz in folder {file}")
    if file.is_dir():
        raise InputError(f"{file} is a folder, expected a file")
    if not file.exists():
        raise NotFoundError(f"no such file: {file}")
    return file


def read_lines(file: Path) -> Iterator[Line]:
    """Stream the lines that are not blank, of a plain or gzip file (told by content, not name).

    Lines end at line feeds only: texts may hold the other separators of Unicode.

    Raises:
        InputError: not UTF-8, or a damaged gzip file.
    """
    number = 0
    try:
        with file.open("rb") as raw, _unzipped(raw) as content:
            for number, data in enumerate(content, start=1):
                position = f"{file}:{number}"
                try:
                    text = data.removeprefix(_BOM if number == 1 else b"").decode().rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise InputError(f"{position}: not UTF-8: {error}") from error
                if text.strip(" "):
                    yield Line(position, text)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{file}:{number + 1}: damaged gzip file: {error}") from error


def _unzipped(raw: BufferedReader) -> AbstractContextManager[Iterable[bytes]]:
    zipped = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
    return gzip.GzipFile(fileobj=raw) if zipped else nullcontext(raw)


def sniff(file: Path) -> tuple[bool, Iterator[Line]]:
    """Tell JSONL from TSV by the first line: whether it is JSONL, and all lines."""
    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        return False, lines
    return first.text.lstrip().startswith("{"), chain([first], lines)


def parse_objects(lines: Iterator[Line]) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Parse each line as one JSON object.

    Raises:
        InputError: not JSON (NaN and infinity are not), not an object, a key twice in one object,
            or text that UTF-8 cannot hold.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"duplicate key {next(k for k in keys if keys.count(k) > 1)!r}")
        return record

    def no_number(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    for line in lines:
        try:
            record = json.loads(line.text, object_pairs_hook=unique, parse_constant=no_number)
            # Only an escape can smuggle half of a surrogate pair into valid UTF-8.
            if "\\u" in line.text:
                json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            line.refuse("a string has half of a surrogate pair, which is no character")
        except (ValueError, RecursionError) as error:
            line.refuse(f"not a JSON object: {error}")
        if not isinstance(record, dict):
            line.refuse(f"not a JSON object but {type(record).__name__}")
        yield line, record


def not_empty(items: Iterator[T], file: Path, what: str) -> Iterator[T]:
    """Pass items on.

    Raises:
        InputError: there are none.
    """
    first = next(items, None)
    if first is None:
        raise InputError(f"{file}: no {what} in it")
    yield first
    yield from items
