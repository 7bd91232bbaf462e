"""Publishing to real servers, `weft serve` and `weft store`: what goes well, and what people get wrong."""
import http.server
import json
import pathlib
import tempfile
import threading
import time
import unittest

import ml_dtypes
import numpy
import weft
from weft_testing import FIXTURES, Listener, Server


def fixture(name):
    """Tensors of a checkpoint of fixtures.py, as numpy arrays."""
    data = (FIXTURES / name / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    kinds = {"F32": numpy.float32, "F16": numpy.float16, "BF16": ml_dtypes.bfloat16}
    tensors = {}
    for key, entry in json.loads(data[8:8 + size]).items():
        if key != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[key] = numpy.frombuffer(data[8 + size + begin:8 + size + end],
                                            kinds[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors


class ServeTest(unittest.TestCase):
    def test_an_engine_takes_what_is_published(self):
        tensors = fixture("P_llama")
        with Server("P_llama") as server, weft.Publisher(server.url, delta=True) as publisher:
            before = server.complete("ab", max_tokens=4)["text"]
            start = server.weight_info()["id"]
            self.assertEqual(publisher.publish(tensors, label="same").result(60).id, start)
            tensors["model.norm.weight"] *= -1
            report = publisher.publish(tensors, label="turned").result(60)
            self.assertEqual(server.weight_info()["weight_version"], "turned")
            self.assertEqual(server.weight_info()["id"], report.id)
            self.assertNotEqual(server.complete("ab", max_tokens=4)["text"], before)
            self.assertGreater(report.skipped_bytes, 0)
            tensors["model.norm.weight"] *= -1
            publisher.publish(tensors, label="back").result(60)
            self.assertEqual(server.weight_info()["id"], start)
            self.assertEqual(server.complete("ab", max_tokens=4)["text"], before)

    def test_bfloat16_of_ml_dtypes(self):
        tensors = {"t": numpy.arange(6, dtype=numpy.float32).astype(ml_dtypes.bfloat16)}
        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as store, weft.Publisher(store) as publisher:
            publisher.publish(tensors, head="main").result(60)
            pulled = weft.pull(store)["t"]
            self.assertEqual(pulled.dtype, "bfloat16")
            numpy.testing.assert_array_equal(pulled.numpy(), tensors["t"])

    def test_keys_that_are_wrong_or_old(self):
        with Server("P_llama", "--admin-key", "new", "--read-key", "look") as server:
            for key, error in [(None, weft.UnauthenticatedError), ("old", weft.UnauthenticatedError)]:
                with self.subTest(key), weft.Publisher(server.url, key=key) as publisher:
                    with self.assertRaises(error) as raised:
                        publisher.publish(fixture("P_llama")).result(60)
                    self.assertIsInstance(raised.exception, PermissionError)
            with self.assertRaises(PermissionError):
                weft.pull(server.url)
            self.assertEqual(len(weft.pull(server.url, key="look")), len(fixture("P_llama")))

    def test_tensors_that_the_engine_does_not_have(self):
        tensors = fixture("P_llama")
        with Server("P_llama") as server, weft.Publisher(server.url) as publisher:
            before = server.weight_info()
            wrong = dict(tensors, other=numpy.ones(3, numpy.float32))
            with self.assertRaisesRegex(weft.InvalidArgumentError, "other"):
                publisher.publish(wrong).result(60)
            wrong = dict(tensors)
            wrong["model.norm.weight"] = wrong["model.norm.weight"][:-1]
            with self.assertRaisesRegex(weft.InvalidArgumentError, "model.norm.weight"):
                publisher.publish(wrong).result(60)
            del wrong["model.norm.weight"]
            with self.assertRaisesRegex(weft.InvalidArgumentError, "model.norm.weight"):
                publisher.publish(wrong).result(60)
            self.assertEqual(server.weight_info(), before)

    def test_a_tensor_that_changes_while_it_is_published(self):
        tensors = {"t": numpy.zeros(8_000_000, numpy.float32)}
        changing = threading.Event()

        def change(_done, _total):  # after it was hashed, before it is sent
            if not changing.is_set():
                tensors["t"][:] = 1
                changing.set()

        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as store, weft.Publisher(store) as publisher:
            publication = publisher.publish(tensors, head="main", progress=change)
            with self.assertRaises(weft.CorruptError) as raised:
                publication.result(60)
            self.assertIn("t", str(raised.exception))
            with self.assertRaises(weft.NotFoundError):
                weft.pull(store)
            publisher.publish(tensors, head="main").result(60)
            self.assertEqual(weft.pull(store)["t"].numpy()[0], 1)

    def test_a_server_that_is_gone_comes_back(self):
        tensors = {"t": numpy.arange(20_000_000, dtype=numpy.float32)}
        with tempfile.TemporaryDirectory() as folder:
            store = Listener("store", folder, "--port", "0")
            port = store.port
            dead = threading.Event()

            def kill(done, _total):
                if done > 0 and not dead.is_set():
                    store.process.kill()
                    dead.set()

            with weft.Publisher(store.url, retries=50) as publisher:
                publication = publisher.publish(tensors, head="main", progress=kill)
                dead.wait(60)
                store.wait()
                with Listener("store", folder, "--port", str(port)) as again:
                    report = publication.result(120)
                    self.assertGreater(report.resumed, 0)
                    self.assertEqual(again.get("/weft/v1/heads/main").json()["id"], report.id)

    def test_a_publish_is_cancelled_while_it_runs(self):
        tensors = {"t": numpy.zeros(20_000_000, numpy.float32)}
        with Listener("store", tempfile.mkdtemp(), "--port", "0") as store, weft.Publisher(store.url) as publisher:
            publication = publisher.publish(tensors, head="main", progress=lambda *_: publication.cancel())
            with self.assertRaises(weft.CancelledError):
                publication.result(60)
            publisher.publish({"t": numpy.ones(3)}, head="main").result(60)

    def test_nobody_listens(self):
        with weft.Publisher("http://127.0.0.1:9", retries=0) as publisher, self.assertRaises(ConnectionError) as raised:
            publisher.publish({"t": numpy.ones(3)}).result(60)
        self.assertIn("127.0.0.1:9", str(raised.exception))

    def test_what_is_no_url(self):
        with self.assertRaises(ValueError):
            weft.Publisher("engine:8000/x y")
        with self.assertRaises(ValueError):
            weft.Publisher(3)

    def test_a_server_that_is_no_weft_says_so(self):
        class Other(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(404)
                self.end_headers()
                self.wfile.write(b"<html>Not here</html>")

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{other.server_port}"
            with weft.Publisher(url) as publisher, self.assertRaises(weft.NotFoundError) as raised:
                publisher.publish({"t": numpy.ones(3)}).result(60)
            self.assertIn("weft", str(raised.exception))
            self.assertIn(url, str(raised.exception))
            with self.assertRaises(weft.NotFoundError):
                weft.pull(url)
            other.shutdown()

    def test_other_threads_run_while_it_blocks(self):
        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as store, weft.Publisher(store) as publisher:
            publication = publisher.publish({"t": numpy.zeros(50_000_000, numpy.float32)}, head="main")
            turns = 0
            while not publication.done():
                turns += 1
                time.sleep(0)
            publication.result()
            self.assertGreater(turns, 10)


if __name__ == "__main__":
    unittest.main()
