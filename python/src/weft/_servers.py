"""Servers inside this process: a receiver that takes versions in, a store that keeps them, an origin of its own."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import _weft
from ._closing import Closing
from ._connection import connect
from ._errors import CancelledError, DeadlineError
from ._tensors import HostTensor, Version, describe, dtype_name, named


def _listen(host: str, port: int, admin_key: str | None, read_key: str | None, tls_cert: str | os.PathLike[str] | None,
            tls_key: str | os.PathLike[str] | None, insecure: bool) -> dict[str, Any]:
    return {"host": host, "port": port, "admin_key": admin_key, "read_key": read_key, "insecure": insecure,
            "tls_cert": None if tls_cert is None else os.fspath(tls_cert),
            "tls_key": None if tls_key is None else os.fspath(tls_key)}


class Receiver(Closing):
    """A server that takes versions in, as an engine does, and hands each over when it is complete and verified.

    Use it with `with`, or call `close()`. A version is handed to `on_version`, on a thread of the receiver: when
    that returns, the version is what is served, and the sender's publish is done. What it raises refuses
    the version: the sender gets the words, and the version before serves on; do not keep a version that you
    refuse. Without `on_version`, iterate: `for version in receiver`.

    Memory: two sets of weights. A set is written over by the second version after it, once all that was made
    from its `Version` is gone: let go of old ones, or the next upload waits for it.

    Args:
        tensors: the model's: names and tensors, which are the version at the start (copied), or what has `name`,
            `dtype` and `shape` (vLLM's ParamMeta), for zeros. A version must have exactly these.
        on_version: takes each version.
        host, port: where to listen; port 0 is any free one. Beyond this machine it takes an `admin_key`.
        admin_key, read_key: who may change, and who may read.
        tls_cert, tls_key: PEM files, for https.
        files: of the model, at the start.
        lease: seconds after which a silent upload is dropped.
        tied_embeddings: a pushed `lm_head.weight` must equal the embedding, and is dropped.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[Any],
        on_version: Callable[[Version], object] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        admin_key: str | None = None,
        read_key: str | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        files: Mapping[str, bytes] | None = None,
        lease: float = 300.0,
        tied_embeddings: bool = False,
    ) -> None:
        self._on_version = on_version
        self._news = threading.Condition()
        self._newest: Version | None = None  # that nobody has taken yet
        self._closed = False
        taker = weakref.WeakMethod(self._take)  # nothing keeps a receiver that nobody has any more
        described = [tensor.on_host() for tensor in _described(tensors)]
        self._receiver = _weft.Receiver([tensor.row() for tensor in described],
                                        _listen(host, port, admin_key, read_key, tls_cert, tls_key, insecure),
                                        lambda weights: taker()(weights), dict(files or {}), lease, tied_embeddings)
        self.url: str = self._receiver.url
        """Where it listens."""
        self._admin_key = admin_key

    @property
    def current(self) -> Version:
        """What is served now."""
        return Version(self._receiver.current())

    def next_version(self, timeout: float | None = None) -> Version:
        """Waits for a version that has not been handed out yet; where there were several, the newest. DeadlineError
        after `timeout` seconds, CancelledError when the receiver is closed."""
        version = self._wait(timeout)
        if version is None:
            raise CancelledError("the receiver was closed")
        return version

    def __iter__(self) -> Iterator[Version]:
        """Versions as they come, the newest only where several did, until the receiver is closed."""
        while version := self._wait(None):
            yield version
            del version  # its memory is needed for the one after the next

    def pull(self, source: str | Any, version: str = "#main", *, key: str | None = None,
             ca_file: str | os.PathLike[str] | None = None, timeout: float = 60.0) -> None:
        """Takes a version of another server in, as if it had been pushed. Only what differs is fetched."""
        self._receiver.pull(connect(source, key, ca_file, timeout), version)

    def close(self) -> None:
        """Stops listening; ends iterations."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._receiver.close()

    # None: the receiver was closed.
    def _wait(self, timeout: float | None) -> Version | None:
        with self._news:
            if not self._news.wait_for(lambda: self._newest or self._closed, timeout):
                raise DeadlineError(f"no version came within {timeout} s")
            version, self._newest = self._newest, None
            return version

    def _take(self, weights: Any) -> None:
        version = Version(weights)
        if self._on_version:
            self._on_version(version)
            return
        with self._news:
            self._newest = version
            self._news.notify_all()


def _described(tensors: Mapping[str, Any] | Sequence[Any]) -> Iterator[HostTensor]:
    for item in named(tensors):
        if isinstance(item, tuple) and len(item) == 2:
            yield describe(*item)
        else:
            yield HostTensor(item.name, dtype_name(item.name, item.dtype), tuple(item.shape))


class Store(Closing):
    """The versions in a folder, served from this process as `weft store` does: push to it, pull from it, let engines
    follow its heads. Use it with `with`, or call `close()`.

    Args:
        folder: made where there is none. One process has it at a time (ConflictError).
        keep_last: how many versions stay, the newest; those that a head or a pin names always do. Default: all.
        host, port, admin_key, read_key, tls_cert, tls_key, insecure: as for `Receiver`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_last: int | None = None,
        admin_key: str | None = None,
        read_key: str | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        self._store = _weft.Store(os.fspath(folder),
                                  _listen(host, port, admin_key, read_key, tls_cert, tls_key, insecure), keep_last or 0)
        self.url: str = self._store.url
        """Where it listens."""
        self._admin_key = admin_key

    def close(self) -> None:
        """Stops listening and lets go of the folder."""
        self._store.close()


class Origin(Closing):
    """The newest versions of this process, in its memory, for engines to pull: a trainer's side where there is no
    store. Hand it to a `Publisher`; engines pull from `url`. Use it with `with`, or call `close()`.

    It holds the version that was published last, which is the head `main`, and the one before; from a
    `Publisher(..., delta=True)` also what changed between them. A publish copies the tensors: when its `result()` is
    there they may be changed.

    Args:
        small_deltas: deltas of about a quarter of the bytes, for thrice the time to make and to apply: for engines
            behind a link below some Gbit/s.
        host, port, admin_key, read_key, tls_cert, tls_key, insecure: as for `Receiver`.
    """

    def __init__(
        self,
        *,
        small_deltas: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        admin_key: str | None = None,
        read_key: str | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        self._offer = _weft.Offer(_listen(host, port, admin_key, read_key, tls_cert, tls_key, insecure), small_deltas)
        self.url: str = self._offer.url
        """Where it listens."""
        self._admin_key = admin_key

    def close(self) -> None:
        """Stops listening, and lets go of the versions."""
        self._offer.close()
