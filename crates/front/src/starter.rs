//! Starts the front's own programs: ssh, srun, and the hosts of commands.
//!
//! Both the search for a program and its exec ask file systems, which may not answer, and a child holds whoever started it until its
//! exec. So a thread of its own does this. If it is stuck, another one goes on with the programs that wait. Threads last as long as this
//! process: a child's parent-death signal follows the thread that cloned it.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Waker, pause};
use rankrun_sys::process::Child;
use rankrun_sys::spawn::{Command, Session, Spawner, UnderWay};
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{exec, signal};

/// How long the search for one program and its exec may take.
const START_BOUND: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK_STEP: Duration = Duration::from_secs(1);
/// How long a child that is killed before its exec may take to end, at the end of the job.
const END_BOUND: Duration = Duration::from_secs(1);
/// Programs that wait for their turn: more than nodes are reached at a time. Who finds no room tries again.
const ROOM: usize = 128;
/// Threads at most, the stuck ones included. With so many stuck, the file system with a program does not answer, and more would not help.
const THREADS: usize = 4;

/// What is said of a program that was not started.
const UNWANTED: &str = "nobody wants it any more";
/// What is said of a program that no thread can start.
const STUCK: &str = "the programs before it could not be started, since a file system does not answer";

/// What is to be started.
#[derive(Debug)]
pub(crate) struct Request {
    /// The program, which is searched for, and its arguments.
    pub(crate) words: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) stdio: [OwnedFd; 3],
    /// A descriptor that it has beside its streams, and the number that it has there.
    pub(crate) keep: Option<(OwnedFd, i32)>,
    /// The signals that it ignores.
    pub(crate) ignored: Vec<i32>,
    /// It goes on where this process is killed.
    pub(crate) outlives_us: bool,
}

impl Request {
    /// With our environment.
    pub(crate) fn of(words: Vec<OsString>, stdio: [OwnedFd; 3]) -> Request {
        Request {
            words,
            env: std::env::vars_os().collect(),
            stdio,
            keep: None,
            ignored: Vec::new(),
            outlives_us: false,
        }
    }
}

/// A program that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Program(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    step: Step,
    /// Why it was not started, or was given up before its exec.
    failure: Option<String>,
    /// The signal that has ended it, if one has.
    killed_by: Option<i32>,
    /// It is to be killed as soon as it is there.
    is_unwanted: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Waiting,
    /// Since when, and the child of the thread that does it.
    Starting(Instant, Arc<UnderWay>),
    Running(Child),
    /// Its exit code, if there was a process that has called exec.
    Over(Option<i32>),
}

/// What has become of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Coming,
    Runs,
    /// It has been reaped. The code is 128 and the signal if it was killed.
    Ended(i32),
    NotStarted(String),
}

