//! `rankrun attach`: the output of a job on this terminal, and `rankrun detach` (docs/detach.md).

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::ExitCode;
use rankrun_core::control::{Answer, Request};
use rankrun_core::report::OutputFate;
use rankrun_output::Left;
use rankrun_sys::poll::wait_for;
use rankrun_sys::process;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::terminal;
use rustix::event::{PollFd, PollFlags};

use crate::commands::jobs::{self, ANSWER_BOUND, Connection, Found, Silence};
use crate::commands::keys::Keys;
use crate::commands::report::Reports;
use crate::commands::typing::Typing;
use crate::commands::viewer::{From, Shown, Step, Viewer};
use crate::invocation::Watched;
use crate::message::{self, Problem};

/// How often to look for more output, first and at most.
const LOOK: Duration = Duration::from_millis(20);
const MOST_LOOK: Duration = Duration::from_millis(200);
/// How long who leaves waits for a terminal or a pipe that takes nothing. What it does not take then, the next one who looks sees.
const LEAVE_BOUND: Duration = Duration::from_millis(500);

/// A job whose output is asked for.
pub(crate) enum Job {
    Running {
        found: Found,
        connection: Connection,
        /// The directory of the transcript.
        transcript: PathBuf,
        /// Where in it the output begins that nobody has seen.
        from: u64,
        is_detached: bool,
    },
    Ended {
        job: String,
        transcript: PathBuf,
        code: ExitCode,
        summary: String,
        output: OutputFate,
    },
    /// A job whose front was killed: it has left its output, and no report.
    Lost {
        job: String,
        transcript: PathBuf,
    },
}

impl Job {
    /// Finds a job, which runs, or has left its report.
    pub(crate) fn find(command: &str, word: &str, env: &[(OsString, OsString)]) -> Result<Job, Problem> {
        let problem = match jobs::find(command, word) {
            Ok(found) => match begin(command, &found) {
                Ok((connection, answer)) => return Job::running(&found, connection, answer),
                Err(silence) if silence.is_of_an_end() => jobs::explain(command, &found, silence),
                Err(silence) => return Err(jobs::explain(command, &found, silence)),
            },
            Err(problem) => problem,
        };
        let reports = Reports::of_user(env.iter().cloned());
        let Ok((directory, report)) = reports.ended(Path::new(word)) else {
            return match reports.without_report(Path::new(word)) {
                Some((job, directory)) => Ok(Job::Lost { job, transcript: directory.join(rankrun_front::TRANSCRIPT) }),
                None => Err(problem),
            };
        };
        let (job, transcript) = (report.job.0, directory.join(rankrun_front::TRANSCRIPT));
        match rankrun_output::TranscriptReader::head(&transcript) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Problem::usage(format!(
                "no output of job {job} is kept: nobody looked at it, and it had its output on its terminal"
            ))
            .hint(format!("\"rankrun report {job}\" prints its report; --log-dir keeps the output"))
            .code(ExitCode::FAILURE)),
            _ => {
                let (output, code, summary) = (report.left.output, report.exit_code, report.summary);
                Ok(Job::Ended { job, transcript, code, summary, output })
            }
        }
    }

    fn running(found: &Found, connection: Connection, answer: Answer) -> Result<Job, Problem> {
        match answer {
            Answer::Attached { transcript, from, is_detached } => {
                Ok(Job::Running { found: found.clone(), connection, transcript: transcript.into(), from, is_detached })
            }
            Answer::Refused { error, hint } => Err(jobs::refused("attach to", &found.job, &error, hint)),
            other => Err(jobs::unexpected(&found.job, &other)),
        }
    }
}

/// How a look at a running job has ended.
enum End {
    /// The job is over.
    Over(ExitCode),
    /// The user has left it.
    Left,
    /// A signal asked us to end.
    Signal(i32),
}

