"""`weft diff` and `weft apply` as processes, on model folders and safetensors files made here."""
import json
import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

from weft_testing import TIMEOUT_S, WEFT

BLOCK_BYTES = 8 << 20
SIZES = {"BF16": 2, "F32": 4, "U8": 1}


def run(*arguments):
    return subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


def safetensors(tensors):
    """A whole file of {name: (dtype, shape, bytes)}, in this order."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    raw = path.read_bytes()
    length, = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length:]
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in header.items()}


def weights(count, seed):
    """bf16 around 0.02, of either sign."""
    dice = random.Random(seed)
    return b"".join(struct.pack("<f", dice.gauss(0, 0.02))[2:] for _ in range(count))


def nudged(raw, every, seed):
    """Some weights one unit in the last place further."""
    out, dice = bytearray(raw), random.Random(seed)
    for i in range(0, len(raw) // 2, every):
        at = 2 * (i + dice.randrange(every)) % len(raw)
        out[at] ^= 1
    return bytes(out)


class Diff(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        large = weights(40_000, 1) * (BLOCK_BYTES // 80_000 + 1)
        self.old = {"model.embed": ("BF16", [len(large) // 2], large), "model.norm": ("F32", [8], bytes(32)),
                    "model.old": ("U8", [3], b"abc")}
        self.new = {"model.embed": ("BF16", [len(large) // 2], nudged(large, 200, 2)), "model.norm": ("F32", [8], bytes(32)),
                    "model.added": ("BF16", [600], weights(600, 3))}
        self.write("old", self.old, {"config.json": '{"a": 1}', "vocab.txt": "same"})
        self.write("new", self.new, {"config.json": '{"a": 2}', "vocab.txt": "same"})

    def write(self, name, tensors, files):
        (self.folder / name).mkdir()
        (self.folder / name / "model.safetensors").write_bytes(safetensors(tensors))
        for file, text in files.items():
            (self.folder / name / file).write_text(text)

    def id_of(self, name):
        return json.loads(run("inspect", self.folder / name, "--json").stdout)["id"]

    def diff(self, old="old", new="new", file="d"):
        done = run("diff", self.folder / old, self.folder / new, "-o", self.folder / file, "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def apply(self, *flags, old="old", file="d", new="made"):
        return run("apply", self.folder / old, self.folder / file, "-o", self.folder / new, *flags)

    def names(self):
        return sorted(os.listdir(self.folder))

    def test_what_is_applied_is_the_new_version(self):
        report = self.diff()
        done = self.apply("--json")

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        applied = json.loads(done.stdout)
        self.assertEqual(applied["id"], self.id_of("new"))
        self.assertEqual(applied["base"], self.id_of("old"))
        self.assertEqual((report["base"], report["id"]), (applied["base"], applied["id"]))
        self.assertEqual(self.id_of("made"), self.id_of("new"))
        self.assertEqual(read_safetensors(self.folder / "made/model.safetensors"), self.new)
        self.assertEqual((self.folder / "made/config.json").read_text(), '{"a": 2}')
        self.assertEqual((self.folder / "made/vocab.txt").read_text(), "same")
        self.assertEqual(report["file_bytes"], (self.folder / "d").stat().st_size)
        self.assertLess(report["file_bytes"], report["total_bytes"] / 50)
        self.assertEqual(self.names(), ["d", "made", "new", "old"])

    def test_files_stand_for_folders_and_any_number_of_threads_gives_the_same(self):
        old, new = self.folder / "old/model.safetensors", self.folder / "new/model.safetensors"
        for threads in "1", "3":
            self.assertEqual(run("diff", old, new, "-o", self.folder / f"d{threads}", "--threads", threads).returncode, 0)
        self.assertEqual((self.folder / "d1").read_bytes(), (self.folder / "d3").read_bytes())
        done = run("apply", old, self.folder / "d1", "-o", self.folder / "made")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(read_safetensors(self.folder / "made/model.safetensors"), self.new)
        self.assertEqual(os.listdir(self.folder / "made"), ["model.safetensors"])

    def test_equal_versions_differ_in_nothing(self):
        report = self.diff("old", "old")
        self.assertEqual((report["changed_blocks"], report["payload_bytes"]), (0, 0))
        self.assertEqual(self.apply().returncode, 0)
        self.assertEqual(self.id_of("made"), self.id_of("old"))

    def test_another_base_is_refused_and_named(self):
        self.diff()
        done = self.apply(old="new")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(self.id_of("old"), done.stderr)
        self.assertIn(self.id_of("new"), done.stderr)
        self.assertEqual(self.names(), ["d", "new", "old"])

    def test_a_file_that_is_cut_or_flipped_anywhere_is_refused_and_nothing_is_written(self):
        self.write("small", {"w": self.old["model.norm"]}, {})
        self.write("next", {"w": ("F32", [8], bytes(31) + b"\x01")}, {})
        self.diff("small", "next")
        right = (self.folder / "d").read_bytes()
        for at in range(0, len(right), 29):
            flipped = bytearray(right)
            flipped[at] ^= 1 << at % 8
            for wrong in bytes(flipped), right[:at]:
                (self.folder / "wrong").write_bytes(wrong)
                done = self.apply(old="small", file="wrong", new="x")
                self.assertIn(done.returncode, (2, 6), (at, done.stderr))  # unsupported, corrupt
                self.assertIn(str(self.folder / "wrong"), done.stderr)
        self.assertEqual(self.names(), ["d", "new", "next", "old", "small", "wrong"])
        done = self.apply("--json", old="small", file="absent", new="x")
        self.assertEqual((done.returncode, json.loads(done.stdout)["code"]), (4, "not_found"))

    def test_what_is_there_is_replaced_by_force_alone_and_only_a_model(self):
        self.diff()
        self.write("made", {"x": self.old["model.old"]}, {"tokenizer.json": "{}"})
        done = self.apply()
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("is there already", done.stderr)
        (self.folder / "made/mine").write_text("x")
        done = self.apply("--force")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("`mine`", done.stderr)
        (self.folder / "made/mine").unlink()
        self.assertEqual(self.apply("--force").returncode, 0)
        self.assertEqual(self.id_of("made"), self.id_of("new"))
        self.assertEqual(sorted(os.listdir(self.folder / "made")), ["config.json", "model.safetensors", "vocab.txt"])
        # The base itself, too.
        self.assertEqual(self.apply("--force", new="old").returncode, 0)
        self.assertEqual(self.id_of("old"), self.id_of("new"))
        self.assertEqual(self.names(), ["d", "made", "new", "old"])

    def test_figures_by_tensor_and_in_total(self):
        done = run("diff", self.folder / "old", self.folder / "new", "--stats", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        stats = json.loads(done.stdout)["stats"]
        tensors = {line["name"]: line for line in stats["tensors"]}
        embed = tensors["model.embed"]
        old, new = self.old["model.embed"][2], self.new["model.embed"][2]
        changed = sum(old[i:i + 2] != new[i:i + 2] for i in range(0, len(old), 2))
        self.assertEqual((embed["elements"], embed["changed"], embed["dtype"]), (len(old) // 2, changed, "BF16"))
        self.assertAlmostEqual(embed["share"], changed / embed["elements"])
        self.assertEqual(embed["bytes"]["sparse"], 6 * changed + 2 * 72)
        self.assertEqual(embed["bytes"]["identity"], len(old))
        self.assertLess(embed["bytes"]["delta"], min(embed["bytes"][each] for each in ("identity", "zstd", "xor_zstd", "sparse")))
        self.assertEqual(tensors["model.norm"]["changed"], 0)
        self.assertEqual(tensors["model.added"]["changed"], 600)
        self.assertEqual(stats["total"]["bytes"]["delta"],
                         sum(line["bytes"]["delta"] for line in stats["tensors"] + stats["files"]))
        lines = run("diff", self.folder / "old", self.folder / "new", "--stats").stdout.splitlines()
        self.assertEqual([line.split()[-1] for line in lines[1:]], ["model.added", "model.embed", "config.json", "total"])

    def test_the_command_line_says_what_is_missing(self):
        self.assertEqual(run("diff", self.folder / "old", self.folder / "new").returncode, 2)
        self.assertEqual(run("apply", self.folder / "old", self.folder / "d").returncode, 2)
        self.assertEqual(run("diff", self.folder / "absent", self.folder / "new", "--stats").returncode, 4)
        for command in "diff", "apply":
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("--json", done.stdout)
            self.assertNotIn("--key", done.stdout)


if __name__ == "__main__":
    unittest.main()
