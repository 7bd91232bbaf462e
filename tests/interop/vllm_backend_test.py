"""vLLM on a CPU takes weights from weft: twenty updates, updates that fail, two ranks."""
import concurrent.futures
import pathlib
import tempfile
import unittest

import torch
import weft
from fault_proxy import Fault, FaultProxy
from safetensors.torch import load_file, save_file
from store_test import Store
from vllm_server import SUM_OF_NOTHING, CallError, Vllm, make_checkpoint, wrong_sums

UPDATES = 20
COLD_STARTS = (6, 20)  # updates that a server of its own starts with


def trained(tensors, seed, share=0.01):
    """A step of training: so many of each tensor's elements change."""
    random = torch.Generator().manual_seed(seed)
    after = {}
    for name, tensor in tensors.items():
        flat = tensor.clone().view(-1)
        places = torch.randint(0, flat.numel(), (max(1, int(flat.numel() * share)),), generator=random)
        flat[places] += (torch.randn(places.numel(), generator=random) * 0.1).to(flat.dtype)
        after[name] = flat.view(tensor.shape)
    return after


def save_model(folder, like, tensors):
    """A checkpoint with other weights."""
    folder.mkdir()
    for file in like.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).symlink_to(file)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class Backend(unittest.TestCase):
    """A model, an origin that offers its versions, and a server. Subclasses say how it is started."""

    FLAGS = ()
    ENVIRONMENT = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.faults = cls.folder / "faults"
        cls.faults.mkdir()
        cls.model = make_checkpoint(cls.folder / "model")
        cls.start = load_file(cls.model / "model.safetensors")
        cls.origin = cls.enterClassContext(weft.Origin())
        cls.publisher = cls.enterClassContext(weft.Publisher(cls.origin, delta=True))
        cls.vllm = cls.enterClassContext(Vllm(cls.model, *cls.FLAGS, backend="weft_faulty", faults=cls.faults, **cls.ENVIRONMENT))
        cls.vllm.call("/init_weight_transfer_engine", {"init_info": {"source": cls.origin.url}})

    def publish(self, tensors):
        return self.publisher.publish(tensors).result(60)

    def state(self):
        return self.vllm.label(), self.vllm.sums(), self.vllm.greedy()

    def assert_fails(self, reason, info, label="never"):
        """The update fails, and nothing has moved."""
        before = self.state()
        with self.assertRaises(CallError) as raised:
            self.vllm.update(info, label)
        self.assertEqual(raised.exception.status, 500)
        self.assertRegex(raised.exception.body, reason)
        with self.assertRaises(CallError):  # the session is closed, so that nothing can be labelled
            self.vllm.call("/finish_weight_update", {"weight_version": label})
        self.assertEqual(self.state(), before)

    def assert_works(self, tensors, label):
        self.vllm.update({"version": self.publish(tensors).id}, label)
        self.assertEqual(self.vllm.label(), label)


