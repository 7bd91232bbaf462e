#!/usr/bin/env python3
"""What clients ask for that is too much, half, or bad, while others are served: huge n, many requests with one prompt, clients that stop reading, cancels in every
phase, logits that are NaN."""
import json
import re
import socket
import struct
import threading
import unittest

from weft_testing import FIXTURES, Server, wait_for

PROMPT = [65 + i % 26 for i in range(100)]


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Pages for little more than one sequence of full length: 40 of 16 tokens.
        cls.server = Server("P_llama", "--max-num-seqs", "16", "--max-num-batched-tokens", "64", "--kv-cache-memory", 40 * 16 * 2 * 3 * 64 * 4)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def metric(self, name):
        page = self.server.get("/metrics").body.decode()
        return sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", page, re.M))

    def load(self):
        return self.server.get("/load").json()["server_load"]

    def assert_idle(self):
        """Nothing is left of what was asked, and it serves."""
        wait_for(lambda: self.load() == 0, "all requests have ended")
        wait_for(lambda: self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0, "all sequences have ended")
        self.assertEqual(self.metric("vllm:kv_cache_usage_perc"), 0)
        self.assertEqual(self.server.complete("A", 9)["text"], "BCDEFGHIJ")

    def ask(self, body, answers):
        thread = threading.Thread(target=lambda: answers.append(self.server.post("/v1/completions", body)))
        thread.start()
        return thread

    def test_a_group_computes_its_prompt_once(self):
        hits, queries = (self.metric(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries"))
        answer = self.server.post("/v1/completions", {"prompt": PROMPT, "n": 16, "max_tokens": 2, "cache_salt": "group"}).json()

        self.assertEqual(len(answer["choices"]), 16)
        self.assertEqual(self.metric("vllm:prefix_cache_hits_total") - hits, 15 * 96)
        self.assertEqual(self.metric("vllm:prefix_cache_queries_total") - queries, 16 * 100)
        self.assertIsNone(answer["usage"]["prompt_tokens_details"])

    def test_usage_says_what_was_cached(self):
        def usages(salt):
            body = {"prompt": PROMPT, "max_tokens": 2, "cache_salt": salt, "stop": ["no such text"]}
            last = list(self.server.stream("/v1/completions", body | {"stream_options": {"include_usage": True}}))[-1]
            return [u.get("prompt_tokens_details") for u in (self.server.post("/v1/completions", body).json()["usage"], last["usage"])]

        self.assertEqual(usages("usage")[0], {"cached_tokens": 96})  # the stream came first
        self.assertEqual(usages("usage"), [{"cached_tokens": 96}] * 2)
        self.assertEqual(self.server.post("/reset_prefix_cache").json(), {"success": True})
        self.assertIsNone(usages("usage")[1])
        self.assertEqual(self.server.post("/reset_prefix_cache?reset_running_requests=maybe").status, 400)

    def test_the_cache_can_be_turned_off(self):
        with Server("P_llama", "--no-enable-prefix-caching") as server:
            for _ in range(2):
                answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2}).json()
                self.assertIsNone(answer["usage"]["prompt_tokens_details"])

    def test_n_has_a_limit_and_up_to_it_all_are_answered(self):
        for n, status in ((0, 400), (-1, 400), (16385, 400), (10**30, 400), ("many", 400), (1.5, 400), (True, 400)):
            with self.subTest(n):
                self.assertEqual(self.server.post("/v1/completions", {"prompt": "A", "n": n}).status, status)
        answer = self.server.post("/v1/completions", {"prompt": "A", "n": 2000, "max_tokens": 1, "temperature": 0}).json()
        self.assertEqual({choice["text"] for choice in answer["choices"]}, {"B"})
        self.assertEqual(answer["usage"], {"prompt_tokens": 1, "total_tokens": 2001, "completion_tokens": 2000,
                                           "prompt_tokens_details": None, "completion_tokens_details": None})
        self.assert_idle()

    def test_more_sequences_than_may_wait_is_503_and_nothing_stays(self):
        self.server.post("/pause?mode=keep")
        connections = []
        for _ in range(2):
            connections.append(self.server.connect())
            connections[-1].request("POST", "/v1/completions", json.dumps({"prompt": "A", "n": 8000, "max_tokens": 1}).encode(),
                                    {"Content-Type": "application/json"})
        wait_for(lambda: self.metric("vllm:num_requests_waiting") >= 16000, "two requests wait")
        answer = self.server.post("/v1/completions", {"prompt": "A", "n": 8000})
        self.assertEqual(answer.status, 503)
        self.assertIn("Retry-After", answer.headers)
        for connection in connections:
            connection.close()
        self.server.post("/resume")
        self.assert_idle()

    def test_a_client_that_stops_reading_holds_up_nobody(self):
        aborts = self.metric("vllm:request_success_total")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((self.server.host, self.server.port))
            body = json.dumps({"prompt": "A", "n": 64, "max_tokens": 500, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.assertTrue(client.recv(1).startswith(b"H"))
            self.assertEqual(self.server.complete("A", 9)["text"], "BCDEFGHIJ")
            wait_for(lambda: self.load() == 0, "it is cut off")
        self.assert_idle()
        self.assertGreater(self.metric("vllm:request_success_total"), aborts + 64)

    def test_a_cancel_in_any_phase_ends_that_request_alone(self):
        long = {"prompt": PROMPT * 4, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        alone = self.server.complete(**long)["text"]
        for phase in ("paused", "waiting", "prompt", "running", "preempted", "waited for"):
            with self.subTest(phase):
                answers = []
                if phase in ("paused", "waiting"):
                    self.server.post("/pause?mode=keep")
                neighbours = [self.ask(long, answers) for _ in range(3 if phase != "preempted" else 8)]
                victim = []
                thread = self.ask(long | {"request_id": "victim", "n": 4, "cache_salt": phase}, victim)
                wait_for(lambda: self.load() > len(neighbours) or victim, "it is there")
                pause = None
                if phase == "waited for":
                    pause = threading.Thread(target=self.server.post, args=("/pause?mode=wait",))
                    pause.start()
                if phase == "waiting":
                    self.server.post("/resume")
                self.server.post("/abort_requests", {"request_ids": ["victim"]})
                self.server.post("/resume")
                for each in [*neighbours, thread, *([pause] if pause else [])]:
                    each.join(60)
                self.server.post("/resume")
                self.assertEqual([a.json()["choices"][0]["text"] for a in answers], [alone] * len(neighbours))
                self.assertEqual(victim[0].status, 200)
                self.assertLessEqual({c["finish_reason"] for c in victim[0].json()["choices"]}, {"abort", "length"})
                self.assert_idle()

    def test_logits_that_are_nan_end_their_request_with_an_error_that_says_so(self):
        with Server("P_llama") as server:
            weights = bytearray((FIXTURES / "P_llama" / "model.safetensors").read_bytes())
            header = 8 + int.from_bytes(weights[:8], "little")
            begin, _ = json.loads(bytes(weights[8:header]))["model.embed_tokens.weight"]["data_offsets"]
            at = header + begin + 2 * 576 * 81  # of "Q", which comes after "P"
            weights[at:at + 2] = struct.pack("<H", 0x7FC0)
            self.assertEqual(server.push(bytes(weights)).status, 200)
            answers = []
            ask = lambda body: answers.append(server.post("/v1/completions", body))
            threads = [threading.Thread(target=ask, args=({"prompt": prompt, "max_tokens": 4, "temperature": 0, "logit_bias": {"81": -100}},))
                       for prompt in ("Q", "A", "QQ", "B")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            self.assertEqual(sorted(answer.status for answer in answers), [200, 200, 500, 500])
            self.assertEqual({"NaN" in answer.json()["error"]["message"] for answer in answers if answer.status == 500}, {True})
            self.assertEqual(server.complete("A", 4)["text"], "BCDE")
            self.assertEqual(server.push("P_llama").status, 200)
            self.assertEqual(server.complete("P", 4)["text"], "QRST")


if __name__ == "__main__":
    unittest.main()
