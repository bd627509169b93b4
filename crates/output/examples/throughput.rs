//! Measures what tagging costs: 332 MB of 83-byte lines in chunks of 64 KiB from four ranks.
//!
//! `cargo run --release -p rankrun-output --example throughput`

use std::io::Write;
use std::time::{Duration, Instant};

use rankrun_core::{AppIndex, LocalRank, Rank, Stream};
use rankrun_output::{Config, Mode, Names, Presenter, Template};

const LINES_PER_RANK: usize = 1_000_000;
const RANKS: u32 = 4;
const CHUNK: usize = 64 * 1024;

fn main() -> std::io::Result<()> {
    let line = [vec![b'x'; 82], vec![b'\n']].concat();
    let input = line.repeat(LINES_PER_RANK);
    let mut report = std::io::stderr();
    let terminated = [vec![b'x'; 81], b"\r\n".to_vec()].concat().repeat(LINES_PER_RANK);
    let cases = [
        ("line, tagged", Mode::Line, true, false, CHUNK, &input),
        ("line, tagged, one line a write", Mode::Line, true, false, 83, &input),
        ("line, tagged, from a pty", Mode::Line, true, false, CHUNK, &terminated),
        ("line, tagged and timed", Mode::Line, true, true, CHUNK, &input),
        ("line", Mode::Line, false, false, CHUNK, &input),
        ("grouped, tagged", Mode::Grouped, true, false, CHUNK, &input),
        ("folded", Mode::Folded, false, false, CHUNK, &input),
        ("raw", Mode::Raw, false, false, CHUNK, &input),
    ];
    for (name, mode, is_tagged, timestamps, chunk, input) in cases {
        let config = Config { tag: is_tagged.then(Template::default), timestamps, ..Config::new(mode, RANKS) };
        let mut presenter = Presenter::new(config, |rank| Names {
            node: "node".to_owned(),
            local_rank: LocalRank(rank.0),
            app: AppIndex(0),
        });
        let mut out = Vec::new();
        let mut written = 0;
        let start = Instant::now();
        for chunk in input.chunks(chunk) {
            let now = start.elapsed();
            for rank in 0..RANKS {
                presenter.output(now, now, Rank(rank), Stream::Stdout, chunk);
                out.clear();
                std::mem::swap(&mut out, presenter.pending(Stream::Stdout));
                written += out.len();
            }
            presenter.tick(now);
        }
        for rank in 0..RANKS {
            presenter.closed(start.elapsed(), Rank(rank), Stream::Stdout);
        }
        loop {
            let is_more = presenter.finish(start.elapsed());
            out.clear();
            std::mem::swap(&mut out, presenter.pending(Stream::Stdout));
            written += out.len();
            if !is_more {
                break;
            }
        }
        let took: Duration = start.elapsed();
        let read = input.len() * RANKS as usize;
        writeln!(report, "{name}: {read} bytes in, {written} bytes out, {:.3} s", took.as_secs_f64())?;
    }
    Ok(())
}
