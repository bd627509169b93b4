"""Which version of rankrun this is."""

import os
import subprocess
from typing import Optional

from rankrun.binary import find_binary

# The command answers within milliseconds; its file system may not.
_BOUND = 10.0


def find_version() -> str:
    """The version of this package, which is also that of the command that came with it.

    A package that was installed has it in its metadata. From a checkout, the command is asked. Where neither knows, it is
    `0+unknown`.
    """
    return _installed() or _of_command() or "0+unknown"


def _installed() -> Optional[str]:
    from importlib import metadata

    try:
        distribution = metadata.distribution("rankrun")
        # Another one may be installed than the one that was imported.
        if os.path.samefile(str(distribution.locate_file("rankrun")), os.path.dirname(__file__)):
            return distribution.version
    except (metadata.PackageNotFoundError, OSError):
        pass
    return None


def _of_command() -> Optional[str]:
    try:
        said = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, timeout=_BOUND)
    except (OSError, subprocess.SubprocessError):
        return None
    name, _, version = said.stdout.strip().partition(" ")
    return version if said.returncode == 0 and name == "rankrun" and version else None
