"""Where the command `rankrun` is."""

import os
import shutil
import sys
import sysconfig
from typing import Iterator


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


def _script_directories() -> Iterator[str]:
    package_home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if package_home == sysconfig.get_path("purelib") or package_home == sysconfig.get_path("platlib"):
        yield sysconfig.get_path("scripts")
    # pip install --user, and pip install --target.
    user_scheme = sysconfig.get_preferred_scheme("user") if sys.version_info >= (3, 10) else "posix_user"
    if package_home == sysconfig.get_path("purelib", user_scheme):
        yield sysconfig.get_path("scripts", user_scheme)
    yield os.path.join(package_home, "bin")
