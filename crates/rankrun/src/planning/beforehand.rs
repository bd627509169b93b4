//! What a job needs only later, at its end or after a failure, is looked at before its start: a slip in a name must not cost a
//! day's work.

use std::path::Path;

use rankrun_core::alone::is_launcher;
use rankrun_core::job::{OnGiveup, StdinTarget};
use rankrun_core::planned::{Notice, OnPlannedStop};
use rankrun_core::{ExitCode, JobSpec, NodeRank};
use rankrun_front::{HostsOrigin, Part, Plan};
use rankrun_sys::reason;

use crate::ask;
use crate::message::Problem;
use crate::plan::Surroundings;
use crate::settings::{AppSettings, Given, Nproc, Settings};
use crate::words::quote_all;
use crate::{mpiexec, program, stops, torchrun};

/// What is wrong, and hints.
type Words = (String, Vec<String>);

/// What a look at the file system says, if it says so soon. One that does not answer is named when it is needed.
fn ask(look: impl Fn() -> Option<Words>) -> Option<Words> {
    ask::soon(look).flatten()
}

/// A setting, with its origin.
fn given<'a>(settings: &'a Settings, key: &str) -> Option<&'a Given> {
    settings.given.iter().find(|given| given.key == key)
}

/// A problem with a setting, which is named where it comes from.
fn problem(settings: &Settings, key: &str, text: String) -> Problem {
    match given(settings, key) {
        Some(given) => given.problem(text),
        None => Problem::usage(format!("--{key}: {text}")),
    }
}

/// Refuses a directory for the report that cannot be one. Call it first: there is no place for the report of this refusal.
pub(crate) fn check_report_dir(settings: &Settings, around: &Surroundings) -> Result<(), Problem> {
    let Some(directory) = &settings.report_dir else { return Ok(()) };
    match ask(|| Some((why_no_directory(&around.cwd.join(directory))?, Vec::new()))) {
        Some((why, _)) => {
            Err(problem(settings, "report-dir", why).hint("name a directory, which is made if there is none"))
        }
        None => Ok(()),
    }
}

/// Refuses the directory of `--log-dir` if it is a file: each attempt has a directory of its own in it.
fn check_log_dir(settings: &Settings, around: &Surroundings) -> Result<(), Problem> {
    let Some(directory) = &settings.log_dir else { return Ok(()) };
    // One with fields is not known before there are ranks, and is made then.
    let path = around.cwd.join(directory.shown());
    let why = || format!("\"{}\" is a file", directory.shown().display());
    let is_fixed = directory.fields().next().is_none();
    match is_fixed.then(|| ask(|| path.is_file().then(|| (why(), Vec::new())))).flatten() {
        Some((why, _)) => {
            Err(problem(settings, "log-dir", why).hint("name a directory, which is made if there is none"))
        }
        None => Ok(()),
    }
}

