"""Which words do the members' embeddings hold, and does the factorised probe earn its form?

    python -m benchmarks.run_flip --data DIR --out FILE.json

Probes are trained on the English sentences of STS-B, SICK and Tatoeba and tested on others of them,
beside plain probes with their own learning rate, SpLiCE and guessing frequent words. A second
part trains without the English sides of some Tatoeba pairs and tests on both sides of those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from jaxtyping import Float

from benchmarks.datasets import bitext
from benchmarks.remembering import remembered
from benchmarks.run_local import parse_members
from benchmarks.sentencesets import read_sts
from uec import encoders
from uec.audits import flip
from uec.encoders import Encoder

LIP_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Tried for the plain probe; the best must not be at an end."""

STS_FILES = ("stsb-en-dev", "stsb-en-test", "sick-test")


def sentences(data: Path, languages: Sequence[str]) -> list[str]:
    """Distinct English sentences of the STS files and of the English sides of Tatoeba."""
    found: dict[str, None] = {}
    for name in STS_FILES:
        for row in read_sts(data / "sts" / f"{name}.tsv"):
            found |= dict.fromkeys((row["sentence1"], row["sentence2"]))
    for language in languages:
        found |= dict.fromkeys(pair.passage for pair in bitext(data, language))
    return list(found)


def _embed(encoder: Encoder, texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
    return encoder.encode(texts, "document").mean


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--members", default="minilm,paraphrase,e5", show_default=True)
@click.option("--languages", default="deu,rus,cmn,ara", show_default=True, help="Of Tatoeba.")
@click.option("--n-texts", default=6000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: Path,
    members: str,
    languages: str,
    n_texts: int,
    seed: int,
    cache: Path | None,
    out: Path,
) -> None:
    """Write FILE.json with both parts."""
    names = languages.split(",")
    every = sentences(data, names)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(every))[:n_texts])
    texts = [every[i] for i in chosen]
    entries = flip.plan(texts, seed=seed).spans.entries
    pairs = {name: bitext(data, name) for name in names}
    embedded: dict[str, Any] = {}
    words: dict[str, Any] = {}
    abroad: dict[str, dict[str, Any]] = {name: {} for name in names}
    for spec in parse_members(members):
        encoder = remembered(encoders.load(spec), cache)
        embedded[spec.name] = _embed(encoder, texts)
        words[spec.name] = _embed(encoder, entries)
        for name, own in pairs.items():
            sides = ([pair.passage for pair in own], [pair.query for pair in own])
            abroad[name][spec.name] = tuple(_embed(encoder, side) for side in sides)
        click.echo(f"embedded with {spec.name}", err=True)
    compared = flip.audit(embedded, texts, word_embeddings=words, lip_rates=LIP_RATES, seed=seed)
    click.echo("compared", err=True)
    parallel = {
        name: flip.Parallel([pair.passage for pair in pairs[name]], abroad[name]) for name in names
    }
    crossed = flip.audit(embedded, texts, parallel=parallel, lip_rates=(), n_spans=0, seed=seed)
    content = {
        "comparison": list(compared.rows),
        "sweeps": {
            name: details["lip_sweep"] for name, details in compared.details["members"].items()
        },
        "languages": crossed.details["parallel"],
        "jaccard": compared.details["jaccard"],
        "settings": {
            **compared.settings,
            **{key: compared.details[key] for key in ("n_train", "n_held", "n_test", "n_words")},
            "n_train, second part": crossed.details["n_train"],
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for row in compared.rows:
        click.echo(
            {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}, err=True
        )


if __name__ == "__main__":
    main()
