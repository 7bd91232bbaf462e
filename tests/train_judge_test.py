"""`weft train --judge`: a reward model that one run trained scores the answers of another, over HTTP."""
import unittest

from train_testing import SMOKE, TrainTest, with_keys
from weft_testing import Listener, Program

SMOOTH = with_keys(SMOKE, task={"name": "smooth", "digits": 3}, sft={"max_steps": 10})
# What runs of the algorithm `reward_model` look at.
PAIRS = 'algorithm = "reward_model"\n' + SMOOTH[: SMOOTH.index("[rl]")] + "[reward_model]\nsteps = 10\nbatch = 16\n"


class Judge(TrainTest):
    def test_scores_over_http_as_the_model_does_in_the_trainer(self):
        self.run_well(PAIRS, out="judge")
        model = self.folder / "judge/checkpoint"
        self.run_well(with_keys(SMOOTH, score={"kind": "reward_model", "model": str(model)}), out="local")
        with Listener("train", "--judge", model, "--port", 0) as judge:
            self.run_well(with_keys(SMOOTH, score={"kind": "http", "url": judge.url + "/score"}))

        served, local = self.metrics(), self.metrics("local")
        self.assertEqual([step["score_requests"] for step in served], [1] * 5)
        # A score that came as text may differ in its last bit, and all that follows from it.
        for one, other in zip(served, local, strict=True):
            self.assertAlmostEqual(one["reward"], other["reward"], 6)
        self.assertGreater(len({step["reward"] for step in served}), 1)

    def test_another_folder_is_refused(self):
        with Program("train", "--judge", self.folder, "--port", 0) as judge:
            self.assertNotEqual(judge.wait(), 0)
        self.assertEqual(len(judge.lines), 1, judge.lines)


if __name__ == "__main__":
    unittest.main()
