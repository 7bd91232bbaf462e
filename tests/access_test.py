#!/usr/bin/env python3
"""Keys are asked for on every route that docs/openapi.yaml puts behind one, however the path is spelt; what is open is listed here."""
import contextlib
import http.client
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

from store_test import Store
from weft_testing import FIXTURES, TIMEOUT_S, WEFT, Server

DOCUMENT = pathlib.Path(os.environ["WEFT_SOURCE_DIR"]) / "docs/openapi.yaml"
# Open in front of any key: watching, and what vLLM tells anybody. All else needs one.
OPEN = {
    "GET /health", "GET /ping", "POST /ping", "GET /version", "GET /metrics", "GET /load", "GET /server_info", "POST /tokenize", "POST /detokenize",
    "GET /is_paused", "GET /is_sleeping", "GET /weight_info", "GET /get_world_size"}
KEYS = ("--admin-key", "the-admin-key", "--read-key", "the-read-key", "--api-key", "the-api-key")


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


def status_at(url, method, path, headers={}):
    """Of a request to http://HOST:PORT or unix:PATH."""
    if url.startswith("unix:"):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(TIMEOUT_S)
        connection.sock.connect(url.removeprefix("unix:"))
    else:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


class Access(unittest.TestCase):
    def check(self, server, routes):
        keys = {"read": "the-read-key", "api": "the-api-key", "admin": "the-admin-key"}
        for route, key in routes.items():
            method, path = request_of(route)
            with self.subTest(route):
                status = lambda **more: server.request(method, path, **more).status
                self.assertEqual(status() == 401, bool(key))
                self.assertEqual(status(headers=bearer("the-wrong-key")) == 401, bool(key))
                for other in keys.keys() - {"admin", key} if key else ():
                    self.assertEqual(status(headers=bearer(keys[other])), 401, other)
                if key == "admin":
                    continue  # with the right one it would do what it says
                self.assertNotEqual(status(headers=bearer(keys["admin"])), 401)
                if key:
                    self.assertNotEqual(status(headers=bearer(keys[key])), 401)
                if key == "read":
                    self.assertEqual(server.request("HEAD", path).status, 401)
                if key == "api":
                    self.assertEqual(server.request(method, path).json(), {"error": "Unauthorized"})

    def test_the_document_says_which_key_every_route_needs(self):
        routes = documented()
        self.assertGreater(len(routes), 50)
        self.assertEqual({route for route, key in routes.items() if not key}, OPEN)

    def test_a_server_asks_for_it(self):
        with Server("P_llama", *KEYS) as server:
            self.check(server, documented())
            self.assertEqual(server.get("/weft/v1/status", headers=bearer("the-read-key")).json()["state"], "idle")

    def test_a_store_asks_for_it(self):
        routes = {route: key for route, key in documented().items() if "/weft/v1/" in route or route in ("GET /health", "GET /metrics")}
        with tempfile.TemporaryDirectory() as folder, \
                Store(f"{folder}/store", "--admin-key", "the-admin-key", "--read-key", "the-read-key") as store:
            self.check(store, {route: key for route, key in routes.items() if "versions/current" not in route})

    def test_admin_routes_may_be_at_an_address_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            for address in "127.0.0.1:0", f"unix:{folder}/admin.sock":
                with Server("P_llama", *KEYS, "--admin-listen", address) as server:
                    self.check_listeners(server, server.wait_for_line("admin routes at (.*)")[1])

    def test_a_socket_file_is_its_users_alone_and_goes_with_its_server(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "admin.sock")
            serve = ("P_llama", "--admin-listen", f"unix:{path}")
            with Server(*serve) as server:
                self.assertEqual(path.stat().st_mode & 0o777, 0o600)
                again = subprocess.run([WEFT, "serve", FIXTURES / "P_llama", "--port", "0", *serve[1:]], capture_output=True, text=True, timeout=TIMEOUT_S)
                self.assertIn(f"another program listens at {path}", again.stderr)
                server.stop()
                self.assertFalse(path.exists())
            with Server(*serve):
                pass  # killed
            self.assertTrue(path.exists())
            with Server(*serve):  # nobody listens on what it left
                self.assertEqual(status_at(f"unix:{path}", "GET", "/is_paused"), 200)
            path.unlink()
            path.write_text("mine")
            refused = subprocess.run([WEFT, "serve", FIXTURES / "P_llama", "--port", "0", *serve[1:]], capture_output=True, text=True, timeout=TIMEOUT_S)
            self.assertIn("is no socket", refused.stderr)
            self.assertEqual(path.read_text(), "mine")

    def check_listeners(self, server, at):
        """Every route at both: admin routes are there alone, the rest is at both with the same keys."""
        for route, key in documented().items():
            method, path = request_of(route)
            with self.subTest(route, at=at):
                self.assertEqual(status_at(at, method, path) == 401, bool(key))
                status = server.request(method, path).status
                if key == "admin":
                    self.assertIn(status, (404, 405))
                    self.assertIn(server.request(method, path, headers=bearer("the-admin-key")).status, (404, 405))
                else:
                    self.assertEqual(status == 401, bool(key))
        self.assertEqual(status_at(at, "POST", "/pause", bearer("the-admin-key")), 200)
        self.assertTrue(server.get("/is_paused").json()["is_paused"])

    def test_weights_are_pushed_through_a_socket_file(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("P_llama", "--admin-key", "the-admin-key", "--admin-listen", f"unix:{folder}/admin.sock") as server:
                model = FIXTURES / "P2" / "model.safetensors"
                done = subprocess.run([WEFT, "push", model, "--to", f"unix:{folder}/admin.sock", "--label", "pushed"], capture_output=True, text=True,
                                      timeout=TIMEOUT_S, env=os.environ | {"WEFT_KEY": "the-admin-key", "XDG_STATE_HOME": folder})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(server.weight_info()["weight_version"], "pushed")

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
