"""The picture in the README shows what today's binary prints."""

import html
import importlib.util
import re
import unittest
from pathlib import Path

from agent import ROOT
from test_package import BINARY

IMAGES = ROOT / "docs/images"

# What differs from run to run, and what stands for it.
VOLATILE = (
    (r"/tmp/heat-\w+/", "/tmp/heat/"),
    (r"node \S+, pid \d+", "node NODE, pid PID"),
    (r"after \d+\.\d+ s", "after TIME"),
    (r"rankrun/[0-9a-f]{8}/report", "rankrun/JOB/report"),
    # How much the MPI library had created by then.
    (r", \d+ shm files? removed", ""),
)


def recorder():
    spec = importlib.util.spec_from_file_location("record", IMAGES / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def redacted(text):
    for pattern, word in VOLATILE:
        text = re.sub(pattern, word, text)
    lines = text.split(" / ")
    # The ranks run at the same time.
    steps = sorted(line for line in lines if re.match(r"\[\d\] step ", line))
    return [line for line in lines if not re.match(r"\[\d\] step ", line)], steps


def words(line):
    """A row of the screen without its blanks, which the picture draws as distances."""
    return re.sub(r"\s", "", line)


def rows_of(svg):
    """What is drawn, row by row."""
    rows = {}
    for y, text in re.findall(r'<text[^>]* y="(\d+)"[^>]*>([^<]*)</text>', svg):
        rows[int(y)] = rows.get(int(y), "") + html.unescape(text)
    return [words(rows[y]) for y in sorted(rows)]


class Redaction(unittest.TestCase):
    def test_only_what_differs_from_run_to_run_is_redacted(self):
        one = "[1] step 1 / [0] step 1 / rankrun: failed (exit 1, after 2.15 s) / where node a, pid 1, /tmp/heat-x1/a.py:3"
        two = "[0] step 1 / [1] step 1 / rankrun: failed (exit 1, after 0.90 s) / where node b, pid 27, /tmp/heat-y/a.py:3"
        self.assertEqual(redacted(one), redacted(two))
        self.assertNotEqual(redacted(one), redacted(two.replace("a.py:3", "a.py:4")))


class Picture(unittest.TestCase):
    maxDiff = None

    def test_the_picture_of_the_readme_is_what_the_binary_prints_today(self):
        if BINARY is None:
            self.skipTest("the binary rankrun has not been built")
        record = recorder()
        if not (record.python_directory() / "python").exists():
            self.skipTest("the environment mpich is missing: cargo xtask env mpich")
        svg = (IMAGES / "failure.svg").read_text(encoding="utf-8")
        drawn = html.unescape(re.search(r'aria-label="([^"]*)"', svg).group(1))
        self.assertEqual(rows_of(svg), [words(line) for line in drawn.split(" / ")])
        shown = record.label(record.screen_of(Path(BINARY).resolve()))
        self.assertEqual(redacted(drawn), redacted(shown), "draw it anew: python3 docs/images/record.py " + BINARY)


if __name__ == "__main__":
    unittest.main()
