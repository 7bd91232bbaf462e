"""What the process tests share: starting `weft serve`, waiting until it listens, talking to it, stopping it.

CTest sets WEFT_BINARY_DIR; its test `fixtures` has written the checkpoints of fixtures/fixtures.py before.
"""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

BINARY_DIR = pathlib.Path(os.environ["WEFT_BINARY_DIR"])
WEFT = BINARY_DIR / "bin" / "weft"
FIXTURES = BINARY_DIR / "fixtures"
TIMEOUT_S = 60

_state = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = _state.name  # what `weft push` remembers is of this program alone


def wait_for(condition, what):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {TIMEOUT_S} s")
        time.sleep(0.01)


class Answer:
    """A whole HTTP answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:2000]!r}"


class Program:
    """A running `weft` command. Its standard error is kept in `lines`."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([str(WEFT), *map(str, arguments)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        errors="replace")
        self.lines = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_line(self, pattern):
        """The match of the first line of standard error that has `pattern`."""
        found = lambda: next(filter(None, (re.search(pattern, line) for line in self.lines)), None)
        with self._news:
            self._news.wait_for(lambda: found() or self._ended, TIMEOUT_S)
            match = found()
        if not match:
            raise AssertionError(f"no line like `{pattern}` from {self.process.args}:\n" + "\n".join(self.lines))
        return match

    def stop(self, number=signal.SIGTERM):
        """Sends a signal unless it has ended; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self):
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"{self.process.args} does not end:\n" + "\n".join(self.lines)) from None
        self._reader.join(TIMEOUT_S)
        self.process.stderr.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        if not self.process.stderr.closed:
            self.wait()


class Listener(Program):
    """A `weft` command that listens, ready to answer."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        try:
            self.url = self.wait_for_line(r"listening on (https?://\S+)").group(1)
        except BaseException:
            self.__exit__()
            raise
        parts = urllib.parse.urlsplit(self.url)
        self.host, self.port = parts.hostname, parts.port

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)

    def request(self, method, path, body=None, headers=None):
        """`body` is bytes as they are, or a value to send as JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, path, body=body, headers=headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.request("POST", path, body, **more)


class Server(Listener):
    """`weft serve MODEL FLAGS...` on a free port. `model` is a folder, a fixture's name, or None."""

    def __init__(self, model, *flags, port=0):
        folder = [] if model is None else [FIXTURES / model]
        super().__init__("serve", *folder, "--port", port, "--threads", "2", *flags)

    def complete(self, prompt, max_tokens=16, **more):
        """The first choice of a greedy completion."""
        answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | more)
        if answer.status != 200:
            raise AssertionError(answer)
        return answer.json()["choices"][0]

    def stream(self, path, body):
        """Yields the events of a server-sent stream as values, [DONE] not among them."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body | {"stream": True}).encode(),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(Answer(response))
            for line in response:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def push(self, file, **headers):
        """The short form: one PUT of a .safetensors file."""
        data = file if isinstance(file, bytes) else (FIXTURES / file / "model.safetensors").read_bytes()
        return self.request("PUT", "/weft/v1/weights", data, headers)

    def weight_info(self):
        return self.get("/weight_info").json()
