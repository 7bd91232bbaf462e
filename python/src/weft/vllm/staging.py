"""Versions as a worker of vLLM holds them on the host: the one that is loaded, and the one that is to be."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from vllm.logger import init_logger

from .. import _weft
from .._connection import connect
from .._errors import ConflictError, CorruptError, ForbiddenError, UnsupportedError
from .._tensors import DTYPES, Version
from .layout import Spec

logger = init_logger("vllm." + __name__)  # vLLM shows its own alone

_NAMES = {number: name for name, (number, _) in DTYPES.items()}
_SOURCES = "WEFT_ALLOW_SOURCE"
_BESIDE = 5
"""Nice of what goes on while vLLM answers and generates: a third of what a thread of its own gets."""


def open_source(url: str, key: str | None, ca_file: str | None) -> Any:
    """A client of a server that versions are pulled from."""
    allowed = os.environ.get(_SOURCES, "").split()
    if allowed and url.rstrip("/") not in {each.rstrip("/") for each in allowed}:
        raise ForbiddenError(f"{url} is no source that {_SOURCES} allows: {', '.join(allowed)}")
    return connect(url, key, ca_file, 60.0)


class Change:
    """What a version changes of one tensor."""

    def __init__(self, patch: Any, index: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._patch = patch
        self._index = index

    @functools.cached_property
    def listed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Flat indices of the elements, ascending, and their new values."""
        count, elements, values = self._patch.elements(self._index)
        return _view(elements, count, torch.int64, self._patch), _view(values, count, self._dtype, self._patch)

    # `flat` is the tensor in a place of its own: all elements in their order, in host memory.

    def fits(self, flat: torch.Tensor) -> bool:
        """Are the elements that change what they were?"""
        try:
            self._patch.check(self._index, flat.data_ptr())
        except ConflictError:
            return False
        return True

    def write(self, flat: torch.Tensor) -> None:
        self._patch.write(self._index, flat.data_ptr())

    def undo(self, flat: torch.Tensor) -> None:
        """Takes the last write() back."""
        self._patch.undo(self._index, flat.data_ptr())


