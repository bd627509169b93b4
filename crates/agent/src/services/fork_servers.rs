//! The agent's side of fork servers (`--preload`): interpreters that have imported modules, and from which ranks are forked.
//!
//! There is one for each command of the job on this node. It is started before the first rank of the command, and serves until the job is
//! over. One that cannot serve is not used: the ranks are started from the beginning, and one line says why.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rankrun_core::lease::Vitals;
use rankrun_core::patience::Idleness;
use rankrun_core::{AppIndex, Stream, WorkerStatus};
use rankrun_sys::fork_server::{ForkServer, Word, word};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::reason;
use rankrun_sys::spawn::Command;

use crate::children::ServerId;
use crate::driver::token::Token;
use crate::streams::{Capture, Read};

/// How long an import may do nothing.
const IDLE_BOUND: Duration = Duration::from_secs(30);
/// Bytes that an import may write: each rank has to write them too.
const SPOKEN: usize = 1 << 20;

/// What ranks must have in common with their server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) app: AppIndex,
    pub(crate) argv: Vec<CString>,
    pub(crate) wdir: Option<CString>,
    /// The variables that libraries read when they are loaded.
    pub(crate) threads: Option<CString>,
}

/// A server that is wanted: what is to be started, without its cgroup, and our ends of its descriptors.
pub(crate) struct Wish<P> {
    pub(crate) key: Key,
    pub(crate) program: P,
    pub(crate) command: Command,
    pub(crate) connection: OwnedFd,
    pub(crate) captures: [Option<Capture>; 2],
}

enum State<P> {
    /// It is to be given to the spawner.
    Wanted(Box<(P, Command)>, OwnedFd),
    /// It was given to the spawner, or imports.
    Importing(OwnedFd, Idleness),
    Ready(Arc<ForkServer>),
    /// Ranks are started without it; another one would not do better.
    Unfit,
    /// It has ended after it was ready. The next attempt may have another one.
    Lost,
}

struct Server<P> {
    id: ServerId,
    key: Key,
    state: State<P>,
    captures: [Option<Capture>; 2],
    spoken: [Vec<u8>; 2],
    /// What it imports.
    module: Option<String>,
}

/// All servers of a node. `P` is how a program is named to the spawner.
pub(crate) struct ForkServers<P> {
    next: u32,
    all: Vec<Server<P>>,
}

impl<P> Default for ForkServers<P> {
    fn default() -> Self {
        ForkServers { next: 0, all: Vec::new() }
    }
}

impl<P> ForkServers<P> {
    /// The server for such ranks, if there is one that serves or may come to.
    pub(crate) fn of(&self, key: &Key) -> Option<ServerId> {
        let fits = |server: &&Server<P>| server.key == *key && !matches!(server.state, State::Lost);
        self.all.iter().find(fits).map(|server| server.id)
    }

    /// Adds one that is to be started.
    pub(crate) fn add(&mut self, wish: Wish<P>, poller: &Poller) -> io::Result<ServerId> {
        let id = ServerId(self.next);
        self.next += 1;
        let Wish { key, program, command, connection, captures } = wish;
        poller.add(&connection, Token::ForkServer(id).encode(), Interest::Read)?;
        for stream in Stream::ALL {
            if let Some(capture) = &captures[stream.index()] {
                poller.add(capture, Token::ForkServerOutput(id, stream).encode(), Interest::Read)?;
            }
        }
        let state = State::Wanted(Box::new((program, command)), connection);
        self.all.push(Server { id, key, state, captures, spoken: [Vec::new(), Vec::new()], module: None });
        Ok(id)
    }

    /// Whether it is known how ranks are started.
    pub(crate) fn is_settled(&self, id: ServerId) -> bool {
        self.all
            .iter()
            .all(|server| server.id != id || !matches!(server.state, State::Wanted(..) | State::Importing(..)))
    }

