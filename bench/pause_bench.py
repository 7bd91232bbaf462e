#!/usr/bin/env python3
"""What a commit does to sequences that decode.

usage: pause_bench.py [--sizes 0.6b,60m] [--windows N] [--quick]

8 streams over real sockets; each asks again when its sequence ends, so new requests arrive all the time. A window is a few steps of decoding with nothing
else going on. Before each a version is staged (1 % of the blocks are new) and a step passes; every other window has its commit in the middle, the others
after their end, so that all else is alike in both kinds.
  gap_p50_minus_step_ms   median over windows of the longest gap between two tokens of a sequence, with a commit less without;
                          gap_interval_ms is where it lies in 95 of 100 samples drawn from the same windows: what the machine's noise alone does to it
  commit_gap_minus_step_ms   the same for the longest gap that spans the commit (or, without, the middle of the window): no other gap can hide it
  commit_stall_p99_us     inside the engine, from the end of the last step on the old set to the start of the first on the new
  gap_p99_ms              of the longest gaps, with and without a commit, and their spread: noise on a shared machine
Then: how much a full push in the background slows decoding, what the other values of on_update do, and the time of a patch per changed element.
The worst of the sizes is the figure.
"""
import argparse
import contextlib
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import frame
import make_checkpoint
from frame import Worker

STREAMS = 8
SERVE_FLAGS = ["--max-model-len", "512", "--kv-cache-memory", str(1 << 30), "--max-num-seqs", "16", "--log-level", "warning"]
SESSION = "bench"
CONNECTIONS = 2
WINDOW_STEPS = 4
LEAST_WINDOW_S = 0.1


def p99(values):
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def median_difference(a, b):
    return statistics.median(a) - statistics.median(b)


