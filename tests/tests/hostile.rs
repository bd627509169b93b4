//! What a rank, or a machine, does that is out of the ordinary: the job still ends at once, and with the truth.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rankrun_tests::{
    Job, Tier, User, compile, full_scale, in_time, monotonic, processes, rankrun, scratch, skip, slowness, wait_until,
};
use rustix::process::Signal;

/// The longest that a job of these tests may last.
const BOUND: Duration = Duration::from_secs(20);

/// What a job that fails at once may take.
const SOON: Duration = Duration::from_secs(3);

fn program(name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let include = format!("-I{}", include.display());
    compile("cc", &["-O1", "-Wall", &include], &source, name).into_os_string().into_string().expect("a path of text")
}

#[test]
fn an_error_file_that_is_a_fifo_does_not_hold_up_the_end() {
    let ended = Job::new(["-n", "1", "sh", "-c", r#"mkfifo "$TORCHELASTIC_ERROR_FILE"; exit 3"#]).run();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert!(ended.elapsed() < in_time(SOON), "{:?}", ended.elapsed());
}

#[test]
fn an_abort_of_a_client_whose_shell_ends_at_once_is_never_lost() {
    let client = program("abort_42");
    for run in 0..120 {
        let ended = Job::new(["-n", "1", "sh", "-c", &format!("{client}; exit 0")]).run();
        assert_eq!(ended.code, Some(42), "run {run}: {}", ended.stderr_text());
    }
}

/// The words before rankrun's own for a job with a rank whose program lies on a disk that hangs, and the program. The names of
/// what the disk does appear in `control`.
fn beside_a_program_that_hangs(control: &Path) -> Option<(String, Vec<String>, String)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can have a disk that hangs");
        return None;
    }
    let (mount, control) = (control.join("disk").display().to_string(), control.display().to_string());
    let rankrun = rankrun().display().to_string();
    let setup = r#"cp "$(command -v sleep)" "$0/program" && exec "$@""#;
    let words = [&mount, &control, "exec", "sh", "-c", setup, &mount, &rankrun].map(str::to_owned);
    Some((program("hang_disk"), words.to_vec(), format!("{mount}/program")))
}

/// A rank that fails when the other hangs, after an orphan of its own has ended.
const FAILING: &str = r#"until [ -e "$0/hangs" ]; do sleep 0.01; done
(sleep 0.1 &); sleep 0.3; exit 3"#;

#[test]
fn a_failure_is_noticed_at_once_although_the_program_of_another_rank_hangs() {
    let control = tempfile::tempdir().expect("the temporary directory can be written");
    let Some((disk, words, hangs)) = beside_a_program_that_hangs(control.path()) else { return };
    let ranks = ["-n", "1", "--grace", "1s", "sh", "-c", FAILING];
    let control = control.path().display().to_string();
    let others = [control.as_str(), ":", "-n", "1", &hangs, "600"];
    let words = words.iter().map(String::as_str).chain(ranks).chain(others);
    let running = Job::of_program(disk, words).start();
    let begun = wait_until(BOUND, || Path::new(&control).join("hangs").exists().then(monotonic)).expect("it hangs");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    let taken = ended.ended.saturating_sub(begun);
    assert!(taken < in_time(SOON), "{taken:?}: {}", ended.stderr_text());
}

#[test]
fn a_program_that_hangs_before_its_first_instruction_ends_within_its_bound() {
    let control = tempfile::tempdir().expect("the temporary directory can be written");
    let Some((disk, words, hangs)) = beside_a_program_that_hangs(control.path()) else { return };
    let ranks = ["-n", "1", "--grace", "1s", "sleep", "600", ":", "-n", "1", &hangs, "600"];
    let running = Job::of_program(disk, words.iter().map(String::as_str).chain(ranks)).start();
    wait_until(BOUND, || control.path().join("hangs").exists().then_some(())).expect("it hangs");
    let waits = full_scale(true, false);
    if !waits {
        let front =
            processes::children(running.front()).into_iter().find(|process| process.name.starts_with("rankrun"));
        processes::send(front.expect("the disk has started rankrun").pid, Signal::TERM);
    }
    let ended = running.finish(if waits { Duration::from_secs(75) } else { BOUND });
    let text = ended.stderr_text();
    if waits {
        assert!(ended.code.is_some_and(|code| code != 0) && text.contains("timed out"), "{:?}: {text}", ended.code);
    } else {
        assert_eq!(ended.code, Some(143), "{text}");
    }
}

