"""`weft pull --base` and `weft serve --follow` by the deltas of a store, as processes."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from diff_test import nudged, read_safetensors, safetensors, weights
from store_test import Store
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Server, wait_for


def run(*arguments, **environment):
    return subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | environment)


class Deltas(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def push(self, store, path, parent=None):
        done = run("push", path, "--to", store.url, "--head", "main", *(["--parent", parent] if parent else []),
                   XDG_STATE_HOME=tempfile.mkdtemp(dir=self.folder))  # what was pushed last is not remembered
        self.assertEqual(done.returncode, 0, done.stderr)
        return store.get("/weft/v1/heads/main").json()["id"]

    def chain(self, store, length):
        """Files, and the ids of the versions in them, each made from the one before."""
        raw, ids, files = weights(100_000, 1), [], []
        for number in range(length):
            files.append(self.folder / f"{number}.safetensors")
            files[-1].write_bytes(safetensors({"w": ("BF16", [len(raw) // 2], raw), "still": ("F32", [2], b"12345678")}))
            ids.append(self.push(store, files[-1], ids[-1] if ids else None))
            raw = nudged(raw, 300, number)
        wait_for(lambda: store.metric("weft_store_deltas") == length - 1, "deltas")
        return files, ids

    def pull(self, store, version, base):
        done = run("pull", store.url, version, self.folder / "pulled", "--base", base, "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_what_is_at_hand_is_the_base_of_a_chain(self):
        with Store(self.folder / "store") as store:
            files, ids = self.chain(store, 3)
            report = self.pull(store, ids[2], files[0])
        self.assertEqual((report["id"], report["deltas"], report["delta_failure"]), (ids[2], 2, ""))
        self.assertLess(report["fetched_bytes"], report["total_bytes"] / 20)
        self.assertEqual(read_safetensors(self.folder / "pulled/model.safetensors"), read_safetensors(files[2]))

    def test_a_broken_delta_is_said_and_the_version_comes_in_full(self):
        with Store(self.folder / "store") as store:
            files, ids = self.chain(store, 2)
            pack, = (self.folder / "store/deltas").glob("*.pack")
            raw = bytearray(pack.read_bytes())
            raw[len(raw) // 2] ^= 1
            pack.write_bytes(raw)
            report = self.pull(store, ids[1], files[0])
            self.assertEqual(report["deltas"], 0)
            for part in ids[1], "tensor `w`, block 0", "another digest":
                self.assertIn(part, report["delta_failure"])
            self.assertEqual(read_safetensors(self.folder / "pulled/model.safetensors"), read_safetensors(files[1]))
            shutil.rmtree(self.folder / "pulled")
            done = run("pull", store.url, ids[1], self.folder / "pulled", "--have", files[0])
            self.assertEqual(done.returncode, 0)
            self.assertIn("no deltas, but all of it: delta of version", done.stderr)

    def test_another_base_is_as_good_as_none(self):
        with Store(self.folder / "store") as store:
            files, ids = self.chain(store, 2)
            other = self.folder / "other.safetensors"
            other.write_bytes(safetensors({"still": ("F32", [2], b"12345678")}))
            report = self.pull(store, ids[1], other)
            self.assertEqual((report["deltas"], report["delta_failure"], report["held_bytes"]), (0, "", 8))

    def model(self, number):
        """The model of a fixture, one weight of which is a little another."""
        folder = self.folder / f"model{number}"
        shutil.copytree(FIXTURES / "P_llama", folder)
        file = folder / "model.safetensors"
        raw = bytearray(file.read_bytes())
        length, = struct.unpack_from("<Q", raw)
        raw[8 + length + 2 * number] ^= 1
        file.write_bytes(raw)
        return folder

    def test_a_follower_takes_deltas_and_serves_what_comes_of_them(self):
        self.follow("--commit-mode", "set")

    def test_a_follower_that_patches_in_place_takes_them_too(self):
        self.follow("--commit-mode", "patch")

    def follow(self, *flags):
        with Store(self.folder / "store") as store:
            first = self.push(store, self.model(0))
            with Server(None, "--follow", store.url, *flags) as server:
                def pulls():
                    lines = server.get("/metrics").body.decode().splitlines()
                    return [float(next(line for line in lines if line.startswith("weft_weight_pulls_total{") and f'way="{way}"' in line).split()[-1])
                            for way in ("deltas", "full", "fallback")]

                self.assertEqual(server.weight_info()["id"], first)
                second = self.push(store, self.model(1), first)
                wait_for(lambda: server.weight_info()["id"] == second, "the second")
                server.wait_for_line("came by 1 delta")
                self.assertEqual(pulls(), [1, 0, 0])
                self.assertTrue(server.complete("A", 4)["text"])

                third = self.push(store, self.model(3))  # nobody says what it was made from
                wait_for(lambda: server.weight_info()["id"] == third, "the third")
                server.wait_for_line("came in full")
                self.assertEqual(pulls(), [1, 1, 0])


if __name__ == "__main__":
    unittest.main()
