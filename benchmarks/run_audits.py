"""Do the label-free audits rank members as labels do?

    python -m benchmarks.run_audits --data DIR --sets a,b --out FILE.json

Each set's texts are audited by `uec.auditing`, and every measure of the members is related to what
the members are worth with labels. A set is a folder in the BEIR layout (nDCG@10 of the member
alone; pairs are the questions with a relevant passage each), ``sts/NAME`` (Spearman's correlation
of the cosine with the scores; pairs are those with a score of four or more), or ``tatoeba/LANG``
(share of sentences in either language whose nearest in the other is their translation).
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.stats import spearmanr

from benchmarks import datasets, measures
from benchmarks.remembering import remembered
from benchmarks.run_local import parse_members
from benchmarks.sentencesets import read_sts
from uec import audits, encoders
from uec.auditing import running
from uec.auditing.gathering import Sides, Subject
from uec.auditing.sampling import PairSample, PairSets, Sample, draw, draw_pairs, read_sample
from uec.audits.relation import mean_relation, relation
from uec.encoders import Encoder
from uec.errors import InputError
from uec.manifest import require_equal
from uec.records import Document, Pair
from uec.symmetric import unit

FAMILIES = {
    "minilm": "English",
    "paraphrase": "English",
    "e5": "E5",
    "e5-enpt": "E5",
    "use": "USE",
    "wordllama": "static",
    "wordllama-128": "static",
    "wordllama-64": "static",
}
"""Members that share their training; each family is left out once."""

SAME = 4.0
"""Score, of five, from which two sentences of an STS set count as a pair."""

FAILED = 0.1
"""Score on a bitext task below which a model knows one of the languages only."""

NOT_MEASURES = {"member", "dimension"}

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Task:
    """What members are audited on, and what they are worth there.

    Attributes:
        sample: texts.
        pairs: that mean the same.
        score: what labels say of an encoder.
        bitext: whether the pairs are translations, of which audits of one language say nothing.
    """

    sample: Sample
    pairs: PairSample
    score: Callable[[Encoder], float]
    bitext: bool = False


def load_task(data: Path, name: str, n_texts: int, seed: int) -> Task:
    """A set by name; see the module.

    Raises:
        InputError: there is no such set.
    """
    kind, _, rest = name.partition("/")
    if kind == "sts":
        rows = list(read_sts(data / "sts" / f"{rest}-test.tsv"))
        sentences = dict.fromkeys(r[side] for r in rows for side in ("sentence1", "sentence2"))
        documents = [Document(str(i), text) for i, text in enumerate(sentences)]
        same = [Pair(r["sentence1"], r["sentence2"]) for r in rows if r["score"] >= SAME]
        return Task(
            sampled(documents, n_texts, seed),
            draw_pairs(same, n_texts, seed),
            lambda encoder: _sts(encoder, rows),
        )
    if kind == "tatoeba":
        pairs = datasets.bitext(data, rest)
        english = [Document(str(i), pair.passage) for i, pair in enumerate(pairs)]
        return Task(
            sampled(english, n_texts, seed),
            draw_pairs(pairs, n_texts, seed),
            lambda encoder: _bitext(encoder, pairs),
            bitext=True,
        )
    dataset = datasets.load_set(data, name)
    texts = {document.doc_id: document.passage for document in dataset.corpus}
    answers = {
        query_id: next(doc_id for doc_id, relevance in judged.items() if relevance > 0)
        for query_id, judged in dataset.qrels.items()
    }
    asked = [
        Pair(query.text, texts[answers[query.query_id]])
        for query in dataset.queries
        if texts[answers[query.query_id]].strip()
    ]
    return Task(
        read_sample(data / name, n_texts, seed),
        draw_pairs(asked, n_texts, seed),
        lambda encoder: _retrieval(encoder, dataset),
    )


def sampled(documents: Sequence[Document], n_texts: int, seed: int) -> Sample:
    """Some of these distinct texts."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(documents))[:n_texts])
    chosen = tuple(documents[row] for row in rows)
    return Sample(chosen, rows, len(documents), n_repeated=0, n_empty=0)


