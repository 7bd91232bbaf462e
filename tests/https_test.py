"""https: `weft serve` and `weft store` with a certificate, Python's and nginx's TLS on the other side, and every command that talks to them."""
import http.client
import pathlib
import ssl
import subprocess
import tempfile
import unittest
import warnings

from nginx_test import NGINX, free_port
from push_test import push
from pull_test import run, run_json
from store_test import Store
from weft_testing import FIXTURES, TIMEOUT_S, Program, Server, wait_for

# TLS ends in nginx here, which sends session tickets as most servers do.
NGINX_CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/temporary; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {certificate}; ssl_certificate_key {certificate};
    client_max_body_size 0;
    location / {{
      proxy_pass {target}; proxy_http_version 1.1; proxy_ssl_verify on; proxy_ssl_trusted_certificate {certificate}; proxy_ssl_name localhost;
      proxy_request_buffering off; proxy_buffering off;
    }}
  }}
}}
"""


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=TIMEOUT_S)


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificate = pathlib.Path(folder.name) / "certificate.pem"
        cls.key = pathlib.Path(folder.name) / "key.pem"
        cls.both = pathlib.Path(folder.name) / "both.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 1, "-subj", "/CN=weft test",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", cls.key, "-out", cls.certificate)
        cls.both.write_bytes(cls.certificate.read_bytes() + cls.key.read_bytes())
        cls.trust = ssl.create_default_context(cafile=cls.certificate)
        cls.listen = ("--tls-cert", cls.certificate, "--tls-key", cls.key)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def secure(self, listener):
        """`listener`, asked with TLS from here on."""
        self.assertTrue(listener.url.startswith("https://"), listener.url)
        listener.connect = lambda: http.client.HTTPSConnection(listener.host, listener.port, timeout=TIMEOUT_S, context=self.trust)
        return listener

    def test_pythons_client_generates_streams_and_pushes(self):
        with self.secure(Server("P_llama", "--ssl-certfile", self.both)) as server:
            self.assertEqual(server.complete("A", 4)["text"], "BCDE")
            pieces = server.stream("/v1/completions", {"prompt": "A", "max_tokens": 4, "temperature": 0})
            self.assertEqual("".join(piece["choices"][0]["text"] for piece in pieces), "BCDE")
            answer = server.push("P2")
            self.assertEqual(answer.status, 200, answer)
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")
            connection = server.connect()
            for _ in range(3):
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().read(), b"")
            connection.close()

    def test_both_versions_of_tls_and_none_before(self):
        with self.secure(Server("P_llama", *self.listen)) as server:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                self.trust = ssl.create_default_context(cafile=self.certificate)
                self.trust.minimum_version = self.trust.maximum_version = version
                self.assertEqual(server.get("/health").status, 200)
            self.trust = ssl.create_default_context(cafile=self.certificate)
            self.trust.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.trust.minimum_version = self.trust.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaisesRegex(ssl.SSLError, "alert protocol version"):
                server.get("/health")

    def test_every_command_goes_by_https(self):
        trust = ("--ca", self.certificate)
        with self.secure(Server("P_llama", *self.listen)) as server:
            pushed = push(FIXTURES / "P2", "--to", server.url, "--label", "two", *trust)
            self.assertEqual(pushed.returncode, 0, pushed.stderr)
            version = server.weight_info()["id"]

            pulled = run_json("pull", server.url, "#main", self.folder / "pulled", *trust)
            self.assertEqual(pulled["id"], version)
            self.assertIn(version, run("versions", server.url, SSL_CERT_FILE=str(self.certificate)).stdout)
            self.assertIn(version, run("inspect", server.url, "#main", *trust).stdout)
            named = server.url.replace("127.0.0.1", "localhost")
            self.assertEqual(run("versions", named, *trust).returncode, 0)
            back = next(each["id"] for each in server.get("/weft/v1/versions").json()["versions"] if each["id"] != version)
            self.assertEqual(run("rollback", server.url, back, *trust).returncode, 0)
            self.assertEqual(server.weight_info()["id"], back)
        with Server(self.folder / "pulled") as server:
            self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_who_is_not_trusted_gets_nothing(self):
        with self.secure(Server("P_llama", *self.listen)) as server:
            for arguments in (["versions", server.url], ["push", FIXTURES / "P2", "--to", server.url],
                              ["pull", server.url, "#main", self.folder / "pulled"]):
                refused = run(*arguments)
                self.assertEqual(refused.returncode, 3, refused.stderr)
                self.assertIn(f"{server.url}: the server's certificate is refused", refused.stderr)
                self.assertIn("--ca", refused.stderr)
            absent = run("versions", server.url, "--ca", self.folder / "absent.pem")
            self.assertEqual(absent.returncode, 2, absent.stderr)
            self.assertIn("absent.pem", absent.stderr)
            plain = run("versions", server.url.replace("https", "http"))
            self.assertEqual(plain.returncode, 2, plain.stderr)
            self.assertIn("https", plain.stderr)
            self.assertEqual(server.get("/health").status, 200)
        with Server("P_llama") as server:
            self.assertEqual(run("versions", server.url.replace("http", "https")).returncode, 2)

    def test_a_server_follows_a_store_and_takes_an_update_from_it(self):
        trust = ("--ca", self.certificate)
        with self.secure(Store(self.folder / "store", *self.listen)) as store:
            self.assertEqual(push(FIXTURES / "P_llama", "--to", store.url, "--head", "main", *trust).returncode, 0)
            with self.secure(Server(None, "--follow", store.url, "--allow-source", store.url, *trust, *self.listen)) as server:
                self.assertEqual(server.complete("A", 4)["text"], "BCDE")
                self.assertEqual(push(FIXTURES / "P2", "--to", store.url, "--head", "main", *trust).returncode, 0)
                head = store.versions()[0]["id"]
                wait_for(lambda: server.weight_info()["id"] == head, "the head is followed")
                self.assertEqual(server.complete("A", 4)["text"], "CEGI")

    def test_what_nginx_speaks(self):
        if NGINX is None:
            self.skipTest("no nginx")
        with self.secure(Store(self.folder / "store", *self.listen)) as store:
            port = free_port()
            configuration = self.folder / "nginx.conf"
            configuration.write_text(NGINX_CONFIGURATION.format(folder=self.folder, port=port, certificate=self.both, target=store.url))
            nginx = subprocess.Popen([NGINX, "-c", configuration, "-p", self.folder, "-e", "stderr"], stderr=subprocess.DEVNULL)
            try:
                url = f"https://localhost:{port}"
                trust = ("--ca", self.certificate)
                wait_for(lambda: run("versions", url, *trust).returncode == 0, "nginx listens")
                pushed = push(FIXTURES / "P2", "--to", url, "--head", "main", *trust)
                self.assertEqual(pushed.returncode, 0, pushed.stderr)
                pulled = run_json("pull", url, "#main", self.folder / "pulled", *trust)
                self.assertEqual(pulled["id"], store.versions()[0]["id"])
            finally:
                nginx.kill()
                nginx.wait()

    def test_a_wrong_certificate_is_said_at_once(self):
        for flags, said in ((["--tls-cert", self.folder / "absent.pem"], "absent.pem"),
                            (["--tls-cert", self.certificate], "no private key in PEM"),
                            (["--tls-cert", self.key], "no certificate chain in PEM"),
                            (["--tls-key", self.key], "--tls-cert")):
            for command in (["serve", FIXTURES / "P_llama"], ["store", self.folder / "store"]):
                with self.subTest(said=said, command=command[0]), Program(*command, *flags, "--port", "0") as program:
                    self.assertEqual(program.wait(), 2)
                    self.assertIn(said, "\n".join(program.lines))


if __name__ == "__main__":
    unittest.main()
