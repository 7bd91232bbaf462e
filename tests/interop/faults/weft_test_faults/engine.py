import os
import pathlib

from vllm.distributed.parallel_state import get_world_group
from weft.vllm.engine import WeftWeightTransferEngine


class FaultyEngine(WeftWeightTransferEngine):
    """Fails after it has staged (file `stage-RANK`) or loaded (`commit-RANK`)."""

    def receive_weights(self, update_info):
        super().receive_weights(update_info)
        self._fail("stage")

    def finish_weight_update(self):
        super().finish_weight_update()
        self._fail("commit")

    def _fail(self, where):
        name = f"{where}-{get_world_group().rank}"
        if (pathlib.Path(os.environ["WEFT_TEST_FAULTS"]) / name).exists():
            raise RuntimeError(f"{name} was asked for")