    /// The server, if it serves.
    pub(crate) fn serving(&self, id: ServerId) -> Option<Arc<ForkServer>> {
        self.all.iter().find_map(|server| match &server.state {
            State::Ready(serving) if server.id == id => Some(Arc::clone(serving)),
            _ => None,
        })
    }

    /// The next one to be given to the spawner.
    pub(crate) fn wanted(&self) -> Option<ServerId> {
        self.all.iter().find(|server| matches!(server.state, State::Wanted(..))).map(|server| server.id)
    }

    /// It is given to the spawner.
    pub(crate) fn start(&mut self, id: ServerId, now: Duration) -> Option<(P, Command)> {
        let server = self.get(id)?;
        match std::mem::replace(&mut server.state, State::Unfit) {
            State::Wanted(start, connection) => {
                server.state = State::Importing(connection, Idleness::new(now, IDLE_BOUND));
                Some(*start)
            }
            other => {
                server.state = other;
                None
            }
        }
    }

    /// Whether it is waited for, or serves.
    pub(crate) fn is_wanted(&self, id: ServerId) -> bool {
        self.all.iter().any(|server| server.id == id && matches!(server.state, State::Importing(..) | State::Ready(_)))
    }

    /// It cannot be used, and why. Returns what the user is told, once.
    pub(crate) fn fail(&mut self, id: ServerId, why: &str) -> Option<String> {
        let server = self.get(id)?;
        let (state, text) = match &server.state {
            State::Wanted(..) | State::Importing(..) => {
                (State::Unfit, format!("--preload: {why}; ranks start without it"))
            }
            State::Ready(_) => {
                (State::Lost, format!("--preload: the prepared interpreter is lost ({why}); ranks start without it"))
            }
            State::Unfit | State::Lost => return None,
        };
        server.state = state;
        server.captures = [None, None];
        Some(text)
    }

    /// It has ended.
    pub(crate) fn ended(&mut self, id: ServerId, status: WorkerStatus, poller: &Poller) -> Option<String> {
        // Its last word may be there.
        match self.read(id, poller) {
            Some(note) => return Some(note),
            None if matches!(self.get(id)?.state, State::Ready(_)) => {
                return self.fail(id, &format!("it was ended by {status}"));
            }
            None => {}
        }
        self.read_output(id, Stream::Stderr);
        let server = self.get(id)?;
        let mut why = format!("the interpreter was ended by {status} {}", during(server.module.as_deref()));
        if let Some(line) = last_words(&String::from_utf8_lossy(&server.spoken[Stream::Stderr.index()])) {
            why = format!("{why}: {line}");
        }
        self.fail(id, &why)
    }

    /// Its connection is readable. Returns what the user is told.
    pub(crate) fn read(&mut self, id: ServerId, poller: &Poller) -> Option<String> {
        loop {
            let server = self.get(id)?;
            let State::Importing(connection, _) = &server.state else { return None };
            let word = word(connection);
            match word {
                Ok(None) => return None,
                Ok(Some(Word::Imports(name))) => {
                    server.module = Some(name);
                    continue;
                }
                // It is in the set. Nothing is read from it any more.
                Ok(Some(Word::Ready | Word::Unfit(_))) | Err(_) => drop(poller.remove(connection)),
            }
            return match word {
                Ok(Some(Word::Ready)) => self.ready(id),
                Ok(Some(Word::Unfit(why))) => self.fail(id, &why),
                // Its end is reported when it is reaped, with its status.
                Ok(Some(Word::Imports(_)) | None) => None,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                Err(error) => self.fail(id, &format!("cannot read from the interpreter: {}", reason(&error))),
            };
        }
    }

    /// It serves. All that its imports have written is there.
    fn ready(&mut self, id: ServerId) -> Option<String> {
        Stream::ALL.into_iter().for_each(|stream| self.read_output(id, stream));
        let server = self.get(id)?;
        if server.spoken.iter().any(|text| text.len() > SPOKEN) {
            return self.fail(id, "its imports write more than 1 MiB, which each rank would have to write");
        }
        server.captures = [None, None];
        if let State::Importing(connection, _) = std::mem::replace(&mut server.state, State::Unfit) {
            let spoken = std::mem::take(&mut server.spoken);
            server.state = State::Ready(Arc::new(ForkServer::new(connection, spoken)));
        }
        None
    }

