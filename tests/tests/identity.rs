//! Who is ours and who is not: no signal goes to a process that is not the job's, whatever number it has.

use std::time::Duration;

use rankrun_tests::{Ended, Job, Tier, full_scale, processes, rankrun, skip, slowness, wait_until};
use rustix::process::Signal;

/// What the tests of this file may take.
const BOUND: Duration = Duration::from_secs(20);

/// Started as the first process of a pid namespace: runs rankrun, waits until the process whose pid stands in the file `child`
/// has ended, starts a `sleep` outside the job that has the same pid, and tells whether that outlives the job.
///
/// Other processes are started in the namespace too, so that the pid may need several attempts.
const REUSE: &str = r#"
import os, signal, subprocess, sys, time
directory, stops = os.environ["RANKRUN_TEST_DIR"], sys.argv[1] == "stop"
job = subprocess.Popen(sys.argv[2:])
end = time.monotonic() + 15
def until(condition):
    while not condition():
        if time.monotonic() > end:
            sys.exit("a condition did not come about in time")
        time.sleep(0.002)
until(lambda: os.path.exists(directory + "/ended"))
pid = int(open(directory + "/child").read())
until(lambda: not os.path.exists(f"/proc/{pid}"))
stranger = 0
while stranger != pid:
    if time.monotonic() > end:
        sys.exit("the pid was not given out again")
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    stranger = os.fork()
    if stranger == 0:
        # The right one waits for its end, as a `sleep` would; a wrong one is not needed.
        if os.getpid() == pid:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    if stranger != pid:
        os.waitpid(stranger, 0)
until(lambda: open(f"/proc/{pid}/comm").read() == "sleep\n")
if stops:
    job.send_signal(signal.SIGTERM)
else:
    open(directory + "/reused", "w").close()
print("rankrun ended with", job.wait())
ended, status = os.waitpid(pid, os.WNOHANG)
if ended:
    sys.exit(f"the stranger ended with status {status}")
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print("the stranger lives")
"#;

/// Runs a job whose rank notes the pid of a process that has ended, in a pid namespace where a stranger gets that pid.
fn where_a_stranger_gets_the_pid(event: &str, options: &[&str], rank: &str) -> Option<Ended> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can make a pid namespace and choose the next pid in it");
        return None;
    }
    let rankrun = rankrun().display().to_string();
    let words = ["-p", "-f", "--mount-proc", "python3", "-c", REUSE, event, &rankrun, "-n", "1", "--grace", "1s"];
    let job = Job::of_program("unshare", words.iter().chain(options).chain(&["sh", "-c", rank]));
    Some(job.start().finish(BOUND))
}

#[test]
fn a_stranger_that_got_the_pid_of_an_ended_speaker_survives_a_stop() {
    let rank = r#"python3 -c 'import os; print(os.getpid(), file=open(os.environ["RANKRUN_TEST_DIR"] + "/child", "w"))'
touch "$RANKRUN_TEST_DIR/ended"
exec sleep 600"#;
    let Some(ended) = where_a_stranger_gets_the_pid("stop", &[], rank) else { return };
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "rankrun ended with -15\nthe stranger lives\n", "{}", ended.stderr_text());
}

#[test]
fn a_stranger_that_got_the_pid_of_a_process_which_raised_survives_the_exit_grace() {
    // Nothing is told of its end, so that only the grace of 2 s, which the rank outlasts, can tell.
    let rank = r#"python3 -c 'import atexit, os
atexit.register(os._exit, 1)
print(os.getpid(), file=open(os.environ["RANKRUN_TEST_DIR"] + "/child", "w"))
raise ValueError' 2> /dev/null
touch "$RANKRUN_TEST_DIR/ended"
until [ -e "$RANKRUN_TEST_DIR/reused" ]; do sleep 0.01; done
exec sleep 3"#;
    let Some(ended) = where_a_stranger_gets_the_pid("grace", &["--exit-grace", "2s"], rank) else { return };
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "rankrun ended with 0\nthe stranger lives\n", "{}", ended.stderr_text());
}

