"""`weft push` as a process: what it prints, how it ends, and that the same command again goes on where a killed one stopped."""
import contextlib
import json
import pathlib
import socket
import subprocess
import tempfile
import threading
import unittest

from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Program, Server


def tensor_of(model, name):
    """The tensor of a fixture, alone in a safetensors file."""
    data = (FIXTURES / model / "model.safetensors").read_bytes()
    header_bytes = int.from_bytes(data[:8], "little")
    tensor = json.loads(data[8:8 + header_bytes])[name]
    begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
    header = json.dumps({name: tensor | {"data_offsets": [0, end - begin]}}).encode()
    return len(header).to_bytes(8, "little") + header + data[begin:end]


def push(*arguments):
    return subprocess.run([WEFT, "push", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


class Relay:
    """Stands between a pusher and a server. Lets `limit` bytes through to the server, then goes silent with open connections until
    resume() or close()."""

    def __init__(self, port, limit):
        self.target, self.left = port, limit
        self.silent, self._go = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        try:
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                self._sockets += [client, server]
                threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()
        except OSError:
            pass

    def _pump(self, source, sink, counted):
        try:
            while data := source.recv(65536):
                if counted:
                    with self._lock:
                        now, later = data[:self.left], data[self.left:]
                        self.left -= len(now)
                    sink.sendall(now)
                    if later:
                        self.silent.set()
                        self._go.wait(TIMEOUT_S)
                    data = later
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for each in source, sink:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def resume(self):
        with self._lock:
            self.left = 1 << 60
        self._go.set()

    def close(self):
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # close() alone would wait for the thread that reads from it
            each.close()


class Push(unittest.TestCase):
    def test_says_what_it_did_to_each_server(self):
        with Server("P_llama") as first, Server("P_llama") as second:
            done = push(FIXTURES / "P2", "--to", first.url, "--to", second.url, "--label", "two", "--json")

            self.assertEqual(done.returncode, 0, done.stderr)
            results = json.loads(done.stdout)["results"]
            self.assertEqual([result["to"] for result in results], [first.url, second.url])
            self.assertEqual(len({result["id"] for result in results}), 1)
            for server in first, second:
                self.assertEqual(server.weight_info()["weight_version"], "two")
                self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_one_dead_server_does_not_keep_the_others_from_the_weights(self):
        with Server("P_llama") as alive:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
            done = push(FIXTURES / "P2", "--to", dead, "--to", alive.url)

            self.assertEqual(done.returncode, 8, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn(dead, done.stderr)
            self.assertEqual(alive.complete("A", 4)["text"], "CEGI")

    def test_what_cannot_be_sent_is_refused_before_anything_is(self):
        nobody = "http://127.0.0.1:9"
        for flags in (["--label", b"\xff"], ["--label", "a\x1b[31m"], ["--origin", "a\nb"], ["--session", "a\r\nX: b"], ["--session", ""],
                      ["--if-match", "blake3:" + "0" * 64], ["--head", "main", "--if-match", ""], ["--base", "blake3:00000000"]):
            with self.subTest(flags):
                done = subprocess.run([WEFT, "push", FIXTURES / "P2", "--to", nobody, *flags], capture_output=True, text=True, timeout=TIMEOUT_S)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(flags[-2], done.stderr)

    def test_the_same_push_again_sends_nothing(self):
        with Server("P_llama") as server:
            push(FIXTURES / "P2", "--to", server.url)
            again = json.loads(push(FIXTURES / "P2", "--to", server.url, "--json").stdout)["results"][0]

            self.assertEqual(again["sent_bytes"], 0)
            self.assertEqual(again["skipped_bytes"], again["total_bytes"])

    def push_one(self, *arguments):
        """The one result of a push that works."""
        done = push(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)["results"][0]

    def test_one_tensor_with_a_base_leaves_the_others(self):
        with Server("P_llama") as server, tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "head.safetensors"
            file.write_bytes(tensor_of("P2", "lm_head.weight"))
            self.assertNotEqual(push(file, "--to", server.url).returncode, 0, "the others are missing")
            base = server.weight_info()["id"]

            result = self.push_one(file, "--to", server.url, "--base", base, "--partial")

            self.assertEqual(result["total_bytes"], 313_344)
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")
            self.assertEqual(self.push_one(FIXTURES / "P2", "--to", server.url)["id"], result["id"])

    def test_what_differs_little_from_the_base_goes_as_the_difference(self):
        with Server("P_llama") as server:
            base = server.weight_info()["id"]

            result = self.push_one(FIXTURES / "P2", "--to", server.url, "--base", base, "--base-path", FIXTURES / "P_llama")

            self.assertGreater(result["payload_bytes"]["delta"], 0)
            self.assertLess(result["sent_bytes"], 10_000)
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_zstd_makes_it_shorter(self):
        with Server("P_llama") as server:
            result = self.push_one(FIXTURES / "P2", "--to", server.url, "--encoding", "zstd")

            self.assertGreater(result["payload_bytes"]["zstd"], 0)
            self.assertLess(result["sent_bytes"], 313_344 // 2)
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_without_digests_ahead_every_byte_goes(self):
        with Server("P_llama") as server:
            result = self.push_one(FIXTURES / "P2", "--to", server.url, "--announce", "never")

            self.assertEqual(result["payload_bytes"]["identity"], result["total_bytes"])
            self.assertEqual(result["skipped_bytes"], 0)
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_after_kill_9_the_same_command_goes_on_where_it_stopped(self):
        # The blocks that U2x does not share with P are lm_head (313,344 bytes), o_proj (663,552) and v_proj (221,184), sent in this
        # order: 900,000 bytes end inside the second.
        with Server("P_llama") as server:
            relay = Relay(server.port, 900_000)
            with Program("push", FIXTURES / "U2x", "--to", relay.url, "--connections", "1") as pusher:
                self.assertTrue(relay.silent.wait(TIMEOUT_S))
                self.assertEqual(server.complete("A", 4)["text"], "BCDE")
                pusher.process.kill()
                pusher.wait()
            relay.close()
            self.assertEqual(server.weight_info()["weight_version"], "default")

            done = push(FIXTURES / "U2x", "--to", server.url, "--label", "late", "--json")

            self.assertEqual(done.returncode, 0, done.stdout)
            result = json.loads(done.stdout)["results"][0]
            self.assertGreaterEqual(result["sent_bytes"], 663_552 + 221_184)
            self.assertLess(result["sent_bytes"], 663_552 + 221_184 + 313_344)
            self.assertEqual(server.complete("x" * 8, 3)["text"], "222")
            self.assertEqual(server.weight_info()["weight_version"], "late")

    def test_who_wakes_up_late_does_not_undo_a_newer_version(self):
        with Server("P_llama") as server:
            relay = Relay(server.port, 900_000)
            with Program("push", FIXTURES / "U2x", "--to", relay.url, "--connections", "1", "--label", "old") as sleeper:
                self.assertTrue(relay.silent.wait(TIMEOUT_S))
                status = server.get("/weft/v1/status").json()
                dropped = server.request("DELETE", "/weft/v1/uploads/" + status["upload"], headers={"Weft-Session": status["owner"]})
                self.assertEqual(dropped.status, 200)
                self.assertEqual(push(FIXTURES / "P2", "--to", server.url, "--label", "new").returncode, 0)
                relay.resume()

                self.assertEqual(sleeper.wait(), 5, sleeper.lines)

            relay.close()
            self.assertEqual(server.weight_info()["weight_version"], "new")
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_someone_else_waits_for_the_lease(self):
        with Server("P_llama") as server:
            held = server.post("/start_weight_update", headers={"Weft-Session": "somebody"})
            self.assertEqual(held.status, 200)

            done = push(FIXTURES / "P2", "--to", server.url)

            self.assertEqual(done.returncode, 5)
            self.assertIn("somebody", done.stderr)
            self.assertEqual(server.complete("A", 4)["text"], "BCDE")


if __name__ == "__main__":
    unittest.main()
