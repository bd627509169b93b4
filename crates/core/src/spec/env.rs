//! The environment of a rank (docs/architecture.md).
//!
//! A rank's environment is made in this order, and what comes later wins:
//!
//! 1. the environment of the front, without the identities that an outer launcher gave it ([`is_outer_identity`]);
//! 2. defaults that only fill what is unset (`OMP_NUM_THREADS`, `PYTHONUNBUFFERED`, …);
//! 3. what rankrun sets for every rank of an app ([`app_environment`]) and for a single rank ([`rank_environment`]);
//! 4. the user's `-x` and `--env-remove`, in the order given, except that they cannot touch the `PMI_*` and `RANKRUN_*`
//!    variables that rankrun sets itself: the agent could not identify the rank without them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

pub(crate) use crate::gpus::value_of;
pub use crate::gpus::{GPU_MASKS, GpuMask, GpuMaskError, check_gpus, first_gpus, gpu_mask};
use crate::gpus::{gpu_masks, jax_device};
use crate::ids::{AppIndex, GroupId, NodeRank, Rank, WorkerId};
use crate::outer::{is_outer_identity, matches};
use crate::placement::{BindTo, Width};
use crate::rendezvous::Rendezvous;
use crate::spec::job::{App, Buffer, EVERYTHING, EnvEdit, JobSpec, MpiMode};
use crate::topology::CpuSet;
use crate::trace::{Part, TRACEPARENT, TRACESTATE};

/// What the agent of a node knows about the node when it starts ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeFacts {
    pub node: NodeRank,
    /// CPUs that the job may use on the node, at least 1.
    pub cpus: u32,
    /// Those of each rank, by local rank, where ranks are bound.
    pub bound: Vec<CpuSet>,
    /// `None` where there is no network.
    pub rendezvous: Option<Rendezvous>,
    /// The path of coreutils' `libstdbuf.so`, which `--buffer line|none` preloads.
    pub stdbuf: Option<OsString>,
    /// The path of the worker socket (`RANKRUN_SOCKET`).
    pub socket: Option<OsString>,
    /// The directory of the interpreter hook, which goes to the front of `PYTHONPATH`.
    pub hook: Option<OsString>,
    /// Where the PMIx server of the node is.
    pub pmix: Option<crate::pmix::Facts>,
    /// The job's private directory on the node.
    pub runtime_dir: Option<OsString>,
}

/// Where distributions put coreutils' library for `--buffer`: Debian and Fedora, Arch, older Red Hat.
pub const STDBUF_LIBRARIES: &[&str] =
    &["/usr/libexec/coreutils/libstdbuf.so", "/usr/lib/coreutils/libstdbuf.so", "/usr/lib64/coreutils/libstdbuf.so"];

/// The environment that all ranks of an app on one node share.
pub fn app_environment(spec: &JobSpec, facts: &NodeFacts, app: AppIndex) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> = BTreeMap::new();
    let is_new_trace = spec.trace.as_ref().is_some_and(|trace| trace.parent.is_none());
    for (name, value) in &spec.base_env {
        // Where a name occurs twice, getenv sees the first.
        let is_left_out = is_outer_identity(name) || (is_new_trace && name == TRACESTATE);
        if !is_left_out && !env.contains_key(name) {
            env.insert(name.clone(), value.clone());
        }
    }
    let local_size = spec.map.local_size(facts.node).max(1);
    for (name, value) in [
        ("OMP_NUM_THREADS", (facts.cpus / local_size).max(1).to_string()),
        ("PYTHONUNBUFFERED", "1".to_owned()),
        ("PYTHONFAULTHANDLER", "1".to_owned()),
        ("GFORTRAN_UNBUFFERED_PRECONNECTED", "y".to_owned()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()),
    ] {
        env.entry(name.into()).or_insert_with(|| value.into());
    }
    if spec.mpi != MpiMode::None && local_size > facts.cpus {
        for (name, value) in OVERSUBSCRIBED {
            env.entry((*name).into()).or_insert_with(|| (*value).into());
        }
    }
    if spec.openmp_threads().is_some_and(|threads| threads > 1 && threads.saturating_mul(local_size) > facts.cpus) {
        env.entry(CROWDED_THREADS.0.into()).or_insert_with(|| CROWDED_THREADS.1.into());
    }
    let ours = shared_variables(spec, facts, local_size);
    env.extend(ours.iter().map(|(name, value)| (OsString::from(name), value.clone())));
    let app = spec.app(app);
    // What is not inherited, and so stays where the user wants to begin with an empty environment.
    let is_own = |name: &OsStr| {
        let inherited = spec.base_env.iter().any(|(have, _)| have == name) && !is_outer_identity(name);
        ours.iter().any(|(have, _)| name == *have) || !inherited
    };
    for edit in &app.env {
        match edit {
            EnvEdit::Set { name, value } => {
                env.insert(name.clone(), value.clone());
            }
            EnvEdit::Remove { name } if name == EVERYTHING => {
                let edited =
                    |have: &OsStr| app.env.iter().any(|edit| matches!(edit, EnvEdit::Set { name, .. } if name == have));
                env.retain(|have, _| is_own(have) && !edited(have));
            }
            // `rank_environment` has it.
            EnvEdit::Fill { name, .. } => {
                env.remove(name);
            }
            EnvEdit::Remove { name } => env.retain(|have, _| !matches(name, have)),
        }
    }
    for (name, value) in ours.into_iter().filter(|(name, _)| is_protected(name)) {
        env.insert(name.into(), value);
    }
    preload_stdbuf(&mut env, spec.io.buffer, facts);
    if let Some(hook) = &facts.hook {
        prepend_hook(env.entry("PYTHONPATH".into()).or_default(), hook);
    }
    env
}

fn prepend_hook(path: &mut OsString, hook: &OsStr) {
    // An empty element of PYTHONPATH would be the working directory: none is added.
    let rest = std::mem::replace(path, hook.to_owned());
    if !rest.is_empty() {
        path.push(":");
        path.push(rest);
    }
}

