"""Exceptions, by what the caller should do. All are weft.Error; most are a built-in one, too."""

from __future__ import annotations

import concurrent.futures

from . import _weft


class Error(Exception):
    """Something that weft was asked for did not come about. `code` is its name in every language."""

    code = "internal"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.code


class InvalidArgumentError(Error, ValueError):
    """The call is wrong: mend it."""

    code = "invalid_argument"


class UnauthenticatedError(Error, PermissionError):
    """No key, or one that is not known (any more): take another (HTTP 401)."""

    code = "unauthenticated"


class ForbiddenError(Error, PermissionError):
    """The key is known, but may not do this (HTTP 403)."""

    code = "forbidden"


class NotFoundError(Error, KeyError):
    """No such version, tensor or file; or the server is no weft."""

    code = "not_found"


class MethodNotAllowedError(Error, NotImplementedError):
    """The server has no such call: it is an older one, or no weft."""

    code = "method_not_allowed"


class ConflictError(Error):
    """The state is another than the call takes it to be: look at it again."""

    code = "conflict"


class PreconditionFailedError(ConflictError):
    """A head was moved by someone else: read it again, then decide."""

    code = "precondition_failed"


class TooLargeError(Error, ValueError):
    """Over a limit, which the message names."""

    code = "too_large"


class RangeInvalidError(Error, ValueError):
    """Bytes that are not there were asked for."""

    code = "range_invalid"


class UnsupportedError(Error, NotImplementedError):
    """A dtype, format or encoding that is not known: use another."""

    code = "unsupported"


class CorruptError(Error):
    """Bytes are not what their digest says: send or fetch them again, do not use them."""

    code = "corrupt"


class OverloadedError(Error):
    """Out of memory or slots for now: wait, then try again."""

    code = "overloaded"


class NoSpaceError(OverloadedError):
    """The disk is full: free some, then try again."""

    code = "no_space"


class DisconnectedError(Error, ConnectionError):
    """The server went away, or cannot be reached: try again."""

    code = "disconnected"


class DeadlineError(Error, TimeoutError):
    """Time ran out: try again with more, or give up."""

    code = "deadline"


class CancelledError(Error, concurrent.futures.CancelledError):
    """It was cancelled."""

    code = "cancelled"


class InternalError(Error, RuntimeError):
    """A bug, here or in the server: report it."""

    code = "internal"


def _subclasses(base: type[Error]) -> list[type[Error]]:
    return [base, *(found for sub in base.__subclasses__() for found in _subclasses(sub))]


_BY_NAME = {cls.code: cls for cls in _subclasses(Error)}
_NUMBERS = {_weft.code_name(number): number for number in range(1, len(_BY_NAME) + 1)}
_INTERNAL = _NUMBERS["internal"]


def make(number: int, message: str) -> Error:
    """The exception for a code of weft.h."""
    return _BY_NAME[_weft.code_name(number) or "internal"](message)


def describe(error: BaseException) -> tuple[int, str]:
    """Code and words for what a callback raised, for weft.h."""
    if isinstance(error, Error):
        return _NUMBERS[error.code], str(error)
    return _INTERNAL, f"{type(error).__name__}: {error}"


_weft.set_errors(make, describe)
