"""`weft train --resume`: a run that was killed, or that had no room to save, goes on bit for bit as if nothing had happened."""
import contextlib
import os
import random
import signal
import subprocess
import unittest

from train_testing import SMOKE, TrainTest, with_keys, without_times
from weft_testing import TIMEOUT_S

# Saved often and at steps that are no measurements, so that everything in the state counts.
CONFIG = with_keys(SMOKE, rl={"steps": 9, "eval_every": 4}, state={"save_every": 2})


class Resume(TrainTest):
    def kill_at(self, config, line_number, *flags):
        """Kills the run with SIGKILL when it has printed so many lines. Returns whether it came so far."""
        with self.start(config, *flags) as process:
            for number, _ in enumerate(process.stdout, 1):
                if number == line_number:
                    break
            else:
                return False
            process.send_signal(signal.SIGKILL)
            process.wait(TIMEOUT_S)
        return True

    def results(self, out):
        checkpoint = {file.name: file.read_bytes() for file in (self.folder / out / "checkpoint").iterdir()}
        return [without_times(step) for step in self.metrics(out)], without_times(self.summary(out)), checkpoint

    def test_killed_at_any_step_it_goes_on_bit_for_bit(self):
        lines = self.run_well(CONFIG, out="whole").splitlines()
        fine_tuning = sum(line.startswith("fine-tuning") for line in lines)
        self.assertGreater(fine_tuning, 2)
        seed = int(os.environ.get("WEFT_CHAOS_SEED", random.randrange(1 << 30)))
        draw = random.Random(seed)
        kills = [draw.randint(2, 1 + fine_tuning), *(draw.randint(2, 8) for _ in range(3))]
        # A first kill in fine-tuning, then wherever the run happens to be.
        self.assertTrue(self.kill_at(CONFIG, kills[0]))
        for kill in kills[1:]:
            if not self.kill_at(CONFIG, kill, "--resume"):
                break
        self.run_well(CONFIG, "--resume")

        self.assertEqual(self.results("out"), self.results("whole"), f"WEFT_CHAOS_SEED={seed}, killed at lines {kills}")

    def test_a_full_disk_while_saving_is_one_error_and_loses_nothing(self):
        if os.geteuid() != 0:
            self.skipTest("needs to mount a small tmpfs")
        self.run_well(CONFIG, out="whole")
        out = self.folder / "out"
        out.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", out], check=False).returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", out], check=False)
        ballast = out / "ballast"
        with self.start(CONFIG) as process:
            next(line for line in process.stdout if line.startswith("step 3/"))
            with contextlib.suppress(OSError):
                ballast.write_bytes(bytes(2 << 20))
            _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 7, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertRegex(errors, r"No space left on device")

        ballast.unlink()
        self.assertIn("goes on after step", self.run_well(CONFIG, "--resume"))
        self.assertEqual(self.results("out"), self.results("whole"))

    def test_nothing_saved_yet_begins_anew(self):
        self.assertIn("has no saved state yet", self.run_well(SMOKE, "--resume"))
        self.assertEqual(len(self.metrics()), 5)

    def test_another_config_is_refused(self):
        self.run_well(CONFIG)
        status, errors = self.run_badly(with_keys(CONFIG, rl={"learning_rate": 0.002}), "--resume")
        self.assertIn("another config; it did not say `learning_rate = 0.002`", errors)

    def test_a_new_run_does_not_leave_the_state_of_the_one_before(self):
        self.run_well(CONFIG)
        self.assertTrue(self.kill_at(with_keys(CONFIG, state={"save_every": 1000}), 2))
        self.assertFalse((self.folder / "out/state.safetensors").exists())

    def test_a_loss_that_is_not_finite_keeps_what_was_saved(self):
        config = with_keys(SMOKE, sft={"learning_rate": 1e38}, state={"save_every": 1})
        status, errors = self.run_badly(config)
        self.assertEqual(status, 70, errors)
        self.assertRegex(errors, r"step \d+: the gradient of model\S+ is not finite .* are as they were saved last")
        self.assertTrue((self.folder / "out/checkpoint/model.safetensors").exists())

    def test_weights_that_are_not_finite_are_neither_published_nor_saved(self):
        config = with_keys(SMOKE, rl={"learning_rate": 1e38}, state={"save_every": 1})
        status, errors = self.run_badly(config)
        self.assertEqual(status, 70, errors)
        self.assertRegex(errors, r"step 1: model\.\S+ is not finite .* are as they were saved last")
        self.assertIn("of fine-tuning", self.run_to_end(config, "--resume")[1], "the last good state is still there")


if __name__ == "__main__":
    unittest.main()
