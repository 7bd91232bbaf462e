#!/usr/bin/env python3
"""Plays the recorded requests to vLLM 0.32 against `weft serve` and compares status, content type and shape.

Shape: every key that vLLM's answer has is there with the same JSON type; more keys are allowed. What differs on purpose
is in DIFFERENCES, which is also the table in docs/vllm-compatibility.md: `--table` prints it.
"""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
RECORDING = HERE / "recorded" / "vllm-0.32-answers.jsonl"
DOCUMENT = HERE.parent / "docs" / "vllm-compatibility.md"

ORDER = "A call out of order is 409: stock clients send a 5xx again, and again get it."
REPEAT = "A repeat by the same owner is harmless: a lost answer can be asked for again."
FIELDS = "A field that means nothing here is refused before anything is loaded, and the message says what is accepted."
LIST = "A list has one element for each worker, and there is one worker."
SLASH = "A trailing slash is served; a redirect of a POST loses its body in many clients."
EMPTY = "JSON where vLLM's body is empty: clients parse every answer."
# (requests, vLLM's status, weft's status, reason)
DIFFERENCES = (
    (("update before init", "update before start", "finish before start", "finish before start, after init",
      "update list of one", "update", "finish", "finish again"), 500, 409, ORDER),
    (("trailing slash", "trailing slash get"), 307, 200, SLASH),
    (("init unknown field", "update unknown field"), 500, 400, FIELDS),
    (("start again", "start with body", "start for finish empty version", "start for finish bad json"), 500, 200, REPEAT),
    (("update empty list", "update list of two"), 500, 400, LIST),
    (("draft start",), 500, 400, "There is no draft model; that is the request's fault, not the server's."),
    (("checker reset",), 200, 501, "Reset overwrites the weights that serve. They are never written to here."),
    (("reset mm", "reset encoder"), 200, 200, EMPTY),
)
# What the recording takes for granted of its own model and its own transfer engine.
REWRITES = {"detokenize": {"model": "m_tiny", "tokens": [104, 105]}}
# Objects whose keys are data.
MAPS = ("checksums", "top_logprobs", "prompt_logprobs")


def table():
    lines = ["| requests (names in the recording) | vLLM | weft | reason |", "| --- | --- | --- | --- |"]
    for names, theirs, ours, reason in DIFFERENCES:
        lines.append(f"| {'; '.join(names)} | {theirs} | {ours} | {reason} |")
    return "\n".join(lines)


def kind(value):
    if isinstance(value, bool):
        return "boolean"
    return {type(None): "null", int: "number", float: "number", str: "string", list: "list", dict: "object"}[type(value)]


def shape_faults(theirs, ours, path="answer"):
    """Where `ours` lacks a key of `theirs` or has another JSON type there."""
    if kind(theirs) != kind(ours):
        return [f"{path}: {kind(theirs)} in vLLM, {kind(ours)} here"]
    faults = []
    if isinstance(theirs, dict):
        if path.split(".")[-1].split("[")[0] in MAPS:
            theirs, ours = ({"*": next(iter(x.values()))} if x else {} for x in (theirs, ours))
        for key, value in theirs.items():
            faults += shape_faults(value, ours[key], f"{path}.{key}") if key in ours else [f"{path}.{key}: missing"]
    elif isinstance(theirs, list):
        if theirs and not ours:
            faults.append(f"{path}: empty")
        for i, (a, b) in enumerate(zip(theirs, ours)):
            faults += shape_faults(a, b, f"{path}[{i}]")
    return faults


def events_of(text):
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"], events[-1] == "[DONE]"


def stream_faults(theirs, ours):
    """How many tokens go into one event is timing: the first and the last are compared."""
    (their_events, _), (our_events, done) = events_of(theirs), events_of(ours)
    faults = [] if done else ["the stream does not end with [DONE]"]
    for i in (0, -1):
        faults += shape_faults(their_events[i], our_events[i], f"event[{i}]")
    return faults


def rewritten(record):
    if record["name"] in REWRITES:
        return REWRITES[record["name"]]
    body = record["body"]
    info = body.get("init_info") if isinstance(body, dict) else None
    if isinstance(info, dict):
        return body | {"init_info": {key: value for key, value in info.items() if key != "base"}}
    return body


def request_body(record):
    body = rewritten(record)
    if body is None:
        return None
    if isinstance(body, dict) and set(body) == {"raw"}:
        return body["raw"].replace('"base": "http://127.0.0.1:8200/"', "").encode("latin1")
    return json.dumps(body).encode()


class RecordedAnswers(unittest.TestCase):
    def test_weft_answers_as_vllm_did(self):
        from weft_testing import FIXTURES, Server
        known = {name: row for row in DIFFERENCES for name in row[0]}
        records = [json.loads(line) for line in RECORDING.read_text().splitlines()]
        self.assertEqual(len(records), 171)
        self.assertLessEqual(set(known), {record["name"] for record in records})
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(FIXTURES / "P2" / "model.safetensors", f"{folder}/v2.safetensors")
            with Server("P_llama", "--served-model-name", "m_tiny", "--allow-path", folder) as server:
                for record in records:
                    with self.subTest(record["name"]):
                        self.check(server, record, known.get(record["name"]))

    def check(self, server, record, difference):
        headers = {"Content-Type": record["content_type"]} if record["content_type"] else {}
        answer = server.request(record["method"], record["path"], request_body(record), headers)
        self.assertEqual(answer.status, difference[2] if difference else record["status"], answer)
        our_type = answer.headers.get("Content-Type")
        streamed = (record["answer_type"] or "").startswith("text/event-stream")
        if not streamed:
            self.assertEqual(answer.headers.get("Content-Length"), str(len(answer.body)))
        if difference:
            # A row says what vLLM did, and is one only while weft does something else.
            self.assertEqual(record["status"], difference[1])
            self.assertNotEqual((record["status"], record["length"] != "0"), (answer.status, bool(answer.body)))
            if answer.body:
                self.assertEqual(our_type, "application/json")
            if answer.status >= 400:
                theirs = {"error": {"message": "", "type": "", "param": answer.json()["error"]["param"], "code": 0}}
                self.assertEqual(shape_faults(theirs, answer.json()), [])
                self.assertEqual(answer.json()["error"]["code"], answer.status)
            return
        self.assertEqual((our_type or "").split(";")[0], (record["answer_type"] or "").split(";")[0])
        if streamed:
            self.assertEqual(stream_faults(record["answer"]["text"], answer.body.decode()), [])
        elif answer.body or record["length"] != "0":
            self.assertEqual(shape_faults(record["answer"], answer.json()), [], answer)

    def test_the_document_has_the_same_table(self):
        self.assertIn(table(), DOCUMENT.read_text())


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        print(table())
    else:
        unittest.main()
