#!/usr/bin/env python3
"""Checks that transformers loads a checkpoint of `weft train` and answers with the same greedy text as a server.

usage: check_checkpoint.py CHECKPOINT_DIR WEFT [COUNT]
WEFT is the program; it serves CHECKPOINT_DIR while COUNT questions (default 100) are asked on both sides. Needs torch
and transformers. Exits 1 and names the first question on which the two differ.
"""
import json
import random
import re
import subprocess
import sys
import urllib.request

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, weft, count = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 100
draw = random.Random(0)
questions = ["".join(draw.choices("0123456789", k=5)) + ">" for _ in range(count // 2)]
questions += [f"{draw.randrange(100):02}+{draw.randrange(100):02}=" for _ in range(count - count // 2)]

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def by_transformers(question):
    ids = tokenizer(question, return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)
    return tokenizer.decode(answer[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)


def by_server(url, question):
    body = {"prompt": question, "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


with subprocess.Popen([weft, "serve", folder, "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
    try:
        url = next(filter(None, (re.search(r"listening on (\S+)", line) for line in server.stderr))).group(1)
        for question in questions:
            ours, theirs = by_server(url, question), by_transformers(question)
            if ours != theirs:
                sys.exit(f"{question!r}: weft answers {ours!r}, transformers {theirs!r}")
            print(f"{question} {ours}")
    finally:
        server.terminate()
assert tokenizer.decode(tokenizer("31452>12345")["input_ids"]) == "31452>12345"
print(f"{count} answers are equal")
