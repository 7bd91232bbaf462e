"""vLLM's own HTTPVLLMWeightSyncClient, from its wheel and unchanged, drives `weft serve`."""
import tempfile
import unittest

import requests
import torch
import weft
from safetensors.torch import load_file
from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource
from vllm_server import free_port
from weft.vllm.trainer import WeftTrainerInitInfo, WeftTrainerWeightTransferEngine
from weft_testing import FIXTURES, Server


def turned():
    """Other weights for P_qwen3."""
    tensors = load_file(FIXTURES / "P_qwen3" / "model.safetensors")
    tensors["model.norm.weight"] = -tensors["model.norm.weight"]
    return tensors


class VllmClientTest(unittest.TestCase):
    def test_weights_that_were_pushed(self):
        with Server("P_qwen3") as server, weft.Publisher(server.url) as publisher:
            client = HTTPVLLMWeightSyncClient(server.url)
            client.init_weight_transfer_engine({})
            before = server.complete("A", 4)["text"]
            for round_ in range(3):
                client.start_weight_update()
                staged = publisher.publish(turned(), stage_only=True, session="anonymous").result(60)
                client.update_weights({})
                self.assertEqual(server.complete("A", 4)["text"], before)
                client.finish_weight_update(f"step-{round_}")
                self.assertEqual(server.weight_info()["weight_version"], f"step-{round_}")
                self.assertEqual(server.weight_info()["id"], staged.id)
                self.assertNotEqual(server.complete("A", 4)["text"], before)
                publisher.publish(FIXTURES / "P_qwen3").result(60)
            client.shutdown_weight_transfer_engine()

    def test_weights_that_are_pulled_from_a_store(self):
        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as store, weft.Publisher(store) as publisher, \
                Server("P_qwen3", "--allow-source", store.url) as server:
            published = publisher.publish(turned(), label="trained").result(60)
            client = HTTPVLLMWeightSyncClient(server.url)
            client.init_weight_transfer_engine({})
            client.start_weight_update()
            client.update_weights({"version": "trained", "source": store.url})
            client.finish_weight_update("step-1")
            self.assertEqual(server.weight_info()["weight_version"], "step-1")
            for name, tensor in weft.pull(server.url).torch().items():
                self.assertTrue(torch.equal(tensor, weft.pull(store, published.id)[name].torch()), name)

    def test_wefts_trainer_engine_brings_the_weights(self):
        model = torch.nn.Module()
        for name, tensor in turned().items():
            place = model
            *path, last = name.split(".")
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, torch.nn.Module())
                place = getattr(place, part)
            place.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
        port = free_port()
        with Server("P_qwen3", "--allow-source", f"http://127.0.0.1:{port}") as server:
            engine = WeftTrainerWeightTransferEngine.trainer_init(
                WeftTrainerInitInfo(rank=0, port=port), client=HTTPVLLMWeightSyncClient(server.url), source=ModuleSource(model))
            before = server.complete("A", 4)["text"]
            engine.send_weights("step-1")
            self.assertEqual(server.weight_info()["weight_version"], "step-1")
            self.assertNotEqual(server.complete("A", 4)["text"], before)
            model.model.norm.weight.data.neg_()
            engine.send_weights("step-2")
            self.assertEqual(server.complete("A", 4)["text"], before)
            engine.shutdown()

    def test_nccl_is_refused_before_anything_changes(self):
        with Server("P_qwen3") as server:
            before = server.weight_info()
            client = HTTPVLLMWeightSyncClient(server.url)
            with self.assertRaises(requests.HTTPError) as raised:
                client.init_weight_transfer_engine({"master_address": "10.0.0.1", "master_port": 51216, "rank_offset": 1,
                                                    "world_size": 2, "packed": True})
            self.assertEqual(raised.exception.response.status_code, 400)
            self.assertEqual(server.weight_info(), before)

    def test_a_call_out_of_order_is_an_error(self):
        with Server("P_qwen3") as server:
            client = HTTPVLLMWeightSyncClient(server.url)
            with self.assertRaises(requests.HTTPError) as raised:
                client.update_weights({})
            self.assertEqual(raised.exception.response.status_code, 409)


if __name__ == "__main__":
    unittest.main()
