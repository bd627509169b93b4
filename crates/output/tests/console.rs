//! What comes out of a console that is no terminal, mode by mode.

mod support;

use std::time::Duration;

use rankrun_core::Stream;
use rankrun_output::{Config, MAX_LINE, Mode, PARTIAL_AFTER};
use support::{Job, tagged};

fn line(world_size: u32) -> Config {
    Config::new(Mode::Line, world_size)
}

#[test]
fn lines_of_several_ranks_interleave_whole() {
    let mut job = Job::new(tagged(line(11)));
    job.out(0, "one\ntw").out(10, "ten ").err(0, "error\n").out(0, "o\n").out(10, "eleven\n");
    assert_eq!(job.stdout(), "[ 0] one\n[ 0] two\n[10] ten eleven\n");
    assert_eq!(job.stderr(), "[ 0] error\n");
}

#[test]
fn a_prompt_is_shown_after_100_ms_of_quiet() {
    let mut job = Job::new(tagged(line(2)));
    job.out(0, "Na").pass(60).out(0, "me: ").pass(60);
    assert_eq!(job.stdout(), "");
    job.pass(40);
    assert_eq!(job.stdout(), "[0] Name: ");
    job.out(0, "x").out(0, "y\nz\n");
    assert_eq!(job.stdout(), "xy\n[0] z\n");
}

#[test]
fn each_stream_has_its_own_quiet() {
    let second = Some(Duration::from_secs(1));
    let mut job = Job::new(Config { partial_after: [second, Some(PARTIAL_AFTER)], ..tagged(line(2)) });
    job.out(0, "out").err(0, "err").pass(100);
    assert_eq!((job.stdout().as_str(), job.stderr().as_str()), ("", "[0] err"));
    job.pass(900);
    assert_eq!((job.stdout().as_str(), job.stderr().as_str()), ("[0] out", ""));
    let mut job = Job::new(Config { partial_after: [None, second], ..tagged(line(2)) });
    job.out(0, "out").err(0, "err").pass(1_000);
    assert_eq!((job.stdout().as_str(), job.stderr().as_str()), ("", "[0] err"));
}

#[test]
fn a_prompt_that_another_rank_interrupts_is_shown_again_as_a_whole_line() {
    let mut job = Job::new(tagged(line(2)));
    job.out(0, "Name: ").pass(100).out(1, "hello\n").out(0, "Bob\n").pass(1000);
    assert_eq!(job.stdout(), "[0] Name:  […]\n[1] hello\n[0] Name: Bob\n");
    let mut job = Job::new(line(2));
    job.out(0, "Name: ").pass(100).out(1, "hello\n").close(0).close(1).finish();
    assert_eq!(job.stdout(), "Name:  […]\nhello\nName: ");
}

#[test]
fn streams_with_one_destination_share_its_rows() {
    let config = Config { same_destination: true, ..tagged(line(1)) };
    let mut job = Job::new(config);
    job.out(0, "prompt").pass(100).err(0, "warning\n").out(0, "!\n");
    assert_eq!(job.stdout(), "[0] prompt […]\n[0] warning\n[0] prompt!\n");
    assert_eq!(job.stderr(), "");
    let mut job = Job::new(tagged(line(1)));
    job.out(0, "prompt").pass(100).err(0, "warning\n").out(0, "!\n");
    assert_eq!((job.stdout().as_str(), job.stderr().as_str()), ("[0] prompt!\n", "[0] warning\n"));
}

