//! The loop: keys, answers, signals, and a picture after each change.

use std::io;
use std::time::{Duration, Instant};

use rankrun_core::top::Model;
use rankrun_core::{ExitCode, control::JobStatus};
use rankrun_sys::poll::wait_for;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::terminal;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Modifier, Style};
use rustix::event::{PollFd, PollFlags};

use super::draw::{self, Paint};
use super::feed::Feed;
use super::keys::{Decoder, Key};
use super::screen::Screen;
use super::view::{Action, View};
use crate::commands::jobs::{self, Found};
use crate::commands::status;
use crate::message::Problem;

/// How long after ESC the rest of a key may come, over a slow connection too.
const ESCAPE_BOUND: Duration = Duration::from_millis(60);
/// The signals that the loop handles.
const SIGNALS: [i32; 7] = [
    signal::SIGINT,
    signal::SIGTERM,
    signal::SIGHUP,
    signal::SIGQUIT,
    signal::SIGWINCH,
    signal::SIGTSTP,
    signal::SIGCONT,
];

/// Shows a job until the user has seen enough.
pub(crate) fn run(word: Option<&str>) -> Result<ExitCode, Problem> {
    check_terminal()?;
    let found = match word {
        Some(word) => Some(jobs::find("top", word)?),
        None => None,
    };
    let jobs = if found.is_none() { status::running() } else { Vec::new() };
    let found = match (found, jobs.as_slice()) {
        (Some(found), _) => Some(found),
        (None, []) => return Err(Problem::usage("no job of yours is running on this machine")),
        (None, [(found, _)]) => Some(found.clone()),
        (None, _) => None,
    };
    let failed =
        |error: io::Error| Problem::internal(format!("cannot use the terminal: {}", rankrun_sys::reason(&error)));
    let mut top = Top::new().map_err(failed)?;
    let end = match found {
        Some(found) => top.look_at(found),
        None => top.choose(&jobs).and_then(|chosen| match chosen {
            Ok(found) => top.look_at(found),
            Err(end) => Ok(end),
        }),
    };
    drop(top);
    match end.map_err(failed)? {
        End::Quit => Ok(ExitCode::SUCCESS),
        End::Signal(number) => {
            signal::die_of(number);
            Ok(ExitCode::signal(number))
        }
    }
}

/// Whether there is a terminal on which a picture can be drawn.
fn check_terminal() -> Result<(), Problem> {
    let hint = "\"rankrun status --watch JOB\" prints a line for each change";
    if !terminal::is_terminal(rustix::stdio::stdout()) {
        return Err(Problem::usage("rankrun top draws on a terminal, and stdout is none").hint(hint));
    }
    match std::env::var("TERM").as_deref() {
        Ok("dumb") => Err(Problem::usage("rankrun top cannot draw on this terminal (TERM is \"dumb\")").hint(hint)),
        _ => Ok(()),
    }
}

/// How the user has left.
#[derive(Clone, Copy)]
enum End {
    Quit,
    Signal(i32),
}

struct Top {
    screen: Screen,
    signals: SignalFd,
    decoder: Decoder,
    /// When a key has begun that is not whole.
    begun: Option<Instant>,
    paint: Paint,
    is_changed: bool,
}

/// What a turn of the loop has found.
#[derive(Default)]
struct Turn {
    keys: Vec<Key>,
    end: Option<End>,
}

impl Top {
    fn new() -> io::Result<Top> {
        let signals = SignalFd::new(&SIGNALS)?;
        let is_colored = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let screen = Screen::open()?;
        let paint = Paint { is_colored };
        Ok(Top { screen, signals, decoder: Decoder::default(), begun: None, paint, is_changed: true })
    }

    /// Shows a job.
    fn look_at(&mut self, found: Found) -> io::Result<End> {
        let (mut model, mut view) = (Model::default(), View::default());
        let mut feed = Feed::new(found, Instant::now());
        loop {
            self.is_changed |= feed.tick(Instant::now());
            if self.is_changed && self.screen.is_idle() {
                let picture = self.picture(&mut view, &model, &feed);
                self.screen.show(picture)?;
                self.is_changed = false;
            }
            let turn = self.turn(&feed)?;
            if let Some(end) = turn.end {
                return Ok(end);
            }
            self.is_changed |= feed.read(&mut model, &mut view);
            for (number, key) in turn.keys.into_iter().enumerate() {
                self.is_changed = true;
                if number > 0 {
                    // The key before may have moved the ranks, and this one is about where they are now.
                    self.picture(&mut view, &model, &feed);
                }
                match view.press(key, &model) {
                    None => {}
                    Some(Action::Quit) => return Ok(End::Quit),
                    Some(Action::Interrupt) => return Ok(End::Signal(signal::SIGINT)),
                    Some(Action::Suspend) => self.suspend()?,
                    Some(Action::Redraw) => self.screen.forget(),
                    Some(action) => feed.send(action, &mut view),
                }
            }
        }
    }

