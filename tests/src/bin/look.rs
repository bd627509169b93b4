//! Looks into processes. `look PID...` writes what it sees as lines of JSON. `look --forever PID...` looks again and again.
//! `look --count N PID...` writes how long the threads were stopped.

use std::env;
use std::io::{self, Write};

use rankrun_core::Pid;
use rankrun_stacks::{Bounds, Looker};

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let pids: Vec<Pid> = words.iter().filter_map(|word| word.parse().ok()).map(Pid).collect();
    let mut looker = Looker::new(Bounds::default());
    match words.first().map(String::as_str) {
        Some("--forever") => loop {
            for pid in &pids {
                looker.look(*pid);
            }
        },
        Some("--count") => {
            let count = pids[0].0;
            let looks = (0..count).flat_map(|_| &pids[1..]).map(|pid| looker.look(*pid).stopped_us);
            let mut times: Vec<u32> = looks.collect();
            times.sort_unstable();
            let part = |percent: usize| times[(times.len() - 1) * percent / 100];
            writeln!(io::stdout(), "stopped: p50 {} us, p99 {} us, max {} us", part(50), part(99), part(100))
        }
        _ => pids.iter().try_for_each(|pid| {
            let seen = serde_json::to_string(&looker.look(*pid)).map_err(io::Error::other)?;
            writeln!(io::stdout(), "{seen}")
        }),
    }
}
