"""`weft pull`, `versions`, `inspect` and `rollback` as processes, against a server that generates."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from push_test import push
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Server

ABSENT = "blake3:" + "0" * 64


def run(*arguments, **environment):
    return subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | environment)


def run_json(*arguments, **environment):
    done = run(*arguments, "--json", **environment)
    return json.loads(done.stdout)


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_what_is_pulled_is_a_folder_that_serves(self):
        with Server("P_llama") as server:
            self.assertEqual(push(FIXTURES / "P2", "--to", server.url, "--label", "two").returncode, 0)
            done = run("pull", server.url, "#main", self.folder / "pulled", "--json")

            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(json.loads(done.stdout)["id"], server.weight_info()["id"])
            self.assertEqual(json.loads((self.folder / "pulled/config.json").read_text()), json.loads((FIXTURES / "P_llama/config.json").read_text()))
            self.assertTrue((self.folder / "pulled/tokenizer.json").is_file())
        with Server(self.folder / "pulled") as server:
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_a_version_is_named_by_id_its_beginning_label_or_head(self):
        with Server("P_llama") as server:
            push(FIXTURES / "P2", "--to", server.url, "--label", "two")
            version = server.weight_info()["id"]
            for i, name in enumerate([version, version.removeprefix("blake3:")[:8], "two", "#main"]):
                with self.subTest(name):
                    self.assertEqual(run_json("pull", server.url, name, self.folder / str(i))["id"], version)

    def test_who_has_it_already_fetches_nothing(self):
        with Server("P_llama") as server:
            first = run_json("pull", server.url, "#main", self.folder / "first")
            again = run_json("pull", server.url, "#main", self.folder / "again", "--base", self.folder / "first")

            self.assertEqual(first["held_bytes"], 0)
            self.assertEqual(again["fetched_bytes"], 0)
            self.assertEqual(again["held_bytes"], first["total_bytes"])

    def test_a_folder_with_something_in_it_is_left_alone(self):
        (self.folder / "mine").write_text("x")
        with Server("P_llama") as server:
            done = run("pull", server.url, "#main", self.folder)

            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertEqual(os.listdir(self.folder), ["mine"])

    def test_exit_codes_say_what_to_do(self):
        with Server("P_llama", "--admin-key", "a", "--read-key", "r") as server:
            self.assertEqual(run("pull", server.url, "#main", self.folder / "x").returncode, 3)
            self.assertEqual(run("versions", server.url, "--key", "wrong").returncode, 3)
            self.assertEqual(run("versions", server.url, WEFT_KEY="r").returncode, 0)
            self.assertEqual(run("pull", server.url, ABSENT, self.folder / "x", "--key", "r").returncode, 4)
            self.assertEqual(run("rollback", server.url, "#main", "--key", "r").returncode, 3)
            self.assertEqual(run("pull", "ftp://x", "#main", self.folder / "x").returncode, 2)
        self.assertEqual(run("versions", server.url).returncode, 8)
        self.assertFalse((self.folder / "x").exists())

    def test_versions_are_listed_newest_first_and_rolled_back_to(self):
        with Server("P_llama") as server:
            old = server.weight_info()["id"]
            push(FIXTURES / "P2", "--to", server.url, "--label", "two")
            listed = run_json("versions", server.url)
            self.assertEqual([version["state"] for version in listed["versions"]], ["serving", "retired"])
            self.assertEqual(listed["heads"], [{"name": "main", "id": server.weight_info()["id"]}])
            lines = run("versions", server.url).stdout.splitlines()
            self.assertIn("#main two", lines[0])
            self.assertTrue(lines[1].startswith(old))

            done = run("rollback", server.url, old)

            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(server.weight_info()["id"], old)
            self.assertEqual(server.complete("A", 4)["text"], "BCDE")
            self.assertEqual(run("rollback", server.url, ABSENT).returncode, 4)

    def test_what_is_staged_has_no_head_and_no_date(self):
        with Server("P_llama") as server:
            answer = server.request("PUT", "/weft/v1/weights?commit=false", (FIXTURES / "P_llama/model.safetensors").read_bytes())
            self.assertEqual(answer.status, 200, answer)

            staged, serving = run("versions", server.url).stdout.splitlines()

            self.assertEqual(staged.split()[:2], [server.weight_info()["id"], "staged"])
            self.assertNotIn("#main", staged)
            self.assertNotIn("1970", staged)
            self.assertIn("#main", serving)

    def test_what_a_peer_says_does_nothing_to_the_terminal(self):
        with Server("P_llama") as server:
            self.assertEqual(server.request("PUT", "/weft/v1/weights?label=a%1b%5b31mb%0ac",
                                            (FIXTURES / "P2/model.safetensors").read_bytes()).status, 200)

            done = run("versions", server.url)

            self.assertIn("#main a\\x1b[31mb\\x0ac", done.stdout)
            server.wait_for_line(r"`a\\x1b\[31mb\\x0ac` took over")

    def test_a_url_that_is_no_weft_server_is_said(self):
        with Server("P_llama") as server:
            for words in (["versions", server.url + "/foo"], ["pull", server.url + "/foo", "#main", self.folder / "x"],
                          ["pull", server.url + "/foo", "two", self.folder / "x"], ["push", FIXTURES / "P2", "--to", server.url + "/foo"]):
                with self.subTest(words):
                    done = run(*words)
                    self.assertEqual(done.returncode, 4, done.stderr)
                    self.assertIn("is it a weft server's?", done.stderr)

    def test_a_folder_is_inspected_as_the_version_that_it_is(self):
        with Server("P_llama") as server:
            served = run_json("inspect", server.url, "--blocks")
            self.assertEqual(served["id"], server.weight_info()["id"])
            run("pull", server.url, "#main", self.folder / "pulled")
            self.assertEqual(run_json("inspect", self.folder / "pulled", "--blocks"), served)

            manifest = self.folder / "manifest.json"
            manifest.write_bytes(server.get(f"/weft/v1/versions/{served['id']}/manifest").body)
            self.assertEqual(run_json("inspect", manifest)["id"], served["id"])
            text = run("inspect", manifest).stdout
            self.assertEqual(len(text.splitlines()), len(served["tensors"]) + len(served["files"]) + 1)
            manifest.write_text("{}")
            self.assertEqual(run("inspect", manifest).returncode, 6)

    def test_a_key_is_nowhere_to_be_seen(self):
        key = "do-not-show-this"
        with Server("P_llama", "--admin-key", key) as server:
            arguments = pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
            done = push(FIXTURES / "P2", "--to", server.url, "--key", key)
            self.assertEqual(done.returncode, 0, done.stderr)
            (self.folder / "key").write_text(key + "\n")
            self.assertEqual(run("rollback", server.url, ABSENT, "--key-file", self.folder / "key").returncode, 4)

        for text in arguments.decode(), done.stdout, done.stderr, "\n".join(server.lines):
            self.assertNotIn(key, text)


if __name__ == "__main__":
    unittest.main()
