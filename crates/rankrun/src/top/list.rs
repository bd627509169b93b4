//! A line for each rank.

use rankrun_core::printable::printable;
use rankrun_core::standing::Phase;
use rankrun_core::top::{Bar, Mark, Model, Row, Sort};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use super::draw::{Paint, text};
use super::figures::{count, percent, size, time};
use super::view::{Place, View};

/// A column.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    width: u16,
    /// Numbers stand at the right.
    pub(crate) is_number: bool,
    /// Columns of a higher number are left out first in a narrow window.
    pub(crate) rest: u8,
    pub(crate) cell: fn(&Row) -> String,
}

const COLUMNS: [Column; 11] = [
    Column { title: "RANK", width: 5, is_number: true, rest: 0, cell: |row| row.rank().to_string() },
    Column { title: "STATE", width: 9, is_number: false, rest: 0, cell: |row| state(row).to_owned() },
    Column { title: "TRY", width: 3, is_number: true, rest: 6, cell: |row| row.status.attempt.to_string() },
    Column { title: "PHASE", width: 8, is_number: false, rest: 5, cell: |row| phase(row).to_owned() },
    Column { title: "CPU%", width: 5, is_number: true, rest: 1, cell: |row| or_dash(row.cpu.map(percent)) },
    Column {
        title: "MEM",
        width: 5,
        is_number: true,
        rest: 2,
        cell: |row| or_dash(row.memory().map(|it| size(it as f64))),
    },
    Column { title: "READ/s", width: 6, is_number: true, rest: 7, cell: |row| or_dash(row.read.map(size)) },
    Column { title: "WRIT/s", width: 6, is_number: true, rest: 7, cell: |row| or_dash(row.written.map(size)) },
    Column {
        title: "GPU%",
        width: 4,
        is_number: true,
        rest: 3,
        cell: |row| or_dash(row.gpu().map(|it| it.to_string())),
    },
    Column {
        title: "GMEM",
        width: 5,
        is_number: true,
        rest: 4,
        cell: |row| or_dash(row.gpu_memory().map(|it| size(it as f64))),
    },
    Column {
        title: "SILENT",
        width: 6,
        is_number: true,
        rest: 1,
        cell: |row| or_dash(row.silence.filter(|_| row.is_running()).map(time)),
    },
];
const PROGRESS: Column = Column {
    title: "PROGRESS",
    width: 24,
    is_number: false,
    rest: 3,
    cell: |row| row.bar.map(progress).unwrap_or_default(),
};
/// What is left for the last line at least.
const LAST_LINE: u16 = 10;

/// Draws the list.
pub(super) fn draw(view: &mut View, model: &Model, paint: Paint, buffer: &mut Buffer, area: Rect) {
    let rows = model.chosen(&view.filter, view.sort);
    let columns = columns(model, area.width);
    heading(&columns, buffer, area);
    let is_by_node = view.sort == Sort::Rank && model.nodes().len() > 1;
    // The lines: a rank, or the name of a node above its ranks.
    let mut lines: Vec<Result<&Row, String>> = Vec::new();
    let mut node = None;
    for row in &rows {
        if is_by_node && node != Some(row.status.node.as_str()) {
            node = Some(row.status.node.as_str());
            let count = rows.iter().filter(|other| other.status.node == row.status.node).count();
            let noun = if count == 1 { "rank" } else { "ranks" };
            lines.push(Err(format!("{} ({count} {noun})", printable(&row.status.node))));
        }
        lines.push(Ok(row));
    }
    let of_rank = |(line, row): (usize, &Result<&Row, String>)| {
        row.as_ref().ok().map(|row| Place { rank: row.rank(), line, x: 0 })
    };
    let places = lines.iter().enumerate().filter_map(of_rank).collect();
    let room = area.height.saturating_sub(1);
    view.place(places, usize::from(room));
    if view.top == 1 && is_by_node {
        // The name above the first rank.
        view.top = 0;
    }
    let selected = view.selected();
    for (at, line) in lines.iter().skip(view.top).take(usize::from(room)).enumerate() {
        let y = area.y + 1 + at as u16;
        match line {
            Err(node) => drop(text(buffer, 0, y, area.width, node, Style::new().add_modifier(Modifier::BOLD))),
            Ok(row) => {
                draw_row(row, &columns, paint, buffer, (y, area.width));
                if selected == Some(row.rank()) {
                    buffer.set_style(
                        Rect { x: 0, y, width: area.width, height: 1 },
                        Style::new().add_modifier(Modifier::REVERSED),
                    );
                }
            }
        }
    }
}