#[test]
fn nothing_is_shown_early_where_that_is_not_wanted_or_the_destination_is_behind() {
    let config = Config { partial_after: [None; 2], ..line(1) };
    let mut job = Job::new(config);
    job.out(0, "part").pass(10_000);
    assert_eq!(job.stdout(), "");
    job.close(0);
    assert_eq!(job.stdout(), "part");

    let mut job = Job::new(line(1));
    let wall = std::time::Duration::ZERO;
    let lines = format!("{}\nprompt", "x".repeat(100_000));
    job.presenter.output(job.now, wall, rankrun_core::Rank(0), Stream::Stdout, lines.as_bytes());
    job.presenter.tick(std::time::Duration::from_secs(1));
    assert_eq!(job.presenter.pending(Stream::Stdout).len(), 100_001);
    job.now = std::time::Duration::from_secs(1);
    job.take().pass(100);
    assert!(job.stdout().ends_with("x\nprompt"));
}

#[test]
fn an_unterminated_last_line_is_flushed_and_nothing_is_glued_to_it() {
    let mut job = Job::new(line(2));
    job.out(0, "a\nlast").close(0);
    assert_eq!(job.stdout(), "a\nlast");
    job.out(1, "b\n");
    assert_eq!(job.stdout(), "\nb\n");
    let mut job = Job::new(tagged(line(2)));
    job.out(0, "last").close(0);
    assert_eq!(job.stdout(), "[0] last\n");
    let mut job = Job::new(tagged(line(2)));
    job.out(0, "prompt").pass(100).close(0).close(0).finish();
    assert_eq!(job.stdout(), "[0] prompt\n");
}

#[test]
fn a_line_of_1_mib_is_whole_and_a_longer_one_is_cut_with_a_mark() {
    let longest = "x".repeat(MAX_LINE);
    let mut job = Job::new(tagged(line(2)));
    for (at, piece) in longest.as_bytes().chunks(65_536).enumerate() {
        job.out(0, piece).out(1, format!("{at}\n"));
    }
    job.out(0, "\n");
    let text = job.stdout();
    assert_eq!(text.lines().last(), Some(format!("[0] {longest}").as_str()));
    job.out(0, &longest).out(0, "rest").out(1, "between\n").out(0, " of it\nnext\n");
    let text = job.stdout();
    let cut = format!("[0] {longest} […]\n[1] between\n[0] […] rest of it\n[0] next\n");
    assert!(text == cut, "{} bytes", text.len());
}

#[test]
fn a_long_line_that_was_already_open_is_cut_and_goes_on() {
    let mut job = Job::new(tagged(line(1)));
    job.out(0, "begin ").pass(100).out(0, "y".repeat(MAX_LINE)).pass(100).out(0, "\n");
    let text = job.stdout();
    let expected = format!("[0] begin {} […]\n[0] […] yyyyyy\n", "y".repeat(MAX_LINE - 6));
    assert!(text == expected, "{} bytes", text.len());
}

#[test]
fn a_line_that_is_cut_inside_a_character_already_shown_goes_on_behind_it() {
    let mut job = Job::new(line(1));
    let begin = [&vec![b'z'; MAX_LINE - 1][..], b"\xc3"].concat();
    job.out(0, &begin).pass(100).out(0, b"\xa9\n");
    let mark = " […]\n[…] ".as_bytes();
    let expected = [&begin[..], mark, b"\xa9\n"].concat();
    assert!(job.stdout_bytes() == expected);
}

#[test]
fn only_the_last_state_of_a_progress_line_is_printed_and_crlf_ends_a_line() {
    let mut job = Job::new(tagged(line(1)));
    job.out(0, "10%\r").pass(500).out(0, "50%").pass(500).out(0, "\r100%\nnext\r\n\r1%\r2%").pass(500).close(0);
    assert_eq!(job.stdout(), "[0] 100%\n[0] next\n[0] 2%\n");
    let mut job = Job::new(Config::new(Mode::Raw, 1));
    job.out(0, "10%\r100%\r\n");
    assert_eq!(job.stdout(), "10%\r100%\r\n");
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    let bytes = b"\xff\xfe\0\x80\xc3\n\0\n\xe2\x82";
    let mut job = Job::new(line(1));
    job.out(0, &bytes[..4]).out(0, &bytes[4..]).close(0);
    assert_eq!(job.stdout_bytes(), bytes);
    let mut job = Job::new(Config::new(Mode::Raw, 1));
    job.out(0, bytes).close(0).finish();
    assert_eq!(job.stdout_bytes(), bytes);
}

