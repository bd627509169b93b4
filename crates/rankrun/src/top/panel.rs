//! What covers the ranks: help, one rank, its stack.

use rankrun_core::Rank;
use rankrun_core::printable::{printable, wrap};
use rankrun_core::top::{Model, Row};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::draw::text;
use super::figures::{percent, size, time};
use super::list;
use super::view::{Panel, View};

const HELP: [&str; 27] = [
    "arrows, h j k l    another rank            PageUp PageDown g G   a page, the first, the last",
    "n N                the next, last odd rank",
    "enter              all that is known of the rank, and its last line",
    "s                  its stack: the calls in which it is",
    "v tab              list or grid",
    "o                  another order: rank, odd first, CPU, memory, storage, progress, silence",
    "!                  odd ranks first",
    "/                  show only ranks with these words: a number, a node, a state, part of the last line",
    "r                  restart the job (asks first)",
    "S x                stop the job (asks first)",
    "q ^C               quit; the job goes on",
    "",
    "An odd rank is marked with \"!\", by a word, and by a character in the grid:",
    "  dead      it has ended, and did not succeed",
    "  stopped   all its processes are stopped (SIGSTOP)",
    "  idle      less than a quarter of the CPU time of the others",
    "  behind    its progress bar is 10 % of the whole behind the others",
    "  silent    at least 10 s without output, and five times as long as the others",
    "",
    "CPU%       CPU time of all its processes; 100 is one CPU",
    "MEM        resident memory of all its processes; shared pages count once for each",
    "READ/s     bytes a second from storage, and WRIT/s to it, of all its processes",
    "GPU% GMEM  time in which a GPU worked for it, and memory there (nvidia-smi)",
    "PROGRESS   the progress bar in its last line (tqdm, rich, Keras): -TIME is the time left",
    "SILENT     how long it has written nothing",
    "TRY PHASE  its attempt; how far it has come in MPI",
    "docs/top.md says more.",
];

/// Draws a panel.
pub(super) fn draw(view: &mut View, panel: &Panel, model: &Model, buffer: &mut Buffer, area: Rect) {
    let lines: Vec<String> = match panel {
        Panel::Help => HELP.map(str::to_owned).into(),
        Panel::Rank(rank) => of_rank(model, *rank, usize::from(area.width)),
        Panel::Stack(rank, None) => vec![format!("looking into {} ...", rank.name())],
        Panel::Stack(_, Some(lines)) => lines.iter().map(|line| printable(line).into_owned()).collect(),
    };
    let room = usize::from(area.height);
    view.page = room;
    view.panel_top = view.panel_top.min(lines.len().saturating_sub(room));
    for (at, line) in lines.iter().skip(view.panel_top).take(room).enumerate() {
        text(buffer, 0, area.y + at as u16, area.width, line, Style::new());
    }
}

/// All that is known of a rank. Its output as it comes will stand in the place of the last line.
fn of_rank(model: &Model, rank: Rank, width: usize) -> Vec<String> {
    let (Some(row), Some(status)) = (model.rows().iter().find(|row| row.rank() == rank), model.status()) else {
        return vec![format!("{} is not there any more", rank.name())];
    };
    let mut lines = vec![rank.name()];
    for (name, value) in fields(row, status.now) {
        lines.push(format!("  {name:<9}{}", printable(&value)));
    }
    if let Some(line) = row.status.last_line.as_deref().filter(|line| !line.is_empty()) {
        lines.push(String::new());
        lines.extend(wrap(&printable(line), width.max(10), 20).into_iter().map(str::to_owned));
    }
    lines
}

/// What is known of a rank but its last line, each with its name.
pub(crate) fn fields(row: &Row, now: f64) -> Vec<(&'static str, String)> {
    let Row { status: known, .. } = row;
    let mut fields: Vec<(&'static str, String)> = Vec::new();
    let ago = |since: Option<f64>| since.map(|since| format!(" for {}", time(now - since))).unwrap_or_default();
    let mut state = format!("{}{}", row.state(), ago(known.since));
    if let Some(why) = &known.why {
        state.push_str(&format!(" ({why})"));
    }
    if let Some(until) = known.until {
        state.push_str(&format!("; next step in {}", time(until - now)));
    }
    fields.push(("state", state));
    fields.extend(row.mark.map(|mark| ("odd", mark.name().to_owned())));
    let pid = known.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    fields.push(("where", format!("{}{pid}, attempt {}", known.node, known.attempt)));
    fields.extend(known.cpus.as_ref().map(|cpus| ("CPUs", format!("bound to {cpus}"))));
    if !list::phase(row).is_empty() {
        fields.push(("MPI", format!("{}{}", list::phase(row), ago(known.phase_since))));
    }
    fields.extend(known.note.as_ref().map(|note| ("note", note.clone())));
    if let Some(usage) = &known.usage {
        let cpu = row.cpu.map(|cpu| format!("{}%", percent(cpu))).unwrap_or_else(|| "-".to_owned());
        fields.push(("CPU", format!("{cpu}, {} processes, {} threads", usage.processes, usage.threads)));
        fields.push(("memory", format!("{}B", size(usage.memory as f64))));
        if let (Some(read), Some(written)) = (row.read, row.written) {
            fields.push(("storage", format!("read {}B/s, written {}B/s", size(read), size(written))));
        }
        for gpu in &usage.gpus {
            let busy = gpu.busy.map(|busy| format!("{busy}%")).unwrap_or_else(|| "-".to_owned());
            let memory = gpu.memory.map(|memory| format!(", {}B", size(memory as f64))).unwrap_or_default();
            fields.push(("GPU", format!("{}: {busy}{memory}", gpu.index)));
        }
    }
    fields.extend(row.bar.map(|bar| ("progress", list::progress(bar))));
    let silence = match row.silence {
        Some(silence) => format!("last output {} ago", time(silence)),
        None => "no output".to_owned(),
    };
    fields.push(("output", silence));
    fields
}
