"""Who may compute: admission, turns, and the end of work that nobody waits for any more.

gRPC's own limit on concurrent calls also counts health checks, so that a busy server would look
like a dead one. The gate counts only the calls that compute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from uec.errors import EmbeddingError, ServiceError

SLICE = 32
"""Texts computed between two looks at whether the caller still waits: one encoder batch."""

_POLL_S = 0.02

T = TypeVar("T")
R = TypeVar("R")


class Caller(Protocol):
    """What the gate needs of a ``grpc.ServicerContext``."""

    def is_active(self) -> bool:
        """Whether the call is neither cancelled nor past its deadline."""
        ...


class Abandoned(Exception):  # noqa: N818 (nobody did anything wrong)
    """The caller has cancelled or its deadline has passed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to compute, held by one call.

    Attributes:
        caller: the call's context.
        waited_ms: milliseconds that it waited for its turn.
    """

    caller: Caller
    waited_ms: float

    def in_slices(self, compute: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
        """Results of `compute` on parts of at most `SLICE` items, put together.

        Raises:
            Abandoned: the caller stopped waiting.
            EmbeddingError: from `compute`, told which part it speaks of.
        """
        results: list[R] = []
        for start in range(0, len(items), SLICE):
            if not self.caller.is_active():
                raise Abandoned
            try:
                results += compute(items[start : start + SLICE])
            except EmbeddingError as error:
                if not start:
                    raise
                raise EmbeddingError(f"from text {start} on: {error}", start + error.row) from error
        return results


class Gate:
    """Admits `max_concurrent` calls and lets `max_parallel` of them compute."""

    def __init__(self, max_concurrent: int, max_parallel: int) -> None:
        self._max_concurrent = max_concurrent
        self._places = threading.Semaphore(max_concurrent)
        self._turns = threading.Semaphore(max_parallel)

    @contextmanager
    def turn(self, caller: Caller) -> Iterator[Turn]:
        """Wait for a turn and hold it.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED, too many calls are under way already.
            Abandoned: the caller left while it waited.
        """
        if not self._places.acquire(blocking=False):
            raise ServiceError(
                "RESOURCE_EXHAUSTED",
                f"{self._max_concurrent} calls are under way, the most that this server admits; "
                "try again later",
            )
        try:
            start = time.perf_counter()
            while not self._turns.acquire(timeout=_POLL_S):
                if not caller.is_active():
                    raise Abandoned
            try:
                yield Turn(caller, 1000 * (time.perf_counter() - start))
            finally:
                self._turns.release()
        finally:
            self._places.release()
