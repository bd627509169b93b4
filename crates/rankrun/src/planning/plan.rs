//! Makes the plan that the front runs from the settings: the only module that uses the types of both the front and the
//! output.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_agent::Preview;
use rankrun_core::env::{GPU_MASKS, NodeFacts, STDBUF_LIBRARIES, check_gpus, gpu_mask};
use rankrun_core::job::{
    App, Buffer, EnvEdit, IoPolicy, MpiMode, OnGiveup, RestartScope, RestartSpec, StdinTarget, StdioKind, StopPolicy,
    TtyGrant,
};
use rankrun_core::placement::Impossible;
use rankrun_core::{Attempt, ExitCode, GroupId, JobId, JobSpec, NodeRank, Rank, RankMap, RankSet, Stream, Template};
use rankrun_front::{HostsOrigin, Part, Plan, Prepared, ReportPlace};
use rankrun_output::{Config, Mode, PARTIAL_AFTER, PARTIAL_IN_PIPE_AFTER, Template as Tag};

use crate::check::variable;
use crate::choices::{Output, Stdio};
use crate::gpus::no_gpus;
use crate::layout::{Layout, layout};
use crate::local_addr;
use crate::logs::logs;
use crate::message::Problem;
use crate::programs;
use crate::sandbox;
use crate::settings::{AppSettings, Settings};
use crate::slurm;
use crate::stops;
use crate::traces;
use rankrun_sys::reason;
use rustix::fs::FileType;

/// The environment in which rankrun starts.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// The job that is to be run here.
    pub(crate) job: JobId,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: PathBuf,
    pub(crate) host: String,
    /// CPUs that the job may use, once counted.
    pub(crate) cpus: OnceCell<u32>,
    /// GPUs of this machine, once counted.
    pub(crate) gpus: OnceCell<u32>,
    /// Whether stdin, stdout and stderr are terminals.
    pub(crate) terminals: [bool; 3],
    /// We are in the foreground of our terminal.
    pub(crate) foreground: bool,
    /// Stdout and stderr are the same terminal or file.
    pub(crate) same_destination: bool,
    /// Whether stdout and stderr are regular files.
    pub(crate) are_files: [bool; 2],
    /// Somebody wants a file or a pipe to be read as stdin.
    pub(crate) is_stdin_given: bool,
    /// Rows and columns of the terminal.
    pub(crate) window: Option<(u16, u16)>,
}

impl Surroundings {
    /// The environment of this process.
    pub(crate) fn gather(env: Vec<(OsString, OsString)>, job: JobId) -> Result<Surroundings, Problem> {
        let cwd = std::env::current_dir().map_err(|error| no_working_directory(&error))?;
        let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let terminals = rankrun_sys::terminal::standard();
        let [of_stdin, of_stdout, of_stderr] = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        // In the order in which the window is asked for.
        let places = [(of_stdout, terminals[1]), (of_stderr, terminals[2]), (of_stdin, terminals[0])];
        let are_terminals = || places.iter().filter(|(_, is_terminal)| *is_terminal).map(|(place, _)| *place);
        let window = are_terminals().find_map(rankrun_sys::terminal::window);
        let found = [of_stdout, of_stderr].map(|place| rustix::fs::fstat(place).ok());
        let kind_of_stdin = rustix::fs::fstat(of_stdin).map(|found| FileType::from_raw_mode(found.st_mode));
        Ok(Surroundings {
            job,
            cwd,
            host: node_name(),
            cpus: OnceCell::new(),
            gpus: OnceCell::new(),
            terminals,
            foreground: are_terminals().any(in_foreground),
            same_destination: rankrun_sys::terminal::are_one_file(&found),
            are_files: found.map(|found| found.is_some_and(|found| is_regular_file(&found))),
            is_stdin_given: matches!(kind_of_stdin, Ok(FileType::RegularFile | FileType::Fifo)),
            window,
            env,
        })
    }

    /// The job has no terminal.
    pub(crate) fn leave_terminal(&mut self) {
        (self.terminals, self.are_files, self.window) = ([false; 3], [false; 2], None);
        (self.foreground, self.same_destination) = (false, false);
    }

    /// CPUs that the job may use. Counting takes a noticeable part of a launch, and most launches do not need it.
    pub(crate) fn cpus(&self) -> u32 {
        *self.cpus.get_or_init(rankrun_sys::cpus::allowed)
    }

    /// GPUs of this machine, whether or not a mask leaves some out.
    pub(crate) fn gpus(&self) -> u32 {
        *self.gpus.get_or_init(crate::gpus::installed)
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.env.iter().find(|(have, _)| have == name);
        found.map(|(_, value)| value.as_os_str())
    }
}

