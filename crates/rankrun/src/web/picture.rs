//! What is shown of a job, as JSON. The texts are those of `rankrun top`. Pure.

use rankrun_core::printable::printable;
use rankrun_core::top::{Mark, Model, Row, Sort};
use serde::Serialize;
use serde_json::{Value, json};

use super::routes::Choice;
use crate::top::{self, Kind, Layout, Line};
use crate::words::quote_all;

/// Columns of the header: a browser wraps its lines.
const WIDE: usize = 400;
/// Odd ranks that are listed beside a grid.
const MOST_ODD: usize = 50;

/// A rank in a list.
#[derive(Serialize)]
struct Cells<'a> {
    rank: u32,
    node: &'a str,
    tone: &'static str,
    is_odd: bool,
    cells: Vec<String>,
    last: String,
}

/// The ranks of a node in a grid.
#[derive(Serialize)]
struct Node {
    name: String,
    ranks: Vec<u32>,
    /// A character for each.
    marks: String,
}

/// What a client is shown.
pub(super) fn picture(model: &Model, line: &Line, choice: &Choice) -> Value {
    let Some(status) = model.status() else { return json!({ "lines": lines(model, line) }) };
    let total = model.rows().len();
    let layout = choice.layout.unwrap_or(if total > top::MOST_LISTED { Layout::Grid } else { Layout::List });
    // A grid has each rank in its place.
    let sort = if layout == Layout::Grid { Sort::Rank } else { choice.sort };
    let rows = model.chosen(&choice.filter, sort);
    let mut picture = json!({
        "job": status.job,
        "command": printable(&quote_all(&status.command)),
        "title": title(model, line),
        "attempt": status.attempt,
        "state": status.state.name(),
        "is_over": is_over(line),
        "lines": lines(model, line),
        "sort": sort.name(),
        "sorts": Sort::ALL.map(Sort::name),
        "total": total,
        "chosen": rows.len(),
        "has_nodes": model.nodes().len() > 1,
        "odd": rows.iter().filter(|row| row.mark.is_some()).take(MOST_ODD).map(|row| cells(row, &[], line)).collect::<Vec<_>>(),
    });
    let rank = choice.rank.and_then(|rank| model.rows().iter().find(|row| row.rank() == rank));
    let shown = match layout {
        Layout::Grid => {
            json!({ "layout": "grid", "nodes": grid(&rows), "legend": legend(&rows), "tones": tones(&rows, line) })
        }
        Layout::List => {
            let columns = top::telling(model);
            let from = choice.from.min(rows.len().saturating_sub(1));
            let shown = rows.iter().skip(from).take(choice.count).map(|row| cells(row, &columns, line));
            let heads = columns
                .iter()
                .map(|column| json!({ "title": column.title, "is_number": column.is_number, "rest": column.rest }));
            json!({
                "layout": "list",
                "from": from,
                "columns": heads.collect::<Vec<_>>(),
                "rows": shown.collect::<Vec<_>>(),
            })
        }
    };
    add(&mut picture, shown);
    if let Some(row) = rank {
        add(&mut picture, json!({ "rank": of_rank(row, status.now, line) }));
    }
    picture
}

fn add(picture: &mut Value, more: Value) {
    if let (Value::Object(picture), Value::Object(more)) = (picture, more) {
        picture.extend(more);
    }
}

fn is_over(line: &Line) -> bool {
    matches!(line, Line::Over { .. } | Line::Gone(_))
}

/// What the job does, in some words.
fn title(model: &Model, line: &Line) -> String {
    match (line, model.status()) {
        (Line::Over { exit_code, .. }, _) => format!("over, exit code {exit_code}"),
        (Line::Gone(_), _) => "gone".to_owned(),
        (_, Some(status)) => format!("{} {}", status.state.name(), top::time(status.now - status.since)),
        (_, None) => String::new(),
    }
}

/// The lines below the title.
fn lines(model: &Model, line: &Line) -> Vec<Value> {
    let Some(status) = model.status() else {
        let text = match line {
            Line::Live | Line::Silent(_) => "waiting for the job's answer".to_owned(),
            Line::Paused(front) => format!("paused: its rankrun, process {front}, is stopped"),
            Line::Over { summary, .. } => printable(summary).into_owned(),
            Line::Gone(why) => why.clone(),
        };
        return vec![json!({ "text": text, "is_alarm": *line != Line::Live })];
    };
    let lines = top::header(status, model.totals(), model.nodes().len(), line, WIDE);
    let is_over = is_over(line);
    // What they use now is nothing.
    let below = lines.into_iter().filter(|(_, kind)| *kind != Kind::Title && !(is_over && *kind == Kind::Plain));
    let seen = is_over.then(|| ("The ranks as they were seen last:".to_owned(), Kind::Plain));
    below.chain(seen).map(|(text, kind)| json!({ "text": apart(&text), "is_alarm": kind == Kind::Alarm })).collect()
}

/// In a terminal two spaces keep things apart.
fn apart(text: &str) -> String {
    text.replace("  ", " · ")
}

fn cells<'a>(row: &'a Row, columns: &[&top::Column], line: &Line) -> Cells<'a> {
    Cells {
        rank: row.rank().number(),
        node: &row.status.node,
        tone: tone(row, line),
        is_odd: row.mark.is_some(),
        cells: columns.iter().map(|column| (column.cell)(row)).collect(),
        last: match columns.is_empty() {
            // In the list of odd ranks.
            true => top::state(row).to_owned(),
            false => top::words(row),
        },
    }
}

