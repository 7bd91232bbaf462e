"""What torch has, published: dtypes, views, shards of FSDP; and what can be no version."""
import os
import tempfile
import unittest

import numpy
import torch
import torch.distributed
import torch.multiprocessing
import weft
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
from vllm_server import free_port

RANKS = 2


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 6)).to(torch.bfloat16)


def publish_shards(rank, url, port, ids):
    """One rank of a trainer whose parameters are sharded."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = make_model()
    fully_shard(model)
    mesh = DeviceMesh("cpu", range(RANKS))
    tensors = {**model.state_dict(), "split": distribute_tensor(torch.arange(24.0).reshape(6, 4), mesh, [Shard(1)])}
    with weft.Publisher(url, is_sender=rank == 0) as publisher:
        report = publisher.publish(tensors, head="main").result(60)
        if rank == 0:
            ids.put(report.id)
    torch.distributed.destroy_process_group()


class TorchTest(unittest.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.store = self.enterContext(weft.Store(folder))
        self.publisher = self.enterContext(weft.Publisher(self.store))

    def publish(self, tensors, **more):
        return self.publisher.publish(tensors, head="main", **more).result(60)

    def test_every_dtype(self):
        names = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
                 "float64", "float8_e4m3fn", "float8_e5m2")
        tensors = {name: torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, name)) for name in names}
        self.publish(tensors)
        for name, tensor in weft.pull(self.store).torch().items():
            self.assertEqual(tensor.dtype, tensors[name].dtype)
            self.assertTrue(torch.equal(tensor.view(torch.uint8), tensors[name].view(torch.uint8)), name)

    def test_views_are_what_they_show(self):
        plain = torch.arange(24.0, dtype=torch.bfloat16).reshape(4, 6)
        for view in (plain.t(), plain[::2, 1:4], plain[1], plain.expand(2, 4, 6), torch.complex(plain.float(), -plain.float()).conj().imag):
            with self.subTest(tuple(view.stride())):
                id_ = self.publish({"t": view}).id
                self.assertEqual(self.publish({"t": view.clone(memory_format=torch.contiguous_format)}).id, id_)
                self.assertTrue(torch.equal(weft.pull(self.store)["t"].torch(), view))

    def test_parameters_that_require_gradients_and_a_cast(self):
        model = make_model().float()
        self.publish(dict(model.named_parameters()), dtype=torch.bfloat16)
        for name, tensor in weft.pull(self.store).torch().items():
            self.assertTrue(torch.equal(tensor, model.state_dict()[name].to(torch.bfloat16)), name)

    def test_what_can_be_no_version_is_named_and_nothing_moves(self):
        before = self.publish({"t": torch.ones(3)}).id
        for value in (torch.ones(2, 2).to_sparse(), torch.ones(3, device="meta"), torch.ones(3, dtype=torch.complex64),
                      torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), [1, 2], "text", None):
            with self.subTest(repr(value)[:40]), self.assertRaisesRegex((weft.InvalidArgumentError, weft.UnsupportedError), "^broken"):
                self.publish({"broken": value})
        with self.assertRaisesRegex(weft.InvalidArgumentError, "state_dict"):
            self.publish(make_model())
        self.assertEqual(weft.pull(self.store).id, before)

    def test_dlpack_goes_both_ways(self):
        tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)

        class Producer:
            def __dlpack__(self, **options):
                return tensor.__dlpack__(**options)

            def __dlpack_device__(self):
                return tensor.__dlpack_device__()

        self.publish({"t": Producer(), "n": torch.from_numpy(numpy.ones(2))})
        pulled = weft.pull(self.store)
        self.assertTrue(torch.equal(torch.from_dlpack(pulled["t"]), tensor))
        self.assertEqual(pulled["n"].numpy().tolist(), [1, 1])

    def test_shards_are_gathered_tensor_by_tensor(self):
        whole = {**make_model().state_dict(), "split": torch.arange(24.0).reshape(6, 4)}
        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as other, weft.Publisher(other) as publisher:
            expected = publisher.publish(whole).result(60).id
        context = torch.multiprocessing.get_context("spawn")
        ids = context.SimpleQueue()
        torch.multiprocessing.spawn(publish_shards, (self.store.url, free_port(), ids), RANKS)
        self.assertEqual(ids.get(), expected)
        self.assertEqual(weft.pull(self.store).id, expected)


if __name__ == "__main__":
    unittest.main()