/// The columns that there is room for, and that say something.
fn columns(model: &Model, width: u16) -> Vec<&'static Column> {
    let mut columns = telling(model);
    let needed = |columns: &[&Column]| 1 + LAST_LINE + columns.iter().map(|column| column.width + 1).sum::<u16>();
    while needed(&columns) > width {
        let Some(most) = columns.iter().map(|column| column.rest).max().filter(|rest| *rest > 1) else { break };
        columns.retain(|column| column.rest < most);
    }
    columns
}

/// The columns that say something.
pub(crate) fn telling(model: &Model) -> Vec<&'static Column> {
    let rows = model.rows();
    let has_gpus = model.totals().has_gpus;
    let says_something = |column: &&Column| match column.title {
        // Of the job, unless ranks are restarted one by one.
        "TRY" => rows.iter().any(|row| Some(row.status.attempt) != model.status().map(|status| status.attempt)),
        "PHASE" => rows.iter().any(|row| !phase(row).is_empty()),
        "GPU%" | "GMEM" => has_gpus,
        "PROGRESS" => rows.iter().any(|row| row.bar.is_some()),
        _ => true,
    };
    const ALL: [&Column; 12] = {
        let [rank, state, attempt, phase, cpu, memory, read, written, gpu, gpu_memory, silent] = &COLUMNS;
        [rank, state, attempt, phase, cpu, memory, read, written, gpu, gpu_memory, &PROGRESS, silent]
    };
    ALL.into_iter().filter(says_something).collect()
}

fn heading(columns: &[&Column], buffer: &mut Buffer, area: Rect) {
    let style = Style::new().add_modifier(Modifier::REVERSED);
    buffer.set_style(Rect { height: 1, ..area }, style);
    let mut x = 1;
    for column in columns {
        let width = usize::from(column.width);
        let title = if column.is_number { format!("{:>width$}", column.title) } else { column.title.to_owned() };
        text(buffer, x, area.y, column.width, &title, style);
        x += column.width + 1;
    }
    text(buffer, x, area.y, area.width.saturating_sub(x), "LAST LINE", style);
}

fn draw_row(row: &Row, columns: &[&Column], paint: Paint, buffer: &mut Buffer, (y, width): (u16, u16)) {
    let style = paint.of_row(row);
    text(buffer, 0, y, 1, if row.mark.is_some() { "!" } else { " " }, style);
    let mut x = 1;
    for column in columns {
        let room = usize::from(column.width);
        let cell = (column.cell)(row);
        let cell = if column.is_number { format!("{cell:>room$}") } else { cell };
        let is_state = matches!(column.title, "RANK" | "STATE");
        text(buffer, x, y, column.width, &cell, if is_state { style } else { Style::new() });
        x += column.width + 1;
    }
    text(buffer, x, y, width.saturating_sub(x), &words(row), Style::new());
}

/// The last line of a rank, or why it does not run.
pub(crate) fn words(row: &Row) -> String {
    match (&row.status.why, &row.status.last_line) {
        (Some(why), _) if !row.is_running() => format!("({})", printable(why)),
        (_, Some(line)) => printable(line).into_owned(),
        _ => String::new(),
    }
}

/// What a rank does, or how it differs from the others.
pub(crate) fn state(row: &Row) -> &'static str {
    match row.mark {
        Some(mark @ (Mark::Stopped | Mark::Idle | Mark::Behind | Mark::Silent)) => mark.name(),
        Some(Mark::Dead) | None => row.state(),
    }
}

/// How far a rank has come in MPI.
pub(super) fn phase(row: &Row) -> &'static str {
    match row.status.phase {
        Phase::BeforeInit => "no init",
        Phase::CalledInit => "in init",
        Phase::InMpi => "in MPI",
        Phase::Finalizing => "finalize",
        Phase::NotStarted | Phase::Running | Phase::Ended(_) => "",
    }
}

/// `45% 45/100 4.43/s 12s`.
pub(super) fn progress(bar: Bar) -> String {
    let words = [
        bar.fraction.map(|fraction| format!("{:.0}%", (fraction * 100.0).floor())),
        match (bar.done, bar.total) {
            (Some(done), Some(total)) => Some(format!("{}/{}", count(done), count(total))),
            (Some(done), None) => Some(count(done)),
            (None, _) => None,
        },
        bar.rate.map(|rate| format!("{}/s", count(rate))),
        bar.left.map(|left| format!("-{}", time(left))),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}
