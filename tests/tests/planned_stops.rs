//! Planned stops: the ranks save their state, and the job goes on from it later (docs/restart.md).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_core::report::Report;
use rankrun_tests::{Ended, Job, Running, Slurm, Tier, full_scale, processes, rankrun, scratch, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(120);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stops").join(name).display().to_string()
}

/// A directory in which two ranks compute, over several lives of their job.
struct Work {
    directory: PathBuf,
    tier: Tier,
}

impl Work {
    fn new(tier: Tier) -> Work {
        Work { directory: scratch(), tier }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        read(&self.directory, name)
    }

    /// A life of the job; saving takes so long.
    fn job(&self, options: &[&str], seconds: &str) -> Job {
        let report = self.path("report");
        let (resume, directory) = (program("resume.py"), self.path(""));
        let words = ["-n", "2", "--report-dir", &report];
        let rank = ["python3", &resume, &directory, seconds];
        Job::new(words.iter().chain(options).chain(&rank)).tier(self.tier).current_dir(&self.directory)
    }

    /// The same, with a scheduler whose `scontrol` notes what it is asked, and prints this of the job.
    fn scheduled(&self, options: &[&str], seconds: &str, shown: &str) -> Job {
        let scontrol = self.directory.join("scontrol");
        let script = format!("#!/bin/sh\necho $* >> {}\necho 'JobId=7 {shown}'\n", self.path("asked"));
        fs::write(&scontrol, script).expect("it can be written");
        fs::set_permissions(&scontrol, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let path = format!("{}:{}", self.directory.display(), std::env::var("PATH").unwrap_or_default());
        self.job(options, seconds).env("PATH", path).env("SLURM_JOB_ID", "7")
    }

    fn wait_for_ranks(&self) {
        let is_up = || (0..2).all(|rank| self.read(&format!("up.{rank}")).ends_with('\n')).then_some(());
        wait_until(BOUND, is_up).expect("the ranks come up");
    }

    fn report(&self) -> Report {
        let json = self.read("report/report.json");
        serde_json::from_str(&json).expect("the report is read with the types that it was written with")
    }

    /// Another life finishes the work, with the result of a job that nobody has disturbed.
    fn finish(self) {
        let ended = self.job(&[], "0").bound(BOUND).run();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        assert_results(&self.directory, self.tier);
        fs::remove_dir_all(self.directory).expect("it is ours");
    }
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap_or_default()
}

/// Both ranks have gone on from where they were stopped, and have the results of a job that nobody has disturbed.
fn assert_results(directory: &Path, tier: Tier) {
    let other = scratch();
    let (resume, place) = (program("resume.py"), other.display().to_string());
    let words = ["-n", "2", "python3", &resume, &place];
    let ended = Job::new(words).tier(tier).env("RESUME_UNDISTURBED", "1").bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    for rank in 0..2 {
        let result = format!("result.{rank}");
        assert!(!read(&other, &result).is_empty());
        assert_eq!(read(directory, &result), read(&other, &result));
        assert!(read(directory, &format!("lives.{rank}")).ends_with("\n50\n"), "it has begun anew");
    }
    fs::remove_dir_all(other).expect("it is ours");
}

fn assert_planned(ended: &Ended, work: &Work, why: &str) {
    let text = ended.stderr_text();
    assert_eq!((ended.code, ended.signal), (Some(75), None), "{text}");
    assert!(text.contains(&format!("rankrun: stopped as planned for {why}")), "{text}");
    assert!(text.contains("left      nothing"), "{text}");
    let report = work.report();
    assert_eq!((report.class, report.culprit.is_none()), (Some(Class::PlannedStop), true), "{text}");
}

#[test]
fn a_job_that_reaches_its_time_limit_saves_its_state_and_another_goes_on_from_it() {
    for tier in Tier::sampled() {
        let work = Work::new(tier);
        // On a busy machine a life may end before its ranks have begun.
        let is_saved = || (0..2).all(|rank| work.read(&format!("state.{rank}")).starts_with("50 "));
        for _ in 0..10 {
            let ended = work.job(&["--time-limit", "2s", "--restart", "3"], "0").bound(BOUND).run();
            assert_planned(&ended, &work, "its time limit (--time-limit 2s)");
            assert_eq!(work.report().attempts.len(), 0, "it is no failure");
            if is_saved() {
                break;
            }
        }
        work.finish();
    }
}

#[test]
fn a_rank_that_is_still_saving_at_a_planned_stop_has_grace_saving() {
    let work = Work::new(Tier::available()[0]);
    let notice = work.path("notice");
    let options = ["--preempt-notice", &notice, "--grace", "1s", "--grace-saving", "60s"];
    let job = work.job(&options, "5").start();
    work.wait_for_ranks();
    fs::write(&notice, "").expect("it can be written");
    let ended = job.finish(BOUND);
    assert_planned(&ended, &work, "a preemption notice (--preempt-notice)");
    assert!(ended.stderr_text().contains("are still writing files, for "), "{}", ended.stderr_text());
    work.finish();
}

#[test]
fn a_rank_that_is_killed_while_the_others_save_costs_no_checkpoint() {
    let work = Work::new(Tier::available()[0]);
    let notice = work.path("notice");
    let job = work.scheduled(
        &["--preempt-notice", &notice, "--on-planned-stop", "requeue", "--restart", "3"],
        "3",
        "JobState=RUNNING Reason=None",
    );
    let job = job.start();
    work.wait_for_ranks();
    fs::write(&notice, "").expect("it can be written");
    // Rank 1 dies in the middle of its checkpoint, whose last complete one stays.
    wait_until(BOUND, || work.directory.join("state.1.part").exists().then_some(())).expect("it saves");
    let up = work.read("up.1");
    processes::send(up.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid"), Signal::KILL);
    let ended = job.finish(BOUND);
    assert_planned(&ended, &work, "a preemption notice (--preempt-notice), to be requeued");
    assert!(work.read("state.0").starts_with("50 "), "{}", ended.stderr_text());
    assert_eq!(work.read("asked"), "show job 7\nrequeue 7\n", "{}", ended.stderr_text());
    fs::remove_dir_all(work.directory).expect("it is ours");
}

#[test]
fn a_notice_is_a_command_that_succeeds_and_nothing_of_it_stays() {
    for script in [
        // It waits.
        "setsid sleep 600 & until [ -e notice ]; do sleep 0.02; done",
        // It is repeated.
        "echo >> asked; [ -e notice ]",
    ] {
        let work = Work::new(Tier::available()[0]);
        let job = work.job(&["--preempt-notice", &format!("sh -c '{script}'")], "0").start();
        work.wait_for_ranks();
        fs::write(work.directory.join("notice"), "").expect("it can be written");
        let ended = job.finish(BOUND);
        assert_planned(&ended, &work, "a preemption notice (--preempt-notice)");
        work.finish();
    }
}

#[test]
fn a_command_that_waits_for_a_notice_ends_with_the_job_and_one_that_cannot_run_is_told_of() {
    let tier = Tier::available()[0];
    let ended = Job::new(["-n", "1", "--preempt-notice", "sh -c 'setsid sleep 600 & sleep 600'", "true"]).tier(tier);
    let ended = ended.bound(BOUND).run();
    assert_eq!((ended.code, ended.stderr_text().as_str()), (Some(0), ""));
    let directory = scratch();
    let words = ["-n", "1", "--preempt-notice", "sh -c 'exit 127'", "sh", "-c", "until [ -e go ]; do sleep 0.02; done"];
    let job = Job::new(words).tier(tier).current_dir(&directory).start();
    let told = || String::from_utf8_lossy(&job.stderr_so_far()).contains("--preempt-notice: ").then_some(());
    wait_until(BOUND, told).expect("the user is told");
    fs::write(directory.join("go"), "").expect("it can be written");
    assert_eq!(job.finish(BOUND).code, Some(0));
    let ended = Job::new(["-n", "1", "--preempt-notice", "no-such-command -x", "true"]).tier(tier).bound(BOUND).run();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr_text());
    // A file of the last life is no notice.
    fs::write(directory.join("notice"), "").expect("it can be written");
    let words = ["-n", "1", "--preempt-notice", "./notice", "true"];
    let ended = Job::new(words).tier(tier).current_dir(&directory).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn sigterm_in_a_job_that_is_to_be_requeued_is_a_planned_stop() {
    for tier in Tier::sampled() {
        let work = Work::new(tier);
        let job = work.scheduled(&["--on-planned-stop", "requeue"], "0", "JobState=RUNNING Reason=None").start();
        work.wait_for_ranks();
        processes::send(job.front(), Signal::TERM);
        let ended = job.finish(BOUND);
        assert_planned(&ended, &work, "SIGTERM of the scheduler, to be requeued");
        let text = ended.stderr_text();
        assert!(
            text.contains("planned stop for SIGTERM: stopping 2 ranks (SIGTERM, then SIGKILL after 25 s)"),
            "{text}"
        );
        assert!(text.contains("Slurm runs job 7 again (scontrol requeue)"), "{text}");
        assert_eq!(work.read("asked"), "show job 7\nrequeue 7\n", "{text}");
        work.finish();
    }
}

/// What a user does to a job.
type Ends = fn(&Work, &Running);

/// How a job with these options is ended, what the scheduler then says of it, and the signal by which rankrun ends.
struct Case {
    name: &'static str,
    options: &'static [&'static str],
    ends: Vec<Ends>,
    state: &'static str,
    signal: Option<i32>,
}

#[test]
fn a_job_that_its_user_ends_is_never_requeued() {
    let interrupts: Ends = |_, job| processes::send(job.front(), Signal::INT);
    let stops: Ends = |work, _| {
        let up = work.read("up.0");
        let id = up.trim().split(' ').nth(1).expect("the id of the job");
        let stop = Command::new(rankrun()).args(["stop", "--no-wait", id]).output().expect("rankrun can be started");
        assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
    };
    let terminates: Ends = |_, job| processes::send(job.front(), Signal::TERM);
    let options: &[&str] = &["--on-planned-stop", "requeue"];
    let of = |name, options, ends: &[Ends], state, signal| Case { name, options, ends: ends.to_vec(), state, signal };
    let (runs, ends) = ("RUNNING Reason=None", "COMPLETING Reason=None");
    let cases = [
        of("^C", options, &[interrupts], runs, Some(2)),
        of("rankrun stop", options, &[stops], runs, Some(15)),
        of("scancel", options, &[terminates], ends, None),
        of("a planned stop, then ^C", options, &[terminates, interrupts], runs, Some(2)),
        of("SIGTERM alone", &[], &[terminates], runs, Some(15)),
    ];
    for Case { name: case, options, ends, state, signal } in cases {
        let work = Work::new(Tier::available()[0]);
        // It is not over before the second of them.
        let seconds = if ends.len() > 1 { "3" } else { "0" };
        let job = work.scheduled(options, seconds, &format!("JobState={state}")).start();
        work.wait_for_ranks();
        for (at, end) in ends.iter().enumerate() {
            if at > 0 {
                let is_saving = || work.directory.join("state.0.part").exists().then_some(());
                wait_until(BOUND, is_saving).expect("it saves");
            }
            end(&work, &job);
        }
        let ended = job.finish(BOUND);
        let text = ended.stderr_text();
        assert!(!work.read("asked").contains("requeue"), "{case}: {text}");
        assert!(!text.contains("runs job 7 again (") && ended.signal == signal, "{case}: {:?} {text}", ended.signal);
        assert_eq!(text.contains("it was cancelled"), case == "scancel", "{text}");
        fs::remove_dir_all(work.directory).expect("it is ours");
    }
}

#[test]
fn a_planned_stop_before_the_next_attempt_requeues_a_job_that_would_have_gone_on() {
    for (restarts, is_requeued) in [("3", true), ("0", false)] {
        let work = Work::new(Tier::available()[0]);
        let options = ["--on-planned-stop", "requeue", "--restart", restarts, "--backoff", "60s..60s"];
        // The first restart is at once.
        let rank = "echo x >> tries; exit 3";
        let words = [&["-n", "1", "--no-breaker"], &options[..], &["sh", "-c", rank]].concat();
        drop(work.scheduled(&[], "0", "JobState=RUNNING Reason=None"));
        let path = format!("{}:{}", work.directory.display(), std::env::var("PATH").unwrap_or_default());
        let job = Job::new(words).env("PATH", path).env("SLURM_JOB_ID", "7").current_dir(&work.directory).start();
        if is_requeued {
            let waits = || String::from_utf8_lossy(&job.stderr_so_far()).contains(" in ").then_some(());
            wait_until(BOUND, waits).expect("it waits for an attempt");
            processes::send(job.front(), Signal::TERM);
        }
        let ended = job.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(3), "{text}");
        let why = "stopped as planned for SIGTERM of the scheduler before the next attempt began";
        assert_eq!(
            (text.contains(why), work.read("asked").contains("requeue 7")),
            (is_requeued, is_requeued),
            "{text}"
        );
        fs::remove_dir_all(work.directory).expect("it is ours");
    }
}