/// The kernel still knows the name of a directory that has been removed.
fn no_working_directory(error: &std::io::Error) -> Problem {
    let name = std::fs::read_link("/proc/self/cwd").unwrap_or_default().to_string_lossy().into_owned();
    match name.strip_suffix(" (deleted)") {
        Some(name) => Problem::usage(format!("the working directory \"{name}\" has been removed"))
            .hint("change to a directory that exists"),
        None => Problem::usage(format!("cannot determine the working directory: {}", reason(error))),
    }
}

/// Whether our process group is in the foreground of a terminal.
fn in_foreground(terminal: impl AsFd) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn is_regular_file(found: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(found.st_mode).is_file()
}

/// How many ranks the hosts are for, if somebody has said so of each.
fn slots_of(hosts: &rankrun_front::Hosts) -> Option<u32> {
    let slots = hosts.targets.iter().map(|target| target.slots).sum::<Option<u32>>();
    slots.filter(|_| !hosts.targets.is_empty())
}

/// How long an agent may do nothing at all before its guard kills it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Makes the plan of a job, or returns the problem. Starts and writes nothing.
///
/// The front fills in the runtime directory and the signals that are ignored.
pub(crate) fn make(settings: &Settings, around: &Surroundings) -> Result<Plan, Problem> {
    let Layout { map, hosts, sizes } = layout(settings, around)?;
    let world = map.world_size();
    let here = hosts.targets.iter().zip(0u32..).find(|(target, _)| target.is_local).map(|(_, node)| NodeRank(node));
    let ranks_here = here.map_or(0, |node| map.local_size(node));
    crate::capacity::check(u64::from(ranks_here))?;
    check_ranks(settings, world)?;
    check_tty(settings, &map, here)?;
    let apps: Vec<App> = settings.apps.iter().zip(&sizes).map(|(app, size)| plan_app(app, *size, around)).collect();
    check_buffer(settings)?;
    check_containment(&around.env)?;
    let io = io_policy(settings, world, ranks_here == world, around)?;
    let others = hosts.targets.iter().filter(|target| !target.is_local).count() as u32;
    let mpi = mpi(settings)?;
    crate::capacity::check_descriptors(crate::capacity::Descriptors::of(
        settings,
        world,
        (ranks_here, others),
        &io,
        mpi,
    ))?;
    // A rankrun below a rank has another job, and must not write over this one's journal.
    let is_inherited = |(name, value): &&(OsString, OsString)| {
        name != "RANKRUN_JOURNAL" && name != RESULTS && slurm::is_true(name, value, around, &map, hosts.least.is_none())
    };
    let base_env = around.env.iter().filter(is_inherited).cloned().collect();
    let mut spec = JobSpec {
        job: around.job.clone(),
        group: GroupId(0),
        attempt: Attempt(0),
        spawned: None,
        universe: settings.hosts.universe,
        room: slots_of(&hosts),
        apps,
        map,
        base_env,
        cwd: around.cwd.clone().into(),
        stop: stop_policy(settings),
        restart: restart(settings, around),
        graces: settings.graces.clone(),
        preload: settings.preload.clone(),
        hook: settings.hook,
        io,
        mpi,
        pmix_library: settings.pmix_library.as_ref().map(|path| around.cwd.join(path).into()),
        gpus_per_rank: settings.gpus_per_rank,
        binding: settings.binding.clone(),
        torch_store: settings.torch_store,
        ports: settings.hosts.ports,
        tf_config: settings.tf_config,
        error_file: settings.error_file.clone().map(|file| below(&around.cwd, file)),
        expands_args: settings.expands_args,
        clean_shm: settings.clean_shm,
        ignored_signals: Vec::new(),
        trace: settings.journal.is_some().then(|| traces::begin(&around.job, &around.env)),
    };
    check_gpu_masks(&spec, here, around)?;
    let mpi_libraries = programs::look_at(&spec, here, settings)?;
    spec.binding = spec.wish(&settings.binding, &mpi_libraries).binding;
    match check_binding(&spec, here) {
        // What variables say may be meant for another program: a warning names them.
        Err(_) if spec.binding.variables.is_some() => spec.binding = settings.binding.clone(),
        checked => checked?,
    }
    let plan = Plan {
        mpi_libraries,
        hosts,
        join: None,
        output: output(settings, world, around)?,
        logs: logs(settings, &spec)?,
        report: report_place(settings, around, &spec.job),
        is_detached: settings.leaving.is_detached,
        transcript_size: settings.leaving.transcript_size,
        goes_on_after_hangup: settings.leaving.goes_on_after_hangup,
        journal: settings.journal.as_ref().map(|file| around.cwd.join(file)),
        results: around.variable(RESULTS).map(|path| around.cwd.join(path)),
        error_file: around.variable("TORCHELASTIC_ERROR_FILE").map(|path| around.cwd.join(path)),
        // A user at a debugger needs time.
        timeout: settings.timeout.filter(|_| settings.tty.is_none()),
        keep_going: settings.keep_going,
        strict: settings.strict,
        node: node_options(&around.env),
        die_with: None,
        stall: settings.stall,
        planned: stops::spec(settings, &spec.stop, around)?,
        end_suspects: settings.end_suspects,
        drain: settings.drain,
        verbosity: settings.verbosity,
        color: around.colors(settings.color, around.terminals[2]),
        codes: None,
        spec,
    };
    let plan = match &settings.joining {
        Some(joining) => {
            let variable =
                |name: &str| around.variable(name)?.to_str().filter(|text| !text.is_empty()).map(str::to_owned);
            joining.apply(plan, variable, &around.cwd, &rankrun_sys::network::addresses())
        }
        None if plan.hosts.origin == HostsOrigin::Slurm => slurm::plan(plan),
        None => Ok(plan),
    }?;
    // The address is that of the first host; the nodes that join it have the same command line.
    let is_front = plan.join.as_ref().is_none_or(|join| join.part == Part::Front);
    if let Some(address) = plan.hosts.local_addr.filter(|_| is_front && plan.hosts.targets.len() > 1) {
        local_addr::check(address, &rankrun_sys::network::addresses())?;
    }
    Ok(plan)
}

