//! What a terminal shows: the picture, not the bytes.

mod support;

use std::num::NonZero;
use std::time::Duration;

use rankrun_core::Stream;
use rankrun_output::{Config, Mode};
use support::{Job, tagged};

const COLUMNS: u16 = 30;

fn size(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a screen has rows and columns")
}

/// A job on a terminal of 30 columns.
struct Terminal {
    job: Job,
    screen: vt100::Parser,
}

impl Terminal {
    fn new(rows: u16, world_size: u32) -> Terminal {
        Terminal::with(rows, tagged(Config::new(Mode::Line, world_size)))
    }

    fn with(rows: u16, config: Config) -> Terminal {
        let config = Config { status: Some((rows, COLUMNS)), same_destination: true, ..config };
        Terminal { job: Job::new(config), screen: vt100::Parser::new(size(rows), size(COLUMNS), 1000) }
    }

    /// The rows that hold anything, with `|` where the cursor is.
    fn picture(&mut self) -> String {
        // The terminal's line discipline makes `\r\n` of `\n` (ONLCR).
        let mut last = 0;
        for byte in self.job.stdout_bytes() {
            if byte == b'\n' && last != b'\r' {
                self.screen.process(b"\r");
            }
            self.screen.process(&[byte]);
            last = byte;
        }
        let screen = self.screen.screen();
        let (row, column) = screen.cursor_position();
        let mut rows: Vec<String> = screen.rows(0, COLUMNS).collect();
        let at = &mut rows[usize::from(row)];
        let padded = format!("{at:0$}", usize::from(column));
        let (before, after) =
            padded.split_at(padded.char_indices().nth(column.into()).map_or(padded.len(), |(i, _)| i));
        *at = format!("{before}|{after}");
        rows.join("\n").trim_end().to_owned()
    }
}

#[test]
fn a_line_that_clears_its_row_keeps_its_tag() {
    let begins =
        ["", "\x1b[2K", "\r\x1b[2K", "\x1b[1G\x1b[K", "\x1b[G\x1b[1K", "\x1b[2K\r", "\x1b[1m\x1b[2K", "\x1b[5D\x08"];
    for begin in begins {
        for mode in [Mode::Line, Mode::Folded, Mode::Grouped] {
            for piece in [1, 100] {
                let mut terminal = Terminal::with(10, tagged(Config::new(mode, 2)));
                let text = format!("one\n{begin}hello\n{begin}Name: ");
                text.as_bytes().chunks(piece).for_each(|piece| {
                    terminal.job.out(0, piece);
                });
                terminal.job.pass(300);
                terminal.job.close(0).finish();
                assert_eq!(terminal.picture(), "[0] one\n[0] hello\n[0] Name: \n|", "{begin:?} {mode:?}");
            }
        }
    }
}

#[test]
fn a_line_that_goes_back_to_its_first_column_keeps_its_tag() {
    for back in ["\r", "\x1b[1G", "\x1b[0G", "\x1b[`", "\x1b[2K\x1b[1G"] {
        let mut terminal = Terminal::new(10, 2);
        terminal.job.out(0, format!("loading{back}\x1b[2Kdone\n")).close(0).finish();
        assert_eq!(terminal.picture(), "[0] done\n|", "{back:?}");
    }
}

#[test]
fn a_prompt_that_begins_in_the_first_column_is_shown() {
    let mut job = Job::new(tagged(Config::new(Mode::Line, 2)));
    job.out(0, "\x1b[1G\x1b[0J> ").pass(100);
    assert_eq!(job.stdout(), "[0] \x1b[0J> ");
}

#[test]
fn bars_stand_below_the_lines_and_go_when_they_end() {
    let mut terminal = Terminal::new(10, 2);
    terminal.job.out(0, "hello\n").err(0, "\r 10%").err(1, "5%\r").pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] hello
    [0]  10%
    [1] 5%|
    ");
    terminal.job.out(1, "above\n").err(0, "\r 20%").pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] hello
    [1] above
    [0]  20%
    [1] 5%|
    ");
    terminal.job.err(0, "\r100%\n").pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] hello
    [1] above
    [0] 100%
    [1] 5%|
    ");
    terminal.job.err(1, "99%").close(1).close(0).finish();
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] hello
    [1] above
    [0] 100%
    [1] 99%
    |
    ");
}