#[test]
fn a_checkpoint_that_a_helper_writes_when_its_rank_fails_is_complete() {
    for tier in Tier::sampled() {
        for (how, code) in [("exit", 3), ("kill", 137)] {
            let directory = scratch();
            let place = directory.display().to_string();
            let words = ["-n", "2", "--grace", "2s", "python3", &program("writer.py"), &place, how].map(str::to_owned);
            let ended = Job::new(words).tier(tier).bound(BOUND).run();
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(code), "{text}");
            let size = fs::metadata(directory.join("checkpoint")).map(|found| found.len());
            assert_eq!(size.ok(), Some(70 * 65536), "{tier:?} {how}: {text}");
            fs::remove_dir_all(directory).expect("it is ours");
        }
    }
}

/// Submits a job of two ranks on two nodes of a real Slurm. Returns its id, and where it works.
fn submit(slurm: &Slurm, options: &str, sbatch: &str) -> (String, PathBuf) {
    let jobs = slurm.hosts().directory().join("jobs");
    let place = jobs.join("work");
    fs::create_dir(&place).expect("the directory of the bench is ours");
    let command =
        format!("exec {} {options} python3 {} {}", rankrun().display(), program("resume.py"), place.display());
    fs::write(jobs.join("script"), format!("#!/bin/sh\n{command}\n")).expect("a script");
    let (out, script) = (place.join("out"), jobs.join("script"));
    let line = format!(
        "sbatch --parsable --requeue --open-mode=append --ntasks-per-node=1 -N2 {sbatch} -o {} {}",
        out.display(),
        script.display()
    );
    let submitted = slurm.run(&line);
    assert!(submitted.status.success(), "{}{}", String::from_utf8_lossy(&submitted.stderr), slurm.logs());
    (String::from_utf8_lossy(&submitted.stdout).trim().to_owned(), place)
}

