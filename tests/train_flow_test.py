"""How answers come to `weft train`: the asynchronous flow, scorers elsewhere, and faults in the way of weights, which must show."""
import contextlib
import http.server
import json
import signal
import threading
import time
import unittest

from train_testing import SMOKE, TrainTest, with_keys, without_times
from weft_testing import TIMEOUT_S, wait_for

LONGER = with_keys(SMOKE, rl={"steps": 12})


@contextlib.contextmanager
def judge(decide):
    """An HTTP scorer. `decide(number, samples)` returns a status and a body for the request of that number."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["samples"])
            status, answer = decide(len(asked), body["samples"])
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # who asked may have given up
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def exact(sample):
    return 1.0 if sample["ended"] and sample["answer"] == "".join(sorted(sample["question"][:-1])) else 0.0


def scores(samples):
    return 200, {"scores": [exact(sample) for sample in samples]}


class Asynchronous(TrainTest):
    def test_samples_while_it_learns_and_says_how_old_it_was(self):
        self.run_well(with_keys(LONGER, flow={"asynchronous": True, "max_lag": 3}))
        steps = self.metrics()
        self.assertEqual([step["step"] for step in steps], list(range(1, 13)))
        self.assertTrue(all(step["lag_max"] <= 3 for step in steps), steps)
        self.assertGreater(max(step["lag_max"] for step in steps), 0)
        for step in steps:
            self.assertGreater(step["tokens_compared"], 0, "older versions' tokens are compared by their own weights")
            self.assertLess(step["logprob_max_abs_diff"], 1e-3)
        summary = self.summary()
        self.assertEqual(summary["tokens_with_wrong_version"], 0)
        self.assertGreater(summary["tokens_checked"], 300)

    def test_hides_the_time_that_answers_take_to_come(self):
        config = with_keys(SMOKE, rl={"steps": 8}, fault={"hold_back_ms": 200})
        self.run_well(config, out="sync")
        self.run_well(with_keys(config, flow={"asynchronous": True}), out="async")
        waited = {out: sum(step["wait_ms"] for step in self.metrics(out)) for out in ("sync", "async")}
        self.assertGreaterEqual(waited["sync"], 8 * 200)
        self.assertLess(waited["async"], waited["sync"])

    def test_goes_on_after_a_kill(self):
        config = with_keys(LONGER, flow={"asynchronous": True}, state={"save_every": 1})
        with self.start(config) as process:
            next(line for line in process.stdout if line.startswith("step  4/"))
            process.kill()
        self.assertRegex(self.run_well(config, "--resume"), r"goes on after step \d+ of improvement")
        self.assertEqual([step["step"] for step in self.metrics()], list(range(1, 13)))


class Scorers(TrainTest):
    def test_an_http_scorer_gives_the_rewards_and_its_failures_are_counted(self):
        self.run_well(SMOKE, out="rule")
        with judge(lambda number, samples: (503, {}) if number % 3 == 1 else scores(samples)) as (url, asked):
            self.run_well(with_keys(SMOKE, score={"kind": "http", "url": url, "batch": 40}))

        self.assertEqual({len(samples) for samples in asked}, {40, 24})  # two requests at a time, in any order
        self.assertEqual(set(asked[0][0]), {"question", "answer", "ended", "question_ids", "answer_ids"})
        steps = self.metrics()
        self.assertEqual(sum(step["score_requests"] for step in steps), len(asked))
        self.assertEqual(sum(step["score_retries"] for step in steps), len(asked) - 10)
        of_scorer = ("score_requests", "score_retries")
        rule, http_ = ([{k: v for k, v in without_times(step).items() if k not in of_scorer} for step in self.metrics(out)]
                       for out in ("rule", "out"))
        self.assertEqual(rule, http_)

    def test_an_answer_without_a_score_stops_the_run(self):
        with judge(lambda _, samples: (200, {"scores": [None] + [0.5] * (len(samples) - 1)})) as (url, _):
            status, errors = self.run_badly(with_keys(SMOKE, score={"kind": "http", "url": url}))
        self.assertEqual(status, 70)
        self.assertIn("1 of 64 answers have no score", errors)

    def test_or_is_dropped_with_its_group_where_that_is_wanted(self):
        def decide(_, samples):
            return 200, {"scores": [None, *map(exact, samples[1:])]}
        with judge(decide) as (url, _):
            self.run_well(with_keys(SMOKE, score={"kind": "http", "url": url, "on_failure": "drop"}))
        self.assertEqual([step["dropped_unscored"] for step in self.metrics()], [8] * 5)
        self.assertEqual([step["answers"] for step in self.metrics()], [56] * 5)

    def test_a_scorer_that_is_silent_is_one_error(self):
        def decide(_, samples):
            time.sleep(1)
            return scores(samples)
        with judge(decide) as (url, asked):
            status, errors = self.run_badly(
                with_keys(SMOKE, score={"kind": "http", "url": url, "timeout_s": 0.1, "retries": 1}))
        self.assertEqual(status, 9, errors)
        self.assertIn("after 2 tries", errors)
        self.assertEqual(len(asked), 2)


    def test_ctrl_c_ends_the_waiting_for_a_scorer(self):
        def fail(*_):
            return 503, {}

        def stay_silent(*_):
            heard.set()
            over.wait()
            return 503, {}
        for decide in (fail, stay_silent):
            heard, over = threading.Event(), threading.Event()
            with self.subTest(decide.__name__), judge(decide) as (url, asked):
                # Both would go on for hours.
                config = with_keys(SMOKE, score={"kind": "http", "url": url, "retries": 1000, "timeout_s": 10_000.0})
                with self.start(config) as process:
                    wait_for(lambda: heard.is_set() or len(asked) > 3, "the scorer is asked")
                    process.send_signal(signal.SIGINT)
                    _, errors = process.communicate(timeout=TIMEOUT_S)
                over.set()
                self.assertEqual((process.returncode, errors), (130, "weft train: interrupted\n"))


class BrokenSync(TrainTest):
    def test_weights_that_stay_while_their_label_moves_are_caught(self):
        for flow in (False, True):
            with self.subTest(asynchronous=flow):
                config = with_keys(LONGER, fault={"stale_version": 3}, flow={"asynchronous": flow})
                status, errors = self.run_badly(config, out=f"out-{flow}")
                self.assertEqual(status, 6, errors)
                self.assertRegex(errors, r"rescored tokens do not come from the version that they name")
                self.assertLessEqual(len(self.metrics(f"out-{flow}")), 3 + 5)

    def test_without_sync_nothing_is_learned(self):
        self.run_well(with_keys(SMOKE, fault={"no_sync": True}, check={"min_discriminating_share": 0}))
        summary = self.summary()
        self.assertEqual(summary["solve_rate_start"], summary["solve_rate_end"])
        self.assertEqual([step["lag_max"] for step in self.metrics()], [0, 1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
