//! What rankrun does with command lines that people write for other launchers: it does what they mean, or starts nothing and
//! prints what to write.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// The most common option lines of each launcher, with the launcher's own name left out.
const LINES: &[(&str, &[&str])] = &[
    (
        "mpiexec (Hydra: MPICH, Intel MPI)",
        &[
            "-n 2 ./solver",
            "-np 2 ./solver",
            "-n 1 ./solver : -n 2 ./solver",
            "-hosts a,b -n 2 ./solver",
            "-host localhost -n 2 ./solver",
            "-f hosts.txt -n 2 ./solver",
            "-machinefile hosts.txt -n 2 ./solver",
            "-ppn 2 -n 4 ./solver",
            "-genv OMP_NUM_THREADS 2 -n 2 ./solver",
            "-genv A 1 -n 1 ./solver : -n 1 ./solver",
            "-env A 1 -n 2 ./solver",
            "-genvall -n 2 ./solver",
            "-genvnone -n 2 ./solver",
            "-l -n 2 ./solver",
            "-prepend-rank -n 2 ./solver",
            "-bind-to core -n 2 ./solver",
            "-map-by socket -n 2 ./solver",
            "-wdir . -n 2 ./solver",
            "-launcher ssh -n 2 ./solver",
            "-iface eth0 -n 2 ./solver",
            "-outfile-pattern out.%r -n 2 ./solver",
            "-ordered-output -n 2 ./solver",
            "-s all -n 2 ./solver",
            "-gdb -n 2 ./solver",
            "-configfile jobs.txt",
            "-disable-auto-cleanup -n 2 ./solver",
            "-hlep -n 2 ./solver",
            "-ppn2 -n 4 ./solver",
            "-genv A ./solver",
            "--env A 1 ./solver",
            "-x A 1 ./solver",
            "-tune FILE -n 2 ./solver",
            "-trace -n 2 ./solver",
        ],
    ),
    (
        "mpirun (Open MPI)",
        &[
            "--np 2 ./solver",
            "-c 2 ./solver",
            "-N 2 ./solver",
            "--oversubscribe --allow-run-as-root -np 2 ./solver",
            "-x A=1 -np 2 ./solver",
            "--host a:2,b:2 -np 4 ./solver",
            "--hostfile hosts.txt -np 2 ./solver",
            "--mca btl self,tcp -np 2 ./solver",
            "--map-by ppr:1:core --bind-to core -np 2 ./solver",
            "--bind-to none -np 2 ./solver",
            "--report-bindings -np 2 ./solver",
            "--tag-output -np 2 ./solver",
            "--output tag -np 2 ./solver",
            "--output-filename logs -np 2 ./solver",
            "--display-map -np 2 ./solver",
            "--timeout 60 -np 2 ./solver",
            "-xterm 0 -np 2 ./solver",
            "--xterm 0-1 -np 2 ./solver",
            "-c4 ./solver",
            "--abort-on-non-zero-status 0 -np 2 ./solver",
        ],
    ),
    (
        "torchrun",
        &[
            "--nproc_per_node=2 train.py",
            "--standalone --nnodes=1 --nproc-per-node=2 ./solver",
            "--nproc_per_node=gpu ./solver",
            "--nnodes=2 --node_rank=0 --master_addr=a --nproc_per_node=2 ./solver",
            "--nproc-per-node 2 --master_port 29501 ./solver",
            "--rdzv_backend=c10d --rdzv_endpoint=localhost:0 --nproc_per_node=2 ./solver",
            "--rdzv-endpoint=node1:29400 --nproc-per-node=2 ./solver",
            "--max-restarts=3 --nproc-per-node=2 ./solver",
            "--nproc-per-node=2 -m package.train",
            "--no-python --nproc-per-node=2 ./solver",
            "--log_dir=logs --redirects 3 --nproc-per-node=2 ./solver",
            "-r 3 --nproc-per-node=2 ./solver",
            "-t 3 --nproc-per-node=2 ./solver",
            "--tee 3 --nproc-per-node=2 ./solver",
            "--master-port=abc --nproc-per-node=2 ./solver",
            "--master-port 99999 --nproc-per-node=2 ./solver",
            "--master_port 0 --nproc-per-node=2 ./solver",
        ],
    ),
    (
        "srun",
        &[
            "-N 1 -n 2 ./solver",
            "--nodes=1 --ntasks=2 ./solver",
            "--ntasks=2 ./solver",
            "--ntasks-per-node=2 ./solver",
            "-n 2 -c 4 ./solver",
            "-n 2 --cpu-bind=cores ./solver",
            "-n 2 --gpus-per-task=1 ./solver",
            "-n 2 --label ./solver",
            "-n 2 --mpi=pmix ./solver",
            "-n 2 --mpi=pmi2 ./solver",
            "--pty ./solver",
            "-p debug -n 2 ./solver",
            "-t 10:00 -n 2 ./solver",
            "-n 2 --kill-on-bad-exit=1 ./solver",
            "-n 2 --wait=0 ./solver",
            "-n 2 --output=out.%t ./solver",
            "-n 2 --export=ALL,A=1 ./solver",
            "-K1 -n 2 ./solver",
            "-K0 -n 2 ./solver",
            "-K 0 -n 2 ./solver",
            "-K 1 -n 2 ./solver",
            "--kill-on-bad-exit 0 -n 2 ./solver",
            "-N1 -n 2 ./solver",
            "-W60 -n 2 ./solver",
            "-t00:05:00 -n 2 ./solver",
        ],
    ),
    (
        "GNU parallel, xargs",
        &[
            "-j 4 ./solver ::: a b",
            "./solver ::: a b",
            "--tag --line-buffer -n 2 ./solver",
            "--halt now,fail=1 -n 2 ./solver",
            "--joblog log -n 2 ./solver",
            "-P 4 -n 1 ./solver",
            "-k -n 2 ./solver",
            "-j2 ./solver",
            "-P4 ./solver",
            "--nice 5 -n 2 ./solver",
            "--delay 1 -n 2 ./solver",
        ],
    ),
    (
        "slips",
        &[
            "help",
            "help chekc",
            "--version ./solver",
            "-h ./solver",
            "-vh -n 2 ./solver",
            "4 ./solver",
            "A=1 ./solver",
            "'./solver --steps 3'",
            "--n-proc 2 ./solver",
            "-n2 ./solver",
            "-nfoo ./solver",
            "check -hosts a",
            "./sovler",
            "./logs",
            "./train.py",
            "run -n 2 ./solver",
            "reprot",
            "-n 2 report",
            "completion bash",
            "-v check",
            "-- -n 2 ./solver",
            "–n 2 ./solver",
            "—np 2 ./solver",
            "–tag ./solver",
            "--wrap ‘nice ./solver",
            "-lq -n 2 ./solver",
            "-ln 2 ./solver",
            "-nl 2 ./solver",
            "--h ./solver",
            "-n= ./solver",
            "-n=foo ./solver",
            "-v=1 ./solver",
            "-n 2 --timeout ./solver",
            "-n 2 --log-dir ./solver",
            "-n 2 -x ./solver",
            "--tag foo ./solver",
            "-nogroup ./solver",
            "-hostlist a ./solver",
            "--report ./solver",
            "--list ./solver",
            "-q -q --keep-going --keep-going ./solver",
        ],
    ),
];

