//! Processes that hang, and looks into them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rankrun_core::Pid;
use rankrun_core::stacks::ProcessStack;
use rankrun_stacks::{Bounds, Looker};
use rustix::process::Signal;

use crate::environment::compile;
use crate::processes::{self, descendants};
use crate::time::wait_until;

/// What nothing here may take.
pub const BOUND: Duration = Duration::from_secs(60);

/// A process that hangs. It is killed with all that it started, also where a test fails.
#[derive(Debug)]
pub struct Target(pub Child);

impl Drop for Target {
    fn drop(&mut self) {
        for process in descendants(self.pid()) {
            processes::send(process.pid, Signal::KILL);
        }
        // It may have ended already.
        let _ = (self.0.kill(), self.0.wait());
    }
}

impl Target {
    /// Starts a program.
    ///
    /// # Panics
    /// If it cannot be started, as all functions here where something is not as it should be.
    pub fn start(program: &Path, words: &[&str]) -> Target {
        Target::of(Command::new(program).args(words))
    }

    /// Starts a command, without an input.
    pub fn of(command: &mut Command) -> Target {
        Target(command.stdin(Stdio::null()).spawn().expect("the program can be started"))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Waits until it writes a byte, which says that it is ready.
    pub fn await_byte(&mut self) {
        let mut byte = [0];
        self.0.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("it is ready");
    }

    /// Ends it, and shows that nothing is left of it.
    pub fn end(self) {
        let below = descendants(self.pid());
        drop(self);
        let is_gone = || below.iter().all(|process| !processes::is_alive(process.pid)).then_some(());
        wait_until(BOUND, is_gone).expect("nothing is left");
    }
}

/// A program of `tests/programs/stacks`.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stacks").join(name)
}

/// `hang.c`, compiled.
pub fn hang(options: &[&str], name: &str) -> PathBuf {
    compile("cc", &[options, &["-pthread"]].concat(), &program("hang.c"), name)
}

/// The functions of the main thread, innermost first.
pub fn functions(seen: &ProcessStack) -> Vec<&str> {
    let main = seen.threads.first().map(|thread| thread.frames.as_slice()).unwrap_or_default();
    main.iter().map(|frame| frame.function.as_str()).collect()
}

/// Whether the names are among the functions, in this order and next to each other.
pub fn has(seen: &ProcessStack, names: &[&str]) -> bool {
    functions(seen).windows(names.len()).any(|window| window == names)
}

/// Looks until the process is where it will stay.
///
/// # Panics
/// If it does not get there.
pub fn look_until(pid: i32, is_there: impl Fn(&ProcessStack) -> bool) -> ProcessStack {
    let mut looker = Looker::new(Bounds { per_process: BOUND, ..Bounds::default() });
    let mut last = None;
    let found = wait_until(BOUND, || {
        let seen = looker.look(Pid(pid));
        let is_found = is_there(&seen);
        last = Some(seen);
        is_found.then(|| last.take()).flatten()
    });
    found.unwrap_or_else(|| panic!("it is not where it should be: {last:#?}"))
}
