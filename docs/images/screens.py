#!/usr/bin/env python3
"""Records docs/screens.md: what a person sees of rankrun on a terminal of 100 by 30.

    cargo xtask screens

The programs in docs/images/scenes run in a real shell under tmux; keys are typed, and the page is made of what the terminal then
shows. The arguments are the binary and the Python with mpi4py, tqdm and rich.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS = 100, 30
# No scene takes longer to come to the next screen, in seconds.
BOUND = 60
PROMPT = r"^\$ *\Z"

# A scene: its title, the command, and then what to wait for, which keys to press, and which screens to keep.
WAIT, KEY, SHOW = "wait", "key", "show"
SCENES = [
    (
        "A failure",
        "rankrun -n 4 -l --grace 1s python solver.py",
        [(WAIT, PROMPT), (SHOW, "Rank 2 raises while the others wait in `MPI_Allreduce`.")],
    ),
    (
        "^C once",
        "rankrun -n 4 -l python save.py",
        [
            (WAIT, r"(?s)(step 1.*){4}"),
            (KEY, "C-c"),
            (WAIT, r"saved"),
            (SHOW, "The ranks catch `KeyboardInterrupt` and save."),
            (WAIT, PROMPT),
            (SHOW, "When the last has saved:"),
        ],
    ),
    (
        "^C twice",
        "rankrun -n 2 -l python stubborn.py",
        [
            (WAIT, r"(?s)working.*working"),
            (KEY, "C-c"),
            (WAIT, r"still|alive"),
            (SHOW, "Rank 1 ignores SIGINT and SIGTERM."),
            (KEY, "C-c"),
            (WAIT, PROMPT),
            (SHOW, "After the second ^C:"),
        ],
    ),
    (
        "A timeout",
        "rankrun -n 4 -l --timeout 4 --grace 1s python four.py",
        [(WAIT, PROMPT), (SHOW, "Four ranks that hang, each in a way of its own.")],
    ),
    (
        "Notes",
        "rankrun -n 4 -l --grace 1s python noting.py",
        [
            (WAIT, r"epoch 1 done"),
            (SHOW, "While the job runs:"),
            (WAIT, PROMPT),
            (SHOW, "At its end:"),
        ],
    ),
    (
        "tqdm on 4 ranks",
        "rankrun -n 4 python bars.py",
        [(WAIT, r"half way"), (SHOW, "While the job runs:"), (WAIT, PROMPT), (SHOW, "At its end:")],
    ),
    (
        "rich with two tasks on 4 ranks",
        "rankrun -n 4 python tasks.py",
        [(WAIT, r" [45]\d%"), (SHOW, "While the job runs:"), (WAIT, PROMPT), (SHOW, "At its end:")],
    ),
    (
        "Folded output of 200 ranks",
        "rankrun -n 200 --output folded sh -c 'echo loaded; echo group $((RANK % 3)); [ $RANK != 77 ] || echo odd one'",
        [(WAIT, PROMPT), (SHOW, "Lines that several ranks have in common come out once.")],
    ),
]

HEAD = """\
# Screens

What a person sees on a terminal of 100 columns and 30 rows. `cargo xtask screens` records this page: the programs
(`docs/images/scenes`) run in a real terminal, and nothing is edited. Pids, times and ids differ each time.
"""


def main():
    binary, python = (Path(argument).absolute() for argument in sys.argv[1:3])
    page = [HEAD]
    with tempfile.TemporaryDirectory(prefix="scenes-") as directory:
        for program in [HERE / "solver.py", *(HERE / "scenes").glob("*.py")]:
            shutil.copy(program, directory)
        for number, (title, command, steps) in enumerate(SCENES):
            print(f"screens: {title}", file=sys.stderr)
            with Terminal(binary, python, Path(directory), number) as terminal:
                page.append(f"\n## {title}\n\n" + terminal.play(command, steps))
    (HERE.parent / "screens.md").write_text("".join(page), encoding="utf-8")


class Terminal:
    """A shell in a tmux server of its own."""

    def __init__(self, binary, python, directory, number):
        # A server that was told to end may still hold its socket.
        self.socket = directory / f"tmux-{number}"
        home = directory / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{binary.parent}:{python.parent}:/usr/local/bin:/usr/bin:/bin",
            # The package is that of this checkout.
            "PYTHONPATH": str(HERE.parent.parent / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(home),
            "HISTFILE": "/dev/null",
            "LANG": "C.UTF-8",
            "PS1": "$ ",
        }
        pairs = [f"{name}={value}" for name, value in environment.items()]
        shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(directory), "env", "-i", "TERM=screen", *pairs, *shell)
        self.tmux("set-option", "-g", "status", "off")
        self.tmux("resize-window", "-x", str(COLUMNS), "-y", str(ROWS))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tmux("kill-server")

    def tmux(self, *words):
        command = ["tmux", "-S", str(self.socket), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "TMUX": ""}).stdout

    def text(self):
        return self.tmux("capture-pane", "-p").rstrip()

    def wait(self, pattern):
        until = time.monotonic() + BOUND
        while not re.search(pattern, self.text(), re.M):
            if time.monotonic() > until:
                sys.exit(f"not on the screen after {BOUND} s: {pattern}\n{self.text()}")
            time.sleep(0.02)

    def play(self, command, steps):
        """Types the command, follows the steps, and returns the screens as Markdown."""
        self.wait(PROMPT)
        self.tmux("send-keys", "-l", command)
        # The command is echoed, and the prompt is no longer the last line, before anything is waited for.
        self.wait(re.escape(command[:20]))
        self.tmux("send-keys", "Enter")
        parts = []
        for step, what in steps:
            if step == WAIT:
                self.wait(what)
            elif step == KEY:
                self.tmux("send-keys", what)
            else:
                screen = re.sub(r"\s*\n\$ *\Z", "", self.text())
                parts.append(f"{what}\n\n```text\n{screen}\n```\n")
        return "\n".join(parts)


main()
