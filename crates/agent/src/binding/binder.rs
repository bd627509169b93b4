//! Chooses the CPUs of each team's ranks, and holds them.

use std::collections::HashMap;
use std::path::Path;

use rankrun_core::env::first_gpus;
use rankrun_core::job::AgentEvent;
use rankrun_core::placement::{
    Choice, Claim, Free, Impossible, LeftAlone, MapBy, MemoryBinding, Place, Ranks, Taken, choose, left_alone, picture,
};
use rankrun_core::topology::{CpuSet, Device, DeviceKind, Level, Machine, devices};
use rankrun_core::{GroupId, JobSpec, NodeRank, Rank, WorkerId};
use rankrun_sys::{cpus, spawn};

use super::cores::Cores;
use super::here::{Here, allowed};
use crate::tidy::base_of;

/// What the ranks of a team get, by local rank; nothing where they are not bound.
#[derive(Default)]
pub(crate) struct Bound {
    pub(crate) cpus: Vec<CpuSet>,
    memory: Option<(MemoryBinding, Vec<Vec<u32>>)>,
    /// What the front is told.
    pub(crate) event: Option<AgentEvent>,
}

impl Bound {
    /// Where a rank is started.
    pub(crate) fn place(&self, local_rank: usize) -> Option<spawn::Place> {
        let cpus = self.cpus.get(local_rank)?.words().to_vec();
        let nodes = self.memory.as_ref().and_then(|(binding, nodes)| Some((*binding, nodes.get(local_rank)?)));
        let memory = nodes.filter(|(_, nodes)| !nodes.is_empty()).map(|(binding, nodes)| {
            let nodes = nodes.iter().copied().collect::<CpuSet>().words().to_vec();
            spawn::MemoryPlace { nodes, is_strict: binding == MemoryBinding::Bind }
        });
        Some(spawn::Place { cpus, memory })
    }
}

/// What the ranks of this machine would get if no other job ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preview {
    /// By local rank: the CPUs, and a picture of them.
    Bound(Vec<(CpuSet, String)>),
    /// Why they are not bound; `None`: the user does not want it, or one rank has the node.
    Free(Option<String>),
}

/// The CPUs that the ranks of a node would get on this machine.
///
/// # Errors
///
/// What the user asks for cannot be.
pub fn preview(spec: &JobSpec, node: NodeRank) -> Result<Preview, Impossible> {
    let count = spec.map.local_size(node);
    match left_alone(spec, count, cpus_here) {
        Some(LeftAlone::Plainly(_)) => return Ok(Preview::Free(None)),
        Some(LeftAlone::Because(why)) => return Ok(Preview::Free(Some(why))),
        None => {}
    }
    match may_bind() {
        Err(why) if !spec.binding.is_asked_for() => return Ok(Preview::Free(Some(why.to_string()))),
        permitted => permitted?,
    }
    let found = Found::here(spec, node);
    let machine = &found.machine;
    Ok(match choose(&found.place(), &spec.binding, &found.ranks, &Taken::default())? {
        Choice::Free { why, .. } => Preview::Free(Some(why.text(count, machine.cores.len() as u32))),
        Choice::Bound { sets, .. } => Preview::Bound(
            sets.into_iter()
                .map(|set| {
                    let shown = picture(machine, &set);
                    (set, shown)
                })
                .collect(),
        ),
    })
}

/// This machine, and the ranks of a node that is on it.
struct Found {
    machine: Machine,
    gpus: Vec<Device>,
    nics: Vec<Device>,
    ranks: Ranks,
}

impl Found {
    fn here(spec: &JobSpec, node: NodeRank) -> Found {
        let machine = Machine::read(&Here, &allowed());
        let [gpus, nics] = near(spec, &machine);
        let (count, firsts) = (spec.map.local_size(node), first_gpus(spec, node, gpus.len() as u32));
        Found { machine, gpus, nics, ranks: Ranks { count, gpus: firsts, threads: spec.openmp_threads() } }
    }

    fn place(&self) -> Place<'_> {
        Place { machine: &self.machine, gpus: &self.gpus, nics: &self.nics }
    }
}

/// Whether the kernel lets ranks be bound.
fn may_bind() -> Result<(), Impossible> {
    cpus::may_bind().map_err(|error| Impossible::NotPermitted { reason: rankrun_sys::reason(&error) })
}

/// The CPUs that a job may use at a time, by its quota, and those that it may run on.
fn cpus_here() -> (u32, u32) {
    (cpus::allowed(), cpus::affinity().len() as u32)
}

/// The GPUs and network cards, where they matter.
fn near(spec: &JobSpec, machine: &Machine) -> [Vec<Device>; 2] {
    [DeviceKind::Gpu, DeviceKind::Nic].map(|kind| {
        let is_asked_for = spec.binding.map_by == Some(MapBy::Near(kind));
        // On one NUMA node everything is near.
        let helps = kind == DeviceKind::Gpu && machine.count(Level::Numa) > 1;
        if is_asked_for || helps { devices(&Here, kind) } else { Vec::new() }
    })
}

