"""Tensors as they come in (torch, numpy, DLPack, the buffer protocol) and as they go out."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import _weft
from ._errors import InvalidArgumentError, UnsupportedError

DTYPES: dict[str, tuple[int, int]] = _weft.DTYPES  # torch's name -> (number, bytes of an element)
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_NAMES = {number: name for name, (number, _) in DTYPES.items()}


@dataclasses.dataclass
class HostTensor:
    """A tensor whose bytes lie at `address`, kept there by `owner`; or come when `make` is called."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int = 0
    owner: object = None
    make: Callable[[], HostTensor] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]

    def row(self) -> tuple[str, int, list[int], int, int]:
        return self.name, DTYPES[self.dtype][0], list(self.shape), self.address, self.nbytes

    def on_host(self) -> HostTensor:
        return self.make() if self.make else self

    def cast(self, dtype: object) -> HostTensor:
        """The same in another floating point dtype, converted when it is needed; what is no floating point stays."""
        if dtype is None or self.dtype not in _FLOATS or dtype_name(self.name, dtype) == self.dtype:
            return self
        name = dtype_name(self.name, dtype)
        if name not in _FLOATS:
            raise InvalidArgumentError(f"dtype {dtype}: it may be one of {', '.join(_FLOATS)}")
        return dataclasses.replace(self, dtype=name, address=0, make=lambda: _converted(self.on_host(), name))


def _converted(host: HostTensor, dtype: str) -> HostTensor:
    owner = host.owner
    if _is_torch(owner):
        return _describe_torch(host.name, owner.to(getattr(sys.modules["torch"], dtype)))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(owner, numpy.ndarray):
        return _describe_numpy(host.name, owner.astype(numpy_dtype(dtype)))
    raise UnsupportedError(f"{host.name}: only torch tensors and numpy arrays are converted")


def dtype_name(name: str, dtype: object) -> str:
    """torch's name of a dtype: of a torch.dtype, a numpy.dtype, or a text."""
    text = str(dtype).removeprefix("torch.")
    if text not in DTYPES:
        raise UnsupportedError(f"{name}: dtype {dtype} is none that weft carries: {', '.join(DTYPES)}")
    return text


