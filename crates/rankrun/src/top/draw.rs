//! The whole screen: what the job does, its ranks or a panel, and a line for keys.

use rankrun_core::control::{JobState, JobStatus};
use rankrun_core::printable::printable;
use rankrun_core::top::{Mark, Model, Row, Totals};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::figures::{percent, size, time};
use super::view::{Layout, Panel, Prompt, View};
use super::{grid, list, panel};
use crate::words::quote_all;

/// Whether there are colours. What they say is also said by a character or a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paint {
    pub(crate) is_colored: bool,
}

impl Paint {
    pub(super) fn of(self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    /// How a rank is shown.
    pub(super) fn of_row(self, row: &Row) -> Style {
        match row.mark {
            Some(Mark::Dead) => self.of(Color::Red).add_modifier(Modifier::BOLD),
            Some(Mark::Stopped) => self.of(Color::Magenta).add_modifier(Modifier::BOLD),
            Some(Mark::Idle | Mark::Behind | Mark::Silent) => self.of(Color::Yellow).add_modifier(Modifier::BOLD),
            None if row.is_running() => self.of(Color::Green),
            None => Style::new().add_modifier(Modifier::DIM),
        }
    }
}

/// What the connection to the job is like.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) enum Line {
    #[default]
    Live,
    /// The front has not answered for so many seconds.
    Silent(f64),
    /// The front is stopped.
    Paused(i32),
    /// The job is over.
    Over { exit_code: u8, summary: String },
    /// The front is gone, and has said nothing.
    Gone(String),
}

/// Draws the screen.
pub(crate) fn draw(view: &mut View, model: &Model, line: &Line, paint: Paint, buffer: &mut Buffer) {
    let area = buffer.area;
    let (width, height) = (area.width, area.height);
    if width < 10 || height < 4 {
        text(buffer, 0, 0, width, "too small", Style::new());
        return;
    }
    let Some(status) = model.status() else {
        text(buffer, 0, 0, width, "waiting for the job's answer", Style::new());
        return;
    };
    let mut lines = header(status, model.totals(), model.nodes().len(), line, usize::from(width));
    // A small window has the ranks first.
    lines.truncate(usize::from(height / 3).max(1));
    let top = lines.len() as u16;
    for (y, (words, kind)) in lines.into_iter().enumerate() {
        let style = match kind {
            Kind::Title => Style::new().add_modifier(Modifier::BOLD),
            Kind::Plain => Style::new(),
            Kind::Alarm => paint.of(Color::Red).add_modifier(Modifier::BOLD),
        };
        text(buffer, 0, y as u16, width, &words, style);
    }
    let body = Rect { x: 0, y: top, width, height: height - top - 1 };
    match view.panel.clone() {
        Some(panel) => panel::draw(view, &panel, model, buffer, body),
        None if view.layout(model.rows().len()) == Layout::Grid => grid::draw(view, model, paint, buffer, body),
        None => list::draw(view, model, paint, buffer, body),
    }
    last_line(view, model, line, buffer, height - 1);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Title,
    Plain,
    Alarm,
}

/// What is said of the job: the most important line first.
pub(crate) fn header(
    status: &JobStatus,
    totals: &Totals,
    nodes: usize,
    line: &Line,
    width: usize,
) -> Vec<(String, Kind)> {
    let command = quote_all(&status.command);
    let running = time(status.now - status.started);
    let mut lines = Vec::new();
    let title = match line {
        Line::Over { exit_code, .. } => format!("job {}: over, exit code {exit_code}", status.job),
        _ => format!("job {}: {}", status.job, doing(status)),
    };
    lines.push((format!("{title}  {}", printable(&command)), Kind::Title));
    match line {
        Line::Live => {}
        Line::Silent(seconds) => {
            lines
                .push((format!("its front does not answer for {}: what is shown is old", time(*seconds)), Kind::Alarm));
        }
        Line::Paused(front) => {
            lines.push((
                format!("paused: its rankrun, process {front}, is stopped; fg in its shell continues it"),
                Kind::Alarm,
            ));
        }
        Line::Over { summary, .. } => lines.push((printable(summary).into_owned(), Kind::Alarm)),
        Line::Gone(why) => lines.push((why.clone(), Kind::Alarm)),
    }
    let is_over = matches!(line, Line::Over { .. });
    if let Some(why) = status.why.as_ref().filter(|_| !is_over) {
        let until = status.until.map(|until| format!("; {} in {}", next_step(status), time(until - status.now)));
        lines.push((format!("{}{}", printable(why), until.unwrap_or_default()), Kind::Alarm));
    } else if let Some(until) = status.until.filter(|_| !is_over) {
        lines.push((format!("{} in {}", next_step(status), time(until - status.now)), Kind::Plain));
    }
    if !status.silent_nodes.is_empty() {
        lines.push((
            format!("no answer from {}: less is known of its ranks", status.silent_nodes.join(", ")),
            Kind::Alarm,
        ));
    }
    let restarts = status.restarts_left.map(|left| match left {
        1 => ", 1 restart left".to_owned(),
        left => format!(", {left} restarts left"),
    });
    let noun = if nodes == 1 { "node" } else { "nodes" };
    lines.push((
        format!(
            "{} ranks on {nodes} {noun}: {}  attempt {}{}  started {running} ago",
            status.world_size,
            ranks_in_words(totals),
            status.attempt,
            restarts.unwrap_or_default(),
        ),
        Kind::Plain,
    ));
    let value = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let used = format!(
        "CPU {}%  memory {}B  read {}B/s  write {}B/s",
        value(totals.cpu.map(percent)),
        value(totals.memory.map(|bytes| size(bytes as f64))),
        value(totals.read.map(size)),
        value(totals.written.map(size)),
    );
    lines.push((used.chars().take(width).collect(), Kind::Plain));
    lines
}

