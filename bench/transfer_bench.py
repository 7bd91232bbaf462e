#!/usr/bin/env python3
"""The data plane against the link: `weft push` and `weft pull` beside iperf3, a bare loop, and nginx with curl and b3sum.

usage: transfer_bench.py [--size 0.6b|60m] [--runs N] [--connections N] [--quick]

Everything goes over loopback, on the same number of connections everywhere, into memory (or tmpfs) that was touched before the clock starts. In
each round every rival has one turn, on a version that the server has not seen (each block differs from all before).
  iperf3      one iperf3 TCP stream a connection, as many bytes as the tensors have
  bare        writes of 1 MiB, reads of 1 MiB, nothing else
  push        tensors in memory, digests known: opened, sent, verified, sealed, committed: the server generates with it
  push_cold   the same with nothing hashed before
  pull        from `weft serve` into memory, every block verified; afterwards compared with what was pushed
  curl        the checkpoint's file from nginx (Debian's settings: sendfile), written over a file in tmpfs
  b3sum       over that file (all cores)
Then, apart from the clock: how many bytes a second push moves when 1 % of the blocks differ, and the peak of the receiver's memory over the model's
size, KV pages not counted, with two sets and with patches.
"""
import argparse
import contextlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import frame
import make_checkpoint
from frame import Worker

SERVE_FLAGS = ["--max-model-len", "512", "--kv-cache-memory", str(128 << 20), "--log-level", "warning"]


