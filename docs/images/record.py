#!/usr/bin/env python3
"""Records the terminal picture of the README: docs/images/failure.svg.

    cargo xtask env mpich && cargo build --release -p rankrun && python3 docs/images/record.py

A real shell runs the commands below on a pseudo-terminal of its own; what the terminal then shows is drawn as an SVG.
tests/python/test_picture.py fails when today's binary shows something else. Another binary can be named as the argument. Only the standard library is used here; solver.py needs mpi4py, which the
first command installs.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS = 96, 60
PROMPT = "$ "
COMMANDS = [
    "rankrun -n 4 -l --grace 1s python solver.py",
    "echo $?",
    "pgrep -f telemetry || echo no helper is left",
]
# One command may take so long, in seconds.
BOUND = 20

BACKGROUND, FOREGROUND = "#1b1f27", "#d5dae3"
COLORS = ["#5c6370", "#ef7079", "#98c379", "#e5c07b", "#61afef", "#c58af9", "#56c2cd", "#d5dae3"]
CELL_WIDTH, CELL_HEIGHT, MARGIN, BAR = 8.4, 19, 16, 34


def main():
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent.parent / "target/release/rankrun").resolve()
    if not binary.exists():
        sys.exit(f"{binary} does not exist: cargo build --release -p rankrun")
    (HERE / "failure.svg").write_text(svg(screen_of(binary)), encoding="utf-8")


def screen_of(binary):
    """What the terminal shows after the commands."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="heat-", dir="/tmp") as directory:
        shutil.copy(HERE / "solver.py", directory)
        record(binary, directory, screen)
    return screen


def label(screen):
    """The text of the picture, which the SVG has for those who cannot see it."""
    return " / ".join(line for line in screen.text() if line)


def python_directory():
    """Where the Python with mpi4py is."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("RANKRUN_ENV_DIR") or cache / "rankrun/envs") / "mpich/bin"


def record(binary, directory, screen):
    """Types the commands into a shell and feeds the screen with what comes back."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {
        "PATH": f"{binary.parent}:{python_directory()}:/usr/bin:/bin",
        "HOME": directory,
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PS1": PROMPT,
    }
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"],
        stdin=slave, stdout=slave, stderr=slave, cwd=directory, env=environment, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    wait_for_prompt(master, screen)
    for command in COMMANDS:
        os.write(master, command.encode() + b"\n")
        # The echo of the command moves the cursor off the old prompt first.
        wait_for_prompt(master, screen, than=command)
    os.write(master, b"exit\n")
    shell.wait(BOUND)
    os.close(master)
    screen.drop_last_prompt()


def wait_for_prompt(master, screen, than=None):
    until = time.monotonic() + BOUND
    echoed = than is None
    while time.monotonic() < until:
        readable, _, _ = select.select([master], [], [], 0.05)
        if readable:
            screen.feed(os.read(master, 65536).decode("utf-8", "replace"))
            continue
        text = screen.text()
        echoed = echoed or any(than in line for line in text)
        if echoed and text and text[-1] == PROMPT.rstrip() and screen.column == len(PROMPT):
            return
    sys.exit(f"no prompt after {BOUND} s:\n" + "\n".join(screen.text()))


class Screen:
    """As much of a terminal as these commands need: rows, colours, carriage returns, moves up, erasing."""

    ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b.|([\r\n\b\t\a])|([^\x1b\r\n\b\t\a]+)", re.S)

    def __init__(self):
        self.rows = [[]]
        self.row = self.column = 0
        self.style = (None, False, False)
        self.rest = ""

    def feed(self, text):
        text = self.rest + text
        cut = re.search(r"\x1b(\[[?0-9;]*)?$", text)
        self.rest = text[cut.start():] if cut else ""
        for match in self.ESCAPE.finditer(text[: cut.start()] if cut else text):
            parameters, final, control, plain = match.groups()
            if final:
                self.control_sequence(parameters, final)
            elif control:
                self.control(control)
            elif plain:
                for character in plain:
                    self.put(character)

    def control(self, control):
        if control == "\r":
            self.column = 0
        elif control == "\n":
            self.row += 1
            if self.row == len(self.rows):
                self.rows.append([])
        elif control == "\b":
            self.column = max(0, self.column - 1)
        elif control == "\t":
            self.column += 8 - self.column % 8

    def put(self, character):
        if self.column == COLUMNS:
            self.control("\n")
            self.column = 0
        row = self.rows[self.row]
        row.extend([(" ", (None, False, False))] * (self.column - len(row)))
        row[self.column:self.column + 1] = [(character, self.style)]
        self.column += 1

    def control_sequence(self, parameters, final):
        numbers = [int(number or 0) for number in parameters.split(";")] if not parameters.startswith("?") else []
        if final == "m":
            self.paint(numbers)
        elif final == "A":
            self.row = max(0, self.row - (numbers[0] or 1))
        elif final == "K":
            del self.rows[self.row][self.column:]
        elif final == "J":
            del self.rows[self.row][self.column:]
            del self.rows[self.row + 1:]

    def paint(self, numbers):
        color, bold, dim = self.style
        for number in numbers:
            if number == 0:
                color, bold, dim = None, False, False
            elif number == 1:
                bold = True
            elif number == 2:
                dim = True
            elif number == 22:
                bold = dim = False
            elif number == 39:
                color = None
            elif 30 <= number <= 37:
                color = number - 30
            elif 90 <= number <= 97:
                color = number - 90
        self.style = (color, bold, dim)

    def text(self):
        lines = ["".join(character for character, _ in row).rstrip() for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def drop_last_prompt(self):
        while self.rows and "".join(character for character, _ in self.rows[-1]).strip() in ("", PROMPT.strip()):
            self.rows.pop()


def svg(screen):
    rows = screen.rows
    width = round(COLUMNS * CELL_WIDTH + 2 * MARGIN)
    height = BAR + len(rows) * CELL_HEIGHT + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(label(screen), quote=True)}">',
        "<!-- Made by docs/images/record.py from a real run. -->",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
    ]
    for index, color in enumerate(["#ef7079", "#e5c07b", "#98c379"]):
        out.append(f'<circle cx="{MARGIN + 6 + 20 * index}" cy="17" r="5.5" fill="{color}"/>')
    out.append(
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace"'
        f' font-size="14" fill="{FOREGROUND}" xml:space="preserve">'
    )
    for number, row in enumerate(rows):
        y = BAR + number * CELL_HEIGHT + 14
        for begin, style, text in runs(row):
            out.append(run(begin, y, style, text))
    out += ["</g>", "</svg>", ""]
    return "\n".join(out)


def runs(row):
    """Neighbouring cells of one style, without blanks at either end."""
    begin = 0
    while begin < len(row):
        end = begin
        while end < len(row) and row[end][1] == row[begin][1]:
            end += 1
        text = "".join(character for character, _ in row[begin:end])
        if text.strip():
            yield begin + len(text) - len(text.lstrip()), row[begin][1], text.strip()
        begin = end


def run(begin, y, style, text):
    color, bold, dim = style
    attributes = f' x="{MARGIN + begin * CELL_WIDTH:.1f}" y="{y}"'
    # The cells stay in their columns whatever font the reader has.
    attributes += f' textLength="{len(text) * CELL_WIDTH:.1f}"'
    if color is not None:
        attributes += f' fill="{COLORS[color]}"'
    if bold:
        attributes += ' font-weight="bold"'
    if dim:
        attributes += ' opacity="0.65"'
    return f"<text{attributes}>{escape(text)}</text>"


if __name__ == "__main__":
    main()
