"""Where each tensor of a checkpoint goes in vLLM's parameters.

vLLM's own loaders say it: each is run once on tensors without data, and the copies that it would make are written down.
So fused projections, slices of tensor parallelism and padded embeddings need no table here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta
from vllm.model_executor.model_loader.reload.utils import (
    get_layer_params_buffers,
    get_layer_tensors,
    get_tensor_load_numel,
)

from .._errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class Spec:
    """A tensor of a version."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Window:
    """A strided view of the elements of a tensor, from its first."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, view: torch.Tensor) -> Window:
        return cls(view.storage_offset(), tuple(view.shape), tuple(view.stride()))

    @classmethod
    def dense(cls, shape: tuple[int, ...]) -> Window:
        """All elements, in C order."""
        stride, elements = [], 1
        for size in reversed(shape):
            stride.append(elements)
            elements *= max(size, 1)
        return cls(0, tuple(shape), tuple(reversed(stride)))

    def on(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.offset)


@dataclasses.dataclass(frozen=True)
class Piece:
    """One copy that vLLM's loader makes: a part of a checkpoint's tensor becomes a part of a parameter."""

    tensor: str
    module: str
    parameter: str
    source: Window
    target: Window


@dataclasses.dataclass(frozen=True)
class Target:
    """A parameter as it is loaded, before anything is made of it."""

    module: str
    parameter: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one model takes tensors of these names, dtypes and shapes."""

    targets: dict[tuple[str, str], Target]
    pieces: dict[str, tuple[Piece, ...]]
    """By name of the tensor; none for one that vLLM leaves out (another rank's, or a copy of another)."""
    unknown: frozenset[str]
    """Tensors of which more is made than copies of boxes in them."""
    specs: dict[str, Spec]
    """By name of the tensor."""


class _Copies(TorchDispatchMode):
    """Writes down copies of `probe` into tensors of `places` (by storage) instead of making them."""

    # They give padding its value, which does not change.
    _CONSTANT = ("aten::fill_", "aten::zero_")

    def __init__(self, probe: torch.Tensor, places: dict[int, tuple[str, str]]) -> None:
        super().__init__()
        self._probe = storage_of(probe)
        self._places = places
        self.copies: list[tuple[tuple[str, str], Window, Window]] = []
        self.is_known = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = args[0] if args and func._schema.is_mutable and isinstance(args[0], torch.Tensor) else None
        place = None if written is None else self._places.get(storage_of(written))
        if place is None or func._schema.name in self._CONSTANT:
            return func(*args, **(kwargs or {}))
        source = args[1] if func._schema.name == "aten::copy_" else None
        if isinstance(source, torch.Tensor) and storage_of(source) == self._probe and source.shape == written.shape:
            self.copies.append((place, Window.of(source), Window.of(written)))
        else:
            self.is_known = False
        return written


def storage_of(tensor: torch.Tensor) -> int:
    """Its memory, whatever part of it the tensor is."""
    return tensor.untyped_storage()._cdata


def _places(model: torch.nn.Module) -> dict[int, list[tuple[torch.nn.Module, str]]]:
    """Who has each parameter, the first of them its owner."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return places


@contextmanager
def _as_loaded(model: torch.nn.Module) -> Iterator[None]:
    """The model with its parameters as they were before loading, without data; afterwards it is what it was."""
    layers = []
    tied = [places for places in _places(model).values() if len(places) > 1]
    try:
        for layer in model.modules():
            info = layerwise.get_layerwise_info(layer)
            info.kernel_tensors = get_layer_params_buffers(layer)
            info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
            layers.append((layer, info))
            restore_layer_on_meta(layer, info)
            for tensor in get_layer_tensors(layer).values():
                if hasattr(tensor, "weight_loader"):  # a reload of vLLM's own leaves it wrapped
                    tensor.weight_loader = layerwise._get_original_loader(tensor)
        for (module, name), *others in tied:
            for other, other_name in others:
                other._parameters[other_name] = module._parameters[name]
        yield
    finally:
        for layer, info in layers:
            layerwise._place_kernel_tensors(layer, info)
            info.reset()


@torch.no_grad()
def trace(model: torch.nn.Module, specs: Iterable[Spec]) -> Layout:
    """Asks vLLM's loaders where each tensor goes. Changes nothing.

    Raises InvalidArgumentError for names or shapes that the model does not take, and for parameters that would be left
    without a value.
    """
    pieces: dict[str, tuple[Piece, ...]] = {}
    unknown = set()
    with _as_loaded(model):
        names = {module: name for name, module in model.named_modules()}
        parameters = {
            (names[module], name): module._parameters[name] for (module, name), *_ in _places(model).values()
        }
        places = {storage_of(parameter): place for place, parameter in parameters.items()}
        known = {}
        for spec in specs:
            known[spec.name] = spec
            probe = torch.empty(spec.shape, dtype=spec.dtype, device="meta")
            copies = _Copies(probe, places)
            try:
                with copies:
                    model.load_weights([(spec.name, probe)])
            except Exception as error:
                raise InvalidArgumentError(
                    f"{spec.name}: vLLM's model does not take it as {str(spec.dtype).removeprefix('torch.')} "
                    f"{list(spec.shape)}: {type(error).__name__}: {error}") from error
            pieces[spec.name] = tuple(Piece(spec.name, *place, source, target) for place, source, target in copies.copies)
            if not copies.is_known or not all(_is_box(spec, source) for _, source, _ in copies.copies):
                unknown.add(spec.name)
        if not unknown:
            _check_complete(model, parameters, pieces)
        by_place: dict[tuple[str, str], list[Piece]] = {place: [] for place in parameters}
        for each in pieces.values():
            for piece in each:
                by_place[piece.module, piece.parameter].append(piece)
        targets = {
            place: Target(*place, tuple(parameter.shape), tuple(parameter.stride()), parameter.dtype, tuple(by_place[place]))
            for place, parameter in parameters.items()
        }
    return Layout(targets, pieces, frozenset(unknown), known)


def _is_box(spec: Spec, window: Window) -> bool:
    """Is it a part of the tensor along its own axes?"""
    whole = Window.dense(spec.shape).stride
    return len(window.shape) == len(spec.shape) and all(
        ours == theirs or size == 1 for ours, theirs, size in zip(window.stride, whole, window.shape))


def _check_complete(model: torch.nn.Module, parameters: dict[tuple[str, str], torch.Tensor],
                    pieces: dict[str, tuple[Piece, ...]]) -> None:
    """Does each parameter get all of its elements?"""
    loaded = dict.fromkeys(parameters, 0)
    for each in pieces.values():
        for piece in each:
            loaded[piece.module, piece.parameter] += torch.Size(piece.target.shape).numel()
    missing = []
    for (module_name, name), parameter in parameters.items():
        count = loaded[module_name, name]
        is_padded = hasattr(model.get_submodule(module_name), "num_embeddings_padded")
        if count == 0 or (not is_padded and count < get_tensor_load_numel(parameter)):
            missing.append(f"{module_name}.{name}")
    if missing:
        raise InvalidArgumentError(f"the version lacks tensors for {', '.join(missing[:8])}"
                                   + (f" and {len(missing) - 8} more" if len(missing) > 8 else ""))