    /// What its imports write.
    pub(crate) fn read_output(&mut self, id: ServerId, stream: Stream) {
        let Some(server) = self.get(id) else { return };
        let (capture, spoken) = (&mut server.captures[stream.index()], &mut server.spoken[stream.index()]);
        let mut buffer = Vec::new();
        while let Some(open) = capture {
            match open.read(&mut buffer) {
                Read::Bytes(bytes) => {
                    // What is too much is read all the same: the import must not wait for us.
                    let room = (SPOKEN + 1).saturating_sub(spoken.len());
                    spoken.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Read::Empty => return,
                Read::End => *capture = None,
            }
        }
    }

    /// When [`ForkServers::late`] is to be asked.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = |server: &Server<P>| match &server.state {
            State::Importing(_, idleness) => Some(idleness.due()),
            State::Wanted(..) | State::Ready(_) | State::Unfit | State::Lost => None,
        };
        self.all.iter().filter_map(due).min()
    }

    /// The servers whose imports hang. `look`: what the kernel knows of one.
    pub(crate) fn late(&mut self, now: Duration, look: impl Fn(ServerId) -> Option<Vitals>) -> Vec<ServerId> {
        let is_late = |server: &mut Server<P>| match &mut server.state {
            State::Importing(_, idleness) => idleness.tick(now, || look(server.id)),
            State::Wanted(..) | State::Ready(_) | State::Unfit | State::Lost => false,
        };
        self.all.iter_mut().filter_map(|server| is_late(server).then_some(server.id)).collect()
    }

    /// Forgets those that these ranks do not use. Returns them.
    pub(crate) fn keep(&mut self, used: &[ServerId]) -> Vec<ServerId> {
        let (kept, dropped) = std::mem::take(&mut self.all).into_iter().partition(|server| used.contains(&server.id));
        self.all = kept;
        dropped.iter().map(|server: &Server<P>| server.id).collect()
    }

    /// What is said of an import that does nothing.
    pub(crate) fn hangs(&self, id: ServerId) -> String {
        let module = self.all.iter().find(|server| server.id == id).and_then(|server| server.module.as_deref());
        format!("the interpreter did nothing for {} s {}", IDLE_BOUND.as_secs(), during(module))
    }

    /// It is not needed any more.
    pub(crate) fn forget(&mut self, id: ServerId) {
        self.all.retain(|server| server.id != id);
    }

    fn get(&mut self, id: ServerId) -> Option<&mut Server<P>> {
        self.all.iter_mut().find(|server| server.id == id)
    }
}

/// When something has happened to it.
fn during(module: Option<&str>) -> String {
    module.map_or_else(|| "while it started".to_owned(), |name| format!("during the import of \"{name}\""))
}

/// What an interpreter says last: where it was, if that is a dump of Python's.
fn last_words(stderr: &str) -> Option<String> {
    let mut dump = stderr.lines().skip_while(|line| !line.contains("(most recent call first)")).skip(1);
    // The first frames are those of the import itself.
    let place = dump.find(|line| line.trim_start().starts_with("File \"") && !line.contains("<frozen"));
    let last = || stderr.lines().rev().find(|line| !line.trim().is_empty());
    place.or_else(last).map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_place_of_a_crash_or_the_last_line() {
        let crash = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File \"/a/dies.py\", line 2 in <module>\n  \
                     File \"<frozen importlib._bootstrap>\", line 241 in _call_with_frames_removed\n";
        assert_eq!(last_words(crash).as_deref(), Some("File \"/a/dies.py\", line 2 in <module>"));
        assert_eq!(last_words("first\nlast\n\n").as_deref(), Some("last"));
        assert_eq!(last_words("\n"), None);
    }
}
