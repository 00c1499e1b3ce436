"""Errors to gRPC statuses, and one log line a call.

`STATUS` is the one table. A caller sees the text of errors that speak of its request; of all others
it sees a sentence and an incident number, and the log has the rest. Neither texts nor queries are
logged.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from uec import errors
from uec.errors import ServiceError, UECError
from uec_server import convert
from uec_server.convert import InvalidFieldError
from uec_server.gate import Abandoned

logger = logging.getLogger("uec_server")

Code = grpc.StatusCode

STATUS: dict[type[UECError], grpc.StatusCode] = {
    errors.InputError: Code.INVALID_ARGUMENT,
    errors.NotFoundError: Code.NOT_FOUND,
    errors.MismatchError: Code.FAILED_PRECONDITION,
    errors.CorruptArtefactError: Code.DATA_LOSS,
    errors.EmbeddingError: Code.INTERNAL,
    errors.UnsupportedEncoderError: Code.FAILED_PRECONDITION,
    errors.BusyError: Code.ABORTED,
    errors.DependencyError: Code.UNIMPLEMENTED,
    errors.ServiceError: Code.UNKNOWN,  # only by default: it carries its own code
}
"""Every class of `uec.errors`; a subclass defined elsewhere counts as its nearest base."""

_ABOUT_THE_REQUEST = (
    errors.InputError,
    errors.NotFoundError,
    errors.EmbeddingError,
    errors.ServiceError,
)
"""Errors whose text names only what the caller sent, or members and document ids."""

_SERVICE_METHODS = "/uec.v1."


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call that failed is answered.

    Attributes:
        code: the status.
        message: for the caller.
        field: path of the field at fault, or empty.
        incident: number under which the log has the traceback, or empty.
    """

    code: grpc.StatusCode
    message: str
    field: str = ""
    incident: str = ""

    def status(self) -> grpc.Status:
        """The status with its details."""
        number, _ = self.code.value
        status = status_pb2.Status(code=number, message=self.message)
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message
            )
            detail = AnyMessage()
            detail.Pack(error_details_pb2.BadRequest(field_violations=[violation]))
            status.details.append(detail)
        return rpc_status.to_status(status)


def refusal(error: Exception) -> Refusal:
    """How an error is told to the caller."""
    if isinstance(error, ServiceError):
        return Refusal(grpc.StatusCode[error.code], str(error).removeprefix(f"{error.code}: "))
    for kind in type(error).__mro__:
        if kind in STATUS and isinstance(error, _ABOUT_THE_REQUEST):
            field = error.field if isinstance(error, InvalidFieldError) else ""
            return Refusal(STATUS[kind], str(error), field)
        if kind in STATUS:
            return _incident(STATUS[kind])
    return _incident(Code.INTERNAL)


def _incident(code: grpc.StatusCode) -> Refusal:
    number = secrets.token_hex(6)
    return Refusal(code, f"the service failed; its log has incident {number}", incident=number)


def _abandonment(context: grpc.ServicerContext) -> Refusal:
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        return Refusal(Code.DEADLINE_EXCEEDED, "the deadline passed")
    return Refusal(Code.CANCELLED, "the caller cancelled")


class CallGuard(grpc.ServerInterceptor):
    """Wraps the methods of this service; health and reflection pass untouched."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.ServerInterceptor``."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_SERVICE_METHODS):
            return handler
        assert handler.unary_unary is not None, "guard streaming methods before adding one"
        return grpc.unary_unary_rpc_method_handler(
            _guarded(method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _guarded(
    method: str, behaviour: Callable[[Any, grpc.ServicerContext], Any]
) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        start = time.perf_counter()
        reply = refused = error = None
        try:
            reply = behaviour(request, context)
        except Abandoned:
            refused = _abandonment(context)
        except Exception as caught:  # else gRPC sends the exception's text
            error, refused = caught, refusal(caught)
        _log(method, request, refused, error, start)
        if refused is not None:
            context.abort_with_status(refused.status())
        return reply

    return call


def _log(
    method: str, request: Any, refused: Refusal | None, error: Exception | None, start: float
) -> None:
    incident = refused.incident if refused is not None else ""
    logger.log(
        logging.ERROR if incident else logging.INFO,
        "method=%s code=%s duration_ms=%.1f n=%d%s",
        method,
        refused.code.name if refused is not None else Code.OK.name,
        1000 * (time.perf_counter() - start),
        convert.n_texts(request),
        f" incident={incident}" if incident else "",
        exc_info=error if incident else None,
    )
