//! Hangs in many languages, of which the odd rank, its place and its kind of wait are known (`tests/hangs/*.cases`; the form is in
//! `tests/src/hangs.rs`), and healthy programs that `--stall 3s:kill` must not end.
//!
//! One test for each case, `file::name`. CI plays those that are marked `sample`; RANKRUN_TEST_SCALE=full plays all.
//! A hang is right if, once the ranks are where they stay, all of several looks name the odd rank, its place and its kind.
//!
//! The first look after the ranks have come to rest is also counted by itself, as a user may look only once: the score is printed at
//! the end where all cases are played by one process (`cargo test -p rankrun-tests --test hang_cases`). When the ranks have come to rest
//! is decided without the expectation of the case.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rankrun_core::stacks::Frame;
use rankrun_core::stacks::calls::Wait;
use rankrun_core::stacks::fold::{Row, Table};
use rankrun_tests::cases::in_thread;
use rankrun_tests::hangs::{Hang, hangs};
use rankrun_tests::{
    Job, Running, Stdin, full_scale, listed_job, pause, processes, rankrun, scratch, slowness, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

/// How long the ranks may take to their places.
const BOUND: Duration = Duration::from_secs(40);
/// Looks that must be right, one after another.
const LOOKS: u32 = 4;
/// How long a healthy program runs under `--stall 3s:kill`, which takes 4.5 s to end a job; twice as long beside others.
const HEALTHY: u32 = 8;
/// The ranks have come to rest if so many looks, with this time between them, show each in the same kind of wait.
const SAME: usize = 4;
const BETWEEN: Duration = Duration::from_millis(300);
/// Calls in which a rank has not begun yet.
const STARTS: [&str; 4] = ["MPI_Init", "MPI_Init_thread", "init_process_group", "_find_and_load"];
/// These sets shall never become smaller, nor what CI plays of them.
const HANGS: usize = 80;
const HEALTHY_PROGRAMS: usize = 40;
const SAMPLE_OF_HANGS: usize = 14;
const SAMPLE_OF_HEALTHY_PROGRAMS: usize = 4;

/// What the first look at ranks at rest has shown of each hang that this process has played: its fault, if it was wrong.
static FIRST_LOOKS: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let all = hangs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("hangs"));
    let count = |is_healthy: bool, of_sample: bool| {
        all.iter().filter(|hang| hang.healthy == is_healthy && (hang.sample || !of_sample)).count()
    };
    let sizes = [
        ("hangs", count(false, false), HANGS),
        ("healthy programs", count(true, false), HEALTHY_PROGRAMS),
        ("hangs that CI plays", count(false, true), SAMPLE_OF_HANGS),
        ("healthy programs that CI plays", count(true, true), SAMPLE_OF_HEALTHY_PROGRAMS),
    ];
    let chosen = all.into_iter().filter(|hang| hang.sample || full_scale(true, false));
    let mut trials: Vec<Trial> = chosen
        .map(|hang| {
            let name = hang.name.clone();
            Trial::test(name.clone(), move || in_thread(&name, move || play(&hang)).map_err(Failed::from))
        })
        .collect();
    trials.push(Trial::test("the_sets_have_their_size", move || {
        match sizes.into_iter().find(|(_, size, least)| size < least) {
            Some((what, size, least)) => Err(Failed::from(format!("{size} {what}, must be {least}"))),
            None => Ok(()),
        }
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    print_score();
    conclusion.exit_code()
}

#[expect(clippy::print_stdout, reason = "the score is for whoever runs all cases")]
fn print_score() {
    let looks = FIRST_LOOKS.lock().expect("nobody panics with it");
    let wrong: Vec<(&String, &String)> =
        looks.iter().filter_map(|(name, fault)| Some((name, fault.as_ref()?))).collect();
    if !looks.is_empty() {
        println!(
            "first look: odd rank, place and kind are right of {} of {} hangs",
            looks.len() - wrong.len(),
            looks.len()
        );
    }
    for (name, fault) in wrong {
        println!("  {name}: {fault}");
    }
}

fn play(hang: &Hang) -> Result<(), String> {
    let Some(path) = hang.program.path() else { return Ok(()) };
    let work = scratch();
    hang.program.prepare(&path, &work, &Path::new(env!("CARGO_TARGET_TMPDIR")).join("hangs"));
    let mut words: Vec<String> = ["-n", &hang.ranks.to_string(), "--report-dir", "report"].map(str::to_owned).to_vec();
    if hang.healthy {
        let timeout = format!("{}s", HEALTHY * slowness().min(2));
        words.extend(["--stall", "3s:kill", "--timeout", &timeout, "--grace", "1s"].map(str::to_owned));
    }
    words.push("--".to_owned());
    words.extend(hang.run.iter().cloned());
    let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
    let stdin = if hang.stdin_is_pipe { Stdin::File(File::from(reader)) } else { Stdin::Null };
    let mut job = Job::new(words).current_dir(&work).stdin(stdin).env("PATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
    for (name, value) in &hang.variables {
        job = job.env(name, value);
    }
    let result = if hang.healthy { play_healthy(job) } else { play_hang(hang, job) };
    fs::remove_dir_all(&work).expect("the directory is ours");
    result
}

fn play_healthy(job: Job) -> Result<(), String> {
    let ended = job.bound(BOUND * slowness() * 2).run();
    if ended.code == Some(124) {
        Ok(())
    } else {
        Err(format!("it ended with {:?}: {}", ended.code, ended.stderr_text()))
    }
}

fn play_hang(hang: &Hang, job: Job) -> Result<(), String> {
    let running = job.start();
    let id = id(&running);
    let first = first_look(hang, &id);
    let fault = first.as_ref().err().and_then(|fault| fault.lines().next()).map(str::to_owned);
    FIRST_LOOKS.lock().expect("nobody panics with it").insert(hang.name.clone(), fault);
    let mut last = first;
    wait_until(BOUND * slowness(), || {
        if last.is_err() {
            last = look(hang, &id);
        }
        last.is_ok().then_some(())
    });
    for _ in 1..LOOKS {
        last = last.and_then(|()| look(hang, &id));
    }
    processes::send(running.front(), Signal::TERM);
    let ended = running.finish(BOUND * 2);
    last.map_err(|fault| format!("{fault}\n{}", ended.stderr_text()))
}

fn id(running: &Running) -> String {
    let found = wait_until(BOUND * slowness(), || listed_job(running.front()));
    found.expect("the job is in the list")
}

/// What is wrong with the first look at ranks at rest.
fn first_look(hang: &Hang, id: &str) -> Result<(), String> {
    let mut same: Vec<BTreeMap<u32, String>> = Vec::new();
    let mut last = Err("there was no look".to_owned());
    wait_until(BOUND * slowness(), || {
        pause(BETWEEN);
        last = table(id);
        let kinds = last.as_ref().ok().filter(|table| !is_starting(table, hang.ranks)).map(kinds)?;
        if same.last() != Some(&kinds) {
            same.clear();
        }
        same.push(kinds);
        (same.len() >= SAME).then_some(())
    });
    last.and_then(|table| judged(hang, &table))
}

/// Whether some rank is not seen yet or is in the start of a library, or all are at work.
fn is_starting(table: &Table, ranks: u32) -> bool {
    let kinds = kinds(table);
    let is_start = |function: &str| STARTS.iter().any(|start| function.rsplit('.').next() == Some(start));
    let starts = table.rows.iter().flat_map(|row| &row.place.calls).any(|call| is_start(&call.function));
    starts || kinds.len() < ranks as usize || kinds.values().all(|kind| kind == "nothing")
}

fn kinds(table: &Table) -> BTreeMap<u32, String> {
    table.rows.iter().flat_map(|row| row.ranks.iter().map(move |rank| (rank.number(), kind(row)))).collect()
}

/// What a row waits for, as the report has it, with its call.
fn kind(row: &Row) -> String {
    let kind = serde_json::to_value(&row.place.wait).unwrap_or_default();
    let call = kind["call"].as_str().map(|call| format!(" {call}")).unwrap_or_default();
    format!("{}{call}", kind["for"].as_str().unwrap_or_default())
}

/// One look; what is wrong with it.
fn look(hang: &Hang, id: &str) -> Result<(), String> {
    judged(hang, &table(id)?)
}

fn judged(hang: &Hang, table: &Table) -> Result<(), String> {
    let shown = table.lines(160, 20).join("\n");
    fault(hang, table).map_or(Ok(()), |fault| Err(format!("{fault}\n{shown}")))
}

fn table(id: &str) -> Result<Table, String> {
    let asked = Command::new(rankrun()).args(["stacks", id, "--json"]).output().expect("rankrun can be started");
    let answer: Value = serde_json::from_slice(&asked.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&asked.stderr)))?;
    serde_json::from_value(answer["table"].clone()).map_err(|error| error.to_string())
}

fn fault(hang: &Hang, table: &Table) -> Option<String> {
    let odd: Vec<u32> = table.odd.iter().flat_map(|odd| odd.ranks.iter()).map(|rank| rank.number()).collect();
    let expected = ranks(&hang.odd);
    if odd != expected {
        return Some(format!("odd is {odd:?}, must be {expected:?}"));
    }
    if let Some(says) = &hang.says
        && !table.remark.as_deref().unwrap_or_default().contains(says.as_str())
    {
        return Some(format!("the remark is {:?}, must have \"{says}\"", table.remark));
    }
    let row_of = |rank: u32| table.rows.iter().find(|row| row.ranks.iter().any(|of_row| of_row.number() == rank));
    for rank in &expected {
        let Some(row) = row_of(*rank) else { return Some(format!("rank {rank} has no row")) };
        if !hang.kind.contains(&kind(row)) {
            return Some(format!("rank {rank} is in {}, must be in {}", kind(row), hang.kind.join(" or ")));
        }
    }
    if let (Some((functions, file)), Some(rank)) = (&hang.place, expected.first()) {
        let is_named = |frame: &Frame, function: &str| {
            frame.function == function || frame.function.rsplit('.').next() == Some(function)
        };
        let chain: Vec<&str> = functions.split('<').collect();
        let is_it = |row: &Row| {
            row.place.calls.windows(chain.len()).any(|frames| {
                let is_chain = frames.iter().zip(&chain).all(|(frame, function)| is_named(frame, function));
                is_chain && file.as_ref().is_none_or(|file| frames[0].file.as_ref() == Some(file))
            })
        };
        if !row_of(*rank).is_some_and(is_it) {
            return Some(format!("rank {rank} is not in {functions}"));
        }
    }
    let wrong = table.rows.iter().find(|row| {
        let is_odd = row.ranks.iter().any(|rank| expected.contains(&rank.number()));
        !is_odd && !hang.others.is_empty() && !hang.others.contains(&kind(row)) && row.place.wait != Wait::Unknown
    });
    wrong.map(|row| format!("ranks {} are in {}, must be in {}", row.ranks, kind(row), hang.others.join(" or ")))
}

/// `2`, `1-2`, `none`.
fn ranks(text: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().expect("a rank");
    match text.split_once('-') {
        _ if text == "none" => Vec::new(),
        Some((first, last)) => (number(first)..=number(last)).collect(),
        None => vec![number(text)],
    }
}
