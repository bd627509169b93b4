//! Nothing is left behind, and nothing hangs: whatever happens to a rank, to the front, to the agent, to the guard,
//! or to two of them, in both tiers of containment (K-3, K-4, K-6, K-8).
//!
//! Each of 3 ranks has a plain child, a child in a session of its own, and a daemonised grandchild that ignores
//! SIGTERM, SIGINT and SIGHUP. All hold stdout open; in the tests of shared memory all map a file of /dev/shm.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rankrun_tests::{
    Ended, Environment, Job, Running, Tier, User, compile, full_scale, helper, in_time, leftovers, monotonic,
    open_mpi_4, pause, processes, skip, slowness, wait_until,
};
use rustix::process::Signal;

const RANKS: u32 = 3;

/// What the tests give for `--grace`, and may therefore expect.
const GRACE: Duration = Duration::from_secs(1);

/// What may pass beyond the grace.
const MARGIN: Duration = Duration::from_secs(1);

/// The agent's lease: how long the guard believes in an agent that says nothing, and then some.
const LEASE: Duration = Duration::from_secs(10);

/// The library that makes every process of a rank map shared memory.
fn shared_memory_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/map_shm.c");
        compile("cc", &["-shared", "-fPIC", "-O1"], &source, "map_shm.so")
    })
}

fn tree(options: &[&str], arguments: &[&str], tier: Tier) -> Job {
    let (ranks, helper) = (RANKS.to_string(), helper("tree"));
    let mut all = vec!["-n", &ranks, "--grace", "1s", "--linger", "200ms"];
    all.extend(options);
    all.push(&helper);
    all.extend(arguments);
    Job::new(all).tier(tier)
}

/// Starts the trees, lets `event` happen when all are up, and proves that within `bound` nothing is left.
fn after(job: Job, bound: Duration, event: impl FnOnce(&Running)) -> Ended {
    let running = job.start();
    running.wait_for_ranks(RANKS);
    let time = monotonic();
    event(&running);
    let ended = running.finish(bound + Duration::from_secs(5));
    let gone = ended.empty.saturating_sub(time);
    let bound = bound * slowness();
    assert!(gone <= bound, "the last process was gone only after {gone:?}; {}", ended.stderr_text());
    ended
}

fn ended_by(ended: &Ended, signal: i32) -> bool {
    ended.signal == Some(signal) || ended.code == Some(128 + signal)
}

#[test]
fn a_rank_that_exits_with_3_takes_all_with_it() {
    for tier in Tier::available() {
        let job = tree(&[], &["--exit", "3", "--rank", "1", "--on-go"], tier);
        let ended = after(job, GRACE + MARGIN, |running| running.sign("go"));
        assert_eq!(ended.code, Some(3), "{tier:?}: {}", ended.stderr_text());
    }
}

#[test]
fn a_rank_that_dies_by_a_signal_takes_all_with_it() {
    for tier in Tier::available() {
        for signal in [11, 9] {
            let number = signal.to_string();
            let job = tree(&[], &["--signal", &number, "--on-go"], tier);
            let ended = after(job, GRACE + MARGIN, |running| running.sign("go"));
            assert_eq!(ended.code, Some(128 + signal), "{tier:?}: {}", ended.stderr_text());
        }
    }
}

#[test]
fn a_signal_to_the_front_ends_all() {
    for tier in Tier::available() {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let ended = after(tree(&[], &[], tier), GRACE + MARGIN, |running| processes::send(running.front(), signal));
            assert!(ended_by(&ended, signal.as_raw()), "{tier:?}: {:?} {:?}", ended.code, ended.signal);
        }
    }
}

#[test]
fn a_killed_front_leaves_nothing() {
    for tier in Tier::available() {
        after(tree(&[], &[], tier), GRACE + MARGIN, |running| processes::send(running.front(), Signal::KILL));
    }
}

