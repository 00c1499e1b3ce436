"""MTEB's own tasks on local files, offline, and how a model's answers to them become figures.

A dataset of MTEB is a folder whose ``README.md`` names, in its YAML head, the files of each
configuration; a task loads it from wherever ``metadata.dataset["path"]`` says. `localised` makes a
task that reads a folder, `write_dataset` writes one, `localised_beir` turns a BEIR folder into one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from mteb.abstasks import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.cache import ResultCache

from uec.calibration import Calibration
from uec.ensemble import Ensemble
from uec.errors import InputError
from uec.integrations.mteb import UECEncoder, UECSearch
from uec.readers import read_beir

HUB = "hub"
"""Where the data of a task is read if no folder is given."""

MEASURES = {
    "nDCG@10": "ndcg_at_10",
    "Recall@100": "recall_at_100",
    "MRR@10": "mrr_at_10",
    "nAUC@10": "nauc_ndcg_at_10_max",
    "Spearman": "spearman",
    "accuracy": "accuracy",
    "F1": "f1",
}
"""Beside the main score, where a task has them: name here to name in MTEB. nAUC@10 is of nDCG@10 by
the score of the best hit, standardised by this package for each query, so a member's is not that of
its cosines. Spearman's correlation is that of the model's own similarity."""

CHUNK = 1 << 20


def digest(folder: Path) -> str:
    """Sixteen hex digits of the names and contents of all files of a folder.

    Raises:
        InputError: there are no files.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise InputError(f"{folder}: no files in it; expected a dataset in MTEB's or BEIR's layout")
    total = hashlib.sha256()
    for path in files:
        own = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                own.update(chunk)
        total.update(f"{path.relative_to(folder).as_posix()} {own.hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def localised(task: AbsTask, folder: Path) -> AbsTask:
    """The same task with the data of a folder, loaded; its dataset revision is the folder's digest.

    Args:
        task: made by `mteb.get_task`; changed and returned. Other instances keep their path.
        folder: in the layout of the task's dataset on the hub.
    """
    dataset = {**task.metadata.dataset, "path": str(folder.resolve()), "revision": digest(folder)}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})
    # Loaded now and for good: `mteb.evaluate` unloads what it has loaded, and the path with it.
    task.load_data()
    return task


def write_dataset(
    folder: Path, split: str, configurations: Mapping[str, Iterable[Mapping[str, Any]]]
) -> None:
    """Write a dataset that MTEB can load: one JSON Lines file a configuration.

    Args:
        folder: made if it is not there.
        split: name of the one split.
        configurations: name to rows. A retrieval task reads ``corpus``, ``queries`` and
            ``default`` (the judgements), or ``LANG-corpus``, ``LANG-queries`` and ``LANG-qrels``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    head = ["---", "configs:"]
    for name, rows in configurations.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        head += [f"- config_name: {name}", "  data_files:"]
        head += [f"  - split: {split}", f"    path: {name}.jsonl"]
    (folder / "README.md").write_text("\n".join([*head, "---", ""]), encoding="utf-8")


def from_beir(beir: Path, folder: Path, split: str) -> None:
    """Write a BEIR folder as a dataset of a retrieval task of one language."""
    source = read_beir(beir, split)
    judgements = (
        {"query-id": query_id, "corpus-id": doc_id, "score": relevance}
        for query_id, judged in source.qrels.items()
        for doc_id, relevance in judged.items()
    )
    write_dataset(
        folder,
        split,
        {
            "corpus": ({"_id": d.doc_id, "title": d.title, "text": d.text} for d in source.corpus),
            "queries": ({"_id": q.query_id, "text": q.text} for q in source.queries),
            "default": judgements,
        },
    )


def alone(ensemble: Ensemble, name: str) -> Ensemble:
    """An ensemble of one of the members."""
    member = ensemble.members[ensemble.names.index(name)]
    return replace(ensemble, members=(member,), calibration=Calibration.uniform(1))


def models(
    ensemble: Ensemble, task: AbsTask, systems: Sequence[str]
) -> Iterator[tuple[str, UECSearch | UECEncoder]]:
    """The door that fits a task, for "uec", "equal weights" and members by name.

    Raises:
        InputError: there is no such system.
    """
    door = UECSearch if isinstance(task, AbsTaskRetrieval) else UECEncoder
    for system in systems:
        if system in ensemble.names:
            yield system, door(alone(ensemble, system), name=system, calibrated=False)
        elif system not in ("uec", "equal weights"):
            known = ", ".join([*ensemble.names, "equal weights", "uec"])
            raise InputError(f"no system {system!r}; there are: {known}")
        else:
            calibrated = system == "uec"
            yield system, door(ensemble, name=system.replace(" ", "-"), calibrated=calibrated)


def evaluate(
    model: Any, task: AbsTask, cache: Path | None, predictions: Path | None = None
) -> dict[str, dict[str, float]]:
    """Run one model on one task.

    Args:
        model: with a revision that stands for all that decides its scores.
        task: from `mteb.get_task`, perhaps `localised`.
        cache: folder of MTEB's results; None runs everything. MTEB looks results up by model and
            task, not by data, so results on local files go to a folder of their own. A kept result
            comes without what the model learnt (`calibrations`).
        predictions: folder where MTEB leaves the answers themselves.

    Returns:
        ``SUBSET/SPLIT`` to "main" and those of `MEASURES` that the task has.

    Raises:
        InputError: a main score is not a number.
    """
    kept = None
    if cache is not None:
        local = Path(task.metadata.dataset["path"]).is_absolute()
        kept = ResultCache(cache / (f"local-{task.metadata.revision}" if local else HUB))
    result = mteb.evaluate(
        model,
        task,
        cache=kept,
        co2_tracker=False,
        show_progress_bar=False,
        prediction_folder=predictions,
    ).task_results[0]
    figures: dict[str, dict[str, float]] = {}
    for split, rows in result.scores.items():
        for row in rows:
            key = f"{row['hf_subset']}/{split}"
            main = float(row["main_score"])
            if not math.isfinite(main):
                raise InputError(f"{task.metadata.name}/{key}: the main score is {main}")
            own = {name: float(row[at]) for name, at in MEASURES.items() if at in row}
            # nAUC is not defined where all queries do equally well. Rounded as MTEB writes figures:
            # kept results read as fresh ones do.
            own = {name: round(value, 5) for name, value in own.items() if math.isfinite(value)}
            figures[key] = {"main": round(main, 5), **own}
    return figures


def described(task: AbsTask) -> dict[str, Any]:
    """What of a task must stand beside its figures: data, main measure and prompt."""
    metadata = task.metadata
    return {
        "main": metadata.main_score,
        "data": HUB if not Path(metadata.dataset["path"]).is_absolute() else "local files",
        "revision": metadata.dataset["revision"],
        "prompt of the task (not used)": metadata.prompt,
    }


def prompts(ensemble: Ensemble) -> dict[str, Any]:
    """What each member puts before queries and documents."""
    return {m.name: m.encoder.identity.get("prompts") for m in ensemble.members}


def mean(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Mean of what all subsets and splits have, each counting once."""
    rows = list(figures.values())
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: float(np.mean([row[name] for row in rows])) for name in shared}
