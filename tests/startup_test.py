#!/usr/bin/env python3
"""Bad starts of `weft serve`: an exit status that says what kind, and one line that says what, never a crash."""
import json
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import unittest

from weft_testing import FIXTURES, Program, Server, wait_for

INVALID, FORBIDDEN, NOT_FOUND, CONFLICT, CORRUPT, OVERLOADED = 2, 3, 4, 5, 6, 7


class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = pathlib.Path(folder.name) / "model"
        shutil.copytree(FIXTURES / "P_llama", self.model)
        self.weights = self.model / "model.safetensors"

    def assert_refused(self, statuses, *words, arguments=None):
        with Program("serve", *(arguments or [self.model, "--port", "0"])) as program:
            status = program.wait()
        self.assertIn(status, statuses, program.lines)
        self.assertEqual(len(program.lines), 1, program.lines)
        for word in words:
            self.assertIn(word, program.lines[0])

    def change_config(self, **changes):
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))


class BadStart(Start):
    def change_header(self, old, new):
        """Of equal length, so that offsets stay true."""
        self.assertEqual(len(old), len(new))
        data = self.weights.read_bytes()
        self.assertIn(old, data)
        self.weights.write_bytes(data.replace(old, new, 1))

    def test_no_such_folder(self):
        self.assert_refused([NOT_FOUND], "nowhere", arguments=["/nowhere", "--port", "0"])

    def test_an_empty_folder(self):
        shutil.rmtree(self.model)
        self.model.mkdir()
        self.assert_refused([NOT_FOUND], "config.json")

    def test_no_weights(self):
        self.weights.unlink()
        self.assert_refused([NOT_FOUND], str(self.model))

    def test_pickles_are_no_weights(self):
        self.weights.rename(self.model / "pytorch_model.bin")
        self.assert_refused([INVALID], "pytorch_model.bin", "safetensors")

    def test_a_truncated_file(self):
        data = self.weights.read_bytes()
        for size in (0, 7, 100, len(data) - 1):
            with self.subTest(size):
                self.weights.write_bytes(data[:size])
                self.assert_refused([CORRUPT], "model.safetensors")

    def test_trailing_bytes(self):
        with self.weights.open("ab") as file:
            file.write(b"\0")
        self.assert_refused([CORRUPT], "model.safetensors")

    def test_a_config_that_is_no_json(self):
        (self.model / "config.json").write_text("{")
        self.assert_refused([INVALID], "config.json")

    def test_a_tokenizer_that_is_none(self):
        (self.model / "tokenizer.json").write_text("{}")
        self.assert_refused([INVALID], "tokenizer.json")

    def test_what_is_not_supported_is_refused_by_name(self):
        for changes, word in (({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "Mamba"),
                              ({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}, "Qwen3Moe"),
                              ({"num_experts": 8}, "num_experts"),
                              ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
                              ({"hidden_act": "gelu"}, "hidden_act"),
                              ({"rope_scaling": {"rope_type": "magic"}}, "magic")):
            with self.subTest(word):
                shutil.copy(FIXTURES / "P_llama" / "config.json", self.model)
                self.change_config(**changes)
                self.assert_refused([INVALID], word)

    def test_a_wrong_shape(self):
        self.change_header(b'"shape":[192,576]', b'"shape":[576,192]')
        self.assert_refused([INVALID], "model.safetensors", "self_attn.k_proj.weight", "[192, 576]", "[576, 192]")

    def test_a_missing_and_an_unknown_tensor(self):
        self.change_header(b"layers.0.self_attn.q_proj.weight", b"layers.0.self_attn.q_proj.wieght")
        self.assert_refused([INVALID], "q_proj.weight")

    def test_an_untied_model_needs_its_head(self):
        shutil.copy(FIXTURES / "T_tied" / "model.safetensors", self.model)
        self.assert_refused([INVALID], "lm_head.weight")

    def test_a_dtype_that_is_no_float(self):
        self.change_header(b'"dtype":"BF16"', b'"dtype":"I16" ')
        self.assert_refused([INVALID], "model.safetensors", "I16")

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.assert_refused([CONFLICT], port, arguments=[self.model, "--port", port])

    def test_a_host_that_is_none(self):
        self.assert_refused([INVALID], "nohost.invalid",
                            arguments=[self.model, "--port", "0", "--insecure", "--host", "nohost.invalid"])

    def test_a_host_that_lets_others_in_needs_an_admin_key(self):
        self.assert_refused([INVALID], "0.0.0.0", "--admin-key", "--insecure",
                            arguments=[self.model, "--port", "0", "--host", "0.0.0.0"])

    def test_keys_that_are_none(self):
        empty = self.model / "key"
        empty.write_text("\n")
        for arguments in (["--admin-key", "two words"], ["--admin-key", ""], ["--read-key", "é"],
                          ["--admin-key-file", empty]):
            with self.subTest(arguments):
                self.assert_refused([INVALID], arguments[0].removesuffix("-file"),
                                    arguments=[self.model, "--port", "0", *arguments])
        self.assert_refused([NOT_FOUND], "/nowhere", arguments=[self.model, "--port", "0", "--read-key-file", "/nowhere"])

    def test_more_memory_than_there_is(self):
        for flag, value in ("--kv-cache-memory", "900TiB"), ("--max-model-len", "1000000000"), ("--max-model-len", str(2**63 - 1)):
            with self.subTest(value):
                self.assert_refused([INVALID, OVERLOADED], flag, arguments=[self.model, "--port", "0", flag, value])

    def test_wrong_flags(self):
        for arguments in ([], [self.model, "--bogus"], [self.model, "--port", "70000"], [self.model, "--port", "x"],
                          [self.model, "--dtype", "int8"], [self.model, "--threads", "-1"],
                          [self.model, "--max-num-seqs", "0"], [self.model, "--allow-path", "/nowhere"],
                          [self.model, "--log-level", "loud"], [self.model, "another"],
                          [self.model, "--on-update", "drain"], [self.model, "--on-third", "x"],
                          [self.model, "--commit-mode", "x"], [self.model, "--verify", "x"],
                          [self.model, "--admin-key", "a", "--admin-key-file", "/dev/null"]):
            with self.subTest(arguments), Program("serve", *arguments) as program:
                self.assertEqual(program.wait(), INVALID, program.lines)
                self.assertEqual(len(program.lines), 1, program.lines)


class StateDirectory(Start):
    """What --state-dir has kept is served again, or the start is refused with what is wrong and how to go on."""

    def setUp(self):
        super().setUp()
        self.state = self.model.parent / "state"
        self.current = self.state / "current"
        self.arguments = [self.model, "--port", "0", "--state-dir", self.state]

    def serve(self, *flags):
        return Server(self.model, "--state-dir", self.state, *flags)

    def save(self, model="P2"):
        """The id of what was committed."""
        with self.serve() as server:
            id = server.push(model).json()["id"]
            wait_for(self.current.exists, "it is saved")
            return id

    def assert_unusable(self, statuses, *words):
        self.assert_refused(statuses, *words, f"to start as if nothing had been saved, remove {self.current}",
                            arguments=self.arguments)

    def test_what_was_saved_is_served(self):
        id = self.save()
        with self.serve() as server:
            self.assertEqual((server.weight_info()["id"], server.complete("A", 4)["text"]), (id, "CEGI"))

    def test_damage_is_not_served(self):
        id = self.save()
        weights = self.current / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1000] ^= 1
        weights.write_bytes(data)
        self.assert_unusable([CORRUPT], str(self.state.resolve()), "weft-version.json", "damaged: it is blake3:", id)
        weights.write_bytes(data[:-1000])
        self.assert_unusable([CORRUPT], "model.safetensors")
        self.current.unlink()
        with self.serve() as server:
            self.assertEqual(server.complete("A", 4)["text"], "BCDE")

    def test_a_file_of_another_version_is_damage_too(self):
        id = self.save()
        (self.current / "generation_config.json").write_text('{"eos_token_id": 7}')
        self.assert_unusable([CORRUPT], "damaged", id)

    def test_a_record_that_is_none(self):
        self.save()
        for record in b"", b"{", b"[]", b'{"id": "x"}', b'{"id": "x", "label": "\xff"}':
            with self.subTest(record):
                (self.current / "weft-version.json").write_bytes(record)
                self.assert_unusable([CORRUPT], "weft-version.json")

    def test_the_state_of_another_model(self):
        self.save()
        self.change_config(rope_theta=123456.0)
        self.assert_unusable([CONFLICT], "another model", "`rope_theta`", "123456")

    def test_a_dtype_that_was_not_saved(self):
        self.save()
        self.arguments += ["--dtype", "float32"]
        self.assert_unusable([CONFLICT], "--dtype")

    def test_one_process_has_it(self):
        with self.serve() as server:
            self.assert_refused([CONFLICT], str(self.state), f"process {server.process.pid}", arguments=self.arguments)
            server.process.kill()
            server.wait()
        self.save()

    def test_a_place_that_cannot_hold_it(self):
        file = self.model.parent / "file"
        file.touch()
        for place, statuses in ((file, [NOT_FOUND]), (file / "in", [NOT_FOUND]), ("/proc/no", [NOT_FOUND, FORBIDDEN]),
                                (self.model, [INVALID])):
            with self.subTest(place):
                self.assert_refused(statuses, str(place), arguments=[self.model, "--port", "0", "--state-dir", place])
        self.assert_refused([INVALID], "--state-dir", arguments=[self.model, "--state-dir", ""])

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_a_folder_that_may_not_be_written(self):
        self.state.mkdir(0o500)
        self.assert_refused([FORBIDDEN], str(self.state), arguments=self.arguments)


