"""From members and a corpus to what every label-free audit says of them.

    sample, pairs, spans ─embed─> arrays ─audits─> reports, a recommended set of members

`run` is the whole; `uec.auditing.folder` keeps what it found, and `uec.auditing.report` makes the
page of it. An audit that has no answer for these texts or members is not an error:
`Audited.refused` says why.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from uec import audits
from uec.auditing import selection
from uec.auditing.folder import Audited
from uec.auditing.gathering import Embedded, Subject, described, embed, n_to_embed
from uec.auditing.sampling import PairSample, PairSets, Sample, draw
from uec.auditing.selection import Choice
from uec.encoders import Progress
from uec.errors import InputError
from uec.records import AuditReport
from uec.selfretrieval import MIN_SPANS, Span

NAMES = ("selfretrieval", "overlap", "ica", "agreement", "geometry", "flip", "flare")
"""Every audit, in the order in which they run: the slowest last."""

OF_PAIRS = ("overlap", "ica")
N_SPANS = 400
MIN_TEXTS = 10
"""Fewer, and no audit has an answer."""
SENTENCE = 200
"""Characters below which a text is about one sentence."""
MAP_TEXTS = 600
"""Texts on the maps: more hide each other, and each is a mark in the page."""
ICA_COMPONENTS = (32, 64)
FLARE_SEEDS = 3

Bar: TypeAlias = Callable[[str, int], AbstractContextManager[Progress]]
"""Opens a progress bar of a label and a total."""


def chosen(only: Sequence[str], skip: Sequence[str]) -> tuple[str, ...]:
    """The audits to run, in order.

    Raises:
        InputError: no such audit, or none is left.
    """
    unknown = sorted({*only, *skip} - set(NAMES))
    if unknown:
        raise InputError(f"no audit {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    names = tuple(name for name in NAMES if name in (only or NAMES) and name not in skip)
    if not names:
        raise InputError("no audit is left to run; name others with --only or --skip")
    return names


def run(
    subjects: Sequence[Subject],
    sample: Sample,
    pairs: PairSets | None = None,
    *,
    names: Sequence[str] = NAMES,
    insist: bool = False,
    n_spans: int = N_SPANS,
    seed: int = 0,
    bar: Bar = lambda label, total: nullcontext(lambda done: None),
    probes: Path | None = None,
) -> Audited:
    """Run audits of some members on the same texts.

    Args:
        subjects: the members.
        sample: the texts.
        pairs: for the audits that want some.
        names: which audits.
        insist: an audit without an answer is an error.
        n_spans: pieces of the corpus to look for.
        seed: of everything drawn or trained.
        bar: opens a progress bar for each stage.
        probes: folder that receives one word probe a member.

    Raises:
        InputError: members and texts that cannot be compared; with `insist`, an audit that has no
            answer; or no audit has one.
        DependencyError: the extra ``audit`` is not installed.
    """
    pairs = pairs or PairSets()
    _check(sample, n_spans)
    # Before anything is embedded: a missing package must not cost a reader an hour.
    judges = {name: audits.load(name) for name in names if name in audits.AUDITS}
    looks = "selfretrieval" in names and any(subject.encoder for subject in subjects)
    spans = draw(sample, n_spans, seed) if looks else []
    wanted = _wanted(pairs, names)
    start = time.perf_counter()
    with bar("embedding", n_to_embed(subjects, sample, wanted, spans)) as advance:
        embedded = embed(subjects, sample, wanted, spans, advance)
    result = Audited(
        _corpus(sample, pairs.same, seed), [described(subject, embedded) for subject in subjects]
    )
    result.notes = _notes(subjects, sample, pairs, embedded, names)
    result.seconds["embedding"] = time.perf_counter() - start
    stage = _Stage(sample, embedded, wanted, spans, judges, seed, probes)
    for name in names:
        start = time.perf_counter()
        try:
            with bar(f"audit {name}", stage.n_steps(name)) as advance:
                stage.run(name, result, advance)
        except InputError as error:
            if insist:
                raise InputError(f"audit {name}: {error}") from error
            result.refused[name] = str(error)
        result.seconds[name] = time.perf_counter() - start
    if not result.reports:
        reasons = "; ".join(f"{name}: {why}" for name, why in result.refused.items())
        raise InputError(f"no audit has an answer: {reasons}")
    return result


def _wanted(pairs: PairSets, names: Collection[str]) -> PairSets:
    """The pairs that some of the audits look at."""
    shaped = "geometry" in names
    return PairSets(
        pairs.same if shaped or {*names} & {*OF_PAIRS} else None,
        pairs.adversarial if shaped else None,
        pairs.parallel if "flip" in names else {},
    )


def _check(sample: Sample, n_spans: int) -> None:
    if len(sample.documents) < MIN_TEXTS:
        raise InputError(
            f"the corpus gives {len(sample.documents)} distinct texts; expected at least "
            f"{MIN_TEXTS}, better 2,000"
        )
    if n_spans < MIN_SPANS:
        raise InputError(f"n_spans must be at least {MIN_SPANS}, got {n_spans}")


@dataclass(frozen=True, slots=True)
class _Stage:
    """Calls the audits with their arguments."""

    sample: Sample
    embedded: Embedded
    pairs: PairSets
    spans: Sequence[Span]
    judges: Mapping[str, Callable[..., AuditReport]]
    seed: int
    probes: Path | None

    def n_steps(self, name: str) -> int:
        """What the audit's progress sums to."""
        if name == "selfretrieval":
            return 0
        if name in OF_PAIRS:
            n_pairs = 0 if self.pairs.same is None else len(self.pairs.same.rows)
            return n_pairs * len(self.embedded.sides)
        return len(self.sample.documents) * len(self.embedded.texts)

    def run(self, name: str, result: Audited, advance: Progress) -> None:
        """Put one audit's report, and what follows from it, into the result.

        Raises:
            InputError: it has no answer.
        """
        if name == "selfretrieval":
            result.reports[name], result.choice = self._look()
        else:
            result.reports[name] = self._audit(name, advance)

    def _look(self) -> tuple[AuditReport, Choice | None]:
        looked = self.embedded.looked
        # Only encoders can cut a text.
        if not self.embedded.truncated:
            raise InputError("it looks for pieces of text, and no member here encodes text")
        if len(self.spans) < MIN_SPANS:
            raise InputError(
                f"the corpus gives {len(self.spans)} pieces of text to look for; expected at least "
                f"{MIN_SPANS} texts of six words or more"
            )
        names = list(looked)
        targets = np.array([span.row for span in self.spans], dtype=np.int64)
        texts = {name: self.embedded.texts[name] for name in names}
        views = selection.view(texts, looked, targets)
        report = selection.audit(views, names, {"seed": self.seed})
        report = replace(report, warnings=report.warnings + _short_texts(self.sample))
        return report, selection.choose(views, names) if len(names) > 1 else None

    def _audit(self, name: str, advance: Progress) -> AuditReport:
        judge = self.judges[name]
        common: dict[str, Any] = {"seed": self.seed, "progress": advance}
        sides, texts = self.embedded.sides, self.embedded.texts
        if name in OF_PAIRS:
            if self.pairs.same is None:
                raise InputError("it needs pairs of texts; give --pairs FILE")
            if not sides:
                raise InputError("no member has embeddings of the pairs")
            if name == "ica":
                common["components"] = self._components()
            return judge(sides, **common)
        if name == "geometry":
            same, adversarial = (
                kept if set(kept) == set(texts) else None
                for kept in (sides, self.embedded.adversarial)
            )
            return judge(
                texts,
                pairs=same,
                adversarial=adversarial,
                labels=self.sample.labels,
                map_texts=MAP_TEXTS,
                **common,
            )
        if name == "flip":
            # No plain probes: they would cost three times as much and tell nothing of the members.
            return judge(
                texts,
                self.sample.texts,
                parallel=self._parallel(),
                entities=self.sample.entities,
                lip_rates=(),
                on_probe=self._keep,
                **common,
            )
        if name == "flare":
            del common["seed"]
            common["seeds"] = tuple(range(self.seed, self.seed + FLARE_SEEDS))
        return judge(texts, **common)

    def _parallel(self) -> dict[str, Any]:
        from uec.audits.flip import Parallel

        return {
            language: Parallel(self.pairs.parallel[language].queries, sides)
            for language, sides in self.embedded.parallel.items()
        }

    def _components(self) -> tuple[int, ...]:
        """As many components as the smallest member has dimensions for."""
        smallest = min(left.shape[1] for left, _ in self.embedded.sides.values())
        return tuple(c for c in ICA_COMPONENTS if c <= smallest) or (int(smallest),)

    def _keep(self, member: str, probe: Any) -> None:
        if self.probes is not None:
            self.probes.mkdir(parents=True, exist_ok=True)
            probe.save(self.probes / f"{member}.npz")


