"""`python -m rankrun` is the command `rankrun`."""

import os
import sys

from rankrun.binary import find_binary


def main() -> None:
    try:
        binary = find_binary()
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(binary, [binary, *sys.argv[1:]])


main()
