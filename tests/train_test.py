"""`weft train` from end to end on examples/smoke.toml: trainer and server are two processes, all over HTTP."""
import json
import os
import pathlib
import re
import signal
import unittest
import xml.dom.minidom

from train_testing import SMOKE, TrainTest, children, without_times
from weft_testing import TIMEOUT_S


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Train(TrainTest):
    def test_learns_publishes_and_checks_itself(self):
        status, output, errors = self.run_to_end(SMOKE)

        self.assertEqual(status, 0, output + errors)
        summary = json.loads((self.folder / "out/summary.json").read_text())
        self.assertEqual(summary["updates"], 5)
        self.assertEqual(summary["tokens_with_wrong_version"], 0)
        self.assertGreater(summary["tokens_checked"], 300)
        self.assertGreaterEqual(summary["discriminating_share"], 0.5)
        self.assertLess(summary["logprob_max_abs_diff"], 1e-3)
        self.assertGreater(summary["bytes_per_update"], 1_000)
        guide = (pathlib.Path(os.environ["WEFT_SOURCE_DIR"]) / "docs/training.md").read_text()
        table = guide[guide.index("| field of `summary.json`") :].split("\n\n")[0]
        documented = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
        self.assertGreaterEqual(set(summary) | {"failure", "pair_accuracy"}, {name for name in documented if name[0] != "_"})
        self.assertTrue(all(step["tokens_compared"] == step["tokens"] for step in self.metrics()))
        self.assertEqual([step["version"] for step in self.metrics()], [f"step-{n}" for n in range(1, 6)])
        self.assertIn("weft serve", output)
        xml.dom.minidom.parse(str(self.folder / "out/plot.svg"))
        names = {file.name for file in (self.folder / "out/checkpoint").iterdir()}
        self.assertEqual(names, {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                 "tokenizer_config.json"})

    def test_same_seed_same_metrics(self):
        runs = []
        for out, seed in (("a", "7"), ("b", "7"), ("c", "8")):
            status, output, errors = self.run_to_end(SMOKE, "--seed", seed, out=out)
            self.assertEqual(status, 0, output + errors)
            runs.append([without_times(step) for step in self.metrics(out)])

        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])

    def test_swapped_labels_are_caught(self):
        status, _, errors = self.run_to_end(SMOKE + "\n[fault]\nswap_labels = true\n")

        self.assertEqual(status, 6, errors)
        self.assertRegex(errors, r"step 2: \d+ of \d+ rescored tokens do not come from the version that they name")
        summary = json.loads((self.folder / "out/summary.json").read_text())
        self.assertGreater(summary["tokens_with_wrong_version"], 0)
        self.assertIn("do not come from", summary["failure"])

    def test_ctrl_c_leaves_no_process(self):
        endless = SMOKE.replace("steps = 5\n", "steps = 1000000\n")
        with self.start(endless) as process:
            try:
                next(line for line in process.stdout if line.startswith("step "))
                servers = children(process.pid)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()

        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(errors, "weft train: interrupted\n")
        self.assertEqual(len(servers), 1)
        self.assertFalse(is_running(servers[0]))

    def test_a_dead_server_is_one_clear_error(self):
        endless = SMOKE.replace("steps = 5\n", "steps = 1000000\n")
        with self.start(endless) as process:
            try:
                next(line for line in process.stdout if line.startswith("step "))
                os.kill(children(process.pid)[0], signal.SIGKILL)
                _, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()

        self.assertEqual(process.returncode, 8, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertIn("the server was ended by signal 9", errors)

    def test_an_unreachable_server_is_one_clear_error(self):
        config = SMOKE.replace("[server]\n", "[server]\nspawn = false\nurl = [\"http://127.0.0.1:9\"]\n")
        status, _, errors = self.run_to_end(config)

        self.assertEqual(status, 8, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertIn("no server at http://127.0.0.1:9", errors)
        self.assertTrue((self.folder / "out/start/model.safetensors").exists())

    def test_a_loss_that_is_not_finite_stops_the_run(self):
        config = SMOKE.replace("learning_rate = 5e-3", "learning_rate = 1e38")
        status, _, errors = self.run_to_end(config)

        self.assertEqual(status, 70, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertRegex(errors, r"fine-tuning step \d+: the gradient of model\S+ is not finite")

    def test_prints_a_config_it_reads(self):
        status, printed, errors = self.run_to_end(SMOKE, "--print-config")
        self.assertEqual(status, 0, errors)
        status, again, errors = self.run_to_end(printed, "--print-config")
        self.assertEqual(status, 0, errors)
        self.assertEqual(printed, again)

    def test_dry_run_does_nothing(self):
        status, output, errors = self.run_to_end(SMOKE, "--dry-run")
        self.assertEqual(status, 0, errors)
        self.assertIn("sort with 2 digits", output)
        self.assertFalse((self.folder / "out").exists())

    def test_a_wrong_config_is_one_line(self):
        status, _, errors = self.run_to_end(SMOKE.replace("group_size", "group_sise"))
        self.assertEqual(status, 2)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertIn("did you mean `group_size`?", errors)


if __name__ == "__main__":
    unittest.main()
