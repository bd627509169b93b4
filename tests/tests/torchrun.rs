//! The torchrun dialect: the same command line to torchrun itself and to rankrun, with the same result (docs/torchrun.md). The
//! cases are those of torch's test/distributed/launcher/test_run.py that can be seen from outside.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Job, Pty, rankrun, scratch, skip, wait_until};
use serde_json::Value;

/// A worker: leaves its environment and its arguments in `$OUT`, by its rank.
const WORKER: &str = r#"
import json, os, sys
rank = os.environ["RANK"]
with open(os.environ["OUT"] + "/" + rank, "w") as file:
    json.dump({"env": dict(os.environ), "argv": sys.argv[1:], "name": __name__}, file)
print("out", rank, "apple" if rank == "0" else "pear", flush=True)
print("err", rank, file=sys.stderr, flush=True)
if "--fail" in sys.argv and rank == "1":
    raise ValueError("boom")
"#;

/// The variables that torchrun sets for a worker.
const NAMES: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "SENTINEL",
];

/// What each worker left: its variables of [`NAMES`], its arguments, its `__name__`.
type Workers = BTreeMap<String, (BTreeMap<String, String>, Value, Value)>;

/// One command line, run by torchrun and by rankrun.
struct Case<'a> {
    words: Vec<&'a str>,
    env: Vec<(&'a str, &'a str)>,
    /// Variables that each launcher makes up.
    free: &'a [&'a str],
}

/// A directory with the worker, in which both run.
struct Place {
    directory: PathBuf,
    torch: Environment,
}

struct Run {
    ended: Ended,
    workers: Workers,
}

const ADDRESS: &[&str] = &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"];

impl Place {
    /// `None` where there is no torch.
    fn new() -> Option<Place> {
        let Some(torch) = Environment::find("torch") else {
            skip("there is no environment torch");
            return None;
        };
        let directory = scratch();
        fs::write(directory.join("worker.py"), WORKER).expect("it can be written");
        Some(Place { directory, torch })
    }