class VllmTest(Backend):
    def test_twenty_updates(self):
        tensors, outputs = self.start, {}
        for step in range(1, UPDATES + 1):
            # All changes every fifth time, and then it comes in full; early loading where nothing is generated.
            tensors = trained(tensors, step, share=1 if step % 5 == 0 else 0.01)
            report = self.publish(tensors)
            is_early = step % 10 == 0
            if is_early:
                self.vllm.call("/pause?mode=keep")
            self.vllm.update({"version": report.id, "early": is_early}, f"step-{step}")
            if is_early:
                self.vllm.call("/resume")
            with self.subTest(step=step):
                sums = self.vllm.sums()
                self.assertEqual(wrong_sums(sums, tensors), [])
                self.assertEqual(self.vllm.label(), f"step-{step}")
            if step in COLD_STARTS:
                outputs[step] = self.vllm.greedy(), sums, tensors
        self.assertNotEqual(*(output[0] for output in outputs.values()))
        for step, (output, sums, weights) in outputs.items():
            with self.subTest(cold_start=step), \
                    Vllm(save_model(self.folder / f"cold-{step}", self.model, weights), backend=None) as cold:
                self.assertEqual(cold.greedy(), output)
                self.assertEqual(cold.sums(), sums)

    def test_a_version_that_is_not_there(self):
        self.assert_fails("no version", {"version": "absent"})
        self.assert_works(trained(self.start, 101), "after")

    def test_a_server_that_is_not_there_or_no_weft(self):
        self.assert_fails("DisconnectedError|connect", {"source": "http://127.0.0.1:9"})
        self.assert_fails("is it a weft server", {"source": self.vllm.url})

    def test_a_source_that_wants_another_key(self):
        self.addCleanup(self.vllm.call, "/init_weight_transfer_engine", {"init_info": {"source": self.origin.url}})
        with weft.Origin(admin_key="all", read_key="look") as origin, weft.Publisher(origin) as publisher:
            publisher.publish(trained(self.start, 109)).result(60)
            for key in (None, "old"):
                self.vllm.call("/init_weight_transfer_engine", {"init_info": {"source": origin.url, "key": key}})
                self.assert_fails("Bearer with the right key", {})
            self.vllm.call("/init_weight_transfer_engine", {"init_info": {"source": origin.url, "key": "look"}})
            self.vllm.update({}, "with-a-key")
        self.assertEqual(self.vllm.label(), "with-a-key")

    def test_versions_of_another_model(self):
        for change, reason in (({"model.unknown.weight": torch.ones(3)}, "model.unknown.weight.*does not take"),
                               ({"model.norm.weight": torch.ones(7)}, "model.norm.weight.*does not take")):
            with self.subTest(reason):
                self.assert_fails(reason, {"version": self.publish({**self.start, **change}).id})
        lacking = {name: tensor for name, tensor in self.start.items() if "layers.1.self_attn.k_proj" not in name}
        self.assert_fails("lacks.*layers.1.self_attn.qkv_proj", {"version": self.publish(lacking).id})
        self.assert_works(trained(self.start, 102), "after")

    def test_a_fault_while_it_is_staged_or_loaded(self):
        self.assert_works(self.start, "start")
        for share in (0.01, 1):  # as changes, and in full
            for where in ("stage-0", "commit-0"):
                with self.subTest(where, share=share):
                    version = self.publish(trained(self.start, 103, share)).id
                    (self.faults / where).touch()
                    self.assert_fails("was asked for", {"version": version})
                    self.assert_fails("was asked for", {"version": version, "early": True})
                    (self.faults / where).unlink()
        self.assert_works(trained(self.start, 104), "after")

    def test_changes_that_make_another_version(self):
        self.addCleanup(self.vllm.call, "/init_weight_transfer_engine", {"init_info": {"source": self.origin.url}})
        for verify, word in (("background", "is loaded and wrong"), ("full", "it is pulled in full")):
            with self.subTest(verify):
                self.vllm.call("/init_weight_transfer_engine", {"init_info": {"source": self.origin.url, "verify": verify}})
                tensors = trained(self.start, 110)
                self.assert_works(tensors, "before")
                (self.faults / "wrong-0").touch()  # the base goes wrong: at once, and before the next changes come
                tensors = trained(tensors, 111)
                self.assert_works(tensors, "wrong")
                (self.faults / "wrong-0").unlink()
                tensors = trained(tensors, 112)
                self.assert_works(tensors, "after")
                self.assertIn(word, self.vllm.log())
                self.assertEqual(wrong_sums(self.vllm.sums(), tensors), [])
        self.assert_fails_to_begin({"verify": "never"}, "'never' is neither")

    def assert_fails_to_begin(self, info, reason):
        with self.assertRaisesRegex(CallError, reason):
            self.vllm.call("/init_weight_transfer_engine", {"init_info": info})

    def test_a_store_that_is_killed_in_the_middle(self):
        tensors = trained(self.start, 105, share=1)
        with Store(self.folder / "store") as store:
            with weft.Publisher(store.url) as publisher:
                publisher.publish(tensors, label="killed", head="main").result(60)
            # The pull has its manifest, and some of the data.
            with FaultProxy(store.port, lambda index: Fault(stall_at=20_000, upstream=False)) as proxy, \
                    concurrent.futures.ThreadPoolExecutor(1) as pool:
                pending = pool.submit(self.assert_fails, "DisconnectedError|connect", {"version": "killed", "source": proxy.url})
                self.assertTrue(proxy.done.wait(60))
                store.process.kill()
                proxy.close()
                pending.result(120)
        with Store(self.folder / "store") as store:
            self.vllm.update({"version": "killed", "source": store.url}, "revived")
        self.assertEqual(self.vllm.label(), "revived")
        self.assertEqual(wrong_sums(self.vllm.sums(), tensors), [])

    def test_the_model_was_loaded_by_something_else_meanwhile(self):
        self.assert_works(trained(self.start, 106), "before")
        self.vllm.call("/collective_rpc", {"method": "reload_weights"})
        after = trained(trained(self.start, 106), 107)
        self.assert_works(after, "after")
        self.assertEqual(wrong_sums(self.vllm.sums(), after), [])

    def test_spans_say_which_version_made_a_token(self):
        self.assert_works(self.start, "old")
        body = {"model": "m", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 400, "temperature": 0, "ignore_eos": True}}
        generated = self.vllm.metric("vllm:generation_tokens_total")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pending = pool.submit(self.vllm.call, "/inference/v1/generate", body)
            while self.vllm.metric("vllm:generation_tokens_total") < generated + 4:
                pass
            self.vllm.call("/pause?mode=keep")
            self.assert_works(trained(self.start, 108), "new")
            self.vllm.call("/resume")
            choice = pending.result(120)["choices"][0]
        spans = [(span["version"], span["start"], span["end"]) for span in choice["weight_versions"]]
        self.assertEqual([version for version, _, _ in spans], ["old", "new"])
        self.assertEqual((spans[0][1], spans[0][2], spans[1][2]), (0, spans[1][1], len(choice["token_ids"])))


