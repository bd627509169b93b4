//! `--dry-run`: prints what would be started.
//!
//! Ranks that run the same command are one block, in which a variable that differs from rank to rank is shown once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::PathBuf;

use rankrun_agent::Preview;
use rankrun_core::env::{NodeFacts, app_environment, rank_environment};
use rankrun_core::hosts;
use rankrun_core::job::MpiMode;
use rankrun_core::rankmap::Place;
use rankrun_core::rendezvous::Rendezvous;
use rankrun_core::trace::TRACEPARENT;
use rankrun_core::{JobId, JobSpec, NodeRank, Rank, RankSet, Template, pmix};
use rankrun_front::{Hosts, NodeTarget, Plan};

use crate::message::Problem;
use crate::settings::Given;
use crate::words::{quote, quote_all};
use crate::{ask, plan, program};

/// How many different values of a variable are shown before the middle ones are left out.
const SHOWN_VALUES: usize = 4;

/// How many nodes are shown before the others are left out.
const SHOWN_NODES: usize = 32;

/// How many ranks are shown with their CPUs.
const SHOWN_RANKS: usize = 16;

/// Where ranks on this machine alone meet. The ports are known when the job starts.
const LOOPBACK: &str = "127.0.0.1";

type Env = BTreeMap<OsString, OsString>;

/// Describes a plan. `cpus` is the number of CPUs that the job may use; `whole` shows the whole environment.
///
/// # Errors
///
/// The ranks cannot be bound to CPUs as the user wants it.
pub(crate) fn describe(plan: &Plan, given: &[Given], cpus: u32, whole: bool) -> Result<String, Problem> {
    // A value that is known only at the start is shown by its name.
    let spec = JobSpec { job: JobId("<job>".to_owned()), ..plan.spec.clone() };
    // Where several nodes meet is known only at the start too.
    let meeting = match &plan.hosts.targets[..] {
        [] | [NodeTarget { is_local: true, .. }] => LOOPBACK.to_owned(),
        [first, ..] => format!("<address of {}>", first.name),
    };
    let here = plan.hosts.targets.iter().position(|target| target.is_local).map(|node| NodeRank(node as u32));
    let binding = here.map(|here| plan::preview(&spec, here)).transpose()?;
    let bound = match &binding {
        Some(Preview::Bound(ranks)) if plan.hosts.targets.len() == 1 => {
            ranks.iter().map(|(cpus, _)| cpus.clone()).collect()
        }
        Some(Preview::Bound(_) | Preview::Free(_)) | None => Vec::new(),
    };
    let facts = NodeFacts {
        node: NodeRank(0),
        cpus,
        bound,
        rendezvous: Rendezvous::new(
            &meeting,
            &vec![0; Rendezvous::port_count(&spec)],
            Rendezvous::wants_agent_store(&spec),
        ),
        stdbuf: Some("<libstdbuf.so>".into()),
        socket: Some("<socket>".into()),
        hook: spec.hook.then(|| "<hook>".into()),
        pmix: spec.mpi.offers_pmix().then(|| pmix::Facts {
            port: 0,
            directory: "<directory>".into(),
            host: "<node>".to_owned(),
        }),
        runtime_dir: Some("<directory>".into()),
    };
    let blocks: Vec<Block> =
        blocks(&spec).into_iter().map(|places| describe_block(&spec, &plan.hosts, &facts, &places, whole)).collect();
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = header(&mut text, &spec, &plan.hosts, given, whole);
    let _ = here.zip(binding).map_or(Ok(()), |(here, binding)| write_binding(&mut text, &spec, here, &binding, whole));
    let _ = write_blocks(&mut text, &blocks, whole);
    Ok(text)
}