/// The variables that are the rank's own: they stand in place of its app's of the same names.
///
/// `pmi_fd` is the descriptor of the PMI socket in the rank, `None` where PMI is off. Empty for a rank beyond the
/// world. If a GPU mask is too short for the rank, its part is short or empty; [`check_gpus`] reports that before the
/// start.
pub fn rank_environment(
    spec: &JobSpec,
    facts: &NodeFacts,
    rank: Rank,
    pmi_fd: Option<i32>,
) -> BTreeMap<OsString, OsString> {
    let mut env = BTreeMap::new();
    let Some(place) = spec.map.place(rank) else {
        return env;
    };
    let app = spec.app(place.app);
    let mut set = |name: &str, value: OsString| {
        if is_protected(name) || !app.edits(OsStr::new(name)) {
            env.insert(name.into(), value);
        }
    };
    let number = |n: u32| OsString::from(n.to_string());
    set("RANKRUN_RANK", number(rank.number()));
    set("RANKRUN_LOCAL_RANK", number(place.local_rank.0));
    if spec.spawned.is_some() {
        set("RANKRUN_GROUP", number(spec.group.0));
    }
    set("MPI_LOCALRANKID", number(place.local_rank.0));
    set("RANK", number(rank.number()));
    set("LOCAL_RANK", number(place.local_rank.0));
    set("ROLE_RANK", number(rank.number()));
    if let Some(cpus) = facts.bound.get(place.local_rank.index()) {
        // Others may be bound to the same CPUs.
        let sharers = facts.bound.iter().filter(|other| other.meets(cpus)).count().max(1) as u32;
        let own = (cpus.count() / sharers).max(1);
        let threads = match (spec.binding.to, spec.binding.width) {
            (BindTo::Whole(_), _) | (_, Some(Width::Max | Width::All) | None) => own,
            (_, Some(Width::Count(count))) => count.min(own),
        };
        let is_inherited = |name: &str| spec.base_env.iter().any(|(have, _)| have == name);
        for (name, value) in BOUND.iter().copied().chain([("OMP_NUM_THREADS", threads.to_string().as_str())]) {
            if !is_inherited(name) {
                set(name, value.into());
            }
        }
    }
    if let Some(trace) = &spec.trace {
        set(TRACEPARENT, trace.traceparent(Part::Rank(WorkerId { rank, attempt: spec.attempt })).into());
    }
    if let Some(device) = jax_device(spec, app, place) {
        set("RANKRUN_JAX_LOCAL_DEVICE", number(device));
    }
    if spec.io.tty.is_some_and(|grant| grant.rank != rank) {
        // `breakpoint()` in a rank without the terminal would read end of file and raise BdbQuit, which ends the job.
        set("PYTHONBREAKPOINT", "0".into());
    }
    if let Some(config) = facts.rendezvous.as_ref().and_then(|rendezvous| rendezvous.tf_config(rank)) {
        set("TF_CONFIG", config);
    }
    if let Some(directory) = &facts.runtime_dir {
        set(ERROR_FILE, error_file(spec, directory, rank));
    }
    if spec.mpi != MpiMode::None {
        set("OMPI_COMM_WORLD_RANK", number(rank.number()));
        set("OMPI_COMM_WORLD_LOCAL_RANK", number(place.local_rank.0));
        // Of all jobs on the node, for mpirun: not the number of the node.
        set("OMPI_COMM_WORLD_NODE_RANK", number(place.local_rank.0));
    }
    if let Some(fd) = pmi_fd {
        set("PMI_FD", number(fd.unsigned_abs()));
        set("PMI_RANK", number(rank.number()));
        set("PMI_SIZE", number(spec.map.world_size()));
        if spec.spawned.is_some() {
            set("PMI_SPAWNED", "1".into());
            // Intel MPI can be spawned, and spawn, only with it. Whoever asked has it, perhaps set by itself.
            set("I_MPI_SPAWN", "on".into());
        }
    }
    if facts.pmix.is_some() {
        set("PMIX_RANK", number(rank.number()));
        if spec.map.world_size() > 1 || spec.spawned.is_some() {
            let (name, value) = NO_SINGLETON;
            set(name, value.into());
        }
    } else if pmi_fd.is_some() && spec.map.world_size() > 1 {
        NOT_ALONE.iter().for_each(|(name, value)| set(name, value.into()));
    }
    if pmi_fd.is_some() && (facts.pmix.is_some() || spec.map.world_size() > 1) {
        // MPICH 5 needs to know which one to use when it finds both a PMI-1 server and a namespace.
        set("MPIR_CVAR_PMI_VERSION", "1".into());
    }
    if let Some(per_rank) = spec.gpus_per_rank {
        debug_assert_eq!(place.node, facts.node, "a rank is started on its own node");
        for slice in gpu_masks(spec, app, place.local_rank, per_rank) {
            let devices = slice.devices.join(&b","[..]);
            env.insert(slice.variable.into(), OsString::from_vec(devices));
        }
    }
    let filled = fill(spec, facts, app, rank, &env);
    env.extend(filled);
    env
}

/// The variables that the user set to a different value for each rank. The last edit of a name counts; for protected
/// names `own` counts.
fn fill(
    spec: &JobSpec,
    facts: &NodeFacts,
    app: &App,
    rank: Rank,
    own: &BTreeMap<OsString, OsString>,
) -> Vec<(OsString, OsString)> {
    let mut filled = Vec::new();
    for (i, edit) in app.env.iter().enumerate() {
        let EnvEdit::Fill { name, value } = edit else { continue };
        let is_ours = || {
            let shared = shared_variables(spec, facts, 1);
            own.contains_key(name) || shared.iter().any(|(have, _)| *have == *name)
        };
        if app.env[i + 1..].iter().any(|edit| edit.is_of(name))
            || (name.to_str().is_some_and(is_protected) && is_ours())
        {
            continue;
        }
        let mut value = spec.expand(value, rank);
        if let (true, Some(hook)) = (name == "PYTHONPATH", &facts.hook) {
            prepend_hook(&mut value, hook);
        }
        if let (true, Some(library)) = (name == "LD_PRELOAD" && spec.io.buffer != Buffer::Program, &facts.stdbuf) {
            append_stdbuf(&mut value, library);
        }
        filled.push((name.clone(), value));
    }
    filled
}