    fn picture(&self, view: &mut View, model: &Model, feed: &Feed) -> Buffer {
        let mut picture = Buffer::empty(self.screen.area());
        draw::draw(view, model, &feed.line, self.paint, &mut picture);
        picture
    }

    /// Has the user choose one of several jobs.
    fn choose(&mut self, jobs: &[(Found, JobStatus)]) -> io::Result<Result<Found, End>> {
        let mut at: usize = 0;
        loop {
            if self.is_changed && self.screen.is_idle() {
                let mut picture = Buffer::empty(self.screen.area());
                draw_jobs(jobs, at, &mut picture);
                self.screen.show(picture)?;
                self.is_changed = false;
            }
            let turn = self.wait(&[], None)?;
            if let Some(end) = turn.end {
                return Ok(Err(end));
            }
            for key in turn.keys {
                self.is_changed = true;
                match key {
                    Key::Up | Key::Char('k') => at = at.saturating_sub(1),
                    Key::Down | Key::Char('j') => at = (at + 1).min(jobs.len() - 1),
                    Key::Enter => return Ok(Ok(jobs[at].0.clone())),
                    Key::Char('q') | Key::Escape => return Ok(Err(End::Quit)),
                    Key::Control('c') => return Ok(Err(End::Signal(signal::SIGINT))),
                    Key::Control('z') => self.suspend()?,
                    Key::Control('l') => self.screen.forget(),
                    _ => {}
                }
            }
        }
    }

    fn turn(&mut self, feed: &Feed) -> io::Result<Turn> {
        self.wait(&feed.sockets(), feed.due())
    }

    /// Waits until something has happened, or it is time.
    fn wait(&mut self, sockets: &[std::os::fd::BorrowedFd<'_>], due: Option<Instant>) -> io::Result<Turn> {
        let escape = self.begun.map(|begun| begun + ESCAPE_BOUND);
        let until = [due, escape].into_iter().flatten().min();
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let wanted = if self.screen.is_idle() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut ends = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.screen, wanted)];
        ends.extend(sockets.iter().map(|socket| PollFd::from_borrowed_fd(*socket, PollFlags::IN)));
        wait_for(&mut ends, timeout);
        let is_typed = !ends[1].revents().difference(PollFlags::OUT).is_empty();
        drop(ends);
        let mut turn = Turn::default();
        while let Some((number, _)) = self.signals.next() {
            match number {
                signal::SIGWINCH => self.is_changed = true,
                signal::SIGTSTP => self.suspend()?,
                // Somebody has stopped us by SIGSTOP, and the shell has used the terminal since.
                signal::SIGCONT => self.resume()?,
                number => turn.end = Some(End::Signal(number)),
            }
        }
        self.screen.flush()?;
        if is_typed {
            match self.screen.read()? {
                Some(bytes) => turn.keys = self.decoder.read(&bytes),
                None => turn.end = turn.end.or(Some(End::Signal(signal::SIGHUP))),
            }
            self.begun = self.decoder.is_waiting().then(Instant::now);
        } else if escape.is_some_and(|escape| escape <= Instant::now()) {
            turn.keys.extend(self.decoder.flush());
            self.begun = None;
        }
        Ok(turn)
    }

    /// Stops this process, as ^Z does with others.
    fn suspend(&mut self) -> io::Result<()> {
        self.screen.give_back();
        terminal::stop_by(signal::SIGTSTP, false);
        self.resume()
    }

    fn resume(&mut self) -> io::Result<()> {
        self.is_changed = true;
        self.screen.take()
    }
}

/// The jobs, one a line.
fn draw_jobs(jobs: &[(Found, JobStatus)], at: usize, picture: &mut Buffer) {
    let (width, height) = (picture.area.width, picture.area.height);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    draw::text(picture, 0, 0, width, "several jobs are running: which one?", bold);
    let room = usize::from(height.saturating_sub(3));
    let top = (at + 1).saturating_sub(room);
    for (line, (number, (_, status))) in jobs.iter().enumerate().skip(top).take(room).enumerate() {
        let style = if number == at { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let command = crate::words::quote_all(&status.command);
        let words =
            format!("{}  {:>5} ranks  {}", status.job, status.world_size, rankrun_core::printable::printable(&command));
        draw::text(picture, 0, line as u16 + 1, width, &format!("{words:<width$}", width = usize::from(width)), style);
    }
    draw::text(picture, 0, height.saturating_sub(1), width, "enter this one  j k another  q quit", Style::new());
}
