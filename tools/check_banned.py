#!/usr/bin/env python3
"""Refuses words that have no place in the sources. Each row: pattern, where, why.

usage: check_banned.py
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
RULES = [
    (r"std::cout|#include <iostream>", r"^src/", "programs print through app, libraries through log.h"),
    (r"std::atomic<\s*std::shared_ptr", r"", "libstdc++ 12's races under TSan: Guarded<shared_ptr>"),
    (r"std::views|std::ranges::(views|subrange|(stable_)?partition|remove(_if)?|unique|rotate|search(_n)?|equal_range|find_end)\b", r"",
     "clang 14 cannot compile libstdc++ 12's views"),
    (r"\bdetached\b", r"^src/weft/(?!http/)", "every task has an owner"),
    (r"(?<!asm )(?<!asm__ )\bvolatile\b", r"^src/(?!.*(_test|_bench)\.cc)", "not a synchronisation tool"),
    (r"\b(sleep_for|usleep)\b", r"^src/(?!.*_test\.cc|weft/transfer/(publisher|puller)\.cc|weft/transfer/internal/retry\.h|weft/trainer/(sampling\.cc|stop_watcher\.h))", "wait for an event, with a deadline (calls that are made again back off; sampling.cc holds back what a fault says; a signal handler wakes nobody, so stop_watcher.h looks)"),
    (r"\b(std::rand|rand|srand)\(", r"", "random numbers have a seed"),
    (r"\bassert\(", r"^src/|^apps/", "WEFT_CHECK for what cannot happen, Result for input"),
    (r"\[=\]", r"", "name what a lambda captures"),
    (r"using namespace std(?!::chrono_literals|::string_literals|::string_view_literals)", r"", "name what you use"),
    (r"#include <(torch|ATen|c10)/", r"^(?!src/weft/trainer/)", "torch stays in the trainer"),
    (r"fmt::format_to(_n)?\(", r"", "Clang cannot link it against Debian's libfmt, which GCC built"),
    (r"\bTODO\(now\)", r"", "do it now"),
]
files = subprocess.run(["git", "ls-files", "*.h", "*.cc"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
faults = 0
for name in files:
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        code = line.split("//")[0]
        for pattern, where, why in RULES:
            if re.search(where, name) and re.search(pattern, code):
                print(f"{name}:{number}: {code.strip()}: {why}")
                faults += 1
print(f"{len(files)} files, {faults} banned words")
sys.exit(1 if faults else 0)
