"""One member before the audit `flip`: what its probes extract from the test texts.

It knows one member at a time and gives figures; comparing members and putting the figures into
words are the business of `uec.audits.flip`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.sparse import csr_array

from uec.audits.extraction import (
    entity_recalls,
    hits,
    mean_and_error,
    most_frequent,
    recalls,
    references,
    sparse_codes,
)
from uec.audits.probe import Probe
from uec.audits.probefit import Training, fit
from uec.audits.vocabulary import Vocabulary
from uec.errors import InputError

_RARE = 5
"""A word needs this many test texts before its own recall is worth showing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit of these texts will do, before any member is looked at.

    Attributes:
        train: indices of the texts that probes learn from.
        held: indices of the texts that stop them.
        test: indices of the texts that they are judged on.
        vocabulary: words of the training texts.
        spans: the same words, then spans of two; equal to `vocabulary` where no span is frequent.
        n_repeated: texts left out because an earlier one is the same.
    """

    train: Int[np.ndarray, " _"]
    held: Int[np.ndarray, " _"]
    test: Int[np.ndarray, " _"]
    vocabulary: Vocabulary
    spans: Vocabulary
    n_repeated: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The texts in the terms of one vocabulary."""

    vocabulary: Vocabulary
    train: csr_array
    held: csr_array
    wanted: list[np.ndarray]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Bench:
    """What all members are judged with."""

    made: Plan
    texts: Sequence[str]
    words: Counted
    spans: Counted | None
    training: Training
    lip_rates: tuple[float, ...]
    seed: int

    @classmethod
    def of(
        cls,
        made: Plan,
        texts: Sequence[str],
        training: Training,
        lip_rates: Sequence[float],
        seed: int,
    ) -> Bench:
        """Count the entries of the texts in both vocabularies, once for all members."""
        has_spans = len(made.spans) > len(made.vocabulary)
        spans = counted(made.spans, texts, made) if has_spans else None
        words = counted(made.vocabulary, texts, made)
        return cls(made, texts, words, spans, training, tuple(lip_rates), seed)

    @property
    def n_probes(self) -> int:
        """How many probes each member gets trained."""
        return 1 + len(self.lip_rates) + (self.spans is not None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One member's part of the report."""

    probe: Probe
    row: dict[str, Any]
    hits: list[set[int]]
    details: dict[str, Any]


def counted(vocabulary: Vocabulary, texts: Sequence[str], made: Plan) -> Counted:
    """Count a vocabulary's entries in the three parts of the texts.

    Raises:
        InputError: no test text has an entry.
    """
    wanted = references(vocabulary.counts(pick(texts, made.test)))
    if not any(len(entries) for entries in wanted):
        raise InputError(
            f"none of the {len(wanted)} test texts has a word that the training texts have too; "
            "the corpus is too small or its texts share no words"
        )
    return Counted(
        vocabulary,
        vocabulary.counts(pick(texts, made.train)),
        vocabulary.counts(pick(texts, made.held)),
        wanted,
        [len(entries) for entries in wanted],
    )


def judge(
    name: str,
    matrix: Float[np.ndarray, "n d"],
    bench: Bench,
    dictionary: Shaped[np.ndarray, "v d"] | None,
    step: Callable[[], None],
) -> Verdict:
    """Train a member's probes and measure what they extract from the test texts."""
    task, test = bench.words, matrix[bench.made.test]
    probe = _train(matrix, bench, task, bench.training)
    step()
    found = probe.extract(test, task.sizes)
    values = recalls(found, task.wanted)
    row: dict[str, Any] = {"member": name}
    row["accuracy"], row["standard_error"] = mean_and_error(values)
    row["accuracy_with_bias"] = _accuracy(probe, test, task, with_bias=True)
    row["unigram"] = _baseline(task)
    details: dict[str, Any] = {"curve": probe.curve}
    if bench.lip_rates:
        lip, details["lip_sweep"] = _tuned_plain(matrix, bench, step)
        plain = recalls(lip.extract(test, task.sizes), task.wanted)
        row["lip"] = mean_and_error(plain)[0]
        row["lip_with_bias"] = _accuracy(lip, test, task, with_bias=True)
        row["lip_rate"] = max(details["lip_sweep"], key=lambda entry: entry["recall"])["rate"]
        row["gain_over_lip"], row["gain_error"] = mean_and_error(values - plain)
    if dictionary is not None:
        row["splice"] = _splice(matrix, bench, task, dictionary)
    if bench.spans is not None:
        wide = _train(matrix, bench, bench.spans, bench.training)
        step()
        row["span_accuracy"] = _accuracy(wide, test, bench.spans, with_bias=False)
        row["span_unigram"] = _baseline(bench.spans)
        if dictionary is not None:
            row["span_splice"] = _splice(matrix, bench, bench.spans, dictionary)
    right = hits(found, task.wanted)
    details |= _by_word(right, task)
    return Verdict(probe, row, right, details)


def _train(
    matrix: Float[np.ndarray, "n d"], bench: Bench, task: Counted, training: Training
) -> Probe:
    return fit(
        [matrix[bench.made.train]],
        task.train,
        [matrix[bench.made.held]],
        task.held,
        task.vocabulary.entries,
        training=training,
        seed=bench.seed,
    )


def _tuned_plain(
    matrix: Float[np.ndarray, "n d"], bench: Bench, step: Callable[[], None]
) -> tuple[Probe, list[dict[str, float]]]:
    """LiP at the learning rate with the best held-out recall, and what each rate gave."""
    probes, sweep = [], []
    for rate in bench.lip_rates:
        training = replace(bench.training, rank=None, learning_rate=rate)
        probes.append(_train(matrix, bench, bench.words, training))
        sweep.append({"rate": rate, "recall": max(recall for _, recall in probes[-1].curve)})
        step()
    best = max(range(len(sweep)), key=lambda i: sweep[i]["recall"])
    return probes[best], sweep


def _accuracy(
    probe: Probe, test: Float[np.ndarray, "n d"], task: Counted, *, with_bias: bool
) -> float:
    found = probe.extract(test, task.sizes, with_bias=with_bias)
    return mean_and_error(recalls(found, task.wanted))[0]


def _baseline(task: Counted) -> float:
    return mean_and_error(recalls(most_frequent(task.train, task.sizes), task.wanted))[0]


def _splice(
    matrix: Float[np.ndarray, "n d"],
    bench: Bench,
    task: Counted,
    dictionary: Shaped[np.ndarray, "v d"],
) -> float:
    test, train = matrix[bench.made.test], matrix[bench.made.train]
    atoms = dictionary[: len(task.vocabulary)]
    return mean_and_error(recalls(sparse_codes(test, train, atoms, task.sizes), task.wanted))[0]


def _by_word(right: Sequence[set[int]], task: Counted) -> dict[str, Any]:
    """The words that are held best and worst, among those with enough test texts."""
    seen = np.bincount(np.concatenate(task.wanted), minlength=len(task.vocabulary))
    caught = np.bincount(
        np.array([i for hit in right for i in hit], dtype=np.int64), minlength=len(seen)
    )
    common = np.flatnonzero(seen >= _RARE)
    order = common[np.argsort(-caught[common] / seen[common], kind="stable")]
    entries = task.vocabulary.entries
    listed = [
        {"word": entries[i], "recall": float(caught[i] / seen[i]), "texts": int(seen[i])}
        for i in order
    ]
    return {"held_best": listed[:20], "held_worst": listed[::-1][:20]}


def entity_figures(
    probe: Probe,
    matrix: Float[np.ndarray, "n d"],
    made: Plan,
    entities: Sequence[Sequence[str]],
    k: int,
) -> dict[str, float]:
    """Strict and partial recall of the test texts' entities among k extracted entries."""
    found = probe.extract(matrix[made.test], [k] * len(made.test))
    named = [[probe.entries[i] for i in row] for row in found]
    strict, partial = entity_recalls(named, [entities[i] for i in made.test])
    return {
        "entities_strict": mean_and_error(strict)[0],
        "entities_partial": mean_and_error(partial)[0],
    }


def abroad_figures(
    probe: Probe,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    own: Float[np.ndarray, "n d"],
    other: Float[np.ndarray, "n d"],
) -> dict[str, float]:
    """What a probe of one language reads off that language and off a translation."""
    wanted = references(vocabulary.counts(texts))
    sizes = [len(entries) for entries in wanted]
    here, there = (recalls(probe.extract(side, sizes), wanted) for side in (own, other))
    drop, drop_error = mean_and_error(here - there)
    return {
        "own": mean_and_error(here)[0],
        "other": mean_and_error(there)[0],
        "drop": drop,
        "drop_error": drop_error,
    }


def pick(texts: Sequence[str], rows: Int[np.ndarray, " _"]) -> list[str]:
    """The texts of some rows."""
    return [texts[i] for i in rows]
