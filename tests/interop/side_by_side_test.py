"""vLLM and `weft serve` are asked the same 171 things, live; status, content type and shape are the same but for the table in
docs/vllm-compatibility.md."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import weft
from recorded_answers_test import DIFFERENCES, shape_faults, stream_faults
from safetensors.torch import load_file
from vllm_server import Vllm, make_checkpoint
from weft_testing import Server

# Ids that no model as small as this one has.
SKIPPED = ("detokenize",)
RECORDER = pathlib.Path(__file__).parent / "rl_surface_record.py"


def play(url, init, update, folder):
    out = folder / "answers.jsonl"
    subprocess.run([sys.executable, RECORDER, url, out, "--init", json.dumps(init), "--update", json.dumps(update)], check=True,
                   timeout=600)
    return [json.loads(line) for line in out.read_text().splitlines()]


class SideBySide(unittest.TestCase):
    def test_the_same_answers(self):
        known = {name: row for row in DIFFERENCES for name in row[0]}
        with tempfile.TemporaryDirectory() as name, weft.Origin() as origin, weft.Publisher(origin) as publisher:
            folder = pathlib.Path(name)
            model = make_checkpoint(folder / "m_tiny")
            id_ = publisher.publish(load_file(model / "model.safetensors")).result(60).id
            update = {"version": id_, "source": origin.url}
            with Server(model, "--served-model-name", "m_tiny", "--allow-source", origin.url, "--max-model-len", "512") as server:
                ours = play(server.url, {}, update, folder)
            with Vllm(model, "--served-model-name", "m_tiny") as vllm:
                theirs = play(vllm.url, {}, update, folder)
        self.assertEqual([record["name"] for record in ours], [record["name"] for record in theirs])
        for a, b in zip(theirs, ours):
            if a["name"] in SKIPPED:
                continue
            with self.subTest(a["name"], request=f"{a['method']} {a['path']} {a['body']}"):
                self.compare(a, b, known.get(a["name"]))

    def compare(self, theirs, ours, difference):
        if difference and ours["status"] == difference[2]:
            return
        self.assertEqual(ours["status"], theirs["status"], (theirs, ours))
        self.assertEqual((ours["answer_type"] or "").split(";")[0], (theirs["answer_type"] or "").split(";")[0])
        if (theirs["answer_type"] or "").startswith("text/event-stream"):
            self.assertEqual(stream_faults(theirs["answer"]["text"], ours["answer"]["text"]), [])
        else:
            self.assertEqual(shape_faults(theirs["answer"], ours["answer"]), [], (theirs, ours))


if __name__ == "__main__":
    unittest.main()