#[test]
fn a_bar_whose_stream_ends_becomes_a_line_and_the_others_stay() {
    let mut terminal = Terminal::new(10, 2);
    terminal.job.err(0, "\r10%").err(1, "\r5%").pass(100).close(0).pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] 10%
    [1] 5%|
    ");
}

#[test]
fn at_most_eight_rows_are_taken_and_none_is_wider_than_the_terminal() {
    let mut terminal = Terminal::new(12, 512);
    for rank in 0..512 {
        terminal.job.err(rank, format!("\r\x1b[K{rank} {}", "=".repeat(60)));
    }
    terminal.job.pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [  0] 0 =====================
    [  1] 1 =====================
    [  2] 2 =====================
    [  3] 3 =====================
    [  4] 4 =====================
    [  5] 5 =====================
    [  6] 6 =====================
    and 505 more|
    ");
    for number in 0..20 {
        terminal.job.out(0, format!("line {number}\n")).pass(100);
    }
    insta::assert_snapshot!(terminal.picture(), @r"
    [  0] line 16
    [  0] line 17
    [  0] line 18
    [  0] line 19
    [  0] 0 =====================
    [  1] 1 =====================
    [  2] 2 =====================
    [  3] 3 =====================
    [  4] 4 =====================
    [  5] 5 =====================
    [  6] 6 =====================
    and 505 more|
    ");
    terminal.job.presenter.resize(terminal.job.now, (4, COLUMNS));
    terminal.job.pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [  0] line 16
    [  0] line 17
    [  0] line 18
    [  0] line 19
    [  0] 0 =====================
    [  1] 1 =====================
    and 510 more|
    ");
    for rank in 0..512 {
        terminal.job.close(rank);
    }
    terminal.job.finish();
    let picture = terminal.picture();
    let last = format!("[511] 511 {}\n{}\n{}\n|", "=".repeat(20), "=".repeat(30), "=".repeat(10));
    assert!(picture.ends_with(&last), "{picture}");
}

#[test]
fn the_region_is_redrawn_fifteen_times_a_second_at_most_and_only_if_it_changed() {
    let mut terminal = Terminal::new(10, 4);
    let mut draws = 0;
    for step in 0..2000 {
        terminal.job.err(step % 4, format!("\r{step}")).pass(1);
        draws += usize::from(!terminal.job.stdout_bytes().is_empty());
    }
    assert!((28..=30).contains(&draws), "{draws} in 2 s");
    terminal.job.pass(100).stdout_bytes();
    for _ in 0..100 {
        terminal.job.err(3, "\r1999").pass(10);
    }
    assert_eq!(terminal.job.stdout(), "");
    assert!(terminal.job.presenter.next_deadline().is_none_or(|due| due > terminal.job.now));
}

#[test]
fn lines_wait_for_the_next_redraw_and_no_longer() {
    let mut terminal = Terminal::new(10, 2);
    terminal.job.err(0, "\r1%").pass(100).stdout();
    terminal.job.out(1, "line\n");
    let due = terminal.job.presenter.next_deadline().expect("the line is to be printed");
    assert!(due <= terminal.job.now + Duration::from_millis(67));
    terminal.job.pass(67);
    insta::assert_snapshot!(terminal.job.stdout().escape_debug(), @r"\r\u{1b}[J[1] line\n[0] 1%");
    terminal.job.out(1, "long\n".repeat(20_000));
    assert!(terminal.job.stdout_bytes().len() > 100_000, "much output does not wait in memory");
}

#[test]
fn a_prompt_stands_in_its_own_row_and_a_bar_ends_it() {
    let mut terminal = Terminal::new(10, 2);
    terminal.job.out(0, "Name: ").pass(100);
    assert_eq!(terminal.picture(), "[0] Name: |");
    terminal.job.err(1, "\r5%").pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] Name:  […]
    [1] 5%|
    ");
    terminal.job.out(0, "again? ").pass(200);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] Name:  […]
    [0] Name: again? 
    [1] 5%|
    ");
    terminal.job.out(0, "so? ").pass(67);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] Name:  […]
    [0] Name: again? so? 
    [1] 5%|
    ");
    terminal.job.out(0, "yes\n").err(1, "\n").pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] Name:  […]
    [0] Name: again? so? yes
    [1] 5%
    |
    ");
}

