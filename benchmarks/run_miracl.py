"""MIRACL through MTEB's own tasks, language by language.

    python -m benchmarks.run_miracl --ensemble DIR --languages sw,yo --out FILE.json
    python -m benchmarks.run_miracl --ensemble DIR --languages sw --data DIR --out FILE.json

Without --data the datasets come from the hub. With it they are read from files in MIRACL's own
layout, below DIR for each language LANG:

    LANG/topics.tsv                     or topics.miracl-v1.0-LANG-dev.tsv, anywhere below DIR
    LANG/qrels.tsv                      or qrels.miracl-v1.0-LANG-dev.tsv, anywhere below DIR
    LANG/docs-*.jsonl.gz                or miracl-corpus-v1.0-LANG/docs-*.jsonl.gz below DIR

``qid<TAB>text``; ``qid Q0 docid relevance`` with the lines of relevance 0 kept; ``docid``,
``title`` and ``text``. Titles are joined to texts. What MTEB's tasks say as a prompt is recorded;
the members put their own prompts before queries and passages, which are recorded too.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks import mteblocal
from benchmarks.remembering import remembering
from benchmarks.run_mteb import get_task
from uec.ensemble import Ensemble
from uec.errors import InputError

TASKS = ("MIRACLRetrieval", "MIRACLRetrievalHardNegatives", "MIRACLRetrievalHardNegatives.v2")

SPLIT = "dev"


def convert(data: Path, folder: Path, languages: Sequence[str]) -> None:
    """Rewrite files in MIRACL's layout as the dataset that MTEB's tasks load.

    Args:
        data: see the module.
        folder: to write.
        languages: MIRACL's codes, such as ``sw``.

    Raises:
        InputError: a file is missing or a line is not as expected; says where.
    """
    configurations: dict[str, Iterator[dict[str, Any]]] = {}
    for language in languages:
        topics = _one(data, language, "topics")
        qrels = _one(data, language, "qrels")
        configurations[f"{language}-corpus"] = _corpus(_passages(data, language))
        configurations[f"{language}-queries"] = _topics(topics)
        configurations[f"{language}-qrels"] = _judgements(qrels)
    mteblocal.write_dataset(folder, SPLIT, configurations)


def _one(data: Path, language: str, what: str) -> Path:
    found = [data / language / f"{what}.tsv"]
    if not found[0].exists():
        found = sorted(data.rglob(f"{what}.miracl-v1.0-{language}-{SPLIT}.tsv"))
    if len(found) != 1:
        raise InputError(
            f"{data}: {len(found)} files of {what} for {language!r}; expected "
            f"{language}/{what}.tsv or one {what}.miracl-v1.0-{language}-{SPLIT}.tsv"
        )
    return found[0]


def _passages(data: Path, language: str) -> list[Path]:
    found = sorted((data / language).glob("docs-*.jsonl.gz"))
    found = found or sorted(data.rglob(f"miracl-corpus-v1.0-{language}/docs-*.jsonl.gz"))
    if not found:
        raise InputError(f"{data}: no {language}/docs-*.jsonl.gz; expected MIRACL's corpus files")
    return found


def _corpus(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    yield {"_id": row["docid"], "title": row["title"], "text": row["text"]}
                except (ValueError, KeyError, TypeError) as error:
                    raise InputError(
                        f"{path}:{number}: expected JSON with docid, title and text ({error})"
                    ) from error


def _topics(path: Path) -> Iterator[dict[str, Any]]:
    for number, (query_id, text) in _cells(path, 2, "qid<TAB>text"):
        if not text.strip():
            raise InputError(f"{path}:{number}: query {query_id!r} has no text")
        yield {"_id": query_id, "text": text}


def _judgements(path: Path) -> Iterator[dict[str, Any]]:
    for number, (query_id, _, doc_id, relevance) in _cells(path, 4, "qid Q0 docid relevance"):
        if not relevance.isdecimal():
            raise InputError(f"{path}:{number}: relevance {relevance!r}; expected 0 or more")
        yield {"query-id": query_id, "corpus-id": doc_id, "score": int(relevance)}


def _cells(path: Path, n_cells: int, expected: str) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) != n_cells:
                raise InputError(
                    f"{path}:{number}: {len(cells)} cells parted by tabs; expected {expected}"
                )
            yield number, cells


@click.command()
@click.option("--ensemble", "path", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--languages", required=True, help="MIRACL's codes, comma separated.")
@click.option("--tasks", default=",".join(TASKS), show_default=True)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    help="Files in MIRACL's layout; the hub if not given.",
)
@click.option("--systems", help="Of members, 'uec', 'equal weights'; all if not given.")
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings and results here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    path: Path,
    languages: str,
    tasks: str,
    data: Path | None,
    systems: str | None,
    cache: Path | None,
    out: Path,
) -> None:
    """Write FILE.json with every system's scores by task and language."""
    codes = languages.split(",")
    ensemble = remembering(Ensemble.load(path), cache and cache / "encodings")
    asked = systems.split(",") if systems else [*ensemble.names, "equal weights", "uec"]
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as aside:
        if data is not None:
            convert(data, Path(aside), codes)
        for name in tasks.split(","):
            task = get_task(name, codes)
            if data is not None:
                task = mteblocal.localised(task, Path(aside))
            row: dict[str, Any] = {**mteblocal.described(task), "systems": {}, "calibrations": {}}
            for system, model in mteblocal.models(ensemble, task, asked):
                figures = mteblocal.evaluate(model, task, cache and cache / "results")
                by_language = {key.partition("/")[0]: own for key, own in figures.items()}
                row["systems"][system] = {**mteblocal.mean(figures), "languages": by_language}
                if model.calibrations:
                    row["calibrations"][system] = model.calibrations
            table[name] = row
            shown = {s: round(own["main"], 4) for s, own in row["systems"].items()}
            click.echo(f"{name}: {shown}", err=True)
    content = {
        "tasks": table,
        "prompts of the members": mteblocal.prompts(ensemble),
        "mteb": version("mteb"),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
