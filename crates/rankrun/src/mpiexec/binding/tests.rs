//! Command lines of public job scripts, and of launchers on recorded machines: the CPUs of each rank.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use rankrun_core::job::EnvEdit;
use rankrun_core::placement::{Place, Ranks, assign, wish};
use rankrun_core::topology::{Core, CpuSet, Device, Machine};

use crate::dialect::{Reading, Stop};
use crate::invocation::{Invocation, read_job};
use crate::settings::Settings;
use crate::{mpiexec, torchrun};

const TABLE: &str = include_str!("../../../../../tests/topologies/command-lines.txt");

/// A machine whose parts are all alike, and its GPUs.
struct Described {
    machine: Machine,
    gpus: Vec<Device>,
}

/// `2 8 16 128 2 cpus=1-7 gpus=0,1`, as the file explains it.
fn described(text: &str) -> Described {
    let numbers: Vec<u32> = text.split(' ').map_while(|word| word.parse().ok()).collect();
    let [packages, nodes, caches, cores, threads] = numbers[..] else { panic!("{text}") };
    let word = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let is_near = text.split(' ').any(|word| word == "near");
    let cpu = |core: u32, thread: u32| if is_near { core * threads + thread } else { thread * cores + core };
    let core = |at: u32| Core {
        cpus: (0..threads).map(|thread| cpu(at, thread)).collect(),
        package: at * packages / cores,
        numa: at * nodes / cores,
        l3: at * caches / cores,
        kind: 0,
    };
    let all = Machine { cores: (0..cores).map(core).collect(), numa_nodes: (0..nodes).collect() };
    let near = |node: &str| {
        let is_in = |core: &&Core| core.numa.to_string() == node;
        let cpus = all.cores.iter().filter(is_in).fold(CpuSet::new(), |all, core| all.union(&core.cpus));
        Device { name: node.to_owned(), cpus }
    };
    let gpus = word("gpus").map(|nodes| nodes.split(',').map(near).collect()).unwrap_or_default();
    let machine = match word("cpus") {
        Some(list) => all.within(&list.parse().expect("a list of CPUs")),
        None => all,
    };
    Described { machine, gpus }
}

/// A line of the table.
struct Row<'a> {
    /// Whether rankrun does something else by intent.
    differs: bool,
    launcher: &'a str,
    machine: &'a str,
    ranks: u32,
    line: &'a str,
    /// Words of ours.
    native: &'a str,
    cpus: &'a str,
}

fn rows() -> impl Iterator<Item = Row<'static>> {
    let is_row = |text: &&str| text.starts_with(|letter: char| letter.is_ascii_digit()) || text.starts_with("differs");
    TABLE.lines().filter(is_row).map(|text| {
        let fields: Vec<&str> = text.split('\t').collect();
        let [number, launcher, machine, ranks, _, line, native, cpus, _] = fields[..] else { panic!("{text}") };
        let ranks = ranks.parse().expect("a number of ranks");
        Row { differs: number == "differs", launcher, machine, ranks, line, native, cpus }
    })
}

fn machines() -> BTreeMap<&'static str, Described> {
    let described = |text: &'static str| {
        let (name, text) = text.strip_prefix("machine\t")?.split_once('\t')?;
        Some((name, described(text)))
    };
    TABLE.lines().filter_map(described).collect()
}

fn text(stop: Stop) -> String {
    match stop {
        Stop::Problem(problem) => problem.to_string(),
        Stop::Help | Stop::Version | Stop::Text(_) => "a text".to_owned(),
    }
}

type Env = Vec<(OsString, OsString)>;

/// The variables in front of a command line, and its words.
fn split(line: &str) -> (Env, Vec<OsString>) {
    let mut words = line.split(' ').peekable();
    let mut env = Vec::new();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        env.push((name.into(), value.into()));
        words.next();
    }
    (env, words.map(OsString::from).collect())
}

/// What a command line becomes: words of ours.
fn translated(row: &Row<'_>, env: &Env, words: &[OsString]) -> Result<Reading, String> {
    let (name, rest) = words.split_first().expect("there is a launcher");
    if name == "torchrun" {
        let around = torchrun::Around { env, called: OsStr::new("torchrun"), cpus: || 1, gpus: || 8 };
        return torchrun::read(rest, &around).map_err(text);
    }
    let name = match row.launcher {
        "Open MPI 4" => "orterun",
        "Open MPI 5" => "prterun",
        "Hydra" => "mpiexec.hydra",
        _ => "mpirun",
    };
    let around = mpiexec::Around { name: OsStr::new(name), env, packages: || 2, numa_nodes: || 8 };
    mpiexec::read(rest, &around).map_err(text)
}

