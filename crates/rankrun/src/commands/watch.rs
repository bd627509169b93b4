//! `rankrun status --watch`: the status again and again, until the job ends.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use rankrun_core::ExitCode;
use rankrun_core::changes::changes;
use rankrun_core::control::{Answer, JobStatus, Request};
use rankrun_core::overview::describe;
use rankrun_core::printable::{fit, printable};
use rankrun_sys::poll::pause;
use rankrun_sys::terminal;
use serde_json::json;

use crate::commands::jobs::{self, ANSWER_BOUND, Connection, Found, Silence};
use crate::commands::status;
use crate::message::Problem;

/// Where it is written, and what stands there.
enum Output {
    /// In place; so many lines stand there.
    Terminal { lines: usize },
    /// A line for each change since this.
    Lines { last: Option<Box<JobStatus>> },
    /// An object a line.
    Json,
}

/// Prints the status of a job, or of all, after each of these times.
pub(crate) fn run(job: Option<&str>, as_json: bool, step: Duration) -> Result<ExitCode, Problem> {
    // A terminal that cannot move its cursor gets lines.
    let is_terminal =
        terminal::is_terminal(rustix::stdio::stdout()) && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    let output = match (as_json, is_terminal) {
        (true, _) => Output::Json,
        (false, true) => Output::Terminal { lines: 0 },
        (false, false) => Output::Lines { last: None },
    };
    let watched = match job {
        Some(word) => watch(&jobs::find("status", word)?, output, step),
        None => watch_all(output, step),
    };
    match watched {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // A reader that wants no more (`| head`).
        Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(Stop::Output(error)) => {
            Err(Problem::internal(format!("cannot write to stdout: {}", rankrun_sys::reason(&error))))
        }
        Err(Stop::Problem(problem)) => Err(problem),
    }
}

/// Why it does not go on.
enum Stop {
    Output(io::Error),
    Problem(Problem),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Output(error)
    }
}

/// One job, until it ends.
fn watch(found: &Found, mut output: Output, step: Duration) -> Result<(), Stop> {
    let explain = |silence| Stop::Problem(jobs::explain("status", found, silence));
    let connect = || found.connect(ANSWER_BOUND);
    let mut end = connect().map_err(explain)?;
    end.send(&[Request::Wait]).map_err(explain)?;
    let mut connection: Option<Connection> = None;
    let mut is_paused = false;
    let mut next = Instant::now();
    loop {
        match ask(&mut connection, &connect) {
            Ok(Answer::Status(status)) => {
                is_paused = false;
                output.show(*status)?;
            }
            Ok(Answer::Refused { error, hint }) => {
                return Err(Stop::Problem(jobs::refused("ask", &found.job, &error, hint)));
            }
            Ok(other) => return Err(Stop::Problem(jobs::unexpected(&found.job, &other))),
            Err(Silence::Paused { front }) => {
                connection = None;
                if !std::mem::replace(&mut is_paused, true) {
                    output.say(&format!("job {}: paused: its rankrun, process {front}, is stopped", found.job))?;
                }
            }
            // Its end is told on the other connection.
            Err(Silence::Ended | Silence::NoFront) => connection = None,
            Err(silence) => return Err(explain(silence)),
        }
        next = (next + step).max(Instant::now() + step / 10);
        let rest = next.saturating_duration_since(Instant::now());
        match end.receive(Some(rest)) {
            Ok(Answer::Over { exit_code, summary, .. }) => return Ok(output.end(&found.job, exit_code, &summary)?),
            Ok(other) => return Err(Stop::Problem(jobs::unexpected(&found.job, &other))),
            Err(Silence::TimedOut { .. }) => {}
            // It is looked at again after the step.
            Err(Silence::Paused { .. }) => pause(rest),
            // The front was killed, and another one takes its place.
            Err(Silence::Ended) if found.has_heir() => {
                end = connect().map_err(explain)?;
                end.send(&[Request::Wait]).map_err(explain)?;
            }
            Err(silence) => return Err(explain(silence)),
        }
    }
}