/// A job of root's in a namespace of mounts with a /dev/shm of its own: first `setup` runs in a shell, then rankrun beside
/// `beside`; at last the names that are left are printed.
fn with_shared_memory_of_its_own(setup: &str, beside: &str, rank: &str) -> Option<(Ended, serde_json::Value)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can have mounts of its own");
        return None;
    }
    let script = format!(
        r#"mount -t tmpfs none /dev/shm && cd "$RANKRUN_TEST_DIR" || exit 99
{setup}
"$@" & job=$!
{beside}
wait $job; code=$?
ls /dev/shm
exit $code"#
    );
    let reports = tempfile::tempdir().expect("the temporary directory can be written");
    let (rankrun, directory) = (rankrun().display().to_string(), reports.path().display().to_string());
    let words = ["-m", "sh", "-c", &script, "sh", &rankrun, "-n", "1", "--report-dir", &directory, "sh", "-c", rank];
    let ended = Job::of_program("unshare", words).bound(BOUND).run();
    let report = std::fs::read(reports.path().join("report.json")).unwrap_or_default();
    Some((ended, serde_json::from_slice(&report).unwrap_or_default()))
}

#[test]
fn two_hundred_files_of_shared_memory_are_removed_and_the_job_succeeds() {
    // Whoever holds them for writing while they are looked for is the one who created them: until all are noted.
    let held = r#"python3 -c '
import os, time
held = [open(f"/dev/shm/kept-{i}", "w") for i in range(200)]
noted = os.path.dirname(os.environ["RANKRUN_SOCKET"]) + "/shm"
while not os.path.exists(noted) or open(noted).read().count("/kept-") < 200:
    time.sleep(0.01)
'"#;
    // What it costs to find that out must not grow with the other processes of the machine.
    let setup = "others=$(for i in $(seq 300); do sleep 600 > /dev/null & echo $!; done)";
    let beside = "trap 'kill $others' EXIT";
    let Some((ended, _)) = with_shared_memory_of_its_own(setup, beside, held) else { return };
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "", "{}", ended.stderr_text());
}

#[test]
fn shared_memory_of_another_user_survives_a_rank_that_has_it_open() {
    let setup = "echo > /dev/shm/before && chmod 666 /dev/shm/before && chown 65534 /dev/shm/before";
    let beside = r#"until [ -e up ]; do sleep 0.01; done
setpriv --reuid 65534 --clear-groups sh -c 'umask 0; echo > /dev/shm/during'
touch go"#;
    let rank = r#"exec 3<>/dev/shm/before; touch up; until [ -e go ]; do sleep 0.01; done
exec 4<>/dev/shm/during; sleep 0.5; exit 3"#;
    let Some((ended, _)) = with_shared_memory_of_its_own(setup, beside, rank) else { return };
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "before\nduring\n", "{}", ended.stderr_text());
}

#[test]
fn shared_memory_that_was_there_before_the_job_survives_it() {
    let Some((ended, _)) =
        with_shared_memory_of_its_own("echo > /dev/shm/before", "", "exec 3<>/dev/shm/before; sleep 0.5; exit 3")
    else {
        return;
    };
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "before\n", "{}", ended.stderr_text());
}

#[test]
fn shared_memory_that_a_rank_only_reads_survives_and_is_listed_as_doubtful() {
    // Whoever made it is not of the job, and has closed it before the rank opens it. The last look at a name is after a second.
    let beside = r#"until [ -e up ]; do sleep 0.01; done; echo > /dev/shm/during; touch go"#;
    let rank = r#"touch up; until [ -e go ]; do sleep 0.01; done; exec 3</dev/shm/during; sleep 2; exit 3"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("", beside, rank) else { return };
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "during\n", "{}", ended.stderr_text());
    assert_eq!(report["left"]["shared_memory_doubtful"], serde_json::json!(["/dev/shm/during"]), "{report}");
    assert!(ended.stderr_text().contains("/dev/shm/during"), "{}", ended.stderr_text());
}

#[test]
fn shared_memory_that_only_another_program_wrote_survives_and_is_not_listed() {
    // The other program lets go of it before the job ends. The last look at a name is after a second.
    let beside = r#"until [ -e up ]; do sleep 0.01; done; exec 9> /dev/shm/other; touch go
until [ -e seen ]; do sleep 0.01; done; exec 9>&-; touch released"#;
    let rank = r#"touch up; until [ -e go ]; do sleep 0.01; done; sleep 2; touch seen
until [ -e released ]; do sleep 0.01; done; exit 3"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("", beside, rank) else { return };
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "other\n", "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("left      nothing"), "{}", ended.stderr_text());
    assert_eq!(report["left"]["shared_memory_doubtful"].as_array().map_or(0, Vec::len), 0, "{report}");
}

