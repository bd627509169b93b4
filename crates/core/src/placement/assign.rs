//! Which CPUs each rank of a node gets: a function of the machine and of what the user wants.

use super::deal::{deal, evenly};
use super::request::{BindTo, Binding, MapBy, Numbering, Width};
use crate::topology::{Core, CpuSet, Device, DeviceKind, Level, Machine};

/// The ranks of a node, as far as their places depend on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks {
    pub count: u32,
    /// The GPU that each rank uses first, by position, where that is known.
    pub gpus: Vec<Option<u32>>,
    /// How many threads of OpenMP the user wants in each rank.
    pub threads: Option<u32>,
}

/// What the machine has for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// The part that may be used.
    pub machine: &'a Machine,
    /// Looked for only where it matters.
    pub gpus: &'a [Device],
    pub nics: &'a [Device],
}

/// Why a request cannot be met. The numbers are the machine's and the user's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Impossible {
    #[error("{ranks} with {} each need {}, and there {}", amount(*width, .unit), amount(ranks.0 * width, .unit), are(*have, .unit))]
    TooFew { ranks: Count, width: u32, unit: &'static str, have: u32 },
    #[error("{ranks} on one {level} with {} each need {}, and it has {have}", amount(*width, .unit), amount(ranks.0 * width, .unit))]
    TooFewNear { level: String, ranks: Count, width: u32, unit: &'static str, have: u32 },
    #[error("CPU {cpu} cannot be used: this job may use {allowed}")]
    NotAllowed { cpu: u32, allowed: CpuSet },
    #[error("core {core} is not there: this job may use {}, numbered from 0", amount(*have, "core"))]
    NoCore { core: u32, have: u32 },
    #[error("this machine has no {kind} that rankrun can see")]
    NoDevice { kind: DeviceKind },
}

/// A number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count(pub u32);

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", amount(self.0, "rank"))
    }
}

pub(super) fn amount(count: u32, unit: &str) -> String {
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn are(count: u32, unit: &str) -> String {
    format!("{} {}", if count == 1 { "is" } else { "are" }, amount(count, unit))
}

/// Why ranks are not bound where nobody has said how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unbound {
    /// One rank alone has the node.
    Alone,
    /// There are more ranks than cores.
    Oversubscribed,
    /// The ranks want more threads than their shares have CPUs.
    Threads { wanted: u32, have: u32 },
    /// There are cores of several kinds, and too few of one for all ranks.
    Kinds,
}

/// The CPUs of each rank, by local rank.
pub type Sets = Vec<CpuSet>;

/// The same with the kernel's numbers of CPUs in place of numbers of cores.
pub(super) fn numbered(machine: &Machine, binding: &Binding) -> Result<Binding, Impossible> {
    let of_cores = |list: &CpuSet| {
        let cpus = |core: u32| machine.cores.get(core as usize).map(|core| &core.cpus).ok_or(core);
        list.iter().try_fold(CpuSet::new(), |all, core| Ok(all.union(cpus(core)?)))
    };
    let cpus = match binding.numbering {
        Numbering::Cpus => Ok(binding.cpus.clone()),
        Numbering::Cores => binding.cpus.iter().map(of_cores).collect(),
    };
    let cpus = cpus.map_err(|core| Impossible::NoCore { core, have: machine.cores.len() as u32 })?;
    Ok(Binding { cpus, numbering: Numbering::Cpus, ..binding.clone() })
}

