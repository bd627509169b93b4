//! A training with real torch on four hosts that are cut off, frozen and killed at random: it goes on with those that are left, and
//! reaches its last step with the right loss.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_core::report::Report;
use rankrun_tests::{Cut, Environment, Host, Hosts, Job, Random, full_scale, processes, seeds, wait_until};
use rustix::process::Signal;

/// Each attempt imports torch in up to eight processes, on a busy machine in two minutes.
const ATTEMPT: Duration = Duration::from_secs(180);
/// How long the last loss and the last attempt may take together. The runner ends a test after 10 minutes without a word about the job.
const LAST: Duration = Duration::from_secs(90);
/// How long a host may take to be empty after a job: it may have to notice that it was lost.
const MOMENT: Duration = Duration::from_secs(20);
/// Steps of an attempt that is to lose a host, and those of the last.
const PACE: u64 = 30;

/// What happens to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Misfortune {
    /// It hears nothing, and is not heard.
    Cut,
    /// Its connections are reset.
    Reset,
    /// Nothing runs there.
    Freeze,
    /// Every process of the job on it is killed.
    Kill,
}

impl Misfortune {
    const ALL: [Misfortune; 4] = [Misfortune::Cut, Misfortune::Kill, Misfortune::Freeze, Misfortune::Reset];