class Reloading(Backend):
    """What vLLM's own loader makes of a checkpoint is what weft's updates make."""

    def check_against_a_reload(self, tensors):
        updated = self.vllm.sums(), self.vllm.greedy()
        with tempfile.TemporaryDirectory() as folder:
            path = save_model(pathlib.Path(folder) / "model", self.model, tensors)
            self.vllm.call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
            self.vllm.call("/reset_prefix_cache")
            self.assertEqual((self.vllm.sums(), self.vllm.greedy()), updated)

    def check_updates(self):
        tensors = self.start
        for step, share in enumerate((1, 0.01, 0.01, 1)):
            tensors = trained(tensors, step, share)
            self.assert_works(tensors, f"step-{step}")
            if step in (2, 3):
                self.check_against_a_reload(tensors)
                self.assert_works(tensors, f"again-{step}")

    def check_faults(self, rank):
        self.assert_works(self.start, "start")
        for share in (0.01, 1):
            for where in (f"stage-{rank}", f"commit-{rank}"):
                with self.subTest(where, share=share):
                    version = self.publish(trained(self.start, 103, share)).id
                    (self.faults / where).touch()
                    self.assert_fails("asked for|failed, so all go on", {"version": version})
                    (self.faults / where).unlink()
        after = trained(self.start, 104)
        self.assert_works(after, "after")
        self.check_against_a_reload(after)


class PackedTest(Reloading):
    """Linear layers in float32, which vLLM keeps only as oneDNN packs them, on any x86."""

    FLAGS = ("--dtype", "float32")

    def test_updates(self):
        self.check_updates()

    def test_a_fault(self):
        self.check_faults(0)


class PlainTest(Reloading):
    """Linear layers that keep their weights as they are loaded, as on a GPU, on any CPU."""

    ENVIRONMENT = {"WEFT_TEST_PLAIN": "1"}

    def test_updates(self):
        self.check_updates()
        self.assertNotIn(SUM_OF_NOTHING, self.vllm.sums().values())

    def test_a_fault(self):
        self.check_faults(0)


class TwoRanksTest(Reloading):
    FLAGS = ("--tensor-parallel-size", "2")
    ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}

    def test_updates(self):
        self.check_updates()

    def test_a_fault_in_one_rank_keeps_both(self):
        self.check_faults(1)


if __name__ == "__main__":
    unittest.main()