class Staged:
    """A version that is to be loaded. `weights` are all of it; or `changes` are what it changes of what is held."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.weights: Any = None
        self.tensors: dict[str, torch.Tensor] = {}
        self.patch: Any = None
        self.changes: dict[str, Change] = {}


class _Arrived:
    """A tensor of a version that is being pulled."""

    def __init__(self, name: str, dtype: int, shape: tuple[int, ...], address: int) -> None:
        self.spec = Spec(name, getattr(torch, _NAMES[dtype]), tuple(shape))
        self._address = address

    def tensor(self) -> torch.Tensor:
        return _view(self._address, math.prod(self.spec.shape), self.spec.dtype, None).view(self.spec.shape)


class Host:
    """The versions of one worker. `keep` False: none stays when it is loaded, and there are no deltas. `verifies_first`:
    what changes make of a version is held to its digests before it is loaded, else afterwards beside what the server does."""

    def __init__(self, keep: bool, verifies_first: bool, threads: int) -> None:
        self._keep = keep
        self._verifies_first = verifies_first
        self._threads = threads
        self._settling: Future[tuple[Any, bool]] | None = None  # of what is loaded, if it came as changes
        self._weights: Any = None  # what is loaded, once that is settled
        self._spare: Any = None  # memory to write over
        self.tensors: dict[str, torch.Tensor] = {}
        """What is loaded, by name; read alone."""

    def settled_id(self) -> str | None:
        """Of what is loaded; None where nothing is, or where it has turned out to be something else. Blocks until changes
        that were loaded last are written and verified here, too."""
        settling, self._settling = self._settling, None
        if settling is not None:
            weights, is_right = settling.result()
            if is_right:
                self._weights, self.tensors = weights, Version(weights).torch()
            else:
                self._spare = weights
        return None if self._weights is None else self._weights.id

    def try_pull_changes(self, client: Any, version: str) -> Staged | None:
        """What `version` changes of what is loaded; None where that cannot be had."""
        if self._weights is None:
            return None
        try:
            with worker_threads(1) as thread:
                patch, report = thread.submit(_weft.pull_changes, client, version, self._weights, self._threads).result()
                if self._verifies_first:
                    thread.submit(patch.verify, self._threads).result()
        except UnsupportedError:
            return None
        except CorruptError as error:
            logger.warning("weft: %s; it is pulled in full", error)
            return None
        staged = Staged(report["id"])
        staged.patch = patch
        rows = self._weights.tensors()
        for index, tensor in enumerate(patch.tensors()):
            name, dtype, _, _ = rows[tensor]
            staged.changes[name] = Change(patch, index, getattr(torch, _NAMES[dtype]))
        return staged

    def pull(self, client: Any, version: str, arrived: Callable[[Spec, torch.Tensor], None]) -> Staged:
        """All of `version`. `arrived` is called in this thread with each tensor when it is verified, while others are
        still on their way; it must not keep it."""
        spare, self._spare = self._spare, None
        news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with worker_threads(1) as thread:  # it ends before this does: it writes to the memory of the tensors
            pull = thread.submit(client.pull, version, connections=self._threads, base_weights=self._weights, reuse=spare,
                                 tensor=lambda *row: news.put(_Arrived(*row)))
            pull.add_done_callback(news.put)
            try:
                while isinstance(item := news.get(), _Arrived):
                    arrived(item.spec, item.tensor())
            except BaseException:
                client.cancel()
                raise
        if pull.exception() is not None:
            self._spare = spare
        weights, _ = pull.result()
        staged = Staged(weights.id)
        staged.weights = weights
        staged.tensors = Version(weights).torch()
        return staged

    def again(self) -> Staged:
        """What was loaded before."""
        staged = Staged(self._weights.id)
        staged.weights, staged.tensors = self._weights, self.tensors
        return staged

    def take(self, staged: Staged) -> None:
        """It is loaded now."""
        if staged.weights is self._weights:
            return
        if staged.weights is not None:
            self._spare, self._weights = self._weights, staged.weights
            self.tensors = staged.tensors
        else:
            self._weights, self.tensors = None, {}
            thread = worker_threads(1, _BESIDE)
            self._settling = thread.submit(self._settle, staged)
            thread.shutdown(wait=False)
        if not self._keep:
            self._spare, self._weights, self.tensors = self._weights, None, {}

    def _settle(self, staged: Staged) -> tuple[Any, bool]:
        """Brings what is held up to date with changes that are loaded. Also, is it the version that it should be?"""
        weights = staged.patch.apply()
        try:
            if not self._verifies_first:
                staged.patch.verify(self._threads)
        except CorruptError as error:
            logger.error("weft: %s is loaded and wrong: %s. The next update comes in full", staged.id, error)
            return weights, False
        return weights, True

    def drop(self, staged: Staged) -> None:
        """It is not loaded."""
        if staged.weights is not None and staged.weights is not self._weights:
            staged.tensors = {}
            self._spare, staged.weights = staged.weights, None


def worker_threads(count: int, nice: int = 0) -> ThreadPoolExecutor:
    """Threads that may run on all cores that this process uses, with those that they start. Those of vLLM's CPU worker are
    pinned to one core each, and what they start would share theirs. `nice` is added to theirs."""
    cores: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            cores |= os.sched_getaffinity(int(thread))

    def begin() -> None:  # both of this thread alone
        os.sched_setaffinity(0, cores)
        os.nice(nice)

    return ThreadPoolExecutor(count, "weft-worker", begin)


def specs_of(tensors: Mapping[str, torch.Tensor]) -> list[Spec]:
    return [Spec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]


def _view(address: int, count: int, dtype: torch.dtype, owner: object) -> torch.Tensor:
    if count == 0:
        return torch.empty(0, dtype=dtype)
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    buffer._owner = owner
    return torch.frombuffer(buffer, dtype=dtype)