impl Program {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic aborts.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its process, as long as there is one that has not been reaped.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.state().child().map(Child::pid)
    }

    /// Reaps it, if it has ended.
    pub(crate) fn look(&self) -> Status {
        let mut state = self.state();
        if let Step::Running(child) = state.step
            && let Some((code, killed_by)) = reap(child)
        {
            state.killed_by = killed_by;
            state.step = Step::Over(Some(code));
        }
        match (&state.failure, &state.step) {
            (Some(failure), _) => Status::NotStarted(failure.clone()),
            (None, Step::Waiting | Step::Starting(..)) => Status::Coming,
            (None, Step::Running(_)) => Status::Runs,
            (None, Step::Over(code)) => Status::Ended(code.unwrap_or(255)),
        }
    }

    /// The signal that has ended it, if one has.
    pub(crate) fn killed_by(&self) -> Option<i32> {
        self.state().killed_by
    }

    /// Sends it a signal, if it runs.
    pub(crate) fn signal(&self, signal: i32) {
        if let Step::Running(child) = self.state().step {
            // It has not been reaped: it is still ours.
            let _ = child.signal(signal);
        }
    }

    /// Ends it, or keeps it from being started.
    pub(crate) fn kill(&self) {
        let mut state = self.state();
        state.is_unwanted = true;
        if let Some(child) = state.child() {
            // It has not been reaped: it is still ours.
            let _ = child.signal(signal::SIGKILL);
        }
    }

    /// Gives it up, if it has been starting for too long. Returns whether that is so now.
    fn give_up_late(&self, bound: Duration) -> bool {
        let is_late = matches!(self.state().step, Step::Starting(since, _) if since.elapsed() >= bound);
        is_late && self.give_up(&format!("it could not be started within {} s", bound.as_secs()))
    }

    /// Gives it up, unless that was done before.
    fn give_up(&self, why: &str) -> bool {
        let mut state = self.state();
        if state.failure.is_some() {
            return false;
        }
        state.failure = Some(why.to_owned());
        drop(state);
        self.kill();
        true
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state().step, Step::Waiting)
    }

    /// Whether a thread has not come back from it in time.
    fn holds_thread(&self) -> bool {
        let state = self.state();
        matches!(state.step, Step::Starting(..)) && state.failure.is_some()
    }

    /// Whether the thread has done with it, and nobody else has to reap it.
    fn is_settled(&self) -> bool {
        let state = self.state();
        match state.step {
            Step::Waiting | Step::Starting(..) => false,
            Step::Running(_) => state.failure.is_none() && !state.is_unwanted,
            Step::Over(_) => true,
        }
    }
}

impl State {
    fn child(&self) -> Option<Child> {
        match &self.step {
            // The thread starts one at a time, and clears this when it changes the step.
            Step::Starting(_, under_way) => under_way.child(),
            Step::Running(child) => Some(*child),
            Step::Waiting | Step::Over(_) => None,
        }
    }
}

/// The exit code of a child that has ended, which is reaped, and the signal that has ended it, if one has.
fn reap(child: Child) -> Option<(i32, Option<i32>)> {
    match wait::reap(child.pid()) {
        Look::Found(found) => match found.change {
            Change::Exited { code } => Some((i32::from(code), None)),
            Change::Signaled { signal, .. } => Some((128 + signal, Some(signal))),
            Change::Stopped { .. } | Change::Continued => None,
        },
        Look::Nothing => None,
        Look::NoChildren => Some((255, None)),
    }
}

/// Searches for a program.
type Find = fn(&OsStr) -> io::Result<PathBuf>;

/// The loop's handle to the threads.
#[derive(Debug)]
pub(crate) struct Starter {
    /// `None`: the job starts no program.
    requests: Option<SyncSender<(Request, Program)>>,
    inbox: Arc<Mutex<Receiver<(Request, Program)>>>,
    /// By thread: the child that it is starting.
    under_way: Vec<Arc<UnderWay>>,
    /// Those that no thread has done with.
    open: Vec<Program>,
    limits: Limits,
    waker: Waker,
    find: Find,
    bound: Duration,
}

impl Starter {
    /// Starts a thread, if it `is_needed`. It wakes the loop whenever it has done with a program.
    /// `limits` are those of the user.
    pub(crate) fn start(is_needed: bool, limits: Limits, waker: Waker) -> io::Result<Starter> {
        Starter::with(is_needed, limits, waker, find, START_BOUND)
    }

    fn with(is_needed: bool, limits: Limits, waker: Waker, find: Find, bound: Duration) -> io::Result<Starter> {
        let (requests, inbox) = sync_channel::<(Request, Program)>(ROOM);
        let inbox = Arc::new(Mutex::new(inbox));
        let (under_way, open) = (Vec::new(), Vec::new());
        let requests = is_needed.then_some(requests);
        let mut starter = Starter { requests, inbox, under_way, open, limits, waker, find, bound };
        if is_needed {
            starter.start_thread()?;
        }
        Ok(starter)
    }

