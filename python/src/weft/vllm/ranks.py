"""All ranks of a vLLM succeed in a call, or none does.

vLLM's workers run the calls of an update each for itself. Where some fail, three things go wrong in 0.32: the others keep
what they did; their sessions stay open, and after a finish that fails so does the one that failed, for good; and the
executor reads answers only up to the first failure, so that the next calls get the answers of this one. Hence each call is
followed by a vote of the ranks, all sessions are closed when one has failed, and the last rank alone, whose answer is read
last, says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm.v1.worker.gpu_worker import Worker

_CALLS = ("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update", "update_weights",
          "finish_weight_update")
_CLOSING = ("update_weights", "finish_weight_update")  # a failure ends the session


def bind_ranks() -> None:
    """Of this process's workers, whose engine is weft's."""
    for name in _CALLS:
        method = getattr(Worker, name)
        if not hasattr(method, "_weft"):
            setattr(Worker, name, _bound(name, method))


def _bound(name: str, method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> None:
        engine = self.weight_transfer_engine
        if not hasattr(engine, "settle"):
            return method(self, *arguments, **more)
        failure = None
        try:
            method(self, *arguments, **more)
        except Exception as error:  # noqa: BLE001: it is raised after the vote
            failure = error
        failure = engine.settle(name, failure, name in _CLOSING)
        if failure is None:
            return None
        if name in _CLOSING:
            self._weight_update_active = False
            engine.reset_weight_update_target()
        if self.rank == self.vllm_config.parallel_config.world_size - 1:
            raise failure
        return None

    call._weft = True  # type: ignore[attr-defined]
    return call
