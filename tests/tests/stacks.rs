//! Looks into real processes: native programs of all sorts. Nothing of a process may be disturbed by it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_core::Pid;
use rankrun_core::stacks::{Interpreter, ProcessStack, ThreadState};
use rankrun_stacks::{Bounds, Looker};
use rankrun_sys::trace;
use rankrun_tests::looks::{BOUND, Target, functions, hang, has, look_until, program};
use rankrun_tests::{Random, compile, full_scale, helper, pause, processes, scratch, skip, wait_until};
use rustix::process::Signal;

#[test]
fn functions_of_c_are_named_with_and_without_debug_information() {
    let builds: [(&str, &[&str]); 6] = [
        ("stacks-g", &["-O2", "-g"]),
        ("stacks-fp", &["-O2", "-fno-omit-frame-pointer"]),
        ("stacks-no-tables", &["-O2", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"]),
        ("stacks-O0", &["-O0"]),
        ("stacks-O2", &["-O2"]),
        ("stacks-static", &["-O2", "-static"]),
    ];
    for (name, options) in builds {
        let hang = hang(options, name);
        let cases: [(&str, &[&str]); 4] = [
            ("signal", &["handler", "<signal>", "compute", "interrupted", "main"]),
            ("exit", &["forever"]),
            ("abort", &["abort", "main"]),
            ("epoll", &["epoll_wait", "wait_for_event", "serve", "main"]),
        ];
        for (way, expected) in cases {
            let target = Target::start(&hang, &[way]);
            let seen =
                look_until(target.pid(), |seen| has(seen, expected) && seen.threads[0].state == ThreadState::Sleeping);
            assert_eq!(seen.interpreter, Interpreter::None);
            assert_eq!(seen.unseen, None);
            let main = &seen.threads[0];
            assert!(main.is_main && !main.is_cut, "{name} {way}: {main:#?}");
            if way == "exit" {
                let functions = functions(&seen);
                assert!(functions.contains(&"exit") && !functions.contains(&"main"), "{name}: {functions:?}");
            } else {
                assert_eq!(functions(&seen).last(), Some(&"main"), "{name} {way}");
            }
            if name == "stacks-g" {
                let frame = main.frames.iter().find(|frame| frame.file.as_deref() == Some("hang.c"));
                assert!(frame.is_some_and(|frame| frame.line.is_some()), "{way}: {main:#?}");
            }
            target.end();
        }
    }
}

#[test]
fn a_stripped_program_shows_the_functions_of_its_libraries_and_offsets() {
    for (name, options) in [("stacks-s", &["-O2", "-s"][..]), ("stacks-static-s", &["-O2", "-s", "-static"])] {
        let target = Target::start(&hang(options, name), &["abort"]);
        let is_asleep = |seen: &ProcessStack| seen.threads[0].kernel.as_deref() == Some("pause");
        let seen = look_until(target.pid(), |seen| functions(seen).len() >= 5 && is_asleep(seen));
        let main = &seen.threads[0];
        let own = main.frames.iter().filter(|frame| frame.file.as_deref() == Some(name));
        assert!(own.clone().count() >= 2, "{main:#?}");
        assert!(own.clone().all(|frame| frame.function.starts_with("0x")), "{main:#?}");
        if name == "stacks-s" {
            assert!(functions(&seen).contains(&"abort"), "{main:#?}");
        }
        target.end();
    }
}

#[test]
fn an_exception_of_cpp_that_nobody_catches_shows_where_it_was_thrown() {
    let terminate = compile("c++", &["-O1", "-g"], &program("terminate.cpp"), "stacks-terminate");
    let target = Target::start(&terminate, &[]);
    let seen = look_until(target.pid(), |seen| functions(seen).contains(&"stuck"));
    let functions = functions(&seen);
    for name in ["std::terminate", "__cxa_throw", "std::for_each", "app::Worker::run", "main"] {
        assert!(functions.contains(&name), "{name} is not in {functions:?}");
    }
    target.end();
}

#[test]
fn all_threads_are_seen_and_bounds_are_kept() {
    let hang = hang(&["-O0"], "stacks-threads");
    let target = Target::start(&hang, &["threads"]);
    let is_there = |seen: &ProcessStack| {
        let count = |name: &str| {
            let named = seen.threads.iter().filter(|thread| thread.frames.iter().any(|it| it.function == name));
            named.count()
        };
        let taking = seen.threads.iter().find(|thread| thread.frames.iter().any(|frame| frame.function == "take"));
        let is_asleep = taking.is_some_and(|thread| thread.kernel.as_deref() == Some("futex"));
        is_asleep && (count("rest"), count("take"), count("spin"), seen.threads.len()) == (3, 3, 1, 8)
    };
    let seen = look_until(target.pid(), is_there);
    assert!(seen.threads.iter().all(|thread| !thread.is_idle && !thread.holds_gil));
    let few = Looker::new(Bounds { threads: 3, ..Bounds::default() }).look(Pid(target.pid()));
    assert_eq!(few.threads.len(), 3);
    assert_eq!(few.unseen.as_deref(), Some("it has 8 threads; 3 are shown"));
    let late = Looker::new(Bounds { per_process: Duration::ZERO, ..Bounds::default() }).look(Pid(target.pid()));
    assert!(late.threads.iter().all(|thread| thread.frames.is_empty() && thread.is_cut));
    assert_eq!(late.unseen.as_deref(), Some("the time for it was over"));
    target.end();
    let deep = Target::start(&hang, &["deep"]);
    let bound = Bounds::default().depth;
    // It goes down while we look. Places for functions that may have ended with a jump count.
    let seen = look_until(deep.pid(), |seen| functions(seen).contains(&"forever") && seen.threads[0].is_cut);
    assert!((bound - 4..=bound).contains(&seen.threads[0].frames.len()), "{}", seen.threads[0].frames.len());
    deep.end();
}

#[test]
fn a_thread_in_an_uninterruptible_sleep_is_seen_and_left_alone() {
    let target = Target::start(&hang(&["-O0"], "stacks-vfork"), &["vfork"]);
    // A look that stops it on its way there waits for half of its time, which is long here.
    wait_until(BOUND, || processes::process(target.pid()).filter(|process| process.state == 'D')).expect("it waits");
    let seen = look_until(target.pid(), |seen| {
        seen.threads.first().is_some_and(|main| main.state == ThreadState::Uninterruptible) && seen.others.len() == 1
    });
    let main = &seen.threads[0];
    assert!(main.kernel.is_some(), "{main:#?}");
    assert_eq!(seen.stopped_us, 0, "nothing was stopped");
    let other = &seen.others[0];
    assert_eq!(other.parent, Pid(target.pid()));
    assert!(other.frames.iter().any(|frame| frame.function == "main"), "{other:#?}");
    let late = Looker::new(Bounds { per_process: Duration::ZERO, ..Bounds::default() }).look(Pid(target.pid()));
    let other = &late.others[0];
    assert_eq!(other.unseen.as_deref(), Some("the time for it was over"), "what was not reached is named");
    assert!(other.frames.is_empty() && !other.command.is_empty(), "{other:#?}");
    target.end();
}

#[test]
fn a_file_system_that_does_not_answer_is_no_obstacle() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/dead_fs.c");
    let dead_fs = compile("cc", &["-O1", "-Wall"], &source, "dead_fs");
    let dead = tempfile::tempdir().expect("the temporary directory can be written");
    let dead = dead.path().to_str().expect("text");
    let probe = Command::new(&dead_fs).args([dead, "true"]).output().expect("the program can be started");
    if !probe.status.success() {
        return skip("no FUSE file system can be mounted");
    }
    let file = format!("{dead}/x");
    let target = Target::start(&dead_fs, &[dead, "cat", &file]);
    let is_there = |seen: &ProcessStack| {
        let main = &seen.threads[0];
        let call = main.kernel.as_deref().unwrap_or_default();
        let is_in_call = call.starts_with("openat") || call.starts_with("newfstatat");
        seen.command.starts_with("cat ") && is_in_call && !main.frames.is_empty()
    };
    let seen = look_until(target.pid(), is_there);
    assert_eq!(seen.stopped_us, 0, "{seen:#?}");
    target.end();
}

#[test]
fn a_call_that_a_stop_would_end_goes_on() {
    let hang = hang(&["-O2"], "stacks-epoll");
    let mut target = Target::start(&hang, &["epoll"]);
    look_until(target.pid(), |seen| functions(seen).first() == Some(&"epoll_wait"));
    let mut looker = Looker::new(Bounds::default());
    for _ in 0..200 {
        assert_eq!(looker.look(Pid(target.pid())).stopped_us, 0);
    }
    assert_eq!(target.0.try_wait().expect("it is a child"), None);
    target.end();

    // Its state is read before it begins to wait, and it is stopped after that.
    let mut target = Target::of(Command::new(hang).arg("often").stdout(Stdio::piped()));
    target.await_byte();
    for _ in 0..full_scale(20_000, 1000) {
        looker.look(Pid(target.pid()));
    }
    assert_eq!(target.0.try_wait().expect("it is a child"), None);
    target.end();
}

#[test]
fn no_signal_is_lost_while_a_process_is_looked_into() {
    let hang = hang(&["-O2"], "stacks-receive");
    let mut command = Command::new(hang);
    let mut target = Target::of(command.arg("receive").stdout(Stdio::piped()));
    target.await_byte();
    let pid = target.pid();
    let sender = std::thread::spawn(move || {
        // 35 is SIGRTMIN + 1 of glibc.
        let script = "i=0; while [ $i -lt 500 ]; do kill -35 $0; i=$((i + 1)); done";
        Command::new("sh").args(["-c", script, &pid.to_string()]).status().expect("sh can be started")
    });
    let mut looker = Looker::new(Bounds::default());
    let status = wait_until(BOUND, || {
        looker.look(Pid(pid));
        target.0.try_wait().expect("it is a child")
    });
    assert!(sender.join().expect("it does not panic").success());
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}

#[test]
fn a_look_does_not_change_what_the_next_one_shows() {
    let hang = hang(&["-O2"], "stacks-timed");
    for (way, call) in [("nanosleep", "clock_nanosleep"), ("poll", "poll"), ("futex", "futex")] {
        let target = Target::start(&hang, &[way]);
        let first = look_until(target.pid(), |seen| seen.threads[0].kernel.as_deref() == Some(call));
        let mut looker = Looker::new(Bounds { per_process: BOUND, ..Bounds::default() });
        for _ in 0..20 {
            // It is on its way back to the wait for some microseconds.
            let is_asleep = || processes::process(target.pid()).filter(|process| process.state == 'S');
            wait_until(BOUND, is_asleep).expect("it sleeps");
            let seen = looker.look(Pid(target.pid()));
            assert_eq!(seen.threads[0].kernel.as_deref(), Some(call), "{seen:#?}");
            assert_eq!(seen.threads[0].frames, first.threads[0].frames, "{seen:#?}");
        }
        target.end();
    }
}

#[test]
fn a_stopped_process_is_seen_and_stays_stopped() {
    let target = Target::start(&hang(&["-O0"], "stacks-stopped"), &[""]);
    look_until(target.pid(), |seen| functions(seen).contains(&"compute"));
    processes::send(target.pid(), Signal::STOP);
    let state =
        |letter: char| move |pid: i32| processes::process(pid).filter(|process| process.state == letter).map(|_| ());
    wait_until(BOUND, || state('T')(target.pid())).expect("it stops");
    let seen = Looker::new(Bounds::default()).look(Pid(target.pid()));
    assert!(functions(&seen).contains(&"compute"), "{seen:#?}");
    assert_eq!(seen.threads[0].state, ThreadState::Stopped);
    wait_until(BOUND, || state('T')(target.pid())).expect("it stays stopped");
    processes::send(target.pid(), Signal::CONT);
    wait_until(BOUND, || state('R')(target.pid())).expect("it goes on");
    target.end();
}

#[test]
fn threads_that_outlive_the_main_thread_are_seen() {
    let hang = hang(&["-O0"], "stacks-main-ends");
    let target = Target::start(&hang, &["main-ends"]);
    wait_until(BOUND, || processes::process(target.pid()).filter(|process| process.state == 'Z'))
        .expect("its main thread ends");
    let seen = look_until(target.pid(), |seen| functions(seen).contains(&"spin"));
    assert_eq!(seen.unseen, None, "{seen:#?}");
    assert!(seen.command.ends_with("main-ends"), "{seen:#?}");
    target.end();
}

#[test]
fn what_cannot_be_looked_into_is_said_with_its_reason() {
    let gone = Looker::new(Bounds::default()).look(Pid(i32::MAX));
    assert_eq!(gone.unseen.as_deref(), Some("it is gone"));
    let hang = hang(&["-O0"], "stacks-refused");
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().expect("it can be started");
    let zombie = child.id() as i32;
    wait_until(BOUND, || processes::process(zombie).filter(|process| process.state == 'Z')).expect("it ends");
    let seen = Looker::new(Bounds::default()).look(Pid(zombie));
    assert_eq!(seen.unseen.as_deref(), Some("it has ended, and its parent has not waited for it"));
    child.wait().expect("it is a child");

    let target = Target::start(&hang, &["exit"]);
    look_until(target.pid(), |seen| functions(seen).contains(&"forever"));
    let held = trace::hold(target.pid(), BOUND).expect("it is a child");
    let pid = target.pid();
    let seen = std::thread::spawn(move || Looker::new(Bounds::default()).look(Pid(pid))).join().expect("no panic");
    assert!(seen.unseen.as_deref().is_some_and(|why| why.contains("traces it")), "{seen:#?}");
    held.release();

    if rustix::process::geteuid().is_root() {
        let mut look = Command::new(helper("look"));
        let output = look.arg(pid.to_string()).uid(65534).gid(65534).output().expect("it can be started");
        let seen: ProcessStack = serde_json::from_slice(&output.stdout).expect("what look writes");
        assert_eq!(seen.unseen.as_deref(), Some("it runs as another user"));
        assert!(seen.threads.iter().all(|thread| thread.frames.is_empty()));
    }
    target.end();
}

#[test]
fn files_are_found_in_another_mount_namespace_and_where_they_were_deleted() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may mount");
    }
    let hang = hang(&["-O0"], "stacks-mounts");
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/elsewhere && exec /mnt/elsewhere exit";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&hang);
    let target = Target::of(&mut command);
    look_until(target.pid(), |seen| functions(seen).contains(&"forever"));
    target.end();

    let directory = scratch();
    let copy = directory.join("deleted");
    std::fs::copy(&hang, &copy).expect("the directory is ours");
    let target = Target::start(&copy, &["exit"]);
    look_until(target.pid(), |seen| functions(seen).contains(&"forever"));
    std::fs::remove_file(&copy).expect("it is ours");
    look_until(target.pid(), |seen| functions(seen).contains(&"forever"));
    std::fs::remove_dir_all(&directory).expect("it is ours");
    target.end();
}