/// Shows the output of a job.
pub(crate) fn run(watched: &Watched, env: Vec<(OsString, OsString)>) -> Result<ExitCode, Problem> {
    let lines = watched.lines();
    match Job::find("attach", &watched.job, &env)? {
        Job::Ended { job, transcript, code, summary, output } => {
            let from = match (watched.tail, Left::read(&transcript)) {
                (None, Some(left)) => From::Left(left),
                _ => From::Start,
            };
            print(&transcript, Shown { from, ranks: watched.ranks.clone(), lines }, env)?;
            say_if_lost(&job, output);
            if watched.stdin {
                message::say("what is given now, nobody reads");
            }
            message::say(&format!("job {job} is over, exit code {}: {summary}", code.0));
            Ok(code)
        }
        Job::Lost { job, transcript } => {
            let from = match (watched.tail, Left::read(&transcript)) {
                (None, Some(left)) => From::Left(left),
                _ => From::Start,
            };
            print(&transcript, Shown { from, ranks: watched.ranks.clone(), lines }, env)?;
            Err(jobs::lost(&job))
        }
        Job::Running { found, connection, transcript, from, is_detached } => {
            let from = match (watched.tail, Left::read(&transcript).filter(|_| is_detached)) {
                (Some(_), _) => From::Start,
                (None, Some(left)) => From::Left(left),
                (None, None) => From::At(from),
            };
            let viewer = Viewer::open(&transcript, Shown { from, ranks: watched.ranks.clone(), lines }, env)?;
            let typing = watched.stdin.then(|| Typing::begin(&found)).transpose()?;
            let keys = Keys::open(watched.stdin);
            let greets_late = lines.is_some();
            Watch { typing, keys, greets_late, ..Watch::new(found, connection, viewer)? }.run()
        }
    }
}

/// Says so, if what was printed of a job is not all of its output.
pub(crate) fn say_if_lost(job: &str, output: OutputFate) {
    if output == OutputFate::Lost {
        message::say(lost_output(job).trim_start_matches("rankrun: "));
    }
}

/// That what is shown of a job is not all of its output.
fn lost_output(job: &str) -> String {
    format!("rankrun: some output of job {job} could not be written, and is lost: see \"rankrun report {job}\"")
}

/// Prints all that is there.
pub(crate) fn print(transcript: &Path, shown: Shown, env: Vec<(OsString, OsString)>) -> Result<(), Problem> {
    let mut viewer = Viewer::open(transcript, shown, env)?;
    loop {
        let step = viewer.read()?;
        if step == Step::CaughtUp {
            viewer.finish();
        }
        if !viewer.write(&[], None)? || step == Step::CaughtUp {
            return Ok(());
        }
    }
}

/// Prints all that is there, and what follows until the job is over.
pub(crate) fn follow(
    found: Found,
    connection: Connection,
    transcript: &Path,
    shown: Shown,
    env: Vec<(OsString, OsString)>,
) -> Result<(), Problem> {
    let viewer = Viewer::open(transcript, shown, env)?;
    let mut watch = Watch { leaves_mark: false, ..Watch::new(found, connection, viewer)? };
    if let End::Signal(number) = watch.show()? {
        signal::die_of(number);
    }
    Ok(())
}

/// Somebody looks at a running job.
pub(crate) struct Watch {
    found: Found,
    connection: Connection,
    viewer: Viewer,
    signals: SignalFd,
    keys: Option<Keys>,
    /// What is typed, if that is for the ranks.
    typing: Option<Typing>,
    /// The end of the job, once it is known: its exit code.
    over: Option<ExitCode>,
    /// Not all of its output could be written: what is shown is a part.
    has_lost_output: bool,
    /// The next one who looks begins where this one leaves.
    leaves_mark: bool,
    /// What the keys do is said when all that is there already is shown: a part of that is left out.
    greets_late: bool,
    /// The output is given when somebody asks what ^C means.
    is_asking: bool,
}

impl Watch {
    pub(crate) fn new(found: Found, connection: Connection, viewer: Viewer) -> Result<Watch, Problem> {
        let wanted = [
            signal::SIGINT,
            signal::SIGTERM,
            signal::SIGHUP,
            signal::SIGQUIT,
            signal::SIGTSTP,
            signal::SIGCONT,
            signal::SIGWINCH,
        ];
        let cannot = |error: std::io::Error| {
            Problem::internal(format!("cannot receive signals: {}", rankrun_sys::reason(&error)))
        };
        let signals = SignalFd::new(&wanted).map_err(cannot)?;
        Ok(Watch {
            found,
            connection,
            viewer,
            signals,
            keys: None,
            typing: None,
            leaves_mark: true,
            over: None,
            has_lost_output: false,
            greets_late: false,
            is_asking: false,
        })
    }

