//! What a rank finds itself in: variables, descriptors, signals, limits (docs/architecture.md).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use rankrun_tests::{Ended, Job, helper, rankrun};

/// The variables of each rank, by rank, from `env -0` under `--output grouped`.
fn variables(ended: &Ended) -> Vec<BTreeMap<String, String>> {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    let pairs = text.split_terminator('\0').filter_map(|pair| pair.split_once('='));
    let mut ranks: Vec<BTreeMap<String, String>> = Vec::new();
    for (name, value) in pairs {
        // Each rank's environment begins where a name comes for the second time.
        if ranks.last().is_none_or(|rank| rank.contains_key(name.trim_start())) {
            ranks.push(BTreeMap::new());
        }
        if let Some(rank) = ranks.last_mut() {
            rank.insert(name.trim_start().to_owned(), value.to_owned());
        }
    }
    ranks
}

const OUTER: [(&str, &str); 14] = [
    ("SLURM_PROCID", "7"),
    ("SLURM_LOCALID", "7"),
    ("SLURM_NODEID", "3"),
    ("SLURM_NTASKS", "64"),
    ("SLURM_STEP_ID", "1"),
    ("SLURM_STEP_NUM_TASKS", "64"),
    ("PMI_RANK", "7"),
    ("PMI_SIZE", "64"),
    ("PMI_FD", "99"),
    ("PMIX_RANK", "7"),
    ("PMIX_NAMESPACE", "outer"),
    ("OMPI_COMM_WORLD_RANK", "7"),
    ("OMPI_COMM_WORLD_SIZE", "64"),
    ("I_MPI_PMI_LIBRARY", "/usr/lib/libpmi2.so"),
];

#[test]
fn a_rank_knows_its_own_place_and_nothing_of_an_outer_one() {
    let mut job = Job::new(["-n", "3", "--output", "grouped", "env", "-0"]).env("SLURM_JOB_ID", "4711");
    for (name, value) in OUTER {
        job = job.env(name, value);
    }
    let ranks = variables(&job.run());
    assert_eq!(ranks.len(), 3);
    for (number, rank) in ranks.iter().enumerate() {
        for name in ["RANKRUN_RANK", "RANK", "LOCAL_RANK", "PMI_RANK", "MPI_LOCALRANKID"] {
            assert_eq!(rank.get(name), Some(&number.to_string()), "{name}");
        }
        for name in ["RANKRUN_WORLD_SIZE", "WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"] {
            assert_eq!(rank.get(name).map(String::as_str), Some("3"), "{name}");
        }
        for (name, value) in OUTER {
            assert_ne!(rank.get(name).map(String::as_str), Some(value), "{name} is the outer one");
        }
        assert_eq!(rank.get("SLURM_JOB_ID").map(String::as_str), Some("4711"), "the allocation is still ours");
    }
    let masters: BTreeSet<_> = ranks.iter().map(|rank| rank.get("MASTER_PORT")).collect();
    assert_eq!(masters.len(), 1, "one store for all");
    assert!(masters.iter().all(Option::is_some));
}

#[test]
fn rankrun_below_rankrun_is_a_job_of_its_own() {
    let inner = rankrun();
    let ended =
        Job::new(["-n", "1", inner.to_str().expect("text"), "-n", "2", "--output", "grouped", "env", "-0"]).run();
    let ranks = variables(&ended);
    assert_eq!(ranks.len(), 2);
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank.get("RANKRUN_RANK"), Some(&number.to_string()));
        assert_eq!(rank.get("RANKRUN_WORLD_SIZE").map(String::as_str), Some("2"));
    }
}

#[test]
fn the_users_variables_are_set_and_removed() {
    let job = Job::new(["-n", "2", "-x", "COLOUR=blue", "--env-remove", "GONE*", "--output", "grouped", "env", "-0"]);
    for rank in variables(&job.env("GONE_1", "x").env("GONE_2", "y").env("STAYS", "z").run()) {
        assert_eq!(rank.get("COLOUR").map(String::as_str), Some("blue"));
        assert_eq!(rank.get("STAYS").map(String::as_str), Some("z"));
        assert!(!rank.contains_key("GONE_1") && !rank.contains_key("GONE_2"));
    }
}