/// Where the report goes: the user's choice, by default below their state directory.
fn report_place(settings: &Settings, around: &Surroundings, job: &JobId) -> ReportPlace {
    let set = |name| around.variable(name).filter(|value| !value.is_empty()).map(|path| around.cwd.join(path));
    let home = set("HOME");
    let asked = settings.report_dir.as_ref().map(|directory| around.cwd.join(directory));
    let is_asked_for = asked.is_some();
    let usual = reports_directory(set).map(|reports| reports.join(&job.0));
    let directory = asked.or_else(|| usual.clone());
    ReportPlace { directory, usual, is_asked_for, home, keep: settings.keep_reports }
}

/// Where reports are kept by default. `variable` is a path in the environment.
pub(crate) fn reports_directory(variable: impl Fn(&'static str) -> Option<PathBuf>) -> Option<PathBuf> {
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("rankrun"))
}

/// The directory for what the ranks of the Python package's `launch` return.
const RESULTS: &str = "RANKRUN_LAUNCH_RESULTS";
/// The variable that chooses the tier: `cgroup`, the default, where cgroups can be used, or `subreaper`.
const CONTAINMENT: &str = "RANKRUN_CONTAINMENT";

fn check_containment(env: &[(OsString, OsString)]) -> Result<(), Problem> {
    match variable(env, CONTAINMENT).filter(|text| !["", "cgroup", "subreaper"].iter().any(|tier| text == tier)) {
        Some(text) => Err(Problem::usage(format!("{CONTAINMENT}: \"{}\" is not cgroup or subreaper", text.display()))
            .hint("leave it unset for cgroups where they can be used")),
        None => Ok(()),
    }
}

/// The settings of the agent. The two variables are for tests (docs/containment.md).
pub(crate) fn node_options(env: &[(OsString, OsString)]) -> rankrun_agent::Options {
    let text = |name| variable(env, name).and_then(OsStr::to_str);
    let patience = text("RANKRUN_LEASE_SECONDS").and_then(|text| text.parse().ok());
    rankrun_agent::Options {
        containment: text(CONTAINMENT).map(str::to_owned),
        is_away: false,
        patience: patience.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(PATIENCE),
    }
}

/// Runs a job.
pub(crate) fn run(plan: Plan, prepared: Option<Prepared>) -> Result<ExitCode, Problem> {
    sandbox::check_proc()?;
    sandbox::check_calls()?;
    // The kernel frees faster than destructors. Nothing is left in a buffer: the front writes to descriptors.
    rankrun_sys::fork::exit_now(rankrun_front::run(plan, prepared).0)
}

/// What is known about this node before the job starts, and matters for finding programs.
pub(crate) fn known_facts() -> NodeFacts {
    NodeFacts {
        node: NodeRank(0),
        cpus: 1,
        bound: Vec::new(),
        rendezvous: None,
        stdbuf: None,
        socket: None,
        hook: None,
        pmix: None,
        runtime_dir: None,
    }
}

