//! Shows the output of a job from its transcript, on our own stdout and stderr, for `rankrun attach` and `rankrun logs`
//! (docs/detach.md).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rankrun_core::{JobId, Rank, RankMap, RankSet, Stream};
use rankrun_output::{Config, Entry, Left, Mode, Names, Next, Presenter, TranscriptReader};
use rankrun_sys::poll::{pause, wait_for};
use rankrun_sys::{reason, terminal};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::choices::When;
use crate::message::{self, Problem};
use crate::plan::{self, Surroundings};

/// Bytes that are written before the signals are looked at.
const AT_ONCE: usize = 64 * 1024;
/// Bytes of one write to what may block: a pipe that says that it is ready takes so many, and a terminal most often.
const OF_TERMINAL: usize = 512;
const OF_PIPE: usize = 4096;
/// When to try again what has said that it is ready, and has taken nothing.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How long a job may take to begin its transcript.
const BEGINS: Duration = Duration::from_secs(5);
const BEGIN_STEP: Duration = Duration::from_millis(10);

/// Which part of a transcript is shown.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) from: From,
    pub(crate) ranks: Option<RankSet>,
    /// Only so many lines of what is there already.
    pub(crate) lines: Option<usize>,
}

/// Where to begin.
#[derive(Clone, Debug)]
pub(crate) enum From {
    /// With what is left of the oldest.
    Start,
    At(u64),
    /// Where the last one has left it.
    Left(Left),
}

/// The output of a job on our console.
#[derive(Debug)]
pub(crate) struct Viewer {
    directory: PathBuf,
    reader: TranscriptReader,
    presenter: Presenter,
    /// What comes before this was seen elsewhere: only which ranks there are is learnt from it, and how the lines begin.
    from: u64,
    /// What the last one has left, until all that was seen before is passed.
    left: Option<Left>,
    /// Takes what is old, and shows it to nobody: so it is known how the lines begin that are not at their end then.
    old: Option<Box<Presenter>>,
    /// The ranks that are known, and how many groups of them.
    known: Option<(RankMap, usize)>,
    /// When the job began, since the Unix epoch.
    started: Duration,
    now: Duration,
    /// How many of the lines that are there already are shown, and the last ones of them, until all have been read.
    most: Option<usize>,
    /// Bytes of old lines that are not kept: where fewer lines are there than are to be shown, that is why.
    lost: u64,
    last: VecDeque<(Stream, Vec<u8>)>,
    places: [Place; 2],
    shows_colors: bool,
}

/// What a reading has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// There is more.
    More,
    /// All that is there is shown.
    CaughtUp,
}

impl Viewer {
    /// Opens a transcript. `env` is our own environment.
    pub(crate) fn open(directory: &Path, shown: Shown, env: Vec<(OsString, OsString)>) -> Result<Viewer, Problem> {
        let begun = Instant::now();
        let head = loop {
            match TranscriptReader::head(directory) {
                // The job begins it when it is asked to.
                Err(error) if error.kind() == io::ErrorKind::NotFound && begun.elapsed() < BEGINS => {
                    pause(BEGIN_STEP);
                }
                head => break head.map_err(|error| unreadable(directory, &error))?,
            }
        };
        let around = Surroundings::gather(env, JobId(String::new()))?;
        if let Some(ranks) = &shown.ranks
            && let Some(last) = head.config.world_size.checked_sub(1)
            && ranks.count() > Some((0..=last).filter(|rank| ranks.contains(Rank(*rank))).count())
        {
            // Those that were added or spawned since have other numbers.
            message::warn(&format!("--rank: the job began with ranks 0 to {last}"));
        }
        let only = shown.ranks.unwrap_or_else(|| head.config.only.clone());
        let config = shown_here(Config { only, ..head.config }, &around);
        let shows_colors = config.color;
        let (from, left) = match shown.from {
            From::Start => (0, None),
            From::At(at) => (at, None),
            From::Left(left) => (left.at, Some(left)),
        };
        // Where it begins later, the ranks would not be known, nor how the lines begin.
        while from > 0 && begun.elapsed() < BEGINS && !TranscriptReader::has_begun(directory) {
            pause(BEGIN_STEP);
        }
        let reader =
            TranscriptReader::before(directory.to_owned(), from).map_err(|error| unreadable(directory, &error))?;
        let reader = if left.is_none() { reader.anew() } else { reader };
        let nobody = || Names::of(RankMap::single_node("", &[]));
        let plain = Config { mode: Mode::Line, status: None, ..config.clone() };
        let mut viewer = Viewer {
            directory: directory.to_owned(),
            reader,
            presenter: Presenter::new(config, nobody()),
            from,
            left,
            old: Some(Box::new(Presenter::new(plain, nobody()))),
            known: None,
            started: head.started,
            now: Duration::ZERO,
            most: shown.lines,
            lost: 0,
            last: VecDeque::new(),
            places: Stream::ALL.map(Place::of),
            shows_colors,
        };
        viewer.look_at_clock();
        Ok(viewer)
    }

