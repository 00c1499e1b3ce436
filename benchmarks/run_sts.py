"""Similarity of sentences, and a classification: members, vector averages, the paper's form, UEC.

    python -m benchmarks.run_sts --data DIR --ensemble DIR --out FILE.json

Everything goes through MTEB's task classes; the sets are those of `benchmarks.sentencesets`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.similarity_functions import dot_score, pairwise_dot_score
from scipy.stats import rankdata

from benchmarks import mteblocal, report
from benchmarks.measures import paired_p_value
from benchmarks.remembering import remembering
from benchmarks.sentencesets import ARTICLES, load
from uec.calibration import Calibration
from uec.ensemble import Ensemble
from uec.gaussian import Gaussian
from uec.integrations.mteb import UECEncoder
from uec.page import Column, Table
from uec.similarity import moments, probit
from uec.symmetric import unit
from uec.weights import member_weights

DEFAULT_SETS = (
    "stsb-en-test,sick-test,stsb-de-test,stsb-ru-test,stsb-zh-test,"
    "articles-en,articles-de,articles-zh"
)

SAME = 1e-4
"""From MTEB's correlation to that of the answers in the file's order: a shuffled set would show."""

ROUNDING = 1e-5
"""Least difference of two correlations: that of their last written digit."""

N_DRAWS, AT_ONCE = 2000, 100
"""Bootstrap samples, the least p value being one thousandth, and how many are held at a time."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """A baseline as MTEB's encoder: the members' vectors summed, which must be of one dimension.

    With `paper` it is the published form: each text's members are weighed by
    ``softmax(-trace / T)`` with T = 1 and the diagonal posterior, variances are carried along
    (``sum_k w_k^2 V_k``), both are divided by the length of the mean, and pairs are scored by
    the probit-moderated inner product with beta = 1. Classifiers read the mean.

    Attributes:
        ensemble: the members; unit vectors are summed.
        paper: the published form rather than equal weights.
    """

    ensemble: Ensemble
    paper: bool

    def encode(self, inputs: Any, *, task_metadata: TaskMetadata, **_: Any) -> np.ndarray:
        """(n, d) vectors, or (n, 2 d) with the variances behind where they will be compared."""
        texts = [text for batch in inputs for text in batch["text"]]
        encodings = self.ensemble.encode(texts, "query", kinds=["diag"])
        k = len(encodings)
        if not self.paper:
            return unit(np.sum([unit(e.mean) for e in encodings], axis=0))
        traces = np.stack([e.calibrated["diag"] for e in encodings], axis=1)
        weights = member_weights(traces, np.zeros(k), 1.0).T[:, :, None]
        mean = np.sum([w * e.mean for w, e in zip(weights, encodings, strict=True)], axis=0)
        variances = [
            m.posteriors["diag"].variance(e.encoding)
            for m, e in zip(self.ensemble.members, encodings, strict=True)
        ]
        variance = np.sum([w**2 * v for w, v in zip(weights, variances, strict=True)], axis=0)
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        if task_metadata.type == "Classification":
            return mean / length
        return np.concatenate([mean / length, variance / length**2], axis=1)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """(n, m) inner products of all pairs; moderated for the paper's form."""
        if not self.paper:
            return dot_score(embeddings1, embeddings2)
        one, two = (Gaussian(*np.split(e, 2, axis=1)) for e in (embeddings1, embeddings2))
        return probit(*moments(one, two), 1.0)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """(n,) the same of corresponding texts."""
        if not self.paper:
            return pairwise_dot_score(embeddings1, embeddings2)
        (m1, v1), (m2, v2) = (np.split(e, 2, axis=1) for e in (embeddings1, embeddings2))
        variance = (m1**2 * v2 + v1 * (m2**2 + v2)).sum(axis=1)
        return probit((m1 * m2).sum(axis=1), variance, 1.0)

    @property
    def mteb_model_meta(self) -> Any:
        """Name and revision; results of baselines are not kept."""
        return UECEncoder(self.ensemble, name="paper" if self.paper else "average").mteb_model_meta