#[test]
fn shared_memory_that_nobody_was_seen_to_hold_is_removed_or_listed_as_doubtful() {
    // To look who holds many files takes a while, and then there is a pause.
    let rank = r#"python3 -c '
import os, time
held = [open(f"/dev/shm/held-{i}", "w") for i in range(60)]
os.close(os.open("/dev/shm/brief", os.O_CREAT | os.O_WRONLY))
os._exit(3)
'"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("", "", rank) else { return };
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    let listed: Vec<String> =
        serde_json::from_value(report["left"]["shared_memory_doubtful"].clone()).unwrap_or_default();
    let there: Vec<String> = ended.stdout_text().lines().map(|name| format!("/dev/shm/{name}")).collect();
    assert_eq!(listed, there, "{}", ended.stderr_text());
}

/// A rank that is told to make its files when its agent is stopped: one that it holds, one that it closes, one that has the name of
/// MPICH's segment of this job, and one with the name of a segment of another job.
const UNSEEN: &str = r#"echo $PPID > agent.new; mv agent.new agent
python3 -c '
import os, time
while not os.path.exists("go"):
    time.sleep(0.005)
hash = 2166136261
for byte in ("rankrun_" + os.environ["RANKRUN_JOB_ID"] + "_0_0_0").encode():
    hash = (hash ^ byte) * 16777619 & 0xffffffff
held = open("/dev/shm/held", "w")
for name in ("closed", f"mpich_shm_{hash:x}_0", f"mpich_shm_{hash ^ 1:x}_0"):
    open("/dev/shm/" + name, "w").close()
print(f"mpich_shm_{hash ^ 1:x}_0", file=open("other", "w"), flush=True)
open("made", "w").close()
time.sleep(600)
'
exit $?"#;

#[test]
fn what_is_no_plain_file_of_the_user_is_listed_and_a_probe_with_bytes_in_it_is_not_removed() {
    let beside = r#"until [ -e up ]; do sleep 0.01; done; echo precious > /dev/shm/open_mpi.0010; touch go"#;
    let rank = r#"mkdir /dev/shm/directory; exec 3> /dev/shm/directory/file; mkfifo /dev/shm/fifo; ln -s x /dev/shm/link
setpriv --reuid 65534 --clear-groups sh -c 'exec 4> /dev/shm/of-nobody; sleep 2' &
touch up; until [ -e go ]; do sleep 0.01; done; wait; exit 3"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("", beside, rank) else { return };
    let names = ["directory", "fifo", "link", "of-nobody", "open_mpi.0010"];
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text().lines().collect::<Vec<_>>(), names, "{}", ended.stderr_text());
    let paths = names.map(|name| format!("/dev/shm/{name}"));
    assert_eq!(report["left"]["shared_memory_doubtful"], serde_json::json!(paths), "{report}");
}

#[test]
fn all_files_that_may_be_the_jobs_are_counted_though_not_all_are_named() {
    let rank = r#"python3 -c 'import os; [os.mkfifo(f"/dev/shm/fifo-{i}") for i in range(100)]'; exit 3"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("", "", rank) else { return };
    let left = &report["left"];
    let counts =
        (left["shared_memory_doubtful"].as_array().map(Vec::len), left["shared_memory_doubtful_more"].as_u64());
    assert_eq!(counts, (Some(64), Some(36)), "{report}");
    let text = ended.stderr_text();
    assert!(text.contains("possibly 100 shm files"), "{text}");
    assert!(text.contains("and 36 more in /dev/shm, without names here"), "{text}");
}

#[test]
fn a_semaphore_whose_first_name_the_library_has_removed_is_known_to_be_the_ranks() {
    let rank = r#"exec python3 -c '
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
assert libc.sem_open(b"/mine", os.O_CREAT, 0o600, 1)
noted = os.path.dirname(os.environ["RANKRUN_SOCKET"]) + "/shm"
while not os.path.exists(noted):
    time.sleep(0.01)
os._exit(3)
'"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("", "", rank) else { return };
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(3), ""), "{}", ended.stderr_text());
    assert_eq!(report["left"]["shared_memory"], serde_json::json!(["/dev/shm/sem.mine"]), "{report}");
}

