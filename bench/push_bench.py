#!/usr/bin/env python3
"""New weights for a server that is running: `weft push` against what a user would otherwise do.

usage: push_bench.py [--size 0.6b|60m] [--runs N]

Two versions of one model take turns. Each way ends when the server answers a greedy completion with the new weights, and the answer is checked
against a server that was started on those weights.
  push       weft push FOLDER (digests checked, other version serving meanwhile)
  curl       curl -T model.safetensors to the one-request form
  restart    copy the folder to a place the server can read, stop the server, start it on the copy
"""
import argparse
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import frame
import make_checkpoint

PROMPT = {"prompt": list(range(60, 76)), "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def tokens(server):
    return server.call("POST", "/v1/completions", PROMPT)["choices"][0]["token_ids"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.6b", choices=make_checkpoint.SIZES)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    flags = ["--max-model-len", "2048"]
    with frame.scratch() as scratch:
        versions = [pathlib.Path(scratch) / f"v{seed}" for seed in (0, 1)]
        expected = []
        for seed, folder in enumerate(versions):
            make_checkpoint.write(arguments.size, folder, seed)
            with frame.Server(folder, *flags) as server:
                expected.append(tokens(server))
        assert expected[0] != expected[1], "the two versions answer alike: nothing would be tested"
        size_bytes = (versions[0] / "model.safetensors").stat().st_size
        turn = {"push": 0, "curl": 0, "restart": 0}

        def check(server, way):
            if tokens(server) != expected[turn[way]]:
                raise RuntimeError(f"{way}: the server does not answer with the new weights")

        def advance(way):
            turn[way] = 1 - turn[way]
            return versions[turn[way]]

        with frame.Server(versions[0], *flags) as pushed, frame.Server(versions[0], *flags) as curled:
            restarted = [frame.Server(versions[0], *flags)]

            def push():
                folder = advance("push")
                frame.run([frame.WEFT, "push", folder, "--to", pushed.url, "--label", folder.name, "--no-progress", "--no-delta"])
                check(pushed, "push")

            def curl():
                folder = advance("curl")
                frame.run(["curl", "-sSf", "-T", folder / "model.safetensors", f"{curled.url}/weft/v1/weights?label={folder.name}"])
                check(curled, "curl")

            def restart():
                folder = advance("restart")
                with tempfile.TemporaryDirectory(dir=scratch) as copy:
                    shutil.copytree(folder, pathlib.Path(copy) / "model")
                    restarted[0].stop()
                    restarted[0] = frame.Server(pathlib.Path(copy) / "model", *flags)
                check(restarted[0], "restart")

            times = frame.interleave({"push": push, "curl": curl, "restart": restart}, arguments.runs)
            restarted[0].stop()
    figures = frame.summary(times)
    frame.report("push", size_bytes=size_bytes, seconds=figures,
                 push_gb_s=round(size_bytes / figures["push"]["median"] / 1e9, 3),
                 push_vs_restart=round(figures["restart"]["median"] / figures["push"]["median"], 2),
                 push_vs_curl=round(figures["curl"]["median"] / figures["push"]["median"], 2))


main()