/// What the agent knows of its machine, and holds of it.
#[derive(Default)]
pub(crate) struct Binder {
    cores: Option<Cores>,
    held: HashMap<GroupId, (CpuSet, Claim)>,
}

impl Binder {
    /// Chooses CPUs for the ranks of an attempt. A team that is started again chooses anew.
    pub(crate) fn bind(&mut self, spec: &JobSpec, node: NodeRank, runtime: &Path) -> Result<Bound, Impossible> {
        self.release(spec.group);
        let (count, is_reported) = (spec.map.local_size(node), spec.binding.is_reported);
        match left_alone(spec, count, cpus_here) {
            Some(LeftAlone::Plainly(why)) => {
                let event = is_reported.then(|| AgentEvent::Unbound { why: why.to_owned(), is_asked_for: true });
                return Ok(Bound { event, ..Bound::default() });
            }
            Some(LeftAlone::Because(why)) => {
                let event = Some(AgentEvent::Unbound { why, is_asked_for: is_reported });
                return Ok(Bound { event, ..Bound::default() });
            }
            None => {}
        }
        if let Err(why) = may_bind() {
            return match spec.binding.is_asked_for() && spec.binding.variables.is_none() {
                true => Err(why),
                false => {
                    let event = Some(AgentEvent::Unbound { why: why.to_string(), is_asked_for: is_reported });
                    Ok(Bound { event, ..Bound::default() })
                }
            };
        }
        // For each attempt: a cpuset may have changed since.
        let found = Found::here(spec, node);
        let machine = &found.machine;
        let choice = match (self.choose(spec, &found.place(), &found.ranks, runtime), &spec.binding.variables) {
            (Err(why), Some(variables)) => {
                let why = format!("{variables} of the environment cannot be followed: {why}");
                return Ok(Bound { event: Some(AgentEvent::Unbound { why, is_asked_for: true }), ..Bound::default() });
            }
            (choice, _) => choice?,
        };
        Ok(match choice {
            Choice::Free { why, within } => {
                let mut why = why.text(count, machine.cores.len() as u32);
                if let Some(list) = &within {
                    why += &format!("; they share CPUs {list}");
                }
                let is_asked_for = spec.binding.is_asked_for() || is_reported;
                let cpus = within.map_or_else(Vec::new, |list| vec![list; count as usize]);
                Bound { cpus, event: Some(AgentEvent::Unbound { why, is_asked_for }), ..Bound::default() }
            }
            Choice::Bound { sets, .. } => {
                let worker = |rank: Rank| WorkerId { rank, attempt: spec.attempt };
                let workers = spec.map.on_node(node).map(|place| worker(place.rank));
                let pictures = match spec.binding.is_reported {
                    true => sets.iter().map(|set| picture(machine, set)).collect(),
                    false => Vec::new(),
                };
                let memory = (spec.binding.memory != MemoryBinding::None)
                    .then(|| (spec.binding.memory, sets.iter().map(|set| machine.nodes_of(set)).collect()));
                let ranks = workers.zip(sets.iter().cloned()).collect();
                let event = Some(AgentEvent::Bound { ranks, pictures });
                Bound { cpus: sets, memory, event }
            }
        })
    }

    fn choose(
        &mut self,
        spec: &JobSpec,
        place: &Place<'_>,
        ranks: &Ranks,
        runtime: &Path,
    ) -> Result<Choice, Impossible> {
        if self.cores.is_none() {
            // Without it, as where no directory can be written, jobs do not know of each other.
            self.cores = Cores::open(base_of(runtime)).ok();
        }
        let Some(cores) = &self.cores else { return choose(place, &spec.binding, ranks, &Default::default()) };
        let own = self.held.values();
        let (choice, held) = cores.choose(|cores| {
            let others = cores.of_others(&place.machine.cpus());
            let mut taken = others.taken;
            for (cpus, claim) in own {
                let of = match claim {
                    Claim::Alone => &mut taken.alone,
                    Claim::Share => &mut taken.shared,
                };
                *of = of.union(cpus);
            }
            let choice = choose(place, &spec.binding, ranks, &taken)?;
            let Choice::Bound { sets, claim: Some(claim) } = &choice else { return Ok((choice, None)) };
            let all = sets.iter().fold(CpuSet::new(), |all, set| all.union(set)).without(&others.around);
            // Who gets what others have holds those that are free.
            if cores.hold(&all, *claim) || spec.binding.is_whole() {
                let held = Some((all, *claim));
                return Ok((choice, held));
            }
            cores.release(&all, *claim);
            let within = spec.binding.cpus.first().map(|_| all);
            Ok((Choice::Free { why: Free::Taken, within }, None))
        })?;
        if let Some(held) = held {
            self.held.insert(spec.group, held);
        }
        Ok(choice)
    }

    /// A group chooses anew, or is over.
    pub(crate) fn release(&mut self, group: GroupId) {
        if let (Some(cores), Some((cpus, claim))) = (&self.cores, self.held.remove(&group)) {
            cores.release(&cpus, claim);
        }
    }
}