    /// Shows the output until the job is over, or the user leaves.
    fn run(mut self) -> Result<ExitCode, Problem> {
        if !self.greets_late {
            self.greet();
        }
        let ended = self.show();
        self.keys = None;
        if let Some(text) = self.typing.as_ref().and_then(Typing::rest) {
            self.viewer.notice(&text);
            self.viewer.write(&[], Some(LEAVE_BOUND))?;
        }
        match ended? {
            End::Over(code) => Ok(code),
            End::Left => {
                let job = &self.found.job;
                // Not by way of the message, which would wait for a terminal that takes nothing.
                self.viewer.notice(&format!("rankrun: job {job} goes on: \"rankrun attach {job}\" shows it again"));
                self.viewer.withdraw();
                self.viewer.write(&[], Some(LEAVE_BOUND))?;
                Ok(ExitCode::SUCCESS)
            }
            End::Signal(number) => {
                signal::die_of(number);
                Ok(ExitCode::signal(number))
            }
        }
    }

    /// Says what the keys do.
    fn greet(&mut self) {
        if self.keys.is_some() {
            let job = &self.found.job;
            let types = if self.typing.is_some() { "its ranks read what you type; " } else { "" };
            self.viewer.notice(&format!("rankrun: this is job {job}: {types}~. leaves it, ^C asks whether to stop it"));
        }
    }

    fn show(&mut self) -> Result<End, Problem> {
        let mut look = LOOK;
        loop {
            while let Some((number, _)) = self.signals.next() {
                if let Some(end) = self.signal(number)? {
                    return self.leave(end);
                }
            }
            if let Some(end) = self.read_keys()? {
                return self.leave(end);
            }
            self.hear()?;
            self.type_on()?;
            let is_over = self.over.is_some() && self.viewer.is_over();
            let step = if self.is_asking { Step::CaughtUp } else { self.viewer.read()? };
            match step {
                Step::CaughtUp if !self.is_asking && is_over => {
                    self.viewer.finish();
                    if std::mem::take(&mut self.has_lost_output) {
                        self.viewer.notice(&lost_output(&self.found.job));
                    }
                    if !self.write()? {
                        return self.leave(End::Signal(signal::SIGPIPE));
                    }
                    if let Some(code) = self.over.filter(|_| self.viewer.is_written()) {
                        return Ok(End::Over(code));
                    }
                }
                Step::CaughtUp => {
                    if !self.is_asking && std::mem::take(&mut self.greets_late) {
                        self.greet();
                    }
                    self.viewer.tick();
                    if !self.viewer.is_written() {
                        look = LOOK;
                    }
                    if !self.write()? {
                        return self.leave(End::Signal(signal::SIGPIPE));
                    }
                    self.wait(look);
                    look = (look * 2).min(MOST_LOOK);
                }
                Step::More => {
                    look = LOOK;
                    if !self.write()? {
                        return self.leave(End::Signal(signal::SIGPIPE));
                    }
                }
            }
        }
    }

    /// Writes what is ready, for a moment: signals, keys and the foreground are looked at meanwhile.
    fn write(&mut self) -> Result<bool, Problem> {
        let keys = self.keys.as_ref().filter(|_| self.takes_keys()).map(AsFd::as_fd);
        let interrupts: Vec<BorrowedFd<'_>> = std::iter::once(self.signals.as_fd()).chain(keys).collect();
        self.viewer.write(&interrupts, Some(MOST_LOOK))
    }

    fn wait(&self, look: Duration) {
        let time = self.viewer.due().map_or(look, |due| due.min(look));
        let connection = self.over.is_none().then(|| self.connection.as_fd());
        let keys = self.keys.as_ref().filter(|_| self.takes_keys()).map(AsFd::as_fd);
        let typing = self.typing.as_ref().map(|typing| typing.ends(self.keys.is_none()));
        let ends = [Some(self.signals.as_fd()), connection, keys].into_iter().flatten();
        let ends = ends.chain(typing.into_iter().flatten());
        let mut ends: Vec<PollFd<'_>> = ends.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        wait_for(&mut ends, Some(time));
    }

