"""Publishing: the tensors of a trainer become a version on a server."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from . import _weft
from ._closing import Closing
from ._connection import connect
from ._errors import Error, InvalidArgumentError
from ._servers import Origin
from ._tensors import HostTensor, describe, dtype_name, is_sharded, named

if TYPE_CHECKING:
    from ._servers import Store

_ALIGNMENT = 64


@runtime_checkable
class WeightSource(Protocol):
    """vLLM's shape of a source whose tensors come one after the other (FSDP, DTensor, ...).

    `metadata()` has `name`, `dtype` and `shape` of each tensor, and iterating gives `(name, tensor)` in the
    same order, anew each time. Iterating may be a collective of all ranks.
    """

    def metadata(self) -> Sequence[Any]: ...

    def __iter__(self) -> Iterator[tuple[str, Any]]: ...


@dataclasses.dataclass(frozen=True)
class PublishReport:
    """What a publish did."""

    id: str
    """"blake3:..." of the version."""
    total_bytes: int
    """Of tensors and files."""
    sent_bytes: int
    """Bodies of blocks on the wire."""
    skipped_bytes: int
    """The server had them."""
    delta_bytes: int
    """Of sent_bytes: as deltas over the version before."""
    resumed: int
    """How often something was taken up again."""
    converted: bool
    """The server keeps the tensors in other dtypes."""
    stall_us: float
    """How long generation stood still, in microseconds."""
    hash_seconds: float
    send_seconds: float
    commit_seconds: float
    total_seconds: float


class Publication(concurrent.futures.Future[PublishReport]):
    """A publish under way: `result(timeout)` has its report, or raises what went wrong."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client
        self.progress: tuple[int, int] = (0, 0)
        """Bytes that the server has verified, out of all."""

    def cancel(self) -> bool:
        """Stops it, also while it runs; `result()` then raises CancelledError. The server goes on with the version
        that it has. False when it is over already, or too late to tell."""
        if super().cancel():
            return True
        if self.done():
            return False
        self._client.cancel()
        return True


class _Arena:
    """Host memory for all tensors of a version, one after the other."""

    def __init__(self, tensors: Sequence[HostTensor]) -> None:
        self.layout = _layout(tensors)
        self._offsets = list(itertools.accumulate((_aligned(tensor.nbytes) for tensor in tensors), initial=0))
        self._memory = _weft.Arena(self._offsets[-1])
        self.tensors = [
            dataclasses.replace(tensor, address=self._memory.address + offset, owner=self._memory, make=None)
            for tensor, offset in zip(tensors, self._offsets)
        ]

    def copy_in(self, index: int, tensor: HostTensor) -> None:
        self._memory.copy_in(self._offsets[index], tensor.address, tensor.nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _layout(tensors: Sequence[HostTensor]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in tensors]


class _Lazy:
    """Reads tensors that have to be copied to the host first, each when it is needed; keeps the last few."""

    KEPT = 3

    def __init__(self, tensors: Sequence[HostTensor]) -> None:
        self._tensors = tensors
        self._lock = threading.Lock()
        self._kept: dict[int, HostTensor] = {}

    def read(self, index: int, offset: int, address: int, nbytes: int) -> int | None:
        tensor = self._tensors[index]
        if tensor.address or tensor.make is None:
            return tensor.address + offset
        with self._lock:
            host = self._kept.pop(index, None) or tensor.on_host()
            self._kept[index] = host  # the newest last
            while len(self._kept) > self.KEPT:
                del self._kept[next(iter(self._kept))]
        _weft.copy(address, host.address + offset, nbytes)
        return None


class _Stream:
    """Tensors that arrive in an arena one after the other, while others are being sent."""

    def __init__(self, arena: _Arena) -> None:
        self._arena = arena
        self._arrived = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, index: int, tensor: HostTensor) -> None:
        self._arena.copy_in(index, tensor.on_host())
        with self._changed:
            self._arrived = index + 1
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def read(self, index: int, offset: int, address: int, nbytes: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived > index or self._failure)
            if self._arrived <= index:
                raise Error(f"the source ended early: {self._failure}")
        return self._arena.tensors[index].address + offset


