//! What a thread does, resolved once for each stack.

use std::fs;

use rankrun_core::stacks::profile::{Activity, Meaning, PAGE_FAULT, meaning};
use rankrun_core::stacks::{Frame, ThreadState, WITHOUT_FILES};
use rankrun_sys::trace::numbers;

use crate::idle;
use crate::kernel::Call;
use crate::memory::Memory;
use crate::native::Unwound;
use crate::python::RawFrames;

/// A stack without names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Raw {
    pub(super) unwound: Unwound,
    pub(super) python: Option<RawFrames>,
    pub(super) activity: Activity,
    pub(super) call: Option<String>,
}

/// The same with names.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) frames: Vec<Frame>,
    pub(super) activity: Activity,
    pub(super) call: Option<String>,
    pub(super) meaning: Meaning,
    pub(super) is_idle: bool,
}

impl Named {
    pub(super) fn new(
        mut frames: Vec<Frame>,
        activity: Activity,
        call: Option<String>,
        is_main: bool,
        name: &str,
    ) -> Named {
        keep_one_line(&mut frames);
        let is_idle = idle::is_idle(is_main, state(activity), name, &frames);
        let meaning = meaning(&frames, activity, call.as_deref(), is_main);
        Named { frames, activity, call, meaning, is_idle }
    }
}

/// The line is that of the innermost call that has one: calls of a function from several lines are one.
fn keep_one_line(frames: &mut [Frame]) {
    let mut lines = frames.iter_mut().filter(|frame| frame.line.is_some());
    lines.next();
    lines.for_each(|frame| frame.line = None);
}

fn state(activity: Activity) -> ThreadState {
    match activity {
        Activity::Running | Activity::Queued => ThreadState::Running,
        Activity::Sleeping => ThreadState::Sleeping,
        Activity::Disk => ThreadState::Uninterruptible,
        Activity::Other => ThreadState::Stopped,
    }
}

/// The system call with its file, as it is counted: the number of a socket says nothing.
pub(super) fn call_text(tid: i32, call: Call) -> Option<String> {
    if call.number < 0 {
        return Some(PAGE_FAULT.to_owned());
    }
    let wchan = (call.number == numbers::restart_syscall)
        .then(|| rankrun_sys::kernel::piece_text(format!("/proc/{tid}/wchan")).ok())
        .flatten();
    let call = call.restarted(wchan.as_deref(), Memory { pid: tid })?;
    let name = call.name()?;
    if call.is_without_files() {
        return Some(format!("{name}{WITHOUT_FILES}"));
    }
    let descriptor = i32::try_from(call.first).ok().filter(|_| call.is_on_descriptor());
    let file = descriptor.and_then(|fd| fs::read_link(format!("/proc/{tid}/fd/{fd}")).ok());
    Some(match file {
        Some(path) => {
            let path = path.display().to_string();
            let kind = if path.starts_with('/') { path.as_str() } else { path.split(':').next().unwrap_or_default() };
            format!("{name} {kind}")
        }
        None => name.to_owned(),
    })
}
