#!/usr/bin/env python3
"""Real MPI programs of Debian under rankrun and under the mpirun that they are packaged with: their results and their times.

    apt-get install lammps hpcc quantum-espresso quantum-espresso-data
    python3 bench/applications.py BINARY [ROUNDS]

Two ranks each, in turns: mpirun, rankrun, rankrun --bind-to none. Prints a table in Markdown. The results, which are all numbers that a
program prints except times, must be the same in all runs.
"""

import gzip
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path("/usr/share/doc")
# A run that takes longer hangs.
BOUND = 300

LAMMPS = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 20 0 20 0 20
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo 50
run 200
"""

ESPRESSO = """\
&control
 calculation='scf', prefix='si', pseudo_dir='.', outdir='./out', tprnfor=.true., tstress=.true.
/
&system
 ibrav=2, celldm(1)=10.2, nat=2, ntyp=1, ecutwfc=40
/
&electrons
 conv_thr=1e-10
/
ATOMIC_SPECIES
 Si 28.086 Si.UPF
ATOMIC_POSITIONS alat
 Si 0.00 0.00 0.00
 Si 0.26 0.25 0.25
K_POINTS automatic
 4 4 4 1 1 1
"""


def lammps(directory):
    (directory / "in.lj").write_text(LAMMPS)
    return ["lmp", "-in", "in.lj", "-log", "none"], "stdout", r"^ *\d+(?: +-?[\d.]+){5} *$|.*neighbors? .*|^Neighbor list.*"


def espresso(directory):
    pseudopotential = EXAMPLES / "quantum-espresso/examples/EPW/sic/pp/Si.pz-vbc.UPF.gz"
    (directory / "Si.UPF").write_bytes(gzip.decompress(pseudopotential.read_bytes()))
    (directory / "si.in").write_text(ESPRESSO)
    lines = r"^!.*|^ *Total force.*|^ *total   stress.*(?:\n.*){3}|.*convergence has been.*"
    return ["pw.x", "-in", "si.in"], "stdout", lines


def hpcc(directory):
    text = (EXAMPLES / "hpcc/examples/_hpccinf.txt").read_text()
    text = re.sub(r"^1000( +Ns)", r"2000\1", text, flags=re.M)
    (directory / "hpccinf.txt").write_text(re.sub(r"^2( +Ps)", r"1\1", text, flags=re.M))
    # Not the scaled residual of DGEMM, which differs from run to run.
    return ["hpcc"], "hpccoutf.txt", r"^\|\|Ax.*|^\w*(?:Errors|residual|Success)\w*=.*|Found \d+ errors.*"


APPLICATIONS = {"LAMMPS, 32,000 atoms of Lennard-Jones": lammps, "Quantum ESPRESSO, silicon": espresso, "HPCC": hpcc}


def run(launcher, application):
    """The seconds and the results of a run."""
    with tempfile.TemporaryDirectory() as path:
        directory = Path(path)
        words, output, lines = application(directory)
        with (directory / "stdout").open("w") as stdout, (directory / "stderr").open("w") as stderr:
            started = time.monotonic()
            code = subprocess.run(
                [*launcher, *words], cwd=directory, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, timeout=BOUND
            ).returncode
            seconds = time.monotonic() - started
        if code != 0:
            sys.exit(f"{launcher} {words}: exit {code}\n{(directory / 'stderr').read_text()[-2000:]}")
        return seconds, tuple(re.findall(lines, (directory / output).read_text(), flags=re.M))


def main():
    binary = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    launchers = [
        ["mpirun.openmpi", "--allow-run-as-root", "-n", "2"],
        [binary, "-n", "2"],
        [binary, "-n", "2", "--bind-to", "none"],
    ]
    print("| program | mpirun | rankrun | ratio | `--bind-to none` | ratio | results |\n|---|---|---|---|---|---|---|")
    for name, application in APPLICATIONS.items():
        times, results = [[] for _ in launchers], set()
        for turn in range(rounds):
            for step in range(len(launchers)):
                at = (turn + step) % len(launchers)
                seconds, result = run(launchers[at], application)
                times[at].append(seconds)
                results.add(result)
        cells = [f"{statistics.median(times[0]):.2f} s"]
        for ours in times[1:]:
            ratios = sorted(own / its for own, its in zip(ours, times[0]))
            middle, low, high = statistics.median(ratios), ratios[rounds // 4], ratios[3 * rounds // 4]
            cells += [f"{statistics.median(ours):.2f} s", f"{middle:.2f} ({low:.2f} to {high:.2f})"]
        count = len(next(iter(results)))
        cells.append(f"{count} lines, the same" if len(results) == 1 and count else f"{len(results)} different")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