class Publisher(Closing):
    """Publishes versions to one server: an engine's receiver (`weft serve`, a `weft.Receiver`), a store, or an
    origin from which engines pull.

    Args:
        server: its URL, or a `weft.Store` or `weft.Origin` of this process.
        key: the server's admin key.
        ca_file: PEM of the authorities for https; default: those of this machine.
        delta: keep the last published version in host memory, and send what changed since as deltas. Takes twice
            the model's size; tensors may be changed as soon as `publish` returns. An origin, which has the version
            before anyway, offers the delta beside the whole.
        snapshot: copy the tensors to host memory before `publish` returns (one copy, reused), so that they may
            be changed at once. Without it they must stay as they are until `result()` returns.
        connections: to the server.
        retries: in a row that bring nothing, before a publish gives up.
        timeout: seconds without a byte in or out.
        is_sender: False on ranks that only take part in gathering a WeightSource.

    Thread-safe; publishes run one after the other, on a thread of their own.
    """

    def __init__(
        self,
        server: str | Store | Origin,
        *,
        key: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        delta: bool = False,
        snapshot: bool = False,
        connections: int = 2,
        retries: int = 5,
        timeout: float = 60.0,
        is_sender: bool = True,
    ) -> None:
        self._connect = lambda: connect(server, key, ca_file, timeout)
        self._connect()  # says now what is wrong with the URL
        self._server = server  # a store stays as long as it is published to
        # An origin keeps what it needs for deltas by itself.
        self._delta = delta and not isinstance(server, Origin)
        self._offers_delta = delta
        self.copies = self._delta or snapshot
        """Tensors may be changed as soon as `publish` returns."""
        self._options = {"connections": connections, "retries": retries or -1}
        self.is_sender = is_sender
        """False: this rank only takes part in gathering."""
        self._worker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="weft-publish")
        self._lock = threading.Lock()  # of what follows
        self._spare: list[_Arena] = []
        self._base: tuple[str, _Arena] | None = None  # what the server has

    def publish(
        self,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]] | WeightSource | str | os.PathLike[str],
        *,
        label: str | None = None,
        head: str | None = None,
        if_match: str | None = None,
        parent: str | None = None,
        origin: str | None = None,
        on_update: str | None = None,
        session: str | None = None,
        files: Mapping[str, bytes | str] | None = None,
        base: str | None = None,
        partial: bool = False,
        stage_only: bool = False,
        zstd: bool = False,
        dtype: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Publication:
        """Makes `tensors` what the server serves, under `label`; on a store also the place of `head`.

        Args:
            tensors: Hugging Face names and full tensors: a mapping (`model.state_dict()`), an iterable of pairs
                (`model.named_parameters()`), a `WeightSource`, or the path of a Hugging Face folder or
                safetensors file. Torch tensors on any device, numpy arrays, whatever has DLPack or the buffer
                protocol. What is contiguous in host memory is sent from where it lies; the rest is copied to the
                host tensor by tensor. A WeightSource, and DTensors, are gathered before this returns, in order,
                in the calling thread.
            if_match: the id that the head must have now; else PreconditionFailedError.
            on_update: what running sequences do: "continue", "recompute", "finish" or "abort".
            session: who owns the upload (`Weft-Session`); another call under the same name goes on with it. What a
                client without sessions is to commit, vLLM's for one, belongs to "anonymous". Default: a new one.
            files: small files of the model, by name.
            base: a version that the server has, with `partial`: tensors that are not given are its.
            stage_only: stop when all is there and sealed; nothing changes on the server.
            dtype: what floating point tensors are converted to ("bfloat16", torch.bfloat16), one at a time.
            progress: called with the bytes that the server has verified and all bytes, from another thread.

        Raises, here or from `result()`: InvalidArgumentError, UnsupportedError for what cannot be a version;
        UnauthenticatedError, ForbiddenError for a key that is wrong or old; ConflictError,
        PreconditionFailedError; CorruptError when a tensor changed while it was sent; NotFoundError for a server
        that is no weft; DisconnectedError when retries ran out. The server then goes on with what it has.
        """
        options = dict(self._options, label=label, head=head, if_match=if_match, parent=parent, origin=origin,
                       on_update=on_update, session=session, base_id=base, partial=partial, stage_only=stage_only, zstd=zstd)
        given_files = {name: text.encode() if isinstance(text, str) else bytes(text)
                       for name, text in (files or {}).items()}
        publication = Publication(self._connect())
        job = _Job(self, publication, options, given_files, progress)
        if isinstance(tensors, (str, os.PathLike)):
            job.path = os.fspath(tensors)
            return job.submit()
        if isinstance(tensors, WeightSource):
            return self._publish_stream(job, [meta.cast(dtype) for meta in _metadata(tensors)], tensors, dtype)
        pairs = list(named(tensors))
        if not self.is_sender and not any(is_sharded(value) for _, value in pairs):
            pairs = []
        if not self.is_sender or any(is_sharded(value) for _, value in pairs):
            return self._publish_stream(job, [_describe_whole(*pair).cast(dtype) for pair in pairs], pairs, dtype)
        job.tensors = [describe(name, value).cast(dtype) for name, value in pairs]
        if not self.copies:
            return job.submit()
        arena = self._take_arena(job.tensors)
        for index, tensor in enumerate(job.tensors):
            arena.copy_in(index, tensor.on_host())
        job.use(arena)
        return job.submit()

    def close(self) -> None:
        """Waits for what is under way."""
        self._worker.shutdown()

    def _publish_stream(self, job: _Job, specs: list[HostTensor], source: Iterable[tuple[str, Any]],
                        dtype: Any) -> Publication:
        if not self.is_sender:
            for _, value in source:
                if is_sharded(value):
                    value.full_tensor()
            job.publication.set_result(None)  # type: ignore[arg-type]
            return job.publication
        arena = self._take_arena(specs)
        stream = _Stream(arena)
        job.use(arena)
        job.stream = stream
        job.submit()
        try:
            arrived = 0
            for index, (name, value) in enumerate(source):
                if is_sharded(value):
                    value = value.full_tensor()
                tensor = describe(name, value).cast(dtype)
                if index >= len(specs) or _layout([tensor]) != _layout([specs[index]]):
                    raise InvalidArgumentError(
                        f"{name}: {tensor.dtype} {list(tensor.shape)} came as number {index}, but metadata() says "
                        f"{_layout(specs[index:index + 1]) or 'that there is none'}")
                stream.put(index, tensor)
                arrived += 1
            if arrived < len(specs):
                raise InvalidArgumentError(f"{specs[arrived].name}: is in metadata(), but did not come")
        except BaseException as failure:
            stream.fail(failure)
            raise
        return job.publication

    # Memory for these tensors that nobody reads.
    def _take_arena(self, tensors: Sequence[HostTensor]) -> _Arena:
        with self._lock:
            while self._spare:
                arena = self._spare.pop()
                if arena.layout == _layout(tensors):
                    return arena
        return _Arena(tensors)

    def _give_back(self, arena: _Arena) -> None:
        with self._lock:
            self._spare.append(arena)


