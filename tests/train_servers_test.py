"""`weft train` with servers of others: several, some that die and come again, some that are not what they should be."""
import shutil
import signal
import threading
import unittest

from train_testing import ServersTest, with_keys, without_times
from weft_testing import TIMEOUT_S

# What says how, not what was computed.
FLOW = {"servers_lost", "servers_back", "requests_redealt", "sync_bytes", "sync_full_bytes", "sync_delta_bytes", "sync_fell_back"}


def computed(steps):
    return [{key: value for key, value in without_times(step).items() if key not in FLOW} for step in steps]


class Servers(ServersTest):
    def config(self, *servers, steps=12, **sections):
        return super().config(*servers, rl={"steps": steps, "eval_every": 5}, **sections)

    def test_two_servers_compute_what_one_does(self):
        self.run_well(self.config(self.serve()), out="one")
        self.run_well(self.config(self.serve(), self.serve()), out="two")
        self.assertEqual(computed(self.metrics("two")), computed(self.metrics("one")))
        one, two = (self.metrics(out)[-1]["sync_full_bytes"] for out in ("one", "two"))
        self.assertEqual(two, 2 * one)

    def test_one_that_dies_is_dropped_and_taken_back(self):
        self.run_well(self.config(self.serve()), out="one")
        dying, other = self.serve(), self.serve()
        with self.start(self.config(dying, other)) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("step  3/"):
                    dying.stop(signal.SIGKILL)
                if line.startswith("step  6/"):
                    self.serve(port=dying.port)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, errors)
        output = "".join(lines)
        self.assertIn(f"{dying.url} is dropped", output)
        self.assertRegex(output, f"{dying.url} is taken back, with step-\\d+")
        steps = self.metrics()
        self.assertEqual(sum(step["servers_lost"] for step in steps), 1)
        self.assertEqual(sum(step["servers_back"] for step in steps), 1)
        self.assertEqual(self.summary()["tokens_with_wrong_version"], 0)
        self.assertEqual(computed(steps), computed(self.metrics("one")))

    def test_the_only_one_may_be_started_again(self):
        self.run_well(self.config(self.serve()), out="one")
        server = self.serve()
        with self.start(self.config(server)) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("step  4/"):
                    server.stop(signal.SIGKILL)
                    starter = threading.Timer(0.3, self.serve, kwargs={"port": server.port})
                    starter.start()
            starter.join()
            _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, errors)
        self.assertRegex("".join(lines), "is taken back, with step-\\d+")
        self.assertEqual(computed(self.metrics()), computed(self.metrics("one")))

    def test_one_that_was_started_again_unnoticed_does_not_answer_with_its_own_weights(self):
        self.run_well(self.config(self.serve()), out="one")
        server = self.serve()
        with self.start(self.config(server)) as process:
            for line in process.stdout:
                if line.startswith("step  4/"):
                    process.send_signal(signal.SIGSTOP)
                    server.stop(signal.SIGKILL)
                    self.serve(port=server.port)
                    process.send_signal(signal.SIGCONT)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(computed(self.metrics()), computed(self.metrics("one")))

    def test_in_the_asynchronous_flow_too(self):
        first, second = self.serve(), self.serve()
        with self.start(self.config(first, second, steps=16, flow={"asynchronous": True})) as process:
            for line in process.stdout:
                if line.startswith("step  3/"):
                    first.stop(signal.SIGKILL)
                if line.startswith("step  7/"):
                    self.serve(port=first.port)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(len(self.metrics()), 16)
        self.assertEqual(self.summary()["tokens_with_wrong_version"], 0)

    def test_without_any_server_it_ends_when_its_patience_does(self):
        server = self.serve()
        config = with_keys(self.config(server, steps=100_000), server={"patience_s": 0.3})
        with self.start(config) as process:
            next(line for line in process.stdout if line.startswith("step "))
            server.stop(signal.SIGKILL)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 8, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)

    def test_another_model_is_refused_by_name(self):
        server = self.serve()
        config = with_keys(self.config(server), model={"intermediate_size": 80})
        status, errors = self.run_badly(config)
        self.assertIn(f"{server.url}: it serves another model: its model.layers.0.mlp.down_proj.weight is [32, 64], "
                      "this run's [32, 80]", errors)

    def test_another_vocabulary_is_refused_by_name(self):
        model = self.folder / "model"
        shutil.copytree(self.model, model)
        tokenizer = model / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text().replace('"3":3', '"3":4').replace('"4":4', '"4":3'))
        server = self.serve(model=model)
        status, errors = self.run_badly(self.config(server))
        self.assertIn(f"{server.url}: it has another vocabulary", errors)


if __name__ == "__main__":
    unittest.main()