    fn start_thread(&mut self) -> io::Result<()> {
        let mut spawner = Spawner::new()?;
        let under_way = spawner.under_way();
        let (inbox, waker) = (Arc::clone(&self.inbox), self.waker.clone());
        let (limits, find) = (self.limits, self.find);
        // A child has this name until its exec.
        std::thread::Builder::new().name("rankrun-start".to_owned()).stack_size(256 * 1024).spawn(move || {
            signal::block_all();
            loop {
                // The threads that have nothing to do wait for each other here.
                let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((request, program)) = next else { break };
                start_one(&mut spawner, request, limits, find, &program);
                waker.wake();
            }
            // Its children are killed when it returns.
            loop {
                std::thread::park();
            }
        })?;
        self.under_way.push(under_way);
        Ok(())
    }

    /// Asks for a program.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub(crate) fn request(&mut self, request: Request) -> io::Result<Program> {
        let state = State { step: Step::Waiting, failure: None, killed_by: None, is_unwanted: false };
        let program = Program(Arc::new(Shared { state: Mutex::new(state) }));
        let requests = self.requests.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        requests.try_send((request, program.clone())).map_err(|_| io::ErrorKind::WouldBlock)?;
        self.open.push(program.clone());
        Ok(program)
    }

    /// When [`Starter::tick`] has something to do, by the clock that is `now`.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        (!self.open.is_empty()).then_some(now + LOOK_STEP)
    }

    /// Gives up what has been starting for too long, and reaps what nobody wants any more. Returns whether something has come of a
    /// program.
    pub(crate) fn tick(&mut self) -> bool {
        let (before, bound, mut is_late) = (self.open.len(), self.bound, false);
        self.open.retain(|program| {
            is_late |= program.give_up_late(bound);
            program.look();
            !program.is_settled()
        });
        is_late |= self.go_on();
        is_late || self.open.len() < before
    }

    /// If all threads are stuck, another one goes on; if there can be none, what waits is given up. Returns whether it was.
    fn go_on(&mut self) -> bool {
        let stuck = self.open.iter().filter(|program| program.holds_thread()).count();
        if stuck < self.under_way.len() || !self.open.iter().any(Program::is_waiting) {
            return false;
        }
        if self.under_way.len() < THREADS && self.start_thread().is_ok() {
            return false;
        }
        let given_up = self.open.iter().filter(|program| program.is_waiting() && program.give_up(STUCK));
        given_up.count() > 0
    }

    /// The children that have not called exec yet.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = i32> {
        self.under_way.iter().filter_map(|under_way| under_way.child()).map(Child::pid)
    }

    /// The job is over: what is starting is ended. One that has not called exec may be stopped, and would stay.
    pub(crate) fn end(&mut self) {
        self.open.iter().for_each(Program::kill);
        let until = Instant::now() + END_BOUND;
        loop {
            self.tick();
            if !self.open.iter().any(|program| program.pid().is_some()) || Instant::now() >= until {
                return;
            }
            pause(Duration::from_millis(1));
        }
    }
}

/// On a thread: starts one.
fn start_one(spawner: &mut Spawner, request: Request, limits: Limits, find: Find, program: &Program) {
    {
        let mut state = program.state();
        if state.is_unwanted {
            state.step = Step::Over(None);
            state.failure.get_or_insert_with(|| UNWANTED.to_owned());
            return;
        }
        state.step = Step::Starting(Instant::now(), spawner.under_way());
    }
    let name = request.words[0].to_string_lossy().into_owned();
    let result = find(&request.words[0]).and_then(|path| {
        let command = command(path, request, limits)?;
        if program.state().is_unwanted {
            return Err(io::Error::other(UNWANTED));
        }
        Ok(spawner.spawn(&command))
    });
    // Our copies of the child's descriptors are closed before the loop hears of it.
    let mut state = program.state();
    state.step = match result {
        Ok(Ok(pid)) => {
            let child = Child::unreaped(pid);
            if state.is_unwanted {
                // As in `kill`.
                let _ = child.signal(signal::SIGKILL);
            }
            Step::Running(child)
        }
        Ok(Err(error)) => {
            error.pid.map(wait::reap);
            let why = format!("{name}: {error}: {}", rankrun_sys::reason(&error.source));
            state.failure.get_or_insert(why);
            Step::Over(None)
        }
        Err(error) => {
            state.failure.get_or_insert(format!("{name}: {}", rankrun_sys::reason(&error)));
            Step::Over(None)
        }
    };
    // From here on the state has it.
    spawner.under_way().clear();
}

