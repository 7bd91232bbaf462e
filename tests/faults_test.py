"""Faults injected into real processes over real sockets: cut, stalled, slowed, doubled and corrupted connections, killed and stopped
processes, many idle connections. After each: nothing lost, nothing mixed, the next correct call works without a restart, nothing leaks.

WEFT_CHAOS_ROUNDS says how often the random cases are drawn (`make chaos`: many; CTest: few).
"""
import json
import os
import pathlib
import random
import resource
import signal
import socket
import tempfile
import threading
import time
import unittest

from fault_proxy import Fault, FaultProxy
from push_test import push
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Program, Server, wait_for

ROUNDS = int(os.environ.get("WEFT_CHAOS_ROUNDS", "2"))
SEED = int(os.environ.get("WEFT_CHAOS_SEED", "1"))
CONNECTIONS = int(os.environ.get("WEFT_CHAOS_CONNECTIONS", "500"))
# What U2x does not share with U1, as the push sends it.
PUSHED_BYTES = 537_000


def open_files(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def resident_bytes(process):
    pages = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Readers:
    """Requests that run all the time, against U1 (prints 1s) and U2x (prints 2s)."""

    def __init__(self, server, count=2):
        self.server, self.texts, self.faults = server, [], []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self):
        while not self._stop.is_set():
            try:
                text = self.server.complete("x" * 8, 24, ignore_eos=True, on_update="recompute")["text"]
            except Exception as error:  # pylint: disable=broad-except
                self.faults.append(repr(error))
                return
            self.texts.append(text)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)