    /// The time since the start of the job. It never goes back.
    fn look_at_clock(&mut self) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.now = self.now.max(wall.saturating_sub(self.started));
    }

    /// Reads some of what is there, and makes it ready to be shown.
    pub(crate) fn read(&mut self) -> Result<Step, Problem> {
        self.look_at_clock();
        let now = self.now;
        let mut step = Step::More;
        while self.ready() < AT_ONCE {
            // The file may not have come so far yet.
            let before = self.reader.position();
            let is_old = before < self.from;
            if !is_old && let Some(old) = self.old.take() {
                self.begin(*old);
            }
            match self.reader.read() {
                Ok(Next::Entry(entry)) if is_old => {
                    learn(&mut self.presenter, &mut self.known, now, &entry);
                    if let Some(old) = self.old.as_mut().filter(|_| self.left.is_none()) {
                        old.take(now, &entry);
                        Stream::ALL.into_iter().for_each(|stream| old.pending(stream).clear());
                    }
                }
                Ok(Next::Entry(Entry::Leave(left))) => {
                    // Who has read what is before has it, or sees it when its lines end.
                    if self.from >= left.at {
                        self.presenter.go_on_from(now, &left);
                        self.reader.know_lines();
                    }
                }
                Ok(Next::Entry(Entry::Rest)) => while self.presenter.finish(now) {},
                Ok(Next::Entry(Entry::Notice(text))) if !self.shows_colors => {
                    self.presenter.notice(now, &without_colors(text));
                }
                Ok(Next::Entry(entry)) => {
                    learn(&mut self.presenter, &mut self.known, now, &entry);
                    if !matches!(entry, Entry::World(_) | Entry::Group(..)) {
                        self.presenter.take(now, &entry);
                    }
                }
                Ok(Next::Lost(bytes)) => {
                    self.known = None;
                    self.old.as_deref_mut().unwrap_or(&mut self.presenter).break_lines(now);
                    let unseen = (before + bytes).saturating_sub(before.max(self.from));
                    match self.most {
                        Some(_) => self.lost += unseen,
                        None if unseen > 0 => self.say_lost(unseen),
                        None => {}
                    }
                }
                Ok(Next::Nothing) => {
                    step = Step::CaughtUp;
                    break;
                }
                Err(error) => return Err(unreadable(&self.directory, &error)),
            }
        }
        self.keep_last(step);
        Ok(step)
    }

    /// All that is old was read: begins with what the last one has left unshown, or else with the present lines.
    fn begin(&mut self, mut old: Presenter) {
        let left = self.left.take().unwrap_or_else(|| Left { unfinished: old.unfinished(), ..Left::default() });
        self.presenter.go_on_from(self.now, &left);
    }

    /// What is ready of old lines waits, the last ones only, until all old ones were read.
    fn keep_last(&mut self, step: Step) {
        let Some(most) = self.most else { return };
        for stream in Stream::ALL {
            let pending = std::mem::take(self.presenter.pending(stream));
            for line in pending.split_inclusive(|byte| *byte == b'\n') {
                match self.last.back_mut().filter(|(of, last)| *of == stream && !last.ends_with(b"\n")) {
                    Some((_, last)) => last.extend_from_slice(line),
                    None => self.last.push_back((stream, line.to_vec())),
                }
            }
        }
        self.last.drain(..self.last.len().saturating_sub(most));
        if step == Step::CaughtUp {
            self.most = None;
            let lost = std::mem::take(&mut self.lost);
            if lost > 0 && self.last.len() < most {
                self.say_lost(lost);
            }
            for (stream, line) in std::mem::take(&mut self.last) {
                self.presenter.pending(stream).extend_from_slice(&line);
            }
        }
    }

    fn say_lost(&mut self, bytes: u64) {
        let text = format!("rankrun: older output is not kept: {bytes} bytes of the transcript (--transcript-size)");
        self.presenter.notice(self.now, &text);
    }

    fn ready(&mut self) -> usize {
        Stream::ALL.iter().map(|stream| self.presenter.pending(*stream).len()).sum()
    }

    /// All that is there is shown: does what is due, such as to show an unfinished line.
    pub(crate) fn tick(&mut self) {
        self.look_at_clock();
        self.presenter.tick(self.now);
    }

    /// The time until [`Viewer::tick`] is due, if it is.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.presenter.next_deadline().map(|due| due.saturating_sub(self.now))
    }

    /// A line of ours.
    pub(crate) fn notice(&mut self, text: &str) {
        self.presenter.notice(self.now, text);
    }

    /// Removes the rows that may be redrawn.
    pub(crate) fn withdraw(&mut self) {
        self.presenter.withdraw(self.now);
    }

    /// The terminal may have another size.
    pub(crate) fn resize(&mut self) {
        let window = terminal::window(rustix::stdio::stdout()).or_else(|| terminal::window(rustix::stdio::stderr()));
        if let Some(size) = window {
            self.presenter.resize(self.now, size);
        }
    }

    /// Writes what is ready, until one of `interrupts` is ready to be read, or the time is over. Returns whether somebody reads it.
    pub(crate) fn write(&mut self, interrupts: &[BorrowedFd<'_>], time: Option<Duration>) -> Result<bool, Problem> {
        let until = time.map(|time| Instant::now() + time);
        for (stream, place) in Stream::ALL.into_iter().zip(&self.places) {
            let pending = self.presenter.pending(stream);
            let mut at = 0;
            let written = place.write(pending, &mut at, interrupts, until);
            pending.drain(..at);
            match written {
                Ok(()) => {}
                Err(Errno::PIPE | Errno::IO) => return Ok(false),
                Err(error) => return Err(unwritable(stream, error)),
            }
        }
        Ok(true)
    }

    /// Whether all that was made ready is written.
    pub(crate) fn is_written(&mut self) -> bool {
        self.ready() == 0
    }

    /// Whether nobody will write more of the transcript.
    pub(crate) fn is_over(&self) -> bool {
        TranscriptReader::is_over(&self.directory)
    }

    /// The job is over, and all was read: what was kept for the end is shown.
    pub(crate) fn finish(&mut self) {
        while self.presenter.finish(self.now) {}
        if self.is_over() && self.reader.incomplete() > 0 {
            self.presenter.notice(self.now, "rankrun: the transcript ends within an entry: what followed is not there");
        }
    }

    /// We leave: the next one begins here.
    pub(crate) fn leave(&mut self) {
        if self.reader.position() < self.from {
            // It has shown nothing.
            return;
        }
        let unfinished = self.presenter.take_unfinished();
        let ready = Stream::ALL.map(|stream| std::mem::take(self.presenter.pending(stream)));
        let left = Left { at: self.reader.position(), ready, unfinished };
        // Otherwise the next one begins where this one has begun.
        let _ = left.save(&self.directory);
    }
}

