"""What the uncertainty costs: at encode time for each member, and at query time on one index.

    python -m benchmarks.run_cost --data DIR --set scifact --out FILE.json

Encode: the same texts by ``SentenceTransformer.encode`` and by the member with both traces, in
turn, the order changing; the ratio pair by pair, because machines drift. Query time: shares of the
stages of `Retriever.search` on a calibrated index, without words and with, one query a call.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import datasets
from benchmarks.remembering import remembering
from benchmarks.run_local import parse_members
from benchmarks.systems import opened
from uec.calibrating import calibrate
from uec.ensemble import Member, encode_member
from uec.fitting import fit_ensemble
from uec.laplace import FitSettings
from uec.retriever import Retriever


def encode_ratio(member: Member, texts: list[str], n_rounds: int) -> dict[str, float]:
    """Wall and CPU time of encoding with traces over encoding without, paired."""
    model = member.encoder._model  # type: ignore[attr-defined]
    prompt = member.encoder.identity["document_prompt"]

    def plain() -> None:
        model.encode(texts, prompt=prompt, normalize_embeddings=True, show_progress_bar=False)

    def with_traces() -> None:
        encode_member(member, texts, "document")

    plain()
    with_traces()
    wall, cpu = [], []
    for round_ in range(n_rounds):
        order = (plain, with_traces) if round_ % 2 else (with_traces, plain)
        spent = {}
        for run in order:
            start = time.perf_counter(), time.process_time()
            run()
            spent[run] = time.perf_counter() - start[0], time.process_time() - start[1]
        wall.append(spent[with_traces][0] / spent[plain][0])
        cpu.append(spent[with_traces][1] / spent[plain][1])
    return {
        "wall ratio, median": float(np.median(wall)),
        "cpu ratio, median": float(np.median(cpu)),
        "cpu ratio, least": float(np.min(cpu)),
        "cpu ratio, most": float(np.max(cpu)),
        "rounds": n_rounds,
    }


def query_shares(retriever: Retriever, queries: list[str]) -> dict[str, float]:
    """Mean share of each stage in a search, one query a call."""
    stages: dict[str, list[float]] = {}
    for query in queries:
        timings = retriever.search([query])[0].timings_ms
        total = sum(timings.values())
        for stage, duration_ms in timings.items():
            stages.setdefault(f"{stage}, share", []).append(duration_ms / total)
            stages.setdefault(f"{stage}, ms", []).append(duration_ms)
    return {stage: float(np.median(values)) for stage, values in stages.items()}


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--set", "set_name", default="scifact", show_default=True)
@click.option("--members", default="minilm,paraphrase,e5", show_default=True)
@click.option("--n-texts", default=32, show_default=True)
@click.option("--n-rounds", default=5, show_default=True)
@click.option("--n-queries", default=50, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path,
    set_name: str,
    members: str,
    n_texts: int,
    n_rounds: int,
    n_queries: int,
    cache: Path | None,
    out: Path,
) -> None:
    """Write FILE.json with both parts."""
    specs = parse_members(members)
    pairs = datasets.english_pairs(data, 300)
    ensemble = fit_ensemble(specs, {spec.name: pairs for spec in specs}, FitSettings())
    dataset = datasets.load_set(data, set_name)
    texts = [document.passage for document in dataset.corpus[:n_texts]]
    content: dict[str, Any] = {
        "encode": {m.name: encode_ratio(m, texts, n_rounds) for m in ensemble.members},
        "search": {},
    }
    queries = [query.text for query in dataset.queries[: n_queries + 5]]
    for name, bm25 in ((set_name, False), (f"{set_name} with bm25", True)):
        with opened(remembering(ensemble, cache), dataset, bm25=bm25) as retriever:
            # What it remembers must not answer the queries that are timed.
            retriever.ensemble = replace(ensemble, calibration=calibrate(retriever))
            query_shares(retriever, queries[:5])
            content["search"][name] = query_shares(retriever, queries[5:])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