fn ask(
    connection: &mut Option<Connection>,
    connect: &impl Fn() -> Result<Connection, Silence>,
) -> Result<Answer, Silence> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(connect()?),
    };
    connection.send(&[Request::Status { ranks: true, measure: true }])?;
    connection.receive(Some(ANSWER_BOUND))
}

/// All jobs, until none is there.
fn watch_all(mut output: Output, step: Duration) -> Result<(), Stop> {
    let mut last = String::new();
    loop {
        let form = if matches!(output, Output::Json) { status::Form::Json } else { status::Form::Text };
        let text = status::run(None, &form).map_err(Stop::Problem)?;
        let is_over = jobs::directories().iter().all(|found| !found.is_held());
        match &mut output {
            Output::Terminal { .. } => output.redraw(&text)?,
            Output::Lines { .. } => {
                // The time is new in each of them.
                let key = |text: &str| text.lines().map(without_time).collect::<Vec<_>>().join("\n");
                if key(&text) != key(&last) {
                    write(text.as_bytes())?;
                }
            }
            Output::Json => {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                write(format!("{value}\n").as_bytes())?;
            }
        }
        last = text;
        if is_over {
            return Ok(());
        }
        pause(step);
    }
}

/// A row of the list without its second column, the time.
fn without_time(row: &str) -> String {
    let mut fields = row.split("  ").map(str::trim).filter(|field| !field.is_empty());
    let job = fields.next().unwrap_or_default().to_owned();
    fields.skip(1).fold(job, |sum, field| sum + " " + field)
}

impl Output {
    fn show(&mut self, status: JobStatus) -> io::Result<()> {
        match self {
            Output::Terminal { .. } => {
                let width =
                    terminal::window(rustix::stdio::stdout()).map_or(80, |(_, columns)| usize::from(columns).max(40));
                self.redraw(&describe(&status, width))
            }
            Output::Lines { last } => {
                let lines = changes(last.as_deref(), &status);
                let text: String = lines.iter().map(|line| format!("{}\n", printable(line))).collect();
                *last = Some(Box::new(status));
                write(text.as_bytes())
            }
            Output::Json => write(format!("{}\n", serde_json::to_string(&status)?).as_bytes()),
        }
    }

    /// Replaces what stands on the terminal, as far as there is room.
    fn redraw(&mut self, text: &str) -> io::Result<()> {
        let Output::Terminal { lines } = self else { return Ok(()) };
        let (rows, columns) = terminal::window(rustix::stdio::stdout()).unwrap_or((24, 80));
        let room = usize::from(rows).saturating_sub(1).max(1);
        let mut picture = String::new();
        if *lines > 0 {
            picture.push_str(&format!("\x1b[{lines}A\r\x1b[J"));
        }
        let all: Vec<&str> = text.lines().collect();
        let shown = if all.len() > room { &all[..room - 1] } else { &all[..] };
        for line in shown {
            picture.push_str(&fit(line, usize::from(columns)));
            picture.push('\n');
        }
        *lines = shown.len();
        if all.len() > room {
            picture.push_str(&format!("and {} more lines\n", all.len() - shown.len()));
            *lines += 1;
        }
        write(picture.as_bytes())
    }

    /// A line of its own.
    fn say(&mut self, text: &str) -> io::Result<()> {
        match self {
            Output::Terminal { .. } => self.redraw(text),
            Output::Lines { .. } => write(format!("{text}\n").as_bytes()),
            Output::Json => Ok(()),
        }
    }

    fn end(&mut self, job: &str, exit_code: u8, summary: &str) -> io::Result<()> {
        let text = format!("job {job}: over, exit code {exit_code}: {}\n", printable(summary));
        match self {
            // What stood there stays.
            Output::Terminal { .. } | Output::Lines { .. } => write(text.as_bytes()),
            Output::Json => {
                let over = json!({ "job": job, "state": "over", "exit_code": exit_code, "summary": summary });
                write(format!("{over}\n").as_bytes())
            }
        }
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}
