"""What `weft train` shows: a block that is written again on a terminal, lines elsewhere, and a report that needs nothing else."""
import fcntl
import html.parser
import os
import re
import struct
import subprocess
import termios
import unittest

from train_testing import SMOKE, TrainTest
from weft_testing import TIMEOUT_S, WEFT

ERASE = re.compile(r"\x1b\[(\d+)F\x1b\[J")


def screen_of(text):
    """The lines that a terminal shows after `text`, which may go up and erase but nothing else."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+F\x1b\[J|\r?\n)", text):
        erase = ERASE.fullmatch(part)
        if erase:
            lines = lines[: len(lines) - 1 - int(erase.group(1))] + [""]
        elif part in ("\n", "\r\n"):
            lines.append("")
        else:
            lines[-1] += part
    return lines


class Closed(html.parser.HTMLParser):
    """Every tag that opens is closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)
        if any(name in ("src", "href") for name, _ in attrs):
            raise AssertionError(f"<{tag}> needs something else: {attrs}")

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes another tag")


class View(TrainTest):
    def on_terminal(self, columns):
        """All that a run writes to a terminal of this width."""
        file = self.folder / "run.toml"
        file.write_text(SMOKE)
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        with subprocess.Popen([WEFT, "train", file, "--out", self.folder / "out"], stdin=subprocess.DEVNULL,
                              stdout=theirs, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            written = b""
            try:
                while piece := os.read(ours, 65536):
                    written += piece
            except OSError:  # the other end is closed
                pass
            os.close(ours)
            self.assertEqual(process.wait(TIMEOUT_S), 0, process.stderr.read())
        return written.decode()

    def test_a_terminal_shows_one_block_that_is_written_again(self):
        text = self.on_terminal(100)
        self.assertEqual(len(ERASE.findall(text)), 4, "five steps, and the first erases nothing")
        screen = screen_of(text)
        self.assertEqual(sum("step " in line and " of 5" in line for line in screen), 1, screen)
        self.assertTrue(any("sort, seed 0: step 5 of 5" in line for line in screen), screen)
        self.assertTrue(any(line.startswith("fine-tuning") for line in screen), "lines stay above it")
        self.assertTrue(any("report.html" in line for line in screen), "and follow it")

    def test_lines_of_the_block_fit_a_narrow_terminal(self):
        block = self.on_terminal(40).split("\x1b[J")[-1].split("results:")[0]
        lines = block.strip().splitlines()
        self.assertEqual(len(lines), 6, lines)
        self.assertTrue(all(len(line) < 40 for line in lines), lines)

    def test_elsewhere_goes_a_line_a_step(self):
        output = self.run_well(SMOKE)
        self.assertNotIn("\x1b", output)
        self.assertEqual(sum(line.startswith("step ") for line in output.splitlines()), 5)

    def test_the_report_is_one_whole_page(self):
        self.run_well(SMOKE)
        page = (self.folder / "out/report.html").read_text()
        checker = Closed()
        checker.feed(page.replace("<!DOCTYPE html>", ""))
        self.assertEqual(checker.open, [])
        self.assertGreater(checker.seen.count("polyline"), 8)
        for part in ("Solve rate", "Reward", "Length of answers", "Lag", "Bytes sent", "Weight sync", "[task]"):
            self.assertIn(part, page)


if __name__ == "__main__":
    unittest.main()