/// Why no directory can be made or used at this path.
fn why_no_directory(path: &Path) -> Option<String> {
    let (found, meta) = path.ancestors().find_map(|path| Some((path, std::fs::metadata(path).ok()?)))?;
    if !meta.is_dir() {
        return Some(format!("\"{}\" is not a directory", found.display()));
    }
    let may_write = rustix::fs::access(found, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    may_write.err().map(|error| format!("cannot write to \"{}\": {}", found.display(), reason(&error.into())))
}

/// Whether another node runs the job, and this one joins it.
fn is_member(plan: &Plan) -> bool {
    plan.join.as_ref().is_some_and(|join| matches!(join.part, Part::Member(_)))
}

/// Refuses what will not work after a failure.
pub(crate) fn check(plan: &Plan, settings: &Settings, around: &Surroundings) -> Result<(), Problem> {
    if is_member(plan) {
        // Another node runs the job.
        return Ok(());
    }
    check_log_dir(settings, around)?;
    if let Some(asked) = &plan.spec.restart.on_failure {
        let found = || program::find(&asked.command[0], around.variable("PATH"), &around.cwd);
        if let Some((why, hints)) = ask(|| found().err().map(|problem| (problem.text, problem.hints))) {
            return Err(Problem { hints, code: ExitCode::USAGE, ..problem(settings, "on-failure", why) });
        }
    }
    let is_all_here = plan.hosts.targets.iter().all(|target| target.is_local);
    if let (Some(library), true) = (&settings.pmix_library, is_all_here) {
        let why = |error| (format!("\"{}\": {}", library.display(), reason(&error)), Vec::new());
        if let Some((why, _)) = ask(|| std::fs::metadata(around.cwd.join(library)).err().map(why)) {
            return Err(problem(settings, "pmix-lib", why));
        }
    }
    Ok(())
}

/// Warns of GPUs that no rank uses, and of what will have no effect after a failure.
pub(crate) fn warnings(plan: &Plan, settings: &Settings, around: &Surroundings) -> Vec<String> {
    let restart = &plan.spec.restart;
    if is_member(plan) {
        return Vec::new();
    }
    let wish = plan.spec.wish(&settings.binding, &plan.mpi_libraries);
    let left_out =
        wish.binding.variables.clone().filter(|_| plan.spec.binding.variables.is_none()).and_then(|variables| {
            let spec = JobSpec { binding: wish.binding.clone(), ..plan.spec.clone() };
            let here = plan.hosts.targets.iter().position(|target| target.is_local).map(|node| NodeRank(node as u32));
            let problem = crate::plan::check_binding(&spec, here).err()?;
            Some(format!("{variables} of the environment are not followed: {}", problem.text))
        });
    let general = launchers(settings).into_iter().chain(idle_gpus(plan, settings, around));
    let is_given = settings.leaving.is_detached && plan.spec.io.stdin != StdinTarget::None && around.is_stdin_given;
    let not_read = "stdin is not read here: \"rankrun attach --stdin\" gives a file or a pipe to the ranks".to_owned();
    let general = general.chain(wish.notes).chain(left_out).chain(is_given.then_some(not_read));
    let named = |key: &str, text: String| problem(settings, key, text).text;
    let requeue = "there is no scheduler to run the job again: SLURM_JOB_ID is not set";
    let no_scheduler = !stops::has_scheduler(around);
    let is_planned = no_scheduler && settings.planned.on_stop == OnPlannedStop::Requeue;
    let notice = match &plan.planned.notice {
        Some(Notice::File(file)) => ask(|| Some((stops::why_no_file(Path::new(file))?, Vec::new()))),
        Some(Notice::Command(_)) | None => None,
    };
    let notice = notice.map(|(why, _)| named("preempt-notice", why));
    let general = general.chain(is_planned.then(|| named("on-planned-stop", requeue.to_owned()))).chain(notice);
    if !restart.is_on() {
        return general.collect();
    }
    let file = restart.progress_file.as_ref();
    let file = file.and_then(|file| ask(|| Some((why_no_progress(Path::new(file))?, Vec::new())))).map(|(why, _)| why);
    let no_scheduler = no_scheduler && restart.on_giveup == OnGiveup::Requeue;
    let file = file.map(|text| named("progress-file", text));
    general.chain(file).chain(no_scheduler.then(|| named("on-giveup", requeue.to_owned()))).collect()
}

/// Launchers that are the program of a rank, though nobody has asked for one of them alone, or for one on each node: they are hardly meant
/// to be a rank.
fn launchers(settings: &Settings) -> Vec<String> {
    let is_counted = |app: &AppSettings| app.nproc == Some(Nproc::Count(1)) || settings.hosts.per_node.is_some();
    let warned = settings.apps.iter().filter(|app| !is_counted(app)).filter_map(|app| {
        let [program, words @ ..] = &app.command[..] else { return None };
        let name = Path::new(program).file_name()?.to_str()?;
        let has_dialect = mpiexec::is_name(program) || torchrun::is_name(program);
        let instead = match has_dialect {
            true => {
                let words = quote_all(words);
                format!("to replace it, write \"rankrun {} {words}\", and options of rankrun after its name", program.display())
            }
            false => format!("to replace it, write \"rankrun -n N PROGRAM\" without {name}"),
        };
        let is_nested = app.nproc.is_some() && name == "rankrun";
        let is_one = has_dialect || is_launcher(name) && !is_nested;
        let text = || format!("{name} runs as the program of a rank, and starts processes of its own: {instead}; -n 1 is for a launcher that is meant to be a rank");
        is_one.then(text)
    });
    warned.collect()
}

/// A Slurm allocation with a task on each node, as for a launcher that starts the ranks of a node itself, and with GPUs for more.
fn idle_gpus(plan: &Plan, settings: &Settings, around: &Surroundings) -> Option<String> {
    let is_asked_for = settings.hosts.per_node.is_some() || settings.apps.iter().any(|app| app.nproc.is_some());
    let map = &plan.spec.map;
    if plan.hosts.origin != HostsOrigin::Slurm || is_asked_for || map.world_size() != map.node_count() {
        return None;
    }
    let gpus = crate::slurm::gpus_on_node(around).unwrap_or_else(|| around.gpus());
    let text = || format!("each node has {gpus} GPUs and 1 rank: was --ppn gpu meant, for one rank on each GPU?");
    (gpus > 1).then(text)
}

/// Why a file cannot be seen to change, or not as one thinks.
fn why_no_progress(file: &Path) -> Option<String> {
    let shown = file.display();
    match std::fs::metadata(file) {
        Ok(meta) if meta.is_dir() => Some(format!("\"{shown}\" is a directory: it changes when files are made in it")),
        Ok(_) => None,
        Err(_) => {
            let parent = file.parent().filter(|parent| !parent.is_dir())?;
            Some(format!("there is no directory \"{}\", and without it no progress is seen", parent.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::OnceCell;
    use std::ffi::OsString;

    use super::*;
    use crate::invocation::{Invocation, read};

    /// The warnings of a job with these options in an allocation of two nodes.
    fn warned(gpus: &str, tasks: &str, words: &[&str]) -> Vec<String> {
        let env = [
            ("PATH", "/usr/bin:/bin"),
            ("SLURM_JOB_ID", "1"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_TASKS_PER_NODE", tasks),
            ("SLURM_JOB_CPUS_PER_NODE", "32(x2)"),
            ("SLURM_CPUS_PER_TASK", "32"),
            ("SLURM_GPUS_ON_NODE", gpus),
        ];
        let around = Surroundings {
            job: rankrun_core::JobId("7f3a91c2".to_owned()),
            env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: "/".into(),
            host: "n1".to_owned(),
            cpus: OnceCell::from(3),
            gpus: OnceCell::from(0),
            terminals: [false; 3],
            foreground: false,
            same_destination: false,
            are_files: [true; 2],
            is_stdin_given: false,
            window: None,
        };
        let words: Vec<OsString> = words.iter().chain(&["true"]).map(OsString::from).collect();
        let Ok(Invocation::Job(segments)) = read(words) else { panic!("a job") };
        let settings = crate::settings::resolve(&segments, &around.env).expect("good settings");
        let plan = crate::plan::make(&settings, &around).expect("a good plan");
        warnings(&plan, &settings, &around)
    }

    #[test]
    fn nodes_with_gpus_for_more_than_their_one_rank_are_asked_about() {
        let question = "each node has 8 GPUs and 1 rank: was --ppn gpu meant, for one rank on each GPU?";
        assert_eq!(warned("8", "1(x2)", &[]), [question]);
        assert_eq!(warned("1", "1(x2)", &[]), [""; 0]);
        assert_eq!(warned("8", "8(x2)", &[]), [""; 0]);
        for words in [&["--ppn", "gpu"], &["--ppn", "1"], &["-n", "2"], &["-H", "n1"]] {
            assert_eq!(warned("8", "1(x2)", words), [""; 0], "{words:?}");
        }
    }

    #[test]
    fn a_launcher_as_the_program_of_a_job_is_noted_unless_the_number_of_ranks_is_given() {
        let noted = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let Ok(Invocation::Job(segments)) = read(words) else { panic!("a job") };
            launchers(&crate::settings::resolve(&segments, &[]).expect("good settings")).join("; ")
        };
        assert_eq!(
            noted("--timeout 60 mpirun -np 4 ./a"),
            "mpirun runs as the program of a rank, and starts processes of its own: to replace it, write \"rankrun mpirun -np 4 ./a\", \
             and options of rankrun after its name; -n 1 is for a launcher that is meant to be a rank"
        );
        for line in [
            "-v /opt/bin/mpiexec.hydra ./a",
            "--timeout 9 mpirun_rsh -np 2 ./a",
            "-v mpiexec.gforker ./a",
            "-v srun ./a",
            "-n 2 mpirun ./a",
        ] {
            assert!(!noted(line).is_empty(), "{line}");
        }
        for line in ["-n 1 mpirun ./a", "--ppn 1 mpirun ./a", "--timeout 9 env mpirun ./a", "-v ./mpirunner"] {
            assert_eq!(noted(line), "", "{line}");
        }
    }
}
