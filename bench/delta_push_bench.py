#!/usr/bin/env python3
"""The next version, the whole way: `weft push` of a folder to `weft serve`, in full against what changed.

usage: delta_push_bench.py [--size 0.6b|60m] [--runs N] [--quick]

Two versions of one model take turns; their matrices are tier B's pair of docs/performance.md (`delta_bench write`), the rest is the same. The files are in tmpfs.
Each push reads and hashes all of its folder, is verified and served when it ends, and the server must then have the id that this version had the first time.
  full    weft push FOLDER --no-delta
  delta   weft push FOLDER, of which the server has the version before
over loopback, and over a loopback held to 1 Gbit/s: a network namespace of its own with a token bucket (tc), or a proxy where that is not allowed. In the namespace
all bytes of both directions are counted, with TCP's and IP's headers (/proc/net/dev); `bytes` are the bodies that were sent.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
import frame
import make_checkpoint
from fault_proxy import Fault, FaultProxy

SERVE_FLAGS = ["--max-model-len", "512", "--kv-cache-memory", str(128 << 20), "--log-level", "warning", "--commit-mode", "set"]
LINK_BITS_PER_S = 10**9
ROW_ELEMENTS = 4096  # delta_bench writes whole rows
PIECE_BYTES = 1 << 20
HOLD = f"ip link set lo up && tc qdisc add dev lo root tbf rate {LINK_BITS_PER_S}bit burst 256kb latency 100ms"


def write_pair(folders, size, scratch):
    """The folders of two versions. Returns how many elements differ."""
    make_checkpoint.write(size, folders[0], 0)
    shutil.copytree(*folders)
    header_size, matrices = read_matrices(folders[0] / "model.safetensors")
    elements = sum(end - begin for begin, end in matrices) // 2
    files = [pathlib.Path(scratch, name) for name in ("base", "next")]
    rows = -(-elements // ROW_ELEMENTS)
    frame.run([frame.WEFT.parent / "delta_bench", "write", *files, rows * ROW_ELEMENTS])
    values = [memoryview(file.read_bytes()) for file in files]
    for folder, data in zip(folders, values):
        with open(folder / "model.safetensors", "r+b") as out:
            at = 0
            for begin, end in matrices:
                out.seek(header_size + begin)
                out.write(data[at:at + end - begin])
                at += end - begin
    for file in files:
        file.unlink()
    return sum(count_changes(*(data[at:at + PIECE_BYTES] for data in values)) for at in range(0, elements * 2, PIECE_BYTES))


def count_changes(old, new):
    """Elements that differ, of bf16 data whose two bytes may both change."""
    x = int.from_bytes(old, "little") ^ int.from_bytes(new, "little")
    x |= x >> 8
    ones = int.from_bytes(b"\x01\x00" * (len(old) // 2), "little")
    for shift in (4, 2, 1):
        x |= x >> shift
    return (x & ones).bit_count()


def read_matrices(path):
    """Where the data begins, and from where to where each matrix lies in it."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return 8 + size, [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__" and len(entry["shape"]) == 2]


def loopback_bytes():
    """All that went over the loopback of this network namespace."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise RuntimeError("/proc/net/dev has no lo")


class Rivals:
    """Each push brings the version that is not served, so every one finds the same work."""

    def __init__(self, server, to, folders):
        self.server, self.to, self.folders = server, to, folders
        self.turn = 0
        self.ids = [self.serving(), None]
        self.sent, self.wire = {}, {}

    def serving(self):
        return self.server.call("GET", "/weft/v1/versions/current")["id"]

    def push(self, way):
        before, after = self.turn, 1 - self.turn
        flags = ["--no-delta"] if way == "full" else ["--base", self.ids[before], "--base-path", self.folders[before]]
        wire = loopback_bytes()
        said = json.loads(frame.run([frame.WEFT, "push", self.folders[after], "--to", self.to, "--json", "--no-progress", *flags]))["results"][0]
        self.ids[after] = self.ids[after] or said["id"]
        if not said["id"] == self.ids[after] == self.serving() or said["fell_back"]:
            raise RuntimeError(f"{way}: {said} instead of {self.ids[after]}")
        self.turn = after
        self.sent[way], self.wire[way] = said["sent_bytes"], loopback_bytes() - wire
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
    return {"seconds": frame.summary(times), "bytes": rivals.sent, "wire_bytes": rivals.wire}


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
        changes = write_pair(folders, arguments.size, scratch)
        print("loopback", flush=True)
        loopback = measure(folders, arguments.runs, False)
        print("1 Gbit/s", flush=True)
        held = in_namespace(folders, arguments)
        by = "tc" if held else "proxy"
        held = held or measure(folders, arguments.runs, True)
    if by == "proxy":
        del held["wire_bytes"]  # they went twice over this machine's loopback, beside others'
    del loopback["wire_bytes"]
    fields = {"changed_elements": changes, "link_held_by": by, "loopback": loopback, "gbit": held}
    for name, link in (("loopback", loopback), ("gbit", held)):
        median = {way: figures["median"] for way, figures in link["seconds"].items()}
        fields[f"delta_vs_full_seconds_{name}"] = round(median["full"] / median["delta"], 2)
    fields["bytes_per_changed"] = round(held.get("wire_bytes", held["bytes"])["delta"] / changes, 4)
    fields["delta_vs_full_bytes"] = round(loopback["bytes"]["full"] / loopback["bytes"]["delta"], 1)
    frame.report("delta_push", load=os.getloadavg()[0], **fields)


if __name__ == "__main__":
    main()
