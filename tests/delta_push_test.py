"""Versions that go as what changed since the last one: `weft push` to `weft serve` and to `weft store`, pulled again and compared byte for byte."""
import json
import pathlib
import random
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

from fault_proxy import Fault, FaultProxy
from fixtures.fixtures import safetensors
from push_test import Relay, push
from store_test import Store
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Program, Server

TENSORS, ELEMENTS = 6, 1 << 19  # of the random model; 1 MiB each
CHANGED_SHARE = 0.01
# The entropy of which 1 % of the elements change is 8.1 bits for each that does, and of a step up or down 1 bit.
BYTES_PER_CHANGED = 1.25


def tensors_of(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write(path, tensors):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(safetensors([(name, *tensor) for name, tensor in tensors.items()]))


def random_tensors(chance):
    """Weights of about 0.02 in bf16."""
    exponents = [struct.pack("<H", (0x3C00 - 128 * min(8, int(chance.expovariate(0.7)))) & 0x7F80) for _ in range(4096)]
    tensors = {}
    for i in range(TENSORS):
        mantissas = chance.randbytes(2 * ELEMENTS)
        high = b"".join(chance.choices(exponents, k=ELEMENTS))
        bits = int.from_bytes(mantissas, "little") & int.from_bytes(b"\x7f\x80" * ELEMENTS, "little")
        tensors[f"w{i}"] = ("BF16", [ELEMENTS], (bits | int.from_bytes(high, "little")).to_bytes(2 * ELEMENTS, "little"))
    return tensors


def changed(tensors, chance, share=CHANGED_SHARE):
    """A share of the elements of each tensor one step up or down. The number of changes, too."""
    result, count = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        changed_data = bytearray(data)
        for i in chance.sample(range(len(data) // 2), int(len(data) // 2 * share)):
            bits = int.from_bytes(data[2 * i:2 * i + 2], "little")
            step = -1 if bits & 0x7FFF and chance.random() < 0.5 else 1
            changed_data[2 * i:2 * i + 2] = (bits + step).to_bytes(2, "little")
            count += 1
        result[name] = (dtype, shape, bytes(changed_data))
    return result, count


class Recorder:
    """Passes one client's requests on and keeps them."""

    def __init__(self, port):
        self._port, self._sent = port, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            kept = bytearray()
            self._sent.append(kept)
            threading.Thread(target=self._pump, args=(client, server, kept), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, bytearray()), daemon=True).start()

    @staticmethod
    def _pump(source, sink, kept):
        try:
            while data := source.recv(1 << 16):
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def requests(self):
        """[(method, path, body)] of all connections."""
        found = []
        for sent in map(bytes, self._sent):
            while sent:
                head, _, rest = sent.partition(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
                method, path, _ = head.split(b" ", 2)
                found.append((method.decode(), path.decode(), rest[:length]))
                sent = rest[length:]
        return found

    def close(self):
        self._listener.close()


class DeltaPush(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        chance = random.Random(1)
        cls.old = random_tensors(chance)
        cls.new, cls.changes = changed(cls.old, chance)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.base, self.next = self.folder / "base.safetensors", self.folder / "next.safetensors"

    def write_both(self):
        write(self.base, self.old)
        write(self.next, self.new)

    def push_one(self, *arguments):
        done = push(*arguments, "--json", "--connections", "1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)["results"][0]

    def assert_holds(self, server, version, tensors):
        """What is pulled is `tensors`, byte for byte."""
        to = self.folder / f"pulled-{len(list(self.folder.iterdir()))}"
        done = subprocess.run([WEFT, "pull", server.url, version, to], capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        pulled = {}
        for file in to.glob("*.safetensors"):
            pulled |= tensors_of(file)
        self.assertEqual(pulled.keys(), tensors.keys())
        for name, tensor in tensors.items():
            self.assertEqual((pulled[name][0], list(pulled[name][1]), pulled[name][2]), (tensor[0], list(tensor[1]), tensor[2]), name)

    def assert_small(self, result, changes):
        self.assertGreater(result["payload_bytes"]["delta"], 0)
        self.assertEqual(result["payload_bytes"]["identity"], 0)
        frames = 48 + 44 + 200  # a frame, what is around the delta, its tables
        self.assertLess(result["sent_bytes"], BYTES_PER_CHANGED * changes + TENSORS * frames)

    def test_a_store_gets_the_next_version_in_few_bytes(self):
        self.write_both()
        with Store(self.folder / "store") as store:
            first = self.push_one(self.base, "--to", store.url)
            self.assertEqual(first["base"], "")
            second = self.push_one(self.next, "--to", store.url)

            self.assertEqual(second["base"], first["id"])
            self.assertEqual(second["fell_back"], 0)
            self.assert_small(second, self.changes)
            self.assert_holds(store, second["id"], self.new)
            self.assert_holds(store, first["id"], self.old)
            self.assertEqual(store.metric('weft_store_bytes_in_total{encoding="delta"}'), second["payload_bytes"]["delta"])
        with Store(self.folder / "store") as store:  # on another port: nothing is known of it
            self.assertEqual(self.push_one(self.base, "--to", store.url, "--base", second["id"], "--base-path", self.next)["id"], first["id"])

    def test_a_receiver_gets_the_next_version_in_few_bytes(self):
        model, later = self.folder / "model", self.folder / "later"
        old = tensors_of(FIXTURES / "P_llama/model.safetensors")
        new, changes = changed(old, random.Random(2))
        for folder, tensors in (model, old), (later, new):
            write(folder / "model.safetensors", tensors)
            for name in "config.json", "tokenizer.json":
                if (FIXTURES / "P_llama" / name).exists():
                    (folder / name).write_bytes((FIXTURES / "P_llama" / name).read_bytes())
        for flags in [], ["--commit-mode", "patch"]:
            with self.subTest(flags), Server(model, *flags) as server:
                same = self.push_one(model, "--to", server.url)
                self.assertEqual(same["sent_bytes"], 0)
                result = self.push_one(later, "--to", server.url)

                self.assertEqual(result["base"], same["id"])
                self.assertGreater(result["payload_bytes"]["delta"], 0)
                self.assertLess(result["sent_bytes"], 1.5 * changes + len(old) * 300)
                self.assertEqual(server.weight_info()["id"], result["id"])
                if not flags:
                    self.assert_holds(server, result["id"], new)
                page = server.get("/metrics").body.decode()
                self.assertRegex(page, r'weft_weight_bytes_total\{.*encoding="delta"')

    def test_without_deltas_and_without_the_old_files_all_goes(self):
        self.write_both()
        with Store(self.folder / "store") as store:
            self.push_one(self.base, "--to", store.url)
            whole = self.push_one(self.next, "--to", store.url, "--no-delta")
            self.assertEqual(whole["payload_bytes"]["delta"], 0)
            self.assertEqual(whole["sent_bytes"] - TENSORS * 48, whole["total_bytes"])
        with Store(self.folder / "other") as store:
            self.push_one(self.base, "--to", store.url)
            write(self.base, self.new)  # where the old version was
            written_over = self.push_one(self.base, "--to", store.url)
            self.assertEqual(written_over["base"], "")
            self.assert_holds(store, written_over["id"], self.new)

    def test_a_server_that_serves_something_else_gets_all(self):
        self.write_both()
        with Store(self.folder / "store") as store:
            port = store.port
            self.push_one(self.base, "--to", store.url)
        with Program("store", self.folder / "empty", "--port", str(port)) as other:
            url = other.wait_for_line(r"listening on (https?://\S+)").group(1)
            result = self.push_one(self.next, "--to", url)

            self.assertEqual(result["base"], "")
            self.assertEqual(result["payload_bytes"]["delta"], 0)

    def test_what_is_not_the_base_falls_back_to_full_blocks_and_says_so(self):
        self.write_both()
        wrong = self.old | changed({"w3": self.old["w3"]}, random.Random(3))[0]
        write(self.folder / "wrong.safetensors", wrong)
        with Store(self.folder / "store") as store:
            first = self.push_one(self.base, "--to", store.url)
            done = push(self.next, "--to", store.url, "--base", first["id"], "--base-path", self.folder / "wrong.safetensors", "--json")

            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)["results"][0]
            self.assertEqual(result["fell_back"], 1)
            self.assertIn("w3, block 0", done.stderr)
            self.assertLess(result["sent_bytes"], 2 * (2 * ELEMENTS))
            self.assert_holds(store, result["id"], self.new)

    def test_cut_in_the_middle_it_goes_on(self):
        self.write_both()
        with Store(self.folder / "store") as store:
            first = self.push_one(self.base, "--to", store.url)
            proxy = FaultProxy(store.port, [Fault(cut_at=20_000), Fault(cut_at=30_000)])
            self.addCleanup(proxy.close)
            result = self.push_one(self.next, "--to", proxy.url, "--base", first["id"], "--base-path", self.base)

            self.assertGreater(result["resumed"], 0)
            self.assertEqual(result["fell_back"], 0)
            self.assertEqual(result["payload_bytes"]["identity"], 0)
            self.assert_holds(store, result["id"], self.new)

    def test_killed_in_the_middle_the_same_command_goes_on(self):
        self.write_both()
        with Store(self.folder / "store") as store:
            first = self.push_one(self.base, "--to", store.url)
            arguments = [self.next, "--base", first["id"], "--base-path", self.base, "--connections", "1"]
            relay = Relay(store.port, 20_000)
            with Program("push", *arguments, "--to", relay.url) as pusher:
                self.assertTrue(relay.silent.wait(TIMEOUT_S))
                pusher.process.kill()
                pusher.wait()
            relay.close()
            self.assertEqual(len(store.versions()), 1)

            result = self.push_one(*arguments[:-2], "--to", store.url)

            self.assertGreater(result["skipped_bytes"], 0)
            self.assertEqual(result["payload_bytes"]["identity"], 0)
            self.assertGreater(result["payload_bytes"]["delta"], 0)
            self.assert_holds(store, result["id"], self.new)

    def test_bytes_that_break_anywhere_are_refused_and_change_nothing(self):
        self.write_both()
        with Store(self.folder / "store") as store:
            first = self.push_one(self.base, "--to", store.url)
            with Store(self.folder / "second") as second:  # where the upload is only recorded
                self.push_one(self.base, "--to", second.url)
                spy = Recorder(second.port)
                self.addCleanup(spy.close)
                self.push_one(self.next, "--to", spy.url, "--base", first["id"], "--base-path", self.base)
            skeleton = next(body for method, path, body in spy.requests() if path.endswith("/uploads"))
            body = next(body for method, path, body in spy.requests() if path.endswith("/blocks"))
            owner = {"Weft-Session": "by hand"}
            upload = store.request("POST", "/weft/v1/uploads", skeleton, owner).json()["upload"]
            length = int.from_bytes(body[8:12], "little")
            self.assertEqual(int.from_bytes(body[12:16], "little"), 3)
            places = [0, 4, 8, 9, 12, 16, 47]  # of the frame
            places += [48 + at for at in [*range(28), 28, 100, length // 2, length - 17, length - 16, length - 1]]
            for at in places:
                broken = bytearray(body)
                broken[at] ^= 0x40
                answer = store.request("PUT", f"/weft/v1/uploads/{upload}/blocks", bytes(broken[:48 + length]), owner)
                self.assertIn(answer.status, (400, 409, 415, 422), f"byte {at}: {answer}")
            for size in 1, 47, 48, 60, 48 + length - 1:
                answer = store.request("PUT", f"/weft/v1/uploads/{upload}/blocks", body[:size], owner)
                self.assertEqual(answer.status, 422, f"{size} bytes: {answer}")
            self.assertEqual([each["id"] for each in store.versions()], [first["id"]])

            self.assertEqual(store.request("PUT", f"/weft/v1/uploads/{upload}/blocks", body, owner).status, 200)
            self.assertEqual(store.request("PUT", f"/weft/v1/uploads/{upload}/blocks", body, owner).json(), {"verified": 0, "repeated": TENSORS, "busy": 0})
            self.assertEqual(store.request("POST", f"/weft/v1/uploads/{upload}/seal", b"", owner).status, 200)
            version = store.request("POST", f"/weft/v1/uploads/{upload}/commit", b"", owner).json()["id"]
            self.assert_holds(store, version, self.new)


if __name__ == "__main__":
    unittest.main()