/// The output of a job that runs elsewhere, as it is shown on our own stdout and stderr.
fn shown_here(config: Config, around: &Surroundings) -> Config {
    let [_, stdout, _] = around.terminals;
    Config {
        color: around.colors(When::Auto, stdout),
        status: around.status_window(),
        status_on: if stdout { Stream::Stdout } else { Stream::Stderr },
        same_destination: around.same_destination,
        partial_after: Stream::ALL.map(|stream| plan::partial_after(config.world_size, around, stream)),
        ..config
    }
}

/// What an entry says about which ranks there are.
fn learn(presenter: &mut Presenter, known: &mut Option<(RankMap, usize)>, now: Duration, entry: &Entry<'_>) {
    match entry {
        // After a time in which nobody looked they may be others.
        Entry::Segment { world, groups, .. }
            if known.as_ref().is_none_or(|(known, count)| known != &**world || *count != groups.len()) =>
        {
            presenter.take(now, &Entry::World(world.clone()));
            for (group, map) in groups {
                presenter.take(now, &Entry::Group(*group, map.clone()));
            }
            *known = Some((world.clone().into_owned(), groups.len()));
        }
        Entry::World(world) => {
            presenter.take(now, entry);
            *known = Some((world.clone().into_owned(), 0));
        }
        Entry::Group(..) => {
            presenter.take(now, entry);
            known.iter_mut().for_each(|(_, count)| *count += 1);
        }
        _ => {}
    }
}