def _corpus(sample: Sample, pairs: PairSample | None, seed: int) -> dict[str, Any]:
    digest = hashlib.sha256()
    for text in sample.texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return {
        "n_documents": sample.n_documents,
        "n_texts": len(sample.documents),
        "n_repeated": sample.n_repeated,
        "n_empty": sample.n_empty,
        "n_pairs": None if pairs is None else len(pairs.rows),
        "labels": None if sample.labels is None else sorted(set(sample.labels)),
        "texts_sha256": digest.hexdigest(),
        "seed": seed,
    }


def _short_texts(sample: Sample) -> tuple[str, ...]:
    length = int(np.median([len(text) for text in sample.texts]))
    if length >= SENTENCE:
        return ()
    return (
        f"The texts are short: half have under {length} characters. On corpora of single sentences "
        "pieces of text tell good members hardly apart; where you have judged queries, "
        "`uec calibrate --queries` uses them.",
    )


def _notes(
    subjects: Sequence[Subject],
    sample: Sample,
    pairs: PairSets,
    embedded: Embedded,
    names: Collection[str],
) -> list[str]:
    found = []
    n = len(sample.documents)
    if sample.n_repeated or sample.n_empty:
        found.append(
            f"Of {sample.n_documents} documents {sample.n_repeated} repeat an earlier one and "
            f"{sample.n_empty} are empty; they were left out for all members."
        )
    given = {"pairs": pairs.same, "adversarial pairs": pairs.adversarial}
    given |= {f"pairs with {language}": own for language, own in pairs.parallel.items()}
    found.extend(
        f"Of {own.n_pairs} {kind} {own.n_repeated} have a side that an earlier one has; they were "
        "left out for all members."
        for kind, own in given.items()
        if own is not None and own.n_repeated
    )
    found.extend(
        f"{name} cut {cut} of {n} texts to its maximum length and judges their beginnings only."
        for name, cut in embedded.truncated.items()
        if cut
    )
    files = [subject.name for subject in subjects if subject.encoder is None]
    if files and "selfretrieval" in names:
        found.append(
            f"{', '.join(files)}: given as embeddings, so without self-retrieval and a place in "
            "the recommended set, which need an encoder."
        )
    if files and pairs.adversarial is not None and "geometry" in names:
        found.append(
            f"{', '.join(files)}: given as embeddings, which are none of the adversarial pairs, so "
            "no member is judged by those."
        )
    sideless = [subject.name for subject in subjects if not subject.has_sides]
    if pairs.same is not None and sideless:
        found.append(
            f"{', '.join(sideless)}: no embeddings of the pairs, so without "
            f"{' and '.join(OF_PAIRS)}; a .npz file can hold them."
        )
    return found