def interval(a, b, draws=2000):
    """Of the difference of medians, 95 %, by drawing again from what was seen."""
    rng = random.Random(0)
    seen = sorted(median_difference(rng.choices(a, k=len(a)), rng.choices(b, k=len(b))) for _ in range(draws))
    return [round(seen[draws // 40], 2), round(seen[-draws // 40], 2)]


def wait_until(done, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.005)


class Scene:
    """A server under load, and a trainer with the next version."""

    def __init__(self, server, trainer, load, least, most):
        self.server, self.trainer, self.load = server, trainer, load
        self.load.ask("start", server.url, STREAMS, 16, least, most)
        self.wait_for_tokens(STREAMS * 4)
        self.step_s = self.calibrate()

    def gaps(self, begin, end, at=0.0):
        return self.load.ask("gaps", f"{begin:.9f}", f"{end:.9f}", f"{at:.9f}")

    def wait_for_tokens(self, count, since=None):
        since = time.monotonic() if since is None else since
        wait_until(lambda: self.gaps(since, since + 1e6)["tokens"] >= count, "tokens")

    def calibrate(self):
        begin = time.monotonic()
        self.wait_for_tokens(STREAMS * 10, begin)
        return self.gaps(begin, time.monotonic())["median_ms"] / 1e3

    def stage(self, every):
        """Stages another version; returns what commits it."""
        self.trainer.ask("change", every)
        self.trainer.ask("push", self.server.url, CONNECTIONS, "staged")
        upload = self.server.call("GET", "/weft/v1/status")["upload"]

        def commit(**body):
            before = time.monotonic()
            done = self.server.call("POST", f"/weft/v1/uploads/{upload}/commit", body, {"Weft-Session": SESSION})
            return (before + time.monotonic()) / 2, done
        return commit

    def window(self, seconds, commit=None):
        """Returns the gaps of a window and, where something was committed in its middle, the engine's stall."""
        begin = time.monotonic()
        time.sleep(seconds / 2)
        at, done = commit() if commit else (time.monotonic(), None)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        end = time.monotonic()
        if commit:
            serving = self.server.call("GET", "/weft/v1/versions/current")["id"]
            if serving != done["id"]:
                raise RuntimeError(f"{done['id']} was committed, {serving} is served")
        seen = self.gaps(begin, end, at)
        if seen["tokens"] < STREAMS:
            raise RuntimeError("nothing decodes")
        return seen, done and done["stall_us"]


def measure_commits(scene, windows):
    """Windows with and without a commit take turns."""
    seconds = max(LEAST_WINDOW_S, WINDOW_STEPS * scene.step_s)
    seen_in, stalls = {"commit": [], "none": []}, []
    for i in range(windows):
        kind = ("commit", "none")[i % 2]
        commit = scene.stage(100)
        scene.wait_for_tokens(STREAMS)
        seen, stall_us = scene.window(seconds, commit if kind == "commit" else None)
        seen_in[kind].append(seen)
        stalls.append(stall_us if kind == "commit" else commit()[1]["stall_us"])
        if i % 20 == 0:
            print(f"  window {i:4} of {windows}: longest gap {seen['longest_ms']:.1f} ms, median {seen['median_ms']:.1f}", flush=True)

    def of(field):
        return [[seen[field] for seen in seen_in[kind]] for kind in ("commit", "none")]
    longest = of("longest_ms")
    return {
        "windows": windows, "step_ms": round(statistics.median(sum(of("median_ms"), [])), 2), "window_ms": round(1e3 * seconds),
        "gap_p50_minus_step_ms": round(median_difference(*longest), 3), "gap_interval_ms": interval(*longest),
        "commit_gap_minus_step_ms": round(median_difference(*of("spanning_ms")), 3), "commit_gap_interval_ms": interval(*of("spanning_ms")),
        "commit_stall_p99_us": p99(stalls), "commit_stall_p50_us": statistics.median(stalls),
        "gap_p99_ms": {kind: round(p99(gaps), 1) for kind, gaps in zip(seen_in, longest)},
        "gap_ms": {kind: [round(min(gaps), 1), round(statistics.median(gaps), 1), round(max(gaps), 1)] for kind, gaps in zip(seen_in, longest)},
        "requests_begun": {kind: sum(begun) for kind, begun in zip(seen_in, of("begun"))},
    }


def measure_staging(scene, runs):
    """Tokens a second while a whole version comes in, and while none does."""
    rates, seconds = {"none": [], "staging": []}, []
    for _ in range(runs):
        scene.trainer.ask("change", 1)
        begin = time.monotonic()
        seconds.append(scene.trainer.ask("push", scene.server.url, CONNECTIONS, "cold")["seconds"])
        end = time.monotonic()
        rates["staging"].append(scene.gaps(begin, end)["tokens"] / (end - begin))
        begin = time.monotonic()
        time.sleep(max(1.0, seconds[-1]))
        end = time.monotonic()
        rates["none"].append(scene.gaps(begin, end)["tokens"] / (end - begin))
    median = {name: statistics.median(rate) for name, rate in rates.items()}
    return {"tokens_per_s": {name: round(rate, 1) for name, rate in median.items()}, "slowdown": round(median["none"] / max(median["staging"], 1e-9), 2),
            "push_seconds": round(statistics.median(seconds), 3)}


def measure_on_update(scene, on_update, windows):
    longest, stalls = [], []
    before = scene.gaps(0, 0)["aborted"]
    for _ in range(windows):
        commit = scene.stage(100)
        scene.wait_for_tokens(STREAMS)
        begin = time.monotonic()
        at, done = commit(on_update=on_update)
        # Until all go on: recomputing takes longer than any window.
        scene.wait_for_tokens(3 * STREAMS, at)
        seen = scene.gaps(begin, time.monotonic(), at)
        longest.append(seen["longest_ms"])
        stalls.append(done["stall_us"])
    return {"commits": windows, "gap_p50_minus_step_ms": round(statistics.median(longest) - 1e3 * scene.step_s, 2), "stall_p99_us": p99(stalls),
            "aborted": scene.gaps(0, 0)["aborted"] - before}


def measure_size(size, folder, arguments):
    make_checkpoint.write(size, folder, 0)
    figures = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(frame.Server(folder, *SERVE_FLAGS, "--commit-mode", "set"))
        trainer = stack.enter_context(Worker("transfer_worker", "client", folder))
        load = stack.enter_context(Worker("pause_worker"))
        scene = Scene(server, trainer, load, 96, 192)
        figures.update(measure_commits(scene, arguments.windows))
        figures["staging"] = measure_staging(scene, max(1, arguments.windows // 40))
        figures["on_update"] = {name: measure_on_update(scene, name, max(1, arguments.windows // 20)) for name in ("recompute", "finish", "abort")}
    return figures


def measure_patch(folder, size, runs):
    """Nanoseconds of the commit for each changed element, at 0.5 and at 1 %, nothing else running."""
    make_checkpoint.write(size, folder, 0)
    out = {}
    with frame.Server(folder, *SERVE_FLAGS, "--commit-mode", "patch") as server, Worker("transfer_worker", "client", folder) as trainer:
        for permille in (5, 10):
            costs = []
            for _ in range(runs):
                before = server.call("GET", "/weft/v1/versions/current")["id"]
                changed = trainer.ask("scatter", permille)["changed"]
                done = trainer.ask("push", server.url, CONNECTIONS, "ready", before)
                if server.call("GET", "/weft/v1/versions/current")["id"] != done["id"]:
                    raise RuntimeError("the patched version is not served")
                costs.append(1e3 * done["stall_us"] / changed)
            out[f"{permille / 10} %"] = [round(min(costs), 2), round(statistics.median(costs), 2), round(max(costs), 2)]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.6b,60m")
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="a few windows on the tiny model: does it work?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.windows = "tiny", 10
    sizes = arguments.sizes.split(",")
    with frame.scratch() as scratch:
        figures = {size: measure_size(size, pathlib.Path(scratch, size), arguments) for size in sizes}
        patch = measure_patch(pathlib.Path(scratch, sizes[0]), sizes[0], 3 if arguments.quick else 5)
    worst = {name: max(of[name] for of in figures.values()) for name in ("gap_p50_minus_step_ms", "commit_gap_minus_step_ms", "commit_stall_p99_us")}
    frame.report("pause", **worst, patch_ns_per_changed=max(of[1] for of in patch.values()), patch_ns=patch, sizes=figures)


if __name__ == "__main__":
    main()