/// Refuses what cannot be on this machine. What other hosts have is not known here.
pub(crate) fn check_binding(spec: &JobSpec, here: Option<NodeRank>) -> Result<(), Problem> {
    let Some(here) = here.filter(|_| spec.binding.is_asked_for()) else { return Ok(()) };
    preview(spec, here).map(|_| ())
}

/// The CPUs that the ranks get on this machine, if no other job has them.
pub(crate) fn preview(spec: &JobSpec, here: NodeRank) -> Result<Preview, Problem> {
    rankrun_agent::preview(spec, here).map_err(|error| {
        let hint = match error {
            Impossible::TooFew { .. } | Impossible::TooFewNear { .. } => {
                "ask for less, let ranks share cores (--overload), or leave them unbound (--bind-to none)"
            }
            Impossible::NotAllowed { .. } => {
                "\"lscpu -e\" lists the CPUs; an affinity mask or a cpuset may leave some out"
            }
            Impossible::NoCore { .. } => "cores are counted from 0, in the order of packages, NUMA nodes and caches",
            Impossible::NotPermitted { .. } => "leave them unbound (--bind-to none)",
            Impossible::NoDevice { .. } => "write --map-by numa or package",
        };
        Problem::usage(format!("cannot bind ranks to CPUs: {error}")).hint(hint)
    })
}

/// Refuses `--gpus-per-rank` if there are too few GPUs.
fn check_gpu_masks(spec: &JobSpec, here: Option<NodeRank>, around: &Surroundings) -> Result<(), Problem> {
    let edits = spec.apps.iter().flat_map(|app| &app.env);
    let filled = edits.filter_map(|edit| match edit {
        EnvEdit::Fill { name, .. } => GPU_MASKS.into_iter().find(|mask| name == mask),
        EnvEdit::Set { .. } | EnvEdit::Remove { .. } => None,
    });
    if let Some(mask) = filled.into_iter().next().filter(|_| spec.gpus_per_rank.is_some()) {
        return Err(Problem::usage(format!("--gpus-per-rank cannot be used with fields in {mask}"))
            .hint("leave one of them out: both say which GPUs each rank has"));
    }
    const HINT: &str = "ask for fewer GPUs or fewer ranks, or let every rank see all GPUs: --gpus-per-rank none";
    for node in (0..spec.map.node_count()).map(NodeRank) {
        check_gpus(spec, node).map_err(|error| Problem::usage(error.to_string()).hint(HINT))?;
    }
    // What other hosts have is not known here.
    let (Some(each), Some(here)) = (spec.gpus_per_rank, here) else {
        return Ok(());
    };
    // Without a mask, devices are counted from 0 on.
    if spec.apps.iter().all(|app| gpu_mask(&spec.base_env, &app.env).is_some()) {
        return Ok(());
    }
    let (ranks, have) = (spec.map.local_size(here), around.gpus());
    match have {
        0 => Err(no_gpus("--gpus-per-rank", None)
            .hint("leave it out, or say which devices there are: -x CUDA_VISIBLE_DEVICES=0,1")),
        _ if u64::from(ranks) * u64::from(each) > u64::from(have) => {
            let count = |n: u32, one: &str, more: &str| crate::clean::count(n as usize, one, more);
            Err(Problem::usage(format!(
                "--gpus-per-rank: this machine has {}, too few for {} with {each} each",
                count(have, "GPU", "GPUs"),
                count(ranks, "rank", "ranks"),
            ))
            .hint(HINT))
        }
        _ => Ok(()),
    }
}

/// Refuses `--buffer` if it would have no effect.
fn check_buffer(settings: &Settings) -> Result<(), Problem> {
    let wanted = settings.buffer != Buffer::Program;
    if wanted && !STDBUF_LIBRARIES.iter().any(|library| Path::new(library).exists()) {
        return Err(Problem::usage("--buffer: coreutils' libstdbuf.so is not installed")
            .hint("let the program decide (--buffer program), or give it a terminal (--stdio pty)"));
    }
    Ok(())
}

/// Refuses options that name ranks which the job does not have.
fn check_ranks(settings: &Settings, world: u32) -> Result<(), Problem> {
    let wraps = settings.apps.iter().flat_map(|app| &app.wraps);
    let wraps = wraps.map(|wrap| ("--wrap", wrap.ranks.max()));
    let stdin = match settings.stdin {
        Some(StdinTarget::Rank(rank)) => Some(rank),
        Some(StdinTarget::None | StdinTarget::All | StdinTarget::Shared) | None => None,
    };
    let single =
        [("--only", settings.only.as_ref().and_then(RankSet::max)), ("--stdin", stdin), ("--tty", settings.tty)];
    for (option, rank) in wraps.chain(single) {
        if let Some(rank) = rank.filter(|rank| rank.number() >= world) {
            let have = match world {
                1 => "the job has only rank 0".to_owned(),
                _ => format!("the job has ranks 0 to {}", world - 1),
            };
            return Err(Problem::usage(format!("{option}: there is no rank {rank}; {have}")));
        }
    }
    Ok(())
}