/// Places ranks as the user wants it. `Ok(Err)`: nobody has said how, and they are better left alone.
pub fn assign(place: &Place<'_>, binding: &Binding, ranks: &Ranks) -> Result<Result<Sets, Unbound>, Impossible> {
    let binding = &numbered(place.machine, binding)?;
    let allowed = place.machine.cpus();
    for list in &binding.cpus {
        if let Some(cpu) = list.without(&allowed).lowest() {
            return Err(Impossible::NotAllowed { cpu, allowed });
        }
    }
    if let [_, _, ..] = &binding.cpus[..] {
        return Ok(Ok(binding.cpus.iter().cycle().take(ranks.count as usize).cloned().collect()));
    }
    let part;
    let machine = match binding.cpus.first() {
        Some(list) => {
            part = place.machine.within(list);
            &part
        }
        None => place.machine,
    };
    let first_threads;
    let machine = match binding.threads_per_core {
        Some(count) => {
            let first = |core: &Core| core.cpus.iter().take(count.max(1) as usize).collect();
            let cpus = machine.cores.iter().map(first).fold(CpuSet::new(), |all, cpus| all.union(&cpus));
            first_threads = machine.within(&cpus);
            &first_threads
        }
        None => machine,
    };
    let place = Place { machine, ..*place };
    if binding.is_off() {
        // All have what the list leaves.
        return Ok(Ok(vec![machine.cpus(); ranks.count as usize]));
    }
    let is_list_alone = Binding { cpus: Vec::new(), ..binding.clone() };
    if !binding.cpus.is_empty() && !is_list_alone.is_asked_for() && ranks.count as usize > machine.cores.len() {
        return Ok(Ok(vec![machine.cpus(); ranks.count as usize]));
    }
    let crowded;
    let binding = if binding.is_asked_for() {
        binding
    } else {
        match leave_or_share(&place, ranks) {
            Err(Unbound::Oversubscribed) if binding.is_bound_crowded => {
                let width = Some(Width::All);
                crowded = Binding { width, overloads: true, ..binding.clone() };
                &crowded
            }
            chosen => return Ok(chosen),
        }
    };
    if binding.width == Some(Width::All) && binding.overloads && ranks.count > machine.cpus().count() {
        let sets = machine.cores.iter().cycle().take(ranks.count as usize).map(|core| core.cpus.clone());
        return Ok(Ok(sets.collect()));
    }
    let sets = match (binding.map_by, binding.width) {
        (None, Some(Width::All)) => {
            renumber(&place, &deal(&place, binding, ranks, MapBy::Each(Level::Package))?, MapBy::Core)
        }
        (None, Some(Width::Count(_) | Width::Max) | None) => spread(&place, binding, ranks)?,
        (Some(MapBy::Even), _) if binding.overloads => return evenly(&place, binding, ranks).map(Ok),
        (Some(by), _) => deal(&place, binding, ranks, by)?,
    };
    let sets = match binding.rank_by {
        Some(by) => renumber(&place, &sets, by),
        None => sets,
    };
    Ok(Ok(sets))
}

/// Where nobody has said how: an equal share of the cores for each rank, unless that could harm.
fn leave_or_share(place: &Place<'_>, ranks: &Ranks) -> Result<Sets, Unbound> {
    let (count, cores) = (ranks.count, place.machine.cores.len() as u32);
    if count <= 1 {
        return Err(Unbound::Alone);
    }
    if count > cores {
        return Err(Unbound::Oversubscribed);
    }
    let kinds = place.machine.cores.iter().map(|core| core.kind).max().unwrap_or(0);
    let mut sets = vec![CpuSet::new(); count as usize];
    for kind in 0..=kinds {
        // Shares of all kinds alike: the slowest rank sets the pace of all.
        let of_kind = Elements::cores(place.machine).of_kind(kind);
        let share = of_kind.0.len() / count as usize;
        if share == 0 && !of_kind.0.is_empty() {
            return Err(Unbound::Kinds);
        }
        let homes = homes(&of_kind, &ranks.preferences(place), share);
        for (set, home) in sets.iter_mut().zip(homes) {
            *set = set.union(&of_kind.union_of(&home));
        }
    }
    let have = sets.iter().map(CpuSet::count).min().unwrap_or(0);
    match ranks.threads {
        Some(wanted) if wanted > have => Err(Unbound::Threads { wanted, have }),
        _ => Ok(sets),
    }
}

impl Ranks {
    /// The CPUs near the GPU of each rank; empty where it has none, or nobody knows.
    fn preferences(&self, place: &Place<'_>) -> Vec<CpuSet> {
        let near = |rank: u32| {
            let gpu = self.gpus.get(rank as usize).copied().flatten()?;
            place.gpus.get(gpu as usize).map(|gpu| gpu.cpus.clone())
        };
        (0..self.count).map(|rank| near(rank).unwrap_or_default()).collect()
    }
}

/// What ranks are bound to: cores or hardware threads, in the machine's order.
pub(super) struct Elements(pub(super) Vec<Core>);

impl Elements {
    fn cores(machine: &Machine) -> Elements {
        Elements(machine.cores.clone())
    }

    pub(super) fn of(machine: &Machine, to: BindTo) -> Elements {
        match to {
            BindTo::Hwthread => Elements::threads(machine),
            BindTo::Whole(level) => {
                let cores = Elements::cores(machine);
                let whole = |part: &Vec<usize>| Core { cpus: cores.union_of(part), ..cores.0[part[0]].clone() };
                Elements(parts(&cores, level).iter().map(whole).collect())
            }
            BindTo::Auto | BindTo::None | BindTo::Core | BindTo::All(_) => Elements::cores(machine),
        }
    }