#[test]
fn a_killed_agent_leaves_nothing_and_is_told() {
    for tier in Tier::available() {
        let ended = after(tree(&[], &[], tier), GRACE + MARGIN, |running| {
            processes::send(running.agent(), Signal::KILL);
        });
        assert!(matches!(ended.code, Some(121 | 125)), "{tier:?}: {:?}, {}", ended.code, ended.stderr_text());
    }
}

#[test]
fn a_stopped_agent_leaves_nothing() {
    for tier in Tier::available() {
        let ended = after(tree(&[], &[], tier), LEASE + GRACE + MARGIN, |running| {
            processes::send(running.agent(), Signal::STOP);
        });
        assert!(matches!(ended.code, Some(121 | 125)), "{tier:?}: {:?}, {}", ended.code, ended.stderr_text());
    }
}

#[test]
fn a_stopped_guard_holds_up_neither_a_job_that_is_done_nor_one_that_is_told_to_end() {
    for (signal, rank) in [(None, &["--alone", "--all", "--exit", "0", "--on-go"][..]), (Some(Signal::TERM), &[])] {
        for tier in Tier::available() {
            after(tree(&[], rank, tier), LEASE + GRACE + MARGIN, |running| {
                processes::send(running.guard(), Signal::STOP);
                match signal {
                    Some(signal) => processes::send(running.front(), signal),
                    None => running.sign("go"),
                }
            });
        }
    }
}

#[test]
fn a_killed_front_with_a_stopped_guard_leaves_nothing_not_even_the_guard() {
    for tier in Tier::available() {
        after(tree(&[], &[], tier), LEASE + GRACE + MARGIN, |running| {
            let guard = running.guard();
            processes::send(guard, Signal::STOP);
            processes::send(running.front(), Signal::KILL);
        });
    }
}

#[test]
fn a_guard_that_is_stopped_after_the_death_of_the_front_is_continued_by_the_agent() {
    for tier in Tier::available() {
        after(tree(&[], &[], tier), LEASE + GRACE + MARGIN, |running| {
            let guard = running.guard();
            processes::send(running.front(), Signal::KILL);
            // The descendants ignore SIGTERM, so that the agent has the grace to wait.
            wait_until(MARGIN, || running.front_ended()).expect("the front is dead");
            processes::send(guard, Signal::STOP);
        });
    }
}

#[test]
fn a_stopped_agent_whose_guard_is_killed_leaves_nothing() {
    for tier in Tier::available() {
        after(tree(&[], &[], tier), LEASE + GRACE + MARGIN, |running| {
            let (guard, agent) = (running.guard(), running.agent());
            processes::send(agent, Signal::STOP);
            processes::send(guard, Signal::KILL);
        });
    }
}

#[test]
fn a_killed_guard_leaves_nothing() {
    for tier in Tier::available() {
        let ended = after(tree(&[], &[], tier), GRACE + MARGIN, |running| {
            processes::send(running.guard(), Signal::KILL);
        });
        assert!(ended.code.is_some_and(|code| code != 0), "{tier:?}: {:?}", ended.code);
    }
}

#[test]
fn killing_everything_that_is_called_rankrun_leaves_nothing() {
    for tier in Tier::available() {
        after(tree(&[], &[], tier), GRACE + MARGIN, |running| {
            let namesakes: Vec<i32> = running
                .processes()
                .into_iter()
                .filter(|process| process.name.starts_with("rankrun"))
                .map(|process| process.pid)
                .collect();
            assert!(namesakes.contains(&running.front()), "the front is called rankrun");
            assert!(!namesakes.contains(&running.guard()), "the guard bears another name");
            for pid in namesakes {
                processes::send(pid, Signal::KILL);
            }
        });
    }
}