fn find(name: &OsStr) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH");
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    exec::resolve(name, path.as_deref(), &here).map_err(|error| io::Error::other(error.to_string()))
}

/// A key of the terminal is for us alone, and the program must ask nothing there: it has a session of its own.
fn command(path: PathBuf, request: Request, limits: Limits) -> io::Result<Command> {
    let Request { words, env, stdio, keep, ignored, outlives_us } = request;
    let c_string = |text: OsString| CString::new(text.into_vec());
    let variable = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        c_string(name)
    };
    Ok(Command {
        program: CString::new(path.as_os_str().as_bytes())?,
        argv: words.into_iter().map(c_string).collect::<Result<_, _>>()?,
        env: env.into_iter().map(variable).collect::<Result<_, _>>()?,
        shared_env: Arc::new([]),
        wdir: None,
        stdio,
        keep,
        keeps_no_other: false,
        cgroup: None,
        session: Session::Own,
        ignored,
        limits,
        place: None,
        parent: std::process::id() as i32,
        outlives_parent: outlives_us,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;

    use super::*;

    /// Where searches that hang wait until the test is over. One test uses it.
    static HUNG: Mutex<Vec<SyncSender<()>>> = Mutex::new(Vec::new());

    /// A search that does not return for this name, as on a file system that does not answer.
    fn find_or_hang(name: &OsStr) -> io::Result<PathBuf> {
        if name == "hangs" {
            let (sender, receiver) = sync_channel(1);
            HUNG.lock().expect("nobody panics").push(sender);
            let _ = receiver.recv();
        }
        find(name)
    }

    fn request(starter: &mut Starter, name: &str) -> Program {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("it is there"));
        starter.request(Request::of(vec![name.into()], [null(), null(), null()])).expect("there is room")
    }

    /// What has become of a program that comes no more.
    fn wait_for(starter: &mut Starter, program: &Program) -> Status {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            starter.tick();
            match program.look() {
                Status::Coming | Status::Runs => assert!(Instant::now() < until, "nothing comes of it"),
                status => return status,
            }
            std::thread::yield_now();
        }
    }

    /// Asks for a program whose search hangs, and for another one behind it; then the time of the first is over.
    fn behind_hung(starter: &mut Starter) -> Program {
        let hung = || HUNG.lock().expect("nobody panics").len();
        let (before, first) = (hung(), request(starter, "hangs"));
        while hung() == before {
            std::thread::yield_now();
        }
        let next = request(starter, "true");
        let bound = std::mem::replace(&mut starter.bound, Duration::ZERO);
        starter.tick();
        starter.bound = bound;
        assert_eq!(first.look(), Status::NotStarted("it could not be started within 0 s".to_owned()));
        next
    }

    #[test]
    fn a_search_that_hangs_holds_up_no_later_program() {
        let waker = Waker::new().expect("a waker");
        let bound = Duration::from_secs(60);
        let mut starter = Starter::with(true, Limits::default(), waker, find_or_hang, bound).expect("a thread");
        for _ in 1..THREADS {
            let next = behind_hung(&mut starter);
            assert_eq!(wait_for(&mut starter, &next), Status::Ended(0));
        }
        let next = behind_hung(&mut starter);
        assert_eq!(wait_for(&mut starter, &next), Status::NotStarted(STUCK.to_owned()), "no more threads");
        assert_eq!(starter.under_way.len(), THREADS);
        // The file system answers again.
        HUNG.lock().expect("nobody panics").clear();
        while starter.open.iter().any(Program::holds_thread) {
            starter.tick();
        }
        let next = request(&mut starter, "true");
        assert_eq!(wait_for(&mut starter, &next), Status::Ended(0));
        starter.end();
    }
}