def _retrieval(encoder: Encoder, dataset: datasets.RetrievalSet) -> float:
    documents = [document for document in dataset.corpus if document.passage.strip()]
    right = unit(encoder.encode([d.passage for d in documents], "document").mean)
    left = unit(encoder.encode([q.text for q in dataset.queries], "query").mean)
    run = {}
    for query, scores in zip(dataset.queries, left @ right.T, strict=True):
        best = np.argsort(-scores, kind="stable")[:100]
        run[query.query_id] = {documents[i].doc_id: float(scores[i]) for i in best}
    values = measures.per_query(dataset.name, run, dataset.qrels)["nDCG@10"]
    return float(np.mean(list(values.values())))


def _sts(encoder: Encoder, rows: Sequence[Mapping[str, Any]]) -> float:
    left, right = (
        unit(encoder.encode([row[side] for row in rows], "query").mean)
        for side in ("sentence1", "sentence2")
    )
    cosine = np.einsum("nd,nd->n", left, right)
    return float(spearmanr(cosine, [row["score"] for row in rows]).statistic)


def _bitext(encoder: Encoder, pairs: Sequence[Pair]) -> float:
    left = unit(encoder.encode([pair.query for pair in pairs], "query").mean)
    right = unit(encoder.encode([pair.passage for pair in pairs], "document").mean)
    similarity, own = left @ right.T, np.arange(len(pairs))
    return float(np.mean([(similarity.argmax(axis=axis) == own).mean() for axis in (0, 1)]))


def measured(
    subjects: Sequence[Subject], task: Task, names: Sequence[str], n_spans: int, seed: int
) -> tuple[Rows, dict[str, Any]]:
    """Every measure of every member and its score by labels; and seconds an audit took.

    "spans" stands before measures of pairs that need no questions: pieces of the corpus and what
    is left of their texts. "published overlap" is without the mean of each side taken off.
    """
    rows: Rows = [
        {
            "member": subject.name,
            "family": FAMILIES.get(subject.name, subject.name),
            "labels": task.score(_encoder(subject)),
        }
        for subject in subjects
    ]
    of_pairs = [name for name in names if name in running.OF_PAIRS]
    if task.bitext:
        names = of_pairs
    audited = running.run(
        subjects, task.sample, PairSets(task.pairs), names=names, n_spans=n_spans, seed=seed
    )
    for name, report in audited.reports.items():
        _join(rows, name, report.rows)
    if "overlap" in of_pairs:
        sides = _sides(subjects, task.pairs.queries, task.pairs.passages)
        uncentred = audits.load("overlap")(sides, centre=False, seed=seed)
        _join(rows, "published overlap", uncentred.rows)
    if of_pairs and not task.bitext:
        spans = draw(task.sample, n_spans, seed)
        parts = _sides(subjects, [span.text for span in spans], [span.rest for span in spans])
        for name in of_pairs:
            _join(rows, f"spans {name}", audits.load(name)(parts, seed=seed).rows)
    return rows, {
        "texts": len(task.sample.documents),
        "seconds": audited.seconds,
        "refused": audited.refused,
        "reports": {
            name: {"settings": report.settings, "warnings": report.warnings}
            for name, report in audited.reports.items()
        },
    }


def _sides(
    subjects: Sequence[Subject], left: Sequence[str], right: Sequence[str]
) -> dict[str, Sides]:
    return {
        subject.name: (
            _encoder(subject).encode(left, "query").mean,
            _encoder(subject).encode(right, "document").mean,
        )
        for subject in subjects
    }


def _encoder(subject: Subject) -> Encoder:
    assert subject.encoder is not None
    return subject.encoder


def _join(rows: Rows, audit: str, found: Sequence[Mapping[str, Any]]) -> None:
    for row, own in zip(rows, found, strict=True):
        row |= {
            f"{audit} {key}": float(value)
            for key, value in own.items()
            if key not in NOT_MEASURES and isinstance(value, int | float)
        }


