//! Whatever the ranks write, in whatever pieces: nothing is lost, nothing is torn, everything is in order.

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use rankrun_core::{Rank, RankSet, Stream};
use rankrun_output::{CUT_MARK, Config, Mode};
use support::{Job, tagged};

const RANKS: u32 = 4;

/// A rank writes these bytes to a stream, and then so many milliseconds pass.
#[derive(Clone, Debug)]
struct Step {
    rank: u32,
    stream: Stream,
    bytes: Vec<u8>,
    pause: u64,
}

/// Bytes of all kinds but `\r`, which has a meaning of its own; with many newlines.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        3 => Just(b'\n'),
        12 => b'a'..=b'd',
        2 => prop_oneof![Just(0u8), Just(0xFF), Just(0xC3), Just(b' '), Just(b'['), Just(0x1B)],
    ];
    proptest::collection::vec(byte, 0..24)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![4 => Just(0), 1 => 0u64..50, 1 => 90u64..250, 1 => 500u64..1500];
    let step = (0..RANKS, any::<bool>(), bytes(), pause).prop_map(|(rank, is_error, bytes, pause)| Step {
        rank,
        stream: Stream::ALL[usize::from(is_error)],
        bytes,
        pause,
    });
    proptest::collection::vec(step, 0..60)
}

/// Runs a job to its end and returns what came out of stdout and stderr.
fn run(config: Config, steps: &[Step]) -> [Vec<u8>; 2] {
    let mut job = Job::new(config);
    for step in steps {
        job.write(step.rank, step.stream, &step.bytes).pass(step.pause);
    }
    for rank in 0..RANKS {
        job.close(rank);
    }
    job.finish();
    [job.stdout_bytes(), job.stderr_bytes()]
}

type Lines = BTreeMap<(u32, usize), Vec<Vec<u8>>>;

/// The lines of each source, as the ranks wrote them.
fn written(steps: &[Step]) -> Lines {
    let mut all: BTreeMap<(u32, usize), Vec<u8>> = BTreeMap::new();
    for step in steps {
        all.entry((step.rank, step.stream.index())).or_default().extend_from_slice(&step.bytes);
    }
    all.retain(|_, bytes| !bytes.is_empty());
    all.into_iter().map(|(source, bytes)| (source, split(&bytes))).collect()
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// The rows that are no previews.
fn rows(bytes: &[u8]) -> Vec<Vec<u8>> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut rows = split(bytes);
    rows.retain(|row| !row.ends_with(CUT_MARK.as_bytes()));
    rows
}

/// The lines of each source, as their tags say.
fn shown(out: &[Vec<u8>; 2]) -> Lines {
    let mut lines = Lines::new();
    for (stream, bytes) in out.iter().enumerate() {
        for row in rows(bytes) {
            let end = row.iter().position(|byte| *byte == b']').expect("a tag");
            assert_eq!(row.get(end + 1), Some(&b' '), "a row without its tag: {row:?}");
            let ranks = std::str::from_utf8(&row[1..end]).expect("a tag");
            let ranks: RankSet = ranks.parse().expect("a tag");
            for rank in (0..RANKS).filter(|rank| ranks.contains(Rank(*rank))) {
                lines.entry((rank, stream)).or_default().push(row[end + 2..].to_vec());
            }
        }
    }
    lines
}