#[test]
fn shared_memory_that_a_lost_agent_has_not_seen_is_removed_by_its_guard_or_named() {
    for then in ["", "kill -KILL $agent"] {
        let beside = format!(
            r#"until [ -e agent ]; do sleep 0.005; done; agent=$(cat agent); kill -STOP $agent; touch go
until [ -e made ]; do sleep 0.005; done; {then}"#
        );
        let Some((ended, report)) = with_shared_memory_of_its_own("trap 'cat other' EXIT", &beside, UNSEEN) else {
            return;
        };
        assert_eq!(ended.code, Some(121), "{}", ended.stderr_text());
        let text = ended.stdout_text();
        let [ref found @ .., same] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}: {}", ended.stderr_text())
        };
        // On a busy machine the guard kills the rank before it has read what the rank holds: then that file is named too.
        assert!([&["closed", same][..], &["closed", "held", same]].contains(&found), "{}", ended.stderr_text());
        let doubtful: Vec<String> = found.iter().map(|name| format!("/dev/shm/{name}")).collect();
        assert_eq!(report["left"]["shared_memory_doubtful"], serde_json::json!(doubtful), "{report}");
        assert_eq!(report["left"]["shared_memory"].as_array().map(Vec::len), Some(4 - found.len()), "{report}");
        let left = format!("left      possibly {} shm files", found.len());
        assert!(ended.stderr_text().contains(&left), "{}", ended.stderr_text());
    }
}

#[test]
fn shared_memory_of_a_job_without_guard_and_agent_is_looked_for_by_its_front() {
    let beside = r#"until [ -e agent ]; do sleep 0.005; done; agent=$(cat agent); kill -STOP $agent; touch go
until [ -e made ]; do sleep 0.005; done
guard=$(sed 's/.*) . \([0-9]*\).*/\1/' /proc/$agent/stat); kill -KILL $guard $agent"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("trap 'cat other' EXIT", beside, UNSEEN) else { return };
    let text = ended.stdout_text();
    // The file that was held is known to nobody.
    let [closed, held, other, same] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}: {}", ended.stderr_text())
    };
    assert_eq!((closed, held, other), ("closed", "held", same), "{}", ended.stderr_text());
    let paths = [closed, held, other].map(|name| format!("/dev/shm/{name}"));
    assert_eq!(report["left"]["shared_memory_doubtful"], serde_json::json!(paths), "{report}");
}

#[test]
fn what_a_rank_uses_as_another_user_or_in_a_directory_is_named_by_the_guard_of_a_lost_agent() {
    let beside = "until [ -e up ]; do sleep 0.01; done; kill -KILL $(cat agent)";
    let rank = r#"echo $PPID > agent; mkdir /dev/shm/directory; exec 3> /dev/shm/directory/file
setpriv --reuid 65534 --clear-groups sh -c 'exec 4> /dev/shm/of-nobody; echo > up; sleep 600'"#;
    let Some((ended, report)) = with_shared_memory_of_its_own("chmod 777 .", beside, rank) else { return };
    assert_eq!(ended.stdout_text(), "directory\nof-nobody\n", "{}", ended.stderr_text());
    let paths = ["/dev/shm/directory", "/dev/shm/of-nobody"];
    assert_eq!(report["left"]["shared_memory_doubtful"], serde_json::json!(paths), "{report}");
}

#[test]
fn a_segment_with_the_jobs_own_name_is_removed_however_many_other_files_appear() {
    let rank = r#"python3 -c '
import os, time
hash = 2166136261
for byte in ("rankrun_" + os.environ["RANKRUN_JOB_ID"] + "_0_0_0").encode():
    hash = (hash ^ byte) * 16777619 & 0xffffffff
names = [f"/dev/shm/{number}" for number in range(1500)]
for name in names:
    open(name, "w").close()
time.sleep(0.3)
open(f"/dev/shm/mpich_shm_{hash:x}_0", "w").close()
time.sleep(0.1)
for name in names:
    os.unlink(name)
os._exit(3)'"#;
    for _ in 0..full_scale(20, 3) {
        let Some((ended, report)) = with_shared_memory_of_its_own("", "", rank) else { return };
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(3), ""), "{}", ended.stderr_text());
        assert_eq!(report["left"]["shared_memory"].as_array().map(Vec::len), Some(1), "{report}");
    }
}

