#!/usr/bin/env python3
"""Does what is learned through weft reach its bars? Runs every example of `weft train` with three seeds (LEARN_SEEDS=1:
one; LEARN_ONLY=ppo,rloo: those runs alone) and prints a table, whether the mean of the seeds holds each bar, and a last
line `BENCH {json}`. Results stay in out/learn; what is there is not run again with LEARN_KEEP=1.

    ppo_end, ppo_gain        greedy solve rate at the end, and what it gained over the fine-tuned start
    grpo_*, rloo_*           the same
    rm_pair_accuracy         share of held-out pairs that the reward model orders as the true rule does
    ppo_rm_win, dpo_win      share of held-out comparisons won against the fine-tuned start, by the true rule
    async_minus_sync         end of asynchronous GRPO less that of synchronous; each batch comes 300 ms late in both
    async_wall_ratio         their wall times
    no_sync_gain             what GRPO gains when no update reaches the server
    sync_share               largest share of a run's time in weight sync

usage: learn.py
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT = pathlib.Path(os.environ.get("WEFT_BINARY_DIR", ROOT / "build/release")) / "bin/weft"
OUT = pathlib.Path(os.environ.get("LEARN_OUT", ROOT / "out/learn"))
SEEDS = int(os.environ.get("LEARN_SEEDS", "3"))
ONLY = set(filter(None, os.environ.get("LEARN_ONLY", "").split(",")))

LATE = {"task": {"held_out": 2048}, "fault": {"hold_back_ms": 300}}
# Name, example, what differs from it; in an order in which the reward model is there when it is needed.
RUNS = [
    ("reward_model", "reward_model", {}),
    ("ppo", "ppo", {}),
    ("grpo", "grpo", {}),
    ("rloo", "rloo", {}),
    ("ppo_reward_model", "ppo_reward_model", {}),
    ("dpo", "dpo", {}),
    ("late", "async", {**LATE, "server": {"max_num_seqs": 256}, "flow": {"asynchronous": False}}),
    ("async", "async", LATE),
    # Tokens of version 0 are what is wanted here, so the checks that would end the run are off. Fewer steps than
    # grpo has, which gets most of its gain within them.
    ("no_sync", "grpo", {"rl": {"steps": 100}, "fault": {"no_sync": True}, "check": {"min_discriminating_share": 0.0}}),
    ("sft", "sft", {}),
]
# Field, least or most, bar.
BARS = [("ppo_end", "least", 0.9), ("ppo_gain", "least", 0.4), ("grpo_end", "least", 0.9), ("grpo_gain", "least", 0.4),
        ("rloo_end", "least", 0.8), ("rloo_gain", "least", 0.3), ("rm_pair_accuracy", "least", 0.9),
        ("ppo_rm_win", "least", 0.75), ("dpo_win", "least", 0.75), ("async_minus_sync", "least", -0.05),
        ("async_wall_ratio", "most", 1.0), ("no_sync_gain", "most", 0.3), ("sync_share", "most", 0.01)]


def config_of(example, differences, seed):
    """The text of an example's config with keys set."""
    config = tomllib.loads((ROOT / f"examples/{example}.toml").read_text())
    for key, value in differences.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    if config.get("score", {}).get("model"):
        config["score"]["model"] = str(OUT / f"reward_model-{seed}/checkpoint")
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items() if not isinstance(value, dict)]
    for section, keys in config.items():
        if isinstance(keys, dict):
            lines += [f"[{section}]"] + [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def run(name, example, differences, seed):
    """The summary of one run; what it printed is in its folder."""
    folder = OUT / f"{name}-{seed}"
    summary = folder / "summary.json"
    if not (os.environ.get("LEARN_KEEP") and summary.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.toml").write_text(config_of(example, differences, seed))
        with open(folder / "output.log", "w") as log:
            subprocess.run([WEFT, "train", folder / "run.toml", "--seed", str(seed), "--out", folder], check=True,
                           stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    return json.loads(summary.read_text())


def line_of(name, seed, summary):
    def cell(key):
        return f"{summary[key]:.3f}" if key in summary else "-"
    return (f"{name:<17} {seed:>4} {cell('solve_rate_start'):>7} {cell('solve_rate_end'):>7} {cell('win_rate'):>7} "
            f"{cell('pair_accuracy'):>7} {summary['updates']:>6} {summary['seconds']:>8.1f} {summary['sync_share']:>8.4f}")


def figures_of(results):
    """The fields of the last line, as far as their runs are there."""
    def mean(name, value):
        return statistics.fmean(value(summary) for summary in results[name])

    figures = {}
    for name in ("ppo", "grpo", "rloo"):
        if name in results:
            figures[f"{name}_end"] = mean(name, lambda s: s["solve_rate_end"])
            figures[f"{name}_gain"] = mean(name, lambda s: s["solve_rate_end"] - s["solve_rate_start"])
    for field, name, key in [("rm_pair_accuracy", "reward_model", "pair_accuracy"),
                             ("ppo_rm_win", "ppo_reward_model", "win_rate"), ("dpo_win", "dpo", "win_rate")]:
        if name in results:
            figures[field] = mean(name, lambda s: s[key])
    if {"late", "async"} <= results.keys():
        figures["async_minus_sync"] = (mean("async", lambda s: s["solve_rate_end"]) -
                                       mean("late", lambda s: s["solve_rate_end"]))
        figures["async_wall_ratio"] = mean("async", lambda s: s["seconds"]) / mean("late", lambda s: s["seconds"])
    if "no_sync" in results:
        figures["no_sync_gain"] = mean("no_sync", lambda s: s["solve_rate_end"] - s["solve_rate_start"])
    figures["sync_share"] = max(summary["sync_share"] for summaries in results.values() for summary in summaries)
    return figures


def main():
    if unknown := ONLY - {name for name, _, _ in RUNS}:
        sys.exit(f"LEARN_ONLY: no run is called {', '.join(sorted(unknown))}; they are {', '.join(n for n, _, _ in RUNS)}")
    print(f"{'run':<17} seed   start     end     win   pairs  steps  seconds sync_share", flush=True)
    results = {}
    for seed in range(SEEDS):
        for name, example, differences in RUNS:
            if ONLY and name not in ONLY:
                continue
            summary = run(name, example, differences, seed)
            results.setdefault(name, []).append(summary)
            print(line_of(name, seed, summary), flush=True)
    figures = figures_of(results)
    missed = False
    for field, side, bar in BARS:
        if field not in figures:
            continue
        holds = figures[field] >= bar if side == "least" else figures[field] <= bar
        missed |= not holds
        print(f"{field:<17} {figures[field]:7.3f}  at {side} {bar}: {'holds' if holds else 'MISSED'}")
    print("BENCH " + json.dumps({"bench": "learn", "seeds": SEEDS, **{k: round(v, 4) for k, v in figures.items()}}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
