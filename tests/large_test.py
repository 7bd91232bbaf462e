#!/usr/bin/env python3
"""One tensor larger than 2 GiB and one larger than 4 GiB, pushed to a store and read back. Writes 10 GB, so `make chaos` runs it and CTest
does not."""
import contextlib
import json
import pathlib
import tempfile
import unittest

from push_test import push
from store_test import Store


def write_sparse(path, rows, columns):
    """One BF16 tensor, all zero but its last element, which is 1.0. Returns the size of its data."""
    size = rows * columns * 2
    tensor = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
        file.seek(-2, 2)
        file.write(b"\x80\x3f")
    return size


def pieces(path):
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece


class LargeTensors(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def put(self, store, path, chunked):
        headers = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(path.stat().st_size)}
        connection = store.connect()
        connection.timeout = 300
        with contextlib.closing(connection):
            connection.request("PUT", "/weft/v1/weights", pieces(path), headers, encode_chunked=chunked)
            answer = connection.getresponse()
            body = answer.read()
        self.assertEqual(answer.status, 200, body)
        return json.loads(body)["id"]

    def check(self, rows, columns, *ways):
        path = self.folder / "model.safetensors"
        size = write_sparse(path, rows, columns)
        ids = []
        for way in ways:
            with self.subTest(way), tempfile.TemporaryDirectory(dir=self.folder) as folder, Store(f"{folder}/store") as store:
                if way == "push":
                    done = push(path, "--to", store.url, "--json")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    ids.append(json.loads(done.stdout)["results"][0]["id"])
                else:
                    ids.append(self.put(store, path, chunked=way == "chunked"))
                file = f"/weft/v1/versions/{ids[-1]}/model.safetensors"
                end = store.get(file, headers={"Range": "bytes=-2"})
                self.assertEqual((end.status, end.body), (206, b"\x80\x3f"))
                whole = int(end.headers["Content-Range"].split("/")[1])
                self.assertGreater(whole, size)
                first = store.get(file, headers={"Range": f"bytes={whole - size}-{whole - size + 1}"})
                self.assertEqual((first.status, first.body), (206, b"\0\0"))
                status = pathlib.Path(f"/proc/{store.process.pid}/status").read_text()
                peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
                self.assertLess(peak_kib, 512 << 10, "the body is held")
        self.assertEqual(len(set(ids)), 1, ids)

    def test_past_2_gib(self):
        self.check(151_936, 8_192, "chunked", "push")

    def test_past_4_gib(self):
        self.check(262_144, 8_448, "length")


if __name__ == "__main__":
    unittest.main()
