#!/usr/bin/env python3
"""The next version, the whole way: `weft push` of a folder to `weft serve`, in full against what changed.

usage: delta_push_bench.py [--size 0.6b|60m] [--changed SHARE] [--runs N] [--quick]

Two versions of one model take turns; they differ in SHARE of the elements of each matrix, at random, by one step of bf16 up or down. (Real changes lie where weights
are small, and take a third less: delta_bench.) The files are in tmpfs. Each push reads and hashes all of its folder, is verified and served when it ends, and
the server must then have the id that this version had the first time.
  full    weft push FOLDER --no-delta
  delta   weft push FOLDER, of which the server has the version before
over loopback, and over a loopback held to 1 Gbit/s: a network namespace of its own with a token bucket (tc), or a proxy where that is not allowed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
import frame
import make_checkpoint
from fault_proxy import Fault, FaultProxy

SERVE_FLAGS = ["--max-model-len", "512", "--kv-cache-memory", str(128 << 20), "--log-level", "warning", "--commit-mode", "set"]
LINK_BITS_PER_S = 10**9
HOLD = f"ip link set lo up && tc qdisc add dev lo root tbf rate {LINK_BITS_PER_S}bit burst 256kb latency 100ms"
TILE_ELEMENTS = 1 << 20  # of positions that are drawn once and used again


def write_next(old, new, share):
    """The folder `old` with a share of the elements of each matrix changed. Returns how many were."""
    shutil.copytree(old, new, dirs_exist_ok=True)
    chance = random.Random(1)
    tiles = [sorted(chance.sample(range(TILE_ELEMENTS), int(TILE_ELEMENTS * share))) for _ in range(4)]
    changes = 0
    with open(new / "model.safetensors", "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        for name, entry in header.items():
            if name == "__metadata__" or len(entry["shape"]) < 2:
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            file.seek(begin)
            data = bytearray(file.read(end - begin))
            for at in range(0, len(data) // 2, TILE_ELEMENTS):
                for i in chance.choice(tiles):
                    if at + i >= len(data) // 2:
                        break
                    bits, = struct.unpack_from("<H", data, 2 * (at + i))
                    struct.pack_into("<H", data, 2 * (at + i), bits - 1 if i & 1 and bits & 0x7fff else bits + 1)
                    changes += 1
            file.seek(begin)
            file.write(data)
    return changes


class Rivals:
    """Each push brings the version that is not served, so every one finds the same work."""

    def __init__(self, server, to, folders):
        self.server, self.to, self.folders = server, to, folders
        self.turn = 0
        self.ids = [self.serving(), None]
        self.sent = {}

    def serving(self):
        return self.server.call("GET", "/weft/v1/versions/current")["id"]

    def push(self, way):
        before, after = self.turn, 1 - self.turn
        flags = ["--no-delta"] if way == "full" else ["--base", self.ids[before], "--base-path", self.folders[before]]
        said = json.loads(frame.run([frame.WEFT, "push", self.folders[after], "--to", self.to, "--json", "--no-progress", *flags]))["results"][0]
        self.ids[after] = self.ids[after] or said["id"]
        if not said["id"] == self.ids[after] == self.serving() or said["fell_back"]:
            raise RuntimeError(f"{way}: {said} instead of {self.ids[after]}")
        self.turn = after
        self.sent[way] = said["sent_bytes"]
        return said["total_seconds"]

    def all(self):
        return {way: lambda way=way: self.push(way) for way in ("full", "delta")}


def measure(folders, runs, proxied):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(frame.Server(folders[0], *SERVE_FLAGS))
        to = server.url
        if proxied:
            proxy = FaultProxy(server.port, lambda index: Fault(bytes_per_s=LINK_BITS_PER_S // 8))
            stack.callback(proxy.close)
            to = proxy.url
        rivals = Rivals(server, to, folders)
        times = frame.interleave(rivals.all(), runs)
    return {"seconds": frame.summary(times), "bytes": rivals.sent}


def in_namespace(folders, arguments):
    """The same over a held loopback; None where that is not allowed."""
    allowed = subprocess.run(["unshare", "-n", "sh", "-c", HOLD], capture_output=True)
    if allowed.returncode != 0:
        return None
    child = ["/usr/bin/python3", __file__, "--runs", str(arguments.runs), "--folders", *map(str, folders)]
    done = subprocess.Popen(["unshare", "-n", "sh", "-c", HOLD + ' && exec "$@"', "sh", *child], stdout=subprocess.PIPE, text=True)
    last = ""
    for line in done.stdout:
        last = line
        if not line.startswith("{"):
            print(line, end="", flush=True)
    if done.wait() != 0:
        raise RuntimeError("the run over the held link failed")
    return json.loads(last)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.6b", choices=make_checkpoint.SIZES)
    parser.add_argument("--changed", type=float, default=0.00593)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run on the small model: does it work?")
    parser.add_argument("--folders", nargs=2, type=pathlib.Path, help=argparse.SUPPRESS)  # the run inside the namespace
    arguments = parser.parse_args()
    if arguments.folders:
        print(json.dumps(measure(arguments.folders, arguments.runs, False)))
        return
    if arguments.quick:
        arguments.size, arguments.runs = "60m", 1
    with frame.scratch() as scratch:
        folders = [pathlib.Path(scratch, name) for name in ("v0", "v1")]
        make_checkpoint.write(arguments.size, folders[0], 0)
        changes = write_next(*folders, arguments.changed)
        print("loopback", flush=True)
        loopback = measure(folders, arguments.runs, False)
        print("1 Gbit/s", flush=True)
        held = in_namespace(folders, arguments)
        by = "tc" if held else "proxy"
        held = held or measure(folders, arguments.runs, True)
    fields = {"changed_elements": changes, "link_held_by": by, "loopback": loopback, "gbit": held}
    for name, link in (("loopback", loopback), ("gbit", held)):
        median = {way: figures["median"] for way, figures in link["seconds"].items()}
        fields[f"delta_vs_full_seconds_{name}"] = round(median["full"] / median["delta"], 2)
    fields["bytes_per_changed"] = round(loopback["bytes"]["delta"] / changes, 3)
    fields["delta_vs_full_bytes"] = round(loopback["bytes"]["full"] / loopback["bytes"]["delta"], 1)
    frame.report("delta_push", load=os.getloadavg()[0], **fields)


if __name__ == "__main__":
    main()
