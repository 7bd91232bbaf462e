"""The worker's side of the back end `weft`: pulls a version from a store or from the trainer, and loads it.

`update_weights` stages and verifies it, `finish_weight_update` loads it. After each the ranks vote: if one has failed,
all go on with what they have, and every one of them raises.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from .._errors import ConflictError, InvalidArgumentError
from .layout import Layout, Spec, trace
from .loading import Loading
from .ranks import bind_ranks
from .staging import Host, Staged, open_source, specs_of

logger = init_logger("vllm." + __name__)  # vLLM shows its own alone

_TEXT_BYTES = 1024


@dataclasses.dataclass
class WeftInitInfo(WeightTransferInitInfo):
    """`init_info`, all of it optional."""

    source: str | None = None
    """URL of the store, or of the trainer's origin or publisher, where an update does not say."""
    key: str | None = None
    """Its read key."""
    ca_file: str | None = None
    """PEM, for https."""
    threads: int = 2
    """Connections; and threads that apply deltas."""
    keep: bool = True
    """Keep the loaded version in host memory, so that the next may come as what changed."""
    verify: str = "background"
    """When what changes make of a version is held to its digests: "full": before it is loaded; "background": right after
    the finish. A delta has a digest of its own, and one of the values that it replaces, which are checked in any case."""


@dataclasses.dataclass
class WeftUpdateInfo(WeightTransferUpdateInfo):
    """`update_info`, all of it optional."""

    version: str = "#main"
    """An id, "#head", a label, or the first 8 hex digits or more of an id."""
    source: str | None = None
    """URL of who has it; default: that of `init_info`."""
    early: bool = False
    """Load each tensor as soon as it is verified, while others are on their way, instead of at the finish. For servers
    that are paused: what is generated before the finish would be of the new weights, under the old label."""


class WeftWeightTransferEngine(WeightTransferEngine[WeftInitInfo, WeftUpdateInfo]):
    init_info_cls = WeftInitInfo
    update_info_cls = WeftUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        bind_ranks()
        self._init = WeftInitInfo()
        self._host = _host_of(self._init)
        self._layout: tuple[list[Spec], Layout] | None = None
        self._loading: Loading | None = None
        self._staged: Staged | None = None
        self._client: Any = None  # of the pull under way

    # --- What vLLM calls, on every rank; ranks.py has each followed by settle()

    def init_transfer_engine(self, init_info: WeftInitInfo) -> None:
        host = _host_of(init_info)
        self._drop()
        self._init = init_info
        self._host = host

    def start_weight_update(self) -> None:
        self._drop()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: WeftUpdateInfo) -> None:
        """Stages this rank's part."""
        self._drop()
        source = update_info.source or self._init.source
        if source is None:
            raise InvalidArgumentError("no source: name the URL of a store or of the trainer in update_info or init_info")
        self._client = open_source(source, self._init.key, self._init.ca_file)
        version = self._client.resolve(update_info.version)
        if version == self._host.settled_id():  # something else may have been loaded meanwhile
            self._staged = self._host.again()
        elif not self._stage_changes(version):
            self._stage(version, update_info.early)
        self._synchronize()

    @torch.no_grad()
    def finish_weight_update(self) -> None:
        """Loads what is staged. With nothing staged there is nothing to load, and vLLM moves its label alone."""
        if self._staged is None:
            return
        if self._loading is None:
            self._loading = self._new_loading()
        if self._staged.patch is not None:
            self._loading.commit_changes(self._staged.changes)
        else:
            self._loading.commit(self._staged.tensors)
        self._synchronize()

    def shutdown(self) -> None:
        if self._client is not None:
            self._client.cancel()
        self._drop()

    def settle(self, call: str, failure: Exception | None, closes: bool) -> Exception | None:
        """After `call` has run on this rank, and failed or not: all ranks hear how it went on each. Returns why it failed,
        if it did on one; `closes`: then every one has again what it had before the update."""
        votes = _gather("" if failure is None else str(failure) or type(failure).__name__,
                        self._staged.id if self._staged else "")
        failed = {rank: words for rank, (words, _) in enumerate(votes) if words}
        if not failed and len({staged for _, staged in votes}) > 1:
            failed[0] = "the ranks found different versions: name one by its id"
        if failed:
            if closes:
                self._drop()
            if failure is None or len(votes) > 1:
                rank, words = next(iter(failed.items()))
                failure = ConflictError(f"{call}: {words} (rank {rank} of {len(votes)}; all go on with what they have)")
            return failure
        if call == "finish_weight_update" and self._staged is not None:
            self._host.take(self._staged)
            logger.info("weft: %s is loaded", self._staged.id)
            self._staged = self._loading = None
        return None

    # --- Stages and loads

    @torch.no_grad()
    def _stage_changes(self, version: str) -> bool:
        staged = self._host.try_pull_changes(self._client, version)
        if staged is None or self._layout is None:
            return False
        loading = self._new_loading()
        if not loading.is_direct or not loading.holds(staged.changes, self._host.tensors):
            return False
        loading.prepare_changes(staged.changes, self._host.tensors)
        self._loading, self._staged = loading, staged
        return True

    @torch.no_grad()
    def _stage(self, version: str, early: bool) -> None:
        if self._layout is not None:
            self._loading = self._new_loading()
        self._staged = self._host.pull(self._client, version, functools.partial(self._arrived, early, {}))
        specs = specs_of(self._staged.tensors)
        if self._layout is None or self._layout[0] != specs:
            if self._loading is not None:
                self._loading.undo()
            self._layout = (specs, trace(self.model, specs))
            self._loading = self._new_loading()

    def _new_loading(self) -> Loading:
        assert self._layout is not None
        return Loading(self.model, self.model_config, self._layout[1], self._host.tensors)

    def _arrived(self, early: bool, tensors: dict[str, torch.Tensor], spec: Spec, tensor: torch.Tensor) -> None:
        tensors[spec.name] = tensor
        if self._loading is not None:
            self._loading.prepare(spec, tensors, early)

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    @torch.no_grad()
    def _drop(self) -> None:
        loading, self._loading = self._loading, None
        staged, self._staged = self._staged, None
        if loading is not None:
            loading.undo()
            self._synchronize()
        if staged is not None:
            self._host.drop(staged)


def _host_of(init_info: WeftInitInfo) -> Host:
    if init_info.verify not in ("full", "background"):
        raise InvalidArgumentError(f"verify: {init_info.verify!r} is neither 'full' nor 'background'")
    return Host(init_info.keep, init_info.verify == "full", init_info.threads)


def _gather(*texts: str) -> list[list[str]]:
    """These texts of every rank, cut to what is enough to tell."""
    group = get_world_group()
    if group.world_size == 1:
        return [list(texts)]
    mine = torch.zeros(len(texts), _TEXT_BYTES, dtype=torch.uint8)
    for row, text in zip(mine, texts):
        data = text.encode()[:_TEXT_BYTES]
        row[:len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
    all_ranks = [torch.empty_like(mine) for _ in range(group.world_size)]
    torch.distributed.all_gather(all_ranks, mine, group=group.cpu_group)
    return [[bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows] for rows in all_ranks]