def systems(ensemble: Ensemble, seeds: Sequence[int]) -> dict[str, Any]:
    """Name to MTEB's encoder."""
    own: dict[str, Any] = {
        name: UECEncoder(mteblocal.alone(ensemble, name), calibrated=False)
        for name in ensemble.names
    }
    by_traces = replace(Calibration.uniform(len(ensemble.names)), temperature=1.0)
    if len(set(ensemble.dimensions)) == 1:
        own["uniform-average"] = Vectors(ensemble, paper=False)
        own["paper"] = Vectors(ensemble, paper=True)
    own |= {
        "traces, diagonal": UECEncoder(
            replace(ensemble, calibration=by_traces), calibrated=False, posterior="diag"
        ),
        "equal weights": UECEncoder(ensemble, calibrated=False),
    }
    for seed in seeds:
        name = "uec" if seed == seeds[0] else f"uec, seed {seed}"
        own[name] = UECEncoder(ensemble, seed=seed)
    return own


def answers(folder: Path, task: AbsTask, gold: np.ndarray) -> np.ndarray:
    """What a system said of each item: similarities (n,), or the share of draws that were right."""
    content = json.loads((folder / task.prediction_file_name).read_text(encoding="utf-8"))
    [subset] = task.hf_subsets
    said = content[subset]["test"]
    if task.metadata.type == "Classification":
        return np.mean(np.array(said) == gold, axis=0)
    return np.array(said["similarity_scores"])


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's correlation along the last axis."""
    ranks = [rankdata(values, axis=-1) for values in (a, b)]
    ranks = [r - r.mean(axis=-1, keepdims=True) for r in ranks]
    norms = [np.sqrt((r**2).sum(axis=-1)) for r in ranks]
    return np.asarray((ranks[0] * ranks[1]).sum(axis=-1) / (norms[0] * norms[1]))


def bootstrap(
    gold: np.ndarray, said: Mapping[str, np.ndarray], seed: int = 0
) -> dict[str, np.ndarray]:
    """Spearman's correlation of each system over resampled pairs, (`N_DRAWS`,).

    All systems see the same samples. Equal seeds and numbers of pairs give equal samples:
    translations of one set vary together.
    """
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in said}
    for _ in range(N_DRAWS // AT_ONCE):
        rows = rng.integers(0, len(gold), (AT_ONCE, len(gold)))
        scores = gold[rows]
        for name, own in said.items():
            drawn[name].append(spearman(scores, own[rows]))
    return {name: np.concatenate(parts) for name, parts in drawn.items()}


def bootstrap_mean(differences: np.ndarray, seed: int = 0) -> np.ndarray:
    """Mean difference over resampled items, (`N_DRAWS`,)."""
    rows = np.random.default_rng(seed).integers(0, len(differences), (N_DRAWS, len(differences)))
    return np.asarray(differences[rows].mean(axis=1))


def p_value(drawn: np.ndarray) -> float:
    """Two-sided: twice the share of bootstrap differences on the rarer side of zero.

    What rounding makes of two equal systems is no difference.
    """
    rarer = min((drawn <= ROUNDING).sum(), (drawn >= -ROUNDING).sum())
    return float(min(1.0, 2 * (rarer + 1) / (len(drawn) + 1)))


def compare(
    golds: Mapping[str, np.ndarray],
    said: Mapping[str, Mapping[str, np.ndarray]],
    tables: Mapping[str, Mapping[str, Mapping[str, float]]],
    members: Sequence[str],
) -> dict[str, Any]:
    """UEC against each set's best member, and on average over the similarity sets against all."""
    by_set: dict[str, dict[str, Any]] = {}
    against: dict[str, list[tuple[float, np.ndarray]]] = {}
    for name, rows in tables.items():
        similarity = not name.startswith(ARTICLES)
        measure = "Spearman" if similarity else "accuracy"
        best = max(members, key=lambda member: rows[member][measure])
        gains = {other: rows["uec"][measure] - rows[other][measure] for other in rows}
        if similarity:
            correlations = bootstrap(golds[name], said[name])
            drawn = {other: correlations["uec"] - own for other, own in correlations.items()}
            for other in rows:
                against.setdefault(other, []).append((gains[other], drawn[other]))
            against.setdefault("best member of each set", []).append((gains[best], drawn[best]))
            p = p_value(drawn[best])
        else:
            differences = said[name]["uec"] - said[name][best]
            drawn = {best: bootstrap_mean(differences)}
            p = paired_p_value(differences)
        by_set[name] = {
            "best member": best,
            "difference": gains[best],
            "n": len(golds[name]),
            "p_value": p,
            "95 %": np.quantile(drawn[best], [0.025, 0.975]).tolist(),
        }
    against.pop("uec", None)
    average = {
        other: {
            "difference": float(np.mean([gain for gain, _ in parts])),
            "p_value": p_value(np.mean([draws for _, draws in parts], axis=0)),
        }
        for other, parts in against.items()
    }
    return {"by set": by_set, "average of the similarity sets": average}


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return report.markdown(Table([Column(name, ".3f") for name in names], rows))


def markdown(content: Mapping[str, Any]) -> str:
    """Tables of the figures, of UEC against each set's best member and against the others."""
    sets = content["sets"]
    systems = list(next(iter(sets.values())))
    figures = [
        [system, *(next(iter(sets[name][system].values())) for name in sets)] for system in systems
    ]
    against = [
        [
            name,
            row["n"],
            row["best member"],
            f"{row['difference']:+.4f}",
            " to ".join(f"{bound:+.4f}" for bound in row["95 %"]),
            f"{row['p_value']:.3f}",
        ]
        for name, row in content["uec against"]["by set"].items()
    ]
    average = [
        [name, f"{row['difference']:+.4f}", f"{row['p_value']:.3f}"]
        for name, row in content["uec against"]["average of the similarity sets"].items()
    ]
    parts = [_table(["", *sets], figures)]
    parts.append(_table(["set", "n", "best member", "UEC less best member", "95 %", "p"], against))
    if average:
        parts.append(_table(["average of similarity sets, UEC less …", "difference", "p"], average))
    return "\n\n".join(parts)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--ensemble", "path", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--sets", default=DEFAULT_SETS, show_default=True)
