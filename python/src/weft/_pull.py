"""Pulling: a version of a server, into memory or into a folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import _weft
from ._connection import connect
from ._tensors import Version, describe, named

if TYPE_CHECKING:
    from ._servers import Origin, Store


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
    deltas: int
    """How many it came by; 0: in full."""


@overload
def pull(server: str | Store | Origin, version: str = "#main", folder: None = None, *, key: str | None = None,
         ca_file: str | os.PathLike[str] | None = None, mirrors: Sequence[str] = (),
         base: Version | Mapping[str, Any] | str | os.PathLike[str] | None = None, connections: int = 2,
         retries: int = 5, timeout: float = 60.0, progress: Callable[[int, int], None] | None = None) -> Version: ...


@overload
def pull(server: str | Store | Origin, version: str, folder: str | os.PathLike[str], *, key: str | None = None,
         ca_file: str | os.PathLike[str] | None = None, mirrors: Sequence[str] = (),
         base: Version | Mapping[str, Any] | str | os.PathLike[str] | None = None, connections: int = 2,
         retries: int = 5, timeout: float = 60.0,
         progress: Callable[[int, int], None] | None = None) -> PullReport: ...


def pull(server: str | Store | Origin, version: str = "#main", folder: str | os.PathLike[str] | None = None, *,
         key: str | None = None, ca_file: str | os.PathLike[str] | None = None, mirrors: Sequence[str] = (),
         base: Version | Mapping[str, Any] | str | os.PathLike[str] | None = None, connections: int = 2,
         retries: int = 5, timeout: float = 60.0,
         progress: Callable[[int, int], None] | None = None) -> Version | PullReport:
    """Pulls a version; every block is held to the version's id before it counts. Blocks, without the GIL.

    Args:
        server: its URL, or a `weft.Store` or `weft.Origin` of this process.
        version: an id, "#head", a label, or the first 8 hex digits or more of an id.
        folder: written as transformers reads it; it gets its name when all is there. Default: into memory.
        key: the server's read or admin key.
        mirrors: URLs that are asked where the first fails or has wrong bytes.
        base: a version at hand: blocks that are equal are copied, not fetched. Of a `Version` that was pulled, and
            into memory, what changed since comes as deltas where the server has them. Else tensors, or a path.
        progress: called with the bytes that are there and all bytes, from another thread.

    Returns the `Version`, or with a folder the `PullReport`. Raises NotFoundError, CorruptError (naming the block,
    for bytes that keep coming wrong), DisconnectedError when retries ran out, ConflictError when there is
    something at `folder`, and what the server says.
    """
    client = connect(server, key, ca_file, timeout)
    others = [connect(mirror, key, ca_file, timeout) for mirror in mirrors]
    weights_at_hand = base._weights if isinstance(base, Version) and folder is None else None
    at_hand, owners = source_of(base) if base is not None and weights_at_hand is None else (None, None)
    weights, report = client.pull(version, folder=None if folder is None else os.fspath(folder),
                                  connections=connections, retries=retries or -1, mirrors=others, base=at_hand,
                                  base_weights=weights_at_hand, progress=progress)
    del owners
    return PullReport(**report) if weights is None else Version(weights)


def source_of(tensors: Any) -> tuple[Any, Any]:
    """What weft.h takes, and what must be kept meanwhile."""
    if isinstance(tensors, (str, os.PathLike)):
        return _weft.Source(os.fspath(tensors), [], {}), None
    described = [describe(name, value).on_host() for name, value in named(tensors)]
    files = tensors.files if isinstance(tensors, Version) else {}
    return _weft.Source(None, [tensor.row() for tensor in described], files), described
