//! Skipping, which is always by name, and the scale of a run.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;
use std::time::Duration;

/// Notes that the calling test cannot run here, and why; the test then returns. In CI this fails the test.
///
/// # Panics
/// If `CI` is `true`.
pub fn skip(reason: &str) {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
    assert!(!ci, "{name} cannot be skipped in CI: {reason}");
    if let Some(path) = env::var_os("RANKRUN_TEST_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        // A note that is lost makes a skipped test count as passed, so it must not be.
        let written = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(written.is_ok(), "{name}: cannot note that it was skipped: {reason}");
    }
}

/// How many times as long as on an idle machine things may take: several tests run at a time, and under `cargo xtask test --loaded`
/// beside busy loops.
pub fn slowness() -> u32 {
    let factor = env::var("RANKRUN_TEST_SLOWNESS").ok().and_then(|value| value.parse().ok());
    factor.unwrap_or(1).max(1)
}

/// How long a process that has something to do may wait for a CPU on a busy machine. Beside six busy loops and 16 ranks that yield, on
/// two CPUs of Linux 6.18, one that only slept was run 6.5 s late, and rankrun's front 13 s.
const STARVED: Duration = Duration::from_secs(20);

/// The most that something may take here which takes `limit` on an idle machine.
pub fn in_time(limit: Duration) -> Duration {
    limit * slowness() + STARVED
}

/// Whether this is `cargo xtask test --loaded`.
pub fn is_loaded() -> bool {
    env::var_os("RANKRUN_TEST_LOADED").is_some_and(|value| !value.is_empty())
}

/// `full` in a soak run, else `brief`: how often a test repeats what it does.
pub fn full_scale<T>(full: T, brief: T) -> T {
    if env::var_os("RANKRUN_TEST_SCALE").is_some_and(|value| value == "full") { full } else { brief }
}
