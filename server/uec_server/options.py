"""Limits and sizes of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from uec.client import MAX_MESSAGE_BYTES
from uec.errors import InputError


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server refuses and how it shares the machine.

    Attributes:
        max_texts: texts, queries or candidates of one call.
        max_text_chars: characters of one text, which is tokenised whole before it is cut.
        max_top_k: hits a query.
        max_candidates: documents reranked a query.
        max_message_bytes: of a request or a reply.
        max_concurrent: Encode, Search and Rerank calls under way, waiting ones included; more
            are refused at once. Health checks are not counted.
        max_parallel: of these, how many compute at the same time. One call's matrix products use
            all cores already; more than 1 pays where calls are small and cores many.
        grace_s: seconds that calls under way may take to end when the server stops.

    Raises:
        InputError: a value is not positive.
    """

    max_texts: int = 256
    max_text_chars: int = 200_000
    max_top_k: int = 1000
    max_candidates: int = 10_000
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_concurrent: int = 64
    max_parallel: int = 1
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"{field.name} must be positive; got {value}")