def related(tables: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    """Measure to set, or "average", to its relation with what labels say.

    A measure that is the same for all members of a set, or that not every member has, is left out
    there.
    """
    keys = dict.fromkeys(key for rows in tables.values() for row in rows for key in row)
    found: dict[str, dict[str, Any]] = {}
    for key in keys:
        if key in ("member", "family", "labels"):
            continue
        usable = {}
        for name, rows in tables.items():
            try:
                own = relation(rows, key, "labels", group="family")
            except InputError:
                continue
            usable[name] = rows
            found.setdefault(key, {})[name] = dataclasses.asdict(own)
        if len(usable) > 1:
            mean = mean_relation(list(usable.values()), key, "labels", group="family")
            found[key]["average"] = {**dataclasses.asdict(mean), "sets": list(usable)}
    return found


def as_markdown(relations: Mapping[str, Mapping[str, Any]], sets: Sequence[str]) -> str:
    """Rho of every measure by set; the mean with its interval and least value without a family."""
    lines = [
        f"| measure | {' | '.join(sets)} | mean (95 %) | without a family |",
        f"|{' --- |' * (len(sets) + 3)}",
    ]
    for key, by_set in relations.items():
        cells = [f"{by_set[name]['rho']:.2f}" if name in by_set else "" for name in sets]
        mean = by_set.get("average")
        if mean is not None:
            left = {name: rho for name, rho in mean["without"].items() if rho is not None}
            least = min(left, key=lambda name: left[name] * np.sign(mean["rho"]), default=None)
            cells.append(f"{mean['rho']:.2f} ({mean['low']:.2f} to {mean['high']:.2f})")
            cells.append("" if least is None else f"{left[least]:.2f} ({least})")
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(lines)


def published(path: Path) -> dict[str, Any]:
    """Relation of the measures in a table of models, made elsewhere, with its ``mteb_score``.

    English-only models, with a score below `FAILED` on a task of two languages, are a group.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows: Rows = list(csv.DictReader(file))
    for row in rows:
        row["family"] = "English" if float(row["mteb_score"]) < FAILED else "multilingual"
    keys = [key for key in rows[0] if key not in ("model", "family", "mteb_score")]
    return {
        key: dataclasses.asdict(relation(rows, key, "mteb_score", group="family")) for key in keys
    }


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--sets", required=True, help="Comma separated; see above.")
@click.option("--members", default=",".join(FAMILIES), show_default=True)
@click.option("--only", help="Audits to run, comma separated; all without it.")
@click.option("--n-texts", default=1000, show_default=True)
@click.option("--n-spans", default=running.N_SPANS, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option(
    "--table",
    type=click.Path(path_type=Path, exists=True),
    help="CSV of published figures: model, mteb_score and measures.",
)
@click.option("--resume", is_flag=True, help="Keep the sets that FILE.json has already.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path,
    sets: str,
    members: str,
    only: str | None,
    n_texts: int,
    n_spans: int,
    seed: int,
    cache: Path | None,
    table: Path | None,
    resume: bool,
    out: Path,
) -> None:
    """Write FILE.json with the members' measures on each set and their relation to the labels."""
    specs = parse_members(members)
    names = running.chosen(only.split(",") if only else [], [])
    subjects = [
        Subject(spec.name, spec.model, remembered(encoders.load(spec), cache)) for spec in specs
    ]
    settings = {
        "members": {spec.name: spec.model for spec in specs},
        "audits": list(names),
        "n_texts": n_texts,
        "n_spans": n_spans,
        "seed": seed,
    }
    tables: dict[str, Rows] = {}
    about: dict[str, Any] = {}
    if resume and out.exists():
        before = json.loads(out.read_text(encoding="utf-8"))
        require_equal("settings", before["settings"], settings)
        tables, about = before["members"], before["about"]
    relations = related(tables)
    for name in (name for name in sets.split(",") if name not in tables):
        task = load_task(data, name, n_texts, seed)
        tables[name], about[name] = measured(subjects, task, names, n_spans, seed)
        shown = {row["member"]: round(row["labels"], 3) for row in tables[name]}
        click.echo(f"{name}: {shown} {about[name].get('refused', '')}", err=True)
        relations = related(tables)
        content = {
            "relations": relations,
            "published": {} if table is None else {table.stem: published(table)},
            "members": tables,
            "about": about,
            "settings": settings,
        }
        # After each set: a long run that is stopped keeps what it has.
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(as_markdown(relations, list(tables)))


if __name__ == "__main__":
    main()