fn settings(reading: Reading, env: &Env) -> Result<Settings, String> {
    let read = read_job(reading.words, reading.is_one_command).map_err(|problem| problem.to_string())?;
    let Invocation::Job(segments) = read else { return Err("no job".to_owned()) };
    crate::settings::resolve(&segments, env).map_err(|problem| problem.to_string())
}

/// The CPUs of all ranks.
fn bound(row: &Row<'_>, on: &Described) -> Result<Vec<CpuSet>, String> {
    let (env, words) = split(row.line);
    let reading = match row.native {
        "" => translated(row, &env, &words)?,
        native => {
            let count = row.ranks.to_string();
            let words = ["-n", &count].into_iter().chain(native.split(' ')).chain(["./a.out"]);
            let words = words.map(OsString::from).collect();
            Reading { words, is_one_command: false, warnings: Vec::new(), codes: None }
        }
    };
    let settings = settings(reading, &env)?;
    let value = |name: &str| {
        let of_app = settings.apps[0].env.iter().rev().find_map(|edit| match edit {
            EnvEdit::Set { name: have, value } if have == name => Some(value.to_str()?.to_owned()),
            EnvEdit::Set { .. } | EnvEdit::Remove { .. } | EnvEdit::Fill { .. } => None,
        });
        let of_env =
            || env.iter().find(|(have, _)| have == name).and_then(|(_, value)| value.to_str().map(str::to_owned));
        of_app.or_else(of_env)
    };
    let mut binding = settings.binding.clone();
    if !binding.is_asked_for() {
        binding = wish(&value, row.ranks).map(|wish| wish.binding).unwrap_or(binding);
        binding.is_bound_crowded = row.launcher == "Intel MPI";
    }
    let place = Place { machine: &on.machine, gpus: &on.gpus, nics: &[] };
    let gpus = (0..row.ranks).map(|rank| on.gpus.get(rank as usize).map(|_| rank)).collect();
    let ranks = Ranks { count: row.ranks, gpus, threads: None };
    match assign(&place, &binding, &ranks) {
        Ok(Ok(sets)) => Ok(sets),
        Ok(Err(why)) => Err(format!("not bound: {why:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn ranks_of_public_command_lines_get_the_cpus_that_their_launchers_give_them() {
    let machines = machines();
    let mut wrong = Vec::new();
    let mut lines = std::collections::BTreeSet::new();
    for row in rows() {
        let different = differences(&row, &bound(&row, &machines[row.machine]));
        match (row.differs, different.is_empty()) {
            (false, _) => wrong.extend(different),
            (true, true) => wrong.push(format!("{} {}: nothing differs", row.launcher, row.line)),
            (true, false) => {}
        }
        lines.insert(row.line);
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), lines.len(), wrong.join("\n"));
    assert!(lines.len() > 160);
}

/// The ranks that do not have the CPUs that the row has for them.
fn differences(row: &Row<'_>, found: &Result<Vec<CpuSet>, String>) -> Vec<String> {
    let of = |text: String| format!("{} {}: {text}", row.launcher, row.line);
    if row.cpus == "refused" {
        return found.iter().map(|sets| of(format!("{} ranks have CPUs", sets.len()))).collect();
    }
    let rank = |text: &str| {
        let (rank, cpus) = text.split_once('=').expect("RANK=CPUS");
        let expected: CpuSet = cpus.parse().expect("a list of CPUs");
        let at: usize = rank.parse().expect("a rank");
        let has = found.as_ref().map(|sets| sets.get(at).cloned().unwrap_or_default());
        let shown = || has.as_ref().map(CpuSet::to_string);
        (has != Ok(expected)).then(|| of(format!("rank {rank} has {:?}, not {cpus}", shown())))
    };
    row.cpus.split(' ').filter_map(rank).collect()
}

/// What becomes of a command line: our words for binding, and what is said.
fn told(name: &str, line: &str) -> Result<(String, Vec<String>), String> {
    let (env, words) = split(line);
    let around = mpiexec::Around { name: OsStr::new(name), env: &env, packages: || 2, numa_nodes: || 8 };
    let reading = mpiexec::read(&words, &around).map_err(text)?;
    let is_about_binding = |word: &&str| {
        ["--bind", "--map-by", "--rank", "--c", "--over", "--mem"].iter().any(|own| word.starts_with(own))
    };
    let words: Vec<&str> = reading.words.iter().filter_map(|word| word.to_str()).filter(is_about_binding).collect();
    Ok((words.join(" "), reading.warnings))
}

#[test]
fn whose_words_they_are_is_told_by_names_options_and_dashes() {
    for (name, line, expected) in [
        ("mpirun", "-n 4 -bind-to core a", "--map-by=core --bind-to=core --overload"),
        ("mpirun", "-n 4 --bind-to core a", "--map-by=core --bind-to=core"),
        ("mpiexec.hydra", "-n 4 --bind-to core a", "--oversubscribe --map-by=core --bind-to=core --overload"),
        ("mpirun", "-n 4 -x A -bind-to core a", "--map-by=numa --bind-to=core"),
        ("orterun", "-n 4 --bind-to core a", "--map-by=numa --bind-to=core"),
        ("mpirun", "HYDRA_BINDING=core -n 4 a", "--map-by=core --bind-to=core --overload"),
        ("mpirun", "-n 4 --map-by socket a", "--map-by=package --bind-to=package --rank-by=core"),
        ("mpirun", "-n 4 --map-by socket --rank-by core a", "--map-by=package --bind-to=package --rank-by=core"),
        ("mpirun", "-n 4 -bind-to core -membind bind:numa a", "--map-by=core --bind-to=core --overload --membind=bind"),
        ("mpirun", "-n 4 --bind-to none --map-by slot:PE=2 a", "--bind-to=none"),
        ("mpiexec", "-n 4 -cpu-bind list:0-1:2 a", "--cpu-list=0-1:2"),
        ("mpiexec.hydra", "-n 4 -map-by socket a", "--oversubscribe"),
    ] {
        assert_eq!(told(name, line).map(|(words, _)| words).as_deref(), Ok(expected), "{name} {line}");
    }
}

#[test]
fn what_is_done_differently_is_said() {
    let notes = |name: &str, line: &str| told(name, line).expect(line).1.join("; ");
    assert_eq!(
        notes("mpirun", "-n 4 --map-by socket:PE=2 a"),
        "ranks are placed as by Open MPI 5; Open MPI 4 would place them as \"rankrun --map-by=package:PE=2 --bind-to=core\""
    );
    for line in [
        "-n 4 --map-by ppr:2:socket:PE=2 a",
        "-n 4 --map-by core --bind-to core a",
        "-n 2 -bind-to user:0,1 a",
        "-n 4 --bind-to none a",
    ] {
        assert_eq!(notes("mpirun", line), "", "{line}");
    }
    for (line, said) in [
        ("-n 3 -bind-to user:0,1 a", "begins again"),
        ("-n 3 -bind-to rr a", "order of the cores"),
        ("-n 3 -bind-to core -membind interleave:numa a", "--wrap 'numactl --interleave=all'"),
        ("-n 3 -cpu-bind spread a", "not followed"),
        ("-n 3 -binding pin=yes;cell=core a", "not followed"),
        ("-n 3 --rank-by node --map-by core a", "write --map-by node"),
    ] {
        assert!(notes("mpirun", line).contains(said), "{line}: {}", notes("mpirun", line));
    }
}

#[test]
fn what_cannot_be_had_is_refused_with_a_way_out() {
    for (line, said) in [
        ("-n 2 -bind-to core:2 -map-by hwthread a", "-bind-to user:CPUS,CPUS"),
        ("-n 2 -bind-to pci:0 a", "write gpu or ib"),
        ("-n 2 --bind-to l2cache a", "core or l3cache"),
        ("-n 2 --map-by ppr:2:core a", "overload-allowed"),
        ("-n 2 --map-by ppr:1:l3cache,pe=4 a", "l3cache:pe=4"),
        ("--map-by ppr:1:l3cache a", "-n N"),
        ("-n 2 --map-by rankfile a", "--cpu-list"),
        ("-n 2 --bind-to cpu-list:ordered a", "needs --cpu-list"),
        ("-n 2 --map-by sockets a", "is not one of"),
        ("-n 2 -bind-to user:0,y a", "is not a list"),
    ] {
        let problem = told("mpirun", line).expect_err(line);
        assert!(problem.contains(said), "{line}: {problem}");
    }
}
