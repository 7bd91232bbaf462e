"""vLLM's own load generator (`vllm bench serve`) against `weft serve`, completions and chat, streamed."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from vllm_server import make_checkpoint
from weft_testing import Server

# What the `vllm` command does, which does not start from the wheel for CPUs.
MAIN = """
import argparse
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
REQUESTS = 24


class LoadGenerator(unittest.TestCase):
    def run_against(self, backend, endpoint):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = make_checkpoint(folder / "model")
            (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
            with Server(model, "--served-model-name", "m") as server:
                done = subprocess.run(
                    [sys.executable, "-c", MAIN, "--backend", backend, "--base-url", server.url, "--endpoint", endpoint, "--model", "m",
                     "--tokenizer", model, "--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8",
                     "--num-prompts", str(REQUESTS), "--max-concurrency", "8", "--ignore-eos", "--save-result", "--result-dir", folder,
                     "--result-filename", "result.json"], capture_output=True, text=True, timeout=600, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            result = json.loads((folder / "result.json").read_text())
        self.assertEqual((result["completed"], result.get("failed", 0)), (REQUESTS, 0))
        self.assertEqual(result["total_output_tokens"], REQUESTS * 8)

    def test_completions(self):
        self.run_against("openai", "/v1/completions")

    def test_chat(self):
        self.run_against("openai-chat", "/v1/chat/completions")


if __name__ == "__main__":
    unittest.main()
