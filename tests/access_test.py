#!/usr/bin/env python3
"""Keys are asked for on every route that docs/openapi.yaml puts behind one, however the path is spelt; what is open is listed here."""
import os
import pathlib
import re
import socket
import tempfile
import unittest

from store_test import Store
from weft_testing import TIMEOUT_S, Server

DOCUMENT = pathlib.Path(os.environ["WEFT_SOURCE_DIR"]) / "docs/openapi.yaml"
# Open in front of any key: generating, watching, and what vLLM tells anybody. All else needs one.
OPEN = {
    "GET /health", "GET /ping", "POST /ping", "GET /version", "GET /metrics", "GET /load", "GET /server_info", "GET /v1/models",
    "POST /v1/completions", "POST /v1/chat/completions", "POST /inference/v1/generate", "POST /tokenize", "POST /detokenize",
    "GET /is_paused", "GET /is_sleeping", "GET /weight_info", "GET /get_world_size"}


def documented():
    """{"METHOD /path": key, "" where it is open}; the file is laid out for one line each."""
    routes, path, route = {}, None, None
    for line in DOCUMENT.read_text().splitlines():
        if line == "components:":
            break
        if match := re.fullmatch(r"  (/\S*):", line):
            path = match[1]
        elif match := re.fullmatch(r"    (get|post|put|delete):", line):
            route = f"{match[1].upper()} {path}"
            routes[route] = ""
        elif match := re.fullmatch(r"      security: \[\{ (\w+): \[\] \}, \{\}\]", line):
            routes[route] = match[1]
    return routes


def request_of(route):
    method, path = route.split()
    return method, re.sub(r"\{\w+\}", "0", path)


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Access(unittest.TestCase):
    def check(self, server, routes):
        opens = {"": "", "read": "the-read-key", "admin": "the-admin-key"}
        for route, key in routes.items():
            method, path = request_of(route)
            with self.subTest(route):
                status = lambda **more: server.request(method, path, **more).status
                self.assertEqual(status() == 401, bool(key))
                self.assertEqual(status(headers=bearer("the-wrong-key")) == 401, bool(key))
                if key == "admin":
                    self.assertEqual(status(headers=bearer("the-read-key")), 401)
                if key == "read":
                    self.assertEqual(server.request("HEAD", path).status, 401)
                    self.assertNotEqual(status(headers=bearer(opens[key])), 401)

    def test_the_document_says_which_key_every_route_needs(self):
        routes = documented()
        self.assertGreater(len(routes), 50)
        self.assertEqual({route for route, key in routes.items() if not key}, OPEN)

    def test_a_server_asks_for_it(self):
        with Server("P_llama", "--admin-key", "the-admin-key", "--read-key", "the-read-key") as server:
            self.check(server, documented())
            self.assertEqual(server.get("/weft/v1/status", headers=bearer("the-read-key")).json()["state"], "idle")

    def test_a_store_asks_for_it(self):
        routes = {route: key for route, key in documented().items() if "/weft/v1/" in route or route in ("GET /health", "GET /metrics")}
        with tempfile.TemporaryDirectory() as folder, \
                Store(f"{folder}/store", "--admin-key", "the-admin-key", "--read-key", "the-read-key") as store:
            self.check(store, {route: key for route, key in routes.items() if "versions/current" not in route})

    def raw(self, server, target):
        with socket.create_connection((server.host, server.port), TIMEOUT_S) as connection:
            connection.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            return int(connection.makefile("rb").readline().split()[1])

    def test_no_spelling_of_a_path_gets_around_it(self):
        with Server("P_llama", "--admin-key", "the-admin-key") as server:
            for target, status in (("/pause", 401), ("/%70ause", 401), ("/pause/", 401), ("/pause?mode=keep", 401),
                                   ("http://x/pause", 401), ("//pause", 404), ("/PAUSE", 404), ("/v1/../pause", 404),
                                   ("/x/../../pause", 404), ("/./pause", 404), ("/pause;x", 404), ("/pause%2f", 404),
                                   ("/%2fpause", 404), ("/pause%00", 404), ("//v1/completions", 404), ("/V1/completions", 404)):
                with self.subTest(target):
                    self.assertEqual(self.raw(server, target), status)
            for method in "OPTIONS", "TRACE", "PATCH", "GET", "HEAD":
                self.assertEqual(server.request(method, "/pause").status, 405)
            self.assertFalse(server.get("/is_paused").json()["is_paused"])


if __name__ == "__main__":
    unittest.main()
