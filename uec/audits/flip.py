"""FLiP: which words does an embedding hold?

A linear probe is trained to name the words of a text from its embedding (`uec.audits.probe`). What
it names rightly, the embedding holds in a form that a linear map can read; what no probe can name,
search by this member cannot use either. Beside it stand the plain probe with its own tuned
learning rate, guessing frequent words, and SpLiCE, which needs no training but the member's
embeddings of the words.

    accuracy = mean_i |R_i ∩ top_|R_i|(z_i)| / |R_i|      R_i the distinct known words of text i

over test texts that no probe was trained on. Scores leave the bias out, as in the paper; the same
figure with it is ``accuracy_with_bias``. The two can differ much: the bias carries how common a
word is, and only the second figure may use that.

References:
    Kesiraju et al. 2026, FLiP (arXiv 2604.18109). Departures: one tokenisation throughout, the
    vocabulary comes from training texts alone, and those of `uec.audits.probefit.fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from uec.audits.extraction import jaccard, mean_and_error
from uec.audits.inputs import Members, Pairs, check_members, check_pairs, few_texts
from uec.audits.probe import Probe, words
from uec.audits.probefit import Training
from uec.audits.vocabulary import Vocabulary
from uec.audits.wordfindings import findings
from uec.audits.wordjudge import (
    Bench,
    Plan,
    Verdict,
    abroad_figures,
    entity_figures,
    judge,
    pick,
)
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport

__all__ = ["Parallel", "Plan", "Probe", "Training", "audit", "plan", "words"]

LIP_RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates tried for the plain probe, the best held-out recall taken."""
_MIN_TEXTS = 30
_STEADY_TEXTS = 1000
"""Below this most words occur too rarely for a probe to learn them."""
_TEST_SHARE, _HELD_SHARE = 0.2, 0.1
_EXAMPLES, _EXAMPLE_WORDS = 5, 10


@dataclass(frozen=True, slots=True)
class Parallel:
    """Pairs of texts in the audited language and in another.

    Attributes:
        texts: (n) the sides in the audited language; their words are what is looked for.
        pairs: member name to its embeddings (n, d) of those sides and of the other language's.
    """

    texts: Sequence[str]
    pairs: Pairs


def plan(
    texts: Sequence[str],
    *,
    parallel: Mapping[str, Parallel] | None = None,
    n_words: int = 20_000,
    n_spans: int = 3_500,
    min_count: int = 2,
    seed: int = 0,
) -> Plan:
    """Split the texts and build the vocabulary, as `audit` does with the same arguments.

    Call it first to learn which entries `audit` wants embedded (`spans.entries`) for SpLiCE.

    Args:
        texts: (n) the corpus.
        parallel: language to pairs; a text that is also a parallel one is kept out of training.
        n_words: most words in the vocabulary.
        n_spans: most spans of two words; 0 for none.
        min_count: occurrences a word needs.
        seed: seed of the split.

    Raises:
        InputError: too few texts, or no word is frequent enough.
    """
    distinct = list({text: i for i, text in reversed(list(enumerate(texts)))}.values())
    if len(distinct) < _MIN_TEXTS:
        raise InputError(
            f"{len(distinct)} distinct texts are too few to train on; give at least {_MIN_TEXTS}"
        )
    order = np.random.default_rng(seed).permutation(np.sort(distinct))
    n_test, n_held = round(_TEST_SHARE * len(order)), max(1, round(_HELD_SHARE * len(order)))
    test, held, rest = np.split(order, [n_test, n_test + n_held])
    reserved = {text for pairs in (parallel or {}).values() for text in pairs.texts}
    train = np.array([i for i in rest if texts[i] not in reserved], dtype=np.int64)
    held = np.array([i for i in held if texts[i] not in reserved], dtype=np.int64)
    corpus = pick(texts, train)
    spans = Vocabulary.build(corpus, n_words=n_words, n_spans=n_spans, min_count=min_count)
    vocabulary = Vocabulary(tuple(entry for entry in spans.entries if " " not in entry))
    return Plan(train, held, test, vocabulary, spans, len(texts) - len(distinct))


