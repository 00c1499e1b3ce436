"""Members by plain sentence-transformers and brute force, beside the figures of `run_local`.

    python -m benchmarks.run_plain --data DIR --against FILE.json --out FILE.json

Nothing of this package but the readers and the measures is used: a fault in encoding, storing or
searching shows as a difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks import datasets, measures
from uec.encoders.packaged import materialise

DEPTH = 100
"""Documents kept a query, as in `benchmarks.systems`."""


def plain_run(model: SentenceTransformer, dataset: datasets.RetrievalSet) -> measures.Run:
    """The best documents of each query by cosine over the whole corpus."""
    documents = model.encode_document(
        [d.passage for d in dataset.corpus], normalize_embeddings=True, convert_to_numpy=True
    )
    queries = model.encode_query(
        [q.text for q in dataset.queries], normalize_embeddings=True, convert_to_numpy=True
    )
    similarity = queries @ documents.T
    run = {}
    for query, row in zip(dataset.queries, similarity, strict=True):
        best = np.argsort(-row, kind="stable")[:DEPTH]
        run[query.query_id] = {dataset.corpus[i].doc_id: float(row[i]) for i in best}
    return run


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="What `run_local` wrote; its sets and packaged members are run again.",
)
@click.option("--sets", help="Only these, comma separated.")
@click.option("--members", help="Only these, comma separated.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Added to if it is there."
)
def main(data: Path, against: Path, sets: str | None, members: str | None, out: Path) -> None:
    """Write FILE.json with the plain figures and the greatest difference of each."""
    local = json.loads(against.read_text(encoding="utf-8"))
    models = {
        name: model.removeprefix("pkg:")
        for name, model in local["settings"]["members"].items()
        if model.startswith("pkg:") and (members is None or name in members.split(","))
    }
    wanted = list(local["sets"]) if sets is None else sets.split(",")
    table: dict[str, dict[str, dict[str, float]]] = {}
    if out.exists():
        table = json.loads(out.read_text(encoding="utf-8"))["sets"]
    for name, packaged in models.items():
        model = SentenceTransformer(str(materialise(packaged)), local_files_only=True)
        for set_name in wanted:
            systems = local["sets"][set_name]
            dataset = datasets.load_set(data, set_name)
            values = measures.per_query(name, plain_run(model, dataset), dataset.qrels)
            plain = measures.summary(values)
            difference = max(abs(plain[m] - systems[name][m]) for m in measures.MEASURES)
            table.setdefault(set_name, {})[name] = {**plain, "difference": difference}
            click.echo(f"{set_name} {name}: greatest difference {difference:.1e}", err=True)
    worst = max(row["difference"] for rows in table.values() for row in rows.values())
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {"sets": table, "greatest difference": worst}
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(f"greatest difference {worst:.1e}")


if __name__ == "__main__":
    main()