/// Which CPUs the ranks of this machine get.
fn write_binding(
    text: &mut String,
    spec: &JobSpec,
    here: NodeRank,
    binding: &Preview,
    whole: bool,
) -> std::fmt::Result {
    let of_node = match spec.map.node_count() {
        1 => String::new(),
        _ => format!(" on {}", spec.map.node_name(here)),
    };
    match binding {
        Preview::Free(None) => Ok(()),
        Preview::Free(Some(why)) => writeln!(text, "\nCPUs{of_node}\n  not bound: {why}"),
        Preview::Bound(ranks) => {
            writeln!(text, "\nCPUs{of_node}, if no other job has them")?;
            let shown = if whole { usize::MAX } else { SHOWN_RANKS };
            for (place, (_, picture)) in spec.map.on_node(here).zip(ranks).take(shown) {
                writeln!(text, "  rank {}  {picture}", place.rank)?;
            }
            match ranks.len().checked_sub(shown).filter(|more| *more > 0) {
                Some(more) => writeln!(text, "  and {more} more ranks; -v shows all"),
                None => Ok(()),
            }
        }
    }
}

/// The text about ranks that run the same command.
struct Block {
    /// The ranks, the command, the program and the directory.
    lines: Vec<String>,
    set: BTreeMap<OsString, String>,
    removed: Vec<OsString>,
}

fn header(text: &mut String, spec: &JobSpec, hosts: &Hosts, given: &[Given], whole: bool) -> std::fmt::Result {
    let count = |n: u32, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let map = &spec.map;
    write!(text, "{} on {}", count(map.world_size(), "rank"), count(map.node_count(), "node"))?;
    if hosts.targets.len() > 1 {
        write!(text, ": {}", hosts::fold(hosts.targets.iter().map(|target| &target.name)))?;
    }
    writeln!(text)?;
    let mut ranks: Vec<Vec<Rank>> = vec![Vec::new(); hosts.targets.len()];
    for place in map.places() {
        ranks[place.node.index()].push(place.rank);
    }
    let shown = if whole { usize::MAX } else { SHOWN_NODES };
    for (target, ranks) in hosts.targets.iter().zip(ranks).take(shown) {
        let user = target.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let here = if target.is_local && hosts.targets.len() > 1 { " (this machine)" } else { "" };
        writeln!(text, "  {user}{}: {}{here}", target.name, RankSet::of(ranks))?;
    }
    if let Some(more) = hosts.targets.len().checked_sub(shown).filter(|more| *more > 0) {
        writeln!(text, "  and {more} more nodes; -v shows all")?;
    }
    if !given.is_empty() {
        writeln!(text, "\nsettings")?;
        let written: Vec<String> =
            given.iter().map(|given| format!("{} = {}", given.key, quote(&given.text))).collect();
        let width = written.iter().map(|text| text.chars().count()).max().unwrap_or(0).min(48);
        for (written, given) in written.iter().zip(given) {
            writeln!(text, "  {written:width$}  # {}", given.origin)?;
        }
    }
    Ok(())
}

/// Ranks with the same command, by the first of them.
fn blocks(spec: &JobSpec) -> Vec<Vec<Place>> {
    let mut blocks: Vec<(Vec<usize>, Vec<Place>)> = Vec::new();
    for place in spec.map.places() {
        let wraps = spec.app(place.app).wraps.iter().enumerate();
        let applied: Vec<usize> = wraps.filter(|(_, wrap)| wrap.ranks.contains(place.rank)).map(|(i, _)| i).collect();
        let same = |(wraps, places): &&mut (Vec<usize>, Vec<Place>)| *wraps == applied && places[0].app == place.app;
        match blocks.iter_mut().find(same) {
            Some((_, places)) => places.push(*place),
            None => blocks.push((applied, vec![*place])),
        }
    }
    blocks.into_iter().map(|(_, places)| places).collect()
}