#[test]
fn what_an_earlier_attempt_has_left_is_listed_at_the_end() {
    let options = r#"rankrun=$1; shift; set -- "$rankrun" --clean-shm list --restart 1 --backoff 0 "$@""#;
    let rank = r#"[ $RANKRUN_ATTEMPT = 1 ] && exit 4; exec python3 -c '
import os, time
held = [open(f"/dev/shm/kept-{number}", "w") for number in range(3)]
time.sleep(1)
os._exit(3)'"#;
    let Some((ended, report)) = with_shared_memory_of_its_own(options, "", rank) else { return };
    assert_eq!(ended.stdout_text(), "kept-0\nkept-1\nkept-2\n", "{}", ended.stderr_text());
    let paths = [0, 1, 2].map(|number| format!("/dev/shm/kept-{number}"));
    assert_eq!(report["left"]["shared_memory"], serde_json::json!(paths), "{report}");
    assert!(!ended.stderr_text().contains("left      nothing"), "{}", ended.stderr_text());
}

#[test]
fn a_daemon_that_claims_another_rank_does_not_get_that_rank_blamed() {
    let program = r#"
import os, sys, time
directory, rank = os.environ["RANKRUN_TEST_DIR"], os.environ["RANKRUN_RANK"]
# The exception is told before the exit handlers run.
raises = "import atexit; atexit.register(open, '%s/told', 'w'); raise ValueError('of the daemon')"
if rank == "0":
    if os.fork() == 0:
        os.setsid()
        between = os.getpid()
        if os.fork() == 0:
            # Only when the process between is gone, this is an orphan.
            while os.getppid() == between:
                time.sleep(0.001)
            os.environ["RANKRUN_RANK"] = "1"
            os.execv(sys.executable, [sys.executable, "-c", raises % directory])
        os._exit(0)
    while not os.path.exists(directory + "/told"):
        time.sleep(0.001)
    os._exit(3)
time.sleep(600)
"#;
    let ended = Job::new(["-n", "2", "--grace", "1s", "python3", "-c", program]).tier(Tier::Subreaper).run();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("rankrun: rank 0 failed"), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("rank 1 ended by rankrun"), "{}", ended.stderr_text());
}

/// Becomes rankrun with 100 children of its own, as a shell with background jobs that calls `exec`.
const WITH_STRANGERS: &str = r#"for i in $(seq 100); do sleep 600 & echo $!; done > "$RANKRUN_TEST_DIR/strangers"
exec "$0" -n 2 --grace 1s sh -c 'touch "$RANKRUN_TEST_DIR/$RANKRUN_RANK.up"; exec sleep 600'"#;

#[test]
fn children_that_the_caller_had_before_survive_the_death_of_guard_and_agent() {
    for tier in Tier::available() {
        let running =
            Job::of_program("sh", ["-c", WITH_STRANGERS, rankrun().to_str().expect("text")]).tier(tier).start();
        running.wait_for_file("0.up");
        running.wait_for_file("1.up");
        let strangers: Vec<i32> =
            running.wait_for_text("strangers").lines().map(|line| line.parse().expect("a pid")).collect();
        assert_eq!(strangers.len(), 100);
        let child = |parent: i32, name: &str| {
            let found = processes::children(parent).into_iter().find(|process| process.name.starts_with(name));
            found.unwrap_or_else(|| panic!("{parent} has no child {name}")).pid
        };
        let guard = child(running.front(), "rr-guard");
        let agent = child(guard, "rankrun");
        processes::send(guard, Signal::KILL);
        processes::send(agent, Signal::KILL);
        let ended = wait_until(BOUND * slowness(), || running.front_ended());
        let alive = strangers.iter().filter(|pid| processes::is_alive(**pid)).count();
        for pid in strangers {
            processes::send(pid, Signal::KILL);
        }
        let ended = ended.map(|_| running.finish(BOUND)).expect("the front ends");
        assert_eq!(alive, 100, "{tier:?}: {}", ended.stderr_text());
        assert!(matches!(ended.code, Some(121 | 125)), "{tier:?}: {:?}, {}", ended.code, ended.stderr_text());
    }
}
