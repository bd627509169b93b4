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

/// Host files.
const FILES: &[(&str, &str)] = &[
    ("F1", "a\nb\n"),
    ("F2", "a:2\nb:2\n"),
    ("F3", "a slots=2\nb slots=2\n"),
    ("F4", "a\nb\na\n"),
    ("F5", "b:2\na:1\n"),
    ("F6", "a:1\nb:1\na:1\n"),
];

/// Which launchers place the ranks so, the command line, and the host of each rank. "Open MPI 5" is a line on which the two versions
/// differ or which 4 refuses.
const LINES: &[(&str, &str, &str)] = &[
    // Hosts of each command.
    ("Intel MPI", "-n 2 -host a ./A : -n 2 -host b ./B", "aabb"),
    ("Open MPI", "-n 2 -host a:2 ./A : -n 2 -host b:2 ./B", "aabb"),
    ("Open MPI", "-n 2 -host b:2 ./A : -n 2 -host a:2 ./B", "bbaa"),
    ("all", "-n 1 -host a ./A : -n 1 -host b ./B", "ab"),
    ("all", "-n 1 -host b ./A : -n 1 -host a ./B", "ba"),
    ("Intel MPI", "-n 1 -host a ./A : -n 3 -host b ./B", "abbb"),
    ("Intel MPI", "-host a -n 1 ./A : -host b -n 2 ./B", "abb"),
    ("Intel MPI", "-n 1 -host a ./A : -n 1 -host b ./B : -n 1 -host a ./C", "aba"),
    ("Intel MPI", "-n 2 -host b ./A : -n 1 -host a ./B : -n 1 -host b ./C", "bbab"),
    ("Open MPI", "-n 1 -H a ./A : -n 1 -H b ./B : -n 1 -H a:2 ./C", "aba"),
    ("Open MPI", "-n 2 -H a:2 ./A : -n 1 -H b:2 ./B : -n 1 -H a:3 ./C", "aaba"),
    ("Open MPI 5", "-n 2 -host a:2 ./A : -n 2 -host a:2 ./B", "aaaa"),
    ("Open MPI", "-n 1 -host a:2 ./A : -n 1 -host a:2 ./B", "aa"),
    ("Open MPI", "-n 2 -host a,b ./A : -n 1 -host c ./B", "abc"),
    ("Open MPI 5", "-n 2 -host a,b ./A : -n 2 -host a,b ./B", "abab"),
    ("Open MPI 5", "-n 2 -host a,b ./A : -n 2 -host b,c ./B", "abbc"),
    ("Open MPI", "-n 4 -host a:2,b:2 ./A : -n 2 -host c:2 ./B", "aabbcc"),
    ("Open MPI", "-n 3 -host a:2,b:2 ./A : -n 2 -host c:2 ./B", "aabcc"),
    ("Open MPI 5", "-n 1 -H a:2,b:2 ./A : -n 2 -H a:2,b:2 ./B", "aaa"),
    ("Open MPI", "-n 3 -H a:2,b:2 ./A : -n 1 -H b:2 ./B", "aabb"),
    ("Open MPI", "-n 2 -H a:2,b:2 --map-by node ./A : -n 2 -H c:2 ./B", "abcc"),
    ("Open MPI", "-H a --oversubscribe -n 2 ./A : -H b -n 2 ./B", "aabb"),
    ("Open MPI", "--hostfile F3 -n 1 -H b ./A : -n 1 -H a ./B", "ba"),
    // Hosts before one of several commands: they are for all.
    ("Intel MPI", "-n 1 -host a ./A : -n 1 ./B", "aa"),
    ("Intel MPI", "-n 1 ./A : -n 1 -host b ./B", "bb"),
    ("Open MPI", "-n 2 -host a:4 ./A : -n 2 ./B", "aaaa"),
    ("Open MPI", "-n 1 ./A : -n 1 -H a:2 ./B", "aa"),
    ("Intel MPI", "-n 4 -host a:2,b:2 ./A : -n 1 ./B", "aabba"),
    ("MPICH", "-n 1 ./A : -hosts a,b -n 3 ./B", "abab"),
    ("MPICH", "-n 1 -hosts a,b ./A : -n 3 ./B", "abab"),
    ("MPICH", "-hosts a,b -n 3 ./A : -n 1 ./B", "abab"),
    ("MPICH", "-hosts a:2,b:2 -n 1 ./A : -n 3 ./B", "aabb"),
    ("MPICH", "-machinefile F2 -n 3 ./A : -n 1 ./B", "aabb"),
    ("Intel MPI", "-hosts a,b -ppn 1 -n 1 ./A : -n 1 ./B", "ab"),
    ("Intel MPI", "-hosts a,b -ppn 2 -n 2 ./A : -n 2 ./B", "aabb"),
    ("Open MPI", "--hostfile F3 -n 3 ./A : -n 1 ./B", "aabb"),
    ("Open MPI", "-H a:2,b:2 --map-by node -n 3 ./A : -n 1 ./B", "abab"),
    // One command.
    ("MPICH", "-host a -n 2 ./A", "aa"),
    ("all", "-n 4 -host a:2,b:2 ./A", "aabb"),
    // Intel MPI fills the CPUs of each host first, which are known only there.
    ("MPICH", "-hosts a,b -n 4 ./A", "abab"),
    ("MPICH", "-f F1 -n 4 ./A", "abab"),
    ("MPICH", "-hosts a:2,b:2 -n 6 ./A", "aabbaa"),
    ("MPICH", "-hosts a:2,b:1 -n 7 ./A", "aabaaba"),
    ("MPICH", "-hosts a,b -ppn 2 -n 6 ./A", "aabbaa"),
    ("MPICH", "-hosts a,b -ppn 2 -n 4 ./A", "aabb"),
    ("MPICH", "-hosts a,b -ppn 2 -n 3 ./A", "aab"),
    ("MPICH", "-hosts a:2,b:2 -map-by node -n 4 ./A", "aabb"),
    ("MPICH", "-hosts a,b,a -n 3 ./A", "aba"),
    ("MPICH", "-f F4 -n 3 ./A", "aba"),
    ("MPICH", "-f F5 -n 3 ./A", "bba"),
    ("MPICH", "-f F6 -n 3 ./A", "aba"),
    ("Intel MPI", "-machinefile F6 -n 3 ./A", "aba"),
    ("Intel MPI", "-machinefile F5 -n 3 ./A", "bba"),
    ("Intel MPI", "-machinefile F2 -n 4 ./A", "aabb"),
    ("Intel MPI", "-f F4 -ppn 1 -n 3 ./A", "aba"),
    ("Intel MPI", "-f F1 -ppn 1 -n 4 ./A", "abab"),
    ("Intel MPI", "-hosts a,b -rr -n 4 ./A", "abab"),
    ("Intel MPI", "-hosts a,b -perhost 1 -n 3 ./A", "aba"),
    ("Open MPI", "-H a:2,b:2 -n 3 ./A", "aab"),
    ("Open MPI", "-H a,b,a -n 3 ./A", "aab"),
    ("Open MPI", "-H a:2,b:2 --map-by node -n 4 ./A", "abab"),
    ("Open MPI", "-H a:2,b:2 -N 1 ./A", "ab"),
    ("Open MPI", "-H a:2,b:2 -N 2 ./A", "aabb"),
    ("Open MPI", "-H a:2,b:2 --map-by ppr:1:node -n 2 ./A", "ab"),
    ("Open MPI", "--hostfile F3 -n 4 ./A", "aabb"),
    ("Open MPI", "--hostfile F4 -n 3 ./A", "aab"),
    ("Open MPI", "--hostfile F4 --map-by seq -n 3 ./A", "aba"),
    ("Open MPI 5", "--hostfile F4 --map-by seq ./A", "aba"),
    ("Open MPI", "-H a:2,b:2 --oversubscribe -n 6 ./A", "aaabbb"),
    ("Open MPI", "-H a:2,b:2 --map-by :OVERSUBSCRIBE -n 6 ./A", "aaabbb"),
    // The name of the launcher says whose options they are.
    ("MPICH", "mpiexec.hydra -host a,b,a -n 3 ./A", "aba"),
    ("Open MPI", "prterun --host a,b,a -n 3 ./A", "aab"),
    ("Open MPI", "/usr/bin/orterun --host a:2,b:2 --map-by node -n 4 ./A", "abab"),
];

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
            let written = match (is_list, FILES.iter().find(|(name, _)| *name == word)) {
                (_, Some((name, _))) => directory.join(name).into_os_string(),
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
        env: Vec::new(),
        cwd: "/".into(),
        host: "vm".to_owned(),
        cpus: OnceCell::from(2),
        gpus: OnceCell::from(0),
        terminals: [false; 3],
        foreground: false,
        same_destination: false,
        stdout_is_file: true,
        window: None,
    };
    let map = layout(&settings, &around).map_err(|problem| problem.to_string())?.map;
    let letter = |name: &str| ADDRESSES.iter().find(|(_, address)| *address == name).map_or("?", |(letter, _)| *letter);
    Ok(map.places().iter().map(|place| letter(map.node_name(place.node))).collect())
}

fn host_files() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in FILES {
        std::fs::write(directory.path().join(name), with_addresses(text)).expect("it can be written");
    }
    directory
}

#[test]
fn ranks_run_on_the_hosts_that_the_launchers_take() {
    let directory = host_files();
    let mut wrong = Vec::new();
    for (launcher, line, expected) in LINES {
        let placed = homes(line, directory.path());
        if placed.as_deref() != Ok(*expected) {
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
    for line in ["-hosts a,b,a -n 3 ./A", "-H a,b,a -n 3 ./A", "-host a,a,b -n 3 ./A", "-machinefile F6 -n 3 ./A"] {
        assert_eq!(warnings(line), 0, "{line}");
    }
}