    fn befall(self, host: &Host) {
        match self {
            Misfortune::Cut => host.cut(Cut::Silent),
            Misfortune::Reset => host.cut(Cut::Reset),
            Misfortune::Freeze => host.freeze(),
            Misfortune::Kill => {
                for process in host.survivors() {
                    processes::send(process.pid, Signal::KILL);
                }
            }
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests have a directory of their own").to_owned()
}

#[test]
fn a_torch_training_whose_hosts_are_lost_at_random_ends_with_the_right_loss() {
    let Some(torch) = Environment::find("torch") else { return };
    let (seed, jobs) = (*seeds(1).start(), full_scale(4, 1));
    let mut random = Random::new(seed);
    let script = repository().join("tests/programs/restart/train_nodes.py").display().to_string();
    let python = torch.program("python3");
    for job in 0..jobs {
        let Some(hosts) = Hosts::up(4) else { return };
        let mut alive: Vec<usize> = (0..4).collect();
        let count = 3;
        let steps = ((count + 1) * PACE).to_string();
        let directory = hosts.directory().join("jobs");
        let train = |options: &[&str]| {
            let place = directory.join(if options.is_empty() { "alone" } else { "together" });
            fs::create_dir_all(&place).expect("it is ours");
            let reports = place.join("report").display().to_string();
            let pace = if options.is_empty() { steps.clone() } else { PACE.to_string() };
            let all = ["--report-dir", &reports, "--grace", "2s"].into_iter().chain(options.iter().copied());
            let job = Job::new(all.chain([&*python, &*script, &*steps, &*pace]))
                .at(hosts.front())
                .env("PYTHONPATH", repository().join("python"))
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .current_dir(&place);
            (job, place.join("report/report.json"))
        };
        let (unharmed, _) = train(&[]);
        let unharmed = unharmed.bound(ATTEMPT).run();
        assert_eq!(unharmed.code, Some(0), "{}", unharmed.stderr_text());
        // Each rank of each attempt imports torch.
        let nodes = format!("node[0-3]:{}", full_scale(2, 1));
        let words = ["-H", &nodes, "--nnodes", "1:4", "--max-restarts", "3", "--node-timeout", "3s"];
        let (harmed, report) = train(&words);
        let (harmed, checkpoint) = (harmed.start(), directory.join("together/checkpoint"));
        let errors = || String::from_utf8_lossy(&harmed.stderr_so_far()).into_owned();
        let mut story = Vec::new();
        for attempt in 0..count {
            let late = || panic!("attempt {attempt}: {story:?}\n{}", errors());
            let begins = || errors().contains(&format!("begin {attempt}: ")).then_some(());
            wait_until(ATTEMPT, begins).unwrap_or_else(late);
            // Ranks of the attempt before may have saved what they had after their host was hit. Now they are gone.
            let before = fs::read(&checkpoint).ok();
            let trains = || (fs::read(&checkpoint).ok() != before).then_some(());
            wait_until(ATTEMPT, trains).unwrap_or_else(late);
            // Some steps later: while ranks compute, meet, save, or wait.
            let after = Duration::from_millis(random.below(1500));
            let _ = wait_until(after, || None::<()>);
            let victim = alive.remove(random.below(alive.len() as u64) as usize);
            let misfortune = Misfortune::ALL[((attempt + job as u64) % 4) as usize];
            misfortune.befall(hosts.node(victim));
            story.push((misfortune, victim));
        }
        let harmed = harmed.finish(LAST);
        hosts.nodes().iter().for_each(|host| {
            host.thaw();
            host.heal();
        });
        let text = format!("RANKRUN_TEST_SEED={seed}, job {job}: {story:?}\n{}", harmed.stderr_text());
        assert_eq!(harmed.code, Some(0), "{text}");
        assert_eq!(harmed.stdout_text(), unharmed.stdout_text(), "{text}");
        assert!(
            text.contains("begin 3: ") && !text.contains("begin 3: 0 of"),
            "it goes on from its checkpoint: {text}"
        );
        let report = fs::read(report).expect("a report");
        let report: Report = serde_json::from_slice(&report).expect("a report");
        assert_eq!(report.attempts.len(), story.len(), "{text}");
        for (past, (_, victim)) in report.attempts.iter().zip(&story) {
            assert_eq!(past.class, Some(Class::NodeLost), "attempt {}: {text}", past.attempt);
            assert!(past.summary.starts_with(&format!("node node{victim} was lost")), "{}: {text}", past.summary);
        }
        // A session of sshd whose connection was cut lasts until TCP gives up; where all was killed, the empty cgroup stays.
        let left = || {
            let all = hosts.nodes().iter().flat_map(Host::survivors);
            all.filter(|process| process.name != "sshd").collect::<Vec<_>>()
        };
        let is_empty = wait_until(MOMENT, || left().is_empty().then_some(()));
        assert!(is_empty.is_some(), "{:?}: {text}", left());
    }
}

/// Faults of ranks, as the program is told of them.
const FATES: [&str; 4] = ["exception", "kill", "exit", "stop"];

/// Three hosts have the ranks, and one waits: a host that is lost comes back as the next spare. In turns a rank fails and a host is lost.
#[test]
fn a_torch_training_with_a_spare_host_meets_all_kinds_of_faults_and_ends_with_the_same_weights() {
    let Some(torch) = Environment::find("torch") else { return };
    let Some(hosts) = Hosts::up(4) else { return };
    let (seed, count) = (*seeds(1).start(), full_scale(20, 4));
    let mut random = Random::new(seed);
    let (python, script) = (torch.program("python3"), repository().join("tests/programs/restart/train_nodes.py"));
    let (steps, pace) = (((count + 1) * PACE).to_string(), PACE.to_string());
    let directory = hosts.directory().join("jobs");
    let train = |name: &str, options: &[&str], pace: &str, faults: &[String]| {
        let place = directory.join(name);
        fs::create_dir_all(&place).expect("it is ours");
        let words = options.iter().copied().chain(["--grace", "2s", "--", &python]).map(str::to_owned);
        let words = words.chain([script.display().to_string(), steps.clone(), pace.to_owned()]);
        Job::new(words.chain(faults.iter().cloned()))
            .at(hosts.front())
            .env("PYTHONPATH", repository().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&place)
    };
    let unharmed = train("alone", &["-H", "node0:3"], &steps, &[]).bound(ATTEMPT).run();
    assert_eq!(unharmed.code, Some(0), "{}", unharmed.stderr_text());
    // Faults of hosts are the odd ones.
    let faults: Vec<String> = (0..count)
        .step_by(2)
        .map(|attempt| {
            let fate = FATES[(attempt as usize / 2) % FATES.len()];
            format!("{attempt}:{}:{}:{fate}", random.below(3), random.below(PACE - 5))
        })
        .collect();
    let restarts = count.to_string();
    let words = ["-H", "node[0-3]", "--spares", "1", "--max-restarts", &restarts, "--no-breaker", "--backoff", "0"];
    let more = ["--node-timeout", "3s", "--torch-store", "relay", "--preload", "torch"];
    let harmed = train("together", &[&words[..], &more].concat(), &pace, &faults).start();
    let errors = || String::from_utf8_lossy(&harmed.stderr_so_far()).into_owned();
    let mut story = Vec::new();
    for attempt in (1..count).step_by(2) {
        let late = || format!("attempt {attempt}: {faults:?} {story:?}\n{}", errors());
        let places = || -> Option<Vec<String>> {
            let (errors, prefix) = (errors(), format!("begin {attempt}: "));
            let lines: Vec<&str> = errors.lines().filter(|line| line.contains(&prefix)).collect();
            let name = |line: &str| line.rsplit_once(", ").map(|(_, name)| name.to_owned());
            (lines.len() == 3).then(|| lines.into_iter().filter_map(name).collect())
        };
        let places = wait_until(ATTEMPT, places).unwrap_or_else(|| panic!("{}", late()));
        let _ = wait_until(Duration::from_millis(random.below(1000)), || None::<()>);
        let name = &places[random.below(3) as usize];
        let victim = hosts.nodes().iter().find(|host| host.name() == name).expect("a host of the bench");
        let misfortune = Misfortune::ALL[(attempt as usize / 2) % Misfortune::ALL.len()];
        misfortune.befall(victim);
        let next = || errors().contains(&format!("begin {}: ", attempt + 1)).then_some(());
        wait_until(ATTEMPT, next).unwrap_or_else(|| panic!("{misfortune:?} of {name}, {}", late()));
        story.push((misfortune, name.clone()));
        // It is well again, and can be the next spare.
        victim.thaw();
        victim.heal();
    }
    let harmed = harmed.finish(LAST);
    let text = format!("RANKRUN_TEST_SEED={seed}: {faults:?} {story:?}\n{}", harmed.stderr_text());
    assert_eq!(harmed.code, Some(0), "{text}");
    assert_eq!(harmed.stdout_text(), unharmed.stdout_text(), "{text}");
    assert!(text.contains(&format!("begin {count}: ")) && !text.contains(&format!("begin {count}: 0 of")), "{text}");
    assert!(!text.contains("--preload"), "ranks are forked in each attempt: {text}");
    hosts.nodes().iter().for_each(Host::end_sessions);
    hosts.finish(MOMENT);
}
