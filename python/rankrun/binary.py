"""Where the command `rankrun` is."""

import os
import shutil
import sys
import sysconfig
import threading
from typing import List

# Two threads that are the first to ask `sysconfig` confuse it (seen in Python 3.11).
_sysconfig = threading.Lock()


def find_binary() -> str:
    """The path of the binary that came with this package, or else of the one on the PATH.

    Raises:
        FileNotFoundError: there is none.
    """
    for directory in _script_directories():
        path = os.path.join(directory, "rankrun")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    found = shutil.which("rankrun")
    if found is None:
        raise FileNotFoundError(
            'the command "rankrun" is neither beside this interpreter nor on the PATH; "pip install rankrun" brings it'
        )
    return os.path.abspath(found)


def _script_directories() -> List[str]:
    """Where an installer puts the commands of a package that lies where this one does."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    user_scheme = sysconfig.get_preferred_scheme("user") if sys.version_info >= (3, 10) else "posix_user"
    directories = []
    with _sysconfig:
        if home in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
            directories.append(sysconfig.get_path("scripts"))
        # pip install --user
        if home == sysconfig.get_path("purelib", user_scheme):
            directories.append(sysconfig.get_path("scripts", user_scheme))
    # pip install --target
    return [*directories, os.path.join(home, "bin")]
