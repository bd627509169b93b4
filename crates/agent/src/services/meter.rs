//! The agent's side of measuring what ranks use: one meter, a process of its own (`crate::helpers::meter`), is started when a viewer first
//! asks, and ends when nobody has asked for some time. A job that nobody looks at pays nothing.

use rankrun_core::Purpose;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Poller, Ready};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::socket;
use rankrun_sys::spawn::Command;
use rankrun_wireup::messages::Decoder;

use crate::driver::token::Token;
use crate::helpers::control::{Control, command};
use crate::helpers::meter::{Reading, Request, Subject};
use crate::streams::null;

/// How long an answer may take. The front waits two seconds.
const ANSWER_BOUND: Duration = Duration::from_millis(1200);
/// A meter that nobody has asked for so long ends. Viewers ask once a second.
const IDLE_BOUND: Duration = Duration::from_secs(5);
/// After a failure none is started for so long: what is wrong with this node does not pass in a second.
const REST: Duration = Duration::from_secs(10);

/// What the front waits for.
#[derive(Debug)]
struct Asked {
    number: u64,
    until: Duration,
}

/// The meter of this node.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    control: Option<Control>,
    /// The process, once it is started.
    pid: Option<i32>,
    asked: Option<Asked>,
    last_asked: Duration,
    rests_until: Duration,
}

/// What is to be done for a request.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The answer comes.
    Asked,
    /// A process is to be started by this command; then the answer comes.
    Start(Box<Command>),
    /// There is none at present.
    Not,
}

impl Meter {
    /// Measure these workers.
    pub(crate) fn ask(
        &mut self,
        now: Duration,
        number: u64,
        subjects: Vec<Subject>,
        limits: Limits,
        poller: &Poller,
    ) -> Begun {
        self.last_asked = now;
        // The front has given up an earlier one.
        self.asked = None;
        if now < self.rests_until {
            return Begun::Not;
        }
        let request = Request { number, subjects };
        let begun = match &mut self.control {
            Some(control) => control.send([&request]).map(|()| None),
            None => self.begin(&request, limits, poller).map(Some),
        };
        match begun {
            Ok(command) => {
                self.asked = Some(Asked { number, until: now + ANSWER_BOUND });
                command.map_or(Begun::Asked, |command| Begun::Start(Box::new(command)))
            }
            Err(_) => {
                self.fail(now);
                Begun::Not
            }
        }
    }

    fn begin(&mut self, request: &Request, limits: Limits, poller: &Poller) -> io::Result<Command> {
        let (ours, theirs) = socket::pair()?;
        let stdio = [theirs, null()?, null()?];
        let conn = Conn::of_socket(&poller.registry(), Token::Meter.encode(), ours)?;
        let mut control = Control::new(conn, Decoder::default());
        control.send([request])?;
        self.control = Some(control);
        // Where the vendor's program for GPUs is looked for.
        let path = std::env::var_os("PATH").and_then(|path| {
            let bytes = [b"PATH=".to_vec(), path.into_vec()].concat();
            CString::new(bytes).ok()
        });
        Ok(command(Purpose::Meter, stdio, path.into_iter().collect(), None, limits))
    }

    /// It was started. Returns whether it is wanted still.
    pub(crate) fn started(&mut self, pid: i32) -> bool {
        let is_wanted = self.control.is_some() && self.pid.is_none();
        if is_wanted {
            self.pid = Some(pid);
        }
        is_wanted
    }

    /// Whether a process is there, or is being started.
    pub(crate) fn is_there(&self) -> bool {
        self.control.is_some()
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// It could not be started, has ended, or is late. Returns the request that has no answer.
    pub(crate) fn fail(&mut self, now: Duration) -> Option<u64> {
        self.rests_until = now + REST;
        self.end()
    }

    /// It is not needed any more: it ends with its connection. Returns the request that has no answer.
    pub(crate) fn end(&mut self) -> Option<u64> {
        (self.control, self.pid) = (None, None);
        self.asked.take().map(|asked| asked.number)
    }

    /// Its connection is ready. Returns the answer, if it is there, or the error after which it is of no use.
    pub(crate) fn ready(&mut self, event: Ready) -> io::Result<Option<Reading>> {
        let Some(control) = &mut self.control else { return Ok(None) };
        if event.writable {
            control.flush()?;
        }
        if !event.readable {
            return Ok(None);
        }
        loop {
            match control.read()? {
                Incoming::Bytes(_) => {}
                Incoming::Nothing => break,
                Incoming::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let mut answer = None;
        while let Some(reading) = control.next_message::<Reading>().map_err(io::Error::other)? {
            // An answer that comes too late is for nobody.
            if self.asked.take_if(|asked| asked.number == reading.number).is_some() {
                answer = Some(reading);
            }
        }
        Ok(answer)
    }

    /// When [`Meter::is_late`] or [`Meter::is_idle`] may hold.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.control.as_ref()?;
        Some(self.asked.as_ref().map_or(self.last_asked + IDLE_BOUND, |asked| asked.until))
    }

    /// Whether an answer is missing.
    pub(crate) fn is_late(&self, now: Duration) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.until <= now)
    }

    /// Whether nobody asks any more.
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        self.control.is_some() && self.asked.is_none() && self.last_asked + IDLE_BOUND <= now
    }
}