/// The states of all threads, and the tracers that they have.
fn stopped_threads(pid: i32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let statuses = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let is_held = |status: &String| {
        let has = |name: &str, wanted: &dyn Fn(&str) -> bool| {
            status.lines().any(|line| line.strip_prefix(name).is_some_and(|value| wanted(value.trim())))
        };
        has("State:", &|state| state.starts_with(['t', 'T'])) || has("TracerPid:", &|tracer| tracer != "0")
    };
    statuses.filter(is_held).collect()
}

#[test]
fn a_process_that_executes_itself_again_and_again_is_no_obstacle() {
    let hang = hang(&["-O0"], "stacks-exec");
    let times = full_scale("20000", "2000");
    for way in ["exec", "exec-thread"] {
        let mut target = Target::start(&hang, &[way, times]);
        let mut looker = Looker::new(Bounds::default());
        let status = wait_until(BOUND, || {
            looker.look(Pid(target.pid()));
            target.0.try_wait().expect("it is a child")
        });
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{way}");
        target.end();
    }
}

#[test]
fn killed_in_the_middle_it_leaves_no_thread_stopped() {
    let target = Target::start(&hang(&["-O0"], "stacks-killed"), &["threads"]);
    look_until(target.pid(), |seen| seen.threads.len() == 8);
    let mut random = Random::new(11);
    let mut in_the_middle = 0;
    for _ in 0..full_scale(2000, 200) {
        let mut look = Command::new(helper("look"));
        let look = look.arg("--forever").arg(target.pid().to_string()).stdin(Stdio::null());
        let mut look = look.spawn().expect("it can be started");
        pause(Duration::from_micros(random.below(20_000)));
        in_the_middle += usize::from(!stopped_threads(target.pid()).is_empty());
        look.kill().expect("it runs for ever");
        look.wait().expect("it is a child");
        let is_free = || stopped_threads(target.pid()).is_empty().then_some(());
        wait_until(BOUND, is_free).unwrap_or_else(|| panic!("held: {:?}", stopped_threads(target.pid())));
    }
    assert!(in_the_middle > 0, "no look was interrupted while a thread was held");
    target.end();
}
