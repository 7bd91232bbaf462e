"""Pulling: a version of a server, into memory or into a folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import _weft
from ._connection import connect
from ._tensors import Version, describe

if TYPE_CHECKING:
    from ._servers import Store


@dataclasses.dataclass(frozen=True)
class PullReport:
    """What a pull did."""

    id: str
    """"blake3:..." of the version."""
    total_bytes: int
    """Of tensors and files."""
    fetched_bytes: int
    """And verified."""
    held_bytes: int
    """Were at hand."""
    resumed: int
    """How often something was taken up again."""
    corrupt_blocks: int
    """Came wrong, and were fetched again."""
    seconds: float


@overload
def pull(server: str | Store, version: str = "#main", folder: None = None, *, key: str | None = None,
         ca_file: str | os.PathLike[str] | None = None, mirrors: Sequence[str] = (),
         base: Version | Mapping[str, Any] | str | os.PathLike[str] | None = None, connections: int = 2,
         retries: int = 5, timeout: float = 60.0, progress: Callable[[int, int], None] | None = None) -> Version: ...


@overload
def pull(server: str | Store, version: str, folder: str | os.PathLike[str], *, key: str | None = None,
         ca_file: str | os.PathLike[str] | None = None, mirrors: Sequence[str] = (),
         base: Version | Mapping[str, Any] | str | os.PathLike[str] | None = None, connections: int = 2,
         retries: int = 5, timeout: float = 60.0,
         progress: Callable[[int, int], None] | None = None) -> PullReport: ...


def pull(server: str | Store, version: str = "#main", folder: str | os.PathLike[str] | None = None, *,
         key: str | None = None, ca_file: str | os.PathLike[str] | None = None, mirrors: Sequence[str] = (),
         base: Version | Mapping[str, Any] | str | os.PathLike[str] | None = None, connections: int = 2,
         retries: int = 5, timeout: float = 60.0,
         progress: Callable[[int, int], None] | None = None) -> Version | PullReport:
    """Pulls a version; every block is held to the version's id before it counts. Blocks, without the GIL.

    Args:
        server: its URL, or a `weft.Store` of this process.
        version: an id, "#head", a label, or the first 8 hex digits or more of an id.
        folder: written as transformers reads it; it gets its name when all is there. Default: into memory.
        key: the server's read or admin key.
        mirrors: URLs that are asked where the first fails or has wrong bytes.
        base: a version at hand (tensors, or a path): blocks that are equal are copied, not fetched.
        progress: called with the bytes that are there and all bytes, from another thread.

    Returns the `Version`, or with a folder the `PullReport`. Raises NotFoundError, CorruptError (naming the block,
    for bytes that keep coming wrong), DisconnectedError when retries ran out, ConflictError when there is
    something at `folder`, and what the server says.
    """
    client = connect(server, key, ca_file, timeout)
    others = [connect(mirror, key, ca_file, timeout) for mirror in mirrors]
    at_hand, owners = _source(base)
    weights, report = client.pull(version, folder=None if folder is None else os.fspath(folder),
                                  connections=connections, retries=retries or -1, mirrors=others, base=at_hand,
                                  progress=progress)
    del owners
    return PullReport(**report) if weights is None else Version(weights)


def _source(base: Any) -> tuple[Any, Any]:
    if base is None:
        return None, None
    if isinstance(base, (str, os.PathLike)):
        return _weft.Source(os.fspath(base), [], {}), None
    tensors = [describe(name, value).on_host() for name, value in base.items()]
    return _weft.Source(None, [tensor.row() for tensor in tensors], {}), tensors
