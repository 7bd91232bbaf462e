#!/usr/bin/env python3
"""All that deltas cost and save: the whole way of a push, versions of a real training run, and pairs of a model of training.

usage: delta_bench.py [--quick]

  push      delta_push_bench.py
  training  the last two versions of a run of `weft train` at the learning rate of RL on language models, compared as `delta_bench files` does
  pairs     delta_bench
The last line is `BENCH {json}`: the pairs' figures, and `push` and `training` with theirs. `bytes_per_changed` is the push's, all bytes of both directions counted;
`payload_bytes_per_changed` the pairs'.
"""
import json
import pathlib
import subprocess
import sys

import frame

BENCH = pathlib.Path(__file__).parent
LEARNING_RATE = 1e-6
CONFIG = """
seed = 0
out = "{out}"
[model]
hidden_size = 256
intermediate_size = 768
num_layers = 6
[task]
name = "add"
digits = 1
held_out = 32
[sft]
max_steps = {sft_steps}
eval_every = {sft_steps}
[rl]
steps = {steps}
prompts = 16
group_size = 8
warmup_steps = 0
learning_rate = {learning_rate}
[check]
min_discriminating_share = 0.0
"""


def figures_of(*command):
    """Runs a benchmark, shows what it says, and returns what its last line holds."""
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    last = ""
    for line in child.stdout:
        if not line.startswith("BENCH "):
            print(line, end="", flush=True)
        last = line
    if child.wait() != 0 or not last.startswith("BENCH "):
        raise RuntimeError(f"{command[0]}: exit {child.returncode}")
    return json.loads(last.removeprefix("BENCH "))


def train(folder, steps, url=None, sft_steps=100):
    config = CONFIG.format(out=folder, steps=steps, sft_steps=sft_steps, learning_rate=LEARNING_RATE)
    if url:
        config += f'[server]\nspawn = false\nurl = ["{url}"]\n'
    path = pathlib.Path(f"{folder}.toml")
    path.write_text(config)
    frame.run([frame.WEFT, "train", path])


def bf16_of(folder, out):
    """The data of a folder's tensors, one after the other in the order of their names."""
    with open(out, "wb") as target:
        for path in sorted(folder.glob("*.safetensors")):
            data = path.read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:begin])
            for name in sorted(header.keys() - {"__metadata__"}):
                assert header[name]["dtype"] == "BF16", name
                first, last = header[name]["data_offsets"]
                target.write(data[begin + first:begin + last])


def training_figures(quick):
    """A server outlives its trainer with the two versions that it had last."""
    steps, sft_steps = (2, 60) if quick else (6, 60)
    with frame.scratch() as scratch:
        scratch = pathlib.Path(scratch)
        train(scratch / "first", 1, sft_steps=1)
        with frame.Server(scratch / "first" / "start", "--deterministic", "--log-level", "warning") as server:
            train(scratch / "run", steps, server.url, sft_steps)
            files = []
            for step in (steps - 1, steps):
                folder = scratch / f"v{step}"
                frame.run([frame.WEFT, "pull", server.url, f"step-{step}", folder])
                files.append(scratch / f"step-{step}")
                bf16_of(folder, files[-1])
            print(f"weft train, learning rate {LEARNING_RATE:g}, the last two of {steps} updates", flush=True)
            figures = figures_of(frame.WEFT.parent / "delta_bench", "files", *files)
    return {key: figures[key] for key in ("changed_percent", "bytes_per_changed", "entropy_bytes_per_changed", "vs_xor_zstd_bytes", "vs_nemo_bytes")}


def main():
    quick = "--quick" in sys.argv[1:]
    if len(sys.argv) > 1 + quick:
        sys.exit(__doc__)
    push = figures_of("/usr/bin/python3", BENCH / "delta_push_bench.py", *(["--quick"] if quick else []))
    training = training_figures(quick)
    pairs = figures_of(frame.WEFT.parent / "delta_bench", *(["--mb", "64", "--dense-mb", "64", "--rival-tiles", "1"] if quick else []))
    payload = pairs.pop("bytes_per_changed")
    pairs.pop("bench")
    frame.report("delta", bytes_per_changed=push["bytes_per_changed"], payload_bytes_per_changed=payload, **pairs, push=push, training=training)


if __name__ == "__main__":
    main()
