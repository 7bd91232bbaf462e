"""What tests need inside of vLLM: a back end `weft_faulty`, which is weft's and fails where a file says so."""
import os


def register():
    import torch
    from vllm import _custom_ops
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    # vLLM 0.32 attends with AMX, for which it never asks Linux: in a model so small that no layer is oneDNN's, which asks, it dies.
    torch.cpu._init_amx()
    if os.environ.get("WEFT_TEST_PLAIN"):  # linear layers keep their weights as they are loaded, as on a GPU
        torch.cpu._is_amx_tile_supported = lambda: False
        _custom_ops._supports_onednn = False
    if "weft_faulty" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("weft_faulty", "weft_test_plugin.engine", "FaultyEngine")
