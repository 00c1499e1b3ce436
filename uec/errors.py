"""Every error a user can cause or meet, drawn as one tree.

    UECError
    ├── InputError              a text, a parameter or a line of a file is not usable
    ├── NotFoundError           an unknown member, document id, artefact or model
    ├── MismatchError           an artefact and what it is opened with disagree; names the field
    ├── CorruptArtefactError    a checksum fails or a file of an artefact is missing
    ├── EmbeddingError          an encoder gave NaN, infinite or zero vectors; names the text
    ├── UnsupportedEncoderError an encoder has no readout whose variance is known
    ├── BusyError               the same artefact is being written by another process
    ├── DependencyError         an optional package is missing; names the extra that brings it
    └── ServiceError            the service answered a client with an error

Each message says what was got, what was expected and what to do. The service maps every class to
one gRPC status (`uec_server.interceptors`), and a test walks this tree so that none is left out.
"""

from __future__ import annotations


class UECError(Exception):
    """Base of all errors of this package; catch it to catch them all."""


class InputError(UECError):
    """A text, a parameter or a line of a file cannot be used."""


class NotFoundError(UECError):
    """A member, document id, artefact or model does not exist."""


class MismatchError(UECError):
    """An artefact and what it is opened with differ in a named field."""


class CorruptArtefactError(UECError):
    """A file of an artefact is missing or its checksum is wrong."""


class EmbeddingError(UECError):
    """An encoder gave a vector that is NaN, infinite or zero.

    Attributes:
        row: position of the text in the call, so that a caller who knows the texts can name it.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class UnsupportedEncoderError(UECError):
    """An encoder has no last linear readout that this package knows."""


class BusyError(UECError):
    """Another process is writing the same artefact."""


class DependencyError(UECError):
    """A package that is an optional extra is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"run: pip install 'uec[{extra}]'"
        )


class ServiceError(UECError):
    """The service refused or failed a call.

    Attributes:
        code: name of the gRPC status, such as ``"INVALID_ARGUMENT"``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
