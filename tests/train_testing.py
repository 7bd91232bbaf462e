"""What the tests of `weft train` share: a run of examples/smoke.toml with some keys changed, in a folder of the test's own."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from weft_testing import TIMEOUT_S, WEFT, Server

SMOKE = (pathlib.Path(os.environ["WEFT_SOURCE_DIR"]) / "examples/smoke.toml").read_text()
TIMES = re.compile(r"_(ms|us|s)(_p\d+)?$|^seconds$|^sync_share$")


def with_keys(config, **sections):
    """`config` with keys set: with_keys(SMOKE, rl={"steps": 8})."""
    for section, keys in sections.items():
        if f"[{section}]\n" not in config:
            config += f"\n[{section}]\n"
        for key, value in keys.items():
            begin = config.index(f"[{section}]\n") + len(section) + 3
            end = config.find("\n[", begin - 1)
            body = config[begin:] if end < 0 else config[begin:end]
            body = re.sub(rf"(?m)^{key} = .*\n?", "", body)
            config = config[:begin] + f"{key} = {json.dumps(value)}\n" + body + ("" if end < 0 else config[end:])
    return config


def without_times(step):
    return {key: value for key, value in step.items() if not TIMES.search(key)}


def children(pid):
    return [int(child) for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()]


class TrainTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, config, *flags, out="out"):
        file = self.folder / "run.toml"
        file.write_text(config)
        return subprocess.Popen([WEFT, "train", file, "--out", self.folder / out, *flags], text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_to_end(self, config, *flags, out="out"):
        with self.start(config, *flags, out=out) as process:
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        return process.returncode, output, errors

    def run_well(self, config, *flags, out="out"):
        """The run's output; it must end well."""
        status, output, errors = self.run_to_end(config, *flags, out=out)
        self.assertEqual(status, 0, output + errors)
        return output

    def run_badly(self, config, *flags, out="out"):
        """The exit status and the one line on standard error."""
        status, output, errors = self.run_to_end(config, *flags, out=out)
        self.assertNotEqual(status, 0, output)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        return status, errors

    def metrics(self, out="out"):
        return [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]

    def summary(self, out="out"):
        return json.loads((self.folder / out / "summary.json").read_text())


class ServersTest(TrainTest):
    """Runs whose servers are others': `model` is a folder of examples/smoke.toml's model with random weights."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        config = pathlib.Path(folder.name) / "run.toml"
        # No server is there, which is noticed when the model has been written.
        config.write_text(with_keys(SMOKE, server={"spawn": False, "url": ["http://127.0.0.1:9"]}))
        subprocess.run([WEFT, "train", config, "--out", folder.name], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
        cls.model = pathlib.Path(folder.name) / "start"

    def serve(self, *flags, model=None, **more):
        server = Server(None, model or self.model, "--deterministic", *flags, **more)
        self.addCleanup(server.__exit__)
        return server

    def config(self, *servers, **sections):
        return with_keys(SMOKE, server={"spawn": False, "url": [server.url for server in servers]}, **sections)
