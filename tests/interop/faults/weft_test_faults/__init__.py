"""A back end `weft_faulty` for vLLM: weft's, which fails where a file says so. For tests."""


def register():
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    if "weft_faulty" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("weft_faulty", "weft_test_faults.engine", "FaultyEngine")