/// Refuses to give the terminal to a rank on another machine.
fn check_tty(settings: &Settings, map: &RankMap, here: Option<NodeRank>) -> Result<(), Problem> {
    let place = settings.tty.and_then(|rank| map.place(rank));
    match place.filter(|place| Some(place.node) != here) {
        None => Ok(()),
        Some(place) => Err(Problem::usage(format!(
            "--tty {}: this rank is on host \"{}\", and only a rank on this machine can have the terminal",
            place.rank,
            map.node_name(place.node)
        ))
        .hint("begin the list of hosts with localhost, and choose one of the first ranks")),
    }
}

fn plan_app(app: &AppSettings, size: u32, around: &Surroundings) -> App {
    App {
        command: app.command.clone(),
        size,
        env: app.env.clone(),
        wdir: app.wdir.clone().map(|directory| below(&around.cwd, directory)),
        search: None,
        wraps: app.wraps.clone(),
    }
}

/// The directory, relative to the working directory unless absolute.
fn below(cwd: &Path, directory: Template) -> Template {
    // A field has no slash at its start.
    match directory.shown().as_bytes().starts_with(b"/") {
        true => directory,
        false => directory.prefixed(cwd.join("")),
    }
}

/// Ranks that are started again one by one cannot be those of an MPI program.
fn mpi(settings: &Settings) -> Result<MpiMode, Problem> {
    let is_single = settings.restart.scope == RestartScope::Rank && settings.restart.is_on();
    let of_job = match &settings.restart {
        spec if spec.on_failure.is_some() => Some("--on-failure"),
        spec if spec.on_giveup == OnGiveup::Requeue => Some("--on-giveup requeue"),
        _ => None,
    };
    if let Some(option) = of_job.filter(|_| is_single) {
        let problem = Problem::usage(format!("{option} decides about the whole job, not about one rank"));
        return Err(problem.hint("leave out --restart-scope to start all ranks again"));
    }
    match settings.mpi {
        MpiMode::Auto | MpiMode::None if is_single => Ok(MpiMode::None),
        _ if is_single => {
            let problem =
                Problem::usage("--restart-scope rank is for ranks that do not depend on each other, not for MPI");
            Err(problem.hint("leave out --mpi, or leave out --restart-scope to start all ranks again"))
        }
        mode => Ok(mode),
    }
}

/// The restart policy, with its path made absolute.
fn restart(settings: &Settings, around: &Surroundings) -> RestartSpec {
    let progress_file = settings.restart.progress_file.as_ref().map(|file| around.cwd.join(file).into());
    RestartSpec { progress_file, ..settings.restart.clone() }
}

fn stop_policy(settings: &Settings) -> StopPolicy {
    let default = StopPolicy::default();
    StopPolicy {
        signal: settings.stop_signal,
        grace_failure: settings.grace.unwrap_or(default.grace_failure),
        grace_outside: settings.grace.unwrap_or(default.grace_outside),
        grace_saving: settings.grace_saving.unwrap_or(default.grace_saving),
        linger: settings.linger.unwrap_or(default.linger),
        scope: settings.stop_scope,
        descendants: settings.descendants,
    }
}

fn mode(settings: &Settings, world: u32) -> Mode {
    match settings.output {
        Some(Output::Line) => Mode::Line,
        Some(Output::Raw) => Mode::Raw,
        Some(Output::Grouped) => Mode::Grouped,
        Some(Output::Folded) => Mode::Folded,
        Some(Output::None) => Mode::None,
        None if world == 1 && settings.tag.is_none() && !settings.timestamps && settings.only.is_none() => Mode::Raw,
        None => Mode::Line,
    }
}

