"""TRL's GRPOTrainer, unchanged, for 10 steps: its own client generates at `weft serve`, weft brings the weights."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
import weft
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from weft_testing import FIXTURES, Server

EXAMPLE = pathlib.Path(os.environ["WEFT_SOURCE_DIR"]) / "examples" / "trl" / "grpo.py"
STEPS = 10


def make_model(folder):
    """A small Qwen3 with random weights, and a tokenizer of bytes."""
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=272, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, max_position_embeddings=256, tie_word_embeddings=True,
                         bos_token_id=256, eos_token_id=257, pad_token_id=258)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "P_qwen3" / name, folder)


class TrlTest(unittest.TestCase):
    def test_the_recipe_trains_through_weft(self):
        with tempfile.TemporaryDirectory() as folder:
            model, trained = pathlib.Path(folder) / "model", pathlib.Path(folder) / "trained"
            make_model(model)
            with Server(model) as server:
                start = server.weight_info()["id"]
                done = subprocess.run(
                    [sys.executable, EXAMPLE, model, server.url, "--steps", str(STEPS), "--save", trained],
                    capture_output=True, text=True, timeout=900, cwd=folder, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(len(re.findall(r"^step \d+: reward", done.stdout, re.M)), STEPS)
                self.assertEqual(server.weight_info()["weight_version"], f"step-{STEPS}")
                self.assertNotEqual(server.weight_info()["id"], start)
                served = weft.pull(server.url).torch()
                metrics = server.get("/metrics").body.decode()
            saved = load_file(trained / "model.safetensors")
            for name, tensor in served.items():
                self.assertTrue(torch.equal(tensor, saved[name].to(torch.bfloat16)), name)
            committed = re.search(r'^weft_weight_updates_total\{[^}]*result="committed"[^}]*\} (\d+)', metrics, re.M)
            self.assertGreaterEqual(int(committed[1]), STEPS)


if __name__ == "__main__":
    unittest.main()
