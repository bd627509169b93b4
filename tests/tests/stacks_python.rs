//! Looks into Python programs, with all interpreters that this machine has.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rankrun_core::Pid;
use rankrun_core::stacks::{Frame, Interpreter, ProcessStack, ThreadState};
use rankrun_stacks::{Bounds, Looker};
use rankrun_tests::looks::{BOUND, Target, functions, look_until, program};
use rankrun_tests::{Environment, compile, pause, scratch, skip, wait_until};

/// An interpreter.
struct Python {
    path: PathBuf,
    minor: u32,
    /// Its library, if it has one of its own.
    library: Option<PathBuf>,
}

/// The system's Python, and those of pyenv and of uv, from 3.9 on.
fn pythons() -> Vec<Python> {
    let home = PathBuf::from(env::var_os("HOME").unwrap_or_default());
    let mut paths = vec![PathBuf::from("/usr/bin/python3")];
    for directory in [home.join(".pyenv/versions"), home.join(".local/share/uv/python")] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        paths.extend(entries.map(|entry| entry.path().join("bin/python3")));
    }
    let pythons: Vec<Python> = paths.into_iter().filter_map(python).filter(|python| python.minor >= 9).collect();
    assert!(!pythons.is_empty(), "no Python is installed");
    pythons
}

fn python(path: PathBuf) -> Option<Python> {
    let script = "import sys, sysconfig; v = sysconfig.get_config_var; print(sys.version_info[1], v('Py_ENABLE_SHARED'), \
                  v('LIBDIR') + '/' + v('LDLIBRARY'))";
    let output = Command::new(&path).args(["-c", script]).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let [minor, is_shared, library] = words.as_slice() else { return None };
    let library = Path::new(library);
    let library = (*is_shared == "1" && library.exists()).then(|| library.to_owned());
    Some(Python { path, minor: minor.parse().ok()?, library })
}

impl Python {
    fn hang(&self, way: &str) -> Target {
        Target::of(Command::new(&self.path).arg(program("hang.py")).arg(way).env("PYTHONUTF8", "1"))
    }

    fn is_running(&self, interpreter: &Interpreter) -> bool {
        let own = format!("3.{}", self.minor);
        match interpreter {
            Interpreter::Running { version } => *version == own || version.starts_with(&format!("{own}.")),
            _ => false,
        }
    }
}

/// The Python frames of a thread, innermost first.
fn python_frames(seen: &ProcessStack, thread: usize) -> Vec<(&str, u32)> {
    let frames = seen.threads.get(thread).map(|thread| thread.frames.as_slice()).unwrap_or_default();
    let frames = frames.iter().filter(|frame| frame.is_python && frame.file.as_deref() == Some("hang.py"));
    let last = |frame: &Frame| frame.function.rfind('.').map_or(0, |dot| dot + 1);
    frames.map(|frame| (&frame.function[last(frame)..], frame.line.unwrap_or(0))).collect()
}

#[test]
fn frames_of_python_are_those_that_python_has() {
    let expected = [
        ("inner", 12),
        ("fetch", 14),
        ("<lambda>", 25),
        ("descend", 25),
        ("descend", 23),
        ("descend", 23),
        ("descend", 23),
        ("<module>", 36),
    ];
    for python in pythons() {
        let target = python.hang("sleep");
        let seen = look_until(target.pid(), |seen| {
            python_frames(seen, 0) == expected && python_frames(seen, 1) == [("waits_for_ever", 18)]
        });
        assert!(python.is_running(&seen.interpreter), "{seen:#?}");
        let main = &seen.threads[0];
        // What Python has called stands before it; the interpreter's own functions are not shown.
        let is_sleep = |name: &str| name.contains("nanosleep") || name == "select";
        assert!(main.frames.iter().take(2).any(|frame| is_sleep(&frame.function)), "{main:#?}");
        assert!(main.frames.iter().all(|frame| !frame.function.contains("Eval")), "{main:#?}");
        // From 3.11 on Python knows the names of classes.
        let fetch = if python.minor >= 11 { "Loader.fetch" } else { "fetch" };
        assert!(functions(&seen).contains(&fetch), "{main:#?}");
        assert!(seen.threads.iter().all(|thread| !thread.holds_gil && !thread.is_cut && !thread.is_idle), "{seen:#?}");
        target.end();
    }
}