#[test]
fn only_the_chosen_ranks_are_shown_and_none_shows_nobody() {
    let only = "1,3".parse().expect("a set");
    let mut job = Job::new(Config { only, ..line(4) });
    for rank in 0..4 {
        job.out(rank, format!("{rank}\n"));
    }
    assert_eq!(job.stdout(), "1\n3\n");
    let mut job = Job::new(Config::new(Mode::None, 1));
    job.out(0, "a\n").close(0).finish();
    assert_eq!(job.stdout(), "");
    job.presenter.notice(job.now, "rankrun: rank 0 failed");
    job.take();
    assert_eq!(job.stderr(), "rankrun: rank 0 failed\n");
}

#[test]
fn timestamps_and_colours_stand_before_the_text() {
    let config = Config { timestamps: true, ..tagged(line(2)) };
    let mut job = Job::new(config);
    job.out(0, "a\nb").pass(99).out(0, "\nc\n");
    insta::assert_snapshot!(job.stdout(), @r"
    2026-03-01T12:00:00.000Z [0] a
    2026-03-01T12:00:00.099Z [0] b
    2026-03-01T12:00:00.099Z [0] c
    ");
    let template = "{time} {node}:{local_rank}/{stream} ".parse().expect("a template");
    let config = Config { color: true, tag: Some(template), ..line(4) };
    let mut job = Job::new(config);
    job.err(2, "a\n").err(3, "b\n");
    insta::assert_snapshot!(job.stderr().escape_debug(), @r"\u{1b}[32m2026-03-01T12:00:00.000Z node1:0/stderr \u{1b}[0ma\n\u{1b}[35m2026-03-01T12:00:00.000Z node1:1/stderr \u{1b}[0mb\n");
}

#[test]
fn our_own_lines_end_the_row_that_stands_open() {
    let mut job = Job::new(tagged(line(1)));
    job.err(0, "prompt").pass(100);
    job.presenter.notice(job.now, "rankrun: stopping");
    job.take();
    assert_eq!(job.stderr(), "[0] prompt […]\nrankrun: stopping\n");
    let mut job = Job::new(Config::new(Mode::Raw, 1));
    job.err(0, "raw");
    job.presenter.notice(job.now, "rankrun: stopping");
    job.take();
    assert_eq!(job.stderr(), "raw\nrankrun: stopping\n");
}

#[test]
fn grouped_output_comes_at_the_end_rank_by_rank() {
    let mut job = Job::new(tagged(Config::new(Mode::Grouped, 3)));
    job.out(2, "c\n").out(0, "a").err(0, "error\n").out(2, "d").pass(1000).out(0, "b\n");
    job.close(2).close(0);
    assert_eq!(job.stdout(), "");
    job.finish();
    assert_eq!(job.stdout(), "[0] ab\n[2] c\n[2] d\n");
    assert_eq!(job.stderr(), "[0] error\n");
    let mut job = Job::new(Config::new(Mode::Grouped, 3));
    job.out(1, "b").out(0, "a").close(0).close(1).finish();
    assert_eq!(job.stdout(), "a\nb");
}

#[test]
fn grouped_output_beyond_the_memory_waits_in_a_file_if_there_is_one() {
    let directory = tempfile::tempdir().expect("a directory");
    for temp_dir in [directory.path().to_owned(), directory.path().join("missing")] {
        let config = Config { temp_dir, ..Config::new(Mode::Grouped, 3) };
        let mut job = Job::new(config);
        for number in 0..30_000 {
            for rank in 0..3 {
                job.out(rank, format!("{rank} {number:0150}\n"));
            }
        }
        job.finish();
        let expected = (0..3).flat_map(|rank| (0..30_000).map(move |number| format!("{rank} {number:0150}")));
        assert!(job.stdout().lines().eq(expected));
    }
}

#[test]
fn grouped_output_is_handed_out_in_pieces() {
    let mut job = Job::new(Config::new(Mode::Grouped, 1));
    let block = "line\n".repeat(10_000);
    for _ in 0..400 {
        job.out(0, &block);
    }
    job.close(0);
    let (mut pieces, mut total) = (0, 0);
    loop {
        let is_more = job.presenter.finish(job.now);
        let piece = std::mem::take(job.presenter.pending(Stream::Stdout)).len();
        assert!(piece <= 5 << 20, "{piece} bytes at once");
        (pieces, total) = (pieces + 1, total + piece);
        if !is_more {
            break;
        }
    }
    assert_eq!(total, 400 * block.len());
    assert!(pieces > 4);
}

#[test]
fn identical_lines_fold_and_each_rank_keeps_its_order() {
    let mut job = Job::new(Config::new(Mode::Folded, 4));
    for rank in 0..4 {
        job.out(rank, "start\n");
    }
    assert_eq!(job.stdout(), "[0-3] start\n", "a line of all ranks need not wait");
    job.out(0, "a\nb\n").out(1, "b\na\n").out(3, "a\nb\n").pass(99);
    assert_eq!(job.stdout(), "");
    job.pass(1);
    assert_eq!(job.stdout(), "[0,3] a\n[0-1,3] b\n[1] a\n");
    job.out(0, "same\nsame\n").out(1, "same\n").close(0).pass(2000);
    assert_eq!(job.stdout(), "[0-1] same\n[0] same\n");
}

#[test]
fn a_folded_line_waits_for_a_second_at_most_and_a_prompt_for_nothing() {
    let mut job = Job::new(Config::new(Mode::Folded, 100));
    for rank in 0..30 {
        job.out(rank, "slow\n").pass(50);
    }
    assert_eq!(job.stdout(), "[0-19] slow\n");
    job.pass(1000).stdout();
    job.out(0, "question\nName: ").pass(100);
    assert_eq!(job.stdout(), "[0] question\n[0] Name: ");
    job.out(0, "Bob\n").out(1, "x").close(1).finish();
    assert_eq!(job.stdout(), "Bob\n[1] x\n");
}

#[test]
fn lines_fold_behind_one_that_differs_from_rank_to_rank() {
    let mut job = Job::new(Config::new(Mode::Folded, 8));
    for rank in 0..8 {
        job.out(rank, format!("rank {rank}\nloaded\nit 1\n"));
    }
    job.pass(99);
    assert_eq!(job.stdout(), "");
    job.pass(1);
    let own: String = (0..8).map(|rank| format!("[{rank}] rank {rank}\n")).collect();
    assert_eq!(job.stdout(), format!("{own}[0-7] loaded\n[0-7] it 1\n"));
}

#[test]
fn ranks_in_equal_steps_share_a_short_tag() {
    let mut job = Job::new(Config::new(Mode::Folded, 200));
    for rank in 0..200 {
        job.out(rank, if rank % 3 == 0 { "third\n" } else { "other\n" });
    }
    job.pass(200);
    let text = job.stdout();
    assert!(text.starts_with("[0-198/3] third\n[1-2,4-5,7-8,"), "{text}");
}

#[test]
fn folded_tags_may_be_chosen() {
    let template = "{node}.{local_rank}[{rank}]: ".parse().expect("a template");
    let config = Config { tag: Some(template), ..Config::new(Mode::Folded, 8) };
    let mut job = Job::new(config);
    job.out(2, "a\nc\n").out(3, "a\nb\n").out(4, "b\n").finish();
    assert_eq!(job.stdout(), "node1.*[2-3]: a\nnode1.0[2]: c\n*.*[3-4]: b\n");
}