/// Open MPI 1.7 to 4 reads this file if it has decided to be a singleton, and `MPI_Init` fails. Whatever made it decide so, a rank of a
/// larger world is then not alone without a word.
const NO_SINGLETON: (&str, &str) = ("OMPI_MCA_ess_singleton_server", "file:rankrun-offers-no-pmix");

/// Prevents ranks of Open MPI from running as singletons where they are not offered PMIx (`--mpi pmi1`): `MPI_Init` then fails. It does not
/// affect programs that never call `MPI_Init`, nor Open MPI's own `mpiexec` in a rank: `mpiexec` sets the first variable
/// for its ranks, and they do not read the second.
const NOT_ALONE: &[(&str, &str)] = &[
    // Open MPI 5: PMIx_Init finds a namespace without a rank, so that it is not a singleton.
    ("PMIX_NAMESPACE", "rankrun-offers-no-pmix"),
    NO_SINGLETON,
];

/// Makes a rank that waits yield its CPU, on a node with more ranks than CPUs. MPICH yields always.
const OVERSUBSCRIBED: &[(&str, &str)] = &[
    // Open MPI 4.1: as mpirun sets it. Open MPI 5 asks its PMIx server.
    ("OMPI_MCA_mpi_oversubscribe", "1"),
    // Intel MPI 2021.18 turns its wait mode on if there are more local ranks than logical CPUs, which it knows from Hydra alone
    // (`I_MPI_INFO_LCPU`, the number in `I_MPI_PIN_MAPPING`). Those count the CPUs of the machine, not those that the job may use.
    ("I_MPI_WAIT_MODE", "1"),
];

/// Makes threads of OpenMP sleep while they wait, where a node has fewer CPUs than the user wants threads. libgomp spins long as soon as one rank
/// alone has a CPU for each of its threads: with 2 ranks of 2 threads on 2 CPUs a step took 100 times as long.
const CROWDED_THREADS: (&str, &str) = ("OMP_WAIT_POLICY", "passive");

/// Keeps MPI libraries from binding ranks that we have bound.
const BOUND: &[(&str, &str)] = &[
    // Open MPI 4.1: as mpirun sets it.
    ("OMPI_MCA_orte_bound_at_launch", "1"),
    // MVAPICH 2, and 3 and later: they do not look at the mask.
    ("MV2_ENABLE_AFFINITY", "0"),
    ("MVP_ENABLE_AFFINITY", "0"),
];

/// Where torch's `@record` writes the exception of a rank.
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// The error file of a rank: where the user wants it, or below the job's private directory.
pub fn error_file(spec: &JobSpec, runtime_dir: &OsStr, rank: Rank) -> OsString {
    if let Some(file) = &spec.error_file {
        return spec.expand(file, rank);
    }
    let mut path = runtime_dir.to_owned();
    path.push(match rank.group() {
        GroupId(0) => format!("/error-{}.json", rank.number()),
        group => format!("/error-{group}-{}.json", rank.number()),
    });
    path
}

/// What rankrun sets for all ranks of a node alike.
fn shared_variables(spec: &JobSpec, facts: &NodeFacts, local_size: u32) -> Vec<(&'static str, OsString)> {
    let number = |n: u32| OsString::from(n.to_string());
    let world = spec.map.world_size();
    let nodes = spec.map.node_count();
    let mut shared = vec![
        ("RANKRUN_JOB_ID", OsString::from(&spec.job.0)),
        ("RANKRUN_WORLD_SIZE", number(world)),
        ("RANKRUN_LOCAL_WORLD_SIZE", number(local_size)),
        ("RANKRUN_NODE_RANK", number(facts.node.0)),
        ("RANKRUN_NNODES", number(nodes)),
        ("RANKRUN_ATTEMPT", number(spec.attempt.0)),
        ("MPI_LOCALNRANKS", number(local_size)),
        ("WORLD_SIZE", number(world)),
        ("LOCAL_WORLD_SIZE", number(local_size)),
        // For torchrun a group is an agent, that is, a node. There is one role, named "default".
        ("GROUP_RANK", number(facts.node.0)),
        ("GROUP_WORLD_SIZE", number(nodes)),
        ("ROLE_WORLD_SIZE", number(world)),
        ("ROLE_NAME", "default".into()),
        ("TORCHELASTIC_RESTART_COUNT", number(spec.attempt.0)),
        ("TORCHELASTIC_MAX_RESTARTS", number(spec.restart.budget.most())),
        ("TORCHELASTIC_RUN_ID", OsString::from(&spec.job.0)),
        // The default of torchrun 2.15's --signals-to-handle.
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT".into()),
    ];
    if let Some(socket) = &facts.socket {
        shared.push(("RANKRUN_SOCKET", socket.clone()));
    }
    if spec.mpi != MpiMode::None {
        // Scripts around MPI programs choose a GPU by these (`CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK`). No MPI takes them for another
        // launcher's: mpi4py warns of them only where PMI_SIZE is not set.
        shared.extend([("OMPI_COMM_WORLD_SIZE", number(world)), ("OMPI_COMM_WORLD_LOCAL_SIZE", number(local_size))]);
    }
    if let Some(pmix) = &facts.pmix {
        let namespace = crate::pmix::namespace(&spec.job, spec.attempt);
        shared.extend(crate::pmix::environment(pmix, &crate::pmix::of_group(&namespace, spec.group)));
    }
    match &facts.rendezvous {
        Some(rendezvous) => shared.extend(rendezvous.shared()),
        None => shared.push(("TORCHELASTIC_USE_AGENT_STORE", "False".into())),
    }
    shared
}