/// Of a name that comes twice, C sees the first value and a shell the last.
#[test]
fn no_variable_comes_twice_and_a_shell_sees_what_c_sees() {
    let masks = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];
    // What the kernel was given for the shell, what the shell made of it, and what a program below it is given.
    let script = "printf 'rank\\0'; cat /proc/$$/environ; printf 'shell\\0'; env -0";
    let edits = [
        "RANKRUN_RANK=9",
        "RANKRUN_WORKER=mine",
        "RANKRUN_WORLD_SIZE=9{rank}",
        "PMI_RANK=7",
        "PMI_FD=7{rank}",
        "RANK=r{rank}",
        "LOCAL_RANK=mine",
        "PMIX_NAMESPACE=mine",
        "TORCHELASTIC_ERROR_FILE=/error.{rank}",
        "PYTHONPATH=/lib/{rank}",
        "LD_PRELOAD=",
        "_STDBUF_O=L",
        "OMP_NUM_THREADS=1{rank}",
        "OUTER=new{rank}",
        "OUTER=newer{rank}",
    ];
    for more in [&["--gpus-per-rank", "1", "--buffer", "line"][..], &["--gpus-per-rank", "1", "--mpi", "none"], &[]] {
        let mut words = vec!["-n", "2", "--output", "grouped"];
        words.extend(more);
        edits.iter().for_each(|edit| words.extend(["-x", edit]));
        words.extend(["sh", "-c", script]);
        let mut job = Job::new(&words).env("OUTER", "outer").env("LD_PRELOAD", "");
        for mask in masks {
            job = job.env(mask, "4,5");
        }
        let ended = job.run();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        let text = ended.stdout_text();
        let ranks: Vec<&str> = text.split("rank\0").skip(1).collect();
        assert_eq!(ranks.len(), 2, "{text:?}");
        for rank in ranks {
            let (given, shells) = rank.split_once("shell\0").expect("both were written");
            let pairs = |text: &str| -> Vec<(String, String)> {
                let pairs = text.split_terminator('\0').filter_map(|pair| pair.trim_start().split_once('='));
                pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
            };
            let mut seen = BTreeMap::new();
            for (name, value) in pairs(given) {
                assert_eq!(seen.insert(name.clone(), value), None, "{name} comes twice with {more:?}");
            }
            let number = seen["RANKRUN_RANK"].clone();
            let shells = pairs(shells);
            let is_given = |name: &str| seen.contains_key(name) && !["_", "PWD", "OLDPWD", "SHLVL"].contains(&name);
            for (name, value) in shells.into_iter().filter(|(name, _)| is_given(name)) {
                assert_eq!(seen[&name], value, "a shell sees another {name} in rank {number}");
            }
            let get = |name: &str| seen.get(name).cloned().unwrap_or_default();
            assert!(["0", "1"].contains(&number.as_str()), "it is ours, not {number}");
            assert_eq!(get("RANKRUN_WORLD_SIZE"), "2");
            assert_ne!(get("RANKRUN_WORKER"), "mine");
            assert_eq!(get("PMI_RANK"), if more.contains(&"none") { "7".to_owned() } else { number.clone() });
            assert_eq!((get("RANK"), get("LOCAL_RANK")), (format!("r{number}"), "mine".to_owned()));
            assert_eq!(get("OUTER"), format!("newer{number}"));
            let is_sliced = more.contains(&"--gpus-per-rank");
            let device = if number == "0" { "4" } else { "5" };
            assert_eq!(get("CUDA_VISIBLE_DEVICES"), if is_sliced { device } else { "4,5" });
        }
    }
}

/// The output of `fdcheck` for each rank. Without rankrun it prints the descriptors that this test itself inherited.
fn surroundings(job: Job) -> Vec<Value> {
    let ended = job.run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    text.lines().map(|line| serde_json::from_str(line).expect("fdcheck writes JSON")).collect()
}

fn inherited() -> Value {
    surroundings(Job::of_program(helper("fdcheck"), [""; 0])).remove(0)
}

/// A set of signals of `fdcheck`, without 32 and 33, which belong to the C library and cannot be asked about.
fn mask(surroundings: &Value, name: &str) -> u64 {
    let text = surroundings[name].as_str().expect("fdcheck writes masks as text");
    u64::from_str_radix(text, 16).expect("a mask is hexadecimal") & !(0b11 << 31)
}

fn descriptors(surroundings: &Value) -> Vec<&String> {
    surroundings["fds"].as_object().expect("an object").keys().collect()
}

#[test]
fn ranks_share_a_session_of_their_own_in_groups_of_their_own_and_have_no_descriptor_too_many() {
    let inherited = inherited();
    let ranks = surroundings(Job::new(["-n", "2", "--mpi", "none", &helper("fdcheck")]));
    assert_eq!(ranks.len(), 2);
    for rank in &ranks {
        assert_eq!(descriptors(rank), descriptors(&inherited), "{rank}");
        assert_eq!(rank["pgid"], rank["pid"], "a process group of its own");
        assert_eq!(rank["sid"], ranks[0]["sid"], "one session for all ranks");
        assert_ne!(rank["sid"], inherited["sid"], "and not that of whoever started the job");
        assert_eq!((mask(rank, "blocked"), mask(rank, "ignored")), (0, mask(&inherited, "ignored")));
    }
    let rank = surroundings(Job::new(["-n", "1", &helper("fdcheck")])).remove(0);
    assert_eq!(descriptors(&rank).len(), descriptors(&inherited).len() + 1, "the PMI socket comes in addition: {rank}");
}

