"""Faults injected into real stores and pulls over real sockets: cut, stalled and corrupted connections, killed processes, a full disk.
After each: nothing lost, nothing mixed, the next correct call works; `weft store fsck` finds no fault.

WEFT_CHAOS_ROUNDS says how often the random cases are drawn (`make chaos`: many; CTest: few).
"""
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

from fault_proxy import Fault, FaultProxy
from faults_test import ROUNDS, SEED, open_files
from push_test import push
from store_test import Store
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Listener, Program, Server, wait_for

VERSIONS = ("U1", "U2x", "P_llama", "P2")
PULLED_BYTES = 2_600_000


def pull(url, version, folder, *flags):
    return subprocess.run([WEFT, "pull", url, version, str(folder), *flags], capture_output=True, text=True, timeout=TIMEOUT_S)


def fsck(folder):
    return subprocess.run([WEFT, "store", "fsck", str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S)


class StoreFaults(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scratch = pathlib.Path(folder.name)
        self.folder = self.scratch / "store"
        self.pulls = 0

    def push_all(self, store):
        for name in VERSIONS:
            done = push(FIXTURES / name, "--to", store.url, "--label", name)
            self.assertEqual(done.returncode, 0, done.stderr)

    def new_folder(self):
        self.pulls += 1
        return self.scratch / f"pulled-{self.pulls}"

    def check_folder(self, folder, name):
        """The pulled folder is the pushed one: same id."""
        ids = [subprocess.run([WEFT, "inspect", str(path), "--json"], capture_output=True, text=True, timeout=TIMEOUT_S).stdout
               for path in (folder, FIXTURES / name)]
        self.assertIn('"id"', ids[0])
        self.assertEqual(*[text.split('"id":"')[1].split('"')[0] for text in ids])

    def check_store(self, store):
        """All that was pushed is there, whole, and one more push works."""
        self.push_all(store)
        for name in VERSIONS:
            folder = self.new_folder()
            done = pull(store.url, name, folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.check_folder(folder, name)

    def check_disk(self):
        checked = fsck(self.folder)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_pulls_under_faults(self):
        with Store(self.folder) as store:
            self.push_all(store)
            struck = 0
            for round_ in range(4 * ROUNDS):
                at = self.random.randrange(1, PULLED_BYTES)
                fault = (Fault(cut_at=at, upstream=False), Fault(flip_at=at, upstream=False),
                         Fault(cut_at=at % 300), Fault(bytes_per_s=3_000_000, upstream=False))[round_ % 4]
                name = self.random.choice(VERSIONS)
                folder = self.new_folder()
                with FaultProxy(store.port, [fault, fault]) as proxy:
                    done = pull(proxy.url, name, folder)
                    struck += proxy.done.is_set()
                if done.returncode != 0:  # a flipped byte of a head may be past mending
                    self.assertIsNotNone(fault.flip_at, done.stderr)
                    self.assertFalse(folder.exists(), "a pull that failed leaves no folder under its name")
                    self.assertEqual(pull(store.url, name, folder).returncode, 0)
                self.check_folder(folder, name)
            self.assertGreater(struck, 0)
            files = open_files(store.process)
            self.check_store(store)
            wait_for(lambda: open_files(store.process) <= files + 4, "connections close")
        self.check_disk()

    def test_pullers_killed_at_any_time(self):
        with Store(self.folder) as store:
            self.push_all(store)
            for _ in range(3 * ROUNDS):
                name, folder = self.random.choice(VERSIONS), self.new_folder()
                with FaultProxy(store.port, lambda _: Fault(bytes_per_s=6_000_000, upstream=False)) as proxy:
                    with Program("pull", proxy.url, name, folder) as puller:
                        time.sleep(self.random.random() * 0.5)
                        puller.process.kill()
                        puller.wait()
                if folder.exists():
                    self.check_folder(folder, name)
                else:
                    self.assertEqual(pull(store.url, name, folder).returncode, 0)
                    self.check_folder(folder, name)
        self.check_disk()

    def test_a_store_killed_under_pushes(self):
        for _ in range(3 * ROUNDS):
            name = self.random.choice(VERSIONS)
            with Store(self.folder) as store:
                with FaultProxy(store.port, lambda _: Fault(bytes_per_s=6_000_000)) as proxy:
                    with Program("push", FIXTURES / name, "--to", proxy.url, "--label", name) as pusher:
                        time.sleep(self.random.random() * 0.5)
                        store.process.kill()
                        store.wait()
                        pusher.process.kill()
            self.check_disk()
        with Store(self.folder) as store:
            self.check_store(store)
        self.check_disk()

    def test_a_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("needs to mount a small tmpfs")
        self.folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "none", self.folder], check=False).returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.folder], check=False)
        with Store(self.folder) as store:
            self.assertEqual(push(FIXTURES / "U1", "--to", store.url, "--label", "U1").returncode, 0)
            ballast = self.folder / "ballast"
            with contextlib.suppress(OSError):
                ballast.write_bytes(bytes(5 << 20))
            refused = push(FIXTURES / "P2", "--to", store.url, "--label", "P2")
            self.assertNotEqual(refused.returncode, 0)
            self.assertRegex(refused.stderr.lower(), "disk has 0 left|space|full")
            self.assertEqual([each["labels"] for each in store.versions()], [["U1"]])
            folder = self.new_folder()
            self.assertEqual(pull(store.url, "U1", folder).returncode, 0)
            self.check_folder(folder, "U1")

            ballast.unlink()
            done = push(FIXTURES / "P2", "--to", store.url, "--label", "P2")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.check_disk()

    def test_a_follower_whose_source_dies_goes_on_serving(self):
        with Store(self.folder) as store:
            done = push(FIXTURES / "U1", "--to", store.url, "--head", "main")
            self.assertEqual(done.returncode, 0, done.stderr)
            with Server("U1", "--follow", store.url + "#main") as server:
                self.assertEqual(push(FIXTURES / "U2x", "--to", store.url, "--head", "main").returncode, 0)
                wait_for(lambda: server.complete("x" * 8, 4)["text"] == "2222", "the follower follows")
                port = store.port
                store.process.kill()
                store.wait()
                self.assertEqual(server.complete("x" * 8, 4)["text"], "2222")
                with Listener("store", self.folder, "--port", port) as again:
                    self.assertEqual(push(FIXTURES / "U1", "--to", store.url, "--head", "main").returncode, 0)
                    wait_for(lambda: server.complete("x" * 8, 4)["text"] == "1111", "the follower follows again")
                    self.assertEqual(again.stop(signal.SIGTERM), 128 + signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
