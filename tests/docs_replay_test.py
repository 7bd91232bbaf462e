"""The worked examples of docs/protocol.md, sent to a real `weft store` byte for byte; the answers must be those in the document.

An example is a block fenced as `http request` or `http response`, with the word `hex` where the body is written as hex digits. A word in double braces
stands for what differs from run to run: `{{upload}}` in an answer is remembered, and put into the requests that follow. An answer belongs to the
request before it. All headers are there, in their order.
"""
import os
import pathlib
import re
import socket
import tempfile
import unittest

from store_test import Store
from weft_testing import TIMEOUT_S

DOCUMENT = pathlib.Path(os.environ["WEFT_SOURCE_DIR"]) / "docs/protocol.md"
FENCE = re.compile(r"^```http (request|response)( hex)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def message(text, is_hex):
    """The head with its blank line, and the body."""
    head, _, body = text.partition("\n\n")
    head = head.rstrip("\n").replace("\n", "\r\n") + "\r\n\r\n"
    return head, bytes.fromhex(body) if is_hex else body.rstrip("\n").encode()


def pattern(text, known):
    """A regular expression for `text`, in which each placeholder that is not known yet is a group."""
    parts, seen = [], set()
    for i, part in enumerate(PLACEHOLDER.split(text)):
        if i % 2 == 0:
            parts.append(re.escape(part))
        elif part in known:
            parts.append(re.escape(known[part]))
        elif part in seen:
            parts.append(f"(?P={part})")
        else:
            seen.add(part)
            parts.append(rf'(?P<{part}>[^"\s,}}]+)')
    return "".join(parts)


def exchange(port, head, body):
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection, connection.makefile("rb") as answer:
        connection.sendall(head.encode() + body)
        lines = []
        while (line := answer.readline()) not in (b"\r\n", b""):
            lines.append(line.decode())
        lengths = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
        return "".join(lines) + "\r\n", answer.read(int(lengths[0])) if lengths else b""


class Examples(unittest.TestCase):
    def check(self, wanted, is_hex, answer, known):
        head, body = message(wanted, is_hex)
        for text, got in (head, answer[0]), (body.decode("latin-1"), answer[1].decode("latin-1")):
            match = re.fullmatch(pattern(text, known), got)
            if not match:
                shown = answer[1].hex(" ") if is_hex else answer[1].decode(errors="replace")
                self.fail(f"the document has\n{wanted}\nbut the answer was\n{answer[0]}{shown}")
            known.update(match.groupdict())

    def test_answers_are_those_of_the_document(self):
        examples = [(kind, bool(is_hex), text) for kind, is_hex, text in FENCE.findall(DOCUMENT.read_text())]
        self.assertGreater(len(examples), 20)
        known, answer = {}, None
        with tempfile.TemporaryDirectory() as folder, Store(pathlib.Path(folder) / "store") as store:
            for kind, is_hex, text in examples:
                if kind == "response":
                    with self.subTest(text.split("\n", 1)[0]):
                        self.check(text, is_hex, answer, known)
                    continue
                head, body = message(PLACEHOLDER.sub(lambda name: known[name[1]], text), is_hex)
                length = re.search(r"(?im)^Content-Length: (\d+)\r$", head)
                self.assertEqual(len(body), int(length[1]) if length else 0, text)
                answer = exchange(store.port, head, body)


if __name__ == "__main__":
    unittest.main()
