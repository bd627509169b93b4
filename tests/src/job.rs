//! One run of rankrun, from its start to the proof that nothing of it is left.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use rankrun_core::gang::SECOND_INTERRUPT;
use rankrun_core::report::Report;
use rustix::process::Signal;

use crate::environment::{scratch, scratch_in};
use crate::helper::{helper, rankrun};
use crate::hosts::Host;
use crate::journal;
use crate::leftovers;
use crate::processes::{self, Process};
use crate::skip::slowness;
use crate::tier::Tier;
use crate::time::{monotonic, pause, wait_until};

/// No job of a test lasts longer, unless the test says so.
const BOUND: Duration = Duration::from_secs(60);

/// How long the guard believes in an agent that makes no progress (docs/containment.md): shorter than usual, since tests
/// wait for it.
const LEASE_SECONDS: &str = "5";

/// How long something that is just being removed may still be there.
const MOMENT: Duration = Duration::from_secs(5);

/// Who runs rankrun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum User {
    /// Whoever runs the tests.
    #[default]
    Own,
    /// The user `nobody`, which may not create cgroups. Only root can start such a job.
    Nobody,
}

/// What rankrun's stdin is.
#[derive(Debug, Default)]
pub enum Stdin {
    #[default]
    Null,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    File(File),
}

/// A run of rankrun that is being put together.
#[derive(Debug)]
pub struct Job {
    program: OsString,
    arguments: Vec<OsString>,
    environment: BTreeMap<OsString, Option<OsString>>,
    directory: Option<PathBuf>,
    stdin: Stdin,
    stdout: Option<OwnedFd>,
    tty: Option<PathBuf>,
    user: User,
    bound: Duration,
    /// The words that lead to the host that it runs on, and where it keeps its files there.
    place: Option<(Vec<OsString>, PathBuf)>,
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The front's exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended the front.
    pub signal: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// When the front was started, and when it ended, on the clock of [`monotonic`].
    pub started: Duration,
    pub ended: Duration,
    /// When the last process was gone.
    pub empty: Duration,
}

impl Ended {
    /// What rankrun wrote to stdout, as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What rankrun wrote to stderr, as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The lines of an attempt, each of which begins with its number and a colon, without that, sorted.
    pub fn of_attempt(&self, attempt: u32) -> Vec<String> {
        let prefix = format!("{attempt}: ");
        let text = self.stdout_text();
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The front's life.
    pub fn elapsed(&self) -> Duration {
        self.ended.saturating_sub(self.started)
    }
}

impl Job {
    /// `rankrun` with these arguments.
    pub fn new<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Job {
        Job::of_program(rankrun(), arguments)
    }

    /// Another program that is to leave nothing behind either, such as a shell loop around rankrun.
    pub fn of_program<A: AsRef<OsStr>>(program: impl Into<OsString>, arguments: impl IntoIterator<Item = A>) -> Job {
        Job {
            program: program.into(),
            arguments: arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect(),
            environment: BTreeMap::new(),
            directory: None,
            stdin: Stdin::Null,
            stdout: None,
            tty: None,
            user: User::Own,
            bound: BOUND,
            place: None,
        }
    }

