"""Whether a posterior was fitted on the corpus that it weighs.

It should not be: an encoder is "certain" of whatever texts its fit has seen, right or wrong. A fit
therefore keeps a sample of its texts, as hashes of runs of words, and an index counts how many of
them occur in its corpus. The sample is the bottom of all hashes (Broder 1997), which is uniform
over distinct runs however often each occurs.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence

RUN_WORDS = 8
RUN_CHARACTERS = 16
"""Of a script without spaces."""

SAMPLE = 256

SUSPICIOUS = 0.2
"""Share of the fit's runs in the corpus above which the two are not separate: boilerplate and
quotations stay below."""


def sample(texts: Iterable[str]) -> list[str]:
    """Up to `SAMPLE` runs of words of some texts, as hashes, in order."""
    return heapq.nsmallest(SAMPLE, {one for text in texts for one in _hashes(text)})


class Occurrences:
    """Counts which of several samples occur in a stream of texts.

    Args:
        samples: name to hashes, from `sample`.
    """

    def __init__(self, samples: dict[str, Sequence[str]]) -> None:
        self._samples = samples
        self._wanted = {one for hashes in samples.values() for one in hashes}
        self._seen: set[str] = set()

    def add(self, texts: Iterable[str]) -> None:
        """Take in more texts."""
        for text in texts:
            self._seen.update(self._wanted.intersection(_hashes(text)))

    def shares(self) -> dict[str, float]:
        """Name to the share of its sample that occurs; 0 for an empty one."""
        return {
            name: len(self._seen.intersection(hashes)) / max(len(hashes), 1)
            for name, hashes in self._samples.items()
        }


def _hashes(text: str) -> Iterator[str]:
    words = text.lower().split()
    if len(words) < RUN_WORDS:
        words, length = list("".join(words)), RUN_CHARACTERS
    else:
        length = RUN_WORDS
    for start in range(len(words) - length + 1):
        run = " ".join(words[start : start + length])
        yield hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