fn io_policy(settings: &Settings, world: u32, is_here: bool, around: &Surroundings) -> Result<IoPolicy, Problem> {
    let [stdin, stdout, stderr] = around.terminals;
    let grant = |rank| TtyGrant { rank, stdin, stdout, stderr, foreground: around.foreground };
    let stdin_rank = match (settings.stdin, settings.tty) {
        // Somebody who attaches may give it.
        (target, _) if settings.leaving.is_detached => target.unwrap_or(StdinTarget::None),
        (Some(target), _) => target,
        (None, Some(rank)) => StdinTarget::Rank(rank),
        (None, None) => StdinTarget::default(),
    };
    let is_logged = settings.log_dir.is_some() || settings.has_files();
    let untouched = mode(settings, world) == Mode::Raw && !is_logged && settings.stdio == Stdio::Auto;
    let tty = match settings.tty {
        Some(_) if !around.terminals.contains(&true) => {
            return Err(Problem::usage("--tty needs a terminal, but stdin, stdout and stderr are not terminals"));
        }
        Some(rank) => Some(grant(rank)),
        // A single rank with unprocessed output gets the terminal as without rankrun: with job control, window size and
        // modes.
        None if world == 1
            && is_here
            && stdin
            && !settings.leaving.is_detached
            && untouched
            && !settings.leaving.goes_on_after_hangup
            && [StdinTarget::Rank(Rank(0)), StdinTarget::Shared].contains(&stdin_rank) =>
        {
            Some(grant(Rank(0)))
        }
        None => None,
    };
    let (out, err) = match settings.stdio {
        Stdio::Pipe => (StdioKind::Pipe, StdioKind::Pipe),
        Stdio::Pty => (StdioKind::Pty, StdioKind::Pty),
        Stdio::Auto if stdout => (StdioKind::Pty, StdioKind::Pipe),
        Stdio::Auto => (StdioKind::Pipe, StdioKind::Pipe),
    };
    Ok(IoPolicy {
        stdin: stdin_rank,
        stdout: out,
        stderr: err,
        tty,
        buffer: settings.buffer,
        spool: settings.spool,
        window: around.window,
    })
}

pub(crate) fn tag(settings: &Settings) -> Result<Option<Tag>, Problem> {
    let tag = settings.tag.as_ref().map(|given| match given.text.to_str() {
        Some("") => Ok(Tag::default()),
        Some(text) => text.parse::<Tag>().map_err(|error| given.problem(error)),
        None => Err(given.problem("the template is not UTF-8 text")),
    });
    tag.transpose()
}

fn output(settings: &Settings, world: u32, around: &Surroundings) -> Result<Config, Problem> {
    let [_, stdout, _] = around.terminals;
    Ok(Config {
        tag: tag(settings)?,
        timestamps: settings.timestamps,
        only: settings.only.clone().unwrap_or(RankSet::All),
        hidden: settings.files.each_ref().map(|files| files.as_ref().map(|files| files.ranks.clone())),
        color: around.colors(settings.color, stdout),
        status: around.status_window(),
        status_on: if stdout { Stream::Stdout } else { Stream::Stderr },
        same_destination: around.same_destination,
        partial_after: Stream::ALL.map(|stream| partial_after(world, around, stream)),
        ..Config::new(mode(settings, world), world)
    })
}

/// When an unfinished line is shown. Unfinished lines such as prompts are for people; in a file they would only split lines.
pub(crate) fn partial_after(world: u32, around: &Surroundings, stream: Stream) -> Option<Duration> {
    let [_, stdout, stderr] = around.terminals;
    let is_terminal = [stdout, stderr][stream.index()];
    match world {
        _ if around.are_files[stream.index()] => None,
        2.. if !is_terminal => Some(PARTIAL_IN_PIPE_AFTER),
        _ => Some(PARTIAL_AFTER),
    }
}

