"""The interface definition: stubs are fresh, names follow the library, nothing is left unsaid."""

from __future__ import annotations

import dataclasses
import importlib.util
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from uec.calibration import ROLES
from uec.records import FUSIONS, POSTERIOR_KINDS, Hit, MemberHit, SearchOptions
from uec.v1 import uec_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent


def load_generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools (extra 'dev')")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for tool, expected in module.TOOLS.items():
        if version(tool) != expected:
            pytest.skip(f"the stubs are made with {tool} {expected}; {version(tool)} is installed")
    return module


def test_stubs_are_fresh() -> None:
    assert load_generator().stale() == []


def test_stale_stubs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = load_generator()
    proto = tmp_path / "proto" / "uec" / "v1" / "uec.proto"
    proto.parent.mkdir(parents=True)
    (tmp_path / "uec" / "v1").mkdir(parents=True)
    source = (ROOT / "proto" / "uec" / "v1" / "uec.proto").read_text(encoding="utf-8")
    proto.write_text(source, encoding="utf-8")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    proto.write_text(source.replace("bool explain = 8", "bool explain = 90"), encoding="utf-8")
    assert generator.main(["--check"]) == 1
    assert "uec/v1/uec_pb2.py is stale" in capsys.readouterr().err


def names(message: Any) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}


def record(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_fields_follow_the_records() -> None:
    assert names(pb.SearchOptions) == record(SearchOptions)
    assert names(pb.MemberHit) == record(MemberHit)
    assert names(pb.Hit) == record(Hit) - {"document"} | {"title", "text", "metadata"}


@pytest.mark.parametrize(
    ("enum", "prefix", "values"),
    [
        (pb.Role, "ROLE", ROLES),
        (pb.Posterior, "POSTERIOR", POSTERIOR_KINDS),
        (pb.Fusion, "FUSION", FUSIONS),
    ],
)
def test_enums_follow_the_library(enum: Any, prefix: str, values: tuple[str, ...]) -> None:
    expected = [f"{prefix}_UNSPECIFIED", *(f"{prefix}_{value.upper()}" for value in values)]
    assert sorted(enum.keys()) == sorted(expected)
    assert enum.Value(f"{prefix}_UNSPECIFIED") == 0


def test_field_numbers_are_kept() -> None:
    """Programs that were built against an older proto go on working: numbers never change."""
    published = {
        pb.SearchOptions: "top_k n_candidates posterior temperature beta fusion weights explain",
        pb.EncodeRequest: "texts role include_members options",
        pb.MemberEncoding: "member mean trace raw_trace weight tokens truncated",
        pb.SearchRequest: "queries options",
        pb.SearchResponse: "rankings timings",
        pb.Ranking: "hits members",
        pb.MemberQuery: "member weight trace truncated",
        pb.Hit: "doc_id score similarity variance title text metadata members",
        pb.MemberHit: "member similarity standardised trace",
    }
    for message, fields in published.items():
        numbers = {field.name: field.number for field in message.DESCRIPTOR.fields}
        for number, name in enumerate(fields.split(), start=1):
            assert numbers[name] == number, f"{message.DESCRIPTOR.name}.{name}"
