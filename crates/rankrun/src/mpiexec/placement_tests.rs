//! On which host each rank of a command line of mpiexec or mpirun runs: as the launchers themselves did it, which were tried with an ssh that
//! starts every host on one machine (MPICH 5.0.2, Intel MPI 2021.18 with 2 CPUs, Open MPI 4.1.4 and 5.0.11).

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{Around, read};
use crate::dialect::{Reading, Stop};
use crate::invocation::{Invocation, read_job};
use crate::layout::layout;
use crate::plan::Surroundings;

/// The lines, and the host files that they name.
const TABLE: &str = include_str!("placements.txt");

/// The rows of three fields: which launchers, the line, and the host of each rank; or `file`, its name, and its lines.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    TABLE.lines().filter(|text| !text.starts_with('#')).map(|text| {
        let mut fields = text.split('\t');
        let mut next = || fields.next().expect("there are three fields");
        (next(), next(), next())
    })
}

/// The addresses of hosts: nobody has them, and no resolver is asked.
const ADDRESSES: &[(&str, &str)] = &[("a", "203.0.113.1"), ("b", "203.0.113.2"), ("c", "203.0.113.3")];

/// Replaces the letters of hosts by addresses in a list or a file.
fn with_addresses(text: &str) -> String {
    let is_end = |next: Option<char>| next.is_none_or(|next| !next.is_alphanumeric());
    let mut written = String::new();
    let mut before: Option<char> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let address = ADDRESSES.iter().find(|(name, _)| name.starts_with(letter)).map(|(_, address)| *address);
        match address.filter(|_| is_end(before) && is_end(letters.peek().copied())) {
            Some(address) => written.push_str(address),
            None => written.push(letter),
        }
        before = Some(letter);
    }
    written
}

/// The words of a line, with host files in a directory.
fn words(line: &str, directory: &Path) -> Vec<OsString> {
    let mut is_list = false;
    line.split(' ')
        .map(|word| {
            let written = match (is_list, rows().find(|(kind, name, _)| *kind == "file" && *name == word)) {
                (_, Some((_, name, _))) => directory.join(name).into_os_string(),
                (true, None) => with_addresses(word).into(),
                (false, None) => word.into(),
            };
            is_list = ["-host", "--host", "-hosts", "-H"].contains(&word);
            written
        })
        .collect()
}

/// What becomes of the options of `mpiexec`, or of the launcher that the line begins with.
fn translated(line: &str, directory: &Path) -> Result<Reading, String> {
    let (name, line) = match line.split_once(' ') {
        Some((name, rest)) if super::is_name(OsStr::new(name)) => (name, rest),
        _ => ("mpiexec", line),
    };
    read(&words(line, directory), &Around { name: OsStr::new(name), env: &[], packages: || 2, numa_nodes: || 3 })
        .map_err(|stop| match stop {
            Stop::Problem(problem) => problem.to_string(),
            Stop::Help | Stop::Version | Stop::Text(_) => "a text".to_owned(),
        })
}

/// The host of each rank, as a letter.
fn homes(line: &str, directory: &Path) -> Result<String, String> {
    let reading = translated(line, directory)?;
    let read = read_job(reading.words, reading.is_one_command).map_err(|problem| problem.to_string())?;
    let Invocation::Job(segments) = read else { return Err("no job".to_owned()) };
    let settings = crate::settings::resolve(&segments, &[]).map_err(|problem| problem.to_string())?;
    let around = Surroundings {
        job: rankrun_core::JobId("7f3a91c2".to_owned()),
        env: Vec::new(),
        cwd: "/".into(),
        host: "vm".to_owned(),
        cpus: OnceCell::from(2),
        gpus: OnceCell::from(0),
        terminals: [false; 3],
        foreground: false,
        same_destination: false,
        are_files: [true; 2],
        is_stdin_given: false,
        window: None,
    };
    let map = layout(&settings, &around).map_err(|problem| problem.to_string())?.map;
    let letter = |name: &str| ADDRESSES.iter().find(|(_, address)| *address == name).map_or("?", |(letter, _)| *letter);
    Ok(map.places().iter().map(|place| letter(map.node_name(place.node))).collect())
}

fn host_files() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (_, name, text) in rows().filter(|(kind, ..)| *kind == "file") {
        let text = text.replace(", ", "\n") + "\n";
        std::fs::write(directory.path().join(name), with_addresses(&text)).expect("it can be written");
    }
    directory
}

#[test]
fn ranks_run_on_the_hosts_that_the_launchers_take() {
    let directory = host_files();
    let mut wrong = Vec::new();
    for (launcher, line, expected) in rows().filter(|(kind, ..)| *kind != "file") {
        let placed = homes(line, directory.path());
        if placed.as_deref() != Ok(expected) {
            wrong.push(format!("{line}: {placed:?}, and {launcher} has {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn hosts_without_room_for_a_command_are_refused() {
    let directory = host_files();
    for line in ["-n 2 -host a:1 ./A : -n 2 -host b:1 ./B", "-n 4 -host a,b ./A : -n 1 -host c ./B", "-H a,b -n 3 ./A"]
    {
        let placed = homes(line, directory.path());
        assert!(placed.as_ref().is_err_and(|problem| problem.contains("cannot place")), "{line}: {placed:?}");
    }
}

#[test]
fn an_order_on_which_launchers_differ_is_said() {
    let directory = host_files();
    let warnings = |line: &str| translated(line, directory.path()).expect(line).warnings.len();
    assert_eq!(warnings("-host a,b,a -n 3 ./A"), 1, "aba under MPICH, aab under Open MPI");
    for line in ["-host a:2,b:1 -n 5 ./A", "-host a,b,a -n 4 ./A", "-host a,b -n 3 ./A"] {
        assert_eq!(warnings(line), 1, "{line}: Open MPI refuses it");
    }
    assert_eq!(warnings("-hosts a:2,b:1 -n 5 ./A"), 0, "Open MPI has no such option");
    for line in ["-hosts a,b,a -n 3 ./A", "-H a,b,a -n 3 ./A", "-host a,a,b -n 3 ./A", "-machinefile F6 -n 3 ./A"] {
        assert_eq!(warnings(line), 0, "{line}");
    }
}
