"""Do traces tell which queries a member fails on, and is the sketch of the variance good enough?

    python -m benchmarks.run_traces --data DIR --languages en,de --sketch-set scifact --out
    FILE.json

The first part pools the ``xquadr-LANGUAGE`` sets into one corpus, fits the posteriors on English
pairs and reports, for each member and posterior, the area under the ROC curve of the query's trace
for "this member has no relevant document among its ten best", and that of its peak (`uec.weighing`)
for comparison. The second compares the sketched with the full variance of the similarity, and the
two rankings of the best 100, on one more set.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from scipy.stats import kendalltau, rankdata

from benchmarks import datasets
from benchmarks.remembering import remembering
from benchmarks.run_local import parse_members
from uec.build import build_index
from uec.ensemble import Ensemble
from uec.fitting import fit_ensemble
from uec.laplace import Curvature, FitSettings
from uec.records import POSTERIOR_KINDS, SearchOptions
from uec.retriever import Retriever

CUT = 10


def auroc(positive: np.ndarray, value: np.ndarray) -> float:
    """Area under the ROC curve of `value` for `positive`, by the rank sum; ties count half."""
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    ranks = rankdata(value)
    rank_sum = ranks[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(rank_sum / (n_positive * n_negative))


def failures(ensemble: Ensemble, sets: list[datasets.RetrievalSet]) -> dict[str, Any]:
    """AUROC of each member's traces and low peaks over the pooled sets, and within each."""
    pooled = datasets.pool("pooled", sets)
    rows = {document.doc_id: row for row, document in enumerate(pooled.corpus)}
    relevant = [
        [rows[d] for d, r in pooled.qrels[query.query_id].items() if r > 0]
        for query in pooled.queries
    ]
    group = np.array([query.query_id.partition("/")[0] for query in pooled.queries])
    # Set by set, so that encodings kept by other runs are found.
    queries = [ensemble.encode([q.text for q in s.queries], "query") for s in sets]
    documents = [_encode_chunked(ensemble, s) for s in sets]
    table: dict[str, Any] = {"queries": len(pooled.queries)}
    for k, name in enumerate(ensemble.names):
        means = np.concatenate([encoded[k] for encoded in documents])
        similarity = np.concatenate([encoded[k].mean for encoded in queries]) @ means.T
        best = np.array([similarity[n, r].max() for n, r in enumerate(relevant)])
        failed = (similarity > best[:, None]).sum(axis=1) >= CUT
        table[name] = {"failure rate": float(failed.mean())}
        signs = {
            kind: np.concatenate([encoded[k].calibrated[kind] for encoded in queries])
            for kind in POSTERIOR_KINDS
        }
        # A peak is high where a member found something.
        signs["peak"] = (similarity.mean(axis=1) - similarity.max(axis=1)) / similarity.std(axis=1)
        for kind, sign in signs.items():
            table[name][kind] = {"pooled": auroc(failed, sign)} | {
                label: auroc(failed[group == label], sign[group == label])
                for label in dict.fromkeys(group.tolist())
                if 0 < failed[group == label].sum() < (group == label).sum()
            }
    return table


def _encode_chunked(ensemble: Ensemble, dataset: datasets.RetrievalSet) -> list[np.ndarray]:
    """Document means of each member, in the chunks in which an index build encodes them."""
    from uec.build import CHUNK

    texts = [document.passage for document in dataset.corpus]
    chunks = [
        ensemble.encode(texts[start : start + CHUNK], "document")
        for start in range(0, len(texts), CHUNK)
    ]
    return [
        np.concatenate([chunk[k].mean for chunk in chunks]) for k in range(len(ensemble.members))
    ]


def sketch_error(ensemble: Ensemble, dataset: datasets.RetrievalSet) -> dict[str, Any]:
    """Relative error of the sketched variance over the best 100, and tau of the two orders."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        located = [(f"{dataset.name}:{i}", d) for i, d in enumerate(dataset.corpus, 1)]
        build_index(ensemble, located, path, variance="full")
        full = Retriever.open(path, verify=False)
        full.ensemble = ensemble
        build_index(ensemble, located, path, variance="sketch")
        sketch = Retriever.open(path, verify=False)
        sketch.ensemble = ensemble
        texts = [query.text for query in dataset.queries]
        table: dict[str, Any] = {"queries": len(texts)}
        for kind in POSTERIOR_KINDS:
            # The variance must have a say in the order, or the two orders are trivially one.
            options = SearchOptions(top_k=100, posterior=kind, beta=0.1)
            errors, taus = [], []
            for exact, short in zip(
                full.search(texts, options), sketch.search(texts, options), strict=True
            ):
                variances = {hit.doc_id: hit.variance for hit in exact.hits}
                shared = [hit for hit in short.hits if hit.doc_id in variances]
                errors += [abs(h.variance / variances[h.doc_id] - 1) for h in shared]
                order = [hit.doc_id for hit in exact.hits]
                position = {doc_id: n for n, doc_id in enumerate(order)}
                ranks = [position.get(hit.doc_id, len(order)) for hit in short.hits]
                taus.append(kendalltau(range(len(ranks)), ranks).statistic)
            table[kind] = {
                "median relative error": float(np.median(errors)),
                "p99 relative error": float(np.quantile(errors, 0.99)),
                "mean Kendall tau of the top 100": float(np.mean(taus)),
                "least Kendall tau": float(np.min(taus)),
            }
    return table


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--languages", default="en,de,zh,ru,ar", show_default=True)
@click.option("--sketch-set", default="scifact", show_default=True, help="Empty for none.")
@click.option("--members", default="minilm,paraphrase,e5", show_default=True)
@click.option("--n-pairs", default=1500, show_default=True)
@click.option(
    "--curvature", type=click.Choice(get_args(Curvature)), default="ggn", show_default=True
)
@click.option("--rank", default=256, show_default=True, help="Directions the Kronecker form keeps.")
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path,
    languages: str,
    sketch_set: str,
    members: str,
    n_pairs: int,
    curvature: Curvature,
    rank: int,
    cache: Path | None,
    out: Path,
) -> None:
    """Write FILE.json with both parts."""
    specs = parse_members(members)
    pairs = datasets.english_pairs(data, n_pairs)
    settings = FitSettings(curvature=curvature, rank=rank)
    ensemble = remembering(
        fit_ensemble(specs, {spec.name: pairs for spec in specs}, settings), cache
    )
    sets = [datasets.load_set(data, f"xquadr-{language}") for language in languages.split(",")]
    content = {
        "auroc": failures(ensemble, sets),
        "sketch": {
            name: sketch_error(ensemble, datasets.load_set(data, name))
            for name in sketch_set.split(",")
            if name
        },
        "settings": {
            "pairs": len(pairs),
            "languages": languages,
            "fit": dataclasses.asdict(settings),
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