#[test]
fn the_thread_that_holds_the_gil_is_told() {
    for python in pythons() {
        let target = python.hang("spin");
        let seen = look_until(target.pid(), |seen| {
            python_frames(seen, 0).first().is_some_and(|(name, _)| *name == "spins") && seen.threads[0].holds_gil
        });
        assert_eq!(seen.threads[0].state, ThreadState::Running, "{seen:#?}");
        target.end();
    }
}

#[test]
fn the_end_of_an_interpreter_is_told_from_a_wait_for_its_threads() {
    for python in pythons() {
        let target = python.hang("gone");
        let seen = look_until(target.pid(), |seen| seen.interpreter == Interpreter::Gone);
        assert!(functions(&seen).iter().any(|name| name.starts_with("Py_RunMain")), "{seen:#?}");
        target.end();

        let target = python.hang("threads");
        let is_there = |seen: &ProcessStack| {
            functions(seen).contains(&"_shutdown") && python_frames(seen, 1) == [("waits_for_ever", 18)]
        };
        let seen = look_until(target.pid(), is_there);
        assert!(python.is_running(&seen.interpreter), "{seen:#?}");
        target.end();
    }
}

#[test]
fn names_in_any_script_are_read() {
    for python in pythons() {
        let target = python.hang("größe");
        let seen = look_until(target.pid(), |seen| functions(seen).contains(&"größe"));
        let frame = seen.threads[0].frames.iter().find(|frame| frame.function == "größe").expect("it was found");
        assert_eq!((frame.file.as_deref(), frame.line), (Some("数.py"), Some(3)));
        target.end();
    }
}

#[test]
fn an_interpreter_that_has_not_started_is_not_gone() {
    let young = compile("cc", &["-O1"], &program("young.c"), "stacks-young");
    let libraries: Vec<PathBuf> = pythons().into_iter().filter_map(|python| python.library).collect();
    if libraries.is_empty() {
        return skip("no Python has a library of its own");
    }
    for library in libraries {
        let target = Target::start(&young, &[library.to_str().expect("text")]);
        let young = Interpreter::Unknown { why: "Python has not started yet".to_owned() };
        look_until(target.pid(), |seen| functions(seen).first() == Some(&"pause") && seen.interpreter == young);
        target.end();
    }
}

#[test]
fn a_rank_of_torch_is_seen_within_the_time_for_it() {
    let Some(torch) = Environment::find("torch") else { return };
    let directory = scratch();
    let script = "import sys, torch, torch.distributed as dist\n\
                  open(f'{sys.argv[1]}/ready', 'w').close()\n\
                  def train():\n    dist.init_process_group('gloo', f'file://{sys.argv[1]}/store', rank=0, world_size=2)\n\
                  train()\n";
    let python = torch.program("python");
    let target = Target::start(Path::new(&python), &["-c", script, directory.to_str().expect("text")]);
    let is_ready = || directory.join("ready").exists().then_some(());
    wait_until(3 * BOUND, is_ready).expect("torch can be imported");
    let is_there = |seen: &ProcessStack| functions(seen).contains(&"train") && has_native(seen);
    look_until(target.pid(), is_there);
    // As if it were the first one: nothing is known of the libraries.
    let mut looker = Looker::new(Bounds::default());
    let start = Instant::now();
    let first = looker.look(Pid(target.pid()));
    let elapsed = start.elapsed();
    assert!(elapsed < BOUND / 6, "{elapsed:?}");
    assert!(functions(&first).contains(&"train") || first.unseen.is_some(), "{first:#?}");
    // What the first look has read serves the next one.
    for _ in 0..100 {
        let next = looker.look(Pid(target.pid()));
        if is_there(&next) && next.unseen.is_none() {
            target.end();
            std::fs::remove_dir_all(directory).expect("it is ours");
            return;
        }
        pause(std::time::Duration::from_millis(20));
    }
    panic!("no look was complete");
}

/// Whether functions of torch have names.
fn has_native(seen: &ProcessStack) -> bool {
    let of_torch = |frame: &Frame| frame.file.as_deref().is_some_and(|file| file.starts_with("libtorch"));
    seen.threads[0].frames.iter().any(|frame| of_torch(frame) && !frame.function.starts_with("0x"))
}
