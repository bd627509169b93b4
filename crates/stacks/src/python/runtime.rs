//! The state of an interpreter: whether there is one, its threads, and the frames of each.

use super::layout::{self, First, Gil, Layout, Position, Runs};
use crate::image::Image;
use crate::images::{Images, Loaded};
use crate::maps::Mappings;
use crate::memory::{Memory, word_at};

/// Threads and interpreters that are looked for, at most: a list that changes while it is read may have no end.
const MAX_THREADS: usize = 4096;
const MAX_INTERPRETERS: usize = 64;

/// What was found of an interpreter in a process.
#[derive(Debug)]
pub(crate) enum Found {
    None,
    Running(Box<Runtime>),
    Gone,
    Unknown(String),
}

/// A running interpreter.
#[derive(Debug)]
pub(crate) struct Runtime {
    memory: Memory,
    pub(crate) layout: Layout,
    /// `PyThreadState` of each thread.
    threads: Vec<State>,
    /// That of the thread with the GIL.
    holder: Option<u64>,
    /// Frames of a thread that are read.
    depth: usize,
    /// `_PyRuntime`.
    address: u64,
    /// The first interpreter.
    head: u64,
}

#[derive(Clone, Copy, Debug)]
struct State {
    address: u64,
    /// 0 where the interpreter does not know it.
    tid: u64,
    pthread: u64,
}

/// A Python frame, before its names are read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RawFrame {
    pub(crate) code: u64,
    /// As the layout says.
    pub(crate) position: u64,
}

/// The Python frames of a thread.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct RawFrames {
    /// Innermost first: those of each call of the evaluation loop together.
    pub(crate) runs: Vec<Vec<RawFrame>>,
    pub(crate) holds_gil: bool,
    pub(crate) is_cut: bool,
}

/// Looks for an interpreter.
pub(crate) fn find(memory: Memory, maps: &Mappings, images: &mut Images, program: &str, depth: usize) -> Found {
    let is_candidate = |name: &str| name.contains("python") || name == program;
    let mut seen = Vec::new();
    for loaded in images.named(memory, maps, is_candidate) {
        if seen.contains(&loaded.bias) {
            continue;
        }
        seen.push(loaded.bias);
        if let Some(address) = loaded.image.variable("_PyRuntime") {
            return state(memory, &loaded, address.wrapping_add(loaded.bias), depth);
        }
    }
    Found::None
}

fn state(memory: Memory, loaded: &Loaded, runtime: u64, depth: usize) -> Found {
    let layout = match layout::described(memory, runtime) {
        Some(layout) => layout,
        None => match version(memory, loaded) {
            Some((minor, version)) => match layout::of_version(minor, version.clone()) {
                Some(layout) => layout,
                None => return Found::Unknown(format!("Python {version} is not known")),
            },
            None => return Found::Unknown("the version of Python cannot be told".to_owned()),
        },
    };
    let Some(head) = memory.word(runtime + layout.interpreters) else {
        return Found::Unknown("the interpreter's memory cannot be read".to_owned());
    };
    if head == 0 {
        // struct pyinterpreters: head, main, next_id. Ids begin with 0 at the first interpreter and are never used again.
        let next_id = memory.word(runtime + layout.interpreters + 16).unwrap_or(0) as i64;
        let was_there = (1..1 << 32).contains(&next_id);
        return if was_there { Found::Gone } else { Found::Unknown("Python has not started yet".to_owned()) };
    }
    let threads = threads(memory, &layout, head);
    let holder = holder(memory, &layout, runtime, head);
    if threads.is_empty() {
        return Found::Unknown("the interpreter has no thread".to_owned());
    }
    Found::Running(Box::new(Runtime { memory, layout, threads, holder, depth, address: runtime, head }))
}

/// The minor version, and its text: from the variable `Py_Version` (3.11 on), or from the name of the file.
fn version(memory: Memory, loaded: &Loaded) -> Option<(u32, String)> {
    if let Some(address) = loaded.image.variable("Py_Version") {
        let number = memory.half(address.wrapping_add(loaded.bias))?;
        return Some((number >> 16 & 0xff, layout::version_of(number.into())));
    }
    minor_in_name(&loaded.image).map(|minor| (minor, format!("3.{minor}")))
}