class Faults(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        self.struck = 0

    def check_whole(self, server, expected="12"):
        """What the server serves is U1 or U2x, whole; returns which."""
        text = server.complete("x" * 8, 6)["text"]
        self.assertIn(text, [digit * 6 for digit in expected])
        return text[0]

    def check_next_push(self, server):
        done = push(FIXTURES / "U1", "--to", server.url, "--label", "back")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.check_whole(server), "1")
        self.assertEqual(server.get("/weft/v1/status").json()["state"], "idle")

    def check_readers(self, readers):
        self.assertEqual(readers.faults, [])
        self.assertTrue(readers.texts)
        for text in readers.texts:
            # A 3 or a 9 would be parts of two versions, in the weights or in the keys and values.
            self.assertRegex(text, r"\A[12]+\Z")

    def through(self, server, fault, *arguments):
        """Pushes U2x under faults. `self.struck` counts the pushes in which one came to pass."""
        with FaultProxy(server.port, fault) as proxy:
            done = push(FIXTURES / "U2x", "--to", proxy.url, "--label", "new", *arguments)
            self.struck += proxy.done.is_set()
            return done

    def test_cut_connections_resume(self):
        with Server("U1") as server, Readers(server) as readers:
            for _ in range(3 * ROUNDS):
                at = self.random.randrange(1, PUSHED_BYTES)
                upstream = self.random.random() < 0.7
                faults = [Fault(cut_at=at if upstream else at % 200, upstream=upstream) for _ in range(3)]
                done = self.through(server, faults)
                self.assertEqual(done.returncode, 0, f"cut at {at}: {done.stderr}")
                self.assertEqual(self.check_whole(server), "2")
                self.check_next_push(server)
        self.assertGreater(self.struck, 0)
        self.check_readers(readers)

    def test_flipped_bytes_never_get_in(self):
        with Server("U1") as server, Readers(server) as readers:
            for _ in range(3 * ROUNDS):
                at = self.random.randrange(1, PUSHED_BYTES)
                done = self.through(server, [Fault(flip_at=at), Fault(flip_at=at // 2)])
                # A byte of a head may make the request a wrong one, which is not tried again.
                which = self.check_whole(server)
                if done.returncode == 0:
                    self.assertEqual(which, "2")
                self.check_next_push(server)
        self.assertGreater(self.struck, 0)
        self.check_readers(readers)

    def test_slow_and_doubled_connections(self):
        with Server("U1") as server:
            for fault in Fault(bytes_per_s=2_000_000), Fault(twice=True), Fault(bytes_per_s=1000, upstream=False):
                done = self.through(server, lambda _, fault=fault: fault)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.check_whole(server), "2")
                self.check_next_push(server)

    def test_a_stalled_push_does_not_keep_others_out_for_ever(self):
        with Server("U1") as server, FaultProxy(server.port, lambda _: Fault(stall_at=500_000)) as proxy:
            with Program("push", FIXTURES / "U2x", "--to", proxy.url) as pusher:
                self.assertTrue(proxy.done.wait(TIMEOUT_S))
                status = server.get("/weft/v1/status").json()
                self.assertEqual(status["state"], "staging")
                late = push(FIXTURES / "P2", "--to", server.url)
                self.assertNotEqual(late.returncode, 0)
                self.assertIn(status["owner"], late.stderr)
                # Whoever holds the update may give it up; the pusher sleeps, or it would open it again.
                pusher.process.send_signal(signal.SIGSTOP)
                given_up = server.request("DELETE", "/weft/v1/uploads/" + status["upload"],
                                          headers={"Weft-Session": status["owner"]})
                self.assertEqual(given_up.status, 200)
                self.check_next_push(server)
                pusher.process.kill()

    def test_a_pusher_killed_at_any_time(self):
        with Server("U1") as server, Readers(server) as readers:
            for _ in range(4 * ROUNDS):
                with FaultProxy(server.port, lambda _: Fault(bytes_per_s=4_000_000)) as proxy:
                    with Program("push", FIXTURES / "U2x", "--to", proxy.url) as pusher:
                        time.sleep(self.random.random() * 0.5)
                        pusher.process.kill()
                        pusher.wait()
                self.check_whole(server)
                # The same command goes on where the killed one stopped.
                done = push(FIXTURES / "U2x", "--to", server.url)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.check_whole(server), "2")
                self.check_next_push(server)
        self.check_readers(readers)

    def test_a_stopped_pusher_goes_on(self):
        with Server("U1") as server, FaultProxy(server.port, lambda _: Fault(bytes_per_s=4_000_000)) as proxy:
            with Program("push", FIXTURES / "U2x", "--to", proxy.url) as pusher:
                wait_for(lambda: server.get("/weft/v1/status").json()["state"] != "idle", "the push begins")
                pusher.process.send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                self.check_whole(server)
                pusher.process.send_signal(signal.SIGCONT)
                self.assertEqual(pusher.wait(), 0, pusher.lines)
            self.assertEqual(self.check_whole(server), "2")

    def test_a_stopped_server_goes_on(self):
        with Server("U1") as server, FaultProxy(server.port, lambda _: Fault(bytes_per_s=4_000_000)) as proxy:
            with Program("push", FIXTURES / "U2x", "--to", proxy.url) as pusher:
                wait_for(lambda: server.get("/weft/v1/status").json()["state"] != "idle", "the push begins")
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                server.process.send_signal(signal.SIGCONT)
                self.assertEqual(pusher.wait(), 0, pusher.lines)
            self.assertEqual(self.check_whole(server), "2")

    def test_a_server_killed_under_a_push(self):
        for _ in range(ROUNDS):
            with Server("U1") as server:
                port = server.port
                with FaultProxy(port, lambda _: Fault(bytes_per_s=4_000_000)) as proxy:
                    with Program("push", FIXTURES / "U2x", "--to", proxy.url) as pusher:
                        time.sleep(self.random.random() * 0.4)
                        server.process.kill()
                        server.wait()
                        with Server("U1", port=port) as again:
                            pusher.wait()  # a commit before the kill is gone: the restarted server serves its folder
                            self.check_whole(again)
                            self.check_next_push(again)

    def test_a_state_directory_outlives_kill_9(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("U1", "--state-dir", folder) as server:
                done = push(FIXTURES / "U2x", "--to", server.url, "--label", "kept", "--json")
                pushed = json.loads(done.stdout)["results"][0]["id"]
                wait_for((pathlib.Path(folder) / "current").exists, "it is saved")
                server.process.kill()
                server.wait()
            with Server("U1", "--state-dir", folder) as again:
                self.assertEqual(self.check_whole(again), "2")
                info = again.get("/weft/v1/versions/current").json()
                self.assertEqual((info["id"], info["label"]), (pushed, "kept"))
                self.check_next_push(again)

    def test_nothing_leaks(self):
        with Server("U1") as server:
            def round_trip():
                for fault in Fault(cut_at=300_000), Fault(flip_at=300_000), Fault(cut_at=50, upstream=False):
                    self.through(server, [fault])
                    self.check_next_push(server)
            round_trip()
            wait_for(lambda: open_files(server.process) < 64, "connections close")
            files, memory = open_files(server.process), resident_bytes(server.process)
            for _ in range(3 * ROUNDS):
                round_trip()
            wait_for(lambda: open_files(server.process) <= files + 4, "connections of cut pushes close")
            self.assertLess(resident_bytes(server.process), memory + (32 << 20))

    def test_many_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(CONNECTIONS, hard - 100)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 100)), hard))
        with Server("U1") as server:
            before = open_files(server.process)
            idle = [socket.create_connection((server.host, server.port)) for _ in range(count)]
            try:
                # Half of them are in the middle of a request.
                for each in idle[::2]:
                    each.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
                self.check_whole(server)
                done = push(FIXTURES / "U2x", "--to", server.url)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.check_whole(server), "2")
                wait_for(lambda: open_files(server.process) >= before + count, "all connections are held")
                for each in idle[::2]:
                    each.sendall(b"\r\n")
                for each in idle[::2]:
                    each.settimeout(TIMEOUT_S)
                    self.assertTrue(each.recv(64).startswith(b"HTTP/1.1 200"))
            finally:
                for each in idle:
                    each.close()
            wait_for(lambda: open_files(server.process) <= before + 8, "connections close")


if __name__ == "__main__":
    unittest.main()