fn wait_for_ranks(slurm: &Slurm, place: &Path) {
    let is_up = || (0..2).all(|rank| place.join(format!("up.{rank}")).exists()).then_some(());
    assert!(wait_until(BOUND, is_up).is_some(), "{}{}", read(place, "out"), slurm.logs());
}

fn assert_goes_on(slurm: &Slurm, place: &Path, why: &str) {
    let is_over = || (0..2).all(|rank| place.join(format!("result.{rank}")).exists()).then_some(());
    assert!(wait_until(2 * BOUND, is_over).is_some(), "{}{}", read(place, "out"), slurm.logs());
    let text = read(place, "out");
    assert!(text.contains(&format!("rankrun: stopped as planned for {why}, to be requeued")), "{text}");
    assert_results(place, Tier::available()[0]);
}

#[test]
fn a_job_of_slurm_that_gets_sigterm_is_requeued_and_goes_on_from_its_checkpoint() {
    let Some(slurm) = Slurm::up(2) else { return };
    let (id, place) = submit(&slurm, "--on-planned-stop requeue", "");
    wait_for_ranks(&slurm, &place);
    // As sbatch --signal and a preemption with a grace time do.
    assert!(slurm.run(&format!("scancel --batch --signal=TERM {id}")).status.success(), "{}", slurm.logs());
    assert_goes_on(&slurm, &place, "SIGTERM of the scheduler");
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn a_job_of_slurm_that_is_cancelled_is_not_requeued() {
    let Some(slurm) = Slurm::up(2) else { return };
    let (id, place) = submit(&slurm, "--on-planned-stop requeue --grace 1s", "");
    wait_for_ranks(&slurm, &place);
    assert!(slurm.run(&format!("scancel {id}")).status.success(), "{}", slurm.logs());
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    let text = read(&place, "out");
    assert!(text.contains(&format!("Slurm does not run job {id} again: it was cancelled")), "{text}");
    slurm.finish(BOUND);
}

#[test]
fn a_job_of_slurm_that_reaches_a_time_limit_is_requeued_and_goes_on_from_its_checkpoint() {
    let Some(slurm) = Slurm::up(2) else { return };
    let (_, place) = submit(&slurm, "--time-limit 15s --on-planned-stop requeue", "");
    assert_goes_on(&slurm, &place, "its time limit (--time-limit 15s)");
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
    if full_scale(false, true) {
        return;
    }
    // That of Slurm itself, which has minutes.
    let Some(slurm) = Slurm::up(2) else { return };
    let (_, place) = submit(&slurm, "--grace 1s --on-planned-stop requeue", "--time=1");
    assert_goes_on(&slurm, &place, "SIGTERM of the scheduler");
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}