def _metadata(source: WeightSource) -> list[HostTensor]:
    return [HostTensor(meta.name, dtype_name(meta.name, meta.dtype), tuple(meta.shape)) for meta in source.metadata()]


def _describe_whole(name: str, value: Any) -> HostTensor:
    """Of a tensor that may be sharded: as it is when it is gathered."""
    if is_sharded(value):
        return HostTensor(name, dtype_name(name, value.dtype), tuple(value.shape))
    return describe(name, value)


class _Job:
    """One publish, on the publisher's thread."""

    def __init__(self, publisher: Publisher, publication: Publication, options: dict[str, Any], files: dict[str, bytes],
                 progress: Callable[[int, int], None] | None) -> None:
        self.publisher = publisher
        self.publication = publication
        self.options = options
        self.files = files
        self.progress = progress
        self.path: str | None = None
        self.tensors: list[HostTensor] = []
        self.arena: _Arena | None = None
        self.stream: _Stream | None = None

    def use(self, arena: _Arena) -> None:
        self.arena = arena
        self.tensors = arena.tensors

    def submit(self) -> Publication:
        self.publisher._worker.submit(self._run)
        return self.publication

    def _run(self) -> None:
        if not self.publication.set_running_or_notify_cancel():
            return
        try:
            report = PublishReport(**self._publish())
        except BaseException as error:  # noqa: BLE001: it belongs to whoever waits
            self._end(None)
            self.publication.set_exception(error)
        else:
            self._end(report.id)
            self.publication.set_result(report)

    def _publish(self) -> dict[str, Any]:
        source = _weft.Source(self.path, [tensor.row() for tensor in self.tensors], self.files)
        read = self.stream.read if self.stream else None
        if read is None and any(tensor.make for tensor in self.tensors):
            read = _Lazy(self.tensors).read
        if isinstance(self.publisher._server, Origin):
            return self.publisher._server._offer.publish(source, self._only("label"), self.publisher._offers_delta, read=read,
                                                         progress=self._show)
        base = None
        if self.publisher._delta and self.publisher._base and not self.options["base_id"]:
            base_id, arena = self.publisher._base
            self.options["base_id"] = base_id
            base = _weft.Source(None, [tensor.row() for tensor in arena.tensors], {})
        return self.publication._client.publish(source, self.options, read=read, costly=self.stream is not None,
                                                base=base, progress=self._show)

    # The option, where no other is given but those that are about connections.
    def _only(self, name: str) -> Any:
        for other, value in self.options.items():
            if value and other not in (name, "connections", "retries"):
                raise InvalidArgumentError(f"{other}: an origin's versions have only a {name}")
        return self.options[name]

    def _show(self, done_bytes: int, total_bytes: int) -> None:
        self.publication.progress = (done_bytes, total_bytes)
        if self.progress:
            self.progress(done_bytes, total_bytes)

    # What was published is the base of the next one; the memory of the base before is free.
    def _end(self, published_id: str | None) -> None:
        if self.arena is None or (self.stream and published_id is None):
            return  # the source may still be writing to it
        free = self.arena
        if published_id and self.publisher._delta and not self.options["stage_only"]:
            before, self.publisher._base = self.publisher._base, (published_id, self.arena)
            if before is None:
                return
            free = before[1]
        self.publisher._give_back(free)
