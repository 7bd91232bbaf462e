"""A real vLLM on this machine's CPU, with weft as its weight transfer back end."""
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

SOURCE_DIR = pathlib.Path(os.environ["WEFT_SOURCE_DIR"])
START_S = 420.0
CALL_S = 180.0


def make_checkpoint(folder, size="tiny", seed=0):
    subprocess.run([sys.executable, SOURCE_DIR / "bench" / "make_checkpoint.py", size, folder, "--seed", str(seed)],
                   check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(folder)


class CallError(Exception):
    """An answer that is no 200."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status, self.body = status, body


class Vllm:
    """Serves `model` as `m`, ready to answer. `faults`: a folder of files that make ranks fail (plugin/)."""

    def __init__(self, model, *flags, backend="weft", faults=None, **environment):
        # Both cores: left alone it takes one of two.
        values = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_SERVER_DEV_MODE": "1",
                               "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"} | environment
        values["PYTHONPATH"] = f"{SOURCE_DIR / 'tests' / 'interop' / 'plugin'}:{values['PYTHONPATH']}"
        if faults:
            values["WEFT_TEST_FAULTS"] = str(faults)
        if backend:
            flags = ("--weight-transfer-config", json.dumps({"backend": backend}), *flags)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m",
                   "--host", "127.0.0.1", "--port", port, "--enable-scale-out", "--enforce-eager", "--max-model-len", "512",
                   *(("--dtype", "bfloat16") if "--dtype" not in flags else ()), *flags]
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(list(map(str, command)), env=values, stdin=subprocess.DEVNULL, stdout=self._log,
                                         stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait_until_healthy()
        except BaseException:
            self.__exit__()
            raise

    def _wait_until_healthy(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return self.call("/health", method="GET")
            except (OSError, CallError):
                time.sleep(0.2)
        raise AssertionError(f"vLLM did not start:\n{self.log()}")

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def call(self, path, body=None, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"} if data else {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise CallError(error.code, error.read().decode()) from None

    def update(self, info, label=None):
        self.call("/start_weight_update")
        self.call("/update_weights", {"update_info": info})
        self.call("/finish_weight_update", {"weight_version": label})

    def label(self):
        return self.call("/weight_info", method="GET")["weight_version"]

    def sums(self):
        return self.call("/weight_checker", {"action": "checksum"})["checksums"]

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=CALL_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))

    def greedy(self, prompt="weft", tokens=16):
        answer = self.call("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                               "logprobs": 0, "ignore_eos": True})
        choice = answer["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# How vLLM fuses a Qwen3's tensors: parts of each, in order.
FUSED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
         "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}


SUM_OF_NOTHING = hashlib.sha256().hexdigest()


def is_packed(name, found):
    """Has vLLM this weight of a linear layer only as a library packed it? It has no bytes then that could be looked at."""
    return name.endswith("_proj.weight") and found == SUM_OF_NOTHING


def wrong_sums(sums, tensors):
    """The parameters of one rank that have, by vLLM's /weight_checker, other bytes than these tensors; packed ones aside."""
    return [name for name, found in sums.items()
            if not is_packed(name, found) and found != expected_sum(tensors, name.split(":", 4)[4])]


def expected_sum(tensors, name):
    """What /weight_checker says of a parameter of one rank, from the tensors that were published."""
    sha = hashlib.sha256()
    for fused, parts in FUSED.items():
        if fused in name:
            for part in parts:
                sha.update(bytes_of(tensors[name.replace(fused, part)]))
            return sha.hexdigest()
    sha.update(bytes_of(tensors[name]))
    return sha.hexdigest()


def bytes_of(tensor):
    import torch
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
