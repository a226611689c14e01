"""What can go wrong, with a code, a message and a way out.

Code that fails inside a sandbox is no error: it is a :class:`~ringfence.Result` whose
``return_code`` is not 0. Errors are what Ringfence itself could not or would not do.
"""

from __future__ import annotations

from typing import Any


class RingfenceError(Exception):
    """A failure: ``code`` for programs, ``message`` for people, ``hint`` for what to do next."""

    def __init__(
        self, message: str, *, code: str = "internal", hint: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(RingfenceError, ValueError):
    """The request is malformed, or a value is out of its range."""


class NotFound(RingfenceError):
    """The named thing does not exist."""


class AlreadyExists(RingfenceError):
    """The named thing exists already."""


class Denied(RingfenceError):
    """The key, the policy of the server, or the edge of the workspace does not allow it."""


class OutOfRoom(RingfenceError):
    """A quota, a size or the disk is used up."""


class Unenforceable(RingfenceError):
    """This host can't enforce what was asked."""


class Unavailable(RingfenceError):
    """The server, the engine or the sandbox did not answer, or something is not installed."""


class CommandFailed(RingfenceError):
    """Raised by :meth:`ringfence.Result.check` for code that did not end with 0."""


_BY_CODE: dict[str, type[RingfenceError]] = {
    "invalid_input": InvalidInput,
    "not_found": NotFound,
    "already_exists": AlreadyExists,
    "forbidden": Denied,
    "unauthenticated": Denied,
    "too_large": OutOfRoom,
    "too_many": OutOfRoom,
    "full": OutOfRoom,
    "no_space": OutOfRoom,
    "unenforceable": Unenforceable,
    "missing": Unavailable,
    "unavailable": Unavailable,
    "deadline_exceeded": Unavailable,
}


def unreachable(message: str, hint: str | None = None) -> Unavailable:
    """A failure of the way to the server."""
    return Unavailable(message, code="unavailable", hint=hint)


def failure(body: Any, status: int | None = None) -> RingfenceError:
    """The error that a server's ``{"detail", "code", "hint"}`` stands for."""
    if not isinstance(body, dict) or "detail" not in body:
        message = f"the server answered with status {status} and no reason"
        return Unavailable(message, code="unavailable", status=status, hint="is this a ringfence server?")
    detail = body["detail"]
    if isinstance(detail, list):
        detail = "; ".join(_fault(fault) for fault in detail)
    code = str(body.get("code", "internal"))
    kind = _BY_CODE.get(code, RingfenceError)
    return kind(str(detail), code=code, hint=body.get("hint"), status=status)


def _fault(fault: Any) -> str:
    if not isinstance(fault, dict):
        return str(fault)
    place = ".".join(str(part) for part in fault.get("loc", ()) if part not in ("body", "query"))
    message = str(fault.get("msg", "is wrong"))
    return f"{place}: {message}" if place else message