/// `python3.9`, `libpython3.10.so.1.0`.
fn minor_in_name(image: &Image) -> Option<u32> {
    let (_, rest) = image.name.split_once("python3.")?;
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

fn threads(memory: Memory, layout: &Layout, head: u64) -> Vec<State> {
    let mut states = Vec::new();
    let mut interpreter = head;
    for _ in 0..MAX_INTERPRETERS {
        let mut thread = memory.word(interpreter + layout.threads).unwrap_or(0);
        while thread != 0 && states.len() < MAX_THREADS {
            let tid = layout.native_id.and_then(|offset| memory.word(thread + offset)).unwrap_or(0);
            let pthread = memory.word(thread + layout.pthread).unwrap_or(0);
            states.push(State { address: thread, tid, pthread });
            thread = memory.word(thread + layout.next_thread).unwrap_or(0);
        }
        interpreter = memory.word(interpreter + layout.next_interpreter).unwrap_or(0);
        if interpreter == 0 {
            break;
        }
    }
    states
}

fn holder(memory: Memory, layout: &Layout, runtime: u64, interpreter: u64) -> Option<u64> {
    let holder = match layout.gil {
        Gil::Current(offset) => memory.word(runtime + offset),
        Gil::Pointed(gil, holder, locked) => {
            let gil = memory.word(interpreter + gil)?;
            (memory.half(gil + locked)? == 1).then(|| memory.word(gil + holder))?
        }
        Gil::Own(holder, locked) => {
            (memory.half(interpreter + locked)? == 1).then(|| memory.word(interpreter + holder))?
        }
    };
    holder.filter(|address| *address != 0)
}

impl Runtime {
    /// Reads the threads again where they have changed: at a later look at the same process. Returns whether the interpreter still runs.
    /// `tid`: a thread that is about to be looked at.
    pub(crate) fn refresh(&mut self, tid: i32) -> bool {
        if self.memory.word(self.address + self.layout.interpreters) != Some(self.head) {
            return false;
        }
        let is_known = |state: &State| {
            let offset = self.layout.native_id.unwrap_or(self.layout.pthread);
            let expected = if self.layout.native_id.is_some() { state.tid } else { state.pthread };
            self.memory.word(state.address + offset) == Some(expected)
        };
        let is_it = |state: &&State| self.layout.native_id.is_none() || u64::try_from(tid) == Ok(state.tid);
        let mut own = self.threads.iter().filter(is_it).peekable();
        if own.peek().is_none() || !own.all(is_known) {
            self.threads = threads(self.memory, &self.layout, self.head);
        }
        true
    }

    /// The frames of a thread; `None` if it is none of Python's. Short: the thread may be stopped meanwhile.
    pub(crate) fn raw_frames(&self, tid: i32, tls: u64) -> Option<RawFrames> {
        let is_it = |state: &&State| {
            if state.tid != 0 {
                u64::try_from(tid) == Ok(state.tid)
            } else {
                state.pthread != 0 && state.pthread == tls
            }
        };
        let own: Vec<&State> = self.threads.iter().filter(is_it).collect();
        // A thread has a state for each interpreter that it has worked for.
        let mut frames =
            own.iter().map(|state| self.frames_of(state.address)).max_by_key(|frames| frames.runs.len())?;
        frames.holds_gil = own.iter().any(|state| self.holder == Some(state.address));
        Some(frames)
    }

    fn frames_of(&self, thread: u64) -> RawFrames {
        let layout = &self.layout;
        let first = match layout.first {
            First::Direct(offset) => self.memory.word(thread + offset),
            First::Behind(outer, inner) => {
                let frame = self.memory.word(thread + outer).filter(|address| *address != 0);
                frame.and_then(|address| self.memory.word(address + inner))
            }
        };
        let mut frames = RawFrames::default();
        let mut run = Vec::new();
        let mut next = first.unwrap_or(0);
        let mut bytes = [0; 112];
        let mut count = 0;
        while next != 0 {
            if count >= self.depth || !self.memory.fill(next, &mut bytes) {
                frames.is_cut = true;
                break;
            }
            count += 1;
            let word = |offset: usize| word_at(&bytes, offset).unwrap_or(0);
            let position = match layout.position {
                Position::Bytes(offset) | Position::Units(offset) => word(offset) & 0xffff_ffff,
                Position::Address(offset) => word(offset),
            };
            // The low bits are tags since 3.14.
            let frame = RawFrame { code: word(layout.code) & !3, position };
            let ends_run = match layout.runs {
                Runs::Each => true,
                Runs::Marked(offset) => bytes.get(offset).is_some_and(|mark| *mark != 0),
                Runs::Shim(offset) => bytes.get(offset).is_some_and(|owner| (3..=4).contains(owner)),
            };
            let is_shim = ends_run && matches!(layout.runs, Runs::Shim(_));
            if !is_shim {
                run.push(frame);
            }
            if ends_run && !run.is_empty() {
                frames.runs.push(std::mem::take(&mut run));
            }
            next = word(layout.previous);
        }
        if !run.is_empty() {
            frames.runs.push(run);
        }
        frames
    }
}