#[test]
fn what_nohup_ignores_stays_ignored_and_the_users_limits_hold() {
    let script = format!(
        "trap '' HUP; ulimit -Sn 300; ulimit -Sc 0; exec '{}' -n 2 '{}'",
        rankrun().display(),
        helper("fdcheck")
    );
    let expected = mask(&inherited(), "ignored") | 1;
    for rank in surroundings(Job::of_program("bash", ["-c", &script])) {
        assert_eq!(mask(&rank, "ignored"), expected);
        assert!(rank["nofile"].as_str().is_some_and(|limit| limit.starts_with("300 ")), "{rank}");
        assert!(rank["core"].as_str().is_some_and(|limit| limit.starts_with("0 ")), "{rank}");
    }
}

#[test]
fn concurrent_jobs_never_share_a_port() {
    let script = "echo $MASTER_PORT > $RANKRUN_TEST_DIR/port; while [ ! -e $RANKRUN_TEST_DIR/go ]; do sleep 0.01; done";
    let jobs: Vec<_> = (0..20).map(|_| Job::new(["-n", "1", "sh", "-c", script]).start()).collect();
    let ports: BTreeSet<String> = jobs.iter().map(|job| job.wait_for_text("port")).collect();
    assert_eq!(ports.len(), 20, "all jobs run at once: {ports:?}");
    for job in jobs {
        job.sign("go");
        assert_eq!(job.finish(std::time::Duration::from_secs(20)).code, Some(0));
    }
}

#[test]
fn workers_of_tensorflow_listen_on_ports_that_are_held_for_them() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/tensorflow/workers.py");
    let command = ["python3", program.to_str().expect("text")];
    let run = |options: &[&str]| {
        let ended = Job::new(options.iter().chain(&command)).run();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let lines = run(&["-n", "3", "--tf-config"]);
    let ports = lines[0].split_once("ports ").expect("a list").1;
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("worker {index}: held True, met [0, 1, 2], ports {ports}"));
    }
    // Several commands are one cluster.
    let both: Vec<&str> = ["-n", "1", "--tf-config"].into_iter().chain(command).chain([":", "-n", "1"]).collect();
    assert_eq!(run(&both).len(), 2);
}

#[test]
fn nobody_is_told_of_tensorflow_who_has_not_asked() {
    let job = |options: &[&str]| Job::new(options.iter().chain(&["-n", "1", "env", "-0"])).env("TF_CONFIG", "of a pod");
    assert!(!variables(&job(&[]).run())[0].contains_key("TF_CONFIG"));
    let own = variables(&job(&["-x", "TF_CONFIG"]).run());
    assert_eq!(own[0].get("TF_CONFIG").map(String::as_str), Some("of a pod"));
    let asked = variables(&job(&[]).env("RANKRUN_TF_CONFIG", "yes").run());
    let config: Value = serde_json::from_str(&asked[0]["TF_CONFIG"]).expect("JSON");
    assert_eq!(config["task"], serde_json::json!({"type": "worker", "index": 0}));
    assert_eq!(config["cluster"]["worker"].as_array().map(Vec::len), Some(1));
}

/// As scripts in front of MPI programs do it: each rank sees the device of its local number.
#[test]
fn a_wrapper_gives_each_rank_the_device_of_its_local_rank() {
    let place = tempfile::tempdir().expect("a directory");
    let wrapper = place.path().join("wrapper.sh");
    let text = "#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK\nexec \"$@\"\n";
    std::fs::write(&wrapper, text).expect("it is ours");
    let wrapper = wrapper.display().to_string();
    let shown = "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE sees $CUDA_VISIBLE_DEVICES";
    for launcher in [&["-n", "3"][..], &["mpiexec", "-n", "3"], &["mpirun", "-np", "3"]] {
        let ended = Job::new([launcher, &["sh", &wrapper, "sh", "-c", shown]].concat()).run();
        assert_eq!(ended.code, Some(0), "{launcher:?}: {}", ended.stderr_text());
        let text = ended.stdout_text();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0 of 3 sees 0", "1 of 3 sees 1", "2 of 3 sees 2"], "{launcher:?}");
    }
}