/// Kills two processes of the job, a gap apart, and proves that nothing survives.
fn kill_pairs(first: fn(&Running) -> i32, second: fn(&Running) -> i32) {
    for tier in Tier::available() {
        for gap in [0, 1, 5, 10] {
            for _ in 0..full_scale(20, 1) {
                after(tree(&[], &[], tier), GRACE + MARGIN, |running| {
                    // Both are looked up first: the second could not be found once the first is gone.
                    let (first, second) = (first(running), second(running));
                    processes::send(first, Signal::KILL);
                    pause(Duration::from_millis(gap));
                    processes::send(second, Signal::KILL);
                });
            }
        }
    }
}

#[test]
fn front_and_agent_killed_together_leave_nothing() {
    kill_pairs(Running::front, Running::agent);
    kill_pairs(Running::agent, Running::front);
}

#[test]
fn front_and_guard_killed_together_leave_nothing() {
    kill_pairs(Running::front, Running::guard);
    kill_pairs(Running::guard, Running::front);
}

#[test]
fn agent_and_guard_killed_together_leave_nothing() {
    kill_pairs(Running::agent, Running::guard);
    kill_pairs(Running::guard, Running::agent);
}

#[test]
fn a_job_beyond_its_timeout_leaves_nothing() {
    for tier in Tier::available() {
        let running = tree(&["--timeout", "1500ms"], &[], tier).start();
        running.wait_for_ranks(RANKS);
        let ended = running.finish(in_time(Duration::from_secs(8)));
        assert_eq!(ended.code, Some(124), "{tier:?}: {}", ended.stderr_text());
        let limit = in_time(Duration::from_millis(1500) + GRACE + MARGIN);
        assert!(ended.elapsed() <= limit, "{tier:?}: {:?}", ended.elapsed());
    }
}

/// How long it takes is measured by `cargo xtask bench`: here only that nobody waits for the grace to pass.
#[test]
fn ranks_that_heed_sigterm_are_gone_long_before_the_grace_has_passed() {
    for tier in Tier::available() {
        for (options, arguments) in [
            (&["--grace", "30s"][..], &["--alone", "--exit", "3", "--on-go"][..]),
            (&["--grace", "30s", "--linger", "0"], &["--obedient", "--exit", "3", "--on-go"]),
        ] {
            let ended = after(tree(options, arguments, tier), MARGIN, |running| running.sign("go"));
            assert_eq!(ended.code, Some(3), "{tier:?}: {}", ended.stderr_text());
        }
    }
}

#[test]
fn a_user_who_may_make_no_cgroup_leaves_nothing_either() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    let as_nobody = |options: &[&str], arguments: &[&str]| {
        tree(options, arguments, Tier::Subreaper).env_remove("RANKRUN_CONTAINMENT").user(User::Nobody)
    };
    let ended = after(as_nobody(&[], &["--exit", "3", "--on-go"]), GRACE + MARGIN, |running| running.sign("go"));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    let targets: [fn(&Running) -> i32; 3] = [Running::front, Running::agent, Running::guard];
    for target in targets {
        after(as_nobody(&[], &[]), GRACE + MARGIN, |running| processes::send(target(running), Signal::KILL));
    }
    let ended = after(as_nobody(&[], &[]), GRACE + MARGIN, |running| {
        processes::send(running.front(), Signal::TERM);
    });
    assert!(ended_by(&ended, 15), "{:?} {:?}", ended.code, ended.signal);
}

/// Something that happens to a job.
type Event = fn(&Running);

