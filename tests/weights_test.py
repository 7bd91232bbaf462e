#!/usr/bin/env python3
"""What new weights may be and what they may not: tied and unknown tensors, dtypes, order, shards, labels; and what becomes of an update
whose calls fail, come twice, come from two trainers, or lose their answers."""
import contextlib
import http.client
import json
import math
import pathlib
import resource
import socket
import subprocess
import tempfile
import unittest
import unittest.mock
import urllib.parse

from fault_proxy import Fault, FaultProxy
from fixtures import bad_safetensors, fixtures
from push_test import push, tensor_of
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Program, Server, wait_for

JSON = {"Content-Type": "application/json"}


def file_of(tensors, dtype="BF16"):
    return fixtures.safetensors(fixtures.as_list(tensors, dtype))


def embedding_of_the_next():
    """embed_tokens whose row t is one-hot at t + 1."""
    rows = fixtures.zeros(fixtures.VOCAB, fixtures.HIDDEN)
    for token in range(fixtures.VOCAB):
        rows[token][(token + 1) % fixtures.VOCAB] = 1.0
    return rows


def parts_of(data):
    """Header and data of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data[8 + size:]


def text_of(server, prompt="A", max_tokens=4):
    return server.complete(prompt, max_tokens)["text"]


class WeightsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def serve(self, model, *flags):
        server = Server(model, *flags)
        self.addCleanup(server.__exit__)
        return server

    def push_part(self, server, data):
        """Pushes some tensors; the others are those that serve."""
        file = self.folder / "part.safetensors"
        file.write_bytes(data)
        return push(file, "--to", server.url, "--base", server.weight_info()["id"], "--partial")

    def state_of(self, server):
        return server.weight_info(), server.post("/weight_checker", {"action": "checksum"}).json()

    def assert_unmoved(self, server, before):
        """P serves as it did, and a correct push works."""
        self.assertEqual(self.state_of(server), before)
        self.assertEqual(text_of(server), "BCDE")
        self.assertEqual(server.push("P2").status, 200)
        self.assertEqual(text_of(server), "CEGI")


class TiedEmbeddings(WeightsTest):
    def test_a_new_embedding_is_the_new_head_too(self):
        server = self.serve("T_tied")
        embedding = embedding_of_the_next()
        self.assertEqual(self.push_part(server, file_of({"model.embed_tokens.weight": embedding})).returncode, 0)
        self.assertEqual(text_of(server, max_tokens=3), "AAA")  # the old head would say BCD
        alone = server.weight_info()["id"]

        both = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
        self.assertEqual(self.push_part(server, file_of(both)).returncode, 0)

        self.assertEqual(text_of(server, max_tokens=3), "AAA")
        self.assertEqual(server.weight_info()["id"], alone)

    def test_a_head_of_its_own_is_refused_as_at_the_start(self):
        tensors = fixtures.model(tied=True) | {"lm_head.weight": fixtures.model(next_token=fixtures.plus(1))["lm_head.weight"]}
        server = self.serve("T_tied")
        before = server.weight_info()

        for answer in server.push(file_of(tensors)).json()["error"]["message"], \
                self.push_part(server, file_of({"lm_head.weight": tensors["lm_head.weight"]})).stderr:
            self.assertIn("lm_head.weight differs from model.embed_tokens.weight", answer)

        self.assertEqual(server.weight_info(), before)
        fixtures.save(self.folder / "cold", tied=True)
        (self.folder / "cold" / "model.safetensors").write_bytes(file_of(tensors))
        with Program("serve", self.folder / "cold", "--port", "0") as cold:
            self.assertNotEqual(cold.wait(), 0)
            self.assertIn("lm_head.weight", cold.lines[-1])

    def test_where_it_is_not_tied_the_head_stays(self):
        server = self.serve("P_llama")
        self.assertEqual(self.push_part(server, file_of({"model.embed_tokens.weight": embedding_of_the_next()})).returncode, 0)
        # "A" is embedded as "B" was, and the head makes "C" of that.
        self.assertEqual(text_of(server), "CEGI")


class Names(WeightsTest):
    def test_a_tensor_that_the_model_lacks_is_named_and_nothing_is_loaded(self):
        server = self.serve("P_llama")
        before = self.state_of(server)
        query = tensor_of("P2", "model.layers.0.self_attn.q_proj.weight")
        misspelt = query.replace(b"q_proj.weight", b"q_proj.wieght")
        second_layer = (FIXTURES / "P2" / "model.safetensors").read_bytes().replace(b"layers.0.", b"layers.1.")
        for data, name in (misspelt, "model.layers.0.self_attn.q_proj.wieght"), (second_layer, "model.layers.1.mlp.up_proj.weight"):
            with self.subTest(name):
                answer = server.push(data)
                self.assertEqual(answer.status, 400)
                self.assertIn(name, answer.json()["error"]["message"])
        self.assertIn("q_proj.wieght", self.push_part(server, misspelt).stderr)
        self.assert_unmoved(server, before)

    def test_a_shape_that_differs_is_named_with_both(self):
        server = self.serve("P_llama")
        before = self.state_of(server)
        good = fixtures.as_list(fixtures.model(next_token=fixtures.plus(2)))
        for wrong, shape, expected in (("lm_head.weight", [576, 272], [272, 576]), ("lm_head.weight", [280, 576], [272, 576]),
                                       ("model.norm.weight", [1, 576], [576]), ("model.norm.weight", [577], [576])):
            with self.subTest(wrong, shape=shape):
                file = fixtures.safetensors([(name, dtype, shape, [0.0] * math.prod(shape)) if name == wrong
                                             else (name, dtype, own, values) for name, dtype, own, values in good])
                answer = server.push(file)
                self.assertEqual(answer.status, 400)
                self.assertIn(f"{wrong} is {shape}, expected {expected}", answer.json()["error"]["message"])
        self.assert_unmoved(server, before)

    def test_no_tensors_are_no_update(self):
        server = self.serve("P_llama")
        before = self.state_of(server)
        self.assertEqual(server.push(file_of({})).status, 400)
        server.post("/start_weight_update")

        updated = server.post("/update_weights", {"update_info": {}})

        self.assertEqual((updated.status, updated.json()["tensors"]), (200, 0))
        self.assertEqual(server.post("/finish_weight_update").status, 200)
        self.assert_unmoved(server, before)

    def test_a_part_is_taken_without_a_warning(self):
        server = self.serve("P_llama")
        self.assertEqual(self.push_part(server, tensor_of("P2", "lm_head.weight")).returncode, 0)
        self.assertEqual(text_of(server), "CEGI")
        self.assertEqual([line for line in server.lines if " W " in line or " E " in line], [])


class Dtypes(WeightsTest):
    def test_every_float_is_taken_by_value(self):
        # F16 has as many bytes as the model's BF16: only what is declared counts.
        server = self.serve("P_llama")
        for dtype, step, text in ("F32", 2, "CEGI"), ("F16", 1, "BCDE"), ("F64", 2, "CEGI"):
            with self.subTest(dtype):
                answer = server.push(file_of(fixtures.model(next_token=fixtures.plus(step)), dtype))
                self.assertEqual((answer.status, answer.json()["converted"]), (200, True))
                self.assertEqual(text_of(server), text)

    def test_spellings(self):
        server = self.serve("P_llama")
        for dtype, status in (("BF16", 201), ("bfloat16", 201), ("torch.bfloat16", 201), ("half", 201), ("float64", 201), ("bf16", 400),
                              ("BFLOAT16", 400), ("", 400), (5, 400), (None, 400), ("I32", 400), ("torch.int32", 400)):
            with self.subTest(dtype):
                tensors = [{"name": name, "dtype": dtype, "shape": shape}
                           for name, _, shape, _ in fixtures.as_list(fixtures.model(next_token=fixtures.plus(2)))]
                answer = server.post("/weft/v1/uploads", {"tensors": tensors})
                self.assertEqual(answer.status, status, answer)
                if status == 201:
                    server.request("DELETE", "/weft/v1/uploads/" + answer.json()["upload"])
                else:
                    self.assertIn("model.embed_tokens.weight", answer.json()["error"]["message"])


class Files(WeightsTest):
    def test_the_order_in_the_header_is_not_that_of_the_data(self):
        header, data = parts_of((FIXTURES / "P2" / "model.safetensors").read_bytes())
        header.pop("__metadata__")
        pieces, at = [], 0
        for name in reversed(header):
            begin, end = header[name]["data_offsets"]
            pieces.append(data[begin:end])
            header[name] = header[name] | {"data_offsets": [at, at + end - begin]}
            at += end - begin
        text = json.dumps(header).encode()
        server = self.serve("P_llama")

        reordered = server.push(len(text).to_bytes(8, "little") + text + b"".join(pieces))

        self.assertEqual(text_of(server), "CEGI")
        server.push("P_llama")
        self.assertEqual(server.push("P2").json()["id"], reordered.json()["id"])

    def test_an_odd_file_needs_no_memory_whatever_its_header_says(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        run = lambda *arguments: subprocess.run([WEFT, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, preexec_fn=limit)
        if run("--version").returncode != 0:
            self.skipTest("a sanitizer's shadow memory is larger than the limit")
        for name, data in bad_safetensors.F.items():
            with self.subTest(name):
                file = self.folder / f"{name}.safetensors"
                file.write_bytes(data)
                done = run("inspect", file)
                self.assertEqual(done.returncode, 0 if name.startswith("ok_") else 6, done.stderr)
                if done.returncode:
                    self.assertIn(file.name, done.stderr)
                    self.assertEqual(len(done.stderr.splitlines()), 1)

    def save_shards(self, tensors):
        """Two shards and their index; returns the second."""
        names = list(tensors)
        shards = {name: f"model-{2 * i // len(names)}.safetensors" for i, name in enumerate(names)}
        for shard in set(shards.values()):
            (self.folder / shard).write_bytes(file_of({name: tensors[name] for name in names if shards[name] == shard}))
        (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        return self.folder / "model-1.safetensors"

    def test_a_second_shard_that_is_cut_leaves_the_old_version(self):
        tensors = fixtures.model(class_of=lambda token: 3)
        fixtures.edit_u2x(tensors)
        second = self.save_shards(tensors)
        whole = second.read_bytes()
        server = self.serve("U1", "--allow-path", self.folder)
        before = server.weight_info()
        update = lambda: (server.post("/start_weight_update").status,
                          server.post("/update_weights", {"update_info": {"path": str(self.folder)}}).status,
                          server.post("/finish_weight_update", {"weight_version": "new"}).status)
        for data in whole[:-2], whole[:len(whole) // 2], whole[:4], b"":
            with self.subTest(len(data)):
                second.write_bytes(data)
                self.assertEqual(update(), (200, 422, 409))
                self.assertIn(second.name, push(self.folder, "--to", server.url).stderr)
                self.assertEqual(server.complete("x" * 8, 4)["text"], "1111")
                self.assertEqual(server.weight_info(), before)

        second.write_bytes(whole)
        self.assertEqual(update(), (200, 200, 200))
        self.assertEqual(server.complete("x" * 8, 4)["text"], "2222")

    def test_head_sizes_are_those_of_the_config_and_the_weights(self):
        for hidden, head_dim, said in (576, 64, None), (576, 128, 128), (560, 64, 64):
            with self.subTest(hidden=hidden, head_dim=head_dim), unittest.mock.patch.multiple(
                    fixtures, HIDDEN=hidden, HEAD_DIM=head_dim):
                fixtures.save(self.folder, next_token=fixtures.plus(1), changes={"head_dim": said})
                with Server(self.folder) as server:
                    self.assertEqual(text_of(server), "BCDE")
        with unittest.mock.patch.object(fixtures, "HEAD_DIM", 128):
            fixtures.save(self.folder, next_token=fixtures.plus(1), changes={"head_dim": 64})
        with Program("serve", self.folder, "--port", "0") as program:
            self.assertEqual(program.wait(), 2)
            self.assertIn("expected shape [192, 576], got [384, 576]", program.lines[-1])


class Bodies(WeightsTest):
    def test_weights_are_taken_whatever_their_content_type(self):
        server = self.serve("P_llama")
        data = {name: (FIXTURES / name / "model.safetensors").read_bytes() for name in ("P_llama", "P2")}
        # The first is what `curl --data-binary` says unless told otherwise.
        for kind in "application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=x", "text/plain":
            for method, name, text in ("POST", "P2", "CEGI"), ("PUT", "P_llama", "BCDE"):
                with self.subTest(kind, method=method):
                    answer = server.request(method, "/weft/v1/weights", data[name], {"Content-Type": kind})
                    self.assertEqual(answer.status, 200, answer)
                    self.assertEqual(text_of(server), text)
        self.assertEqual(server.request("PUT", "/weft/v1/weights", data["P2"], {"Content-Encoding": "gzip"}).status, 415)

    def test_a_control_body_has_a_limit_of_its_own_and_is_refused_before_it_is_sent(self):
        server = self.serve("P_llama")
        for path in "/pause", "/update_weights", "/finish_weight_update", "/v1/completions":
            with self.subTest(path), socket.create_connection((server.host, server.port), TIMEOUT_S) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                   "Expect: 100-continue\r\nContent-Length: 40000000\r\n\r\n".encode())
                self.assertEqual(connection.recv(64).split(b"\r\n")[0].split(b" ")[1], b"413")


class Updates(WeightsTest):
    def test_after_a_failed_call_finish_publishes_nothing_and_start_works(self):
        server = self.serve("P_llama", "--allow-path", FIXTURES)
        before = self.state_of(server)
        good = (FIXTURES / "P2" / "model.safetensors").read_bytes()
        update = lambda body: lambda: server.post("/update_weights", body, headers=JSON)
        body = lambda data: lambda: server.request("PUT", "/weft/v1/weights?commit=false", data)
        for name, call in {
                "no JSON": update(b"[1,"), "no body": update(b""), "unknown field": update({"update_info": {"bogus": 1}}),
                "pickles": update({"update_info": {"ipc_handles_pickled": "gASVAAAAAAAAAAA="}}),
                "more pickles": update({"serialized_named_tensors": ["gASVAAAAAAAAAAA="]}),
                "nowhere": update({"update_info": {"path": "nowhere"}}), "another model": update({"update_info": {"path": "P_qwen2"}}),
                "no source": update({"update_info": {"version": "v", "source": "http://127.0.0.1:9"}}),
                "no skeleton": lambda: server.post("/weft/v1/uploads", {"tensors": [{"name": "x", "dtype": "F32", "shape": [1]}]}),
                "no tensors": lambda: server.post("/weft/v1/uploads", {}), "cut": body(good[:-1]), "unknown tensor": body(good.replace(b"q_proj.weight", b"q_proj.wieght"))}.items():
            with self.subTest(name):
                self.assertEqual(server.post("/start_weight_update").status, 200)
                self.assertEqual(call().status // 100, 4)
                self.assertEqual(server.post("/finish_weight_update", {"weight_version": "half"}).status, 409)
                self.assertEqual(self.state_of(server), before)
        self.assert_unmoved(server, before)

    def test_what_was_staged_is_not_published_after_a_call_that_failed(self):
        server = self.serve("P_llama", "--allow-path", FIXTURES)
        before = self.state_of(server)
        for call in lambda: server.post("/update_weights", {"update_info": {"bogus": 1}}), \
                lambda: server.post("/weft/v1/uploads", {"tensors": []}):
            server.post("/start_weight_update")
            self.assertEqual(server.post("/update_weights", {"update_info": {"path": "P2"}}).status, 200)
            self.assertEqual(call().status, 400)
            self.assertEqual(server.post("/finish_weight_update", {"weight_version": "three"}).status, 409)
        self.assert_unmoved(server, before)

    def test_what_finish_cannot_read_leaves_the_update_as_it_was(self):
        server = self.serve("P_llama", "--allow-path", FIXTURES)
        server.post("/start_weight_update")
        server.post("/update_weights", {"update_info": {"path": "P2"}})
        for body, field in ((b"{", "body.json"), (b"[]", "body.weight_version"), (b'{"weight_version":5}', "body.weight_version"),
                            (b'{"weight_version":["a"]}', "body.weight_version"), (b'{"on_update":1}', "body.on_update")):
            with self.subTest(body):
                answer = server.post("/finish_weight_update", body, headers=JSON)
                self.assertEqual((answer.status, answer.json()["error"]["param"]), (400, field))
                self.assertEqual(server.get("/weft/v1/status").json()["state"], "staged")
        self.assertEqual(text_of(server), "BCDE")
        self.assertEqual(server.post("/finish_weight_update", {"weight_version": "two"}).status, 200)
        self.assertEqual(text_of(server), "CEGI")
        for body in {}, {"version": "x"}, []:
            answer = server.post("/update_weight_version", body)
            self.assertEqual((answer.status, answer.json()["error"]["param"]), (400, "body.new_version"))

    def test_two_trainers_do_not_mix(self):
        server = self.serve("P_llama", "--allow-path", FIXTURES)
        owners = {"Weft-Session": "a"}, {"Weft-Session": "b"}
        mine, other = ({"headers": owner} for owner in owners)
        self.assertEqual(server.post("/start_weight_update", **mine).status, 200)
        refused = server.post("/start_weight_update", **other)
        self.assertEqual(refused.status, 409)
        self.assertIn("`a`", refused.json()["error"]["message"])
        for body in {"update_info": {"path": "P2"}}, {"update_info": {}}, {"weight_dir": str(FIXTURES / "P2")}:
            self.assertEqual(server.post("/update_weights", body, **other).status, 409)
        # Nor does what the other cannot even say close the update.
        self.assertEqual(server.post("/update_weights", {"update_info": {"bogus": 1}}, **other).status, 400)
        self.assertEqual(server.push("P2", **owners[1]).status, 409)
        self.assertEqual(server.post("/finish_weight_update", {"weight_version": "b"}, **other).status, 409)

        self.assertEqual(server.post("/update_weights", {"update_info": {"path": "P2"}}, **mine).status, 200)
        self.assertEqual(server.post("/finish_weight_update", {"weight_version": "b"}, **other).status, 409)
        self.assertEqual(text_of(server), "BCDE")
        self.assertEqual(server.post("/finish_weight_update", {"weight_version": "a"}, **mine).status, 200)
        self.assertEqual((text_of(server), server.weight_info()["weight_version"]), ("CEGI", "a"))
        self.assertEqual(server.post("/start_weight_update", **other).status, 200)

    def lost(self, server, method, path, body=None):
        """A call whose answer is cut off before its first byte, once it has been given."""
        with FaultProxy(server.port, lambda _: Fault(cut_at=0, upstream=False)) as proxy:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)
            with self.assertRaises((http.client.HTTPException, OSError)), contextlib.closing(connection):
                connection.request(method, path, json.dumps(body).encode() if body else None, JSON if body else {})
                connection.getresponse()
            self.assertTrue(proxy.done.is_set())

    def test_a_trainer_that_falls_silent_loses_its_turn(self):
        with Server("P2", "--lease", "1") as server:
            start = lambda owner: server.request("POST", "/start_weight_update", {}, {"Weft-Session": owner}).status
            self.assertEqual(start("gone"), 200)
            wait_for(lambda: start("next") == 200, "the turn of the one that is gone is over")
            push(server, "P2")

    def test_a_call_whose_answer_was_lost_may_be_made_again(self):
        server = self.serve("P_llama", "--allow-path", FIXTURES)
        for step, (fixture, text) in enumerate((("P2", "CEGI"), ("P_llama", "BCDE"))):
            for path, body in (("/pause?mode=keep", None), ("/init_weight_transfer_engine", {"init_info": {}}),
                               ("/start_weight_update", None), ("/update_weights", {"update_info": {"path": fixture}}),
                               ("/finish_weight_update", {"weight_version": f"step-{step}"}), ("/resume", None),
                               ("/update_weight_version", {"new_version": f"named-{step}"})):
                with self.subTest(path, step=step):
                    self.lost(server, "POST", path, body)
                    self.assertEqual(server.post(path, body).status, 200)
            self.assertEqual(text_of(server), text)
            self.assertEqual(server.weight_info()["weight_version"], f"named-{step}")
        page = server.get("/metrics").body.decode()
        self.assertRegex(page, r'weft_weight_updates_total\{[^}]*result="committed"\} 2\n')


class Labels(WeightsTest):
    def test_any_text_is_one_and_every_answer_says_it(self):
        server = self.serve("P_llama", "--allow-path", FIXTURES)
        for label in "", "x" * 10_240, "😊 step", "checkpoint/final", "it's \"quoted\"\\\n":
            with self.subTest(label[:20]):
                server.post("/start_weight_update")
                before = server.weight_info()["weight_version"]
                server.post("/update_weights", {"update_info": {"path": "P2"}})
                self.assertEqual(server.weight_info()["weight_version"], before)
                self.assertEqual(server.post("/finish_weight_update", {"weight_version": label}).status, 200)
                self.assertEqual(server.weight_info()["weight_version"], label)
                self.assertEqual([span["version"] for span in server.complete("A", 2)["weight_versions"]], [label])
                self.assertEqual(server.get("/weft/v1/versions/current").json()["label"], label)
                self.assertEqual(server.get("/metrics").status, 200)
                put = server.request("PUT", "/weft/v1/weights?label=" + urllib.parse.quote(label),
                                     (FIXTURES / "P_llama" / "model.safetensors").read_bytes())
                self.assertEqual((put.status, put.json()["label"]), (200, label))

    def test_one_that_is_too_long_moves_nothing(self):
        server = self.serve("P_llama")
        before = self.state_of(server)
        server.post("/start_weight_update")
        for path, body in ("/finish_weight_update", "weight_version"), ("/update_weight_version", "new_version"):
            self.assertEqual(server.post(path, {body: "x" * 20_000}).status, 400)
        self.assert_unmoved(server, before)


if __name__ == "__main__":
    unittest.main()
