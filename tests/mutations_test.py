#!/usr/bin/env python3
"""Proves the simulator: each patch in tests/mutations puts a plausible bug into a copy of a source, and the simulator
must find it. docs/testing.md, "Simulator".

usage: mutations_test.py [NAME ...]
Only the patched sources are compiled, with the build's own commands; all else is linked from the build.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(os.environ["WEFT_SOURCE_DIR"])
BINARY = pathlib.Path(os.environ["WEFT_BINARY_DIR"])
WORK = BINARY / "mutations"
SCHEDULES = 10_000
LEAST_PATCHES = 12


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def checked(command, what, **options):
    done = run(command, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{what}:\n{done.stdout}")
    return done.stdout


def compile_commands():
    """By source: how the build compiles it."""
    return {entry["file"]: entry for entry in json.loads((BINARY / "compile_commands.json").read_text())}


def link_command():
    commands = checked(["ninja", "-C", str(BINARY), "-t", "commands", "bin/weft-sim"], "ninja").splitlines()
    # ": && ccache g++ ... -o bin/weft-sim ... && :"
    return commands[-1].removeprefix(": && ").removesuffix(" && :")


def compile_mutant(folder, source, entry):
    command = shlex.split(entry["command"])
    out = folder / (source.replace("/", "_") + ".o")
    command[command.index("-o") + 1] = str(out)
    command[command.index("-c") + 1] = str(folder / source)
    command += ["-O1", "-g0", "-w"]  # it runs once
    checked(command, f"compiling {source}", cwd=entry["directory"])
    return out


def build_mutant(patch, commands, link):
    folder = WORK / patch.stem
    shutil.rmtree(folder, ignore_errors=True)
    sources = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)
    for source in sources:
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / source, folder / source)
    checked(["patch", "-p1", "--batch", "--fuzz=1", "--input", str(patch)], f"{patch.name} does not apply", cwd=folder)
    objects = [str(compile_mutant(folder, source, commands[str(SOURCE / source)])) for source in sources]
    program = folder / "weft-sim"
    # What these objects define is then not taken from the libraries.
    command = link.replace(" -o bin/weft-sim ", f" {' '.join(objects)} -o {program} ")
    checked(command, f"linking {patch.stem}", cwd=BINARY, shell=True)
    return program


def prove(patch, commands, link):
    """What the simulator says of the mutant; an error when it finds nothing."""
    program = build_mutant(patch, commands, link)
    done = run([program, "--schedules", str(SCHEDULES), "--seed", "1", "--threads", "1"], errors="replace")
    shutil.rmtree(WORK / patch.stem)
    found = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    if done.returncode != 1 or not found:
        raise RuntimeError(f"not found in {SCHEDULES} schedules: {done.stdout[-500:]}")
    return found[-1]


def main():
    patches = sorted((SOURCE / "tests/mutations").glob("*.patch"))
    assert len(patches) >= LEAST_PATCHES, f"{len(patches)} mutations, at least {LEAST_PATCHES} are wanted"
    if sys.argv[1:]:
        patches = [SOURCE / "tests/mutations" / f"{name}.patch" for name in sys.argv[1:]]
    commands, link = compile_commands(), link_command()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = {pool.submit(prove, patch, commands, link): patch for patch in patches}
        for result in concurrent.futures.as_completed(results):
            name = results[result].stem
            try:
                print(f"{name}: {result.result()}", flush=True)
            except RuntimeError as error:
                failed += 1
                print(f"{name}: NOT FOUND: {error}", flush=True)
    print(f"{len(patches) - failed} of {len(patches)} mutations found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