/// Where a stream of ours is written.
#[derive(Debug)]
struct Place {
    stream: Stream,
    /// Another description of the terminal or pipe: it does not block, and the one that we share with others does.
    own: Option<OwnedFd>,
    /// Bytes of one write.
    most: usize,
}

impl Place {
    fn of(stream: Stream) -> Place {
        let (shared, path) = match stream {
            Stream::Stdout => (rustix::stdio::stdout(), "/proc/self/fd/1"),
            Stream::Stderr => (rustix::stdio::stderr(), "/proc/self/fd/2"),
        };
        let open = |path: &str| {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        };
        let is_pipe = rustix::fs::fstat(shared).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_fifo());
        let is_terminal = terminal::is_terminal(shared);
        let own = (is_pipe || is_terminal).then(|| open(path).ok()).flatten();
        // Another user's terminal (su) can be opened only as the controlling one.
        let is_controlling = is_terminal && rustix::termios::tcgetpgrp(shared).is_ok();
        let own = own.or_else(|| is_controlling.then(|| open("/dev/tty").ok()).flatten());
        let most = match own {
            Some(_) => AT_ONCE,
            None if is_terminal => OF_TERMINAL,
            None => OF_PIPE,
        };
        Place { stream, own, most }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match (&self.own, self.stream) {
            (Some(own), _) => own.as_fd(),
            (None, Stream::Stdout) => rustix::stdio::stdout(),
            (None, Stream::Stderr) => rustix::stdio::stderr(),
        }
    }

    /// Writes, from `at` on, as [`Viewer::write`] says.
    fn write(
        &self,
        bytes: &[u8],
        at: &mut usize,
        interrupts: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> Result<(), Errno> {
        let mut is_refused = false;
        while *at < bytes.len() {
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                break;
            }
            let mut ends: Vec<_> = interrupts.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            if std::mem::take(&mut is_refused) {
                wait_for(&mut ends, Some(rest.map_or(TRY_AGAIN, |rest| rest.min(TRY_AGAIN))));
            } else {
                ends.push(PollFd::from_borrowed_fd(self.fd(), PollFlags::OUT));
                wait_for(&mut ends, rest);
            }
            if ends[..interrupts.len()].iter().any(|end| !end.revents().is_empty()) {
                break;
            }
            if ends.get(interrupts.len()).is_none_or(|end| end.revents().is_empty()) {
                continue;
            }
            match rustix::io::write(self.fd(), &bytes[*at..bytes.len().min(*at + self.most)]) {
                Ok(count) => *at += count,
                // A terminal with room for one byte takes no line feed, which it writes as two.
                Err(Errno::AGAIN) => is_refused = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Text without what sets colours.
fn without_colors(text: &str) -> String {
    let mut left = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        left.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    left + rest
}

fn unreadable(directory: &Path, error: &io::Error) -> Problem {
    let problem =
        Problem::internal(format!("cannot read the output in \"{}\": {}", directory.display(), reason(error)));
    match error.kind() {
        io::ErrorKind::NotFound => problem.hint("its place must be seen from here: see --report-dir"),
        _ => problem,
    }
}

fn unwritable(stream: Stream, error: Errno) -> Problem {
    Problem::internal(format!("cannot write to {stream}: {}", reason(&error.into())))
}