fn describe_block(spec: &JobSpec, hosts: &Hosts, facts: &NodeFacts, places: &[Place], whole: bool) -> Block {
    let app_index = places[0].app;
    let app = spec.app(app_index);
    let first = places[0].rank;
    let program = spec.command(first).swap_remove(0);
    let own_directory = PathBuf::from(spec.directory(first));
    // A value that differs within a block is shown by its name.
    let (command, directory) = match places {
        [_] => (spec.command(first), own_directory.clone()),
        _ => {
            let wraps = app.wraps.iter().filter(|wrap| wrap.ranks.contains(first)).flat_map(|wrap| &wrap.command);
            let command = wraps.map(Template::shown).chain(app.command.iter().cloned()).collect();
            (command, app.wdir.as_ref().map_or_else(|| spec.cwd.clone(), Template::shown).into())
        }
    };
    let Environments { shared, own } = environments(spec, facts, places);
    let path = shared.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let ranks = RankSet::of(places.iter().map(|place| place.rank));
    let mut lines = vec![
        format!("{} {ranks}", if places.len() == 1 { "rank" } else { "ranks" }),
        format!("  command    {}", quote_all(&command)),
    ];
    // On another machine it is looked up there.
    let is_here = hosts.targets.get(places[0].node.index()).is_some_and(|target| target.is_local);
    let find = || program::find(&program, path, &own_directory).ok().map(|found| found.into_os_string());
    if let Some(program) = is_here.then(|| ask::soon(find)).flatten().flatten() {
        lines.push(format!("  program    {}", program.display()));
    }
    lines.push(format!("  directory  {}", directory.display()));

    let base: Env = spec.base_env.iter().cloned().collect();
    let mut set: BTreeMap<OsString, String> = shared
        .iter()
        .filter(|(name, value)| whole || base.get(*name) != Some(*value))
        .map(|(name, value)| (name.clone(), known_later(name, value)))
        .collect();
    let names: BTreeSet<&OsString> = own.iter().flat_map(BTreeMap::keys).collect();
    for name in names {
        let values: Option<Vec<&OsString>> = own.iter().map(|env| env.get(name)).collect();
        if let Some(values) = values {
            set.insert(name.clone(), fold(name, &values, places, spec.map.world_size()));
        }
    }
    if !whole {
        fold_pmix(&mut set);
    }
    let is_gone = |name: &&OsString| !shared.contains_key(*name) && own.iter().all(|env| !env.contains_key(*name));
    let removed = base.keys().filter(is_gone).cloned().collect();
    Block { lines, set, removed }
}

/// The variables of ranks that run the same command.
struct Environments {
    /// Those that have the same value for all of them.
    shared: Env,
    /// The others, by rank.
    own: Vec<Env>,
}

fn environments(spec: &JobSpec, facts: &NodeFacts, places: &[Place]) -> Environments {
    let app = places[0].app;
    let mut nodes: BTreeMap<NodeRank, (NodeFacts, Env)> = BTreeMap::new();
    for node in places.iter().map(|place| place.node) {
        nodes.entry(node).or_insert_with(|| {
            let facts = NodeFacts { node, ..facts.clone() };
            let mut env = app_environment(spec, &facts, app);
            let with_more = app_environment(spec, &NodeFacts { cpus: u32::MAX, ..facts.clone() }, app);
            // The CPUs of other machines are not known here.
            let differs = |(name, value): &(&OsString, &mut OsString)| with_more.get(*name) != Some(&**value);
            if spec.map.node_count() > 1 {
                env.iter_mut().filter(differs).for_each(|(_, value)| *value = "<by the CPUs of the host>".into());
            }
            (facts, env)
        });
    }
    let mut shared = nodes.values().next().map(|(_, env)| env.clone()).unwrap_or_default();
    shared.retain(|name, value| nodes.values().all(|(_, env)| env.get(name) == Some(value)));
    let own = places.iter().filter_map(|place| {
        let (facts, env) = nodes.get(&place.node)?;
        let of_node = env.iter().filter(|(name, _)| !shared.contains_key(*name));
        let mut own: Env = of_node.map(|(name, value)| (name.clone(), value.clone())).collect();
        own.extend(rank_variables(spec, facts, place.rank));
        Some(own)
    });
    let own = own.collect();
    Environments { shared, own }
}

