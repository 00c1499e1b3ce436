"""An ensemble and its members on any tasks of MTEB.

    python -m benchmarks.run_mteb --ensemble DIR --tasks SciFact,STSBenchmark --out FILE.json
    python -m benchmarks.run_mteb --ensemble DIR --preset paper --cache DIR --out FILE.json

Data comes from the hub, or from folders: ``--data-path TASK=FOLDER`` takes a folder in the layout
of the task's dataset on the hub, or, for retrieval, in BEIR's. With HF_HUB_OFFLINE=1 nothing is
asked of the hub.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import mteb
from mteb.abstasks import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval

from benchmarks import mteblocal
from benchmarks.remembering import remembering
from uec.ensemble import Ensemble
from uec.errors import InputError

PRESETS = {
    "paper": (
        # Retrieval
        "SCIDOCS,LegalBenchCorporateLobbying,BelebeleRetrieval,WikipediaRetrievalMultilingual,"
        "StackOverflowQA,"
        # Classification
        "FinancialPhrasebankClassification,SwissJudgementClassification,"
        "PoemSentimentClassification,MassiveIntentClassification,TweetTopicSingleClassification,"
        # Semantic textual similarity
        "STSBenchmark,FinParaSTS,SICK-R,STS22.v2,SemRel24STS,STS12,STS13,STS14,STS15,STS17"
    ).split(",")
}
"""By name: ``paper`` are the twenty tasks of UEC, arXiv 2507.20718."""


def local_folders(given: tuple[str, ...], tasks: list[str]) -> dict[str, Path]:
    """Parse ``TASK=FOLDER``.

    Raises:
        InputError: not of that form, no such folder, or a task that is not run.
    """
    folders = {}
    for item in given:
        task, sign, folder = item.partition("=")
        if not sign or not Path(folder).is_dir():
            raise InputError(
                f"--data-path {item!r}: expected TASK=FOLDER with a folder that exists"
            )
        if task not in tasks:
            raise InputError(f"--data-path names {task!r}; the tasks are {', '.join(tasks)}")
        folders[task] = Path(folder)
    return folders


def get_task(
    name: str, subsets: list[str] | None = None, splits: list[str] | None = None
) -> AbsTask:
    """A task of MTEB by name.

    Raises:
        InputError: MTEB knows no such task or subset.
    """
    try:
        return mteb.get_task(name, hf_subsets=subsets, eval_splits=splits)
    except (KeyError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error


def prepared(task: AbsTask, source: Path | None, aside: Path) -> AbsTask:
    """The task, reading `source` where there is one; a BEIR folder is rewritten under `aside`.

    Raises:
        InputError: a BEIR folder, which holds one set, for a task of several splits or subsets.
    """
    if source is None:
        return task
    beir = (source / "corpus.jsonl").exists() and (source / "qrels").is_dir()
    if beir and isinstance(task, AbsTaskRetrieval):
        if len(task.eval_splits) > 1 or task.metadata.is_multilingual:
            raise InputError(
                f"{source}: a BEIR folder holds one set, and {task.metadata.name} has "
                f"splits {task.eval_splits} and subsets {task.hf_subsets}; "
                "give a folder in the layout of its dataset on the hub"
            )
        mteblocal.from_beir(source, aside / task.metadata.name, task.eval_splits[0])
        source = aside / task.metadata.name
    return mteblocal.localised(task, source)


@click.command()
@click.option("--ensemble", "path", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--tasks", help="Names of MTEB, comma separated.")
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="A list of tasks by name.")
@click.option("--subsets", help="Only these subsets (languages), comma separated.")
@click.option(
    "--data-path", "data", multiple=True, help="TASK=FOLDER: read a task's data from a folder."
)
@click.option("--systems", help="Of members, 'uec', 'equal weights'; all if not given.")
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings and results here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    path: Path,
    tasks: str | None,
    preset: str | None,
    subsets: str | None,
    data: tuple[str, ...],
    systems: str | None,
    cache: Path | None,
    out: Path,
) -> None:
    """Write FILE.json with every system's scores on every task."""
    if (tasks is None) == (preset is None):
        raise click.UsageError("give --tasks or --preset")
    names = PRESETS[preset] if preset else (tasks or "").split(",")
    folders = local_folders(data, names)
    ensemble = remembering(Ensemble.load(path), cache and cache / "encodings")
    asked = systems.split(",") if systems else [*ensemble.names, "equal weights", "uec"]
    table: dict[str, Any] = {}
    revisions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as aside:
        for name in names:
            task = get_task(name, subsets.split(",") if subsets else None)
            task = prepared(task, folders.get(name), Path(aside))
            row: dict[str, Any] = {**mteblocal.described(task), "systems": {}, "calibrations": {}}
            for system, model in mteblocal.models(ensemble, task, asked):
                figures = mteblocal.evaluate(model, task, cache and cache / "results")
                row["systems"][system] = {**mteblocal.mean(figures), "parts": figures}
                if model.calibrations:
                    row["calibrations"][system] = model.calibrations
                revisions[f"{name}/{system}"] = model.mteb_model_meta.revision
            table[name] = row
            shown = {s: round(own["main"], 4) for s, own in row["systems"].items()}
            click.echo(f"{name}: {shown}", err=True)
    content = {
        "tasks": table,
        "average": {
            system: sum(row["systems"][system]["main"] for row in table.values()) / len(table)
            for system in asked
        },
        "prompts of the members": mteblocal.prompts(ensemble),
        "revisions": revisions,
        "mteb": version("mteb"),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
