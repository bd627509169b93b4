"""The examples of docs/python.md run as their first lines say, and print what the page says."""

import os
import re
import shlex
import sys
import unittest
from pathlib import Path

from agent import ROOT
from test_package import BINARY, PackageTest, rankrun

PAGE = ROOT / "docs" / "python.md"
EXAMPLE = re.compile(r"^```python\n# (?P<command>[^\n]+)\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.M | re.S)


def without_times(line):
    return re.sub(r"\b\d+\.\d+ s\b", "T", line)


@unittest.skipIf(BINARY is None, "the binary rankrun has not been built")
class Examples(PackageTest):
    def test_every_example_prints_what_the_page_says(self):
        page = PAGE.read_text()
        examples = list(EXAMPLE.finditer(page))
        self.assertEqual(len(examples), page.count("```python"), "an example without command or output")
        for example in examples:
            with self.subTest(command=example["command"]):
                words = [sys.executable if word == "python" else word for word in shlex.split(example["command"])]
                self.script(example["code"], words[-1])
                _, out, err = self.run_to_end([BINARY if word == "rankrun" else word for word in words])
                wanted = [without_times(line) for line in example["output"].splitlines()]
                lines = [without_times(line) for line in out.splitlines()]
                for line in wanted:
                    self.assertIn(line, lines + [without_times(line) for line in err.splitlines()])
                for line in lines:
                    self.assertIn(line, wanted, err)

    def test_the_lines_of_the_log_recipe_run_one_after_the_other(self):
        recipe = (ROOT / "docs" / "recipes.md").read_text().split("## A log file for each rank", 1)[1]
        lines = re.search(r"```sh\n(.*?)```", recipe, re.S).group(1).splitlines()
        self.assertGreaterEqual(len(lines), 3)
        solver = self.script("#!/bin/sh\necho rank $RANKRUN_RANK\n", "solver")
        os.chmod(solver, 0o755)
        logs = Path(solver).parent / "logs"
        for count, line in enumerate(lines, 1):
            words = shlex.split(line, comments=True)
            status, _, err = self.run_to_end([BINARY if word == "rankrun" else word for word in words])
            self.assertEqual((status, err), (0, ""), line)
            places = list(logs.iterdir()) + [logs.parent] * ("--stdout-file" in words)
            files = [sorted(file.read_text() for file in place.glob("*[0-9]*")) for place in places]
            self.assertEqual(files, [[f"rank {rank}\n" for rank in range(4)]] * count, line)

    def test_every_public_name_is_on_the_page(self):
        page = PAGE.read_text()
        for name in rankrun.__all__:
            self.assertRegex(page, r"`{}\b".format(name))
        for name in ("launch", "note", "abort", "set_start_method"):
            self.assertIn("\n## {}\n".format(name), page)


if __name__ == "__main__":
    unittest.main()
