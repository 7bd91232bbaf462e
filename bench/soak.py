#!/usr/bin/env python3
"""`weft serve` under mixed load for a long time, with a new version every second.

usage: soak.py [--minutes M] [--weft PROGRAM]

24 clients ask for all that the API has: whole answers and streams, groups with one prompt, log-probabilities, stop strings, salts, each value of on_update; some
go away in the middle. A trainer pushes slightly changed weights every second, and now and then the server is paused, resumed, told to forget its prefix cache, told to
abort all. The KV cache is small, so that sequences are preempted. Held all along:
  answers   every request that was not left is answered once, with 200, as many tokens as asked for or a reason why not
  spans     the versions of an answer are ones that were served, in that order, not older than when it was asked nor newer than when it was answered
  counts    at the end nothing runs or waits, no page is held, and as many sequences ended as were asked for
  growth    after the first third, memory and file descriptors stay where they are
The last line is `SOAK {json}`; the status is 1 if anything failed. Standard library only.
"""
import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import frame
import make_checkpoint

CLIENTS = 24
MAX_MODEL_LEN = 1024
SERVE_FLAGS = ["--threads", "2", "--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", "32", "--max-num-batched-tokens", "512",
               "--kv-cache-memory", 8 << 20, "--log-level", "warning"]
RSS_SLACK_MB = 16  # of allocators: arenas of threads, pieces between what lives long
JSON = {"Content-Type": "application/json"}


class Versions:
    """What was served, in order. A version counts as possible from before its push and as surely served after it."""

    def __init__(self, first):
        self._lock = threading.Lock()
        self._names = {first: 0}
        self._served = 0

    def begin(self, name):
        with self._lock:
            self._names[name] = len(self._names)

    def done(self):
        with self._lock:
            self._served = len(self._names) - 1

    def served(self):
        return self._served

    def check(self, spans, tokens, at_least):
        with self._lock:
            order = [self._names.get(span["version"]) for span in spans]
        if None in order or order != sorted(set(order)) or (order and order[0] < at_least):
            raise AssertionError(f"versions {spans}, when {at_least} was served already")
        ends = [0] + [span["end"] for span in spans]
        if [span["start"] for span in spans] != ends[:-1] or ends[-1] != tokens or any(a >= b for a, b in zip(ends, ends[1:])):
            raise AssertionError(f"spans {spans} of {tokens} tokens")