/// Busy loops beside a job, which end with this.
struct Busy(Vec<Child>);

impl Busy {
    fn new(count: usize) -> Busy {
        // Each in a session of its own: the kernel's autogroups give each of these as much as the agent's.
        let words = ["sh", "-c", "while :; do :; done"];
        let start = |_| Command::new("setsid").args(words).spawn().expect("setsid can be started");
        Busy((0..count).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It cannot have ended by itself, and a test that fails has said why.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn an_agent_that_is_starved_is_not_killed() {
    let (ranks, runs) = full_scale(("800", 10), ("100", 1));
    for run in 0..runs {
        let _busy = Busy::new(4);
        // What the leader leaves is not idle, so that it is looked at all the time.
        let rank = "(while :; do sleep 0.2; done) & exit 0";
        let options = ["-n", ranks, "--linger", "3s", "sh", "-c", rank];
        let ended = Job::new(options).tier(Tier::Subreaper).bound(BOUND * 6).run();
        assert_eq!(ended.code, Some(0), "run {run}: {}", ended.stderr_text());
    }
}

#[test]
fn of_many_jobs_that_start_at_once_none_loses_its_agent() {
    let (jobs, batches) = full_scale((500, 5), (100, 1));
    let script = format!(
        r#"for i in $(seq {jobs}); do ("$0" -n 2 echo x; echo "code $?") & done > "$RANKRUN_TEST_DIR/codes" 2>&1
wait; sort "$RANKRUN_TEST_DIR/codes" | uniq -c"#
    );
    let rankrun = rankrun();
    for tier in Tier::sampled() {
        for batch in 0..batches {
            let words = ["-c", &script, rankrun.to_str().expect("a path of text")];
            let ended = Job::of_program("sh", words).tier(tier).bound(BOUND * 6).run();
            // A storage process that a busy disk keeps in state D for 2 s is named, and so is a look at /dev/shm for which there is no
            // CPU for 5 s: the guard looks in its place.
            let is_count =
                |line: &&str| !line.ends_with(" until it does") && !line.ends_with(": the guard looks again");
            let text = ended.stdout_text();
            let counts = text.lines().filter(is_count).map(|line| line.trim().replace("code ", ""));
            let counts: Vec<String> = counts.collect();
            let all = [format!("{jobs} 0"), format!("{} x", 2 * jobs)];
            assert_eq!(counts, all, "{tier:?}, batch {batch}: {text}");
        }
    }
}

/// A program that runs a command as root, whoever starts it.
fn as_root(directory: &Path) -> String {
    let copy = directory.join("as_root");
    fs::copy(program("as_root"), &copy).expect("a program can be copied");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("the directory is ours");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("the copy is ours");
    copy.into_os_string().into_string().expect("a path of text")
}

#[test]
fn workers_of_another_user_are_given_up_once_and_in_time() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make programs that another user runs as root");
    }
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let as_root = as_root(directory.path());
    let reports = scratch();
    let options = [
        "-n",
        "2",
        "--grace",
        "1s",
        "--report-dir",
        reports.to_str().expect("a path of text"),
        &as_root,
        "sleep",
        "600",
    ];
    let running = Job::new(options).user(User::Nobody).start();
    let is_root = |process: &processes::Process| {
        let owner = fs::metadata(format!("/proc/{}", process.pid)).map(|meta| meta.uid());
        process.name == "sleep" && owner.is_ok_and(|owner| owner == 0)
    };
    let workers = || running.processes().into_iter().filter(is_root).map(|process| process.pid).collect::<Vec<i32>>();
    let pids = wait_until(BOUND, || Some(workers()).filter(|pids| pids.len() == 2)).expect("the ranks run");
    let told = monotonic();
    processes::send(running.front(), Signal::TERM);
    let front_ended = wait_until(BOUND, || running.front_ended());
    for pid in workers() {
        processes::send(pid, Signal::KILL);
    }
    let ended = running.finish(BOUND);
    let report = fs::read_to_string(reports.join("report.json")).unwrap_or_default();
    // Nobody is there to tell if that cannot be removed.
    let _ = fs::remove_dir_all(&reports);
    assert_eq!(ended.code, Some(123), "{}", ended.stderr_text());
    let taken = front_ended.expect("the front ends").saturating_sub(told);
    assert!(taken < in_time(Duration::from_secs(8)), "{taken:?}: {}", ended.stderr_text());
    let mut left = left_in(&report);
    left.sort_unstable();
    assert_eq!(left, pids, "{report}");
}

/// The pids that a report lists as left.
fn left_in(report: &str) -> Vec<i32> {
    let report: serde_json::Value = serde_json::from_str(report).unwrap_or_default();
    let left = report["left"]["processes"].as_array().cloned().unwrap_or_default();
    left.iter().filter_map(|process| process["pid"].as_i64()).map(|pid| pid as i32).collect()
}

/// A job in the cgroup tier whose first rank cannot be killed, since it is frozen; when the job is over, it thaws and ends, and
/// `rankrun clean` looks for what is left. The jobs of this test have a directory of their own, so that others are not cleaned.
const FROZEN: &str = r#"mkdir -p /tmp/rankrun-0 && mount -t tmpfs -o mode=700 none /tmp/rankrun-0 && cd "$RANKRUN_TEST_DIR" || exit 99
freezer=/sys/fs/cgroup/freezer/rr-test-$$
mkdir $freezer || exit 99
trap 'echo THAWED > $freezer/freezer.state; until rmdir $freezer; do sleep 0.01; done 2> /dev/null' EXIT
"$0" -n 2 --grace 1s --report-dir "$PWD/reports" sh -c 'echo $$ > $RANKRUN_RANK.new; mv $RANKRUN_RANK.new $RANKRUN_RANK.up; exec sleep 600' & job=$!
until [ -e 0.up ] && [ -e 1.up ]; do sleep 0.01; done
cat 0.up > $freezer/cgroup.procs
echo FROZEN > $freezer/freezer.state
until grep -q FROZEN $freezer/freezer.state; do sleep 0.01; done
begun=$(date +%s%N)
kill -TERM $job
wait $job
echo "code $?"
echo "milliseconds $((($(date +%s%N) - begun) / 1000000))"
echo "pid $(cat 0.up)"
echo THAWED > $freezer/freezer.state
while [ -e /proc/$(cat 0.up) ]; do sleep 0.01; done
echo "then $("$0" clean)"
echo "report $(tr -d '\n' < reports/report.json)""#;

#[test]
fn the_cgroup_of_a_worker_that_could_not_be_killed_is_removed_by_clean_when_it_has_ended() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can freeze processes");
    }
    if !Tier::available().contains(&Tier::Cgroup) || !Path::new("/sys/fs/cgroup/freezer/tasks").exists() {
        return skip("needs a cgroup v2 that we may write, and the freezer of version 1");
    }
    let rankrun = rankrun();
    let words = ["-m", "sh", "-c", FROZEN, rankrun.to_str().expect("a path of text")];
    let ended = Job::of_program("unshare", words).tier(Tier::Cgroup).bound(BOUND * 2).run();
    let text = ended.stdout_text();
    let line = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {key}: {text}; {}", ended.stderr_text())).to_owned()
    };
    assert_eq!(line("code"), "123", "{text}; {}", ended.stderr_text());
    let taken: u32 = line("milliseconds").parse().expect("a number");
    assert!(taken < 8000 * slowness(), "{taken} ms: {}", ended.stderr_text());
    assert_eq!(left_in(&line("report")), [line("pid").parse::<i32>().expect("a pid")], "{text}");
    assert!(line("then").contains("1 cgroup "), "{text}; {}", ended.stderr_text());
}

