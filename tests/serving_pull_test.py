#!/usr/bin/env python3
"""`weft serve` as one that pulls: from a source named in an update, and following a head. A server is a source too."""
import re
import socket
import threading
import unittest

from weft_testing import TIMEOUT_S, Server, wait_for


def text_of(server, max_tokens=4):
    return server.complete("A", max_tokens)["text"]


class Sources(unittest.TestCase):
    def update_from(self, server, version, url):
        self.assertEqual(server.post("/start_weight_update").status, 200)
        return server.post("/update_weights", {"update_info": {"version": version, "source": url}})

    def test_an_update_is_pulled_by_id_or_label(self):
        with Server("P2") as source, Server("P_llama", "--allow-source", source.url) as server:
            source.post("/update_weight_version", {"new_version": "step-7"})
            for version in source.weight_info()["id"], "step-7":
                with self.subTest(version):
                    answer = self.update_from(server, version, source.url)
                    self.assertEqual(answer.status, 200, answer)
                    self.assertEqual(text_of(server), "BCDE")
                    self.assertEqual(server.post("/finish_weight_update", {"weight_version": "v"}).status, 200)
                    self.assertEqual(text_of(server), "CEGI")
                    self.assertEqual(server.weight_info()["id"], source.weight_info()["id"])
                    self.assertEqual(server.push("P_llama").status, 200)

    def test_an_update_that_was_not_started_is_out_of_order(self):
        with Server("P2") as source, Server("P_llama", "--allow-source", source.url) as server:
            info = {"update_info": {"version": source.weight_info()["id"], "source": source.url}}
            for _ in range(2):
                self.assertEqual(server.post("/update_weights", info).status, 409)
                self.assertEqual(server.post("/finish_weight_update").status, 409)
            self.assertEqual(text_of(server), "BCDE")

    def test_what_cannot_be_pulled_leaves_the_old_version(self):
        with Server("P2") as source, Server("P_llama", "--allow-source", source.url, "--allow-source",
                                            "http://127.0.0.1:1") as server:
            before = server.weight_info()
            for version, url, status in (("no-such", source.url, 404), ("blake3:" + 64 * "0", source.url, 404),
                                         ("v", "http://127.0.0.1:1", 503)):
                with self.subTest(version):
                    answer = self.update_from(server, version, url)
                    self.assertEqual(answer.status // 100, status // 100, answer)
                    self.assertEqual(server.post("/finish_weight_update").status, 409)
            self.assertEqual((server.weight_info(), text_of(server)), (before, "BCDE"))


    def test_a_source_that_says_nothing_does_not_keep_the_server_from_stopping(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with Server("P_llama", "--allow-source", url) as server:
                answers = []
                asking = threading.Thread(target=lambda: answers.append(self.update_from(server, "v", url)))
                asking.start()
                connection, _ = silent.accept()  # it has asked
                self.assertEqual(server.stop(), 143)
                asking.join(TIMEOUT_S)
                connection.close()
                self.assertGreaterEqual(answers[0].status, 400)


class Follow(unittest.TestCase):
    def wait_until_same(self, server, source):
        wanted = source.weight_info()
        wait_for(lambda: server.weight_info()["id"] == wanted["id"], wanted)

    def test_it_starts_with_no_folder_and_keeps_up(self):
        with Server("P_llama") as source, Server(None, "--follow", source.url) as server:
            self.assertEqual(text_of(server), "BCDE")
            self.assertEqual(server.weight_info()["id"], source.weight_info()["id"])
            chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
            self.assertEqual(server.post("/v1/chat/completions", chat).status, 200)
            for fixture, text in ("P2", "CEGI"), ("P_llama", "BCDE"):
                with self.subTest(fixture):
                    source.push(fixture)
                    self.wait_until_same(server, source)
                    self.assertEqual(text_of(server), text)
            lag = lambda: server.get("/metrics").body.decode()
            wait_for(lambda: re.search(r"weft_weight_version_lag\{[^}]*\} 0", lag()), "lag 0")

    def test_it_goes_on_when_the_source_comes_back(self):
        with Server("P2") as source:
            port = source.port
            with Server("P_llama", "--follow", source.url + "#main") as server:
                self.wait_until_same(server, source)
                source.stop()
                self.assertEqual(text_of(server), "CEGI")
                with Server("P_llama", port=port) as again:
                    self.wait_until_same(server, again)
                    self.assertEqual(text_of(server), "BCDE")

    def test_it_stops_while_what_it_follows_waits_for_a_sequence(self):
        with Server("U1") as source, Server("U1", "--follow", source.url, "--on-update", "finish") as server:
            server.wait_for_line("serves")
            events = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 400, "ignore_eos": True})
            next(events)
            self.assertEqual(server.post("/pause?mode=keep&clear_cache=false").status, 200)
            source.push("U2x")
            self.wait_until_same(server, source)
            source.push("P2")
            wait_for(lambda: re.search(r"weft_weight_version_lag\{[^}]*\} 1", server.get("/metrics").body.decode()), "lag 1")

            self.assertEqual(server.stop(), 143)
            self.assertEqual(list(events)[-1]["choices"][0]["finish_reason"], "abort")

    def test_the_source_has_its_own_key(self):
        with Server("P2", "--read-key", "r") as source:
            with Server("P_llama", "--follow", source.url, "--source-key", "r") as server:
                self.wait_until_same(server, source)


if __name__ == "__main__":
    unittest.main()