/// Whether rankrun's value of this name overrides the user's edits.
fn is_protected(name: &str) -> bool {
    name.starts_with("PMI_") || name.starts_with("RANKRUN_")
}

/// Sets the buffering that the user wants in libc, through coreutils' preloaded library.
fn preload_stdbuf(env: &mut BTreeMap<OsString, OsString>, buffer: Buffer, facts: &NodeFacts) {
    let mode = match buffer {
        Buffer::Program => return,
        Buffer::Line => "L",
        Buffer::None => "0",
    };
    let Some(library) = &facts.stdbuf else {
        return;
    };
    append_stdbuf(env.entry("LD_PRELOAD".into()).or_default(), library);
    env.insert("_STDBUF_O".into(), mode.into());
    env.insert("_STDBUF_E".into(), mode.into());
}

fn append_stdbuf(preload: &mut OsString, library: &OsStr) {
    // Last, as stdbuf(1) does: a library that must be first, such as a sanitizer's, stays first.
    if !preload.is_empty() {
        preload.push(":");
    }
    preload.push(library);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rankmap::RankMap;
    use crate::spec::job::{MpiMode, TtyGrant};
    use crate::template::Template;

    fn spec(size: u32, base: &[(&str, &str)], edits: Vec<EnvEdit>) -> JobSpec {
        JobSpec::sample(size, base, edits)
    }

    fn facts() -> NodeFacts {
        NodeFacts {
            node: NodeRank(0),
            cpus: 16,
            bound: Vec::new(),
            rendezvous: Rendezvous::new("127.0.0.1", &[41000, 41001], true),
            stdbuf: Some("/usr/libexec/coreutils/libstdbuf.so".into()),
            socket: Some("/tmp/rankrun-0/7f3a91c2/worker".into()),
            hook: None,
            pmix: None,
            runtime_dir: None,
        }
    }

    fn set(name: &str, value: &str) -> EnvEdit {
        EnvEdit::Set { name: name.into(), value: value.into() }
    }

    fn remove(name: &str) -> EnvEdit {
        EnvEdit::Remove { name: name.into() }
    }

    /// The environment of a rank, as the agent puts it together.
    fn whole(spec: &JobSpec, rank: u32, pmi_fd: Option<i32>) -> BTreeMap<String, String> {
        let mut env = app_environment(spec, &facts(), AppIndex(0));
        env.extend(rank_environment(spec, &facts(), Rank(rank), pmi_fd));
        let text = |text: OsString| text.into_string().expect("the tests use UTF-8");
        env.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn get<'a>(env: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
        env.get(name).map(String::as_str)
    }

    #[test]
    fn breakpoint_stops_only_the_rank_that_has_the_terminal() {
        let mut spec = spec(3, &[("PYTHONBREAKPOINT", "ipdb.set_trace")], vec![]);
        let of = |spec: &JobSpec, rank| get(&whole(spec, rank, None), "PYTHONBREAKPOINT").map(str::to_owned);
        assert_eq!(of(&spec, 0).as_deref(), Some("ipdb.set_trace"), "without --tty it is left alone");
        spec.io.tty = Some(TtyGrant { rank: Rank(1), stdin: true, stdout: true, stderr: true, foreground: true });
        let values: Vec<_> = (0..3).map(|rank| of(&spec, rank)).collect();
        assert_eq!(values, [Some("0".into()), Some("ipdb.set_trace".into()), Some("0".into())]);
        spec.apps[0].env = vec![set("PYTHONBREAKPOINT", "web_pdb.set_trace")];
        assert_eq!(of(&spec, 0).as_deref(), Some("web_pdb.set_trace"), "-x decides");
    }

    #[test]
    fn a_rank_of_open_mpi_is_not_alone_unless_it_is_meant_to_be() {
        let names = |spec: &JobSpec, pmi_fd| -> Vec<String> {
            let env = whole(spec, 0, pmi_fd);
            NOT_ALONE.iter().filter(|(name, _)| env.contains_key(*name)).map(|(name, _)| (*name).to_owned()).collect()
        };
        assert_eq!(names(&spec(2, &[], vec![]), Some(9)).len(), NOT_ALONE.len());
        assert_eq!(names(&spec(1, &[], vec![]), Some(9)), [""; 0], "it is alone");
        assert_eq!(names(&spec(2, &[], vec![]), None), [""; 0], "--mpi none");
        let edited = spec(2, &[], vec![remove("PMIX_*"), set("MPIR_CVAR_PMI_VERSION", "2")]);
        assert_eq!(names(&edited, Some(9)), ["OMPI_MCA_ess_singleton_server"]);
        assert_eq!(get(&whole(&edited, 0, Some(9)), "MPIR_CVAR_PMI_VERSION"), Some("2"));
        let outer: Vec<(&str, &str)> = NOT_ALONE.to_vec();
        assert_eq!(names(&spec(2, &outer, vec![]), None), [""; 0], "an inner job with --mpi none");
    }

    #[test]
    fn a_rank_of_open_mpi_finds_the_server_of_its_node() {
        let pmix = crate::pmix::Facts { port: 4711, directory: "/run/pmix".into(), host: "node1".to_owned() };
        let facts = NodeFacts { pmix: Some(pmix), ..facts() };
        let outer = [("PMIX_RANK", "7"), ("PMIX_SERVER_URI41", "of.another;tcp4://127.0.0.1:1")];
        let alone = self::spec(1, &outer, vec![]);
        let spec = self::spec(2, &outer, vec![]);
        let mut env = app_environment(&spec, &facts, AppIndex(0));
        env.extend(rank_environment(&spec, &facts, Rank(0), Some(9)));
        let get = |name: &str| env.get(OsStr::new(name)).and_then(|value| value.to_str());
        for name in ["PMIX_SERVER_URI3", "PMIX_SERVER_URI41", "PMIX_SERVER_URI61"] {
            assert_eq!(get(name), Some("rankrun-server.0;tcp4://127.0.0.1:4711"));
        }
        assert_eq!((get("PMIX_RANK"), get("PMIX_NAMESPACE")), (Some("0"), Some("rankrun-7f3a91c2.0")));
        assert_eq!(get("MPIR_CVAR_PMI_VERSION"), Some("1"), "MPICH takes the other one");
        assert_eq!(get("OMPI_MCA_ess"), Some("pmi"));
        assert!(get("OMPI_MCA_ess_singleton_server").is_some(), "MPI_Init fails where all this does not help");
        let env = rank_environment(&alone, &facts, Rank(0), Some(9));
        assert!(!env.contains_key(OsStr::new("OMPI_MCA_ess_singleton_server")), "a world of one rank");
    }

    #[test]
    fn no_launcher_that_open_mpi_4_may_see_around_a_rank_makes_it_a_singleton() {
        let pmix = crate::pmix::Facts { port: 4711, directory: "/run/pmix".into(), host: "node1".to_owned() };
        let facts = NodeFacts { pmix: Some(pmix), ..facts() };
        let outer = [("OMPI_MCA_schizo", "slurm"), ("OMPI_MCA_pmix", "s2"), ("OMPI_MCA_ess", "singleton")];
        let env = app_environment(&spec(2, &outer, vec![]), &facts, AppIndex(0));
        let excluded = |name: &str| {
            let value = env.get(OsStr::new(name)).and_then(|value| value.to_str()).unwrap_or_default();
            value.strip_prefix('^').unwrap_or_default().split(',').map(str::to_owned).collect::<Vec<_>>()
        };
        // All of orte/mca/schizo in 4.1 but `ompi`, and of opal/mca/pmix but `pmix3x`, `ext3x` and `isolated`.
        assert_eq!(excluded("OMPI_MCA_schizo"), ["alps", "flux", "jsm", "moab", "orte", "singularity", "slurm"]);
        assert_eq!(excluded("OMPI_MCA_pmix"), ["cray", "flux", "s1", "s2"]);
    }

    #[test]
    fn a_rank_of_a_job_with_a_trace_gets_its_own_span_as_parent() {
        let parent = ("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let state = ("TRACESTATE", "vendor=1");
        let traced = |base: &[(&str, &str)], edits| {
            let spec = spec(2, base, edits);
            let trace = crate::trace::Trace::of_environment(&spec.job, std::time::Duration::ZERO, &spec.base_env);
            JobSpec { trace: Some(trace), ..spec }
        };
        let both = |spec: &JobSpec, rank| {
            let env = whole(spec, rank, None);
            ["TRACEPARENT", "TRACESTATE"].map(|name| get(&env, name).map(str::to_owned))
        };
        let without = both(&spec(2, &[parent, state], vec![]), 1);
        assert_eq!(without, [Some(parent.1.to_owned()), Some(state.1.to_owned())], "nothing is recorded");
        let inner = traced(&[parent, state], vec![]);
        let worker = WorkerId { rank: Rank(1), attempt: inner.attempt };
        let own = inner.trace.as_ref().map(|trace| trace.traceparent(Part::Rank(worker)));
        assert!(own.as_ref().is_some_and(|own| own.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-")));
        assert_eq!(both(&inner, 1), [own, Some(state.1.to_owned())]);
        assert_ne!(both(&inner, 0), both(&inner, 1));
        let again = JobSpec { attempt: crate::ids::Attempt(1), ..inner.clone() };
        assert_ne!(both(&inner, 0), both(&again, 0));
        assert_eq!(both(&traced(&[state], vec![]), 0)[1], None, "it belongs to another trace");
        let edited = traced(&[parent], vec![set("TRACEPARENT", "mine")]);
        assert_eq!(both(&edited, 0)[0].as_deref(), Some("mine"), "-x decides");
        assert_eq!(both(&traced(&[parent], vec![remove("TRACE*")]), 0), [None, None]);
    }

    #[test]
    fn a_rank_is_told_who_it_is_in_every_dialect() {
        let env = whole(&spec(8, &[("PATH", "/bin")], vec![]), 5, Some(9));
        let lines: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        insta::assert_snapshot!(lines.join("\n"), @"
        GFORTRAN_UNBUFFERED_PRECONNECTED=y
        GROUP_RANK=0
        GROUP_WORLD_SIZE=1
        LOCAL_RANK=5
        LOCAL_WORLD_SIZE=8
        MASTER_ADDR=127.0.0.1
        MASTER_PORT=41000
        MPIR_CVAR_PMI_VERSION=1
        MPI_LOCALNRANKS=8
        MPI_LOCALRANKID=5
        OMPI_COMM_WORLD_LOCAL_RANK=5
        OMPI_COMM_WORLD_LOCAL_SIZE=8
        OMPI_COMM_WORLD_NODE_RANK=5
        OMPI_COMM_WORLD_RANK=5
        OMPI_COMM_WORLD_SIZE=8
        OMPI_MCA_ess_singleton_server=file:rankrun-offers-no-pmix
        OMP_NUM_THREADS=2
        PATH=/bin
        PMIX_NAMESPACE=rankrun-offers-no-pmix
        PMI_FD=9
        PMI_RANK=5
        PMI_SIZE=8
        PYTHONFAULTHANDLER=1
        PYTHONUNBUFFERED=1
        RANK=5
        RANKRUN_ATTEMPT=0
        RANKRUN_JAX_COORDINATOR=127.0.0.1:41001
        RANKRUN_JAX_LOCAL_DEVICE=5
        RANKRUN_JOB_ID=7f3a91c2
        RANKRUN_LOCAL_RANK=5
        RANKRUN_LOCAL_WORLD_SIZE=8
        RANKRUN_NNODES=1
        RANKRUN_NODE_RANK=0
        RANKRUN_RANK=5
        RANKRUN_SOCKET=/tmp/rankrun-0/7f3a91c2/worker
        RANKRUN_WORLD_SIZE=8
        ROLE_NAME=default
        ROLE_RANK=5
        ROLE_WORLD_SIZE=8
        TORCHELASTIC_MAX_RESTARTS=0
        TORCHELASTIC_RESTART_COUNT=0
        TORCHELASTIC_RUN_ID=7f3a91c2
        TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
        TORCHELASTIC_USE_AGENT_STORE=True
        TORCH_NCCL_ASYNC_ERROR_HANDLING=1
        WORLD_SIZE=8
        ");
    }

    #[test]
    fn outer_identities_are_removed() {
        for name in [
            "SLURM_PROCID",
            "SLURM_STEP_NODELIST",
            "SLURM_STEPID",
            "SLURM_GTIDS",
            "PMI_RANK",
            "PMI_HOSTNAME",
            "PMIX_NAMESPACE",
            "PMIX_SERVER_URI41",
            "OMPI_UNIVERSE_SIZE",
            "OMPI_FILE_LOCATION",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_ess_num_procs",
            "OMPI_MCA_orte_hnp_uri",
            "OMPI_MCA_orte_top_session_dir",
            "OMPI_MCA_pmix",
            "PRTE_MCA_prte_hnp_uri",
            "PRTE_LAUNCHED",
            "HYDI_CONTROL_FD",
            "HYDRA_BSTRAP_NODE_ID",
            "I_MPI_HYDRA_TOPOLIB",
            "I_MPI_INFO_NP",
            "I_MPI_PIN_MAPPING",
            "I_MPI_PMI_LIBRARY",
            "TORCHELASTIC_ERROR_FILE",
        ] {
            let env = whole(&spec(1, &[(name, "outer")], vec![]), 0, None);
            assert_eq!(get(&env, name), None, "{name} leaks");
        }
    }

    #[test]
    fn an_outer_rankrun_is_not_mistaken_for_this_one() {
        let outer = [
            ("RANKRUN_JOB_ID", "outer"),
            ("RANKRUN_RANK", "7"),
            ("RANK", "7"),
            ("PMI_SIZE", "8"),
            ("RANKRUN_GRACE", "1s"),
        ];
        let env = whole(&spec(2, &outer, vec![]), 1, None);
        assert_eq!(get(&env, "RANKRUN_JOB_ID"), Some("7f3a91c2"));
        assert_eq!(get(&env, "RANKRUN_RANK"), Some("1"));
        assert_eq!(get(&env, "RANK"), Some("1"));
        assert_eq!(get(&env, "PMI_SIZE"), None);
        assert_eq!(get(&env, "RANKRUN_GRACE"), Some("1s"), "a setting is no identity");
    }

    #[test]
    fn allocations_and_tuning_are_kept() {
        for name in [
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_CPUS_PER_TASK",
            "MPIR_CVAR_CH4_OFI_ENABLE_RMA",
            "I_MPI_FABRICS",
            "I_MPI_PIN",
            "UCX_TLS",
            "OMPI_CC",
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
            "OPAL_PREFIX",
            "PMIX_PREFIX",
            "PMIX_DEBUG",
            "PRTE_ALLOW_RUN_AS_ROOT",
            "PRTE_MCA_plm",
            "PMI_NO_FORK",
            "PMI_MMAP_SYNC_WAIT_TIME",
            "HYDRA_IFACE",
            "SLURM_PMIX_TIMEOUT",
            "OMPI_MCA_btl",
            "OMPI_MCA_orte_base_help_aggregate",
            "OMPI_MCA_orte_tmpdir_base",
            "OMPI_MCA_pmix_base_async_modex",
            "PRTE_MCA_prte_tmpdir_base",
            "PMIX_MCA_gds",
            "NCCL_DEBUG",
            "RANKED",
        ] {
            let env = whole(&spec(1, &[(name, "kept")], vec![]), 0, None);
            assert_eq!(get(&env, name), Some("kept"), "{name} is lost");
        }
    }

    #[test]
    fn defaults_fill_only_what_is_unset() {
        let base = [("OMP_NUM_THREADS", "3"), ("PYTHONUNBUFFERED", ""), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")];
        let env = whole(&spec(2, &base, vec![]), 0, None);
        assert_eq!(get(&env, "OMP_NUM_THREADS"), Some("3"));
        assert_eq!(get(&env, "PYTHONUNBUFFERED"), Some(""));
        assert_eq!(get(&env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), Some("0"));
    }

    #[test]
    fn more_ranks_than_cpus_still_get_one_thread_each() {
        assert_eq!(get(&whole(&spec(64, &[], vec![]), 0, None), "OMP_NUM_THREADS"), Some("1"));
    }

    #[test]
    fn ranks_that_wait_yield_where_they_outnumber_the_cpus_of_their_node() {
        let of = |spec: &JobSpec| {
            let env = whole(spec, 0, Some(9));
            ["I_MPI_WAIT_MODE", "OMPI_MCA_mpi_oversubscribe"].map(|name| get(&env, name).map(str::to_owned))
        };
        let [on, off] = [Some("1".to_owned()), Some("0".to_owned())];
        assert_eq!(of(&spec(16, &[], vec![])), [None, None], "each rank has a CPU");
        assert_eq!(of(&spec(17, &[], vec![])), [on.clone(), on.clone()]);
        let users = [("I_MPI_WAIT_MODE", "0"), ("OMPI_MCA_mpi_oversubscribe", "0")];
        assert_eq!(of(&spec(17, &users, vec![])), [off.clone(), off.clone()], "the user's own");
        assert_eq!(of(&spec(17, &[], vec![set("I_MPI_WAIT_MODE", "0")])), [off, on]);
        let without_mpi = JobSpec { mpi: MpiMode::None, ..spec(17, &[], vec![]) };
        assert_eq!(of(&without_mpi), [None, None]);
        let homes: Vec<NodeRank> = (0..17).map(|rank| NodeRank(rank / 16)).collect();
        let map = RankMap::of_nodes(vec!["a".to_owned(), "b".to_owned()], &homes, &[17]);
        let two_nodes = JobSpec { map, ..spec(17, &[], vec![]) };
        assert_eq!(of(&two_nodes), [None, None], "node 0 has 16 of the ranks");
    }

    #[test]
    fn ranks_that_are_bound_to_the_same_cpus_share_them_out_to_their_threads() {
        use crate::placement::Binding;
        let of = |bound: &[&str], rank: u32, width| {
            let bound: Vec<CpuSet> = bound.iter().map(|list| list.parse().expect("a list")).collect();
            let binding = Binding { width, ..Binding::default() };
            let spec = JobSpec { binding, ..spec(bound.len() as u32, &[], vec![]) };
            let facts = NodeFacts { bound, ..facts() };
            rank_environment(&spec, &facts, Rank(rank), None).remove(OsStr::new("OMP_NUM_THREADS"))
        };
        assert_eq!(of(&["0-3", "4-7"], 1, None), Some("4".into()));
        assert_eq!(of(&["0-7", "0-7", "8-15", "8-15"], 1, None), Some("4".into()));
        assert_eq!(of(&["0", "0", "0"], 2, None), Some("1".into()));
        assert_eq!(of(&["0,8", "1,9"], 0, Some(Width::Count(1))), Some("1".into()), "of two threads of a core");
    }

    #[test]
    fn threads_that_outnumber_the_cpus_sleep_while_they_wait() {
        let of = |ranks, base: &[(&str, &str)], edits| {
            get(&whole(&spec(ranks, base, edits), 0, None), "OMP_WAIT_POLICY").map(str::to_owned)
        };
        assert_eq!(of(4, &[("OMP_NUM_THREADS", "4")], vec![]), None, "16 threads on 16 CPUs");
        assert_eq!(of(4, &[("OMP_NUM_THREADS", "5")], vec![]).as_deref(), Some("passive"));
        assert_eq!(of(4, &[], vec![set("OMP_NUM_THREADS", "5")]).as_deref(), Some("passive"));
        assert_eq!(of(17, &[("OMP_NUM_THREADS", "1")], vec![]), None, "nobody waits for a thread");
        let users = [("OMP_NUM_THREADS", "5"), ("OMP_WAIT_POLICY", "active")];
        assert_eq!(of(4, &users, vec![]).as_deref(), Some("active"));
    }

    #[test]
    fn scripts_of_open_mpi_know_their_rank_where_mpi_is_offered() {
        let names =
            |env: &BTreeMap<String, String>| env.keys().filter(|name| name.starts_with("OMPI_COMM_WORLD_")).count();
        let outer = [("OMPI_COMM_WORLD_RANK", "7"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "9")];
        let env = whole(&spec(2, &outer, vec![]), 1, Some(5));
        assert_eq!((names(&env), get(&env, "OMPI_COMM_WORLD_RANK")), (5, Some("1")));
        assert_eq!(get(&env, "OMPI_COMM_WORLD_LOCAL_SIZE"), Some("2"));
        let without_mpi = JobSpec { mpi: MpiMode::None, ..spec(2, &outer, vec![]) };
        assert_eq!(names(&whole(&without_mpi, 1, None)), 0, "nor those of an outer launcher");
        let edited = whole(&spec(2, &[], vec![remove("OMPI_COMM_*")]), 1, Some(5));
        assert_eq!(names(&edited), 0);
    }

    #[test]
    fn the_users_edits_win_over_ours() {
        let edits =
            vec![set("RANK", "mine"), set("WORLD_SIZE", "mine"), remove("TORCHELASTIC_*"), remove("OMP_NUM_THREADS")];
        let env = whole(&spec(2, &[], edits), 1, None);
        assert_eq!(get(&env, "RANK"), Some("mine"));
        assert_eq!(get(&env, "WORLD_SIZE"), Some("mine"));
        assert_eq!(get(&env, "TORCHELASTIC_RUN_ID"), None);
        assert_eq!(get(&env, "OMP_NUM_THREADS"), None);
    }

    #[test]
    fn a_value_with_fields_differs_from_rank_to_rank() {
        let fill =
            |name: &str, value: &str| EnvEdit::Fill { name: name.into(), value: Template::lenient(value.as_ref()) };
        let edits = vec![
            fill("OUT", "o.{rank}.{job}"),
            fill("GONE", "{rank}"),
            remove("GO*"),
            fill("RANK", "r{rank}"),
            fill("PYTHONPATH", "/lib/{node}"),
            fill("RANKRUN_RANK", "7{rank}"),
            fill("TWICE", "{rank}"),
            set("TWICE", "plain"),
        ];
        let mut facts = facts();
        facts.hook = Some("/hook".into());
        let spec = spec(2, &[("OUT", "outer"), ("PYTHONPATH", "/outer")], edits);
        let mut env = app_environment(&spec, &facts, AppIndex(0));
        assert!(!env.contains_key(OsStr::new("OUT")), "it is the rank's own");
        env.extend(rank_environment(&spec, &facts, Rank(1), None));
        let get = |name: &str| env.get(OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!(get("OUT"), Some("o.1.7f3a91c2"));
        assert_eq!(get("GONE"), None);
        assert_eq!(get("RANK"), Some("r1"));
        assert_eq!(get("PYTHONPATH"), Some("/hook:/lib/vm"));
        assert_eq!(get("RANKRUN_RANK"), Some("1"), "it ties the rank to its agent");
        assert_eq!(get("TWICE"), Some("plain"));
    }

    #[test]
    fn edits_cannot_touch_what_ties_a_rank_to_its_agent() {
        let edits = vec![set("PMI_RANK", "9"), set("RANKRUN_JOB_ID", "other"), remove("RANKRUN_*"), remove("PMI_*")];
        let env = whole(&spec(2, &[], edits), 1, Some(5));
        assert_eq!(get(&env, "PMI_RANK"), Some("1"));
        assert_eq!(get(&env, "RANKRUN_JOB_ID"), Some("7f3a91c2"));
        assert_eq!(get(&env, "RANKRUN_SOCKET"), Some("/tmp/rankrun-0/7f3a91c2/worker"));
    }

    #[test]
    fn an_empty_environment_still_has_what_rankrun_sets() {
        let edits = vec![set("A", "1"), remove("*"), set("B", "2")];
        let env = whole(&spec(2, &[("HOME", "/root"), ("A", "0")], edits), 1, Some(5));
        assert_eq!((get(&env, "HOME"), get(&env, "A"), get(&env, "B")), (None, None, Some("2")));
        for name in ["PMI_RANK", "RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "RANKRUN_SOCKET"] {
            assert!(get(&env, name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_last_edit_of_a_name_counts() {
        let env =
            whole(&spec(1, &[("A", "0"), ("AB", "0")], vec![set("A", "1"), remove("A*"), set("A", "2")]), 0, None);
        assert_eq!(get(&env, "A"), Some("2"));
        assert_eq!(get(&env, "AB"), None);
    }

    #[test]
    fn buffer_preloads_after_what_is_preloaded_already() {
        let mut spec = spec(1, &[("LD_PRELOAD", "libasan.so")], vec![]);
        spec.io.buffer = Buffer::Line;
        let env = whole(&spec, 0, None);
        assert_eq!(get(&env, "LD_PRELOAD"), Some("libasan.so:/usr/libexec/coreutils/libstdbuf.so"));
        assert_eq!((get(&env, "_STDBUF_O"), get(&env, "_STDBUF_E")), (Some("L"), Some("L")));
    }

    #[test]
    fn gpu_masks_are_sliced_by_local_rank() {
        let mut spec = spec(2, &[("CUDA_VISIBLE_DEVICES", "GPU-a,3,5,7"), ("ROCR_VISIBLE_DEVICES", "0,1,2,3")], vec![]);
        spec.gpus_per_rank = Some(2);
        let env = whole(&spec, 1, None);
        assert_eq!(get(&env, "CUDA_VISIBLE_DEVICES"), Some("5,7"));
        assert_eq!(get(&env, "ROCR_VISIBLE_DEVICES"), Some("0,1,2,3"), "HIP would apply both, one after the other");
        assert_eq!(get(&whole(&spec, 0, None), "CUDA_VISIBLE_DEVICES"), Some("GPU-a,3"));
    }

    #[test]
    fn ranks_that_see_the_same_gpus_use_one_each_in_jax() {
        let device = |spec: &JobSpec| {
            get(&whole(spec, spec.map.world_size() - 1, None), "RANKRUN_JAX_LOCAL_DEVICE").map(str::to_owned)
        };
        assert_eq!(device(&spec(2, &[("CUDA_VISIBLE_DEVICES", "4,5")], vec![])).as_deref(), Some("1"));
        assert_eq!(device(&spec(1, &[("CUDA_VISIBLE_DEVICES", "4,5")], vec![])), None, "it is alone");
        let sliced = JobSpec { gpus_per_rank: Some(2), ..spec(2, &[], vec![]) };
        assert_eq!(device(&sliced), None, "it has its own");
        let value = Template::lenient("{local_rank}".as_ref());
        let filled = vec![EnvEdit::Fill { name: "CUDA_VISIBLE_DEVICES".into(), value }];
        assert_eq!(device(&spec(2, &[], filled)), None, "it has its own");
        assert_eq!(device(&spec(1, &[("RANKRUN_JAX_LOCAL_DEVICE", "7")], vec![])), None, "an outer one");
    }

    #[test]
    fn tensorflow_is_told_only_if_that_is_wanted_and_the_user_has_the_last_word() {
        let outer = [("TF_CONFIG", "outer")];
        assert_eq!(get(&whole(&spec(2, &outer, vec![]), 1, None), "TF_CONFIG"), None);
        let mut facts = facts();
        facts.rendezvous = Rendezvous::new("127.0.0.1", &[41000, 41001, 41002, 41003], true);
        let told = |edits| rank_environment(&spec(2, &outer, edits), &facts, Rank(1), None);
        assert!(told(vec![]).contains_key(OsStr::new("TF_CONFIG")));
        assert!(!told(vec![set("TF_CONFIG", "mine")]).contains_key(OsStr::new("TF_CONFIG")), "the app's stays");
    }

    #[test]
    fn without_a_mask_devices_are_counted_from_zero() {
        let mut spec = spec(3, &[], vec![]);
        spec.gpus_per_rank = Some(2);
        let env = whole(&spec, 2, None);
        assert_eq!(get(&env, "CUDA_VISIBLE_DEVICES"), Some("4,5"));
        assert_eq!(get(&env, "ZE_AFFINITY_MASK"), Some("4,5"));
        assert_eq!(get(&env, "HIP_VISIBLE_DEVICES"), None);
        assert_eq!(check_gpus(&spec, NodeRank(0)), Ok(()));
    }

    #[test]
    fn a_mask_that_the_user_gives_is_sliced_too() {
        let mut spec = spec(2, &[("CUDA_VISIBLE_DEVICES", "0")], vec![set("CUDA_VISIBLE_DEVICES", "6,7")]);
        spec.gpus_per_rank = Some(1);
        assert_eq!(get(&whole(&spec, 1, None), "CUDA_VISIBLE_DEVICES"), Some("7"));
    }

    #[test]
    fn a_mask_that_is_too_short_is_named_with_the_first_rank_that_lacks_devices() {
        let mut spec = spec(3, &[("ROCR_VISIBLE_DEVICES", "0,1,2")], vec![]);
        spec.gpus_per_rank = Some(2);
        let error = check_gpus(&spec, NodeRank(0)).expect_err("3 devices are too few for 3 ranks");
        assert_eq!(error.to_string(), "ROCR_VISIBLE_DEVICES lists too few GPUs: rank 1 needs 2, and 1 are left for it");
    }
}
