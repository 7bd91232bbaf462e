import os
import pathlib

from vllm.distributed.parallel_state import get_world_group
from weft.vllm.engine import WeftWeightTransferEngine


class FaultyEngine(WeftWeightTransferEngine):
    """Fails after it has staged (file `stage-RANK`) or loaded (`commit-RANK`); with `wrong-RANK` changes do not make the
    version that they are said to make."""

    def receive_weights(self, update_info):
        super().receive_weights(update_info)
        if self._is_asked_for("wrong") and self._staged.patch is not None:
            for tensors in (self._host.tensors, dict(self.model.named_parameters())):  # only all of it makes both right again
                tensors["model.norm.weight"].data.view(-1)[0] += 1
        self._fail("stage")

    def finish_weight_update(self):
        super().finish_weight_update()
        self._fail("commit")

    def _fail(self, where):
        if self._is_asked_for(where):
            raise RuntimeError(f"{where}-{get_world_group().rank} was asked for")

    def _is_asked_for(self, where):
        return (pathlib.Path(os.environ["WEFT_TEST_FAULTS"]) / f"{where}-{get_world_group().rank}").exists()