def audit(
    members: Members,
    texts: Sequence[str],
    *,
    parallel: Mapping[str, Parallel] | None = None,
    entities: Sequence[Sequence[str]] | None = None,
    word_embeddings: Members | None = None,
    training: Training | None = None,
    lip_rates: Sequence[float] = LIP_RATES,
    n_words: int = 20_000,
    n_spans: int = 3_500,
    min_count: int = 2,
    entity_k: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
    on_probe: Callable[[str, Probe], None] | None = None,
) -> AuditReport:
    """Judge members by the words that can be read off their embeddings.

    Args:
        members: member name to its embeddings (n, d) of the texts.
        texts: (n) the texts, in one language for a clear answer.
        parallel: language to translated pairs: probes trained on `texts` are tested on both sides.
        entities: named entities of each text, as they are written.
        word_embeddings: member name to its embeddings of ``plan(...).spans.entries``, in that
            order; members that have them are compared with SpLiCE.
        training: how the factorised probe is trained; the plain one differs in rank and rate.
        lip_rates: learning rates tried for the plain probe; empty leaves the comparison out.
        n_words: most words in the vocabulary.
        n_spans: most spans of two words; 0 leaves the span-aware figure out.
        min_count: occurrences a word needs among the training texts.
        entity_k: how many entries are named when entities are looked for.
        seed: of the split and the training.
        progress: called with texts done since the last call; sums to n times the members.
        on_probe: called with each member's trained probe, for instance to save it.

    Returns:
        One row a member: ``accuracy``, its ``standard_error``, ``accuracy_with_bias``,
        ``unigram``, and where asked for ``lip``, ``lip_with_bias``, ``lip_rate``, ``gain_over_lip``
        (paired, with ``gain_error``), ``splice``, ``span_accuracy``, ``span_unigram``,
        ``span_splice``, ``entities_strict``, ``entities_partial`` and ``drop_LANGUAGE``. `details`
        holds the Jaccard overlap of members' hits, the words held best and worst, examples, the
        learning-rate sweep, learning curves and the cross-lingual figures.

    Raises:
        InputError: embeddings that cannot be compared or do not match the texts, too few texts, or
            no word in the test texts.
    """
    n = check_members(members, min_texts=_MIN_TEXTS)
    training, parallel = training or Training(), parallel or {}
    sizes = {"n_words": n_words, "n_spans": n_spans, "min_count": min_count, "seed": seed}
    if len(texts) != n or (entities is not None and len(entities) != n):
        given = f"{len(texts)} texts"
        given += f" and {len(entities)} lists of entities" if entities is not None else ""
        raise InputError(f"{given} for embeddings of {n} texts; expected one for each row")
    made = plan(texts, parallel=parallel, **sizes)
    _check_extras(members, parallel, word_embeddings or {}, made)
    bench = Bench.of(made, texts, training, lip_rates, seed)
    judged = {}
    for name, matrix in members.items():
        step = _Steps(n, bench.n_probes, progress)
        judged[name] = judge(name, matrix, bench, (word_embeddings or {}).get(name), step)
        probe, row = judged[name].probe, judged[name].row
        if entities is not None:
            row.update(entity_figures(probe, matrix, made, entities, entity_k))
        if on_probe:
            on_probe(name, probe)
    abroad = {
        language: {
            name: abroad_figures(judged[name].probe, made.vocabulary, pairs.texts, *sides)
            for name, sides in pairs.pairs.items()
        }
        for language, pairs in parallel.items()
    }
    for language, by_member in abroad.items():
        for name, figures in by_member.items():
            judged[name].row[f"drop_{language}"] = figures["drop"]
    rows = tuple(verdict.row for verdict in judged.values())
    overlaps = [
        {"members": [a, b], "jaccard": mean_and_error(jaccard(judged[a].hits, judged[b].hits))[0]}
        for a, b in combinations(judged, 2)
    ]
    n_used = len(made.train) + len(made.held) + len(made.test)
    return AuditReport(
        audit="flip",
        settings={
            **sizes,
            "lip_rates": list(lip_rates),
            "entity_k": entity_k,
            "training": asdict(training),
        },
        n_texts=n_used,
        rows=rows,
        rank_by="accuracy",
        findings=findings(rows, overlaps, abroad),
        warnings=_warnings(made, n_used),
        details={
            "n_train": len(made.train),
            "n_held": len(made.held),
            "n_test": len(made.test),
            "n_words": len(made.vocabulary),
            "n_spans": len(made.spans) - len(made.vocabulary),
            "jaccard": overlaps,
            "parallel": abroad,
            "members": {name: verdict.details for name, verdict in judged.items()},
            "examples": _examples(members, judged, bench),
        },
    )


class _Steps:
    """Turns trained probes into the number of texts that a progress bar counts."""

    def __init__(self, n: int, n_probes: int, progress: Progress | None) -> None:
        self._n, self._n_probes, self._progress, self._done = n, n_probes, progress, 0

    def __call__(self) -> None:
        before = self._n * self._done // self._n_probes
        self._done += 1
        if self._progress:
            self._progress(self._n * self._done // self._n_probes - before)


def _examples(
    members: Members, judged: Mapping[str, Verdict], bench: Bench
) -> list[dict[str, Any]]:
    """What each member is heard to say of the first test texts."""
    chosen = [int(i) for i in bench.made.test[:_EXAMPLES]]
    return [
        {
            "text": bench.texts[i],
            "words": {
                name: words(verdict.probe, members[name][i], _EXAMPLE_WORDS)
                for name, verdict in judged.items()
            },
        }
        for i in chosen
    ]


def _check_extras(
    members: Members, parallel: Mapping[str, Parallel], word_embeddings: Members, made: Plan
) -> None:
    """Check what is optional against the members."""
    for language, pairs in parallel.items():
        n = check_pairs(pairs.pairs, min_texts=1)
        if n != len(pairs.texts):
            raise InputError(f"{language}: {len(pairs.texts)} texts for embeddings of {n} pairs")
    named = {name for pairs in parallel.values() for name in pairs.pairs} | set(word_embeddings)
    if named - set(members):
        raise InputError(f"no such member: {', '.join(sorted(named - set(members)))}")
    if word_embeddings:
        n = check_members(word_embeddings, min_texts=1)
        if n != len(made.spans):
            raise InputError(
                f"{n} word embeddings for {len(made.spans)} entries; embed "
                "`plan(...).spans.entries` of the same texts and the same arguments"
            )


def _warnings(made: Plan, n_used: int) -> tuple[str, ...]:
    found = list(few_texts(len(made.test)))
    if n_used < _STEADY_TEXTS:
        found.append(
            f"Only {n_used} texts to learn from and test on: most words occur too rarely for a "
            f"probe to learn them, so figures are too low; {_STEADY_TEXTS} or more are better."
        )
    if made.n_repeated:
        found.append(f"{made.n_repeated} texts repeat an earlier one and were left out.")
    return tuple(found)
