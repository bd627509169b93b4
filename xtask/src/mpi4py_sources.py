"""Gets the sources of mpi4py, whose own tests the black-box tests run, and unpacks them into this environment."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

PIN = "mpi4py==4.1.2"

with tempfile.TemporaryDirectory() as directory:
    # pip asks the sources for their metadata, for which they need the tools of this environment: with tools of its own it
    # takes minutes.
    options = ["--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    source = ["--no-binary", "mpi4py", "--dest", directory, PIN]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *source], check=True)
    [archive] = pathlib.Path(directory).glob("*.tar.gz")
    shutil.unpack_archive(archive, directory)
    [sources] = [path for path in pathlib.Path(directory).iterdir() if path.is_dir()]
    shutil.move(sources, pathlib.Path(sys.prefix, "mpi4py"))
