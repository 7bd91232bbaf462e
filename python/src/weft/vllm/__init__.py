"""weft as a weight transfer back end of vLLM: `--weight-transfer-config '{"backend": "weft"}'`.

vLLM finds it by itself where both are installed in one environment. docs/vllm.md is the guide.
"""

from __future__ import annotations

__all__ = ["register"]

_BACKEND = "weft"


def register() -> None:
    """Called by vLLM in each of its processes (entry point `vllm.general_plugins`)."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory

    for factory, module, name in (
        (WeightTransferEngineFactory, "weft.vllm.engine", "WeftWeightTransferEngine"),
        (WeightTransferTrainerFactory, "weft.vllm.trainer", "WeftTrainerWeightTransferEngine"),
    ):
        if _BACKEND not in factory._registry:
            factory.register_engine(_BACKEND, module, name)
