"""What one version changes of another, as a file, and the version from it again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, overload

from . import _weft
from ._pull import source_of
from ._tensors import Version

_Model = "Version | Mapping[str, Any] | str | os.PathLike[str]"


@dataclasses.dataclass(frozen=True)
class DiffReport:
    """What a diff wrote, or what an apply made."""

    base_id: str
    """"blake3:..." of the version that it was made against."""
    id: str
    """"blake3:..." of the version that it makes."""
    total_bytes: int
    """Of that version."""
    file_bytes: int
    """Of the file; of an apply: of what changes, in it."""
    changed_blocks: int
    """Blocks, of 8 MiB at most, that change."""


def diff(base: _Model, target: _Model, file: str | os.PathLike[str], *, threads: int = 2,
         progress: Callable[[int, int], None] | None = None) -> DiffReport:
    """Writes what `target` changes of `base` to a file, proven before it gets its name. Blocks, without the GIL.

    Both are versions: a `Version`, named tensors, or the path of a Hugging Face folder or safetensors file.
    """
    from_, from_owners = source_of(base)
    to, to_owners = source_of(target)
    report = _weft.diff(from_, to, os.fspath(file), threads=threads, progress=progress)
    del from_owners, to_owners
    return DiffReport(**report)


@overload
def apply(base: _Model, file: str | os.PathLike[str], folder: None = None, *, threads: int = 2,
          progress: Callable[[int, int], None] | None = None) -> Version: ...


@overload
def apply(base: _Model, file: str | os.PathLike[str], folder: str | os.PathLike[str], *, threads: int = 2,
          progress: Callable[[int, int], None] | None = None) -> DiffReport: ...


def apply(base: _Model, file: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None, *,
          threads: int = 2, progress: Callable[[int, int], None] | None = None) -> Version | DiffReport:
    """Makes the version that a file of `diff` tells from `base`, every block verified: in memory, or as a folder that
    transformers reads. Raises ConflictError when it was made against another base, CorruptError for a broken file.
    """
    from_, owners = source_of(base)
    weights, report = _weft.apply(from_, os.fspath(file), folder=None if folder is None else os.fspath(folder),
                                  threads=threads, progress=progress)
    del owners
    return DiffReport(**report) if weights is None else Version(weights)