#[test]
fn no_shared_memory_survives_the_job_whatever_ends_it() {
    let preload = format!("LD_PRELOAD={}", shared_memory_library().display());
    let events: [(&str, &[&str], Event); 10] = [
        ("a rank exits", &["--exit", "3"], |running| running.sign("go")),
        ("a rank crashes", &["--signal", "11"], |running| running.sign("go")),
        ("all ranks exit with 0", &["--exit", "0", "--all"], |running| running.sign("go")),
        ("the front is told to end", &[], |running| processes::send(running.front(), Signal::TERM)),
        ("the front is killed", &[], |running| processes::send(running.front(), Signal::KILL)),
        ("the agent is killed", &[], |running| processes::send(running.agent(), Signal::KILL)),
        ("the agent is stopped", &[], |running| processes::send(running.agent(), Signal::STOP)),
        ("the guard is killed", &[], |running| processes::send(running.guard(), Signal::KILL)),
        ("front and agent are killed", &[], |running| {
            let pids = [running.agent(), running.front()];
            pids.into_iter().for_each(|pid| processes::send(pid, Signal::KILL));
        }),
        ("agent and guard are killed", &[], |running| {
            let pids = [running.agent(), running.guard()];
            pids.into_iter().for_each(|pid| processes::send(pid, Signal::KILL));
        }),
    ];
    let mut left = Vec::new();
    for tier in Tier::available() {
        for (name, arguments, event) in events {
            let arguments: Vec<&str> = arguments.iter().copied().chain(["--on-go"]).collect();
            let job = tree(&["-x", &preload], &arguments, tier);
            let outcome = std::panic::catch_unwind(|| {
                after(job, LEASE + GRACE + MARGIN, |running| {
                    // Whoever cleans up after a killed agent knows what the agent had noted, and removes nothing else.
                    wait_until(MARGIN * 5, || (notes_of(running) >= RANKS as usize).then_some(()))
                        .expect("the files are noted");
                    event(running);
                })
            });
            if outcome.is_err() {
                left.push(format!("{name} ({tier:?})"));
            }
        }
    }
    assert!(left.is_empty(), "something was left when {left:?}");
}

/// How many files of a job's ranks are noted in its directory.
fn notes_of(running: &Running) -> usize {
    let name = format!("/dev/shm/map-{}-", running.tag());
    let user = rustix::process::geteuid().as_raw();
    let jobs = fs::read_dir(format!("/tmp/rankrun-{user}")).into_iter().flatten().flatten();
    let lists = jobs.filter_map(|job| fs::read_to_string(job.path().join("shm")).ok());
    lists.map(|list| list.lines().filter(|line| line.contains(&name)).count()).sum()
}

/// Ranks of Open MPI: in C on 4.1, in Python on 5.0.
fn ranks_of_open_mpi() -> Vec<Vec<String>> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi");
    let in_c = open_mpi_4().map(|_| {
        let program = compile("mpicc.openmpi", &["-O1"], &programs.join("held.c"), "held-open-mpi");
        vec![program.display().to_string()]
    });
    let in_python = Environment::find("openmpi")
        .map(|environment| vec![environment.program("python"), programs.join("held.py").display().to_string()]);
    [in_c, in_python].into_iter().flatten().collect()
}