/// The many variables that name one server, as one line.
fn fold_pmix(set: &mut BTreeMap<OsString, String>) {
    const PREFIX: &str = "PMIX_";
    let before = set.len();
    set.retain(|name, _| !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    if set.len() < before {
        set.insert(format!("{PREFIX}*").into(), format!("<{} variables>", before - set.len()));
    }
}

/// Writes the blocks, with what they have in common after them.
fn write_blocks(text: &mut String, blocks: &[Block], whole: bool) -> std::fmt::Result {
    let [first, others @ ..] = blocks else { return Ok(()) };
    let in_all = |name: &OsString, value: &String| others.iter().all(|block| block.set.get(name) == Some(value));
    let common: BTreeMap<OsString, String> = match others {
        [] => BTreeMap::new(),
        _ => {
            first.set.iter().filter(|(name, value)| in_all(name, value)).map(|(n, v)| (n.clone(), v.clone())).collect()
        }
    };
    let removed_in_all =
        |name: &OsString| !others.is_empty() && blocks.iter().all(|block| block.removed.contains(name));
    let title = if whole { "variables" } else { "set" };
    for block in blocks {
        writeln!(text)?;
        block.lines.iter().try_for_each(|line| writeln!(text, "{line}"))?;
        let own = block.set.iter().filter(|(name, _)| !common.contains_key(*name));
        list(text, title, own.map(|(name, value)| format!("{}={value}", name.display())))?;
        let removed = block.removed.iter().filter(|name| !removed_in_all(name));
        list(text, "removed", removed.map(|name| name.display().to_string()))?;
    }
    if !common.is_empty() {
        writeln!(text, "\nall ranks")?;
        list(text, title, common.iter().map(|(name, value)| format!("{}={value}", name.display())))?;
        let removed = first.removed.iter().filter(|name| removed_in_all(name));
        list(text, "removed", removed.map(|name| name.display().to_string()))?;
    }
    Ok(())
}

fn list(text: &mut String, title: &str, items: impl Iterator<Item = String>) -> std::fmt::Result {
    for (i, item) in items.enumerate() {
        writeln!(text, "  {:<11}{item}", if i == 0 { title } else { "" })?;
    }
    Ok(())
}

fn rank_variables(spec: &JobSpec, facts: &NodeFacts, rank: Rank) -> Env {
    let pmi_fd = match spec.mpi {
        MpiMode::Auto | MpiMode::Pmi1 => Some(i32::MAX),
        MpiMode::Pmix | MpiMode::None => None,
    };
    rank_environment(spec, facts, rank, pmi_fd)
}

/// A value of one rank after another, as one text.
fn fold(name: &OsStr, values: &[&OsString], places: &[Place], world: u32) -> String {
    let all_are = |number: fn(&Place) -> u32| {
        world > 1 && values.iter().zip(places).all(|(value, place)| **value == number(place).to_string().as_str())
    };
    if name.to_string_lossy().contains("LOCAL") && all_are(|place| place.local_rank.0) {
        return "<local rank>".to_owned();
    }
    if all_are(|place| place.rank.number()) {
        return "<rank>".to_owned();
    }
    if name == TRACEPARENT {
        return "<span of the rank>".to_owned();
    }
    let mut texts: Vec<String> = values.iter().map(|value| known_later(name, value)).collect();
    texts.dedup();
    if texts.len() > SHOWN_VALUES {
        texts.splice(SHOWN_VALUES - 2..texts.len() - 1, ["...".to_owned()]);
    }
    texts.join(" | ")
}

/// A value, or its name if it is known only when the job starts.
fn known_later(name: &OsStr, value: &OsStr) -> String {
    match (name.to_str(), value.to_str()) {
        (Some("MASTER_PORT"), Some("0")) => "<port>".to_owned(),
        (Some("RANKRUN_JAX_COORDINATOR"), Some(text)) if text.ends_with(":0") => {
            format!("{}:<port>", text.trim_end_matches(":0"))
        }
        (Some("TF_CONFIG"), Some(text)) if text.contains(":0\"") => "<cluster>".to_owned(),
        (Some("PMI_FD"), _) => "<descriptor>".to_owned(),
        (_, Some(text)) if text.starts_with('<') && text.ends_with('>') => text.to_owned(),
        _ => quote(value),
    }
}
