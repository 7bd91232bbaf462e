"""nginx as a cache in front of a store: who comes second costs the store nothing, nothing is stale or torn, keys are respected."""
import http.client
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from fault_proxy import Fault, FaultProxy
from pull_test import run, run_json
from push_test import push
from store_test import Store
from weft_testing import FIXTURES, TIMEOUT_S, Answer

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")

# Objects under an id are kept as the store says; a range is cut from the whole, which is fetched once however many ask for it at a time. Each
# request's key is asked of the store, also when the object is in the cache: `auth_request` sends the request's own headers.
CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/temporary; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=weft:1m max_size=1g use_temp_path=off;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  server {{
    listen 127.0.0.1:{listen};
    location = /allowed {{
      internal;
      proxy_pass http://127.0.0.1:{origin}/weft/v1/heads;
      proxy_method GET;
      proxy_pass_request_body off;
    }}
    location /weft/v1/ {{
      {guard}
      proxy_pass http://127.0.0.1:{origin};
      proxy_cache weft;
      proxy_cache_lock on;
      proxy_cache_lock_timeout 60s;
      proxy_set_header Authorization $http_authorization;
      proxy_force_ranges on;
    }}
  }}
}}
"""


class Cache:
    """nginx with a configuration of its own. Stopped at the end of the `with`."""

    def __init__(self, folder, origin_port, guarded=False):
        self.folder = folder
        folder.mkdir()
        guard = "auth_request /allowed;" if guarded else ""
        configuration = folder / "nginx.conf"
        self.port = free_port()
        configuration.write_text(CONFIGURATION.format(folder=folder, listen=self.port, origin=origin_port, guard=guard))
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([NGINX, "-c", str(configuration), "-p", str(folder), "-e", "stderr"], stderr=subprocess.PIPE, text=True)
        self.lines = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self.get("/weft/v1/heads")
            except ConnectionError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError("nginx does not start:\n" + "".join(self.lines)) from None
                time.sleep(0.01)

    def get(self, path, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers=headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        self.process.stderr.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@unittest.skipUnless(NGINX, "nginx is not installed: tools/setup.sh does it")
class NginxCache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def push(self, store, model, *flags):
        done = push(FIXTURES / model, "--to", store.url, "--head", "main", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return store.get("/weft/v1/heads/main").json()["id"]

    def test_the_second_reader_costs_the_store_nothing(self):
        with Store(self.folder / "store") as store, Cache(self.folder / "nginx", store.port) as cache:
            version = self.push(store, "P_llama")
            first = run_json("pull", cache.url, "#main", self.folder / "first")
            sent = store.metric("weft_store_bytes_out_total")
            self.assertGreaterEqual(sent, first["total_bytes"])

            second = run_json("pull", cache.url, version, self.folder / "second")

            self.assertEqual(second["fetched_bytes"], first["total_bytes"])
            self.assertEqual(store.metric("weft_store_bytes_out_total"), sent)
            self.assertEqual((self.folder / "second/model.safetensors").read_bytes(), (self.folder / "first/model.safetensors").read_bytes())

    def test_nothing_is_stale(self):
        with Store(self.folder / "store") as store, Cache(self.folder / "nginx", store.port) as cache:
            for model in "P_llama", "P2":
                version = self.push(store, model)
                self.assertEqual(cache.get("/weft/v1/heads/main").json()["id"], version)
                self.assertEqual(cache.get("/weft/v1/versions").json()["versions"][0]["id"], version)
            # What was not there is not remembered either.
            other = "blake3:" + "0" * 64
            self.assertEqual(cache.get(f"/weft/v1/versions/{other}/manifest").status, 404)
            old = run_json("versions", cache.url)["versions"][1]["id"]
            self.assertEqual(run("rollback", cache.url, old).returncode, 0)
            self.assertEqual(cache.get("/weft/v1/heads/main").json()["id"], old)

    def test_an_object_whose_origin_died_in_the_middle_is_not_kept(self):
        fault = Fault()
        with Store(self.folder / "store") as store, FaultProxy(store.port, lambda _: fault) as way, \
                Cache(self.folder / "nginx", way.port) as cache:
            version = self.push(store, "P_llama")
            pack = f"/weft/v1/versions/{version}/packs/0"
            whole = store.get(pack).body
            fault = Fault(cut_at=len(whole) // 2, upstream=False)
            with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
                cache.get(pack)
            fault = Fault()

            self.assertEqual(cache.get(pack).body, whole)
            self.assertEqual(run_json("pull", cache.url, version, self.folder / "pulled")["id"], version)

    def test_a_pull_goes_on_when_the_origin_is_back(self):
        with Store(self.folder / "store") as store:
            version = self.push(store, "P_llama")
            # nginx's first connection is that of the wait for its start.
            with FaultProxy(store.port, [Fault(), *[Fault(cut_at=400_000, upstream=False)] * 5]) as way, \
                    Cache(self.folder / "nginx", way.port) as cache:
                done = run_json("pull", cache.url, version, self.folder / "pulled")

                self.assertEqual(done["id"], version)
                self.assertGreater(done["resumed"], 0)

    def test_a_key_is_asked_for_also_when_the_object_is_in_the_cache(self):
        with Store(self.folder / "store", "--admin-key", "a", "--read-key", "r") as store:
            done = push(FIXTURES / "P_llama", "--to", store.url, "--head", "main", "--key", "a")
            self.assertEqual(done.returncode, 0, done.stderr)
            with Cache(self.folder / "nginx", store.port, guarded=True) as cache:
                self.assertEqual(run("pull", cache.url, "#main", self.folder / "without").returncode, 3)
                pulled = run_json("pull", cache.url, "#main", self.folder / "with", "--key", "r")
                pack = f"/weft/v1/versions/{pulled['id']}/packs/0"
                sent = store.metric("weft_store_bytes_out_total")
                self.assertEqual(cache.get(pack).status, 401)
                self.assertEqual(cache.get(pack, Authorization="Bearer wrong").status, 401)
                self.assertEqual(cache.get(pack, Authorization="Bearer r").status, 200)
                self.assertEqual(store.metric("weft_store_bytes_out_total"), sent)


if __name__ == "__main__":
    unittest.main()