@contextlib.contextmanager
def nginx(folder):
    """Serves a folder; yields the URL."""
    with tempfile.TemporaryDirectory() as work:
        port = frame.free_port()
        pathlib.Path(work, "nginx.conf").write_text(f"""
            daemon off; user root; worker_processes 1; pid {work}/pid; error_log {work}/error.log;
            events {{}}
            http {{ access_log off; sendfile on; tcp_nopush on;
                    client_body_temp_path {work}; proxy_temp_path {work}; fastcgi_temp_path {work}; uwsgi_temp_path {work}; scgi_temp_path {work};
                    server {{ listen 127.0.0.1:{port}; root {folder}; }} }}""")
        process = subprocess.Popen(["nginx", "-c", f"{work}/nginx.conf", "-p", work], stderr=subprocess.DEVNULL)
        try:
            frame.wait_for_port(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def iperf3(size_bytes, connections):
    port = frame.free_port()
    server = subprocess.Popen(["iperf3", "-s", "-B", "127.0.0.1", "-p", str(port), "--forceflush"], stdout=subprocess.PIPE, text=True)
    try:
        while "listening" not in server.stdout.readline():
            if server.poll() is not None:
                raise RuntimeError("iperf3 did not start")
        said = json.loads(frame.run(["iperf3", "-c", "127.0.0.1", "-p", port, "-n", size_bytes, "-P", connections, "-J"]))
    finally:
        server.kill()
        server.wait()
    return size_bytes * 8 / said["end"]["sum_received"]["bits_per_second"]


def curl(url, out):
    """Over a file that is there: nothing is truncated, so its pages are touched already."""
    with open(out, "r+b") as file:
        said = subprocess.run(["curl", "-sSf", "-w", "%{stderr}%{time_total}", url], stdout=file, stderr=subprocess.PIPE, text=True, check=True)
    return float(said.stderr)


def peak_rss_bytes(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def over_model(server, size_bytes):
    """No request was made: no KV page was touched, and none is counted."""
    return round(peak_rss_bytes(server) / size_bytes, 3)


class Rounds:
    """The rivals, and what each checks."""

    def __init__(self, client, server, sink_port, url, out, connections, size_bytes):
        self.client, self.server, self.sink_port = client, server, sink_port
        self.url, self.out, self.connections, self.size_bytes = url, out, connections, size_bytes
        self.ids = {server.call("GET", "/weft/v1/versions/current")["id"]}
        self.file_digest = None

    def push(self, way, every=1):
        self.client.ask("change", every)
        done = self.client.ask("push", self.server.url, self.connections, way)
        serving = self.server.call("GET", "/weft/v1/versions/current")["id"]
        if done["id"] != serving or serving in self.ids:
            raise RuntimeError(f"push {way}: {done['id']} was pushed, {serving} is served")
        self.ids.add(serving)
        self.last = serving
        return done

    def b3sum(self):
        digest = frame.run(["b3sum", self.out]).split()[0]
        if digest != self.file_digest:
            raise RuntimeError("curl: the file is not what nginx has")

    def rivals(self):
        return {
            "iperf3": lambda: iperf3(self.size_bytes, self.connections),
            "bare": lambda: self.client.ask("bare", self.sink_port, self.connections)["seconds"],
            "push_cold": lambda: self.push("cold")["seconds"],
            "push": lambda: self.push("ready")["seconds"],
            "pull": lambda: self.client.ask("pull", self.server.url, self.connections, self.last)["seconds"],
            "curl": lambda: curl(self.url, self.out),
            "b3sum": self.b3sum,
        }


def patch_mode(folder, size_bytes):
    """The receiver's peak when 1 % of the elements change in the set that is served."""
    with frame.Server(folder, *SERVE_FLAGS, "--commit-mode", "patch") as server, Worker("transfer_worker", "client", folder) as client:
        before = server.call("GET", "/weft/v1/versions/current")["id"]
        client.ask("scatter", 10)
        done = client.ask("push", server.url, 1, "ready", before)
        if server.call("GET", "/weft/v1/versions/current")["id"] != done["id"]:
            raise RuntimeError("the patched version is not served")
        return over_model(server, size_bytes)


def measure(arguments, scratch):
    folder, out = pathlib.Path(scratch, "model"), pathlib.Path(scratch, "out")
    make_checkpoint.write(arguments.size, folder, 0)
    file = folder / "model.safetensors"
    shutil.copyfile(file, out)
    size_bytes = sum(2 * shape[0] * (shape[1] if len(shape) > 1 else 1) for _, shape in make_checkpoint.tensors(make_checkpoint.SIZES[arguments.size]))
    fields = {"connections": arguments.connections, "model_bytes": size_bytes}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Worker("transfer_worker", "client", folder))
        sink = stack.enter_context(Worker("transfer_worker", "sink", size_bytes + (1 << 20)))
        server = stack.enter_context(frame.Server(folder, *SERVE_FLAGS, "--commit-mode", "set"))
        url = stack.enter_context(nginx(folder)) + "/model.safetensors"
        rounds = Rounds(client, server, sink.first_line, url, out, arguments.connections, size_bytes)
        rounds.file_digest = frame.run(["b3sum", file]).split()[0]
        times = frame.interleave(rounds.rivals(), arguments.runs)
        fields["push_of_one_percent_bytes"] = round(rounds.push("ready", every=100)["sent_bytes"] / size_bytes, 4)
        fields["two_versions_peak_rss_over_model"] = over_model(server, size_bytes)
    fields["receiver_peak_rss_over_model"] = patch_mode(folder, size_bytes)
    return times, fields


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.6b", choices=make_checkpoint.SIZES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one run on the small model: does it work?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size, arguments.runs = "60m", 1
    with frame.scratch() as scratch:
        times, fields = measure(arguments, scratch)
    times["curl_b3sum"] = [a + b for a, b in zip(times["curl"], times["b3sum"])]
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, by, of in (("push_vs_iperf3", "iperf3", "push"), ("pull_vs_iperf3", "iperf3", "pull"), ("pull_vs_bare", "bare", "pull"),
                         ("push_vs_bare", "bare", "push"), ("push_cold_vs_bare", "bare", "push_cold"), ("pull_vs_nginx_curl", "curl_b3sum", "pull"),
                         ("pull_vs_nginx_curl_without_b3sum", "curl", "pull")):
        fields[name] = round(median[by] / median[of], 3)
    spread = {name: round((max(t) - min(t)) / median[name], 3) for name, t in times.items()}
    frame.report("transfer", **fields, seconds=frame.summary(times), spread=spread)


if __name__ == "__main__":
    main()
