"""New weights for inference engines, over plain HTTP.

    import weft

    publisher = weft.Publisher("http://engine:8000")
    publisher.publish(model.state_dict(), label="step-17").result()

`Publisher` is the trainer's side, `Receiver` an engine's, `Store` keeps versions, `Origin` hands out a trainer's own, `pull`
gets one; `diff` and `apply` are what changed between two, as a file.
"""

from . import _weft
from ._diff import DiffReport, apply, diff
from ._errors import (
    CancelledError,
    ConflictError,
    CorruptError,
    DeadlineError,
    DisconnectedError,
    Error,
    ForbiddenError,
    InternalError,
    InvalidArgumentError,
    MethodNotAllowedError,
    NoSpaceError,
    NotFoundError,
    OverloadedError,
    PreconditionFailedError,
    RangeInvalidError,
    TooLargeError,
    UnauthenticatedError,
    UnsupportedError,
)
from ._publisher import Publication, Publisher, PublishReport, WeightSource
from ._pull import PullReport, pull
from ._servers import Origin, Receiver, Store
from ._tensors import Tensor, Version

__version__: str = _weft.version()

__all__ = [
    "CancelledError", "ConflictError", "CorruptError", "DeadlineError", "DiffReport", "DisconnectedError", "Error",
    "ForbiddenError", "InternalError", "InvalidArgumentError", "MethodNotAllowedError", "NoSpaceError",
    "NotFoundError", "Origin", "OverloadedError", "PreconditionFailedError", "Publication", "PublishReport",
    "Publisher", "PullReport", "RangeInvalidError", "Receiver", "Store", "Tensor", "TooLargeError",
    "UnauthenticatedError", "UnsupportedError", "Version", "WeightSource", "apply", "diff", "pull",
]
