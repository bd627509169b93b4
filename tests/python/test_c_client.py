"""The C header `include/rankrun.h`, and its example in C++."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from agent import BOUND, ROOT, Agent, told

HEADER = ROOT / "include"
TEXTS = r"""
#include "rankrun.h"
/* Says the text that stdin has, in every way. */
int main(int argc, char **argv) {
    static char text[1 << 20];
    text[fread(text, 1, sizeof text - 1, stdin)] = '\0';
    if (argc > 1 && strcmp(argv[1], "abort") == 0) rankrun_abort(argc > 2 ? atoi(argv[2]) : 3, text);
    return !(rankrun_note(text) & rankrun_uncaught(text, text));
}
"""


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("gcc") is None or shutil.which("g++") is None:
            raise unittest.SkipTest("there is no C and C++ compiler")
        scratch = tempfile.TemporaryDirectory(prefix="rr-python-")
        cls.addClassCleanup(scratch.cleanup)
        cls.directory = Path(scratch.name)
        source = cls.directory / "texts.c"
        source.write_text(TEXTS)
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", str(HEADER)]
        checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        cls.texts = cls.compile(["gcc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", *checked, *strict], source)
        cls.example = cls.compile(["g++", "-std=c++11", *strict], ROOT / "examples/cpp/terminate.cpp")

    @classmethod
    def compile(cls, command, source):
        program = cls.directory / source.stem
        subprocess.run([*command, "-o", str(program), str(source)], check=True, timeout=BOUND)
        return str(program)

    def setUp(self):
        self.agent = Agent()
        self.addCleanup(self.agent.close)

    def run_program(self, command, stdin=b"", env=None):
        env = env or {**os.environ, "RANKRUN_SOCKET": self.agent.path, "RANKRUN_RANK": "3"}
        return subprocess.run(
            command, env=env, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=BOUND
        )

    def test_the_header_is_short(self):
        self.assertLessEqual(len((HEADER / "rankrun.h").read_text().splitlines()), 110)

    def test_texts_arrive_as_they_are(self):
        for text in ("failure!", "", '"\\\n\t\x01\x7f', "caf\u00e9 \u20ac \U0001f600"):
            self.agent.messages.clear()
            done = self.run_program([self.texts], text.encode())
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            messages = self.agent.drain()
            self.assertEqual([m["type"] for m in messages], ["hello", "note", "hello", "uncaught"])
            self.assertEqual((messages[0]["rank"], messages[0]["kind"]), (3, "c"))
            self.assertEqual([messages[1]["text"], messages[3]["exception"], messages[3]["message"]], [text] * 3)
            self.assertGreater(messages[3]["time"], 0)

    def test_long_texts_are_cut_at_a_whole_character(self):
        for text in ("x" * 1000000, "\u20ac" * 100000, "a\u20ac" * 100000, '"' * 100000, "\x01" * 100000):
            self.agent.messages.clear()
            done = self.run_program([self.texts], text.encode())
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            message = self.agent.drain()[3]["message"]
            kept, mark, rest = message.partition(" [... cut by rankrun]")
            self.assertTrue(mark and not rest, message[-40:])
            self.assertTrue(len(kept) > 1000 and text.startswith(kept))

    def test_bytes_that_are_no_text_overrun_nothing(self):
        # The agent mends them; the stand-in would refuse them, so that nobody listens here.
        for data in (b"\x80" * 1000000, b"\xff" * 1000000, b"a\xe2\x82" * 100000, bytes(range(1, 256)) * 1000):
            done = self.run_program([self.texts], data, {**os.environ, "RANKRUN_SOCKET": "/nonexistent"})
            self.assertEqual((done.returncode, done.stderr), (1, b""))

    def test_abort_ends_with_its_code(self):
        for code, exits in ((3, 3), (0, 1), (256, 1), (255, 255)):
            self.agent.messages.clear()
            done = self.run_program([self.texts, "abort", str(code)], b"no good")
            self.assertEqual((done.returncode, done.stderr), (exits, b""))
            message = self.agent.drain()[1]
            self.assertEqual((message["type"], message["code"], message["message"]), ("abort", code, "no good"))

    def test_without_rankrun_nothing_is_told(self):
        env = {k: v for k, v in os.environ.items() if k != "RANKRUN_SOCKET"}
        self.assertEqual(self.run_program([self.texts], b"x", env).returncode, 1)
        done = self.run_program([self.texts, "abort", "4"], b"no good", env)
        self.assertEqual((done.returncode, done.stderr), (4, b"rankrun: aborted: no good\n"))
        self.assertEqual(self.run_program([self.texts], b"x", {**env, "RANKRUN_SOCKET": "x" * 200}).returncode, 1)

    def test_the_example_names_the_exception(self):
        cases = {
            "throw": [("uncaught", "std::runtime_error", "failure!")],
            "terminate": [("uncaught", "std::terminate", "terminate called without an active exception")],
        }
        for how, expected in cases.items():
            self.agent.messages.clear()
            done = self.run_program([self.example, how])
            self.assertEqual(done.returncode, -6)
            self.assertEqual([t for t in told(self.agent.drain()) if t != ("note",)], expected)
        self.agent.messages.clear()
        self.assertEqual(self.run_program([self.example, "number"]).returncode, -6)
        self.assertEqual([m["exception"] for m in self.agent.drain() if m["type"] == "uncaught"], ["int"])


if __name__ == "__main__":
    unittest.main()
