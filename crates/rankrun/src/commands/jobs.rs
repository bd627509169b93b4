//! The running jobs of this user, and how to ask them: for `rankrun status`, `stop` and `restart`.
//!
//! A job is found by its directory, in which its front listens (docs/control.md).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_agent::tidy;
use rankrun_core::ExitCode;
use rankrun_core::control::{Answer, Line, Request, SOCKET, VERSION, Version};
use rankrun_sys::{proc, reason, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::commands::report::Reports;
use crate::message::Problem;

/// How long a front may take to answer. It answers in its next turn, and waits 2 s for its agents before.
pub(crate) const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// The longest answer that is read: one with a million ranks.
const MAX_ANSWER: usize = 1 << 30;
/// Bytes read at a time.
const READ: usize = 1 << 16;
/// How long a front may take from the job's directory to its socket there.
const BEGINS: Duration = Duration::from_secs(1);
/// How often a connection is tried again meanwhile, and where the backlog of the front is full.
const RETRY: Duration = Duration::from_millis(20);
/// How often a wait for an answer checks whether the front has been stopped meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// The directory of a job, which may be running.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) job: String,
    directory: PathBuf,
}

/// Why a job has not answered.
#[derive(Debug)]
pub(crate) enum Silence {
    /// Nobody listens: its front is gone, or has not come so far.
    NoFront,
    /// The front is stopped by ^Z, SIGTSTP or SIGSTOP, and reads nothing until it is continued.
    Paused {
        front: i32,
    },
    /// It did not answer in time. The front, if it is known.
    TimedOut {
        front: Option<i32>,
    },
    /// The connection ended before the answer.
    Ended,
    /// The answer is not understood.
    Nonsense(String),
    Io(io::Error),
}

impl Silence {
    /// Whether the job may be over by now.
    pub(crate) fn is_of_an_end(&self) -> bool {
        matches!(self, Silence::NoFront | Silence::Ended)
    }
}

/// The directories of the jobs of this user.
pub(crate) fn directories() -> Vec<Found> {
    let named_like_a_job = |name: &str| name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut found: Vec<Found> = Vec::new();
    for base in tidy::bases().into_iter().filter(|base| tidy::check(base).is_ok()) {
        // One that cannot be read has no job of ours.
        for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
            found.push(Found { job: entry.file_name().to_string_lossy().into_owned(), directory: entry.path() });
        }
    }
    found.extend(tidy::lone_directories().into_iter().map(|(job, directory)| Found { job, directory }));
    found.retain(|found| named_like_a_job(&found.job));
    found.sort_unstable_by(|one, other| one.job.cmp(&other.job));
    found
}

impl Found {
    /// Whether a part of the job is alive: its agent holds a lock on the directory.
    pub(crate) fn is_held(&self) -> bool {
        std::fs::File::open(&self.directory)
            .is_ok_and(|directory| rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err())
    }

    /// Whether another front can take the place of one that is gone: a process that waits for that holds the directory, or the ranks do.
    pub(crate) fn has_heir(&self) -> bool {
        self.has_deed() && self.is_held()
    }

    /// Whether its front has left what another one can go on with.
    pub(crate) fn has_deed(&self) -> bool {
        self.directory.join(rankrun_front::DEED).exists()
    }

    /// Why no other front has taken the place of the one that is gone, if one has tried.
    fn why_not_followed(&self) -> Option<String> {
        let why = std::fs::read_to_string(self.directory.join(rankrun_front::FAILURE)).ok()?;
        Some(format!("another front could not take its place: {why}"))
    }