/// Starts trees whose leaders are ranks of Open MPI, lets `event` happen, and proves that nothing is left of them, of the
/// PMIx host and of their files.
fn after_open_mpi(tier: Tier, rank: &[String], fate: &[&str], event: Event) {
    let temporary = tempfile::tempdir().expect("the temporary directory can be written");
    let arguments: Vec<&str> =
        ["--then"].into_iter().chain(rank.iter().map(String::as_str)).chain(fate.iter().copied()).collect();
    let job = tree(&[], &arguments, tier).env("TMPDIR", temporary.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut shared = BTreeSet::new();
    after(job, LEASE + GRACE + MARGIN, |running| {
        shared = leftovers::shared_memory_of(&running.processes());
        assert!(!shared.is_empty(), "Open MPI shares memory");
        // Whoever cleans up after a killed agent knows what the agent had noted.
        let noted = || shared.iter().all(|file| leftovers::is_noted(file)).then_some(());
        wait_until(MARGIN * 5, noted).expect("the files are noted");
        event(running);
    });
    let kept: Vec<&PathBuf> = shared.iter().filter(|file| file.exists()).collect();
    assert!(kept.is_empty(), "{kept:?} are left");
    let files: Vec<_> = fs::read_dir(temporary.path()).expect("it is ours").flatten().collect();
    assert!(files.is_empty(), "{files:?} are left");
}

#[test]
fn ranks_of_open_mpi_leave_nothing_whatever_ends_the_job() {
    let events: [(&str, &[&str], Event); 9] = [
        ("a rank exits", &["--exit", "3"], |running| running.sign("go")),
        ("a rank crashes", &["--signal", "11"], |running| running.sign("go")),
        ("a rank is killed", &["--signal", "9"], |running| running.sign("go")),
        ("a rank is ended", &["--signal", "15"], |running| running.sign("go")),
        ("the front is told to end", &[], |running| processes::send(running.front(), Signal::TERM)),
        ("the front is killed", &[], |running| processes::send(running.front(), Signal::KILL)),
        ("the agent is killed", &[], |running| processes::send(running.agent(), Signal::KILL)),
        ("the agent is stopped", &[], |running| processes::send(running.agent(), Signal::STOP)),
        ("the guard is killed", &[], |running| processes::send(running.guard(), Signal::KILL)),
    ];
    let ranks = ranks_of_open_mpi();
    let cases = || Tier::available().into_iter().flat_map(|tier| ranks.iter().map(move |rank| (tier, rank)));
    // The trees wait most of their time.
    let left: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = cases()
            .map(|(tier, rank)| {
                scope.spawn(move || {
                    let outcomes = events.map(|(name, fate, event)| {
                        let outcome = std::panic::catch_unwind(|| after_open_mpi(tier, rank, fate, event));
                        outcome.is_err().then(|| format!("{name} ({tier:?}, {rank:?})"))
                    });
                    outcomes.into_iter().flatten().collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    assert!(left.is_empty(), "something was left when {left:?}");
}

/// Makes a file in /dev/shm, works with it for a while, and ends on request.
const KEEPER: &str = r#"exec 3<>"/dev/shm/${RANKRUN_TEST_DIR##*/}-kept"
sleep 0.2
echo > "$RANKRUN_TEST_DIR/up"
until [ -e "$RANKRUN_TEST_DIR/go" ]; do sleep 0.01; done"#;

#[test]
fn shared_memory_that_is_to_stay_stays_whatever_ends_the_job() {
    let events: [(&str, Event); 3] = [
        ("the rank ends", |running| running.sign("go")),
        ("the front is told to end", |running| processes::send(running.front(), Signal::TERM)),
        ("the agent is killed", |running| processes::send(running.agent(), Signal::KILL)),
    ];
    for (policy, stays) in [("list", true), ("no", true), ("job", false)] {
        for (name, event) in &events {
            let running = Job::new(["-n", "1", "--grace", "1s", "--clean-shm", policy, "sh", "-c", KEEPER]).start();
            let file = Path::new("/dev/shm").join(format!("{}-kept", running.tag()));
            running.wait_for_file("up");
            assert!(file.exists());
            event(&running);
            wait_until(LEASE + GRACE + MARGIN, || running.front_ended()).expect("the front ends");
            assert_eq!(file.exists(), stays, "--clean-shm {policy}, {name}");
            let _ = fs::remove_file(&file);
            running.finish(MARGIN);
        }
    }
}

#[test]
fn a_checkpoint_that_needs_helper_processes_is_complete() {
    let ranks = 2;
    for tier in Tier::available() {
        for run in 0..full_scale(100, 10) {
            let job = Job::new(["-n", "2", "--grace", "10s", &helper("checkpoint")]).tier(tier);
            let running = job.start();
            for rank in 0..ranks {
                running.wait_for_file(&format!("{rank}.up"));
            }
            processes::send(running.front(), Signal::TERM);
            for rank in 0..ranks {
                let checkpoint = running.wait_for_text(&format!("{rank}.checkpoint"));
                assert_eq!(checkpoint.lines().count(), 5, "{tier:?}, run {run}, rank {rank}");
            }
            let ended = running.finish(Duration::from_secs(15));
            assert!(ended_by(&ended, 15), "every rank exited with 0, but rankrun was ended: {:?}", ended.code);
        }
    }
}
