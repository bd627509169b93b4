//! A character for each rank, by node: for many ranks.

use std::collections::BTreeSet;

use rankrun_core::condition::Doing;
use rankrun_core::printable::{columns, fit, printable};
use rankrun_core::top::{Mark, Model, Row};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use super::draw::{Paint, text};
use super::list;
use super::view::{Place, View};

/// Columns that the name of a node takes at most.
const LONGEST_NAME: usize = 24;
/// Columns between two nodes.
const GAP: usize = 2;
/// What the characters mean.
pub(crate) const LEGEND: [(&str, &str); 11] = [
    (".", "running"),
    ("=", "ended"),
    ("X", "dead"),
    ("T", "stopped"),
    ("i", "idle"),
    ("b", "behind"),
    ("s", "silent"),
    ("~", "stopping"),
    ("w", "waiting"),
    ("+", "starting"),
    ("-", "unstarted"),
];

/// Where the name of a node stands: its line, its column, and the text.
type Name = (usize, u16, String);

/// Draws the grid.
pub(super) fn draw(view: &mut View, model: &Model, paint: Paint, buffer: &mut Buffer, area: Rect) {
    let rows = model.chosen(&view.filter, rankrun_core::top::Sort::Rank);
    let (names, places) = lay_out(&rows, usize::from(area.width));
    // Below the grid: what the characters mean, and the selected rank.
    let room = area.height.saturating_sub(2);
    view.place(places, usize::from(room));
    let lines = view.top..view.top + usize::from(room);
    let y = |line: usize| area.y + (line - lines.start) as u16;
    for (line, x, name) in names.iter().filter(|(line, ..)| lines.contains(line)) {
        text(buffer, *x, y(*line), area.width, name, Style::new().add_modifier(Modifier::DIM));
    }
    let selected = view.selected();
    // Both are in the same order.
    for (place, row) in view.places.iter().zip(&rows).filter(|(place, _)| lines.contains(&place.line)) {
        let mut style = paint.of_row(row);
        if selected == Some(row.rank()) {
            style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
        }
        text(buffer, place.x, y(place.line), 1, character(row), style);
    }
    let below = area.y + room;
    let present: BTreeSet<&str> = rows.iter().map(|row| character(row)).collect();
    let legend = LEGEND.iter().filter(|(character, _)| present.contains(character));
    let legend = legend.map(|(character, word)| format!("{character} {word}")).collect::<Vec<_>>().join("  ");
    text(buffer, 0, below, area.width, &legend, Style::new().add_modifier(Modifier::DIM));
    if let Some(row) = rows.iter().find(|row| selected == Some(row.rank())) {
        text(buffer, 0, below + 1, area.width, &in_a_line(row), Style::new().add_modifier(Modifier::BOLD));
    }
}

/// Places the ranks: node by node, each with its name before it; as many nodes in a line as there is room for.
fn lay_out(rows: &[&Row], width: usize) -> (Vec<Name>, Vec<Place>) {
    let mut nodes: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        match nodes.last_mut() {
            Some((name, count)) if *name == row.status.node => *count += 1,
            _ => nodes.push((&row.status.node, 1)),
        }
    }
    let longest = nodes.iter().map(|(name, _)| name.chars().map(columns).sum::<usize>()).max().unwrap_or(0);
    let label = longest.min(LONGEST_NAME).min(width / 3);
    let most = nodes.iter().map(|(_, count)| *count).max().unwrap_or(0);
    // Beside a name there is room for a multiple of eight, if for that.
    let beside = width.saturating_sub(label + 1).max(1);
    let cells = most.min(if beside >= 8 { beside / 8 * 8 } else { beside });
    let block = label + 1 + cells;
    let in_line = ((width + GAP) / (block + GAP)).max(1);
    let (mut names, mut places) = (Vec::new(), Vec::new());
    let (mut line, mut column, mut rest) = (0, 0, rows.iter());
    for (name, count) in nodes {
        let height = count.div_ceil(cells.max(1));
        if column > 0 && (column == in_line || height > 1) {
            (line, column) = (line + 1, 0);
        }
        let x = (column * (block + GAP)) as u16;
        names.push((line, x, fit(&printable(name), label).into_owned()));
        for (at, row) in rest.by_ref().take(count).enumerate() {
            let x = x + (label + 1 + at % cells) as u16;
            places.push(Place { rank: row.rank(), line: line + at / cells, x });
        }
        if height > 1 {
            // Below the name: the first rank of each line.
            for part in 1..height {
                let first = places[places.len() - count + part * cells].rank;
                names.push((line + part, x, format!("{:>label$}", first.to_string())));
            }
            (line, column) = (line + height, 0);
        } else {
            column += 1;
        }
    }
    (names, places)
}

/// The character of a rank.
pub(crate) fn character(row: &Row) -> &'static str {
    match (row.mark, row.status.state) {
        (Some(Mark::Dead), _) => "X",
        (Some(Mark::Stopped), _) => "T",
        (Some(Mark::Idle), _) => "i",
        (Some(Mark::Behind), _) => "b",
        (Some(Mark::Silent), _) => "s",
        (None, Doing::NotStarted) => "-",
        (None, Doing::Starting) => "+",
        (None, Doing::Running) => ".",
        (None, Doing::Stopping | Doing::Lingering | Doing::Terminating | Doing::DumpingCore | Doing::Killing) => "~",
        (None, Doing::Ended) => "=",
        (None, Doing::Waiting) => "w",
    }
}

/// A rank in one line.
fn in_a_line(row: &Row) -> String {
    let mut words = vec![format!("{} on {}: {}", row.rank().name(), printable(&row.status.node), list::state(row))];
    words.extend(row.cpu.map(|cpu| format!("CPU {}%", super::figures::percent(cpu))));
    words.extend(row.memory().map(|memory| format!("{}B", super::figures::size(memory as f64))));
    words.extend(row.bar.map(list::progress));
    words.extend(row.silence.filter(|_| row.is_running()).map(|time| format!("silent {}", super::figures::time(time))));
    match (&row.status.why, &row.status.last_line) {
        (Some(why), _) if !row.is_running() => words.push(format!("({why})")),
        (_, Some(line)) => words.push(format!("\"{}\"", printable(line))),
        _ => {}
    }
    words.join("  ")
}