    pub(super) fn threads(machine: &Machine) -> Elements {
        let threads = |core: &Core| -> Vec<Core> {
            let one = |cpu| Core { cpus: [cpu].into_iter().collect(), ..core.clone() };
            core.cpus.iter().map(one).collect()
        };
        Elements(machine.cores.iter().flat_map(threads).collect())
    }

    /// The first threads of all cores, the second ones, and so on.
    fn threads_in_turn(machine: &Machine) -> Elements {
        let mut threads: Vec<(usize, Core)> = Vec::new();
        for core in &machine.cores {
            let one = |cpu| Core { cpus: [cpu].into_iter().collect(), ..core.clone() };
            threads.extend(core.cpus.iter().map(one).enumerate());
        }
        threads.sort_by_key(|(turn, _)| *turn);
        Elements(threads.into_iter().map(|(_, thread)| thread).collect())
    }

    /// What ranks are mapped to, one after the other, and then bound to.
    pub(super) fn mapped(machine: &Machine, to: BindTo, by: MapBy) -> Elements {
        match (by, to) {
            (MapBy::Hwthread, _) => Elements::threads(machine),
            (MapBy::Core, BindTo::Hwthread) => Elements::threads_in_turn(machine),
            (MapBy::Slot | MapBy::Core | MapBy::Each(_) | MapBy::Even | MapBy::Near(_), _) => Elements::of(machine, to),
        }
    }

    fn of_kind(self, kind: u32) -> Elements {
        Elements(self.0.into_iter().filter(|core| core.kind == kind).collect())
    }

    /// Those near these CPUs; all where nothing is known.
    pub(super) fn near(&self, cpus: &CpuSet) -> Vec<usize> {
        let near: Vec<usize> = (0..self.0.len()).filter(|at| self.0[*at].cpus.meets(cpus)).collect();
        if near.is_empty() { (0..self.0.len()).collect() } else { near }
    }

    pub(super) fn union_of(&self, elements: &[usize]) -> CpuSet {
        elements.iter().fold(CpuSet::new(), |all, at| all.union(&self.0[*at].cpus))
    }
}