fn doing(status: &JobStatus) -> String {
    format!("{} {}", status.state.name(), time(status.now - status.since))
}

/// What rankrun does at the time that the status names.
fn next_step(status: &JobStatus) -> String {
    match status.state {
        JobState::Stopping => "SIGKILL".to_owned(),
        JobState::Waiting => format!("attempt {}", status.attempt.0 + 1),
        JobState::Starting | JobState::Running | JobState::Paused | JobState::Ending => "--timeout".to_owned(),
    }
}

fn ranks_in_words(totals: &Totals) -> String {
    let counts = [
        (totals.running, "running"),
        (totals.ended.saturating_sub(totals.failed), "ended"),
        (totals.failed, "failed"),
        (totals.odd, "odd"),
    ];
    let said = counts.iter().enumerate().filter(|(at, (count, _))| *at == 0 || *count > 0);
    said.map(|(_, (count, word))| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// The line at the bottom: a question, an answer, or the keys.
fn last_line(view: &View, model: &Model, line: &Line, buffer: &mut Buffer, y: u16) {
    let width = buffer.area.width;
    let job = model.status().map(|status| status.job.to_string()).unwrap_or_default();
    let (words, style) = match (view.prompt, &view.message) {
        (Some(Prompt::Filter), _) => (format!("/{}_", view.filter), Style::new().add_modifier(Modifier::BOLD)),
        (Some(Prompt::Restart), _) => (
            format!("end all ranks of job {job} and start them again? y/n"),
            Style::new().add_modifier(Modifier::REVERSED),
        ),
        (Some(Prompt::Stop), _) => (
            format!("stop job {job}, as SIGTERM to its rankrun does? y/n"),
            Style::new().add_modifier(Modifier::REVERSED),
        ),
        (None, Some(message)) => (printable(message).into_owned(), Style::new().add_modifier(Modifier::BOLD)),
        (None, None) => {
            let keys = match &view.panel {
                Some(Panel::Help) => "q back",
                Some(Panel::Rank(_)) => "q back  j/k scroll  s stack  ? help",
                Some(Panel::Stack(..)) => "q back  j/k scroll  s look again",
                None if matches!(line, Line::Over { .. } | Line::Gone(_)) => "q quit  ? help  enter a rank  / filter",
                None => "q quit  ? help  enter a rank  s stack  / filter  o order  ! odd first  v view",
            };
            (format!("{keys}{}", chosen(view)), Style::new().add_modifier(Modifier::DIM))
        }
    };
    text(buffer, 0, y, width, &words, style);
}

/// The order and the filter, where they are not the usual ones.
fn chosen(view: &View) -> String {
    let mut words = String::new();
    if view.sort != rankrun_core::top::Sort::Rank {
        words.push_str(&format!("  by {}", view.sort.name()));
    }
    if !view.filter.is_empty() {
        words.push_str(&format!("  only \"{}\"", view.filter));
    }
    words
}

/// Writes text into a line, as far as there is room. Returns the column after it.
pub(super) fn text(buffer: &mut Buffer, x: u16, y: u16, width: u16, words: &str, style: Style) -> u16 {
    if y >= buffer.area.height || x >= buffer.area.width {
        return x;
    }
    let width = width.min(buffer.area.width - x);
    buffer.set_stringn(x, y, words, usize::from(width), style).0
}
