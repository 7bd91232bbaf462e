"""`weft train` with servers that ask for keys, have a certificate of their own, or are its own while the environment has keys."""
import os
import pathlib
import unittest
from unittest import mock

from https_test import openssl
from train_testing import SMOKE, ServersTest, with_keys

KEY, API_KEY = "the-admin-key", "the-api-key"
# What a server reads; a run's own does, too.
SERVING_KEYS = {"WEFT_ADMIN_KEY": KEY, "VLLM_API_KEY": API_KEY, "WEFT_READ_KEY": "the-read-key"}


class Access(ServersTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.certificate, cls.certificate_key = cls.model / "certificate.pem", cls.model / "key.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 1, "-subj", "/CN=weft test",
                "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", cls.certificate_key, "-out", cls.certificate)

    def secure(self, *flags):
        return self.serve("--tls-cert", self.certificate, "--tls-key", self.certificate_key, *flags)

    def test_a_server_of_its_own_obeys_the_trainer_whatever_keys_the_environment_has(self):
        with mock.patch.dict(os.environ, SERVING_KEYS):
            self.run_well(SMOKE)

    def test_one_key_opens_all_servers_and_an_authority_is_trusted(self):
        plain = self.serve("--admin-key", KEY, "--read-key", "the-read-key")
        secure = self.secure("--admin-key", KEY, "--api-key", API_KEY)
        file = self.folder / "key"
        file.write_text(KEY + "\n")
        with mock.patch.dict(os.environ, {"WEFT_KEY": "another"}):
            self.run_well(self.config(plain, secure), "--key-file", str(file), "--ca", self.certificate)
        self.assertEqual(self.summary()["updates"], 5)
        self.assertTrue(secure.url.startswith("https:"), secure.url)

    def test_a_key_does_not_stay_where_everyone_reads_it(self):
        config = with_keys(self.config(self.serve("--admin-key", KEY)), rl={"steps": 100_000})
        with self.start(config, "--key", KEY) as process:
            next(line for line in process.stdout if line.startswith("step "))
            arguments = pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes()
            process.kill()
        self.assertNotIn(KEY.encode(), arguments)

    def test_a_key_that_does_not_open_is_one_error_before_anything_is_learned(self):
        servers = {"admin": self.serve("--admin-key", KEY), "api": self.serve("--api-key", API_KEY),
                   "read": self.serve("--read-key", "the-read-key")}
        for kind, server in servers.items():
            for key in ("", "another"):
                with self.subTest(kind, key=key), mock.patch.dict(os.environ, {"WEFT_KEY": key}):
                    status, output, errors = self.run_to_end(self.config(server))
                    self.assertEqual(status, 3, errors)
                    self.assertEqual(errors, f"weft train: {server.url}: it asks for another key: --key, --key-file or WEFT_KEY "
                                             "must have its admin key\n")
                    self.assertEqual(len(output.splitlines()), 1, output)

    def test_a_certificate_that_is_not_trusted_is_one_error(self):
        server = self.secure()
        status, errors = self.run_badly(self.config(server))
        self.assertEqual(status, 3, errors)
        self.assertIn(f"{server.url}: the server's certificate is refused", errors)
        self.assertIn("--ca", errors)


if __name__ == "__main__":
    unittest.main()