class Soak:
    def __init__(self, server, versions, deadline):
        self.server, self.versions, self.deadline = server, versions, deadline
        self.counts = collections.Counter()
        self.failures = []
        self._lock = threading.Lock()
        self._stems = [[random.Random(i).randrange(256) for _ in range(200)] for i in range(4)]

    def count(self, **more):
        with self._lock:
            self.counts.update(more)

    def going_on(self):
        return time.monotonic() < self.deadline and len(self.failures) < 20

    def loop(self, act, *arguments):
        """Runs it until the end; what it raises is a failure."""
        while self.going_on():
            try:
                act(*arguments)
            except Exception as error:
                with self._lock:
                    self.failures.append(f"{act.__name__}: {type(error).__name__}: {error}"[:600])
                traceback.print_exc()

    def post(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body) if body is not None else None, JSON if body is not None else {})
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise AssertionError(f"{path}: {response.status} {text[:300]}")
            return text

    # ---- Clients ----

    def body(self, rng):
        prompt = self._stems[rng.randrange(4)][:rng.randint(1, 200)] + [rng.randrange(256) for _ in range(rng.choice((0, 0, 3, 60)))]
        body = {"prompt": prompt, "max_tokens": rng.choice((1, 8, 32, 32, 128)), "n": rng.choice((1, 1, 1, 4, 16)), "seed": rng.randrange(1 << 30)}
        options = ({"temperature": 0}, {"top_p": 0.9, "top_k": 40}, {"min_p": 0.05}, {"presence_penalty": 0.5, "repetition_penalty": 1.1},
                   {"logprobs": 3}, {"prompt_logprobs": 1}, {"echo": True, "logprobs": 0}, {"stop": ["ab", "zzz"]}, {"ignore_eos": True, "min_tokens": 1},
                   {"cache_salt": "s"}, {"stop_token_ids": [7, 8, 9]}, {"logit_bias": {"5": 3}}, {"return_token_ids": True})
        for option in rng.sample(options, rng.randint(0, 3)):
            body |= option
        if rng.random() < 0.2:
            body["on_update"] = rng.choice(("continue", "recompute", "finish", "abort"))
        return body

    def ask(self, rng):
        body = self.body(rng)
        at_least = self.versions.served()
        may_stream = "prompt_logprobs" not in body
        if may_stream and rng.random() < 0.1:
            return self.leave(body | {"stream": True}, rng)
        if may_stream and rng.random() < 0.4:
            choices = self.stream(body)
        elif body["n"] == 1 and not {"echo", "logit_bias"} & body.keys() and rng.random() < 0.3:
            choices = self.generate(body)
        else:
            answer = json.loads(self.post("/v1/completions", body))
            choices = [(c["finish_reason"], c["weight_versions"]) for c in answer["choices"]]
            self.count(tokens=answer["usage"]["completion_tokens"],
                       cached=(answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0))
        if len(choices) != body["n"]:
            raise AssertionError(f"{len(choices)} choices of {body['n']}")
        for reason, spans in choices:
            tokens = spans[-1]["end"] if spans else 0
            self.versions.check(spans, tokens, at_least)
            if reason not in ("stop", "length", "abort") or (reason == "length" and tokens != body["max_tokens"]):
                raise AssertionError(f"{reason} after {tokens} of {body['max_tokens']} tokens")
            self.count(**{"ended_" + reason: 1})
        self.count(requests=1, sequences=body["n"])

    def generate(self, body):
        body = dict(body)
        ids = body.pop("prompt")
        answer = json.loads(self.post("/inference/v1/generate", {"token_ids": ids, "sampling_params": body}))
        choice = answer["choices"][0]
        if (choice["weight_versions"] or [{"end": 0}])[-1]["end"] != len(choice["token_ids"]):
            raise AssertionError("spans do not end with the ids")
        self.count(tokens=len(choice["token_ids"]))
        return [(choice["finish_reason"], choice["weight_versions"])]

    def events(self, connection, body):
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"stream: {response.status} {response.read()[:300]}")
        for line in response:
            if line.startswith(b"data: "):
                yield line[6:].strip()

    def stream(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        ended, last, tokens = {}, None, 0
        with contextlib.closing(connection):
            for last in self.events(connection, body | {"stream": True, "return_token_ids": True}):
                for choice in [] if last == b"[DONE]" else json.loads(last)["choices"]:
                    tokens += len(choice["token_ids"])
                    if choice["finish_reason"]:
                        if choice["index"] in ended:
                            raise AssertionError("a choice has ended twice")
                        ended[choice["index"]] = (choice["finish_reason"], choice["weight_versions"])
        if last != b"[DONE]":
            raise AssertionError(f"a stream ends with {last}")
        if sum(spans[-1]["end"] for _, spans in ended.values() if spans) != tokens:
            raise AssertionError("the events' tokens are not those of the spans")
        self.count(tokens=tokens)
        return list(ended.values())

    def leave(self, body, rng):
        """Reads some events, or none, and hangs up."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        with contextlib.closing(connection):
            for _, _ in zip(range(rng.choice((1, 5, 20))), self.events(connection, body)):
                pass
        self.count(left=1, left_sequences=body["n"])

    # ---- What happens to the server ----

    def push(self, folder, rng):
        begin = time.monotonic()
        file = folder / "model.safetensors"
        with open(file, "r+b") as weights:
            header = 8 + int.from_bytes(weights.read(8), "little")
            size = file.stat().st_size
            for _ in range(64):  # a last bit here and there
                at = header + 2 * rng.randrange((size - header) // 2)
                weights.seek(at)
                low = weights.read(1)[0]
                weights.seek(at)
                weights.write(bytes([low ^ 1]))
        label = f"v{self.counts['versions'] + 1}"
        self.versions.begin(label)
        flags = ["--on-update", rng.choice(("continue", "recompute", "finish", "abort"))] if rng.random() < 0.3 else []
        frame.run([frame.WEFT, "push", folder, "--to", self.server.url, "--label", label, "--no-progress", *flags], timeout=120)
        self.versions.done()
        self.count(versions=1)
        time.sleep(max(0.0, begin + 1 - time.monotonic()))

    def disturb(self, rng):
        time.sleep(rng.uniform(0.5, 5))
        match rng.randrange(10):
            case 0 | 1:
                self.post("/reset_prefix_cache?reset_running_requests=" + rng.choice(("true", "false")))
            case 2:
                self.post("/abort_requests", {"request_ids": []})
            case _:
                self.post(f"/pause?mode={rng.choice(('keep', 'keep', 'keep', 'wait', 'wait', 'abort'))}&clear_cache={rng.choice(('true', 'false'))}")
                time.sleep(rng.uniform(0, 0.3))
                self.post("/resume")
        self.count(disturbances=1)

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        sums = collections.Counter()
        for name, value in re.findall(r"^(\S+?)\{.*\} (\S+)$", text, re.M):
            sums[name] += float(value)
        return sums


def process_size(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def check_end(soak):
    """Nothing is left, and what ended is what was asked for."""
    deadline = time.monotonic() + 60
    while True:
        seen = soak.metrics()
        if seen["vllm:num_requests_running"] + seen["vllm:num_requests_waiting"] == 0:
            break
        if time.monotonic() > deadline:
            raise AssertionError(f"still there: {seen['vllm:num_requests_running']} running, {seen['vllm:num_requests_waiting']} waiting")
        time.sleep(0.05)
    if seen["vllm:kv_cache_usage_perc"] != 0:
        raise AssertionError(f"pages are held by nobody: {seen['vllm:kv_cache_usage_perc']}")
    ended, asked = int(seen["vllm:request_success_total"]), soak.counts["sequences"] + soak.counts["left_sequences"]
    if ended != asked:
        raise AssertionError(f"{ended} sequences have ended, {asked} were asked for")
    return seen


def check_growth(samples):
    third = len(samples) // 3
    if third < 10:
        return {}
    middle, last = samples[third:2 * third], samples[2 * third:]
    rss = [statistics.median(rss for rss, _ in part) for part in (middle, last)]
    fds = [max(fds for _, fds in part) for part in (middle, last)]
    if rss[1] > 1.02 * rss[0] + RSS_SLACK_MB:
        raise AssertionError(f"memory has grown from {rss[0]:.0f} to {rss[1]:.0f} MB")
    if fds[1] > fds[0] + CLIENTS:
        raise AssertionError(f"file descriptors have grown from {fds[0]} to {fds[1]}")
    return {"rss_mb": [round(samples[0][0]), *map(round, rss)], "fds": fds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES", 30)))
    parser.add_argument("--weft", type=pathlib.Path, default=frame.WEFT)
    arguments = parser.parse_args()
    frame.WEFT = arguments.weft
    samples, figures = [], {}
    with frame.scratch() as scratch:
        folder = pathlib.Path(scratch, "model")
        make_checkpoint.write("tiny", folder, 0)
        with frame.Server(folder, *map(str, SERVE_FLAGS)) as server:
            idle = process_size(server.process.pid)
            versions = Versions(server.call("GET", "/weight_info")["weight_version"])
            soak = Soak(server, versions, time.monotonic() + 60 * arguments.minutes)
            threads = [threading.Thread(target=soak.loop, args=(soak.ask, random.Random(i))) for i in range(CLIENTS)]
            threads.append(threading.Thread(target=soak.loop, args=(soak.push, folder, random.Random(100))))
            threads.append(threading.Thread(target=soak.loop, args=(soak.disturb, random.Random(101))))
            for thread in threads:
                thread.start()
            while soak.going_on():
                time.sleep(1)
                samples.append(process_size(server.process.pid))
                if len(samples) % 30 == 0:
                    print(f"  {len(samples) / 60:5.1f} min  {samples[-1][0]:.0f} MB, {samples[-1][1]} descriptors, {dict(soak.counts)}", flush=True)
            for thread in threads:
                thread.join(180)
            try:
                if any(thread.is_alive() for thread in threads):
                    raise AssertionError("a request was never answered")
                seen = check_end(soak)
                figures = {name.removeprefix("vllm:").removesuffix("_total"): int(seen[name]) for name in (
                    "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "weft_engine_steps_total")}
                figures |= check_growth(samples)
                fds = process_size(server.process.pid)[1]
                if fds > idle[1] + 2:
                    raise AssertionError(f"{fds} file descriptors are open, {idle[1]} were before")
            except AssertionError as error:
                soak.failures.append(str(error))
    print("SOAK " + json.dumps({"minutes": round(len(samples) / 60, 1), "failures": soak.failures, **soak.counts, **figures}))
    sys.exit(1 if soak.failures else 0)


if __name__ == "__main__":
    main()
