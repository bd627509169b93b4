//! Stacks for tests, as they are recorded from real ranks.

use super::fold::Seen;
use super::{Frame, Interpreter, OtherProcess, ProcessStack, ThreadStack, ThreadState};
use crate::ids::{Pid, Rank};

/// Frames as tables show them, innermost first: `MPI_Allreduce@libmpi.so.12 < step train.py:120 < main halo.c:2`.
pub(crate) fn frames(text: &str) -> Vec<Frame> {
    text.split(" < ").filter(|text| !text.is_empty()).map(frame).collect()
}

fn frame(text: &str) -> Frame {
    if let Some((function, file)) = text.split_once('@') {
        return Frame { function: function.to_owned(), file: Some(file.to_owned()), line: None, is_python: false };
    }
    let Some((function, place)) = text.rsplit_once(' ') else {
        return Frame { function: text.to_owned(), file: None, line: None, is_python: false };
    };
    let (file, line) = place.split_once(':').expect("FILE:LINE");
    let is_python = file.ends_with(".py") || file.starts_with('<');
    Frame { function: function.to_owned(), file: Some(file.to_owned()), line: line.parse().ok(), is_python }
}

/// A rank with one thread, which has had no CPU time.
pub(crate) fn rank(rank: u32, state: ThreadState, text: &str) -> Seen {
    let pid = Pid(4000 + rank as i32);
    let stack = ProcessStack {
        pid,
        command: "python train.py".to_owned(),
        interpreter: match text.contains(".py:") {
            true => Interpreter::Running { version: "3.13.1".to_owned() },
            false => Interpreter::None,
        },
        threads: vec![thread(pid, state, text)],
        others: Vec::new(),
        unseen: None,
        stopped_us: 300,
        written: Some(0),
    };
    Seen { rank: Rank(rank), node: format!("node{:02}", rank / 16), stack }
}

/// The same with what the kernel says of it.
pub(crate) fn rank_in(number: u32, state: ThreadState, kernel: &str, text: &str) -> Seen {
    let mut seen = rank(number, state, text);
    seen.stack.threads[0].kernel = Some(kernel.to_owned());
    seen
}

/// The main thread of a process.
pub(crate) fn thread(tid: Pid, state: ThreadState, text: &str) -> ThreadStack {
    ThreadStack {
        tid,
        name: "python".to_owned(),
        is_main: true,
        state,
        run_us: 0,
        holds_gil: false,
        kernel: None,
        limit_ms: None,
        frames: frames(text),
        is_idle: false,
        is_cut: false,
    }
}

/// Another thread.
pub(crate) fn another(seen: &mut Seen, name: &str, state: ThreadState, text: &str) {
    let tid = Pid(seen.stack.pid.0 + 1000 * seen.stack.threads.len() as i32);
    let own = ThreadStack { name: name.to_owned(), is_main: false, ..thread(tid, state, text) };
    seen.stack.threads.push(own);
}

/// A process that the rank has started.
pub(crate) fn child(seen: &mut Seen, command: &str, state: ThreadState, text: &str) {
    let pid = Pid(seen.stack.pid.0 + 700 + seen.stack.others.len() as i32);
    let (parent, command) = (seen.stack.pid, command.to_owned());
    seen.stack.others.push(OtherProcess {
        pid,
        parent,
        command,
        state,
        status: None,
        frames: frames(text),
        unseen: None,
        sleeps: false,
        limit_ms: None,
        reads_stdin: false,
    });
}
