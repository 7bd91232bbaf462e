"""Loads a version, or what changed, into a model of vLLM, so that it can be undone."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from .layout import Layout, Piece, Spec, Target, Window, storage_of
from .staging import Change, worker_threads

# Their parameters stay as they are loaded, but for the packed weights of a CPU.
_PLAIN_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)

_THREADS = 2  # that write elements, each those of other tensors

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Changes = Mapping[str, Change]
"""By name of the tensor."""


class Loading:
    """One update of a model. Nothing is changed before `commit`, but for `prepare(early=True)`; `undo` takes all back.

    Each parameter is loaded in one of three ways, by what its layer makes of it:

    - plain: it is what the loader copies. Elements are written straight into it.
    - packed: a linear layer on a CPU keeps its weight only as a library packed it. The weight is put together again,
      packed beside the old one, and takes its place at the commit.
    - otherwise, if there is one such parameter: vLLM's own layerwise reload does all of them, from whole tensors.
    """

    def __init__(self, model: torch.nn.Module, model_config: Any, layout: Layout,
                 old: Mapping[str, torch.Tensor] | None = None) -> None:
        """`old` is the version that was loaded last, where it is at hand: what the model still has of it need not be
        saved. It must stay as it is until this is done with."""
        self._old = old or {}
        self._model = model
        self._model_config = model_config
        self._layout = layout
        self._plain: list[Target] = []
        self._packed: list[Target] = []
        self.is_direct = not layout.unknown
        for target in layout.targets.values():
            module = model.get_submodule(target.module)
            if _is_plain(module, target):
                self._plain.append(target)
            elif _is_packed(module, target):
                self._packed.append(target)
            elif target.pieces:
                self.is_direct = False
        self._plain_names = {(target.module, target.parameter) for target in self._plain}
        self._arrived: set[str] = set()
        self._shadows: dict[str, types.SimpleNamespace] = {}  # by module
        self._room: torch.Tensor | None = None  # for the weight that is packed next
        self._undo: list[Any] = []
        self._early: set[str] = set()

    # --- Whole tensors

    def prepare(self, spec: Spec, tensors: Mapping[str, torch.Tensor], early: bool) -> None:
        """A tensor is there: packs what is complete now, beside the old. With `early` it is loaded at once."""
        name = spec.name
        if not self.is_direct or self._layout.specs.get(name) != spec:
            return
        self._arrived.add(name)
        for piece in self._layout.pieces[name]:
            target = self._layout.targets[piece.module, piece.parameter]
            if target in self._packed and all(other.tensor in self._arrived for other in target.pieces):
                self._shadows[target.module] = self._pack(target, self._assemble(target, tensors))
        if early:
            self._write(name, tensors)
            self._early.add(name)

    def commit(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads all of `tensors`. The values before are kept on the host."""
        if not self.is_direct:
            self._reload(tensors)
            return
        for name in tensors:
            if name not in self._early:
                self._write(name, tensors)
        for target in self._packed:
            if target.module not in self._shadows:
                self._shadows[target.module] = self._pack(target, self._assemble(target, tensors))
        self._swap()
        self._refresh(self._plain)

    def _write(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        for piece in self._layout.pieces[name]:
            if (piece.module, piece.parameter) not in self._plain_names:
                continue
            into = piece.target.on(self._parameter(piece))
            before = self._before(piece, into)
            self._undo.append(lambda into=into, before=before: into.copy_(before))
            into.copy_(piece.source.on(tensors[name]))

    def _before(self, piece: Piece, into: torch.Tensor) -> torch.Tensor:
        old = self._old.get(piece.tensor)
        if old is not None and old.dtype == into.dtype and into.device.type == "cpu":
            held = piece.source.on(old)
            if torch.equal(_integers(held), _integers(into)):
                return held
        return into.to("cpu", copy=True)

    # --- Elements

    def holds(self, changes: Changes, old: Mapping[str, torch.Tensor]) -> bool:
        """Are the elements that change what they are in `old`? False after something else has loaded the model."""
        wholes, others = self._plain_changes(changes)
        for piece, change in others:
            flat = self._parameter(piece).view(-1)
            places, inside = self._places(flat, piece, change)
            expected = old[piece.tensor].view(-1).index_select(0, change.listed[0][inside]).to(flat.dtype)
            held = flat.index_select(0, places)  # a third of what flat[places] takes on a CPU
            if not torch.equal(_integers(held.cpu()), _integers(expected)):
                return False
        with worker_threads(_THREADS) as threads:
            return all(threads.map(lambda whole: all(map(whole[0].fits, whole[1])), wholes))

    def prepare_changes(self, changes: Changes, old: Mapping[str, torch.Tensor]) -> None:
        """Packs anew what is packed, beside the old."""
        for target in self._packed:
            if any(piece.tensor in changes for piece in target.pieces):
                weight = self._assemble(target, old)
                for piece in target.pieces:
                    if piece.tensor in changes:
                        self._change(weight, piece, changes[piece.tensor])
                self._shadows[target.module] = self._pack(target, weight)

    def commit_changes(self, changes: Changes) -> None:
        """Writes elements over those that are there."""
        wholes, others = self._plain_changes(changes)
        for piece, change in others:
            flat = self._parameter(piece).view(-1)
            places, inside = self._places(flat, piece, change)
            self._undo.append(functools.partial(flat.index_copy_, 0, places, flat.index_select(0, places)))
            flat.index_copy_(0, places, change.listed[1][inside].to(device=flat.device, dtype=flat.dtype))
        with worker_threads(_THREADS) as threads:
            list(threads.map(self._write_wholes, wholes))
        self._swap()
        self._refresh(target for target in self._plain if any(piece.tensor in changes for piece in target.pieces))

    def _change(self, weight: torch.Tensor, piece: Piece, change: Change) -> None:
        flat = weight.view(-1)
        run = _run_of(piece, flat, self._layout.specs[piece.tensor])
        if run is not None:
            change.write(run)
        else:
            places, inside = self._places(flat, piece, change)
            flat[places] = change.listed[1][inside].to(flat.dtype)

    def _places(self, flat: torch.Tensor, piece: Piece, change: Change) -> tuple[torch.Tensor, Any]:
        """Where in the flat parameter the piece's changed elements lie, and which of all they are."""
        inside, places = _places_of(piece, change.listed[0], self._layout.specs[piece.tensor].shape)
        return places.to(flat.device), inside

    def _write_wholes(self, whole: tuple[Change, list[torch.Tensor]]) -> None:
        change, places = whole
        for place in places:
            change.write(place)
            self._undo.append(functools.partial(change.undo, place))

    def _plain_changes(self, changes: Changes) -> tuple[list[tuple[Change, list[torch.Tensor]]], list[tuple[Piece, Change]]]:
        """Those of tensors that plain parameters on the host have whole, as they are, with where; and all others."""
        wholes, others = [], []
        for name, change in changes.items():
            places = []
            for piece in self._layout.pieces[name]:
                if (piece.module, piece.parameter) not in self._plain_names:
                    continue
                run = _run_of(piece, self._parameter(piece).view(-1), self._layout.specs[name])
                if run is not None:
                    places.append(run)
                else:
                    others.append((piece, change))
            wholes.append((change, places))
        return wholes, others

    # --- Both

    def undo(self) -> None:
        """Puts back what was there before."""
        while self._undo:
            self._undo.pop()()

    def _parameter(self, piece: Piece | Target) -> torch.Tensor:
        return self._model.get_submodule(piece.module)._parameters[piece.parameter].data

    def _assemble(self, target: Target, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The weight, until the next one is put together."""
        elements = 1 + sum((size - 1) * stride for size, stride in zip(target.shape, target.stride))
        if self._room is None or self._room.dtype != target.dtype or self._room.numel() < elements:
            self._room = torch.empty(elements, dtype=target.dtype)
        weight = self._room.as_strided(target.shape, target.stride)
        for piece in target.pieces:
            piece.target.on(weight).copy_(piece.source.on(tensors[piece.tensor]))
        return weight

    def _pack(self, target: Target, weight: torch.Tensor) -> types.SimpleNamespace:
        module = self._model.get_submodule(target.module)
        shadow = types.SimpleNamespace(**{target.parameter: torch.nn.Parameter(weight, requires_grad=False)}, bias=None)
        module.quant_method.process_weights_after_loading(shadow)
        if self._room is not None and _keeps(shadow.cpu_linear, self._room):
            self._room = None
        return shadow

    def _swap(self) -> None:
        for name, shadow in self._shadows.items():
            module = self._model.get_submodule(name)
            self._undo.append(lambda module=module, before=module.cpu_linear: setattr(module, "cpu_linear", before))
            module.cpu_linear = shadow.cpu_linear

    def _refresh(self, targets: Iterable[Target]) -> None:
        """What a layer on a CPU keeps beside its weight is made anew."""
        changed = {id(self._model.get_submodule(target.module)._parameters[target.parameter]) for target in targets}
        for module in self._model.modules():
            weight = module._parameters.get("weight")
            # A function that keeps nothing uses the weight itself.
            keeps = getattr(getattr(module, "cpu_linear", None), "__closure__", None)
            if keeps and weight is not None and id(weight) in changed:
                self._undo.append(lambda module=module, before=module.cpu_linear: setattr(module, "cpu_linear", before))
                module.quant_method.process_weights_after_loading(module)

    def _reload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._undo.append(_Snapshot(self._model).restore)
        initialize_layerwise_reload(self._model)
        try:
            self._model.load_weights(iter(tensors.items()))
        finally:
            finalize_layerwise_reload(self._model, self._model_config)


class _Snapshot:
    """All that a reload may change, with the values on the host."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [
            (module, dict(module.__dict__), dict(module._parameters), dict(module._buffers)) for module in model.modules()
        ]
        tensors = {id(tensor): tensor for _, _, *both in self._modules for each in both for tensor in each.values()
                   if tensor is not None}
        self._values = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors.values()]

    def restore(self) -> None:
        for module, attributes, parameters, buffers in self._modules:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
        for tensor, value in self._values:
            tensor.data.copy_(value)


