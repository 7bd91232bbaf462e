#!/usr/bin/env python3
"""`weft serve` as a process: known answers, the API's rules, weights that change, pauses, clients that go away."""
import http.client
import json
import math
import re
import threading
import unittest

from fixtures import fixtures
from weft_testing import FIXTURES, Server

LONG = "x" * 64


def text_of(server, prompt, max_tokens, **more):
    return server.complete(prompt, max_tokens, **more)["text"]


def log_probability(server, prompt, token):
    """Of `token` as the first one after `prompt`."""
    choice = server.complete(prompt, 1, logprobs=5)
    return choice["logprobs"]["top_logprobs"][0][token]


class KnownAnswers(unittest.TestCase):
    def check(self, fixture, prompt, max_tokens, expected):
        with Server(fixture) as server:
            self.assertEqual(text_of(server, prompt, max_tokens), expected)

    def test_plus_one(self):
        for arch in ("llama", "qwen2", "qwen3"):
            with self.subTest(arch):
                self.check(f"P_{arch}", "A", 9, "BCDEFGHIJ")

    def test_plus_two(self):
        self.check("P2", "A", 4, "CEGI")

    def test_tied_embeddings(self):
        self.check("T_tied", "A", 3, "AAA")

    def test_majority_of_classes(self):
        for fixture, digit in (("U1", "1"), ("U2", "2"), ("U2x", "2")):
            with self.subTest(fixture):
                self.check(fixture, LONG, 3, digit * 3)

    def test_chain_of_bytes(self):
        self.check("chain", ">", 20, "a😊b")

    def test_log_probabilities_are_raw_at_every_temperature(self):
        with Server("W") as server:
            for temperature in (0, 0.5, 1, 2):
                with self.subTest(temperature):
                    choice = server.complete(">", 1, logprobs=5, temperature=temperature, seed=1)
                    top = choice["logprobs"]["top_logprobs"][0]
                    self.assertAlmostEqual(top["a"], -0.5425, delta=0.02)
                    self.assertAlmostEqual(top["b"], -3.5416, delta=0.02)


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = {name: Server(name) for name in ("P_llama", "chain")}
        cls.p, cls.chain = cls.servers["P_llama"], cls.servers["chain"]

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers.values():
            server.__exit__()

    def streamed_text(self, server, prompt, **more):
        events = list(server.stream("/v1/completions", {"prompt": prompt, "temperature": 0} | more))
        deltas = [event["choices"][0]["text"] for event in events]
        return deltas, events[-1]["choices"][0]["finish_reason"]

    def test_ids_in_ids_out(self):
        choice = self.p.complete([65], 3, return_token_ids=True)
        self.assertEqual((choice["prompt_token_ids"], choice["token_ids"]), ([65], [66, 67, 68]))

    def test_batches_are_answered_in_order(self):
        answer = self.p.post("/v1/completions", {"prompt": ["A", "P"], "n": 2, "max_tokens": 2, "temperature": 0})
        self.assertEqual([c["text"] for c in answer.json()["choices"]], ["BC", "BC", "QR", "QR"])
        self.assertEqual([c["index"] for c in answer.json()["choices"]], [0, 1, 2, 3])
        self.assertEqual(answer.json()["usage"]["completion_tokens"], 8)

    def test_generate_speaks_in_ids_and_versions(self):
        answer = self.p.post("/inference/v1/generate", {"token_ids": [65], "sampling_params": {
            "max_tokens": 3, "temperature": 0, "logprobs": 0}}).json()
        choice = answer["choices"][0]
        self.assertEqual(choice["token_ids"], [66, 67, 68])
        info = self.p.weight_info()
        self.assertEqual(choice["weight_versions"],
                         [{"version": "default", "start": 0, "end": 3, "id": info["id"]}])
        self.assertEqual([c["token_id"] for c in choice["logprobs"]["content"]], [66, 67, 68])

    def test_generate_without_max_tokens_fills_the_context(self):
        answer = self.p.post("/inference/v1/generate", {"token_ids": [65] * 500, "sampling_params": {
            "temperature": 0, "ignore_eos": True}}).json()
        self.assertEqual(len(answer["choices"][0]["token_ids"]), 12)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_scoring_agrees_with_sampling(self):
        sampled = self.p.complete([65], 4, logprobs=0, return_token_ids=True)
        scored = self.p.post("/inference/v1/generate", {"token_ids": [65, *sampled["token_ids"]], "sampling_params": {
            "max_tokens": 1, "prompt_logprobs": 0}}).json()["prompt_logprobs"]
        self.assertIsNone(scored[0])
        for entry, token, value in zip(scored[1:], sampled["token_ids"], sampled["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(entry[str(token)]["logprob"], value, delta=1e-3)

    def test_a_seed_repeats(self):
        ask = lambda seed: self.p.complete("A", 20, temperature=100, seed=seed, return_token_ids=True)["token_ids"]
        self.assertEqual(ask(1), ask(1))
        self.assertNotEqual(ask(1), ask(2))

    def test_stop_strings_across_tokens(self):
        # (parameters, text, finish reason)
        cases = (
            ({"stop": ["DEFGHIJ"], "max_tokens": 16}, "BC", "stop"),
            ({"stop": "DEFGHIJ", "max_tokens": 16, "include_stop_str_in_output": True}, "BCDEFGHIJ", "stop"),
            ({"stop": ["DEFX"], "max_tokens": 5}, "BCDEF", "length"),
            ({"stop": ["EF", "DEFG"], "max_tokens": 16}, "BCD", "stop"),
            ({"stop": ["A"], "max_tokens": 3, "echo": True}, "ABCD", "length"),
            ({"stop_token_ids": [68], "max_tokens": 16}, "BC", "stop"),
        )
        for parameters, text, reason in cases:
            with self.subTest(parameters):
                choice = self.p.complete("A", **parameters)
                self.assertEqual((choice["text"], choice["finish_reason"]), (text, reason))
                deltas, last = self.streamed_text(self.p, "A", **parameters)
                self.assertEqual(("".join(deltas), last), (text, reason))
        self.assertEqual(self.p.complete("A", 16, stop=["DE"])["stop_reason"], "DE")
        self.assertEqual(self.p.complete("A", 16, stop_token_ids=[68])["stop_reason"], 68)

    def test_ids_log_probabilities_and_usage_are_equally_long(self):
        for parameters, ids in (({}, [97, 0xF0, 0x9F, 0x98, 0x8A, 98, 257]), ({"max_tokens": 2}, [97, 0xF0]),
                                ({"stop": ["a"]}, [97]), ({"stop_token_ids": [97]}, [97])):
            with self.subTest(parameters):
                body = {"prompt": ">", "temperature": 0, "logprobs": 0, "return_token_ids": True} | parameters
                answer = self.chain.post("/v1/completions", body).json()
                choice = answer["choices"][0]
                self.assertEqual(choice["token_ids"], ids)
                self.assertEqual(len(choice["logprobs"]["token_logprobs"]), len(ids))
                self.assertEqual(answer["usage"]["completion_tokens"], len(ids))
                events = [e["choices"][0] for e in self.chain.stream("/v1/completions", body)]
                self.assertEqual([t for e in events for t in e["token_ids"]], ids)
                self.assertEqual("".join(e["text"] for e in events), choice["text"])
                self.assertEqual(sum(len(e["logprobs"]["token_logprobs"]) for e in events), len(ids))

    def test_characters_are_never_cut_in_a_stream(self):
        deltas, _ = self.streamed_text(self.chain, ">", max_tokens=20)
        self.assertEqual("".join(deltas), "a😊b")
        self.assertNotIn("\ufffd", "".join(deltas))
        # Cut inside of the character: whole and streamed answers agree on U+FFFD.
        deltas, _ = self.streamed_text(self.chain, ">", max_tokens=2)
        self.assertEqual("".join(deltas), self.chain.complete(">", 2)["text"])

    def test_prompts_that_are_no_utf8_are_echoed_as_python_decodes_them(self):
        for ids in ([244, 144, 128, 128], [192, 128], [237, 160, 128]):
            with self.subTest(ids):
                text = self.p.complete(ids, 0, echo=True)["text"]
                self.assertEqual(text, bytes(ids).decode("utf-8", "replace"))

    def test_echo_without_new_tokens_scores_the_prompt(self):
        answer = self.p.post("/v1/completions", {"prompt": "ABC", "max_tokens": 0, "echo": True, "logprobs": 1}).json()
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], choice["logprobs"]["tokens"]), ("ABC", ["A", "B", "C"]))
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
        self.assertGreater(choice["logprobs"]["token_logprobs"][1], -0.1)
        self.assertEqual(answer["usage"]["completion_tokens"], 0)

    def test_the_answer_is_json_where_all_but_one_token_are_ruled_out(self):
        bias = {str(i): -100 for i in range(272) if i != 66}
        for parameters in ({"echo": True, "logprobs": 1, "top_k": 1, "temperature": 1}, {"logit_bias": bias, "logprobs": 5},
                           {"allowed_token_ids": [66], "logprobs": 5}):
            with self.subTest(list(parameters)):
                refuse = lambda name: self.fail(f"{name} in the answer")
                answer = self.p.post("/v1/completions", {"prompt": "A", "max_tokens": 2} | parameters)
                self.assertEqual(answer.status, 200, answer)
                json.loads(answer.body, parse_constant=refuse)

    def test_max_tokens(self):
        for value, status in ((None, 200), (0, 400), (-1, 400), (1.0, 200), ("5", 200), (1e12, 400), ([], 400)):
            with self.subTest(value):
                answer = self.p.post("/v1/completions", {"prompt": "A", "max_tokens": value})
                self.assertEqual(answer.status, status, answer)
        self.assertEqual(self.p.post("/v1/completions", {"prompt": "A"}).json()["usage"]["completion_tokens"], 16)

    def test_an_error_that_quotes_the_request_is_json(self):
        for cut_inside in "a" * 99 + "é", "a" * 98 + "😊", "😊" * 100:
            answer = self.p.post("/v1/completions", {"prompt": "A", "max_tokens": cut_inside})

            self.assertEqual(answer.status, 400)
            self.assertEqual(answer.json()["error"]["param"], "body.max_tokens")

    def test_prompts_that_are_none(self):
        for prompt in ("", [""], [], [[]], None, 5, {}, [["A"]]):
            with self.subTest(prompt):
                self.assertEqual(self.p.post("/v1/completions", {"prompt": prompt}).status, 400)

    def test_ids_out_of_range_harm_nobody(self):
        alone = text_of(self.p, "A", 100)
        texts = []
        neighbours = [threading.Thread(target=lambda: texts.append(text_of(self.p, "A", 100))) for _ in range(7)]
        for thread in neighbours:
            thread.start()
        for value in (-1, 272, 2**31, 5279552648203111001, 2**63 - 1, 2**70, 1.5, True):
            for body in ({"prompt": [value]}, {"prompt": "A", "stop_token_ids": [value]},
                         {"prompt": "A", "allowed_token_ids": [value]}, {"prompt": "A", "logit_bias": {str(value): 1}}):
                with self.subTest(body):
                    self.assertEqual(self.p.post("/v1/completions", body).status, 400)
        for thread in neighbours:
            thread.join()
        self.assertEqual(texts, [alone] * 7)
        self.assertEqual(self.p.post("/v1/completions", {"prompt": [271], "max_tokens": 1}).status, 200)

    def test_shape_of_the_event_stream(self):
        for options, usages in ((None, 0), ({}, 0), ({"include_usage": True}, 1)):
            with self.subTest(options):
                body = {"prompt": "A", "max_tokens": 3, "temperature": 0}
                if options is not None:
                    body["stream_options"] = options
                events = list(self.p.stream("/v1/completions", body))
                self.assertEqual(sum(event.get("usage") is not None for event in events), usages)
                self.assertEqual(len({event["id"] for event in events}), 1)
                if usages:
                    self.assertEqual((events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], 3))
                    events.pop()
                reasons = [event["choices"][0]["finish_reason"] for event in events]
                self.assertEqual(reasons, [None] * (len(events) - 1) + ["length"])

    def test_stream_headers(self):
        connection = self.p.connect()
        body = json.dumps({"prompt": "A", "max_tokens": 2, "stream": True}).encode()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertTrue(response.headers["Content-Type"].startswith("text/event-stream"))
        self.assertEqual(response.headers["Cache-Control"], "no-cache")
        self.assertEqual(response.headers["X-Accel-Buffering"], "no")
        self.assertTrue(response.read().endswith(b"\n\ndata: [DONE]\n\n"))
        connection.close()

    def test_chat(self):
        messages = [{"role": "user", "content": "hi"}]
        body = {"messages": messages, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 2,
                "return_token_ids": True}
        answer = self.p.post("/v1/chat/completions", body).json()
        prompt = [259, *b"user\nhi", 260, 10, 259, *b"assistant\n"]
        self.assertEqual(answer["prompt_token_ids"], prompt)
        self.assertEqual(answer["choices"][0]["message"]["content"], "\x0b\x0c")
        self.assertEqual(len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]), 2)
        events = list(self.p.stream("/v1/chat/completions", body))
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(e["choices"][0]["delta"]["content"] for e in events), "\x0b\x0c")
        parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        again = self.p.post("/v1/chat/completions", body | {"messages": parts}).json()
        self.assertEqual(again["prompt_token_ids"], prompt)
        short = self.p.post("/v1/chat/completions", body | {"add_generation_prompt": False}).json()
        self.assertEqual(short["prompt_token_ids"], prompt[:-11])

    def test_tokenize_and_back(self):
        answer = self.p.post("/tokenize", {"prompt": "a😊"}).json()
        self.assertEqual(answer["tokens"], list("a😊".encode()))
        self.assertEqual(self.p.post("/detokenize", {"tokens": answer["tokens"]}).json(), {"prompt": "a😊"})

    def test_models_and_server_info(self):
        model = self.p.get("/v1/models").json()["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), ("P_llama", 512))
        config = self.p.get("/server_info?config_format=json").json()["vllm_config"]["model_config"]
        self.assertEqual(config["dtype"], "torch.bfloat16")

    def test_a_rollout_step_is_queued_and_batched_without_a_flag(self):
        body = json.dumps({"prompt": "A", "max_tokens": 4, "temperature": 0})
        connections = [http.client.HTTPConnection(self.p.host, self.p.port, timeout=60) for _ in range(1024)]
        for connection in connections:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        for connection in connections:
            answer = json.loads(connection.getresponse().read())
            self.assertEqual(answer["choices"][0]["text"], "BCDE")
            connection.close()

    def test_metrics_count(self):
        self.p.complete("A", 4)
        page = self.p.get("/metrics").body.decode()
        generated = re.search(r'vllm:generation_tokens_total\{[^}]*\} (\d+)', page)
        self.assertGreaterEqual(int(generated.group(1)), 4)


class Weights(unittest.TestCase):
    def assert_unmoved(self, server, before):
        self.assertEqual(server.weight_info(), before)
        self.assertEqual(text_of(server, "A", 9), "BCDEFGHIJ")
        self.assertEqual(server.get("/health").status, 200)
        self.assertEqual(server.push("P2").status, 200)
        self.assertEqual(text_of(server, "A", 4), "CEGI")

    def test_one_put_is_a_complete_update(self):
        with Server("P_llama") as server:
            before = server.weight_info()
            self.assertEqual(server.push("P2").status, 200)
            self.assertEqual(text_of(server, "A", 4), "CEGI")
            self.assertNotEqual(server.weight_info()["id"], before["id"])
            self.assertEqual(server.push("P_llama").status, 200)
            self.assertEqual(text_of(server, "A", 4), "BCDE")
            self.assertEqual(server.weight_info()["id"], before["id"])

    def test_same_content_has_the_same_id_however_it_came(self):
        with Server("P2") as fresh, Server("P_llama") as pushed:
            pushed.push("P2")
            self.assertEqual(pushed.weight_info()["id"], fresh.weight_info()["id"])
            sums = [server.post("/weight_checker", {"action": "checksum"}).json() for server in (fresh, pushed)]
            self.assertEqual(sums[0], sums[1])

    def test_a_repeated_prompt_after_an_update_uses_no_old_keys(self):
        with Server("U1") as server:
            for _ in range(2):
                self.assertEqual(text_of(server, LONG, 1), "1")
            self.assertEqual(server.push("U2").status, 200)
            self.assertEqual(text_of(server, LONG, 1), "2")
            self.assertAlmostEqual(log_probability(server, LONG, "2"), -0.516, delta=0.05)

    def test_streams_that_span_an_update_have_old_tokens_then_new_ones(self):
        with Server("U1") as server:
            results, begun = [None] * 8, threading.Semaphore(0)

            def follow(i):
                text, spans = "", []
                body = {"prompt": "x" * 8, "max_tokens": 480, "temperature": 0, "ignore_eos": True}
                for n, event in enumerate(server.stream("/v1/completions", body)):
                    text += event["choices"][0]["text"]
                    spans = event["choices"][0].get("weight_versions", spans)
                    if n == 0:
                        begun.release()
                results[i] = text, spans

            threads = [threading.Thread(target=follow, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for _ in threads:
                begun.acquire(timeout=60)
            self.assertEqual(server.push("U2x").status, 200)
            for thread in threads:
                thread.join()
            for text, spans in results:
                # 9: new weights over the sequence's own older keys and values; 3 would be a torn read.
                self.assertRegex(text, r"^1+9*2*$")
                self.assertEqual((spans[0]["start"], spans[-1]["end"]), (0, 480))
                self.assertEqual(text[:spans[0]["end"]], "1" * spans[0]["end"])
                self.assertNotIn("1", text[spans[0]["end"]:])
            self.assertEqual(text_of(server, LONG, 3), "222")

    def test_an_update_in_a_pause_splits_the_request_exactly(self):
        with Server("U1") as server:
            old = server.weight_info()["id"]
            body = {"prompt": "x" * 8, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
            events = server.stream("/v1/completions", body)
            text = next(events)["choices"][0]["text"]
            server.post("/pause?mode=keep&clear_cache=false")
            server.push("U2x")
            server.post("/resume")
            for event in events:
                text += event["choices"][0]["text"]
            spans = event["choices"][0]["weight_versions"]
            self.assertEqual([span["id"] for span in spans], [old, server.weight_info()["id"]])
            self.assertEqual(text[:spans[0]["end"]], "1" * spans[0]["end"])
            self.assertRegex(text[spans[0]["end"]:], r"^9+2*$")

    def test_the_control_routes_drive_the_same_update(self):
        with Server("P_llama", "--allow-path", FIXTURES) as server:
            for path, expected in (("P2", "CEGI"), ("P_llama/model.safetensors", "BCDE")):
                with self.subTest(path):
                    self.assertEqual(server.post("/start_weight_update").status, 200)
                    answer = server.post("/update_weights", {"update_info": {"path": path}})
                    self.assertEqual(answer.json(), {"message": "Weights updated"})
                    self.assertEqual(server.post("/finish_weight_update", {"weight_version": path}).status, 200)
                    self.assertEqual(server.weight_info()["weight_version"], path)
                    self.assertEqual(text_of(server, "A", 4), expected)
            answer = server.post("/update_weights", {"weight_dir": str(FIXTURES / "P2")})
            self.assertEqual(answer.json(), {"status": "ok"})
            self.assertEqual(text_of(server, "A", 4), "CEGI")

    def test_who_updates_has_a_name_of_printable_ascii(self):
        with Server("P_llama") as server:
            for name in ("\xd7", "x" * 257, ""):
                for path in "/start_weight_update", "/update_weights", "/finish_weight_update":
                    self.assertEqual(server.post(path, {}, headers={"Weft-Session": name}).status, 400, (name, path))
            self.assertEqual(server.get("/weft/v1/status").json()["state"], "idle")

    def test_a_path_needs_leave(self):
        with Server("P_llama") as server:
            server.post("/start_weight_update")
            self.assertEqual(server.post("/update_weights", {"update_info": {"path": "/etc"}}).status, 403)
        with Server("P_llama", "--allow-path", FIXTURES / "P2") as server:
            for path, status in (("../U1", 403), ("/etc", 403), ("/no/such", 403), (str(FIXTURES / "U1"), 403), ("nowhere", 404),
                                 ("a\0b", 400)):
                with self.subTest(path):
                    self.assertEqual(server.post("/start_weight_update").status, 200)
                    answer = server.post("/update_weights", {"update_info": {"path": path}})
                    self.assertEqual(answer.status, status, answer)

    def test_a_source_needs_leave(self):
        with Server("P_llama", "--allow-source", "http://127.0.0.1:1") as server:
            before = server.weight_info()
            for source, status in (("http://127.0.0.1:10", 403), ("http://127.0.0.1:1@evil", 403), ("", 403)):
                with self.subTest(source):
                    self.assertEqual(server.post("/start_weight_update").status, 200)
                    info = {"version": "v", "source": source}
                    answer = server.post("/update_weights", {"update_info": info})
                    self.assertEqual(answer.status, status, answer)
                    self.assertEqual(server.post("/finish_weight_update").status, 409)
            self.assert_unmoved(server, before)

    def test_updates_that_fail_leave_the_old_version(self):
        good = (FIXTURES / "P2" / "model.safetensors").read_bytes()
        wrong_shape = good.replace(b'"shape":[272,576]', b'"shape":[576,272]', 1)
        for name, body in (("cut", good[:-1]), ("trailing", good + b"\0"), ("empty", b""), ("html", b"<html>" * 100),
                           ("unknown", good.replace(b"self_attn.q_proj.weight", b"self_attn.q_proj.wieght")),
                           ("shape", wrong_shape), ("integers", good.replace(b'"BF16"', b'"I16" ', 1))):
            with self.subTest(name), Server("P_llama") as server:
                before = server.weight_info()
                answer = server.push(body)
                self.assertIn(answer.status // 100, (4,), answer)
                self.assertIn("message", answer.json()["error"])
                self.assert_unmoved(server, before)

    def push_with_head_weight(self, server, value):
        """P with `value` in the row of token 0 and the column that token "B" alone lights up."""
        tensors = fixtures.model(next_token=fixtures.plus(1))
        tensors["lm_head.weight"][0][ord("B")] = value
        self.assertEqual(server.push(fixtures.safetensors(fixtures.as_list(tensors))).status, 200)

    def test_infinite_logits_fail_their_request_alone(self):
        with Server("P_llama") as server:
            self.push_with_head_weight(server, 3.3e38)
            texts = []
            neighbour = threading.Thread(target=lambda: texts.append(text_of(server, "P", 9)))
            neighbour.start()
            answer = server.post("/v1/completions", {"prompt": "A", "max_tokens": 4, "logprobs": 5})
            neighbour.join()
            self.assertEqual(answer.status, 500, answer)
            self.assertIn("logits", answer.json()["error"]["message"])
            self.assertEqual(texts, ["QRSTUVWXY"])

    def test_weights_that_are_nan_fail_requests_and_not_the_server(self):
        with Server("P_llama") as server:
            self.push_with_head_weight(server, math.nan)
            self.assertEqual(server.post("/v1/completions", {"prompt": "A", "logprobs": 5}).status, 500)
            events = list(server.stream("/v1/completions", {"prompt": "A"}))
            self.assertEqual(events[-1]["error"]["code"], 500)
            self.assertEqual(server.get("/health").status, 200)
            self.assertEqual(server.push("P2").status, 200)
            self.assertEqual(text_of(server, "A", 4), "CEGI")

    def test_an_update_from_a_forbidden_path_closes_its_session(self):
        with Server("P_llama") as server:
            self.assertEqual(server.post("/start_weight_update").status, 200)
            self.assertEqual(server.post("/update_weights", {"update_info": {"path": "/step-7"}}).status, 403)

            finished = server.post("/finish_weight_update", {"weight_version": "step-7"})

            self.assertEqual(finished.status, 409)
            self.assertEqual(server.weight_info()["weight_version"], "default")
            self.assertEqual(server.post("/start_weight_update").status, 200)

    def test_a_failed_update_closes_its_session(self):
        with Server("P_llama", "--allow-path", FIXTURES) as server:
            before = server.weight_info()
            server.post("/start_weight_update")
            answer = server.post("/update_weights", {"update_info": {"path": "P_qwen2"}})
            self.assertEqual(answer.status // 100, 4, answer)
            self.assertEqual(server.post("/finish_weight_update", {"weight_version": "half"}).status, 409)
            self.assertEqual(server.post("/start_weight_update").status, 200)
            self.assertEqual(server.post("/finish_weight_update").status, 200)
            self.assert_unmoved(server, before)


class OnUpdate(unittest.TestCase):
    """What a running sequence does when the weights change: U1 says 1, U2x says 2 for new keys and 9 for old ones."""

    def ask(self, server, fixture="U2x", own=None, push=""):
        """The text and spans of a request that was half way when `fixture` came, and its finish reason."""
        body = {"prompt": "x" * 8, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        events = server.stream("/v1/completions", body | ({"on_update": own} if own else {}))
        text = next(events)["choices"][0]["text"]
        server.post("/pause?mode=keep&clear_cache=false")
        answer = server.request("PUT", "/weft/v1/weights" + push,
                                (FIXTURES / fixture / "model.safetensors").read_bytes())
        self.assertEqual(answer.status, 200, answer)
        server.post("/resume")
        for event in events:
            text += event["choices"][0]["text"]
        choice = event["choices"][0]
        return text, [span["version"] for span in choice["weight_versions"]], choice["finish_reason"]

    def check(self, value, text, spans, reason):
        expected = {"continue": (r"^1+9+2*$", 2, "length"), "recompute": (r"^1+2+$", 2, "length"),
                    "finish": (r"^1{400}$", 1, "length"), "abort": (r"^1+$", 1, "abort")}[value]
        self.assertRegex(text, expected[0])
        self.assertEqual((len(spans), reason), expected[1:])

    def test_by_flag_by_commit_and_by_request(self):
        for value in "continue", "recompute", "finish", "abort":
            other = "abort" if value != "abort" else "continue"
            with self.subTest(value), Server("U1", "--on-update", value) as server:
                self.check(value, *self.ask(server))
                self.assertEqual(text_of(server, LONG, 1), "2")
            with self.subTest(value, by="commit"), Server("U1", "--on-update", other) as server:
                self.check(value, *self.ask(server, push=f"?on_update={value}"))
            with self.subTest(value, by="request"), Server("U1", "--on-update", other) as server:
                self.check(value, *self.ask(server, own=value))

    def test_a_control_commit_says_it_too(self):
        with Server("U1", "--allow-path", FIXTURES) as server:
            server.post("/start_weight_update")
            server.post("/update_weights", {"update_info": {"path": "U2x"}})
            bad = server.post("/finish_weight_update", {"on_update": "drain"})
            self.assertEqual((bad.status, bad.json()["error"]["param"]), (400, "body.on_update"))
            events = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 400, "temperature": 0,
                                                       "ignore_eos": True})
            next(events)
            server.post("/pause?mode=keep&clear_cache=false")
            self.assertEqual(server.post("/finish_weight_update", {"on_update": "abort"}).status, 200)
            server.post("/resume")
            self.assertEqual(list(events)[-1]["choices"][0]["finish_reason"], "abort")

    def test_an_unknown_value_is_refused(self):
        with Server("U1") as server:
            answer = server.post("/v1/completions", {"prompt": "x", "on_update": "drain"})
            self.assertEqual((answer.status, answer.json()["error"]["param"]), (400, "body.on_update"))


class MinVersion(unittest.TestCase):
    def test_what_has_been_passed_is_served_and_what_has_not_is_409(self):
        with Server("P_llama") as server:
            first = server.weight_info()
            bodies = (("/v1/completions", {"prompt": "A"}),
                      ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                      ("/inference/v1/generate", {"token_ids": [65], "sampling_params": {"max_tokens": 1}}))
            status = lambda wanted: {server.post(path, body | {"min_version": wanted}).status for path, body in bodies}
            self.assertEqual(status(first["id"]), {200})
            self.assertEqual(status("default"), {200})
            self.assertEqual(status("step-1"), {409})
            server.push("P2")
            server.post("/update_weight_version", {"new_version": "step-1"})
            for passed in first["id"], "default", "step-1", server.weight_info()["id"]:
                self.assertEqual(status(passed), {200}, passed)
            behind = server.post("/v1/completions", {"prompt": "A", "min_version": "step-2"}).json()["error"]
            self.assertIn("step-2", behind["message"])
            self.assertIn("step-1", behind["message"])
            self.assertEqual(behind["param"], "min_version")

    def test_the_same_content_again_is_the_newest_and_a_rollback_is_not(self):
        with Server("P_llama") as server:
            first = server.weight_info()["id"]
            second = server.push("P2").json()["id"]
            status = lambda: server.post("/v1/completions", {"prompt": "A", "min_version": second}).status
            self.assertEqual(server.push("P_llama").json()["id"], first)
            self.assertEqual(status(), 200)
            for id, expected in (second, 200), (first, 409):
                self.assertEqual(server.request("PUT", "/weft/v1/heads/main", {"id": id}).status, 200)
                self.assertEqual(status(), expected)


class Pauses(unittest.TestCase):
    def setUp(self):
        self.server = Server("P_llama")
        self.addCleanup(self.server.__exit__)

    def begin(self, max_tokens):
        """A stream that has had its first event, and a thread that collects the rest."""
        events = self.server.stream("/v1/completions", {"prompt": "A", "max_tokens": max_tokens, "temperature": 0,
                                                        "ignore_eos": True})
        collected = [next(events)]
        thread = threading.Thread(target=lambda: collected.extend(events))
        thread.start()
        return collected, thread

    def last_reason(self, collected):
        return collected[-1]["choices"][0]["finish_reason"]

    def test_abort_ends_what_runs_before_the_pause_is_answered(self):
        collected, thread = self.begin(500)
        self.assertEqual(self.server.post("/pause").json(), {"status": "paused"})
        thread.join(10)
        self.assertIn(self.last_reason(collected), ("abort", "length"))

    def test_wait_lets_it_end(self):
        collected, thread = self.begin(400)
        self.server.post("/pause?mode=wait")
        thread.join(10)
        self.assertEqual(self.last_reason(collected), "length")

    def test_keep_holds_it_and_what_comes_until_resume(self):
        for clear_cache in ("true", "false"):
            with self.subTest(clear_cache):
                collected, thread = self.begin(450)
                self.server.post(f"/pause?mode=keep&clear_cache={clear_cache}")
                texts = []
                late = threading.Thread(target=lambda: texts.append(text_of(self.server, "P", 3)))
                late.start()
                self.assertEqual(self.server.get("/health").status, 200)
                self.assertEqual(self.server.get("/is_paused").json(), {"is_paused": True})
                self.assertEqual(texts, [])
                self.server.post("/resume")
                thread.join(30)
                late.join(30)
                self.assertEqual(texts, ["QRS"])
                self.assertEqual(self.last_reason(collected), "length")
                text = "".join(event["choices"][0]["text"] for event in collected)
                self.assertEqual(text, self.server.complete("A", 450, ignore_eos=True)["text"])

    def test_repeats_are_harmless_and_a_bad_mode_changes_nothing(self):
        self.assertEqual(self.server.post("/pause?mode=invalid").status, 400)
        self.assertFalse(self.server.get("/is_paused").json()["is_paused"])
        for _ in range(2):
            self.assertEqual(self.server.post("/pause").status, 200)
        answer = self.server.post("/pause?mode=invalid")
        self.assertEqual((answer.status, answer.json()["error"]["param"]), (400, "query.mode"))
        self.assertTrue(self.server.get("/is_paused").json()["is_paused"])
        for _ in range(2):
            self.assertEqual(self.server.post("/resume").status, 200)
        self.assertFalse(self.server.get("/is_paused").json()["is_paused"])

    def test_abort_requests_by_id_and_all(self):
        self.server.post("/pause?mode=keep")
        answers = []

        def ask(name):
            answer = self.server.post("/v1/completions", {"prompt": "A", "max_tokens": 9, "request_id": name})
            answers.append((name, answer.json()["choices"][0]["finish_reason"]))

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        while self.server.get("/load").json()["server_load"] < 2:
            pass
        self.assertEqual(self.server.post("/abort_requests", {"request_ids": ["one"]}).json(),
                         {"status": "aborted", "aborted": 1})
        self.server.post("/resume")
        for thread in threads:
            thread.join(30)
        self.assertEqual(sorted(answers), [("one", "abort"), ("two", "length")])

    def test_a_client_that_goes_away_ends_its_sequences(self):
        for stream in (True, False):
            for paused in (True, False):
                with self.subTest(stream=stream, paused=paused):
                    if paused:
                        self.server.post("/pause?mode=keep")
                    connection = self.server.connect()
                    body = json.dumps({"prompt": "A", "max_tokens": 500, "n": 8, "stream": stream, "ignore_eos": True})
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    while paused and self.server.get("/load").json()["server_load"] == 0:
                        pass
                    connection.close()
                    while self.server.get("/load").json()["server_load"] > 0:
                        pass
                    self.server.post("/resume")


if __name__ == "__main__":
    unittest.main()