    /// The job may have said that it is over. Then nobody is asked any more what is to become of it.
    fn hear(&mut self) -> Result<(), Problem> {
        if self.over.is_none() {
            self.hear_end()?;
            if self.over.is_some() && std::mem::take(&mut self.is_asking) {
                self.end_question();
                self.viewer.notice("rankrun: the job has ended");
            }
        }
        Ok(())
    }

    fn hear_end(&mut self) -> Result<(), Problem> {
        let job = &self.found.job;
        match self.connection.next_answer() {
            Ok(None) => {}
            Ok(Some(Answer::Over { exit_code, left, .. })) => {
                self.end(ExitCode(exit_code), left.map(|left| left.output));
            }
            Ok(Some(Answer::Refused { error, hint })) => return Err(jobs::refused("attach to", job, &error, hint)),
            Ok(Some(other)) => return Err(jobs::unexpected(job, &other)),
            Err(Silence::Ended) => return self.find_again(),
            Err(silence) => {
                return Err(Problem::internal(format!("cannot hear job {job}: {silence:?}")));
            }
        }
        Ok(())
    }

    /// The front has gone without a word. Another one may take its place, or have done so, and be gone too.
    fn find_again(&mut self) -> Result<(), Problem> {
        let answer = match self.found.has_heir() {
            true => begin("attach", &self.found),
            false => Err(Silence::NoFront),
        };
        let job = &self.found.job;
        match answer {
            Err(silence) if self.found.has_heir() => return Err(jobs::explain("attach", &self.found, silence)),
            // What it writes is in the same transcript.
            Ok((connection, Answer::Attached { .. })) => {
                self.connection = connection;
                self.viewer
                    .notice(&format!("rankrun: the front of job {job} was lost, and another one goes on with it"));
            }
            Ok((_, Answer::Over { exit_code, left, .. })) => {
                self.end(ExitCode(exit_code), left.map(|left| left.output));
            }
            Ok((_, other)) => return Err(jobs::unexpected(job, &other)),
            Err(silence) if silence.is_of_an_end() => {
                let ended = Reports::of_user(std::env::vars_os()).ended(Path::new(job));
                let Ok((_, report)) = ended else {
                    if self.found.has_deed() {
                        return Err(jobs::explain("attach", &self.found, silence));
                    }
                    return Err(Problem::internal(format!("the front of job {job} was killed"))
                        .hint("its agent and its guard end what is left; \"rankrun status\" says when they are gone"));
                };
                self.end(report.exit_code, Some(report.left.output));
            }
            Err(silence) => return Err(jobs::explain("attach", &self.found, silence)),
        }
        Ok(())
    }

    fn end(&mut self, code: ExitCode, output: Option<OutputFate>) {
        self.over = Some(code);
        self.has_lost_output = output == Some(OutputFate::Lost);
    }

    fn leave(&mut self, end: End) -> Result<End, Problem> {
        self.viewer.withdraw();
        self.viewer.write(&[], Some(LEAVE_BOUND))?;
        if self.leaves_mark {
            self.viewer.leave();
        }
        Ok(end)
    }

    fn signal(&mut self, number: i32) -> Result<Option<End>, Problem> {
        match number {
            signal::SIGINT if self.keys.is_some() && !self.is_asking && self.over.is_none() => self.ask()?,
            signal::SIGINT if self.is_asking => return Ok(Some(End::Left)),
            signal::SIGQUIT if self.keys.is_some() => {
                let job = &self.found.job;
                self.viewer.notice(&format!("rankrun: \"rankrun stacks {job}\" shows where its ranks are"));
            }
            signal::SIGWINCH => self.viewer.resize(),
            signal::SIGCONT => {
                if let Some(keys) = &mut self.keys {
                    keys.enter_again();
                }
                self.viewer.resize();
            }
            signal::SIGTSTP => {
                self.viewer.withdraw();
                self.viewer.write(&[], Some(LEAVE_BOUND))?;
                if let Some(keys) = &mut self.keys {
                    keys.leave();
                }
                terminal::stop_by(signal::SIGTSTP, true);
                if let Some(keys) = &mut self.keys {
                    keys.enter();
                }
            }
            number => return Ok(Some(End::Signal(number))),
        }
        Ok(None)
    }

