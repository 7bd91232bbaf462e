"""`weft store` as a process: pushed to, killed in the middle, started again, pulled from, checked."""
import http.client
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from push_test import Relay, push
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Listener, Program, wait_for


class Store(Listener):
    """`weft store DIR FLAGS...` on a free port."""

    def __init__(self, folder, *flags):
        super().__init__("store", folder, "--port", "0", *flags)

    def versions(self):
        return self.get("/weft/v1/versions").json()["versions"]

    def metric(self, name):
        lines = self.get("/metrics").body.decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


def run(*arguments):
    return subprocess.run([WEFT, "store", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


class StoreProcess(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "store"

    def short_push(self, store, name, query=""):
        answer = store.request("PUT", "/weft/v1/weights" + query, (FIXTURES / name / "model.safetensors").read_bytes())
        self.assertEqual(answer.status, 200, answer)
        return answer.json()["id"]

    def test_the_short_form_is_a_push_and_the_file_comes_back(self):
        with Store(self.folder) as store:
            version = self.short_push(store, "P_llama", "?label=one")

            listed = store.versions()
            self.assertEqual([each["id"] for each in listed], [version])
            self.assertEqual(listed[0]["labels"], ["one"])
            answer = store.get(f"/weft/v1/versions/{version}/model.safetensors")
            self.assertEqual(answer.status, 200)
            again = store.request("PUT", "/weft/v1/weights", answer.body)
            self.assertEqual(again.json()["id"], version)
            self.assertEqual(store.metric("weft_store_versions"), 1)
            self.assertEqual(store.get("/health").status, 200)

    def test_after_kill_9_a_push_goes_on_where_it_stopped(self):
        with Store(self.folder) as store:
            relay = Relay(store.port, 1_600_000)
            with Program("push", FIXTURES / "P2", "--to", relay.url, "--connections", "1") as pusher:
                self.assertTrue(relay.silent.wait(TIMEOUT_S))
                deadline = time.monotonic() + TIMEOUT_S
                while store.metric("weft_store_blocks_in_total") == 0:
                    self.assertLess(time.monotonic(), deadline, "no block was verified")
                    time.sleep(0.01)
                store.process.kill()
                store.wait()
                relay.close()
                pusher.process.kill()
        with Store(self.folder) as store:
            self.assertEqual(store.versions(), [])
            done = push(FIXTURES / "P2", "--to", store.url, "--label", "late", "--json")

            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)["results"][0]
            self.assertGreater(result["skipped_bytes"], 0)
            self.assertEqual([each["labels"] for each in store.versions()], [["late"]])
            store.stop()
        self.assertEqual(run("fsck", self.folder).returncode, 0)

    def test_what_was_committed_is_there_after_kill_9(self):
        with Store(self.folder) as store:
            version = self.short_push(store, "P_llama")
            before = store.get(f"/weft/v1/versions/{version}/model.safetensors").body
            store.process.kill()
            store.wait()
        with Store(self.folder) as store:
            self.assertEqual(store.get(f"/weft/v1/versions/{version}/model.safetensors").body, before)

    def test_a_body_that_breaks_leaves_nothing(self):
        with Store(self.folder) as store:
            data = (FIXTURES / "P_llama" / "model.safetensors").read_bytes()
            connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=TIMEOUT_S)
            connection.putrequest("PUT", "/weft/v1/weights")
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data[:len(data) // 2])
            connection.close()
            self.assertEqual(store.versions(), [])
            self.short_push(store, "P_llama")

    def test_a_body_whose_commit_fails_leaves_nothing(self):
        with Store(self.folder) as store:
            records = self.folder / "versions"
            records.rename(self.folder / "aside")
            records.write_text("no folder")
            answer = store.request("PUT", "/weft/v1/weights", (FIXTURES / "P_llama" / "model.safetensors").read_bytes())
            self.assertGreaterEqual(answer.status, 400, answer)
            wait_for(lambda: not any((self.folder / "uploads").iterdir()), "what was staged is dropped")

            records.unlink()
            (self.folder / "aside").rename(records)
            self.short_push(store, "P_llama")

    def test_what_is_no_utf8_is_refused_and_the_catalog_stays_readable(self):
        with Store(self.folder) as store:
            version = self.short_push(store, "P_llama", "?label=one")
            body = json.dumps({"id": version}).encode()
            for label in ("%ff", "a%C3", "%ED%A0%80"):
                self.assertEqual(store.request("PUT", f"/weft/v1/labels/{label}", body).status, 400, label)
                self.assertEqual(store.request("PUT", f"/weft/v1/weights?label={label}", b"x").status, 400, label)
            self.assertEqual(store.request("PUT", "/weft/v1/labels/caf%C3%A9", body).status, 200)
        with Store(self.folder) as store:
            self.assertEqual(sorted(store.versions()[0]["labels"]), ["café", "one"])

    def test_heads_move_by_if_match(self):
        with Store(self.folder) as store:
            first, second = self.short_push(store, "P_llama"), self.short_push(store, "P2")
            put = lambda to, **headers: store.request("PUT", "/weft/v1/heads/main", {"id": to}, headers)
            self.assertEqual(put(first, **{"If-None-Match": "*"}).status, 200)
            self.assertEqual(put(second, **{"If-None-Match": "*"}).status, 412)
            self.assertEqual(put(second, **{"If-Match": f'"{first}"'}).status, 200)
            lost = put(first, **{"If-Match": f'"{first}"'})
            self.assertEqual((lost.status, lost.json()["current"]), (412, second))
            self.assertEqual(store.get("/weft/v1/heads/main").json()["id"], second)

    def test_ctrl_c_ends_it_and_a_second_process_is_told_who_has_the_folder(self):
        with Store(self.folder) as store:
            second = run(self.folder, "--port", "0")
            self.assertEqual(second.returncode, 5)
            self.assertIn(str(store.process.pid), second.stderr)
            self.assertEqual(store.stop(), 143)

    def test_fsck_finds_a_flipped_bit_and_a_push_repairs(self):
        with Store(self.folder) as store:
            version = self.short_push(store, "P_llama")
            store.stop()
        bad = max((path for path in (self.folder / "objects").rglob("*") if path.is_file()),
                  key=lambda path: path.stat().st_size)
        data = bytearray(bad.read_bytes())
        data[0] ^= 1
        bad.write_bytes(data)

        found = run("fsck", self.folder, "--json")
        self.assertEqual(found.returncode, 1, found.stderr)
        self.assertEqual(json.loads(found.stdout)["faults"][0]["versions"], [version])
        self.assertEqual(run("fsck", self.folder, "--repair").returncode, 1)
        with Store(self.folder) as store:
            self.assertEqual(self.short_push(store, "P_llama"), version)
            store.stop()
        self.assertEqual(run("fsck", self.folder).returncode, 0)

    def test_readers_are_not_told_where_the_store_has_a_block(self):
        with Store(self.folder) as store:
            version = self.short_push(store, "P_llama")
            for path in (self.folder / "objects").rglob("*"):
                if path.is_file():
                    path.unlink()

            answer = store.get(f"/weft/v1/versions/{version}/packs/0")

            self.assertGreaterEqual(answer.status, 400)
            self.assertIn("the store cannot read block blake3:", answer.json()["error"]["message"])
            self.assertNotIn(str(self.folder), str(answer.body))
            store.wait_for_line(f" E .*{self.folder}/objects/")
            store.stop()
        found = run("fsck", self.folder)
        self.assertEqual(found.stdout.splitlines()[0].count(str(self.folder)), 1, found.stdout)

    def test_numbers_that_are_none(self):
        for flags in (["--keep", "0"], ["--keep", "x"], ["--keep-days", "nan"], ["--lease", "nan"], ["--max-uploads", "0"], ["--port", "70000"]):
            with self.subTest(flags):
                done = run(self.folder, *flags)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, rf"^weft: {flags[0]}: .{{1,80}} \(--help lists the flags\)\n$")

    def test_gc_keeps_what_it_is_told_to_keep(self):
        with Store(self.folder) as store:
            self.short_push(store, "P_llama")
            newest = self.short_push(store, "P2")
            store.stop()
        done = run("gc", self.folder, "--keep", "1", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(json.loads(done.stdout)["versions"]), 1)
        with Store(self.folder, "--keep", "1") as store:
            self.assertEqual([each["id"] for each in store.versions()], [newest])

    def test_keys_are_asked_for(self):
        key = self.folder.parent / "key"
        key.write_text("secret-admin-key")
        with Store(self.folder, "--admin-key-file", key) as store:
            data = (FIXTURES / "P_llama" / "model.safetensors").read_bytes()
            self.assertEqual(store.request("PUT", "/weft/v1/weights", data).status, 401)
            with_key = {"Authorization": "Bearer secret-admin-key"}
            self.assertEqual(store.request("PUT", "/weft/v1/weights", data, with_key).status, 200)

    def test_beyond_this_machine_it_wants_a_key(self):
        refused = run(self.folder, "--port", "0", "--host", "0.0.0.0")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--insecure", refused.stderr)
        self.assertFalse(self.folder.exists())


class FullDisk(unittest.TestCase):
    def test_a_push_that_does_not_fit_is_507_and_nothing_is_lost(self):
        mount = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(mount.rmdir)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24M", "weft-test", str(mount)], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("needs the right to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", str(mount)], check=True)
        first = (FIXTURES / "P_llama" / "model.safetensors").read_bytes()
        with Store(mount / "store") as store:
            version = store.request("PUT", "/weft/v1/weights", first).json()["id"]
            filler = mount / "filler"
            with open(filler, "wb") as file:
                try:
                    while True:
                        file.write(bytes(65536))
                        file.flush()
                except OSError:
                    pass
            second = (FIXTURES / "P2" / "model.safetensors").read_bytes()
            self.assertEqual(store.request("PUT", "/weft/v1/weights", second).status, 507)
            self.assertEqual(store.get(f"/weft/v1/versions/{version}/model.safetensors").status, 200)
            filler.unlink()
            self.assertEqual(store.request("PUT", "/weft/v1/weights", second).status, 200)


if __name__ == "__main__":
    unittest.main()
