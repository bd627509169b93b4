//! The matrix: programs in many languages that fail as programs do, and healthy ones that must be left alone.
//!
//! Each case (`tests/matrix/*.cases`, form in `tests/src/matrix.rs`) is a small program and what is true of it, which was
//! written down by looking at the program and not at rankrun: who failed, the class, the program's words that the headline
//! must have, what became of the others, the exit code. Beside that every failure is told of in at most 20 lines, with a
//! headline that fits into one, and within seconds; and of no job a process is left. Of a healthy job rankrun says nothing, and
//! nothing of it is killed or missing.
//!
//! One test for each case, `language::name`. A case whose toolchain is not there is skipped by name. Under load
//! (`cargo xtask test --loaded`) the cases run that are marked `loaded`, and all with `RANKRUN_TEST_SCALE=full`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rankrun_tests::cases::{in_thread, with_times};
use rankrun_tests::matrix::{Case, cases};
use rankrun_tests::{Ended, Job, in_time, is_loaded, scratch, slowness};
use serde_json::Value;

/// Of a report, and of a job's end on stderr.
const MAX_LINES: usize = 20;
const MAX_COLUMNS: usize = 200;

/// The matrix shall never become smaller than this.
const FAILURES: usize = 120;
const HEALTHY: usize = 40;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let all = cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("matrix"));
    let healthy = all.iter().filter(|case| case.healthy).count();
    let failures = all.len() - healthy;
    let chosen = all.into_iter().filter(|case| case.loaded || !is_loaded());
    let mut trials: Vec<Trial> = chosen
        .map(|case| {
            let name = case.name.clone();
            Trial::test(name.clone(), move || in_thread(&name, move || run(&case)).map_err(Failed::from))
        })
        .collect();
    trials.push(Trial::test("the_matrix_has_its_size", move || {
        let enough = failures >= FAILURES && healthy >= HEALTHY;
        if enough { Ok(()) } else { Err(Failed::from(format!("{failures} failures, {healthy} healthy programs"))) }
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(case: &Case) -> Result<(), String> {
    let Some(path) = case.program.path() else { return Ok(()) };
    let directory = scratch();
    let result = run_in(case, &path, &directory);
    fs::remove_dir_all(&directory).expect("the directory is ours");
    result
}

fn run_in(case: &Case, path: &str, directory: &Path) -> Result<(), String> {
    let (work, reports) = (directory.join("work"), directory.join("report"));
    fs::create_dir(&work).expect("the directory is ours");
    case.program.prepare(path, &work, &Path::new(env!("CARGO_TARGET_TMPDIR")).join("matrix"));
    let mut words = vec!["--report-dir".to_owned(), reports.display().to_string()];
    words.extend(["-n".to_owned(), case.ranks.to_string()]);
    words.extend(case.options.iter().map(|word| with_times(word, slowness())));
    words.extend(case.run.iter().cloned());
    let mut job = Job::new(words).current_dir(&work).env("PATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
    for (name, value) in &case.variables {
        job = job.env(name, value);
    }
    let ended = job.run();
    let report = fs::read_to_string(reports.join("report.json")).ok();
    let report: Value = report.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let faults = faults(case, &ended, &report);
    if faults.is_empty() {
        return Ok(());
    }
    let stderr = ended.stderr_text();
    let tail = stderr.char_indices().rev().nth(3000).map_or(0, |(index, _)| index);
    let summary = report["summary"].as_str().unwrap_or("(no report)");
    Err(format!("{}\n  summary: {summary}\n{}", faults.join("\n"), &stderr[tail..]))
}

/// What is said or done otherwise than it must.
fn faults(case: &Case, ended: &Ended, report: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |what: &str, is: String, allowed: &[String]| {
        if !allowed.contains(&is) {
            faults.push(format!("{what} is {is}, must be {}", allowed.join(" or ")));
        }
    };
    let named = |value: &Value| value.as_str().map_or_else(|| "none".to_owned(), str::to_owned);
    let codes: Vec<String> = case.code.iter().map(i32::to_string).collect();
    // What an interrupt ends, ends by that signal; a shell sees 128 and the signal.
    let code = ended.code.or(ended.signal.filter(|_| report["class"] == "interrupted").map(|signal| 128 + signal));
    let code = code.map_or_else(|| format!("signal {:?}", ended.signal), |code| code.to_string());
    check("exit code", code, &codes);
    check("reported code", report["exit_code"].to_string(), &codes);
    check("class", named(&report["class"]), &case.class);
    let culprit = report["culprit"]["rank"].as_u64();
    check("culprit", culprit.map_or_else(|| "none".to_owned(), |rank| rank.to_string()), &case.culprit);
    let left = &report["left"];
    let left = format!("{} {}", left["proven"], left["processes"]);
    check("left", left, &["true []".to_owned()]);
    let of_culprit = ["culprit".to_owned()];
    for rank in report["ranks"].as_array().into_iter().flatten() {
        let number = rank["rank"].as_u64().unwrap_or_default();
        let allowed = match case.fates.get(&(number as u32)) {
            _ if culprit == Some(number) => &of_culprit,
            Some(fates) => &fates[..],
            None => &case.rest,
        };
        check(&format!("fate of rank {number}"), named(&rank["fate"]), allowed);
    }
    let lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    for line in &case.prints {
        if !lines.contains(line) {
            faults.push(format!("stdout has no line \"{line}\": {:?}", &lines[..lines.len().min(20)]));
        }
    }
    for (rank, text) in &case.how {
        let how = named(&report["ranks"][*rank as usize]["how"]);
        if !how.contains(text) {
            faults.push(format!("how rank {rank} ended is \"{how}\", must have \"{text}\""));
        }
    }
    for rank in report["ranks"].as_array().into_iter().flatten() {
        let how = named(&rank["how"]);
        for text in case.how_not.iter().filter(|text| how.contains(text.as_str())) {
            faults.push(format!("rank {} ended like \"{how}\", must not have \"{text}\"", rank["rank"]));
        }
    }
    faults.extend(if case.healthy { faults_of_words(case, ended) } else { faults_of_report(case, ended, report) });
    faults
}

/// Of a healthy job nothing is said but what the case names.
fn faults_of_words(case: &Case, ended: &Ended) -> Vec<String> {
    let stderr = ended.stderr_text();
    let ours = stderr.lines().filter(|line| line.contains("rankrun"));
    let unexpected = ours.filter(|line| !case.notes.iter().any(|note| line.contains(note)));
    let mut faults: Vec<String> = unexpected.map(|line| format!("it is warned: {line}")).collect();
    let missing = case.notes.iter().filter(|note| !stderr.contains(note.as_str()));
    faults.extend(missing.map(|note| format!("it is not said: {note}")));
    faults
}

fn faults_of_report(case: &Case, ended: &Ended, report: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let stderr = ended.stderr_text();
    let summary = report["summary"].as_str().unwrap_or_default();
    let told: Vec<&str> = stderr.lines().skip_while(|line| !is_headline(line, summary)).collect();
    let headline = told.first().copied().unwrap_or_default();
    for text in case.says.iter().filter(|text| !headline.contains(text.as_str())) {
        faults.push(format!("the headline has no \"{text}\""));
    }
    for text in case.says_not.iter().filter(|text| headline.contains(text.as_str())) {
        faults.push(format!("the headline has \"{text}\""));
    }
    if headline.chars().count() > MAX_COLUMNS || headline.chars().any(is_dangerous) {
        faults.push(format!("the headline is no plain line of {MAX_COLUMNS} columns: {headline:?}"));
    }
    if !(1..=MAX_LINES).contains(&told.len()) {
        faults.push(format!("the report has {} lines", told.len()));
    }
    if let Some(at) = report["culprit"]["at"].as_f64() {
        let took = Duration::from_secs_f64((report["seconds"].as_f64().unwrap_or_default() - at).max(0.0));
        if took > in_time(Duration::from_secs(case.within.into())) {
            faults.push(format!("it ended {took:?} after the failure"));
        }
    }
    faults
}

/// Whether the report begins here. What cannot be printed is escaped, and what is long is cut, so that only the beginning is
/// compared.
fn is_headline(line: &str, summary: &str) -> bool {
    let plain = summary.chars().take_while(|letter| letter.is_ascii_graphic() || *letter == ' ');
    let beginning: String = plain.take(60).collect();
    let rest = line.strip_prefix("rankrun: ").or_else(|| line.strip_prefix("error: "));
    !beginning.is_empty() && rest.is_some_and(|rest| rest.starts_with(&beginning))
}

/// What a terminal obeys, and what changes the direction of the text.
fn is_dangerous(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
