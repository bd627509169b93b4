"""Puts libraries without function in the place of the CUDA libraries that torch's wheel is linked to.

A program that uses no GPU never calls them, but the loader wants each symbol that torch refers to. Each stand-in
defines just these, under the version that torch asks for, and traps when it is called after all.
"""

import pathlib
import subprocess
import sysconfig
import tempfile

# Library -> the version that its symbols carry.
VERSIONED = {
    "libcublas.so.13": "libcublas.so.13",
    "libcublasLt.so.13": "libcublasLt.so.13",
    "libcudnn.so.9": "libcudnn.so.9",
    "libcufft.so.12": "libcufft.so.12",
    "libcusolver.so.12": "libcusolver.so.12",
    "libcusparse.so.12": "libcusparse.so.12",
    "libnvrtc.so.13": "libnvrtc.so.13",
    "libnvshmem_host.so.3": "NVSHMEM",
}
# Library -> the prefix of its symbols, which carry no version.
PREFIXED = {"libcufile.so.0": "cuFile", "libcusparseLt.so.0": "cusparseLt", "libnccl.so.2": "nccl"}

libraries = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
wanted = {name: set() for name in [*VERSIONED, *PREFIXED]}
for library in sorted(libraries.glob("libtorch*.so")) + sorted(libraries.glob("libc*.so")):
    table = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", library], check=True, capture_output=True, text=True
    ).stdout
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] != "UND":
            continue
        symbol, _, version = fields[7].partition("@")
        for name, expected in VERSIONED.items():
            if version == expected:
                wanted[name].add(symbol)
        for name, prefix in PREFIXED.items():
            if not version and symbol.startswith(prefix):
                wanted[name].add(symbol)

with tempfile.TemporaryDirectory() as directory:
    source = pathlib.Path(directory) / "standin.s"
    script = pathlib.Path(directory) / "standin.map"
    for name, symbols in wanted.items():
        source.write_text(".text\n" + "".join(f".globl {s}\n{s}: ud2\n" for s in sorted(symbols)))
        command = ["cc", "-shared", "-nostdlib", "-o", libraries / name, f"-Wl,-soname,{name}", source]
        if name in VERSIONED:
            script.write_text(f"{VERSIONED[name]} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)