    /// Runs a case by one of the two; `logs` is its log directory, `$LOGS` in the words.
    fn run(&self, case: &Case<'_>, name: &str) -> Run {
        let out = self.directory.join(format!("out-{name}"));
        let _ = fs::remove_dir_all(&out); // It may not be there yet.
        fs::create_dir(&out).expect("it is new");
        let logs = format!("logs-{name}");
        let words = case.words.iter().map(|word| word.replace("$LOGS", &logs));
        let words: Vec<String> = words.collect();
        let path = format!("{}:{}", self.torch.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let job = match name {
            "theirs" => Job::of_program(self.torch.program("torchrun"), words),
            _ => Job::new([vec!["torchrun".to_owned()], words].concat()),
        };
        let mut job = job
            .current_dir(&self.directory)
            .bound(Duration::from_secs(150))
            .env("PATH", path)
            .env("OUT", &out)
            .env_remove("OMP_NUM_THREADS");
        for (name, value) in &case.env {
            job = job.env(name, *value);
        }
        let ended = job.run();
        let mut workers = Workers::new();
        for entry in fs::read_dir(&out).expect("it is there") {
            let path = entry.expect("it can be read").path();
            let left: Value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("it is JSON");
            let free = |name: &&&str| !case.free.contains(name);
            let variable = |name: &&str| Some(((*name).to_owned(), left["env"].get(name)?.as_str()?.to_owned()));
            let env = NAMES.iter().filter(free).filter_map(variable).collect();
            let rank = path.file_name().expect("it has one").to_string_lossy().into_owned();
            workers.insert(rank, (env, left["argv"].clone(), left["name"].clone()));
        }
        Run { ended, workers }
    }

    /// Runs a case by both, and asserts that the workers were the same and that both succeeded or both failed.
    fn both(&self, case: &Case<'_>) -> [Run; 2] {
        let [theirs, ours] = ["theirs", "ours"].map(|name| self.run(case, name));
        let told = |run: &Run| format!("exit {:?}: {}", run.ended.code, run.ended.stderr_text());
        assert_eq!(theirs.workers, ours.workers, "{:?}\n{}\n{}", case.words, told(&theirs), told(&ours));
        let succeeded = |run: &Run| run.ended.code == Some(0);
        assert_eq!(succeeded(&theirs), succeeded(&ours), "{:?}\n{}\n{}", case.words, told(&theirs), told(&ours));
        [theirs, ours]
    }

    /// The log files below a log directory, by their names after that of the run, with their lines in order.
    fn logs(&self, name: &str) -> BTreeMap<String, Vec<String>> {
        let root = self.directory.join(format!("logs-{name}"));
        let runs: Vec<PathBuf> =
            fs::read_dir(&root).expect("it is there").map(|it| it.expect("it is").path()).collect();
        let [run] = &runs[..] else { panic!("{runs:?} is one run") };
        let mut found = BTreeMap::new();
        let mut directories = vec![run.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).expect("it is there") {
                let path = entry.expect("it can be read").path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).expect("it is text");
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort();
                let name = path.strip_prefix(run).expect("it is below").display().to_string();
                found.insert(name, lines);
            }
        }
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The temporary directory is cleaned by others, if not by us.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// test_launch_user_script_python_caffe2_bc, and a sentinel, `${local_rank}`, both spellings, a role.
#[test]
fn workers_of_a_static_rendezvous_are_told_the_same() {
    let Some(place) = Place::new() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = listener.local_addr().expect("it has one").port().to_string();
    drop(listener);
    let mut words = vec!["--nnodes=1", "--nproc-per-node", "4", "--node-rank", "0", "--master_addr", "127.0.0.1"];
    words.extend(["--master-port", &port, "--role=trainer", "--max_restarts=0", "--monitor-interval", "0.05"]);
    words.extend(["worker.py", "--device=${local_rank}", ":", "{rank}", "$$HOME", "a b"]);
    let case = Case { words, env: vec![("SENTINEL", "there")], free: &["TORCHELASTIC_ERROR_FILE"] };
    let [_, ours] = place.both(&case);
    assert_eq!(ours.workers.len(), 4);
    assert_eq!(ours.workers["3"].1, serde_json::json!(["--device=3", ":", "{rank}", "$HOME", "a b"]));
    assert_eq!(ours.workers["3"].0["SENTINEL"], "there");
}

/// test_launch_with_env_vars, test_launch_user_script_bash: everything from `PET_*`, and a program that is no Python.
#[test]
fn variables_stand_for_options_and_the_command_line_overrides_them() {
    let Some(place) = Place::new() else { return };
    let python = place.torch.program("python");
    let env = vec![
        ("PET_NNODES", "1"),
        ("PET_NPROC_PER_NODE", "3"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_RDZV_ENDPOINT", "localhost:0"),
        ("PET_RDZV_ID", "run"),
        ("PET_MAX_RESTARTS", "0"),
        ("PET_STANDALONE", "0"),
        ("PET_NO_PYTHON", "1"),
        ("PET_ROLE", "overridden"),
        ("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGUSR1"),
        ("OMP_NUM_THREADS", "3"),
    ];
    let words = vec!["--role", "mine", &python, "worker.py", "x"];
    let free = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"];
    let [_, ours] = place.both(&Case { words, env, free: &free });
    assert_eq!(ours.workers.len(), 3);
    assert_eq!((&*ours.workers["0"].0["ROLE_NAME"], &*ours.workers["0"].0["TORCHELASTIC_RUN_ID"]), ("mine", "run"));
}

/// test_launch_user_script_default_nproc, test_launch_standalone, test_launch_run_path, test_virtual_local_rank.
#[test]
fn one_worker_alone_is_told_the_same() {
    let Some(place) = Place::new() else { return };
    let script = place.directory.join("worker.py").display().to_string();
    let words = vec!["--standalone", "--run-path", "--virtual-local-rank", &script, "x"];
    let case = Case { words, env: vec![("CUDA_VISIBLE_DEVICES", "5,6")], free: ADDRESS };
    let [_, ours] = place.both(&case);
    let (env, _, name) = &ours.workers["0"];
    assert_eq!((&*env["CUDA_VISIBLE_DEVICES"], &*env["LOCAL_RANK"]), ("5", "0"));
    assert_eq!(name, "__main__");
}

/// test_launch_elastic (with the quotes in the value), test_capture_logs_using_default_logs_specs: log files, prefixes, filters.
#[test]
fn log_files_have_the_same_places_and_contents() {
    let Some(place) = Place::new() else { return };
    let mut words = vec!["--nnodes=1:2", "--nproc-per-node=3", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"];
    words.extend(["--rdzv-id=elastic", "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'"]);
    words.extend([
        "--redirect=2:3",
        "-t",
        "0:3,1:1",
        "--log-dir=$LOGS",
        "--log-line-prefix-template",
        "[rank${rank}]: ",
    ]);
    words.extend(["--duplicate-stdout-filters", "apple,x,,y", "--local-ranks-filter=0,2", "-m", "worker"]);
    let free = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"];
    let [theirs, ours] = place.both(&Case { words, env: vec![], free: &free });
    assert_eq!(ours.workers.len(), 3);
    let logs = place.logs("ours");
    assert_eq!(place.logs("theirs"), logs);
    assert_eq!(logs["attempt_0/filtered_stdout.log"], ["[rank0]: out 0 apple"]);
    assert_eq!(sorted(&theirs.ended.stdout), sorted(&ours.ended.stdout));
    assert!(ours.ended.stderr_text().contains("--nnodes 1:2: starting with one node"), "{}", ours.ended.stderr_text());
    let name = fs::read_dir(place.directory.join("logs-ours")).expect("it is there").next().expect("it has one");
    assert!(name.expect("it can be read").file_name().to_string_lossy().starts_with("elastic_"));
}

/// Where a rendezvous of one to several nodes is at a port of this machine, it starts with this machine.
#[test]
fn a_rendezvous_at_a_port_of_this_machine_starts_alone() {
    let Some(place) = Place::new() else { return };
    let port =
        std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a port");
    let (endpoint, script) = (format!("--rdzv-endpoint=localhost:{}", port.port()), place.directory.join("worker.py"));
    let words = ["--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", &endpoint, "--rdzv-id=some"];
    let conf = "--rdzv-conf=join_timeout=5,last_call_timeout=1,timeout=5";
    let words = words.into_iter().chain([conf, script.to_str().expect("UTF-8")]).collect();
    let [_, ours] = place.both(&Case { words, env: vec![], free: ADDRESS });
    assert_eq!(ours.workers.len(), 2);
    assert!(ours.ended.stderr_text().contains("--nnodes 1:2: starting with one node"), "{}", ours.ended.stderr_text());
}

/// What is copied is what torchrun reads for the terminal: not the lines of ranks that are not shown.
#[test]
fn lines_of_ranks_that_are_not_shown_are_not_copied_either() {
    let Some(place) = Place::new() else { return };
    let mut words = vec!["--nproc-per-node=2", "--log-dir=$LOGS", "--tee", "0:3,1:1", "--local-ranks-filter", "0"];
    words.extend(["--duplicate-stdout-filters", "out", "worker.py"]);
    let free = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"];
    let [theirs, ours] = place.both(&Case { words, env: vec![], free: &free });
    let logs = place.logs("ours");
    assert_eq!(place.logs("theirs"), logs);
    let copied = &logs["attempt_0/filtered_stdout.log"];
    assert!(!copied.is_empty() && copied.iter().all(|line| line.starts_with("[default0]:")), "{copied:?}");
    assert_eq!(sorted(&theirs.ended.stdout), sorted(&ours.ended.stdout));
}

/// test_launch_elastic_worker_raise_exception: exit status, error files, and the summary.
#[test]
fn a_worker_that_raises_ends_the_job_and_leaves_its_exception() {
    let Some(place) = Place::new() else { return };
    let script = "from torch.distributed.elastic.multiprocessing.errors import record\n\
                  import runpy\nrecord(lambda: runpy.run_path('worker.py', run_name='__main__'))()\n";
    fs::write(place.directory.join("recorded.py"), script).expect("it can be written");
    let mut codes = Vec::new();
    for name in ["theirs", "ours", "ours-strict"] {
        let strict = if name == "ours-strict" { "--strict" } else { "--max-restarts=0" };
        let words = vec![strict, "--nproc-per-node=2", "--log-dir=$LOGS", "recorded.py", "--fail"];
        let parent = place.directory.join(format!("{name}.json")).display().to_string();
        let env = vec![("TORCHELASTIC_ERROR_FILE", parent.as_str())];
        let run = place.run(&Case { words, env, free: ADDRESS }, name);
        codes.push(run.ended.code);
        let (logs, text) = (place.logs(name), run.ended.stderr_text());
        assert_eq!(logs.keys().collect::<Vec<_>>(), ["attempt_0/1/error.json"], "{name}: {text}");
        let own: Value = serde_json::from_str(&logs["attempt_0/1/error.json"].concat()).expect("it is JSON");
        let copy: Value = serde_json::from_slice(&fs::read(&parent).expect("it is written")).expect("it is JSON");
        for file in [&own, &copy] {
            assert_eq!(file["message"]["message"], "ValueError: boom", "{name}");
            assert!(file["message"]["extraInfo"]["timestamp"].is_string(), "{name}: {file}");
        }
        assert_eq!(copy["message"]["errorCode"], 1, "{name}");
        let has_summary =
            text.contains("Root Cause (first observed failure):\n[0]:\n") && text.contains("recorded.py FAILED\n");
        assert_eq!(has_summary, name != "ours", "{name}: {text}");
        assert_eq!(text.contains("rank 1 failed: ValueError: boom"), name != "theirs", "{name}: {text}");
        assert!(
            name == "ours" || text.contains("\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: "),
            "{name}: {text}"
        );
    }
    assert_eq!(codes, [Some(1); 3]);
}

#[test]
fn codes_are_the_workers_own_or_those_of_torchrun() {
    for (script, own) in [("exit 7", 7), ("kill -KILL $$$$", 137), ("exit 0", 0)] {
        for (strict, code) in [(None, own), (Some("--strict=torchrun"), i32::from(own != 0))] {
            let words = ["torchrun"].into_iter().chain(strict).chain(["--no-python", "sh", "-c", script]);
            let ended = Job::new(words).run();
            assert_eq!(ended.code, Some(code), "{script}: {}", ended.stderr_text());
        }
    }
}

/// torchrun waits 30 s here, whatever the option says.
#[test]
fn the_shutdown_timeout_holds_after_a_failure_too() {
    let script = "[ $RANK = 1 ] || { trap '' TERM; touch $RANKRUN_TEST_DIR/deaf; while :; do sleep 0.05; done; }\n\
                  while ! [ -e $RANKRUN_TEST_DIR/deaf ]; do sleep 0.05; done; exit 7";
    let words = ["torchrun", "--nproc-per-node=2", "--shutdown-timeout=1", "--no-python", "sh", "-c", script];
    let ended = Job::new(words).run();
    assert_eq!(ended.code, Some(7), "{}", ended.stderr_text());
    assert!(ended.elapsed() > Duration::from_secs(1), "it had its second");
}

/// test_is_torchelastic_launched, test_init_method_env_with_torchelastic: real torch, by a link that is called torchrun.
#[test]
fn a_link_that_is_called_torchrun_runs_real_torch() {
    let Some(place) = Place::new() else { return };
    let script = "import sys, torch, torch.distributed as dist\n\
                  assert dist.is_torchelastic_launched()\n\
                  dist.init_process_group('gloo')\n\
                  sum = torch.tensor([dist.get_rank() + 1.0]); dist.all_reduce(sum)\n\
                  print(dist.get_rank(), int(sum), sys.executable)\n";
    fs::write(place.directory.join("sum.py"), script).expect("it can be written");
    // The Python beside the link is the one that torchrun itself would have.
    let python = place.directory.join("python");
    symlink(place.torch.program("python"), &python).expect("it can be made");
    fs::copy(place.torch.path().join("pyvenv.cfg"), place.directory.join("pyvenv.cfg")).expect("it can be copied");
    let link = place.directory.join("torchrun");
    symlink(rankrun(), &link).expect("it can be made");
    let ended = Job::of_program(&link, ["--nproc-per-node", "2", "sum.py"])
        .env("PYTHON_EXEC", place.torch.program("python"))
        .current_dir(&place.directory)
        .bound(Duration::from_secs(150))
        .run();
    let python = place.torch.program("python");
    let expected = [format!("0 3 {python}"), format!("1 3 {python}")];
    assert_eq!(sorted(&ended.stdout), expected, "{}", ended.stderr_text());
    let ended = Job::of_program(&link, ["--no-python", "sh", "-c", "echo $RANK"]).run();
    assert_eq!(ended.stdout_text(), "0\n");
    assert_eq!(which_python(&link), place.directory.join("python").display().to_string());
}

/// The Python that a dry run of a link shows.
fn which_python(link: &Path) -> String {
    let ended = Job::of_program(link, ["--dry-run", "sum.py"]).run();
    let text = ended.stdout_text();
    let line = text.lines().next().unwrap_or_default();
    let command = line.split_once(" -- ").map_or("", |(_, command)| command);
    command.split(' ').next().unwrap_or_default().to_owned()
}

/// `torch.distributed.breakpoint(rank=1)`: that rank reads the terminal.
#[test]
fn any_rank_can_be_debugged_on_the_terminal() {
    let Some(place) = Place::new() else { return };
    let script = "import torch.distributed as dist\n\
                  dist.init_process_group('gloo')\n\
                  secret = 40 + dist.get_rank()\n\
                  open('ready', 'w').close()\n\
                  dist.breakpoint(rank=1)\n\
                  print('through', dist.get_rank())\n";
    fs::write(place.directory.join("debug.py"), script).expect("it can be written");
    let mut terminal = Pty::open(40, 120);
    let running = Job::new(["torchrun", "--nproc-per-node", "2", "debug.py"])
        .env("PYTHON_EXEC", place.torch.program("python"))
        .current_dir(&place.directory)
        .terminal(terminal.path())
        .start();
    // The import of torch takes long where the machine is busy.
    let ready = place.directory.join("ready");
    wait_until(Duration::from_secs(120), || ready.exists().then_some(())).expect("torch is there");
    terminal.wait_for("(Pdb) ", 1);
    terminal.press("up\r");
    terminal.wait_for("(Pdb) ", 2);
    terminal.press("p 'it is', secret + 0\r");
    terminal.wait_for("('it is', 41)", 1);
    terminal.press("c\r");
    terminal.wait_for("through 0", 1);
    terminal.wait_for("through 1", 1);
    let ended = running.finish(Duration::from_secs(120));
    assert_eq!(ended.code, Some(0));
}

/// test_nproc_launch_unknown_configurations, test_min_max_nodes_parse, and what comes later or never.
#[test]
fn mistakes_are_refused_with_a_way_out() {
    let lines: &[&[&str]] = &[
        &["--nproc-per-node", "unknown", "x.py"],
        &["--nproc-per-node=0", "x.py"],
        &["--nnodes", "1:2:3", "x.py"],
        &["--nnodes", "2", "x.py"],
        &["--nnodes", "2:4", "x.py"],
        &["--nnodes", "3:2", "x.py"],
        &["--node-rank", "1", "x.py"],
        &["--rdzv-backend", "etcd-v2", "x.py"],
        &["--rdzv-endpoint", "host:port", "x.py"],
        &["--master-port", "http", "x.py"],
        &["--logs-specs", "mine", "x.py"],
        &["--module", "--no-python", "x"],
        &["--redirects", "4", "x.py"],
        &["--no", "x.py"],
        &["--standalone=1", "x.py"],
        &["--nproc-per-nodes", "2", "x.py"],
        &["--numa-binding", "cores", "x.py"],
        &["--signals-to-handle", "SIGNONE", "x.py"],
        &["--max-restarts", "many", "x.py"],
        &["--print-completion", "fish"],
        &["--nproc-per-node", "2"],
        &["--rdzv-id"],
        &["--start-method", "thread", "x.py"],
        &["--rdzv-conf", "foo", "x.py"],
        &["--local-ranks-filter", "7", "x.py"],
        &["--nproc-per-node", "2", "python", "x.py"],
    ];
    for words in lines {
        let ended = Job::new([&["torchrun"][..], words].concat()).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(2), "{words:?}: {text}");
        assert!(text.starts_with("error: ") && ended.stdout.is_empty(), "{words:?}: {text}");
    }
    let ended = Job::new(["torchrun", "x.py"]).env("PET_NPROC_PER_NODE", "many").run();
    assert!(ended.stderr_text().starts_with("error: PET_NPROC_PER_NODE: \"many\""), "{}", ended.stderr_text());
}