def describe(name: str, value: Any) -> HostTensor:
    """What `value` is and where its bytes are. Copies nothing."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a tensor's name is a {type(name).__name__}: {name!r}; it must be a text")
    if _is_torch(value):
        return _describe_torch(name, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _describe_numpy(name, numpy.asarray(value))
    if isinstance(value, Tensor):
        return HostTensor(name, value.dtype, value.shape, value._address(), value)
    return _describe_other(name, value)


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_sharded(value: object) -> bool:
    """A DTensor: its whole is gathered by a collective of all ranks."""
    return hasattr(value, "full_tensor") and hasattr(value, "placements")


def _describe_torch(name: str, value: Any) -> HostTensor:
    torch = sys.modules["torch"]
    tensor = value.detach()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"{name}: is a {tensor.layout} tensor; make it dense (.to_dense(), .dequantize()) first")
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"{name}: is on the device meta and has no data; load the weights first")
    described = HostTensor(name, dtype_name(name, tensor.dtype), tuple(tensor.shape))
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_neg():
        described.address, described.owner = tensor.data_ptr(), tensor
        return described

    def make() -> HostTensor:
        host = tensor.to("cpu").resolve_neg().contiguous()
        return dataclasses.replace(described, address=host.data_ptr(), owner=host, make=None)

    described.make = make
    return described


def _describe_numpy(name: str, array: Any) -> HostTensor:
    native = array.dtype.newbyteorder("=")
    described = HostTensor(name, dtype_name(name, native.name), array.shape)
    if array.flags.c_contiguous and array.dtype == native and array.dtype.isnative:
        described.address, described.owner = array.ctypes.data, array
        return described

    def make() -> HostTensor:
        host = array.astype(native, order="C", copy=True)
        return dataclasses.replace(described, address=host.ctypes.data, owner=host, make=None)

    described.make = make
    return described


def _describe_other(name: str, value: Any) -> HostTensor:
    try:
        view = _weft.View(value)
    except TypeError:
        raise InvalidArgumentError(
            f"{name}: is a {type(value).__name__}; weft takes torch tensors, numpy arrays, and what has "
            "__dlpack__ or the buffer protocol") from None
    if not view.is_on_host:
        raise InvalidArgumentError(f"{name}: lies on a device; copy it to the host first (jax.device_get(), .get())")
    if view.dtype < 0:
        raise UnsupportedError(f"{name}: has a dtype that weft does not carry; it takes {', '.join(DTYPES)}")
    described = HostTensor(name, _NAMES[view.dtype], view.shape)
    if view.is_contiguous:
        described.address, described.owner = view.address, (view, value)
        return described

    def make() -> HostTensor:
        packed = _weft.View(view.packed())
        return dataclasses.replace(described, address=packed.address, owner=packed, make=None)

    described.make = make
    return described


def named(tensors: Any) -> Iterable[tuple[str, Any]]:
    """Pairs of a mapping or of an iterable of pairs."""
    if isinstance(tensors, Mapping):
        return tensors.items()
    if hasattr(tensors, "state_dict"):
        raise InvalidArgumentError(f"a {type(tensors).__name__} is no set of named tensors: pass its .state_dict()")
    return tensors


class Tensor:
    """One tensor of a Version, in host memory; it keeps the version's memory as long as it lives.

    Hand it to `torch.from_dlpack`, `numpy.asarray`, `jax.dlpack.from_dlpack` and the like, or call
    `.torch()` or `.numpy()`: nothing is copied. Do not write to it.
    """

    __slots__ = ("_weights", "_index", "name", "dtype", "shape", "nbytes")

    def __init__(self, weights: Any, index: int, name: str, dtype: int, shape: tuple[int, ...], nbytes: int) -> None:
        self._weights = weights
        self._index = index
        self.name = name
        self.dtype = _NAMES[dtype]
        self.shape = shape
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"weft.Tensor({self.name!r}, {self.dtype}, {list(self.shape)})"

    def _address(self) -> int:
        return self._weights.address(self._index)

    def __dlpack__(self, **options: Any) -> Any:
        return self._weights.array(self._index).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def numpy(self) -> Any:
        """A read-only numpy array over the same memory. bfloat16 and float8 need ml_dtypes."""
        import numpy

        data = numpy.asarray(self._weights.array(self._index, as_bytes=True))
        array = data.view(numpy_dtype(self.dtype)).reshape(self.shape)
        array.flags.writeable = False
        return array

    def torch(self) -> Any:
        """A torch tensor over the same memory."""
        import torch

        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        data = torch.from_dlpack(self._weights.array(self._index, as_bytes=True))
        return data.view(getattr(torch, self.dtype)).reshape(self.shape)

    def tobytes(self) -> bytes:
        """A copy of its bytes: C order, little-endian."""
        return bytes(memoryview(self._weights.array(self._index, as_bytes=True)))


def numpy_dtype(name: str) -> Any:
    import numpy

    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        try:
            import ml_dtypes
        except ImportError:
            raise UnsupportedError(f"numpy has no {name}: install ml_dtypes, or use .torch()") from None
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


class Version(Mapping[str, Tensor]):
    """A complete, verified version: its tensors by name, sorted. Immutable.

    Its memory is let go when it and all that was made from it are gone.
    """

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self._tensors = {row[0]: Tensor(weights, index, *row) for index, row in enumerate(weights.tensors())}
        self.id: str = weights.id
        """"blake3:..." of the content."""
        self.label: str = weights.label
        """"" where it has none."""

    @property
    def files(self) -> dict[str, bytes]:
        """The small files of the model: config.json, tokenizer.json, ..."""
        return self._weights.files()

    def numpy(self) -> dict[str, Any]:
        """All tensors as read-only numpy arrays, nothing copied."""
        return {name: tensor.numpy() for name, tensor in self._tensors.items()}

    def torch(self) -> dict[str, Any]:
        """All tensors as torch tensors, nothing copied: what `load_state_dict` takes."""
        return {name: tensor.torch() for name, tensor in self._tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"weft.Version({self.id[:18]}..., {self.label!r}, {len(self)} tensors)"

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and other.id == self.id