/// How a rank is coloured. A word or a character says the same.
fn tone(row: &Row, line: &Line) -> &'static str {
    match row.mark {
        Some(Mark::Dead) => "bad",
        Some(Mark::Stopped) => "held",
        Some(Mark::Idle | Mark::Behind | Mark::Silent) => "odd",
        None if row.is_running() && !is_over(line) => "good",
        None => "dim",
    }
}

fn grid(rows: &[&Row]) -> Vec<Node> {
    let mut nodes: Vec<(&str, Node)> = Vec::new();
    for row in rows {
        let name = row.status.node.as_str();
        if nodes.last().is_none_or(|(last, _)| *last != name) {
            let name_shown = printable(name).into_owned();
            nodes.push((name, Node { name: name_shown, ranks: Vec::new(), marks: String::new() }));
        }
        if let Some((_, node)) = nodes.last_mut() {
            node.ranks.push(row.rank().number());
            node.marks.push_str(top::character(row));
        }
    }
    nodes.into_iter().map(|(_, node)| node).collect()
}

/// What the characters of the grid mean.
fn legend(rows: &[&Row]) -> Vec<(&'static str, &'static str, usize)> {
    let count = |character: &str| rows.iter().filter(|row| top::character(row) == character).count();
    let legend = top::LEGEND.into_iter().map(|(character, word)| (character, word, count(character)));
    legend.filter(|(_, _, count)| *count > 0).collect()
}

/// The tone of each character that is there.
fn tones(rows: &[&Row], line: &Line) -> Value {
    rows.iter()
        .map(|row| (top::character(row).to_owned(), Value::from(tone(row, line))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn of_rank(row: &Row, now: f64, line: &Line) -> Value {
    let fields: Vec<(&str, String)> =
        top::fields(row, now).into_iter().map(|(name, value)| (name, printable(&value).into_owned())).collect();
    json!({
        "rank": row.rank(),
        "tone": tone(row, line),
        "fields": fields,
        "last": row.status.last_line.as_deref().map(printable).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use rankrun_core::Rank;

    use super::*;

    #[test]
    fn a_small_job_is_a_list_with_the_texts_of_top() {
        let shown = picture(&top::model(64), &Line::Live, &Choice { rank: Some(Rank(6)), ..Choice::default() });
        assert_eq!((&shown["layout"], &shown["total"], &shown["chosen"]), (&"list".into(), &64.into(), &64.into()));
        let titles: Vec<&str> =
            shown["columns"].as_array().expect("a list").iter().filter_map(|it| it["title"].as_str()).collect();
        assert_eq!(
            titles,
            ["RANK", "STATE", "PHASE", "CPU%", "MEM", "READ/s", "WRIT/s", "GPU%", "GMEM", "PROGRESS", "SILENT"]
        );
        let idle = &shown["rows"][5];
        assert_eq!((&idle["tone"], &idle["is_odd"], &idle["cells"][1]), (&"odd".into(), &true.into(), &"idle".into()));
        assert_eq!((&shown["rank"]["rank"], &shown["rank"]["tone"]), (&6.into(), &"bad".into()));
        assert!(shown["lines"].to_string().contains("64 ranks on 8 nodes: 63 running, 1 failed"), "{}", shown["lines"]);
        let page = Choice { from: 60, count: 3, sort: Sort::Odd, filter: "node".to_owned(), ..Choice::default() };
        let shown = picture(&top::model(64), &Line::Live, &page);
        assert_eq!((&shown["from"], shown["rows"].as_array().map(Vec::len)), (&60.into(), Some(3)));
    }

    #[test]
    fn a_large_job_is_a_grid_that_is_short() {
        let shown = picture(&top::model(1024), &Line::Live, &Choice::default());
        assert_eq!((&shown["layout"], &shown["nodes"][0]["marks"]), (&"grid".into(), &"...T.iX.".into()));
        assert_eq!((&shown["tones"]["X"], &shown["legend"][1]), (&"bad".into(), &json!(["X", "dead", 1])));
        let length = shown.to_string().len();
        assert!(length < 20_000, "{length} bytes");
        let listed = Choice { layout: Some(Layout::List), ..Choice::default() };
        let shown = picture(&top::model(4096), &Line::Live, &listed);
        assert_eq!(shown["rows"].as_array().map(Vec::len), Some(200));
    }

    #[test]
    fn what_is_over_or_unknown_uses_nothing_now() {
        let line = Line::Over { exit_code: 137, summary: "rank 2 failed: SIGKILL".to_owned() };
        let shown = picture(&top::model(4), &line, &Choice::default());
        assert_eq!((&shown["title"], &shown["is_over"]), (&"over, exit code 137".into(), &true.into()));
        let lines = [
            json!({ "text": "rank 2 failed: SIGKILL", "is_alarm": true }),
            json!({ "text": "The ranks as they were seen last:", "is_alarm": false }),
        ];
        assert_eq!((&shown["lines"], &shown["rows"][0]["tone"]), (&json!(lines), &"dim".into()));
        let shown = picture(&Model::default(), &Line::Paused(42), &Choice::default());
        assert_eq!(shown["lines"][0]["text"], "paused: its rankrun, process 42, is stopped");
    }
}
