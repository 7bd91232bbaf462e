#!/usr/bin/env python3
"""A running vLLM on this machine's CPU gets new weights: by weft, and by saving a checkpoint into memory and reloading it.

usage: vllm_update_bench.py [--size 0.6b] [--rounds 3] [--plain]        (`make interop` runs it in its venv)

Both ways begin with the trainer's tensors in its memory and end when vLLM would generate with them; each is checked against
vLLM's own sums of its parameters, and weft's against what vLLM generates after a reload of the same tensors. With --plain vLLM
keeps its linear layers as they are loaded, as on a GPU. The last line is BENCH {...}: how many times faster weft is, in full and with 1 % of the elements
changed (vllm_delta_*: as by default, the version's digests held against the result right after the finish; vllm_delta_full_*: before,
`verify: full`), and what a publish from Python takes of `weft push` of the same bytes.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import weft
from safetensors.torch import load_file, save_file

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / "tests" / folder) for folder in ("", "interop")]
from store_test import Store  # noqa: E402
from vllm_server import Vllm, make_checkpoint, wrong_sums  # noqa: E402
from weft_testing import WEFT  # noqa: E402

SHARE = 0.01
CHECKED = ["dp0:pp0:pcp0:tp0:model." + name for name in
           ("embed_tokens.weight", "layers.0.self_attn.qkv_proj.weight", "layers.1.mlp.gate_up_proj.weight", "norm.weight")]


def change(tensors, share, seed):
    random = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        if share == 1:
            tensor.mul_(-1)
        else:  # by one unit in the last place, as a small step of training does
            places = torch.randint(0, tensor.numel(), (max(1, int(share * tensor.numel())),), generator=random)
            tensor.view(-1).view(torch.int16)[places] += 1


def seconds(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Bench:
    def __init__(self, vllm, model, tensors, folder):
        self.vllm, self.tensors = vllm, tensors
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir()
        for file in model.iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, self.checkpoint)

    def disk(self):
        file = self.checkpoint / "model.safetensors"
        file.unlink(missing_ok=True)
        save_file(self.tensors, file, {"format": "pt"})
        self.vllm.call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(self.checkpoint)}})

    def weft(self, publisher):
        report = publisher.publish(self.tensors).result(300)
        published = time.perf_counter()
        self.vllm.call("/pause?mode=keep")
        self.vllm.update({"version": report.id, "early": True}, report.id[:16])
        self.vllm.call("/resume")
        self.parts = report, time.perf_counter() - published

    def check(self):
        sums = self.vllm.sums()
        if wrong := wrong_sums({name: sums[name] for name in CHECKED}, self.tensors):
            raise SystemExit(f"{wrong}: vLLM has other bytes than were sent")

    def greedy(self):
        self.vllm.call("/reset_prefix_cache")
        return self.vllm.greedy()

    def check_generates(self):
        """As after a reload: weights that vLLM keeps packed have no sum."""
        made = self.greedy()
        self.disk()
        if self.greedy() != made:
            raise SystemExit("vLLM generates otherwise than after a reload")

    def run(self, publisher, share, rounds):
        """The best seconds of both ways."""
        times = {"disk": [], "weft": []}
        for round_ in range(rounds):
            for name, way in (("disk", self.disk), ("weft", lambda: self.weft(publisher))):
                if name == "weft":  # the version before is at hand, as in training; the reload was of another
                    self.weft(publisher)
                change(self.tensors, share, round_)
                times[name].append(seconds(way))
                self.check()
            self.check_generates()
            report, update = self.parts
            print(f"  {share:4.0%} changed: disk {times['disk'][-1]:.2f} s, weft {times['weft'][-1]:.2f} s (publish "
                  f"{report.total_seconds:.2f}, update {update:.2f}; delta {report.delta_bytes / 1e6:.1f} MB)", flush=True)
        return min(times["disk"]), min(times["weft"])


def publish_overhead(model, tensors, folder, rounds):
    """Python's publish against the C++ push of the same bytes into stores of their own."""
    times = {"python": [], "push": []}
    for _ in range(rounds):
        for name in times:
            shutil.rmtree(folder / "store", ignore_errors=True)
            with Store(folder / "store") as store:
                if name == "push":
                    done = subprocess.run([WEFT, "push", model, "--to", store.url, "--json"], capture_output=True, text=True,
                                          check=True)
                    times[name].append(json.loads(done.stdout)["results"][0]["total_seconds"])
                else:
                    with weft.Publisher(store.url) as publisher:
                        times[name].append(publisher.publish(tensors, head="main").result(300).total_seconds)
    print(f"  publish: Python {min(times['python']):.2f} s, weft push {min(times['push']):.2f} s", flush=True)
    return min(times["python"]) / min(times["push"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="0.6b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = pathlib.Path(name)
        model = make_checkpoint(folder / "model", options.size)
        tensors = {key: tensor.clone() for key, tensor in load_file(model / "model.safetensors").items()}
        overhead = publish_overhead(model, tensors, folder, options.rounds)
        shutil.rmtree(folder / "store")
        environment = {"WEFT_TEST_PLAIN": "1"} if options.plain else {}
        with Vllm(model, **environment) as vllm, weft.Origin() as origin, weft.Publisher(origin) as full, \
                weft.Publisher(origin, delta=True) as delta:
            bench = Bench(vllm, model, tensors, folder)

            def run(publisher, share, verify):
                vllm.call("/init_weight_transfer_engine", {"init_info": {"source": origin.url, "verify": verify}})
                return bench.run(publisher, share, options.rounds)

            full_times = run(full, 1, "background")
            delta_times = run(delta, SHARE, "background")
            print("  verified before it is loaded:", flush=True)
            verified_times = run(delta, SHARE, "full")
    print("BENCH", json.dumps({
        "vllm_update_vs_disk": round(full_times[0] / full_times[1], 2),
        "vllm_delta_vs_disk": round(delta_times[0] / delta_times[1], 2),
        "vllm_delta_full_vs_disk": round(verified_times[0] / verified_times[1], 2),
        "publish_overhead": round(overhead, 3),
        "vllm_disk_seconds": round(full_times[0], 2), "vllm_update_seconds": round(full_times[1], 2),
        "vllm_delta_seconds": round(delta_times[1], 2), "vllm_delta_full_seconds": round(verified_times[1], 2)}))


if __name__ == "__main__":
    main()