/// A rank that notes where the cgroup of its job is.
const IN_CGROUP: &str = r#"mount=$(sed -n 's/^[^ ]* \([^ ]*\) cgroup2 .*/\1/p' /proc/self/mounts | head -n 1)
echo "$mount$(sed -n 's/^0:://p' /proc/self/cgroup)/.." > "$RANKRUN_TEST_DIR/new"
mv "$RANKRUN_TEST_DIR/new" "$RANKRUN_TEST_DIR/up"
exec sleep 600"#;

#[test]
fn a_job_whose_cgroup_somebody_else_freezes_says_so_and_can_be_interrupted() {
    if !Tier::available().contains(&Tier::Cgroup) {
        return skip("needs a cgroup v2 that we may write");
    }
    let running = Job::new(["-n", "1", "--grace", "5s", "sh", "-c", IN_CGROUP]).tier(Tier::Cgroup).start();
    let cgroup = running.wait_for_text("up");
    fs::write(Path::new(cgroup.trim()).join("cgroup.freeze"), "1").expect("the cgroup is ours");
    let says_so =
        || String::from_utf8_lossy(&running.stderr_so_far()).contains("has frozen the job's cgroup").then_some(());
    let said = wait_until(SOON * slowness(), says_so);
    let interrupted = monotonic();
    running.interrupt_twice(|| ());
    let ended = running.finish(BOUND);
    assert!(said.is_some(), "{}", ended.stderr_text());
    assert!(ended.signal == Some(2) || ended.code == Some(130), "{}", ended.stderr_text());
    let taken = ended.ended.saturating_sub(interrupted);
    assert!(taken < in_time(SOON), "{taken:?}: {}", ended.stderr_text());
}