    /// Whether its directory was made a moment ago: then it may not be locked yet, and its front not have come so far as to listen.
    fn has_just_begun(&self) -> bool {
        let made = std::fs::metadata(&self.directory).and_then(|meta| meta.created().or_else(|_| meta.modified()));
        made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < BEGINS))
    }

    pub(crate) fn is_there(&self) -> bool {
        self.directory.exists()
    }

    /// Connects to the front, unless the front is stopped: it would carry the requests out whenever it is continued.
    pub(crate) fn connect(&self, bound: Duration) -> Result<Connection, Silence> {
        let path = self.directory.join(SOCKET);
        let until = Instant::now() + bound;
        loop {
            match socket::try_connect(&path) {
                Ok(socket) => {
                    let connection = Connection { socket, received: Vec::new(), searched: 0 };
                    return connection.check_paused().map(|()| connection);
                }
                // The backlog of the front is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() >= until {
                        return Err(Silence::TimedOut { front: None });
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                    if Instant::now() >= until || !(self.has_just_begun() || self.has_heir()) {
                        return Err(Silence::NoFront);
                    }
                }
                Err(error) => return Err(Silence::Io(error)),
            }
            // An interrupted wait is only shorter.
            let _ = poll(&mut [], Timespec::try_from(RETRY).ok().as_ref());
        }
    }

    /// Does something with the front. Where that is gone, it waits for another one as long as the ranks do, and says so.
    pub(crate) fn patiently<T>(&self, mut act: impl FnMut(&Found) -> Result<T, Silence>) -> Result<T, Silence> {
        let mut is_told = false;
        loop {
            match act(self) {
                Err(Silence::NoFront) if self.has_heir() => {
                    if !std::mem::replace(&mut is_told, true) {
                        explain("attach", self, Silence::NoFront).print();
                    }
                }
                done => return done,
            }
        }
    }

    /// Asks one thing.
    pub(crate) fn ask(&self, request: Request, bound: Duration) -> Result<Answer, Silence> {
        self.begin(request, bound).map(|(_, answer)| answer)
    }

    /// Asks something that more answers follow.
    pub(crate) fn begin(&self, request: Request, bound: Duration) -> Result<(Connection, Answer), Silence> {
        let until = Instant::now() + bound;
        loop {
            let mut connection = self.connect(until.saturating_duration_since(Instant::now()))?;
            let rest = until.saturating_duration_since(Instant::now());
            let answer = connection.send(std::slice::from_ref(&request)).and_then(|()| connection.receive(Some(rest)));
            match answer {
                // The front was killed meanwhile. The one that takes its place may not know of the request, or have done it.
                Err(Silence::Ended) if request.may_come_twice() && self.has_heir() => {}
                answer => return answer.map(|answer| (connection, answer)),
            }
        }
    }
}

/// A connection to a front.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    received: Vec<u8>,
    /// So much of it has no end of a line.
    searched: usize,
}

impl Connection {
    /// The process of the front.
    pub(crate) fn front(&self) -> Option<i32> {
        socket::peer(&self.socket).ok().map(|(pid, _)| pid)
    }

    /// A handle of the front's process, to wait for its end.
    pub(crate) fn hold_front(&self) -> Option<OwnedFd> {
        pidfd_open(Pid::from_raw(self.front()?)?, PidfdFlags::empty()).ok()
    }

    /// Whether the front is stopped, as an error.
    pub(crate) fn check_paused(&self) -> Result<(), Silence> {
        match self.front() {
            Some(front) if proc::process(front).is_some_and(|process| process.state == 'T') => {
                Err(Silence::Paused { front })
            }
            _ => Ok(()),
        }
    }

    /// Sends requests. They are answered one after the other.
    pub(crate) fn send(&mut self, requests: &[Request]) -> Result<(), Silence> {
        let mut bytes = Vec::new();
        for request in requests {
            serde_json::to_writer(&mut bytes, &Line::new(request)).map_err(|error| Silence::Io(error.into()))?;
            bytes.push(b'\n');
        }
        // The socket has room for far more than one request of the greatest length, and each is sent when the last one is answered.
        match rustix::io::write(&self.socket, &bytes) {
            // A front that refuses the connection has said so, and closed it: that is received next, or the end.
            Ok(_) | Err(Errno::PIPE) => Ok(()),
            Err(Errno::CONNRESET) => Err(Silence::Ended),
            Err(error) => Err(Silence::Io(error.into())),
        }
    }

    /// Waits for an answer.
    pub(crate) fn receive(&mut self, bound: Option<Duration>) -> Result<Answer, Silence> {
        let until = bound.map(|bound| Instant::now() + bound);
        loop {
            if let Some(answer) = self.first()? {
                return Ok(answer);
            }
            if !self.fill(until)? {
                return Err(Silence::Ended);
            }
        }
    }

    /// The next answer, if all of it is there: for those that wait for other things too.
    pub(crate) fn next_answer(&mut self) -> Result<Option<Answer>, Silence> {
        loop {
            if let Some(answer) = self.first()? {
                return Ok(Some(answer));
            }
            match self.read()? {
                Some(true) => {}
                Some(false) => return Err(Silence::Ended),
                None => return Ok(None),
            }
        }
    }

