"""The deltas of `weft store` as a process: on offer after a push, over HTTP, over restarts, and gone with their versions."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

from diff_test import nudged, safetensors, weights
from store_test import Store
from weft_testing import TIMEOUT_S, WEFT, wait_for

ABSENT = "blake3:" + "0" * 64
IMMUTABLE = "public, max-age=31536000, immutable, no-transform"


def run(*arguments, **environment):
    return subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | environment)


class Index:
    """docs/formats/delta-index.md."""

    def __init__(self, raw):
        magic, version, packs, blocks, zero, base, target = struct.unpack_from("<8sIIII32s32s", raw)
        assert (magic, version, zero) == (b"weft-dix", 1, 0)
        self.base, self.target = "blake3:" + base.hex(), "blake3:" + target.hex()
        self.packs = [struct.unpack_from("<I32s", raw, 88 + 36 * i) for i in range(packs)]
        self.blocks = [struct.unpack_from("<III32s", raw, 88 + 36 * packs + 44 * i) for i in range(blocks)]
        assert len(raw) == 88 + 36 * packs + 44 * blocks + 32


class StoreDeltas(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.raw = weights(100_000, 1)

    def push(self, store, number, parent=None):
        """Version `number` of a chain: each changes some elements of the one before."""
        file = self.folder / "model.safetensors"
        raw = self.raw
        for i in range(number):
            raw = nudged(raw, 300, i)
        file.write_bytes(safetensors({"w": ("BF16", [len(raw) // 2], raw), "still": ("F32", [2], b"12345678")}))
        done = run("push", file, "--to", store.url, "--label", number, "--head", "main", "--json", *(["--parent", parent] if parent else []),
                   XDG_STATE_HOME=tempfile.mkdtemp(dir=self.folder))  # what was pushed last is not remembered
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(store.get("/weft/v1/heads/main").body)["id"]

    def chain(self, store, length):
        ids = [self.push(store, 0)]
        while len(ids) < length:
            ids.append(self.push(store, len(ids), ids[-1]))
        wait_for(lambda: store.metric("weft_store_deltas") == length - 1, "deltas")
        return ids

    def deltas(self, store, version):
        return store.get(f"/weft/v1/versions/{version}/deltas").json()["deltas"]

    def test_a_delta_is_an_index_over_packs_that_any_cache_can_hold(self):
        with Store(self.folder / "store") as store:
            old, new = self.chain(store, 2)
            offer, = self.deltas(store, new)
            path = f"/weft/v1/versions/{new}/deltas/{old}"
            answer = store.get(path)
            index = Index(answer.body)
            self.assertEqual((index.base, index.target, offer["base"]), (old, new, old))
            self.assertEqual(offer["index_bytes"], len(answer.body))
            self.assertEqual(offer["packs"], [size for size, _ in index.packs])
            self.assertEqual(offer["bytes"], len(answer.body) + sum(offer["packs"]))
            self.assertLess(offer["bytes"], len(self.raw) / 50)
            self.assertEqual(len(index.blocks), 1)
            pack = store.get(path + "/packs/0")
            self.assertEqual(len(pack.body), index.packs[0][0])
            self.assertEqual(pack.headers["ETag"], f'"blake3:{index.packs[0][1].hex()}"')
            for answered, target in (answer, path), (pack, path + "/packs/0"):
                self.assertEqual(answered.headers["Cache-Control"], IMMUTABLE)
                self.assertEqual(store.get(target, headers={"If-None-Match": answered.headers["ETag"]}).status, 304)
                part = store.get(target, headers={"Range": "bytes=3-9"})
                self.assertEqual((part.status, part.body), (206, answered.body[3:10]))
                self.assertEqual(store.request("HEAD", target).headers["Content-Length"], str(len(answered.body)))
            for absent in path + "/packs/1", path + "/packs/x", f"/weft/v1/versions/{old}/deltas/{new}", f"/weft/v1/versions/{ABSENT}/deltas":
                self.assertEqual(store.get(absent).status, 404, absent)
            self.assertEqual(self.deltas(store, old), [])

    def test_a_plan_is_the_cheapest_way_from_what_is_at_hand(self):
        with Store(self.folder / "store") as store:
            a, b, c = self.chain(store, 3)
            manifests = {each: len(store.get(f"/weft/v1/versions/{each}/manifest").body) for each in (a, b, c)}
            cost = {each: self.deltas(store, each)[0]["bytes"] + manifests[each] for each in (b, c)}
            def plan(have):
                answer = store.get(f"/weft/v1/versions/{c}/plan" + (f"?have={have}" if have else ""))
                self.assertEqual(answer.status, 200, answer)
                return answer.json()

            self.assertEqual(plan(c)["steps"], [])
            self.assertEqual(plan(b)["steps"], [{"id": c, "bytes": cost[c], "base": b}])
            self.assertEqual(plan(f"{a},{ABSENT}")["steps"], [{"id": b, "bytes": cost[b], "base": a}, {"id": c, "bytes": cost[c], "base": b}])
            self.assertEqual(plan(a)["bytes"], cost[b] + cost[c])
            full = plan("")
            self.assertEqual(full["steps"], [{"id": c, "bytes": full["full_bytes"]}])
            self.assertEqual(full["full_bytes"], len(self.raw) + 8 + manifests[c] + 2 * 32)
            self.assertEqual(plan(ABSENT)["bytes"], full["full_bytes"])
            self.assertEqual(store.get(f"/weft/v1/versions/{c}/plan?have=x").status, 400)
            self.assertEqual(store.get(f"/weft/v1/versions/{ABSENT}/plan").status, 404)

    def test_deltas_outlive_the_process_and_go_with_their_versions(self):
        with Store(self.folder / "store") as store:
            a, b, c = self.chain(store, 3)
            store.stop()
        checked = json.loads(run("store", "fsck", self.folder / "store", "--json").stdout)
        self.assertEqual((checked["deltas"], checked["faults"]), (2, []))
        with Store(self.folder / "store") as store:
            self.assertEqual(store.metric("weft_store_deltas"), 2)
            self.assertEqual(store.request("DELETE", f"/weft/v1/versions/{a}").status, 204)
            wait_for(lambda: store.metric("weft_store_deltas") == 1, "the delta from it is gone")
            self.assertEqual(self.deltas(store, b), [])
            self.assertEqual(self.deltas(store, c)[0]["base"], b)
            store.stop()
        self.assertEqual(len(list((self.folder / "store/deltas").iterdir())), 2)

    def test_what_does_not_pay_or_is_not_wanted_is_not_made(self):
        with Store(self.folder / "store") as store:
            old = self.push(store, 0)
            self.raw = weights(100_000, 99)
            self.push(store, 0, old)
            given_up = 'weft_store_deltas_given_up_total{reason="too_large"} 1'
            wait_for(lambda: given_up in store.get("/metrics").body.decode(), given_up)
            store.stop()
        with Store(self.folder / "store", "--deltas", "off") as store:
            new = self.push(store, 1, old)
            self.assertEqual(self.deltas(store, new), [])
            store.stop()
            self.assertFalse(any("delta" in line for line in store.lines))


if __name__ == "__main__":
    unittest.main()