#[test]
fn a_prompt_that_turns_out_to_be_a_bar_leaves_no_trace() {
    let mut terminal = Terminal::new(10, 1);
    terminal.job.out(0, "0%").pass(100);
    assert_eq!(terminal.picture(), "[0] 0%|");
    terminal.job.out(0, "\r50%").pass(100).out(0, "\r100%\n").pass(100);
    assert_eq!(terminal.picture(), "[0] 100%\n|");
}

#[test]
fn lines_of_a_pty_show_as_they_are_and_draw_no_region() {
    let mut terminal = Terminal::new(10, 1);
    terminal.job.out(0, "a\r\nb\r").pass(20).out(0, "\nc\r\n").pass(100);
    let bytes = terminal.job.stdout();
    assert_eq!(bytes, "[0] a\n[0] b\n[0] c\n");
}

#[test]
fn our_own_lines_stand_above_the_region() {
    let mut terminal = Terminal::new(10, 1);
    terminal.job.out(0, "\r1%").pass(100);
    terminal.job.presenter.notice(terminal.job.now, "rankrun: rank 0 is silent");
    terminal.job.pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    rankrun: rank 0 is silent
    [0] 1%|
    ");
}

#[test]
fn an_unterminated_untagged_last_line_stays_whole_above_the_region() {
    let mut terminal = Terminal::with(10, Config::new(Mode::Line, 2));
    terminal.job.err(1, "\r1%").pass(100).out(0, "last").close(0).pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    last
    1%|
    ");
    terminal.job.close(1).finish();
    insta::assert_snapshot!(terminal.picture(), @r"
    last
    1%|
    ");
}

#[test]
fn a_stream_that_is_no_terminal_has_no_region() {
    let config =
        Config { status: Some((10, COLUMNS)), status_on: Stream::Stderr, ..tagged(Config::new(Mode::Line, 1)) };
    let mut job = Job::new(config);
    job.out(0, "\r1%").err(0, "\r2%").pass(100);
    assert_eq!((job.stdout().as_str(), job.stderr().as_str()), ("", "[0] 2%"));
    job.out(0, "\r3%\n").err(0, "\r4%\n").pass(100).finish();
    assert_eq!((job.stdout().as_str(), job.stderr().as_str()), ("[0] 3%\n", "\r\x1b[J[0] 4%\n"));
}

#[test]
fn folded_lines_stand_above_the_region() {
    let mut terminal = Terminal::with(10, Config::new(Mode::Folded, 3));
    for rank in 0..3 {
        terminal.job.err(rank, format!("\r{rank}%")).pass(100).out(rank, "step\n");
    }
    terminal.job.pass(200);
    insta::assert_snapshot!(terminal.picture(), @r"
    [0] step
    [1] step
    [2] step
    [0] 0%
    [1] 1%
    [2] 2%|
    ");
}

#[test]
fn the_last_note_of_each_rank_stands_below_the_bars_and_the_same_ones_share_a_row() {
    let mut terminal = Terminal::new(10, 4);
    for (rank, text) in [(0, "epoch 1"), (1, "epoch 1"), (3, "epoch 1"), (2, "sav\x1b[2Jing"), (0, "epoch 2")] {
        assert!(terminal.job.presenter.note(terminal.job.now, rankrun_core::Rank(rank), text));
    }
    terminal.job.out(1, "line\n").err(2, "\r5%").pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [1] line
    [2] 5%
    [0] epoch 2
    [1,3] epoch 1
    [2] sav\x1b[2Jing|
    ");
    terminal.job.presenter.ended(terminal.job.now, rankrun_core::Rank(2));
    terminal.job.close(2).pass(100);
    insta::assert_snapshot!(terminal.picture(), @r"
    [1] line
    [2] 5%
    [0] epoch 2
    [1,3] epoch 1|
    ");
    terminal.job.finish();
    insta::assert_snapshot!(terminal.picture(), @r"
    [1] line
    [2] 5%
    |
    ");
}

#[test]
fn without_a_region_notes_are_left_to_others() {
    let mut job = Job::new(Config::new(Mode::Line, 2));
    assert!(!job.presenter.note(job.now, rankrun_core::Rank(0), "epoch 1"));
    job.pass(100);
    assert_eq!((job.stdout(), job.stderr()), (String::new(), String::new()));
}
