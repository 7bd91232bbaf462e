"""Every algorithm of `weft train` for a few steps, trainer and server as two processes; what each learns is `make learn`'s."""
import json
import unittest

from train_testing import SMOKE, TrainTest, with_keys, without_times

# So few small steps do not change every token's bits.
FEW = with_keys(SMOKE, rl={"steps": 3, "eval_every": 3},
                check={"rescored_sequences": 8, "min_discriminating_share": 0.1})
SMOOTH = with_keys(FEW, task={"name": "smooth", "digits": 3}, sft={"max_steps": 10})
PAIRS = {"steps": 4, "batch": 16, "held_out": 32, "eval_every": 4}


def of(algorithm, config=FEW, **sections):
    return f'algorithm = "{algorithm}"\n' + with_keys(config, **sections)


def without(config, *sections):
    """`config` without some of its sections."""
    parts = config.split("\n[")
    return "\n[".join(part for part in parts if part.split("]")[0] not in sections)


class Algorithms(TrainTest):
    def learned(self, config, *flags, out="out"):
        self.run_well(config, *flags, out=out)
        steps = [without_times(step) for step in self.metrics(out)]
        self.assertTrue(all(step["tokens_with_wrong_version"] == 0 for step in steps))
        self.assertTrue(all(step["logprob_max_abs_diff"] < 1e-3 for step in steps))
        return steps

    def test_ppo_learns_in_minibatches_with_all_its_terms(self):
        config = of("ppo", rl={"epochs": 2, "minibatches": 2},
                    kl={"coefficient": 0.1, "in": "reward", "estimator": "k1", "target": 0.5, "horizon": 100},
                    ppo={"entropy_coefficient": 0.01})
        steps = self.learned(config)

        self.assertEqual([step["version"] for step in steps], ["step-1", "step-2", "step-3"])
        self.assertAlmostEqual(steps[0]["kl"], 0, places=5)
        self.assertNotEqual(steps[2]["kl"], 0)
        self.assertGreater(steps[2]["entropy"], 0)
        self.assertEqual(self.learned(config, out="again"), steps)

    def test_ppo_goes_on_bit_for_bit_with_its_reference(self):
        config = of("ppo", rl={"minibatches": 2, "steps": 4}, state={"save_every": 2},
                    kl={"coefficient": 0.1, "target": 0.5, "horizon": 100})
        steps = self.learned(config, out="whole")
        with self.start(config) as process:
            next(line for line in process.stdout if line.startswith("step 3/"))
            process.kill()
        self.assertEqual(self.learned(config, "--resume"), steps)

    def test_grpo_with_the_corrections_of_its_followers(self):
        steps = self.learned(of("grpo", grpo={"divide_by_deviation": False, "mean_over": "longest"}))
        self.assertEqual(len(steps), 3)
        steps = self.learned(of("grpo", grpo={"dynamic_sampling_rounds": 3, "overlong_buffer": 1}), out="dapo")
        self.assertGreater(steps[0]["dropped_equal"], 0)

    def test_rloo_and_dpo(self):
        self.assertEqual(len(self.learned(of("rloo"))), 3)
        steps = self.learned(of("dpo", dpo={"loss": "ipo"}), out="dpo")
        self.assertIn("kl", steps[0])
        self.assertIn("win_rate", steps[2])

    def test_rloo_and_dpo_learn_from_older_versions_too(self):
        for algorithm in ("rloo", "dpo"):
            with self.subTest(algorithm):
                config = of(algorithm, rl={"steps": 6, "eval_every": 6}, flow={"asynchronous": True})
                steps = self.learned(config, out=algorithm)
                self.assertGreater(max(step["lag_max"] for step in steps), 0)
                self.assertTrue(all(step["tokens_compared"] > 0 for step in steps))

    def test_fine_tuning_alone(self):
        self.run_well(without(of("sft", sft={"packed": True, "micro_batch": 32}), "rl"))
        self.assertEqual(self.summary()["updates"], 0)
        self.assertTrue((self.folder / "out/checkpoint/model.safetensors").exists())

    def test_a_reward_model_is_learned_from_in_another_run_as_in_its_own(self):
        judge = without(of("reward_model", SMOOTH, reward_model=PAIRS), "rl", "server", "check")
        self.run_well(judge, out="judge")
        self.assertIn("pair_accuracy", self.summary("judge"))
        config = json.loads((self.folder / "judge/checkpoint/config.json").read_text())
        self.assertEqual(config["architectures"], ["LlamaForSequenceClassification"])

        own = self.learned(of("dpo", SMOOTH, reward_model=PAIRS, score={"kind": "reward_model"}), out="own")
        other = self.learned(of("dpo", SMOOTH, score={"kind": "reward_model",
                                                      "model": str(self.folder / "judge/checkpoint")}))
        self.assertEqual(own, other)


if __name__ == "__main__":
    unittest.main()