/// What is left of the lines of a text when each `\r` overwrites what was before it.
fn last_states(text: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let mut states = line.strip_suffix(b"\n").unwrap_or(line).split(|byte| *byte == b'\r');
        let last = states.rfind(|state| !state.is_empty()).unwrap_or_default();
        if line.ends_with(b"\n") || !last.is_empty() {
            lines.push(last.to_vec());
        }
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Bars, prompts and lines on a terminal: in the end the screen holds the last state of every line, in order.
    #[test]
    fn a_terminal_shows_every_line_once_in_order(steps in steps(), is_folded in any::<bool>()) {
        const ROWS: u16 = 2000;
        // No line is so long that it wraps.
        const COLUMNS: u16 = 250;
        let mut steps = steps;
        for step in &mut steps {
            step.bytes.retain(|byte| byte.is_ascii_graphic() || *byte == b'\n');
            for byte in step.bytes.iter_mut().filter(|byte| **byte == b'd') {
                *byte = b'\r';
            }
        }
        let mode = if is_folded { Mode::Folded } else { Mode::Line };
        let config = Config {
            status: Some((ROWS, COLUMNS)),
            same_destination: true,
            tag: Some("[{rank}] {stream}:".parse().expect("a template")),
            ..Config::new(mode, RANKS)
        };
        let [out, _] = run(config, &steps);
        let size = |count| std::num::NonZero::new(count).expect("a screen has rows and columns");
        let mut screen = vt100::Parser::new(size(ROWS), size(COLUMNS), 0);
        for row in out.split_inclusive(|byte| *byte == b'\n') {
            screen.process(row);
            if row.ends_with(b"\n") {
                screen.process(b"\r");
            }
        }
        let mut seen = Lines::new();
        for row in screen.screen().rows(0, COLUMNS).filter(|row| !row.is_empty()) {
            if row.ends_with(CUT_MARK) {
                continue;
            }
            let (tag, text) = row.split_once(':').expect("a tag");
            let (ranks, stream) = tag[1..].split_once("] ").expect("a tag");
            let ranks: RankSet = ranks.parse().expect("a tag");
            for rank in (0..RANKS).filter(|rank| ranks.contains(Rank(*rank))) {
                let stream = usize::from(stream == "stderr");
                seen.entry((rank, stream)).or_default().push(text.as_bytes().to_vec());
            }
        }
        let mut all: BTreeMap<(u32, usize), Vec<u8>> = BTreeMap::new();
        for step in &steps {
            all.entry((step.rank, step.stream.index())).or_default().extend_from_slice(&step.bytes);
        }
        let mut expected: Lines = all.into_iter().map(|(source, bytes)| (source, last_states(&bytes))).collect();
        expected.retain(|_, lines| !lines.is_empty());
        prop_assert_eq!(seen, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tagged_lines_are_whole_and_in_order(steps in steps()) {
        for mode in [Mode::Line, Mode::Grouped, Mode::Folded] {
            let out = run(tagged(Config::new(mode, RANKS)), &steps);
            prop_assert_eq!(shown(&out), written(&steps), "{:?}", mode);
        }
    }

    #[test]
    fn tagged_lines_of_both_streams_in_one_destination_are_whole(steps in steps()) {
        let config = Config {
            same_destination: true,
            tag: Some("[{rank}] {stream}:".parse().expect("a template")),
            ..Config::new(Mode::Line, RANKS)
        };
        let [out, nothing] = run(config, &steps);
        prop_assert!(nothing.is_empty());
        let mut lines = Lines::new();
        for ((rank, _), rows) in shown(&[out, nothing]) {
            for row in rows {
                let (stream, text) = row.split_at("stdout:".len());
                let stream = usize::from(stream == b"stderr:");
                lines.entry((rank, stream)).or_default().push(text.to_vec());
            }
        }
        prop_assert_eq!(lines, written(&steps));
    }

    #[test]
    fn untagged_lines_are_whole(steps in steps()) {
        let out = run(Config::new(Mode::Line, RANKS), &steps);
        for stream in [0, 1] {
            let mut expected: Vec<Vec<u8>> = written(&steps)
                .into_iter()
                .filter(|((_, of), _)| *of == stream)
                .flat_map(|(_, lines)| lines)
                .collect();
            let mut seen = rows(&out[stream]);
            expected.sort();
            seen.sort();
            prop_assert_eq!(seen, expected);
        }
    }

    #[test]
    fn one_rank_that_is_alone_is_byte_exact(chunks in proptest::collection::vec((bytes(), 0u64..200), 0..40)) {
        let all: Vec<u8> = chunks.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let steps: Vec<Step> = chunks
            .into_iter()
            .map(|(bytes, pause)| Step { rank: 0, stream: Stream::Stdout, bytes, pause })
            .collect();
        for mode in [Mode::Line, Mode::Raw, Mode::Grouped] {
            let [out, _] = run(Config::new(mode, RANKS), &steps);
            prop_assert_eq!(&out, &all, "{:?}", mode);
        }
    }

    #[test]
    fn raw_bytes_of_each_rank_are_all_there_in_order(steps in steps()) {
        let mut steps = steps;
        // Each rank writes different letters, to distinguish them.
        for step in &mut steps {
            for byte in &mut step.bytes {
                *byte = *byte % 60 * 4 + step.rank as u8;
            }
        }
        let out = run(Config::new(Mode::Raw, RANKS), &steps);
        for stream in [0, 1] {
            for rank in 0..RANKS {
                let of_rank = |bytes: &[u8]| -> Vec<u8> {
                    bytes.iter().copied().filter(|byte| u32::from(byte % 4) == rank).collect()
                };
                let expected: Vec<u8> = steps
                    .iter()
                    .filter(|step| step.stream.index() == stream && step.rank == rank)
                    .flat_map(|step| step.bytes.clone())
                    .collect();
                prop_assert_eq!(of_rank(&out[stream]), expected);
            }
        }
    }

    /// With `\r` only the last states remain: those of every line, in order, however the bytes were cut into chunks.
    #[test]
    fn last_states_do_not_depend_on_the_chunks(
        text in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), b'a'..=b'c'], 0..80),
        cuts in proptest::collection::vec(1usize..6, 1..40),
        is_terminal in any::<bool>(),
    ) {
        let expected: Vec<u8> =
            last_states(&text).iter().flat_map(|line| [b"[0] ", &line[..], b"\n"].concat()).collect();
        let config = Config {
            status: is_terminal.then_some((24, 80)),
            status_on: Stream::Stdout,
            partial_after: [None; 2],
            ..tagged(Config::new(Mode::Line, 1))
        };
        let mut job = Job::new(config);
        let mut rest = &text[..];
        for cut in cuts.iter().cycle().take_while(|_| !text.is_empty()) {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            job.out(0, now);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        job.close(0).finish();
        prop_assert_eq!(job.stdout_bytes(), expected);
    }
}
