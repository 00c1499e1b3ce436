"""Sets of sentence pairs and of questions to classify, as MTEB's tasks on local files.

STS-B and SICK are MTEB's own tasks on the files of ``DIR/sts``. The classification is made of
XQuAD-R, whose questions (``DIR/xquadr-LANG``) belong to 48 articles of five paragraphs each: which
article is a question about? By MTEB's protocol a classifier learns from eight questions an article
(fewer where there are fewer) out of its first three paragraphs, in ten draws, and is tested on the
questions of the other two.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mteb.abstasks import AbsTask
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.task_metadata import TaskMetadata

from benchmarks import mteblocal
from benchmarks.run_mteb import get_task
from uec.errors import InputError
from uec.readers import read_beir

STS = {
    "stsb-en-test": ("STSBenchmark", None),
    "sick-test": ("SICK-R", None),
    "stsb-de-test": ("STSBenchmarkMultilingualSTS", "de"),
    "stsb-ru-test": ("STSBenchmarkMultilingualSTS", "ru"),
    "stsb-zh-test": ("STSBenchmarkMultilingualSTS", "zh"),
    "stsb-en-dev": ("STSBenchmark", None),
    "sick-trial": ("SICK-R", None),
}
"""File of ``sts/`` to MTEB's task and its subset. The last two are for choosing, not for tables."""

ARTICLES = "articles-"
"""Prefix of a classification set; the language follows."""

PARAGRAPHS, TRAINING_PARAGRAPHS = 5, 3
"""Of an article of XQuAD, and how many of them the classifier learns from."""


class ArticleClassification(AbsTaskClassification):
    """Which of 48 articles is a question about? Data by `write_articles`."""

    metadata = TaskMetadata(
        name="XQuADArticleClassification",
        description="Questions of XQuAD-R by the article that they were asked about.",
        reference="https://github.com/google-research-datasets/lareqa",
        dataset={"path": "local", "revision": "local"},
        type="Classification",
        category="t2c",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="accuracy",
        date=("2016-01-01", "2020-12-31"),
        domains=["Encyclopaedic", "Written"],
        task_subtypes=["Topic classification"],
        license="cc-by-sa-4.0",
        annotations_creators="derived",
        dialect=[],
        sample_creation="found",
        bibtex_citation="",
    )


def write_articles(data: Path, language: str, folder: Path) -> None:
    """Write the questions of one language with their articles as labels."""
    source = read_beir(data / f"xquadr-{language}", "test")
    paragraphs = {d.doc_id: int(d.metadata["paragraph"][1:]) for d in source.corpus}
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for query in source.queries:
        [doc_id] = source.qrels[query.query_id]
        article, paragraph = divmod(paragraphs[doc_id], PARAGRAPHS)
        part = "train" if paragraph < TRAINING_PARAGRAPHS else "test"
        rows[part].append({"text": query.text, "label": article})
    for part, own in rows.items():
        _write_lines(folder / f"{part}.jsonl", own)


def read_sts(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of ``score<TAB>sentence1<TAB>sentence2`` under a header, without quoting.

    Raises:
        InputError: a line that is not so; says where.
    """
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(
            csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 2
        ):
            try:
                pair = {name: row[name] for name in ("sentence1", "sentence2")}
                score = float(row["score"])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path}:{number}: expected score, sentence1 and sentence2 ({error})"
                ) from error
            yield {**pair, "score": score}


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def load(data: Path, name: str, aside: Path) -> tuple[AbsTask, np.ndarray]:
    """A set as MTEB's task, and the score or label of each of its test items.

    Args:
        data: see the module.
        name: key of `STS`, or ``articles-LANG``.
        aside: where the files that MTEB reads are written.

    Raises:
        InputError: there is no such set.
    """
    if name.startswith(ARTICLES):
        write_articles(data, name.removeprefix(ARTICLES), aside)
        rows = [json.loads(line) for line in (aside / "test.jsonl").read_text("utf-8").splitlines()]
        task = mteblocal.localised(ArticleClassification(), aside)
        return task, np.array([row["label"] for row in rows])
    if name not in STS:
        raise InputError(f"no set {name!r}; there are {', '.join(STS)} and {ARTICLES}LANG")
    task_name, subset = STS[name]
    rows = list(read_sts(data / "sts" / f"{name}.tsv"))
    scores = np.array([row["score"] for row in rows])
    if subset is not None:
        # As the dataset of this task has it.
        rows = [
            {
                "sentence1": row["sentence1"],
                "sentence2": row["sentence2"],
                "similarity_score": row["score"],
                "lang": subset,
            }
            for row in rows
        ]
    _write_lines(aside / "test.jsonl", rows)
    task = get_task(task_name, [subset] if subset else None, ["test"])
    return mteblocal.localised(task, aside), scores
