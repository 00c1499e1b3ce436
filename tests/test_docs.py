"""The README's Python runs, and its commands, options and extras exist."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from uec.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_python_block_runs_as_it_stands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", blocks("python")[0]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"the dog in the \w+ eats the bone .* 0\.\d+$", done.stdout)


def test_every_option_in_the_shell_blocks_exists():
    for line in "\n".join(blocks("sh")).replace("\\\n", " ").splitlines():
        words = line.split()
        if not words or words[0] != "uec":
            continue
        help_text = CliRunner().invoke(main, [words[1], "--help"]).output
        for option in re.findall(r"(--[a-z-]+)", line):
            assert option in help_text, f"uec {words[1]} has no {option}"


def test_every_extra_in_the_readme_exists():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = set(config["options.extras_require"])
    table = README.split("| extra | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z]+)`", table.split("faiss")[0])) <= extras


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
