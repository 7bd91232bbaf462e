"""docs/training.md is true: its dry runs print what it says, its examples are there, its keys are keys, and all keys have a meaning."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from weft_testing import TIMEOUT_S, WEFT

SOURCE = pathlib.Path(os.environ["WEFT_SOURCE_DIR"])
GUIDE = (SOURCE / "docs/training.md").read_text()
EXAMPLES = sorted((SOURCE / "examples").glob("*.toml"))


def dry_runs():
    """[(arguments, what is printed)] of the guide."""
    return re.findall(r"(?m)^    \$ weft (train \S+ --dry-run)\n((?:    (?!\$).*\n)+)", GUIDE)


class Guide(unittest.TestCase):
    def train(self, *arguments, folder=SOURCE):
        ended = subprocess.run([WEFT, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return ended.stdout + ended.stderr

    def test_its_dry_runs_print_what_it_says(self):
        self.assertEqual(len(dry_runs()), 2)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "examples").symlink_to(SOURCE / "examples")
            (folder / "typo.toml").write_text((SOURCE / "examples/grpo.toml").read_text().replace("prompts", "promts"))
            for command, printed in dry_runs():
                with self.subTest(command):
                    self.assertEqual(self.train(*command.split(), folder=folder), re.sub("(?m)^    ", "", printed))

    def test_every_example_is_read_and_mentioned_and_the_other_way_round(self):
        mentioned = set(re.findall(r"\b(\w+\.toml)\b", GUIDE)) - {"typo.toml"}
        self.assertEqual(mentioned - {"CONFIG.toml"}, {path.name for path in EXAMPLES})
        keys = set()
        for path in EXAMPLES:
            with self.subTest(path.name):
                section = ""
                lines = self.train("train", path, "--print-config").splitlines()
                self.assertGreater(len(lines), 50, lines)
                for before, line in zip(["", *lines], lines):
                    if match := re.fullmatch(r"\[(\w+)\]", line):
                        section = match[1]
                        keys.add(section)
                    elif match := re.match(r"(\w+) = ", line):
                        keys.add(f"{section}.{match[1]}".lstrip("."))
                        self.assertRegex(before, r"^# \S", f"{line} has no meaning")
        sections = {key.split(".")[0] for key in keys if "." in key}
        for section, key in re.findall(r"`(\w+)\.(\w+)(?: = [^`]*)?`", GUIDE):
            if section in sections and key not in ("h", "toml", "safetensors", "log", "promts"):  # files; the guide's slip
                self.assertIn(f"{section}.{key}", keys)
        for section in re.findall(r"\[(\w+)\](?!\()", GUIDE):
            self.assertIn(section, sections | {"fault"})


if __name__ == "__main__":
    unittest.main()
