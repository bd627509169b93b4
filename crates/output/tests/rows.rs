//! Bars of several rows: captures of real programs on a terminal come out as that terminal shows them in the end.
//!
//! `captures/rich-15-two-tasks`: two tasks of `rich.progress`, a line printed between, one after. `captures/tqdm-4-positions`:
//! two bars of tqdm, of which the inner one is removed (`leave=False`), and two lines.

mod support;

use std::num::NonZero;
use std::time::Duration;

use rankrun_core::Stream;
use rankrun_output::{Config, Mode};
use support::{Job, tagged};

const RICH: &[u8] = include_bytes!("captures/rich-15-two-tasks");
const TQDM: &[u8] = include_bytes!("captures/tqdm-4-positions");
const COLUMNS: u16 = 60;

fn screen(rows: u16) -> vt100::Parser {
    let size = |count| NonZero::new(count).expect("a screen has rows and columns");
    vt100::Parser::new(size(rows), size(COLUMNS), 0)
}

/// What a terminal shows of this, row by row. Its line discipline makes `\r\n` of `\n`.
fn shown(bytes: &[u8], rows: u16) -> Vec<String> {
    let mut screen = screen(rows);
    for &byte in bytes {
        if byte == b'\n' {
            screen.process(b"\r");
        }
        screen.process(&[byte]);
    }
    let rows: Vec<String> = screen.screen().rows(0, COLUMNS).map(|row| row.trim_end().to_owned()).collect();
    let end = rows.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
    rows[..end].to_vec()
}

fn in_file(mode: Mode, bytes: &[u8], piece: usize) -> Vec<String> {
    let mut job = Job::new(Config { partial_after: [None; 2], ..Config::new(mode, 1) });
    for piece in bytes.chunks(piece) {
        job.out(0, piece);
    }
    job.close(0).finish();
    // Folded lines have a tag.
    job.stdout().lines().map(|line| line.trim_start_matches("[0] ").trim_end().to_owned()).collect()
}

#[test]
fn in_a_file_the_last_state_of_every_row_is_left() {
    let last = shown(RICH, 20);
    assert_eq!(last.len(), 4, "{last:?}");
    assert!(last[1].starts_with("alpha") && last[1].contains("100%") && last[3] == "after", "{last:?}");
    for mode in [Mode::Line, Mode::Grouped, Mode::Folded] {
        for piece in (1..40).chain([RICH.len()]) {
            assert_eq!(in_file(mode, RICH, piece), last, "{mode:?}, {piece} bytes at a time");
        }
    }
}

#[test]
fn bars_with_positions_leave_their_first_state_and_their_last() {
    for piece in (1..40).chain([TQDM.len()]) {
        let lines = in_file(Mode::Line, TQDM, piece);
        let printed: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        assert_eq!(
            printed,
            ["outer:   0%|          | 0/2", "outer: 100%|##########| 2/2", "after", "more"],
            "{piece} bytes at a time"
        );
    }
}

#[test]
fn on_a_terminal_the_rows_stand_in_the_region_and_become_lines() {
    for piece in [1, 7, 100, RICH.len()] {
        let config =
            Config { status: Some((12, COLUMNS)), same_destination: true, ..tagged(Config::new(Mode::Line, 2)) };
        let mut job = Job::new(config);
        let mut bytes = Vec::new();
        // Between two pictures.
        let again = b"\r\x1b[2K\x1b[1A";
        let half = (RICH.len() / 2..).find(|at| RICH[*at..].starts_with(again)).expect("there are several pictures");
        for part in RICH[..half].chunks(piece) {
            job.out(0, part).pass(10);
        }
        job.out(1, "other\n").pass(200);
        bytes.extend(job.stdout_bytes());
        let middle = shown(&bytes, 12);
        let bars = middle.iter().filter(|row| row.starts_with("[0] alpha") || row.starts_with("[0] beta")).count();
        assert!(bars == 2 && middle.contains(&"[1] other".to_owned()), "{piece}: {middle:#?}");
        for part in RICH[half..].chunks(piece) {
            job.out(0, part).pass(10);
        }
        job.pass(200).close(0).close(1).finish();
        bytes.extend(job.stdout_bytes());
        let last = shown(&bytes, 12);
        let own: Vec<String> = last.iter().filter_map(|row| row.strip_prefix("[0] ")).map(str::to_owned).collect();
        let expected: Vec<String> =
            shown(RICH, 20).iter().map(|row| row.chars().take(56).collect::<String>().trim_end().to_owned()).collect();
        let own: Vec<String> =
            own.iter().map(|row| row.chars().take(56).collect::<String>().trim_end().to_owned()).collect();
        assert_eq!(own, expected, "{piece}: {last:#?}");
    }
}

#[test]
fn lines_of_a_program_that_hides_the_cursor_come_out_within_two_seconds() {
    let mut job = Job::new(Config { partial_after: [None; 2], ..Config::new(Mode::Line, 1) });
    job.out(0, "\x1b[?25la line\n").pass(100);
    assert_eq!(job.stdout(), "", "it may be drawn anew");
    job.pass(2000);
    assert_eq!(job.stdout(), "a line\n");
    for number in 0..100 {
        job.out(0, format!("{number}\n"));
    }
    let lines = job.stdout().lines().count();
    assert!(lines >= 100 - 20, "{lines} lines");
    job.close(0).finish();
    assert_eq!(lines + job.stdout().lines().count(), 100);
    assert_eq!(job.presenter.next_deadline().map(|due| due > job.now + Duration::from_secs(9)), None);
}

#[test]
fn a_row_that_is_too_long_and_a_sequence_that_never_ends_are_text() {
    for text in [format!("\x1b[?25l{}", "x".repeat(10_000)), "a\x1b[2".to_owned(), "b\x1b".to_owned()] {
        let mut job = Job::new(Config::new(Mode::Line, 1));
        job.write(0, Stream::Stdout, &text).close(0).finish();
        assert_eq!(job.stdout(), text.trim_start_matches("\x1b[?25l"));
    }
}
