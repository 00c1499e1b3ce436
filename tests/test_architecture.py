"""The house's rules as tests: public names, light imports, one test file a module, packaging."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

import uec
from uec import errors

ROOT = Path(__file__).resolve().parent.parent

# Modules without a test file of their own, and where they are tested instead.
TESTED_ELSEWHERE = {
    "uec/__init__.py": "test_architecture",
    "uec/calibration.py": "test_ensemble",
    "uec/curvature.py": "test_laplace",
    "uec/errors.py": "test_server",
    "uec/fitting.py": "test_ensemble",
    "uec/gaussian.py": "test_similarity",
    "uec/index.py": "test_build",
    "uec/lines.py": "test_readers",
    "uec/manifest.py": "test_storage",
    "uec/messages.py": "test_client",
    "uec/posterior.py": "test_laplace",
    "uec/records.py": "test_retriever",
    "uec/screen.py": "test_cli",
    "uec/svg.py": "test_drawing",
    "uec/trust.py": "test_calibrating",
}

MAX_LINES = 335
"""About 300, the house's measure, with room for one docstring more."""

LONGER_FOR_A_REASON = {
    "uec/cli.py": "one function a command, each mostly the text of its options",
    "uec/integrations/mteb.py": "two protocols, and the checks that MTEB leaves to a model",
    "uec/retriever.py": "the whole method belongs on one screen after another",
}


def modules() -> list[Path]:
    found = [*ROOT.glob("uec/**/*.py"), *ROOT.glob("server/**/*.py")]
    return [path for path in found if "/v1/" not in path.as_posix()]


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "server")])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True)
    return done.stdout.strip()


def test_every_public_name_resolves():
    for name in uec.__all__:
        assert getattr(uec, name) is not None
    assert sorted(uec.__all__) == dir(uec)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        uec.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import uec; uec.MemberSpec, uec.SearchOptions", {"torch", "faiss", "grpc"}),
        ("import uec.cli", {"torch", "faiss", "grpc", "rich"}),
        ("import uec.client", {"torch", "faiss", "sentence_transformers"}),
        (
            "import uec.retriever, uec_server.app",
            {"torch", "laplace", "sklearn", "zuko", "mteb", "matplotlib"},
        ),
    ],
)
def test_imports_stay_light(statement, absent):
    loaded = run_python(f"{statement}; import sys; print(' '.join(sys.modules))").split()
    assert not absent & {name.partition(".")[0] for name in loaded}


def test_the_error_tree_is_drawn_as_it_is():
    """The docstring of `uec.errors` names every class, and every class is in it."""
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    drawn = {line.split()[1] for line in (errors.__doc__ or "").splitlines() if "──" in line}
    assert drawn == classes - {"UECError"}
    assert all(issubclass(getattr(errors, name), errors.UECError) for name in drawn)


def test_modules_stay_small():
    long = {
        path.relative_to(ROOT).as_posix(): n
        for path in modules()
        if (n := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert set(long) <= set(LONGER_FOR_A_REASON), long


def test_every_trunk_module_has_its_tests():
    for path in sorted((ROOT / "uec").glob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        expected = TESTED_ELSEWHERE.get(name, f"test_{path.stem}")
        assert (ROOT / "tests" / f"{expected}.py").exists(), f"{name} has no {expected}.py"


def test_setup_cfg_lists_every_package():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {
        path.parent.relative_to(ROOT).as_posix().removeprefix("server/").replace("/", ".")
        for path in [*ROOT.glob("uec/**/__init__.py"), *ROOT.glob("server/**/__init__.py")]
    }
    assert listed == found


def test_the_repository_names_no_other_place():
    """No machine paths and nothing of the workshop in what is committed."""
    files = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout.split()
    if not files:
        pytest.skip("not a git checkout")
    for name in files:
        if name in (".ci/run", "tests/test_architecture.py"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="ignore")
        assert "/work/" not in text and "../shared" not in text, name