def _is_plain(module: torch.nn.Module, target: Target) -> bool:
    parameter = module._parameters.get(target.parameter)
    method = getattr(module, "quant_method", None)
    return (parameter is not None and (method is None or type(method) in _PLAIN_METHODS)
            and tuple(parameter.shape) == target.shape and tuple(parameter.stride()) == target.stride
            and parameter.dtype == target.dtype and _is_dense(target))


def _is_packed(module: torch.nn.Module, target: Target) -> bool:
    parameter = module._parameters.get(target.parameter)
    return (type(getattr(module, "quant_method", None)) is UnquantizedLinearMethod and hasattr(module, "cpu_linear")
            and target.parameter == "weight" and parameter is not None and parameter.numel() == 0)


def _is_dense(target: Target) -> bool:
    return Window(0, target.shape, target.stride) == Window.dense(target.shape)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers, which are equal where their bits are."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _is_whole(piece: Piece, shape: tuple[int, ...]) -> bool:
    """Does the piece take all of a tensor of that shape, and lay it out in its order?"""
    return piece.source == Window.dense(shape) and piece.target.stride == Window.dense(piece.target.shape).stride


def _run_of(piece: Piece, flat: torch.Tensor, spec: Spec) -> torch.Tensor | None:
    """Where in the flat parameter the tensor lies, if the piece is all of it, on the host, and as it came."""
    if flat.device.type != "cpu" or flat.dtype != spec.dtype or not _is_whole(piece, spec.shape):
        return None
    return flat[piece.target.offset:piece.target.offset + math.prod(spec.shape)]


def _keeps(function: Any, tensor: torch.Tensor) -> bool:
    """Has the function this memory in its closure?"""
    kept = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return any(isinstance(each, torch.Tensor) and storage_of(each) == storage_of(tensor) for each in kept)


def _places_of(piece: Piece, elements: torch.Tensor, shape: tuple[int, ...]) -> tuple[Any, torch.Tensor]:
    """Which of these elements of a tensor of that shape a piece has, and where they go in the flat parameter."""
    if _is_whole(piece, shape):
        return slice(None), elements + piece.target.offset
    whole = Window.dense(shape)
    # The window is a box in the tensor: its first element, and its edges.
    first, rest = [], piece.source.offset
    for stride in whole.stride:
        first.append(rest // stride if stride else 0)
        rest -= first[-1] * stride if stride else 0
    inside = torch.ones_like(elements, dtype=torch.bool)
    places = torch.full_like(elements, piece.target.offset)
    for axis, (size, stride) in enumerate(zip(shape, whole.stride)):
        at = elements // stride % size - first[axis]
        inside &= (at >= 0) & (at < piece.source.shape[axis])
        places += at * piece.target.stride[axis]
    return inside, places[inside]
