"""Make the committed stubs ``uec/v1/uec_pb2*`` from ``proto/uec/v1/uec.proto``.

    python proto/generate.py           write them
    python proto/generate.py --check   exit 1 and say which if a fresh run would differ

Needs grpcio-tools and mypy-protobuf (extra ``dev``) in the versions of `TOOLS`: others write other
bytes for the same interface.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ("uec/v1/uec.proto",)
TOOLS = {"grpcio-tools": "1.85.1", "mypy-protobuf": "5.1.0"}
STUBS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(into: Path) -> None:
    """Write the stubs below a folder.

    Raises:
        SystemExit: the tools have other versions, or protoc failed and has said why.
    """
    for tool, expected in TOOLS.items():
        if version(tool) != expected:
            raise SystemExit(f"{tool}: got {version(tool)}, expected {expected}; install that one")
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [f"--plugin={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python")]
    outputs += [f"--{kind}_out=quiet:{into}" for kind in ("mypy", "mypy_grpc")]
    include = [f"-I{ROOT / 'proto'}", f"-I{files('grpc_tools') / '_proto'}"]
    code = protoc.main(["protoc", *include, *plugins, *outputs, *PROTOS])
    if code:
        raise SystemExit(code)


def stale() -> list[str]:
    """Names of the committed stubs that a fresh run would change."""
    names = [proto.removesuffix(".proto") + stub for proto in PROTOS for stub in STUBS]
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        return [name for name in names if not _same(ROOT / name, Path(folder) / name)]


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and one.read_bytes() == other.read_bytes()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if not parser.parse_args(arguments).check:
        generate(ROOT)
        return 0
    names = stale()
    for name in names:
        print(f"{name} is stale; run: python proto/generate.py", file=sys.stderr)
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())
