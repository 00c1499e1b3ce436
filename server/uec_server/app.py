"""A server's life: bind, load, warm up, serve, drain.

The port is bound first, so that a port in use is found before a minute of loading; until the index
is loaded and one query is answered, health says NOT_SERVING and calls get UNAVAILABLE. The
connection is neither encrypted nor authenticated: listen on a private interface, or behind a proxy
that does both.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NoReturn

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from uec.errors import InputError
from uec.retriever import Retriever
from uec.v1 import uec_pb2, uec_pb2_grpc
from uec_server.health import MAX_WATCHERS, Health
from uec_server.interceptors import CallGuard
from uec_server.options import ServerOptions
from uec_server.servicer import RetrievalServicer

logger = logging.getLogger("uec_server")

SERVICE = uec_pb2.DESCRIPTOR.services_by_name["Retrieval"].full_name

WARM_UP_QUERY = "warm-up"
"""Answered once before the server says that it is ready: the first call is the slow one."""

SPARE_CALLS = 8
"""Threads and calls beyond `ServerOptions.max_concurrent`: health, Info and refusals."""


class Service:
    """One server on one port, in the order `Service(...)`, `load`, `stop`.

    Attributes:
        server: the running server.
        port: that it listens on; tells which one the system chose for port 0.
        options: limits and sizes.
    """

    def __init__(self, address: str, options: ServerOptions | None = None) -> None:
        """Bind and answer: health NOT_SERVING, other calls UNAVAILABLE.

        Args:
            address: ``HOST:PORT``; port 0 takes a free one.
            options: defaults if None.

        Raises:
            InputError: the address cannot be listened on.
        """
        self.options = options or ServerOptions()
        self._health = Health((SERVICE,))
        self._servicer = RetrievalServicer(self.options)
        self.server = self._make_server()
        try:
            self.port = self.server.add_insecure_port(address)
        except RuntimeError as error:
            raise InputError(
                f"cannot listen on {address!r}: the port is in use, or the address is not "
                "HOST:PORT of this machine; choose another, or port 0 for a free one"
            ) from error
        self.server.start()

    def load(self, source: Retriever | str | Path) -> None:
        """Open the index, answer one query, and say SERVING.

        Args:
            source: an index folder, or a retriever that is open.

        Raises:
            UECError: as `Retriever.open`.
        """
        retriever = source if isinstance(source, Retriever) else Retriever.open(source)
        retriever.search([WARM_UP_QUERY], top_k=1)
        self._servicer.open(retriever)
        self._health.set_serving(True)

    def stop(self) -> None:
        """Say NOT_SERVING, refuse new calls, and wait for those under way, up to the grace."""
        self._health.enter_graceful_shutdown()
        self.server.stop(self.options.grace_s).wait()

    def _make_server(self) -> grpc.Server:
        limit = self.options.max_message_bytes
        n_calls = self.options.max_concurrent + SPARE_CALLS
        server = grpc.server(
            ThreadPoolExecutor(n_calls, thread_name_prefix="uec"),
            interceptors=[CallGuard()],
            options=[
                # Else a second server would share the port and take half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
            ],
            maximum_concurrent_rpcs=n_calls + MAX_WATCHERS,
        )
        uec_pb2_grpc.add_RetrievalServicer_to_server(self._servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server


def create_server(
    source: Retriever | str | Path,
    address: str = "127.0.0.1:0",
    options: ServerOptions | None = None,
) -> tuple[grpc.Server, int]:
    """Start a server within this process.

    Args:
        source: an index folder, or a retriever that is open.
        address: ``HOST:PORT``; port 0 takes a free one.
        options: defaults if None.

    Returns:
        The running, ready server and its port. End it with ``server.stop(grace_s).wait()``.

    Raises:
        InputError: the address cannot be listened on.
        UECError: as `Retriever.open`.
    """
    service = Service(address, options)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(service.stop)
        service.load(source)
        on_failure.pop_all()
    return service.server, service.port


def serve(index: Path, address: str, options: ServerOptions | None = None) -> int:
    """Serve an index until SIGTERM or SIGINT; then drain. Call it from the main thread.

    Args:
        index: an index folder.
        address: ``HOST:PORT``; port 0 takes a free one.
        options: defaults if None.

    Returns:
        The exit code 0.

    Raises:
        InputError: the address cannot be listened on.
        UECError: as `Retriever.open`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(_Terminated), _terminable(), contextlib.ExitStack() as at_end:
        service = Service(address, options)
        at_end.callback(service.stop)
        logger.info("event=loading port=%d", service.port)
        service.load(index)
        logger.info("event=serving port=%d", service.port)
        threading.Event().wait()
    logger.info("event=stopped")
    return 0


class _Terminated(BaseException):
    """A signal asks this process to end; like KeyboardInterrupt, not an error."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into `_Terminated`; a second one ends the process."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        for name in former:
            signal.signal(name, signal.SIG_DFL)
        logger.info("event=draining signal=%s", signal.Signals(number).name)
        raise _Terminated

    former = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    for name in former:
        signal.signal(name, terminate)
    try:
        yield
    finally:
        for name, handler in former.items():
            signal.signal(name, handler)