    /// ^C: what is meant?
    fn ask(&mut self) -> Result<(), Problem> {
        self.viewer.withdraw();
        let job = &self.found.job;
        self.viewer.notice(&format!("rankrun: stop job {job} (s), leave it (l), or go on (any other key)?"));
        self.write()?;
        self.is_asking = true;
        if let Some(keys) = &mut self.keys {
            keys.ask();
        }
        Ok(())
    }

    fn read_keys(&mut self) -> Result<Option<End>, Problem> {
        let takes_keys = self.takes_keys();
        let Some(keys) = &mut self.keys else { return Ok(None) };
        // A shell brings a job that runs in the background to the foreground without a signal.
        keys.enter();
        let read = if takes_keys { keys.read() } else { Vec::new() };
        let end = keys.take_end();
        for key in read {
            if std::mem::take(&mut self.is_asking) {
                self.end_question();
                match key {
                    b's' | b'S' => self.stop()?,
                    b'l' | b'L' => return Ok(Some(End::Left)),
                    _ => self.viewer.notice("rankrun: going on"),
                }
                continue;
            }
            match self.keys.as_mut().map(|keys| keys.typed(key)) {
                Some(None) => return Ok(Some(End::Left)),
                Some(Some(typed)) => self.typing.iter_mut().for_each(|typing| typing.add(&typed)),
                None => {}
            }
        }
        if let (Some(held), Some(typing)) = (end, &mut self.typing) {
            typing.add(&held);
            typing.end();
        }
        Ok(None)
    }

    /// Whether keys are read: who waits for them otherwise finds them again and again.
    fn takes_keys(&self) -> bool {
        let has_room = self.is_asking || self.typing.as_ref().is_none_or(Typing::has_room);
        has_room && self.keys.as_ref().is_some_and(Keys::are_read)
    }

    fn end_question(&mut self) {
        if let Some(keys) = &mut self.keys {
            keys.end_question();
        }
    }

    /// Gives the ranks what was typed, as they read it.
    fn type_on(&mut self) -> Result<(), Problem> {
        if let Some(typing) = self.typing.as_mut().filter(|_| self.over.is_none())
            && let Some(refused) = typing.go_on(self.keys.is_none())?
        {
            self.viewer.notice(&refused);
        }
        Ok(())
    }

    /// Ends the job, and shows how it ends.
    fn stop(&mut self) -> Result<(), Problem> {
        match crate::stop::run(&self.found.job, None, false) {
            Ok((text, _)) => self.viewer.notice(&format!("rankrun: {}", text.trim_end())),
            // It may have ended in this moment.
            Err(problem) => self.viewer.notice(&format!("rankrun: {}", problem.text)),
        }
        Ok(())
    }
}

/// Asks a job where its output is. Who attaches waits for another front.
fn begin(command: &str, found: &Found) -> Result<(Connection, Answer), Silence> {
    let begin = |found: &Found| found.begin(Request::Attach, ANSWER_BOUND);
    if command == "attach" { found.patiently(begin) } else { begin(found) }
}

/// Lets a job go on without its terminal. Returns the text for stdout.
pub(crate) fn detach(word: &str) -> Result<String, Problem> {
    let found = jobs::find("detach", word)?;
    let explain = |silence| jobs::explain("detach", &found, silence);
    let job = &found.job;
    let mut connection = match found.connect(ANSWER_BOUND) {
        // By ^Z: it goes on in the background.
        Err(Silence::Paused { front }) => {
            let cannot = |error: std::io::Error| {
                Problem::internal(format!("cannot continue process {front}: {}", rankrun_sys::reason(&error)))
            };
            process::ProcessRef::open(front)
                .ok_or_else(|| explain(Silence::NoFront))?
                .signal(signal::SIGCONT)
                .map_err(cannot)?;
            found.connect(ANSWER_BOUND).map_err(explain)?
        }
        connected => connected.map_err(explain)?,
    };
    connection.send(&[Request::Detach]).map_err(explain)?;
    match connection.receive(Some(ANSWER_BOUND)).map_err(explain)? {
        Answer::Detached { already: false } => Ok(format!("job {job} goes on without its terminal\n")),
        Answer::Detached { already: true } => Ok(format!("job {job} had no terminal already\n")),
        Answer::Refused { error, hint } => Err(jobs::refused("detach", job, &error, hint)),
        other => Err(jobs::unexpected(job, &other)),
    }
}