#[test]
fn a_job_in_a_sandbox_that_refuses_what_its_end_needs_is_refused_with_the_reason() {
    let deny = program("deny_call");
    let rankrun = rankrun().display().to_string();
    for call in ["waitid", "unlinkat", "pipe2", "write", "getdents64"] {
        let ended = Job::of_program(&deny, [call, &rankrun, "-n", "2", "echo", "x"]).bound(BOUND).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(125), "{text}");
        assert!(
            text.starts_with("error: cannot ") && text.contains(&format!("{call}: Operation not permitted")),
            "{text}"
        );
        assert_eq!(ended.stdout_text(), "");
        assert!(ended.elapsed() < in_time(SOON), "{:?}", ended.elapsed());
    }
}

#[test]
fn a_sandbox_that_refuses_a_clock_costs_nothing() {
    let (deny, rankrun) = (program("deny_call"), rankrun().display().to_string());
    let ended = Job::of_program(&deny, ["clock_gettime", &rankrun, "-n", "2", "echo", "x"]).bound(BOUND).run();
    assert_eq!((ended.code, ended.stdout_text(), ended.stderr_text()), (Some(0), "x\nx\n".to_owned(), String::new()));
}

#[test]
fn the_users_soft_limit_on_cpu_time_is_that_of_the_ranks_and_does_not_end_rankrun() {
    // What the front has is seen by a rank, whose parent's parent's parent it is.
    let shown = r#"ulimit -St; up=$$; for i in 1 2 3; do up=$(awk '/^PPid/ { print $2 }' /proc/$up/status); done
awk '/^Max cpu time/ { print $4 == $5 }' /proc/$up/limits"#;
    let script = format!("ulimit -St 77; exec {} -n 1 sh -c \"$0\"", rankrun().display());
    let ended = Job::of_program("sh", ["-c", &script, shown]).run();
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "77\n1\n"), "{}", ended.stderr_text());
}

#[test]
fn a_limit_that_leaves_no_room_for_rankrun_is_named_and_a_small_stack_stays_the_ranks() {
    let rankrun = rankrun().display().to_string();
    let limited = |limit: &str| {
        let script = format!("ulimit {limit}; exec {rankrun} -n 2 sh -c 'ulimit -s'");
        Job::of_program("bash", ["-c", &script]).bound(BOUND).run()
    };
    for (limit, words) in [("-d 1200", "1200 KiB (ulimit -d)"), ("-s 64", "64 KiB (ulimit -s)")] {
        let ended = limited(limit);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(125), "{limit}: {text}");
        assert!(text.starts_with("error: the limit on ") && text.contains(words), "{limit}: {text}");
    }
    let ended = limited("-S -s 128");
    assert_eq!((ended.code, ended.stdout_text()), (Some(0), "128\n128\n".to_owned()), "{}", ended.stderr_text());
}