    /// Waits for an answer, and calls `ready` when something else can be read meanwhile.
    pub(crate) fn receive_beside(
        &mut self,
        bound: Option<Duration>,
        other: &impl AsFd,
        mut ready: impl FnMut(),
    ) -> Result<Answer, Silence> {
        let until = bound.map(|bound| Instant::now() + bound);
        loop {
            if let Some(answer) = self.next_answer()? {
                return Ok(answer);
            }
            let rest = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
            if rest.is_zero() {
                return Err(Silence::TimedOut { front: self.front() });
            }
            let mut ends = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
            match poll(&mut ends, Timespec::try_from(rest).ok().as_ref()) {
                Ok(0) => self.check_paused()?,
                Ok(_) if !ends[1].revents().is_empty() => ready(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Silence::Io(error.into())),
            }
        }
    }

    /// The first answer that was received.
    fn first(&mut self) -> Result<Option<Answer>, Silence> {
        if let Some(end) = self.received[self.searched..].iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.received.drain(..=self.searched + end).collect();
            self.searched = 0;
            return parse(&line).map(Some);
        }
        self.searched = self.received.len();
        match self.searched > MAX_ANSWER {
            true => Err(Silence::Nonsense("the answer has no end".to_owned())),
            false => Ok(None),
        }
    }

    /// Reads once. Returns whether there may be more.
    fn fill(&mut self, until: Option<Instant>) -> Result<bool, Silence> {
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        if rest.is_some_and(|rest| rest.is_zero()) {
            return Err(Silence::TimedOut { front: self.front() });
        }
        let timeout = rest.and_then(|rest| Timespec::try_from(rest.min(LOOK)).ok());
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref()) {
            // The next call finds whether the time is over.
            Ok(0) => return self.check_paused().map(|()| true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Silence::Io(error.into())),
        }
        Ok(self.read()?.unwrap_or(true))
    }

    /// Reads what is there. Returns whether more may come; `None` if nothing is there now.
    fn read(&mut self) -> Result<Option<bool>, Silence> {
        let mut room = [0; READ];
        match rustix::io::read(&self.socket, &mut room) {
            Ok(0) | Err(Errno::CONNRESET) => Ok(Some(false)),
            Ok(count) => {
                self.received.extend_from_slice(&room[..count]);
                Ok(Some(true))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(Silence::Io(error.into())),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn parse(line: &[u8]) -> Result<Answer, Silence> {
    let nonsense = |error: serde_json::Error| Silence::Nonsense(error.to_string());
    let Version { rankrun } = serde_json::from_slice(line).map_err(nonsense)?;
    // A job of another version says in its own words that it does not understand this one.
    match serde_json::from_slice::<Line<Answer>>(line) {
        Ok(line) => Ok(line.message),
        Err(_) if rankrun != VERSION => Err(Silence::Nonsense(format!("it has version {rankrun} of the protocol"))),
        Err(error) => Err(nonsense(error)),
    }
}

/// The job that a word names: its id, or the beginning of it that no other running job has.
pub(crate) fn find(command: &str, word: &str) -> Result<Found, Problem> {
    let all = directories();
    match choose(word, &all) {
        Ok(found) => Ok(found),
        // Jobs that are dead, or that others own, are not looked at before they matter.
        Err(Choice::None) => Err(no_such_job(command, word, &all)),
        Err(Choice::Several(jobs)) => {
            let held: Vec<Found> = jobs.into_iter().filter(Found::is_held).collect();
            match held.as_slice() {
                [one] => Ok(one.clone()),
                [] => Err(no_such_job(command, word, &all)),
                several => {
                    let jobs: Vec<&str> = several.iter().map(|found| found.job.as_str()).collect();
                    Err(Problem::usage(format!("\"{word}\" may be any of the jobs {}", jobs.join(", "))))
                }
            }
        }
    }
}

enum Choice {
    None,
    Several(Vec<Found>),
}

fn choose(word: &str, all: &[Found]) -> Result<Found, Choice> {
    if let Some(exact) = all.iter().find(|found| found.job == word) {
        return Ok(exact.clone());
    }
    let begins = |found: &&Found| !word.is_empty() && found.job.starts_with(word);
    let found: Vec<Found> = all.iter().filter(begins).cloned().collect();
    match found.as_slice() {
        [] => Err(Choice::None),
        [one] => Ok(one.clone()),
        _ => Err(Choice::Several(found)),
    }
}

/// A job that has left no report: what is kept of its output can be read.
pub(crate) fn lost(job: &str) -> Problem {
    let found = directories().into_iter().find(|found| found.job == job);
    let hint = match found.is_some_and(|found| found.has_deed()) {
        true => format!("\"rankrun resume {job}\" finds out how its ranks have ended, and writes its report"),
        false => format!(
            "\"rankrun logs {job}\" prints what is kept of its output; with --detach and --on-front-lost wait:TIME another front goes on"
        ),
    };
    Problem::internal(format!("job {job} left no report: its front was killed")).hint(hint)
}

/// No job of this user has this name: says whose it is, or which are running.
fn no_such_job(command: &str, word: &str, all: &[Found]) -> Problem {
    if let Some((pid, owner)) = guard_of_another(word) {
        let owner = user_name(owner);
        let problem = Problem::usage(format!("job {word} is not yours: it belongs to user {owner}"));
        return problem.hint(match rustix::process::geteuid().is_root() {
            true => format!("sudo -u {owner} rankrun {command} {word}"),
            false => format!("ask that user, or root (its guard is process {pid})"),
        });
    }
    let reports = Reports::of_user(std::env::vars_os());
    let ended = match word.is_empty() {
        true => Vec::new(),
        false => reports.begin_so(word),
    };
    if let [job] = ended.as_slice() {
        return Problem::usage(format!("job {job} is not running: it has ended"))
            .hint(format!("\"rankrun report {job}\" prints its report"));
    }
    let is_named = !word.is_empty() && !word.contains('/');
    if let Some((job, _)) = is_named.then(|| reports.without_report(Path::new(word))).flatten() {
        return lost(&job);
    }
    let running: Vec<&str> = all.iter().filter(|found| found.is_held()).map(|found| found.job.as_str()).collect();
    let problem = Problem::usage(format!("no job \"{word}\" of yours is running on this machine"));
    match running.as_slice() {
        [] => problem.hint("none is running; \"rankrun report\" prints the report of a job that has ended"),
        running => problem.hint(format!("running: {}; \"rankrun status\" lists them", running.join(", "))),
    }
}

/// The guard of a job of another user, with its owner: guards carry the job in their name.
fn guard_of_another(job: &str) -> Option<(i32, u32)> {
    if job.len() != 8 {
        return None;
    }
    let wanted = format!("rr-guard {job}");
    let own = rustix::process::geteuid().as_raw();
    let guards = proc::all().into_iter().filter(|process| process.name == "rr-guard");
    let mut owned = guards.filter_map(|process| Some((process.pid, proc::owner(process.pid)?)));
    owned.find(|(pid, owner)| {
        let title = proc::arguments(*pid, 64);
        *owner != own && title.first().is_some_and(|title| title.starts_with(wanted.as_bytes()))
    })
}

/// The name of a user, if the machine's own list has it.
fn user_name(user: u32) -> String {
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = user.to_string();
    let name = list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    });
    name.unwrap_or(number)
}

/// The problem that a job has not answered.
pub(crate) fn explain(command: &str, found: &Found, silence: Silence) -> Problem {
    let job = &found.job;
    match silence {
        Silence::NoFront if !found.is_there() => no_such_job(command, job, &directories()),
        Silence::NoFront if found.has_heir() => {
            Problem::internal(format!("nobody answers for job {job}: its front was killed, and its ranks run on"))
                .hint_if(found.why_not_followed())
                .hint(format!("\"rankrun resume {job}\" goes on with it; else its ranks end (--on-front-lost)"))
        }
        Silence::NoFront | Silence::Ended if !found.is_held() && found.has_deed() => {
            Problem::internal(format!("the front of job {job} was killed, and no other one goes on with it"))
                .hint_if(found.why_not_followed())
                .hint(format!("\"rankrun resume {job}\" finds out how its ranks have ended, and writes its report"))
                .hint("\"rankrun clean\" removes what it left")
        }
        Silence::NoFront if found.is_held() => {
            Problem::internal(format!("nobody answers for job {job}: its front is gone, or has just begun"))
                .hint("without a front the agent ends the ranks within the grace; try again in a moment")
        }
        Silence::NoFront => Problem::usage(format!("job {job} is not running: it crashed"))
            .hint("\"rankrun clean\" removes what it left"),
        Silence::Paused { front } => Problem::internal(format!(
            "job {job} is paused: its rankrun, process {front}, was stopped by ^Z or SIGSTOP"
        ))
        .code(ExitCode::FAILURE)
        .hint(format!("continue it with fg in its shell, or with \"kill -CONT {front}\", and repeat this command"))
        .hint(kill_front(found, front)),
        Silence::TimedOut { front } => {
            let bound = ANSWER_BOUND.as_secs();
            let problem = Problem::internal(format!("job {job} does not answer ({bound} s)")).code(ExitCode::FAILURE);
            let Some(front) = front else { return problem };
            problem
                .hint(format!("its front is process {front}: \"cat /proc/{front}/stack\" shows what it waits for"))
                .hint(kill_front(found, front))
        }
        Silence::Ended if found.has_heir() => Problem::internal(format!(
            "the front of job {job} was killed before it answered; another one takes its place"
        ))
        .hint(format!(
            "\"rankrun status {job}\" shows whether the job has done what it was asked; if not, repeat this command"
        )),
        Silence::Ended => Problem::internal(format!("job {job} closed the connection before it answered")).hint(
            "if its front has ended, its agent or its guard end what is left; \"rankrun status\" lists what is running",
        ),
        Silence::Nonsense(why) => Problem::internal(format!("the answer of job {job} is not understood: {why}"))
            .hint("use the rankrun that runs the job"),
        Silence::Io(error) => Problem::internal(format!("cannot ask job {job}: {}", reason(&error))),
    }
}

/// What becomes of a job whose front does not answer, if that is killed.
fn kill_front(found: &Found, front: i32) -> String {
    match found.has_heir() {
        true => {
            format!("\"kill -KILL {front}\" ends this front only: another one takes its place, and the job goes on")
        }
        false => format!("\"kill -KILL {front}\" ends the job: its agent ends the ranks within the grace"),
    }
}

/// A refusal of a job.
pub(crate) fn refused(what: &str, job: &str, error: &str, hint: Option<String>) -> Problem {
    Problem::internal(format!("cannot {what} job {job}: {error}")).hint_if(hint).code(ExitCode::FAILURE)
}

/// An answer that belongs to another question.
pub(crate) fn unexpected(job: &str, answer: &Answer) -> Problem {
    Problem::internal(format!("job {job} gave an answer that does not fit: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_job_that_has_just_begun_is_waited_for() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = top.path().join("7f3a91c2");
        std::fs::create_dir(&directory).expect("it is ours");
        let found = Found { job: "7f3a91c2".to_owned(), directory };
        let path = found.directory.join(SOCKET);
        let front = std::thread::spawn(move || {
            rankrun_sys::poll::pause(3 * RETRY);
            std::os::unix::net::UnixListener::bind(path).expect("it is ours")
        });
        assert!(found.connect(ANSWER_BOUND).is_ok(), "its front listens in time");
        drop(front.join().expect("it listens"));
        // It is over: its directory is gone.
        std::fs::remove_dir_all(&found.directory).expect("it is ours");
        assert!(matches!(found.connect(ANSWER_BOUND), Err(Silence::NoFront)));
    }

    #[test]
    fn a_job_is_named_by_the_beginning_of_its_id_if_that_is_unambiguous() {
        let all: Vec<Found> = ["0a1b2c3d", "0a1b9999", "7f3a91c2"]
            .map(|job| Found { job: job.to_owned(), directory: Path::new("/nowhere").join(job) })
            .into();
        let chosen = |word| match choose(word, &all) {
            Ok(found) => Some(found.job),
            Err(Choice::Several(several)) => Some(several.len().to_string()),
            Err(Choice::None) => None,
        };
        assert_eq!(chosen("7"), Some("7f3a91c2".to_owned()));
        assert_eq!(chosen("0a1b2c3d"), Some("0a1b2c3d".to_owned()));
        assert_eq!(chosen("0a1b"), Some("2".to_owned()));
        assert_eq!(chosen("0a1b9"), Some("0a1b9999".to_owned()));
        for word in ["", "x", "0a1b2c3d4"] {
            assert_eq!(chosen(word), None, "{word}");
        }
    }

    #[test]
    fn an_answer_of_another_version_is_told_from_nonsense() {
        let refused = parse(br#"{"rankrun":2,"answer":"refused","error":"version 1 is not understood","hint":null}"#);
        assert!(matches!(refused, Ok(Answer::Refused { .. })), "{refused:?}");
        let newer = parse(br#"{"rankrun":2,"answer":"song"}"#);
        assert!(matches!(&newer, Err(Silence::Nonsense(why)) if why.contains("version 2")), "{newer:?}");
        assert!(matches!(parse(b"hello\n"), Err(Silence::Nonsense(_))));
    }
}