    /// Runs the job on a host of a bench. Its directory is one that all hosts of the bench see. What it leaves on other hosts, and what
    /// it leaves on this one beside processes, is for [`Hosts::finish`](crate::Hosts::finish) to find.
    pub fn at(mut self, host: &Host) -> Job {
        self.place = Some((host.entrance(), host.jobs_directory()));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Job {
        self.environment.insert(name.into(), Some(value.into()));
        self
    }

    pub fn env_remove(mut self, name: &str) -> Job {
        self.environment.insert(name.into(), None);
        self
    }

    pub fn current_dir(mut self, directory: &Path) -> Job {
        self.directory = Some(directory.to_owned());
        self
    }

    pub fn stdin(mut self, stdin: Stdin) -> Job {
        self.stdin = stdin;
        self
    }

    /// Sends rankrun's stdout to a descriptor, not to the test.
    pub fn stdout(mut self, stdout: impl Into<OwnedFd>) -> Job {
        self.stdout = Some(stdout.into());
        self
    }

    /// Makes a terminal the controlling terminal of the job, and its stdin, stdout and stderr.
    pub fn terminal(mut self, path: &Path) -> Job {
        self.tty = Some(path.to_owned());
        self
    }

    pub fn user(mut self, user: User) -> Job {
        self.user = user;
        self
    }

    pub fn tier(self, tier: Tier) -> Job {
        let name = match tier {
            Tier::Cgroup => "cgroup",
            Tier::Subreaper => "subreaper",
        };
        self.env("RANKRUN_CONTAINMENT", name)
    }

    /// The longest that the job may last.
    pub fn bound(mut self, bound: Duration) -> Job {
        self.bound = bound;
        self
    }

    /// Runs the job to its end, and proves that nothing is left.
    ///
    /// # Panics
    /// If it does not end within its bound, or leaves something.
    pub fn run(self) -> Ended {
        let bound = self.bound;
        self.start().finish(bound)
    }

    /// The same with a report, which is written into a directory of its own. The program is rankrun, and fails.
    ///
    /// # Panics
    /// As [`Job::run`], and if there is no report, or one that cannot be read with the types that it was written with.
    pub fn run_with_report(mut self) -> (Ended, Report) {
        let directory = self.place.as_ref().map_or_else(scratch, |(_, jobs)| scratch_in(jobs));
        self.arguments.splice(..0, ["--report-dir".into(), directory.clone().into()]);
        let ended = self.run();
        let json = fs::read_to_string(directory.join("report.json"))
            .unwrap_or_else(|error| panic!("no report: {error}; {}", ended.stderr_text()));
        fs::remove_dir_all(&directory).expect("the directory is ours");
        let report = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        (ended, report)
    }

    /// Starts the job.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(self) -> Running {
        // File times come from a clock with coarser ticks.
        let started = SystemTime::now() - Duration::from_millis(20);
        let directory = self.place.as_ref().map_or_else(scratch, |(_, jobs)| scratch_in(jobs));
        let is_on_host = self.place.is_some();
        let is_shell = Path::new(&self.program).file_name().is_some_and(|name| name == "sh" || name == "bash");
        let record = directory.join("record");
        let mut command = Command::new(helper("reaper"));
        command.arg(&record);
        if let Some(tty) = &self.tty {
            command.arg("--tty").arg(tty);
        }
        command.arg("--");
        if let Some((entrance, _)) = &self.place {
            command.args(entrance);
        }
        if self.user == User::Nobody {
            command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        }
        command.arg(&self.program).args(&self.arguments);
        let state = directory.join("state");
        fs::create_dir(&state).expect("the scratch directory is ours");
        open_to_all(&state);
        // The report goes to a place of this job alone, from which its id can be read.
        command.env("XDG_STATE_HOME", &state).env("RANKRUN_TEST_DIR", &directory);
        command.env("RANKRUN_JOURNAL", directory.join("journal"));
        // The tests may themselves run below rankrun, mpiexec or Slurm only as far as a test asks for it.
        command.env_remove("RANKRUN_CONTAINMENT");
        command.env("RANKRUN_LEASE_SECONDS", LEASE_SECONDS);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.stdin(match &self.stdin {
            Stdin::Null => Stdio::null(),
            Stdin::Bytes(_) => Stdio::piped(),
            Stdin::File(file) => Stdio::from(file.try_clone().expect("a descriptor can be copied")),
        });
        command.stdout(match self.stdout {
            Some(descriptor) => Stdio::from(descriptor),
            None => Stdio::piped(),
        });
        command.stderr(Stdio::piped());
        let mut reaper = command.spawn().expect("the reaper can be started");
        drop(command);
        if let (Stdin::Bytes(bytes), Some(mut pipe)) = (self.stdin, reaper.stdin.take()) {
            // A job may end without reading its input.
            thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        let stdout = reaper.stdout.take().map(Collector::new);
        let stderr = reaper.stderr.take().map(Collector::new);
        let mut running =
            Running { started, reaper, directory, record, front: 0, stdout, stderr, is_on_host, is_shell, done: false };
        running.front = wait_until(BOUND, || running.field("front", 0))
            .and_then(|pid| pid.parse().ok())
            .unwrap_or_else(|| panic!("the job was not started: {}", running.complaint()));
        running
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("the directory is ours");
}

/// Reads a stream to its end in a thread of its own.
#[derive(Debug)]
struct Collector {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Collector {
    fn new(mut stream: impl Read + Send + 'static) -> Collector {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Collector { bytes, thread }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn finish(self) -> Vec<u8> {
        // Every process of the job is gone when this is called, so the stream has ended.
        let _ = self.thread.join();
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *bytes)
    }
}

/// A job that has been started.
#[derive(Debug)]
pub struct Running {
    started: SystemTime,
    reaper: Child,
    directory: PathBuf,
    record: PathBuf,
    front: i32,
    stdout: Option<Collector>,
    stderr: Option<Collector>,
    is_on_host: bool,
    is_shell: bool,
    done: bool,
}

impl Running {
    /// The directory of this job, which its ranks know as `RANKRUN_TEST_DIR`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The process that was started: the front.
    pub fn front(&self) -> i32 {
        self.front
    }

    /// The guard: the child of the front that is the parent of the agent.
    ///
    /// # Panics
    /// If the front gets none within the bound.
    pub fn guard(&self) -> i32 {
        self.guard_and_agent().0
    }

    /// The agent: the child of the guard.
    ///
    /// # Panics
    /// If there is none within the bound.
    pub fn agent(&self) -> i32 {
        self.guard_and_agent().1
    }

    fn guard_and_agent(&self) -> (i32, i32) {
        let found = wait_until(BOUND, || {
            // The front may be running a command of its own.
            let mut guards = processes::children(self.front).into_iter().filter(|child| child.name != "rr-command");
            guards.find_map(|guard| Some((guard.pid, processes::children(guard.pid).first()?.pid)))
        });
        found.unwrap_or_else(|| panic!("the job has no guard with an agent: {}", self.complaint()))
    }

    /// Every process of the job that exists now, the front included.
    pub fn processes(&self) -> Vec<Process> {
        processes::descendants(self.reaper.id().cast_signed())
    }

    /// Sends SIGINT twice, the second late enough to count as another one. `between` runs before the second.
    pub fn interrupt_twice(&self, between: impl FnOnce()) {
        processes::send(self.front, Signal::INT);
        // Two within half a second count as one (`gang::SECOND_INTERRUPT`): only time can tell them apart.
        pause(SECOND_INTERRUPT + Duration::from_millis(100));
        between();
        processes::send(self.front, Signal::INT);
    }

    /// What the job has written to stdout so far.
    pub fn stdout_so_far(&self) -> Vec<u8> {
        self.stdout.as_ref().map(Collector::so_far).unwrap_or_default()
    }

    /// What the job has written to stderr so far.
    pub fn stderr_so_far(&self) -> Vec<u8> {
        self.stderr.as_ref().map(Collector::so_far).unwrap_or_default()
    }

    /// Waits until a file of this name exists in the job's directory. It may be empty still: see [`Running::wait_for_text`].
    ///
    /// # Panics
    /// If it does not come within the bound.
    pub fn wait_for_file(&self, name: &str) {
        self.wait_for(name, |path| path.exists().then_some(()));
    }

    /// Waits until a file of this name holds text that ends with a newline, and returns the text. A shell creates a file
    /// before it writes to it.
    ///
    /// # Panics
    /// If it does not come within the bound.
    pub fn wait_for_text(&self, name: &str) -> String {
        self.wait_for(name, |path| fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')))
    }

    fn wait_for<T>(&self, name: &str, look: impl Fn(&Path) -> Option<T>) -> T {
        let path = self.directory.join(name);
        let found = wait_until(BOUND, || {
            // What the job's last process wrote is there when that process is gone.
            let is_over = self.field("empty", 0).is_some();
            let found = look(&path);
            assert!(found.is_some() || !is_over, "the job ended without \"{name}\": {}", self.complaint());
            found
        });
        found.unwrap_or_else(|| panic!("\"{name}\" did not come: {}", self.complaint()))
    }

    /// Waits until every rank's leader (of the helper `tree`) is up with all its descendants.
    pub fn wait_for_ranks(&self, world_size: u32) {
        for rank in 0..world_size {
            self.wait_for_file(&format!("{rank}.leader"));
        }
    }

    /// Makes a file of this name in the job's directory: the sign for a helper to go on.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn sign(&self, name: &str) {
        fs::write(self.directory.join(name), "").expect("the job's directory is ours");
    }

    /// The time of the job's end if the front has ended.
    pub fn front_ended(&self) -> Option<Duration> {
        let time = self.field("exit", 1).or_else(|| self.field("signal", 1))?;
        time.parse().ok().map(Duration::from_nanos)
    }

    /// Waits for the end of the front and of everything else, and proves that nothing is left.
    ///
    /// # Panics
    /// If the front or a process outlives `bound` (longer on a loaded machine), or something else is left. What is left is killed first.
    pub fn finish(mut self, bound: Duration) -> Ended {
        let bound = bound * slowness();
        let deadline = monotonic() + bound;
        let gone = wait_until(bound, || self.front_ended()).is_some();
        if !gone {
            let message = format!("rankrun did not return within {bound:?}; {}", self.complaint());
            self.kill();
            panic!("{message}");
        }
        // A killed front cannot wait for the others; they have the rest of the bound, and 2 s at least.
        let rest = deadline.saturating_sub(monotonic()).max(Duration::from_secs(2));
        let empty = wait_until(rest, || self.field("empty", 0));
        let Some(empty) = empty else {
            let left = self.processes();
            let message = format!("{} processes are left: {left:?}; {}", left.len(), self.complaint());
            self.kill();
            panic!("{message}");
        };
        // On a bench each host is looked at by itself: one that was cut off may still have something, and will not for long.
        let jobs = if self.is_on_host { Vec::new() } else { self.job_ids() };
        let tag = self.tag();
        let mut left = leftovers::of_jobs(&tag, &jobs);
        let since = self.started;
        let jobs: Vec<String> = jobs
            .into_iter()
            .chain(journal::job(&self.directory.join("journal")).filter(|_| !self.is_on_host))
            .collect();
        let unheld = || if self.is_on_host { Vec::new() } else { leftovers::dead_directories(&jobs, since) };
        if wait_until(MOMENT * slowness(), || unheld().is_empty().then_some(())).is_none() {
            left.extend(unheld());
        }
        let segments = || leftovers::segments_of(&jobs, since);
        if wait_until(MOMENT * slowness(), || segments().is_empty().then_some(())).is_none() {
            left.extend(segments());
        }
        assert!(left.is_empty(), "left behind: {left:?}; {}", self.complaint());
        let ended = self.front_ended().unwrap_or_default();
        let nanos = |text: Option<String>| text.and_then(|text| text.parse().ok()).map(Duration::from_nanos);
        let parse = |text: Option<String>| text.and_then(|text| text.parse().ok());
        let result = Ended {
            code: parse(self.field("exit", 0)),
            signal: parse(self.field("signal", 0)),
            started: nanos(self.field("front", 1)).unwrap_or_default(),
            ended,
            empty: nanos(Some(empty)).unwrap_or_default(),
            stdout: self.stdout.take().map(Collector::finish).unwrap_or_default(),
            stderr: self.stderr.take().map(Collector::finish).unwrap_or_default(),
        };
        // A shell may start several jobs, which write one journal: side by side, or one in the other's place.
        if !self.is_shell {
            journal::check(&self.directory.join("journal"), &result, || self.complaint());
        }
        self.done = true;
        // The reaper has written its last line and ends by itself.
        let _ = self.reaper.wait();
        result
    }

    /// What names of shared memory made by this job contain.
    pub fn tag(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The ids of the jobs of this run, as far as they can be known: by their reports, and by what helpers noted.
    pub fn job_ids(&self) -> Vec<String> {
        let reports = self.directory.join("state/rankrun");
        let entries = fs::read_dir(reports).into_iter().flatten().flatten();
        let mut ids: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        ids.extend(fs::read_to_string(self.directory.join("job")).ok());
        ids
    }

    /// The nth word after `key` in the reaper's record.
    fn field(&self, key: &str, n: usize) -> Option<String> {
        let record = fs::read_to_string(&self.record).ok()?;
        let complete = &record[..record.rfind('\n')? + 1];
        let line = complete.lines().find_map(|line| {
            let mut words = line.split(' ');
            (words.next() == Some(key)).then_some(words)
        });
        line?.nth(n).map(str::to_owned)
    }

    /// What the job has said so far, for the message of a failing test.
    fn complaint(&self) -> String {
        let tail = |bytes: Vec<u8>| {
            let from = bytes.len().saturating_sub(2000);
            String::from_utf8_lossy(&bytes[from..]).into_owned()
        };
        let record = fs::read_to_string(&self.record).unwrap_or_default();
        format!("record: {record:?}\nstdout: {}\nstderr: {}", tail(self.stdout_so_far()), tail(self.stderr_so_far()))
    }

    /// Kills the front, so that the rest tidies up, then whatever is left of the job.
    fn kill(&mut self) {
        let own = self.reaper.id().cast_signed();
        if self.front_ended().is_none() {
            processes::send(self.front, Signal::KILL);
        }
        // What it leaves is killed below.
        let _ = wait_until(MOMENT, || processes::descendants(own).is_empty().then_some(()));
        let emptied = wait_until(Duration::from_secs(10), || {
            let left = processes::descendants(own);
            for process in &left {
                processes::send(process.pid, Signal::KILL);
            }
            left.is_empty().then_some(())
        });
        if emptied.is_none() {
            let _ = self.reaper.kill();
        }
        let _ = self.reaper.wait();
        self.done = true;
    }
}

impl Running {
    /// The journal of the job, to find out why a test failed: `rankrun replay FILE`.
    fn keep_journal(&self) {
        let kept = std::env::temp_dir().join(format!("rr-failed-{}.journal", self.tag()));
        if fs::copy(self.directory.join("journal"), &kept).is_ok() {
            // A test that has failed says so on stderr; where that is closed there is nobody to tell.
            let _ = writeln!(io::stderr(), "the journal of the job is {}", kept.display());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.done {
            self.kill();
        }
        if thread::panicking() {
            self.keep_journal();
        }
        for name in leftovers::of_jobs(&self.tag(), &[]) {
            let _ = fs::remove_file(name);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