/// The name of this machine.
pub(crate) fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::invocation::{Invocation, read};

    fn around(terminals: [bool; 3], env: &[(&str, &str)]) -> Surroundings {
        let env = env.iter().map(|(name, value)| (name.into(), value.into()));
        Surroundings {
            job: rankrun_core::JobId("7f3a91c2".to_owned()),
            env: [("PATH".into(), "/usr/bin:/bin".into())].into_iter().chain(env).collect(),
            cwd: "/".into(),
            host: "vm".to_owned(),
            cpus: OnceCell::from(3),
            gpus: OnceCell::from(0),
            terminals,
            foreground: terminals.contains(&true),
            same_destination: false,
            are_files: [!terminals[1], !terminals[2]],
            is_stdin_given: false,
            window: terminals.contains(&true).then_some((24, 80)),
        }
    }

    fn plan(words: &[&str], around: &Surroundings) -> Plan {
        let Ok(Invocation::Job(segments)) = read(words.iter().map(OsString::from).collect()) else {
            panic!("{words:?} is a job");
        };
        let settings = crate::settings::resolve(&segments, &around.env).expect("good settings");
        make(&settings, around).expect("a good plan")
    }

    fn refused(words: &[&str], around: &Surroundings) -> Problem {
        let Ok(Invocation::Job(segments)) = read(words.iter().map(OsString::from).collect()) else {
            panic!("{words:?} is a job");
        };
        let settings = crate::settings::resolve(&segments, &around.env).expect("good settings");
        make(&settings, around).expect_err("a job that is refused")
    }

    const NONE: [bool; 3] = [false; 3];
    const ALL: [bool; 3] = [true; 3];

    #[test]
    fn unfinished_lines_of_several_ranks_stay_longer_behind_a_pipe() {
        let pipe = |terminals| Surroundings { are_files: [false; 2], ..around(terminals, &[]) };
        let after = |words: &[&str], around: &Surroundings| plan(words, around).output.partial_after;
        let (brief, long) = (Some(PARTIAL_AFTER), Some(PARTIAL_IN_PIPE_AFTER));
        assert_eq!(after(&["-n", "2", "true"], &pipe(NONE)), [long; 2]);
        assert_eq!(after(&["-l", "true"], &pipe(NONE)), [brief; 2]);
        assert_eq!(after(&["-n", "2", "true"], &pipe([false, false, true])), [long, brief], "`rankrun ... | grep`");
        assert_eq!(after(&["-n", "2", "true"], &pipe([false, true, false])), [brief, long]);
        assert_eq!(after(&["-n", "2", "true"], &around(ALL, &[])), [brief; 2]);
        assert_eq!(after(&["-n", "2", "true"], &around(NONE, &[])), [None; 2]);
        assert_eq!(after(&["-n", "2", "true"], &around([false, false, true], &[])), [None, brief]);
    }

    #[test]
    fn one_rank_is_raw_and_several_are_lines() {
        let mode = |words: &[&str]| plan(words, &around(NONE, &[])).output.mode;
        assert_eq!(mode(&["true"]), Mode::Raw);
        for words in [&["-n", "2", "true"][..], &["-l", "true"], &["--timestamps", "true"], &["--only", "0", "true"]] {
            assert_eq!(mode(words), Mode::Line, "{words:?}");
        }
        assert_eq!(mode(&["-n", "2", "--output", "raw", "true"]), Mode::Raw);
        assert_eq!(mode(&["true", ":", "true"]), Mode::Line);
    }

    #[test]
    fn one_rank_that_nobody_looks_at_gets_the_terminal() {
        let tty = |words: &[&str], terminals| plan(words, &around(terminals, &[])).spec.io.tty.map(|grant| grant.rank);
        assert_eq!(tty(&["true"], ALL), Some(Rank(0)));
        assert_eq!(tty(&["true"], [false, true, true]), None, "stdin is a file");
        for words in
            [&["-n", "2", "true"][..], &["--log-dir", "/tmp", "true"], &["--stdio", "pipe", "true"], &["-l", "true"]]
        {
            assert_eq!(tty(words, ALL), None, "{words:?}");
        }
        assert_eq!(tty(&["-n", "4", "--tty", "3", "true"], ALL), Some(Rank(3)));
    }

    #[test]
    fn the_rank_on_the_terminal_reads_it() {
        let stdin = |words: &[&str]| plan(words, &around(ALL, &[])).spec.io.stdin;
        assert_eq!(stdin(&["-n", "4", "--tty", "3", "true"]), StdinTarget::Rank(Rank(3)));
        assert_eq!(stdin(&["-n", "4", "--tty", "3", "--stdin", "none", "true"]), StdinTarget::None);
    }

    #[test]
    fn ptys_follow_stdout() {
        let kinds = |words: &[&str], terminals| {
            let io = plan(words, &around(terminals, &[])).spec.io;
            (io.stdout, io.stderr)
        };
        assert_eq!(kinds(&["true"], NONE), (StdioKind::Pipe, StdioKind::Pipe));
        assert_eq!(kinds(&["-n", "2", "true"], ALL), (StdioKind::Pty, StdioKind::Pipe));
        assert_eq!(kinds(&["--stdio", "pty", "true"], NONE), (StdioKind::Pty, StdioKind::Pty));
        assert_eq!(kinds(&["-n", "2", "--stdio", "pipe", "true"], ALL), (StdioKind::Pipe, StdioKind::Pipe));
    }

    #[test]
    fn colours_follow_the_terminal_the_environment_and_the_option() {
        let color = |words: &[&str], terminals, env: &[(&str, &str)]| plan(words, &around(terminals, env)).output.color;
        assert!(color(&["true"], ALL, &[]));
        assert!(!color(&["true"], NONE, &[]));
        assert!(!color(&["true"], ALL, &[("NO_COLOR", "1")]));
        assert!(color(&["true"], ALL, &[("NO_COLOR", "")]));
        assert!(!color(&["true"], ALL, &[("CLICOLOR", "0")]));
        assert!(!color(&["true"], ALL, &[("TERM", "dumb")]));
        assert!(color(&["true"], NONE, &[("CLICOLOR_FORCE", "1")]));
        assert!(color(&["--color", "always", "true"], NONE, &[("NO_COLOR", "1")]));
        assert!(!color(&["--color", "never", "true"], ALL, &[]));
    }

    #[test]
    fn rows_are_redrawn_only_on_a_terminal_that_can() {
        let status = |terminals, env: &[(&str, &str)]| plan(&["true"], &around(terminals, env)).output.status;
        assert_eq!(status(ALL, &[]), Some((24, 80)));
        assert_eq!(status([true, false, false], &[]), None);
        assert_eq!(status(ALL, &[("TERM", "dumb")]), None);
    }

    #[test]
    fn auto_counts_the_cpus_and_apps_add_up() {
        let plan = plan(&["-n", "1", "true", ":", "-n", "auto", "true"], &around(NONE, &[]));
        assert_eq!(plan.spec.map.world_size(), 4);
        assert_eq!(plan.output.world_size, 4);
    }

    #[test]
    fn ranks_are_counted_by_gpus_where_that_is_asked_for() {
        let machine = |gpus, env: &[(&str, &str)]| Surroundings { gpus: OnceCell::from(gpus), ..around(NONE, env) };
        let size = |words: &[&str], around: &Surroundings| plan(words, around).spec.map.world_size();
        let problem = |words: &[&str], around: &Surroundings| refused(words, around).to_string();
        assert_eq!(size(&["-n", "gpu", "true"], &machine(2, &[])), 2);
        assert_eq!(size(&["-n", "gpu", "true"], &machine(8, &[("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2,GPU-3")])), 3);
        assert_eq!(size(&["-n", "gpu", "-x", "CUDA_VISIBLE_DEVICES=4", "true"], &machine(8, &[])), 1);
        assert_eq!(size(&["--nproc-per-node", "auto", "true"], &machine(2, &[])), 2);
        assert_eq!(size(&["--nproc-per-node", "auto", "true"], &machine(0, &[])), 3);
        insta::assert_snapshot!(problem(&["-n", "gpu", "true"], &machine(0, &[])), @"
        error: -n gpu: this machine has no GPU that rankrun can see
        hint: write -n auto for one rank on each CPU, or a number
        ");
        insta::assert_snapshot!(problem(&["-n", "gpu", "true"], &machine(4, &[("CUDA_VISIBLE_DEVICES", "")])), @"
        error: -n gpu: CUDA_VISIBLE_DEVICES lists no GPU
        hint: write -n auto for one rank on each CPU, or a number
        ");
    }

    #[test]
    fn ranks_are_given_gpus_only_where_there_are_any() {
        let words = ["-n", "2", "--gpus-per-rank", "2", "true"];
        let machine = |gpus| Surroundings { gpus: OnceCell::from(gpus), ..around(NONE, &[]) };
        assert_eq!(plan(&words, &machine(4)).spec.gpus_per_rank, Some(2));
        insta::assert_snapshot!(refused(&words, &machine(0)), @"
        error: --gpus-per-rank: this machine has no GPU that rankrun can see
        hint: leave it out, or say which devices there are: -x CUDA_VISIBLE_DEVICES=0,1
        ");
        insta::assert_snapshot!(refused(&words, &machine(3)), @"
        error: --gpus-per-rank: this machine has 3 GPUs, too few for 2 ranks with 2 each
        hint: ask for fewer GPUs or fewer ranks, or let every rank see all GPUs: --gpus-per-rank none
        ");
        let masked = Surroundings { gpus: OnceCell::from(0), ..around(NONE, &[("CUDA_VISIBLE_DEVICES", "0,1,2,3")]) };
        assert_eq!(plan(&words, &masked).spec.gpus_per_rank, Some(2), "the mask is believed");
    }

    #[test]
    fn a_grace_of_the_users_is_for_both_kinds_of_stop() {
        let stop = |words: &[&str]| plan(words, &around(NONE, &[])).spec.stop;
        assert_eq!(stop(&["true"]), StopPolicy::default());
        let given = stop(&["--grace", "3s", "true"]);
        assert_eq!((given.grace_failure, given.grace_outside), (Duration::from_secs(3), Duration::from_secs(3)));
    }

    #[test]
    fn a_wrapped_command_need_not_be_a_program() {
        plan(&["--wrap", "sh -c", "echo $RANK"], &around(NONE, &[]));
    }
}
