//! Which CPUs each rank of a node gets: a function of the machine and of what the user wants.

use super::deal::{deal, evenly};
use super::elements::{Elements, Want, parts, renumber, unit, widened};
use super::ranks::{Count, Impossible, Place, Ranks, Sets, Unbound};
use super::request::{Binding, MapBy, Numbering, Width};
use crate::topology::{Core, CpuSet, Level, Machine};

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
        // They share: neighbours the same. More than there are is all of them.
        let want = want.min(have);
        let first = |rank: usize| if is_wide { rank * have / count } else { rank * want };
        let set = |rank| (0..want).map(|more| (first(rank) + more) % have).collect::<Vec<_>>();
        (0..count).map(|rank| elements.union_of(&set(rank))).collect()
    } else {
        return Err(too_few);
    };
    Ok(sets.into_iter().map(|set| widened(place.machine, binding, set)).collect())
}