/// `share` elements for each rank. All lie within one cache, NUMA node or package if they can: the smallest in which there is room for all ranks.
/// The ranks go near what they prefer as long as there is room, and else fill one after the other.
fn homes(elements: &Elements, preferences: &[CpuSet], share: usize) -> Vec<Vec<usize>> {
    let whole: Vec<Vec<usize>> = vec![(0..elements.0.len()).collect()];
    let mut levels = [Level::L3, Level::Numa, Level::Package].map(|level| parts(elements, level));
    // A NUMA node may be a part of a cache, or the other way round.
    levels.sort_by_key(|parts| parts.iter().map(Vec::len).max());
    let has_room = |parts: &&Vec<Vec<usize>>| {
        parts.iter().map(|part| part.len().checked_div(share).unwrap_or(0)).sum::<usize>() >= preferences.len()
    };
    let parts = levels.iter().chain([&whole]).find(has_room).unwrap_or(&whole);
    let mut free: Vec<&[usize]> = parts.iter().map(Vec::as_slice).collect();
    let mut found: Vec<Option<Vec<usize>>> = vec![None; preferences.len()];
    let mut take = |at: usize| {
        let (taken, rest) = free[at].split_at(share.min(free[at].len()));
        free[at] = rest;
        (taken.len() == share).then(|| taken.to_vec())
    };
    for (home, wanted) in found.iter_mut().zip(preferences).filter(|(_, wanted)| !wanted.is_empty()) {
        let is_near = |part: &Vec<usize>| part.iter().any(|at| elements.0[*at].cpus.meets(wanted));
        let mut near = (0..parts.len()).filter(|at| is_near(&parts[*at]));
        *home = near.find_map(&mut take);
    }
    for home in found.iter_mut().filter(|home| home.is_none()) {
        *home = (0..parts.len()).find_map(&mut take);
    }
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// The elements by what they share at a level.
pub(super) fn parts(elements: &Elements, level: Level) -> Vec<Vec<usize>> {
    let mut parts: Vec<(u32, Vec<usize>)> = Vec::new();
    for (at, element) in elements.0.iter().enumerate() {
        match parts.iter_mut().find(|(position, _)| *position == element.at(level)) {
            Some((_, part)) => part.push(at),
            None => parts.push((element.at(level), vec![at])),
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// What a rank gets of its share, or of what it is mapped to.
#[derive(Clone, Copy)]
pub(super) enum Want {
    Share,
    /// Its part of all.
    Cut,
    Count(u32),
    /// It is bound to more than its own.
    Wide,
}

impl Want {
    pub(super) fn of(binding: &Binding) -> Want {
        match (binding.to, binding.width) {
            (BindTo::All(_), None) => Want::Wide,
            (_, Some(Width::All)) => Want::Cut,
            (_, Some(Width::Count(count))) => Want::Count(count.max(1)),
            (BindTo::Core | BindTo::Hwthread | BindTo::Whole(_), None) => Want::Count(1),
            (BindTo::All(_) | BindTo::Core | BindTo::Hwthread | BindTo::Whole(_), Some(Width::Max)) => Want::Share,
            (BindTo::Auto | BindTo::None, None | Some(Width::Max)) => Want::Share,
        }
    }
}

/// All of what these CPUs share, where the user wants that; whole cores, where ranks are bound to cores.
pub(super) fn widened(machine: &Machine, binding: &Binding, cpus: CpuSet) -> CpuSet {
    let met: Vec<&Core> = machine.cores.iter().filter(|core| core.cpus.meets(&cpus)).collect();
    let union = |cores: &mut dyn Iterator<Item = &Core>| cores.fold(CpuSet::new(), |all, core| all.union(&core.cpus));
    match binding.to {
        BindTo::All(level) => {
            let shares = |core: &&Core| met.iter().any(|met| met.at(level) == core.at(level));
            union(&mut machine.cores.iter().filter(shares))
        }
        BindTo::Core => union(&mut met.into_iter()),
        BindTo::Auto | BindTo::None | BindTo::Hwthread | BindTo::Whole(_) => cpus,
    }
}

/// What a rank is bound to several of.
pub(super) fn unit(to: BindTo) -> &'static str {
    match to {
        BindTo::Hwthread => "hardware thread",
        BindTo::Whole(Level::L3) => "L3 cache",
        BindTo::Whole(Level::Numa) => "NUMA node",
        BindTo::Whole(Level::Package) => "package",
        BindTo::Auto | BindTo::None | BindTo::Core | BindTo::All(_) => "core",
    }
}

/// Ranks over the whole machine, each at the beginning of an equal share.
fn spread(place: &Place<'_>, binding: &Binding, ranks: &Ranks) -> Result<Sets, Impossible> {
    let elements = Elements::of(place.machine, binding.to);
    let (count, have) = (ranks.count as usize, elements.0.len());
    let share = have.checked_div(count).unwrap_or(0);
    let (want, is_wide) = match Want::of(binding) {
        Want::Share | Want::Cut => (share.max(1), false),
        Want::Count(count) => (count as usize, false),
        Want::Wide => (1, true),
    };
    let too_few =
        Impossible::TooFew { ranks: Count(ranks.count), width: want as u32, unit: unit(binding.to), have: have as u32 };
    let sets: Vec<CpuSet> = if want <= share {
        let homes = homes(&elements, &ranks.preferences(place), share);
        homes.iter().map(|home| elements.union_of(&home[..want.min(home.len())])).collect()
    } else if have > 0 && (is_wide || binding.overloads) {
        // They share: neighbours the same.
        let first = |rank: usize| if is_wide { rank * have / count } else { rank * want };
        let set = |rank| (0..want).map(|more| (first(rank) + more) % have).collect::<Vec<_>>();
        (0..count).map(|rank| elements.union_of(&set(rank))).collect()
    } else {
        return Err(too_few);
    };
    Ok(sets.into_iter().map(|set| widened(place.machine, binding, set)).collect())
}

/// The same places, numbered anew: the next rank is in the next of what it is ranked by.
pub(super) fn renumber(place: &Place<'_>, sets: &Sets, by: MapBy) -> Sets {
    let first = |set: &CpuSet| place.machine.cores.iter().position(|core| core.cpus.meets(set)).unwrap_or(usize::MAX);
    let mut ordered: Vec<&CpuSet> = sets.iter().collect();
    ordered.sort_by_key(|set| (first(set), set.lowest()));
    let MapBy::Each(level) = by else { return ordered.into_iter().cloned().collect() };
    let of = |set: &CpuSet| place.machine.cores.get(first(set)).map_or(0, |core| core.at(level));
    // Each one's position among those of the same.
    let mut seen: Vec<u32> = Vec::new();
    let mut numbered: Vec<(usize, u32, &CpuSet)> = Vec::new();
    for set in ordered {
        let own = of(set);
        numbered.push((seen.iter().filter(|other| **other == own).count(), own, set));
        seen.push(own);
    }
    numbered.sort_by_key(|(turn, own, _)| (*turn, *own));
    numbered.into_iter().map(|(_, _, set)| set.clone()).collect()
}