@click.option("--seeds", default="0,1,2", show_default=True, help="Of the calibration.")
@click.option("--cache", type=click.Path(path_type=Path), help="Keep encodings here.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(data: Path, path: Path, sets: str, seeds: str, cache: Path | None, out: Path) -> None:
    """Write FILE.json with every system's figures on every set and the tests; print tables."""
    ensemble = remembering(Ensemble.load(path), cache)
    golds, said, tables, learnt = {}, {}, {}, {}
    for name in sets.split(","):
        with tempfile.TemporaryDirectory() as aside:
            task, golds[name] = load(data, name, Path(aside) / "data")
            table, own = {}, {}
            for number, (system, model) in enumerate(
                systems(ensemble, [int(seed) for seed in seeds.split(",")]).items()
            ):
                folder = Path(aside) / str(number)
                [figures] = mteblocal.evaluate(model, task, None, folder).values()
                table[system] = {m: figures[m] for m in mteblocal.MEASURES if m in figures}
                own[system] = answers(folder, task, golds[name])
                if "Spearman" in table[system]:
                    expected = table[system]["Spearman"]
                    got = float(spearman(golds[name], own[system]))
                    assert abs(got - expected) < SAME, (name, system, got, expected)
                if getattr(model, "calibrations", None):
                    [learnt.setdefault(name, {})[system]] = model.calibrations.values()
            tables[name], said[name] = table, own
        shown = {system: next(iter(row.values())) for system, row in table.items()}
        click.echo(f"{name}: {shown}", err=True)
    content = {
        "sets": tables,
        "n": {name: len(gold) for name, gold in golds.items()},
        "uec against": compare(golds, said, tables, ensemble.names),
        "learnt": learnt,
        "members": {m.name: m.spec.model for m in ensemble.members},
        "mteb": version("mteb"),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(markdown(content))


if __name__ == "__main__":
    main()
