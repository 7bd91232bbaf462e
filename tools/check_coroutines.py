#!/usr/bin/env python3
"""Finds the co_await forms that GCC 12 miscompiles (a double free at run time, no warning): `?:` with a co_await
in an arm, and a lambda or a temporary aggregate inside the full expression. Name, then await.

usage: check_coroutines.py BUILD_DIR      (one configured with clang++-14; its compile_commands.json is read)
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MATCHERS = [
    "match conditionalOperator(isExpansionInMainFile(), hasDescendant(coawaitExpr()))",
    "match coawaitExpr(isExpansionInMainFile(), hasDescendant(lambdaExpr()))",
    "match coawaitExpr(isExpansionInMainFile(), hasDescendant(initListExpr(hasType(cxxRecordDecl()))))",
]
listed = subprocess.run(["git", "ls-files", "*.cc"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
files = [f for f in listed if "co_await" in (ROOT / f).read_text()]
faults = 0
for name in files:
    command = ["clang-query-14", "-p", sys.argv[1]]
    for matcher in MATCHERS:
        command += ["-c", matcher]
    out = subprocess.run([*command, name], cwd=ROOT, capture_output=True, text=True)
    if out.returncode != 0 or "matches." not in out.stdout + out.stderr and "match." not in out.stdout:
        print(f"{name}: clang-query failed:\n{out.stdout}{out.stderr}")
        faults += 1
        continue
    for where in re.findall(r"^(\S+:\d+:\d+): note: \"root\" binds here", out.stdout, re.M):
        print(f"{where}: a co_await form that GCC 12 miscompiles: name the operand first, then await")
        faults += 1
print(f"{len(files)} files with coroutines, {faults} faults")
sys.exit(1 if faults else 0)
