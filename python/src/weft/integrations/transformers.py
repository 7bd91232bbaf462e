"""A callback of transformers' Trainer (and of TRL's, which are Trainers): publishes after optimizer steps.

    trainer = Trainer(model, ..., callbacks=[WeftCallback(weft.Publisher("http://engine:8000"))])
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from .._publisher import Publication, Publisher

__all__ = ["WeftCallback"]


class WeftCallback(TrainerCallback):
    """Publishes the model when training begins and after every `every`-th optimizer step.

    Args:
        publisher: where to. Its `is_sender` is set: only the first process sends.
        every: steps between two versions.
        label: of each version; `{step}` is the number of steps that made it.
        dtype: what floating point tensors are converted to, one at a time; default: as they are.
        wait: go on only when the version is served. False lets the next step run meanwhile, so the publisher must
            copy first (`snapshot=True` or `delta=True`); training waits when the next one is due.
        options: of each `Publisher.publish`: head, on_update, ...

    Sharded parameters (FSDP2, DTensor) are gathered one by one. A publish that fails ends training with its error.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        every: int = 1,
        label: str = "step-{step}",
        dtype: torch.dtype | None = None,
        wait: bool = True,
        **options: Any,
    ) -> None:
        if not wait and not publisher.copies:
            raise ValueError("wait=False needs a Publisher with snapshot=True or delta=True: "
                             "the next step changes the tensors while they are sent")
        self._publisher = publisher
        self._every = every
        self._label = label
        self._dtype = dtype
        self._wait = wait
        self._options = options
        self._under_way: Publication | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._publisher.is_sender = state.is_world_process_zero
        self._publish(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self._every == 0:
            self._publish(model, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._finish()

    def _publish(self, model: Any, step: int) -> None:
        self._finish()
        self._under_way = self._publisher.publish(
            model.state_dict(), label=self._label.format(step=step), dtype=self._dtype, **self._options)
        if self._wait:
            self._finish()

    def _finish(self) -> None:
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()
