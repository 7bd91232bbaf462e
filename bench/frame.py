"""The frame of the whole-process benchmarks: rivals take turns in one run, each checks its own result, and the last line is `BENCH {json}`.

Machines are noisy: never compare figures of two runs. Standard library only.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT = pathlib.Path(os.environ.get("WEFT_BINARY_DIR", ROOT / "build/release")) / "bin/weft"


def interleave(rivals, runs=5):
    """Calls each rival in turn, `runs` times round, after one round that is not counted. A rival returns seconds (or None to time the
    call itself) and raises if its result is wrong. Returns {name: [seconds]}."""
    times = {name: [] for name in rivals}
    for turn in range(runs + 1):
        for name, rival in rivals.items():
            begin = time.perf_counter()
            seconds = rival()
            seconds = time.perf_counter() - begin if seconds is None else seconds
            if turn > 0:
                times[name].append(seconds)
            print(f"  {'warm-up' if turn == 0 else f'run {turn}'}  {name:32} {seconds:8.3f} s", flush=True)
    return times


def summary(times):
    """{name: {"median", "min", "max"}} in seconds."""
    return {name: {"median": round(statistics.median(t), 4), "min": round(min(t), 4), "max": round(max(t), 4)} for name, t in times.items()}


def report(bench, **fields):
    """The last line of a benchmark."""
    print("BENCH " + json.dumps({"bench": bench, **fields}))


class Server:
    """A `weft serve` process on a free port, ready when constructed."""

    def __init__(self, folder, *flags):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([WEFT, "serve", str(folder), "--port", "0", *flags], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 120
        while True:
            self.log.seek(0)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log.read())
            if found:
                break
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError("weft serve did not start:\n" + self.log.read())
            time.sleep(0.002)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def call(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            kind = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, {**kind, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise RuntimeError(f"{method} {path}: {response.status} {text[:300]}")
            return json.loads(text) if text else None

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Worker:
    """A program of bench/ that obeys lines of text, an answer in JSON each. Its first line says that it is ready."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([WEFT.parent / program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first_line = self.process.stdout.readline().strip()
        if not self.first_line:
            raise RuntimeError(f"{program} did not start")

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or '{"error": "it ended"}')
        if "error" in answer:
            raise RuntimeError(f"{' '.join(map(str, words))}: {answer['error']}")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def free_port():
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, seconds=10):
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def run(command, **options):
    """Runs a command that must succeed and returns its output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def scratch():
    """A folder in memory, so that no disk is measured."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="weft_bench_", dir=base)


if __name__ == "__main__":
    sys.exit(__doc__)