class Stop(unittest.TestCase):
    def test_signals_end_it_cleanly(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number), Server("P_llama") as server:
                self.assertEqual(server.stop(number), status)

    def test_a_signal_ends_requests_too(self):
        with Server("P_llama") as server:
            events = server.stream("/v1/completions", {"prompt": "A", "max_tokens": 500, "ignore_eos": True})
            next(events)
            self.assertEqual(server.stop(signal.SIGINT), 130)
            self.assertIn(list(events)[-1]["choices"][0]["finish_reason"], ("abort", "length"))

    def test_a_signal_ends_a_paused_server(self):
        with Server("P_llama") as server:
            server.post("/pause?mode=keep")
            self.assertEqual(server.stop(signal.SIGTERM), 143)

    def test_the_same_port_serves_again_at_once(self):
        with Server("P_llama") as server:
            server.get("/health")
            port = server.port
            server.stop()
        with Server("P_llama", port=port) as server:
            self.assertEqual(server.get("/health").status, 200)


class Keys(unittest.TestCase):
    """Who may do what, by whichever way the keys came."""

    def assert_guarded(self, server, admin, read):
        bearer = lambda key: {"Authorization": f"Bearer {key}"}
        control = lambda **more: server.post("/resume", **more).status
        self.assertEqual([control(), control(headers=bearer("wrong")), control(headers=bearer(read)),
                          control(headers=bearer(admin))], [401, 401, 401, 200])
        self.assertEqual(server.post("/resume").headers["WWW-Authenticate"], "Bearer")
        self.assertEqual(server.push("P2").status, 401)
        self.assertEqual(server.push("P2", **bearer(admin)).status, 200)
        for path in "/health", "/metrics", "/v1/models", "/weight_info":
            self.assertEqual(server.get(path).status, 200, path)
        self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_from_flags_which_ps_does_not_show(self):
        with Server("P_llama", "--admin-key", "secret-a", "--read-key=secret-r") as server:
            shown = pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
            self.assertNotIn(b"secret", shown)
            self.assertIn(b"--admin-key", shown)
            self.assert_guarded(server, "secret-a", "secret-r")
            self.assertNotIn("secret", "\n".join(server.lines))

    def test_from_files_and_the_environment(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("from-file\n")
            file.flush()
            os.environ["WEFT_READ_KEY"] = "from-environment"
            self.addCleanup(os.environ.pop, "WEFT_READ_KEY")
            with Server("P_llama", "--admin-key-file", file.name) as server:
                self.assert_guarded(server, "from-file", "from-environment")

    def test_beyond_loopback_with_a_key_or_a_word(self):
        for flags in ["--admin-key", "a"], ["--insecure"]:
            with self.subTest(flags), Server("P_llama", "--host", "0.0.0.0", *flags) as server:
                self.assertEqual(server.get("/health").status, 200)


class Options(unittest.TestCase):
    def test_dtype_converts_and_says_so(self):
        for dtype in ("float32", "float16"):
            with self.subTest(dtype), Server("P_llama", "--dtype", dtype) as server:
                self.assertEqual(server.complete("A", 9)["text"], "BCDEFGHIJ")
                self.assertTrue(server.weight_info()["converted"])

    def test_names_and_lengths(self):
        with Server("P_llama", "--served-model-name", "n", "--max-model-len", "32") as server:
            model = server.get("/v1/models").json()["data"][0]
            self.assertEqual((model["id"], model["max_model_len"]), ("n", 32))
            self.assertEqual(server.post("/v1/completions", {"model": "P_llama", "prompt": "A"}).status, 404)
            self.assertEqual(server.post("/v1/completions", {"model": "n", "prompt": "A" * 32}).status, 400)

    def test_a_small_cache_and_small_steps_change_nothing(self):
        with Server("P_llama", "--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--deterministic") as server:
            answer = server.post("/v1/completions", {"prompt": ["A" * 40] * 8, "max_tokens": 9, "temperature": 0})
            self.assertEqual({choice["text"] for choice in answer.json()["choices"]}, {"BCDEFGHIJ"})


if __name__ == "__main__":
    unittest.main()
