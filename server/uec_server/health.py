"""Standard health checks whose watchers can neither block nor delay the server.

By default grpcio-health-checking sends to watchers while it holds its lock, and waits for gRPC's
event thread to say that it is sent. That thread waits for the same lock when a watcher leaves: one
that leaves while the status changes stops the whole server for good (seen with 1.85.1). The
library's other mode gives each watcher a thread; here those come from a pool of their own, so that
they never take the threads that answer calls.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2

MAX_WATCHERS = 64
"""Streams of ``Watch`` served at once; more wait for their first answer."""

_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVING = health_pb2.HealthCheckResponse.SERVING


class Health(health.HealthServicer):
    """NOT_SERVING from the start, for the whole server and for some services."""

    def __init__(self, services: tuple[str, ...]) -> None:
        super().__init__(
            experimental_non_blocking=False,
            experimental_thread_pool=ThreadPoolExecutor(MAX_WATCHERS, "uec-health"),
        )
        self._names = (health.OVERALL_HEALTH, *services)
        self._stopping = threading.Event()
        # The library says SERVING for "" unless told otherwise.
        self.set_serving(False)

    def set_serving(self, serving: bool) -> None:
        """Say whether calls can be answered."""
        for name in self._names:
            self.set(name, _SERVING if serving else _NOT_SERVING)

    def enter_graceful_shutdown(self) -> None:
        """Say NOT_SERVING for good and end every ``Watch``, which would else hold up the end."""
        self._stopping.set()
        super().enter_graceful_shutdown()

    # The library's second overload is for the mode that is not used here.
    def Watch(  # type: ignore[override]  # noqa: N802 (gRPC's name)
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.ServicerContext,
        send_response_callback: None = None,
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """See the health protocol; ends when the server stops."""
        for reply in super().Watch(request, context):
            yield reply
            if self._stopping.is_set() and reply.status != _SERVING:
                return