/// The words of a line; those between quotes are one.
fn words(line: &str) -> Vec<String> {
    match line.strip_prefix('\'') {
        Some(quoted) => vec![quoted.trim_end_matches('\'').to_owned()],
        None => line.split(' ').map(str::to_owned).collect(),
    }
}

/// What rankrun answers: its first lines, its exit code, and how many ranks it started.
fn answer(line: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let solver = home.path().join("solver");
    std::fs::write(&solver, "#!/bin/sh\necho started >> \"$MARKS\"\n").unwrap();
    std::fs::set_permissions(&solver, Permissions::from_mode(0o755)).unwrap();
    std::fs::write(home.path().join("train.py"), "").unwrap();
    std::fs::create_dir(home.path().join("logs")).unwrap();
    let marks = home.path().join("marks");
    let output = Command::new(env!("CARGO_BIN_EXE_rankrun"))
        .args(words(line))
        .current_dir(home.path())
        .env_clear()
        // No mask of this machine's own, and no GPU.
        .envs([("PATH", "/usr/bin:/bin"), ("CUDA_VISIBLE_DEVICES", "")])
        // No host but this one can be reached.
        // Of two hosts the first is the one that fails first.
        .env(
            "RANKRUN_SSH_COMMAND",
            "sh -c 'case \" $* \" in *\" b \"*) exec sleep 30;; esac; echo no network >&2; exit 255' ssh",
        )
        .env("HOME", home.path())
        .env("MARKS", &marks)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    let started = std::fs::read_to_string(&marks).unwrap_or_default().lines().count();
    // Nothing is started and then refused, and nothing is refused without an error.
    assert!(started == 0 || code == 0, "{line}: {started} ranks, exit {code}");
    assert!(started > 0 || code != 0 || line == "help", "{line} did nothing, and exits with 0");
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let mut answer = String::new();
    // The CPUs of this machine, which another job may have.
    let is_binding = |line: &&str| line.starts_with("rankrun: rank") && line.contains("CPU");
    text.lines().filter(|line| !is_binding(line)).take(3).for_each(|line| writeln!(answer, "    {line}").unwrap());
    match started {
        0 => writeln!(answer, "    exit {code}, nothing started").unwrap(),
        _ => writeln!(answer, "    exit {code}, ranks started: {started}").unwrap(),
    }
    answer
}

#[test]
fn option_lines_of_other_launchers_are_done_as_meant_or_refused_with_what_to_write() {
    let mut table = String::new();
    for (launcher, lines) in LINES {
        writeln!(table, "{launcher}\n").unwrap();
        for line in *lines {
            writeln!(table, "  rankrun {line}\n{}", answer(line)).unwrap();
        }
    }
    insta::assert_snapshot!(table);
}
