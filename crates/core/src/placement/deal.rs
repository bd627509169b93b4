//! Ranks dealt out to what they are mapped by.

use super::elements::{Elements, Want, parts, renumber, unit, widened};
use super::ranks::{Count, Impossible, Place, Ranks, Sets};
use super::request::{BindTo, Binding, MapBy};
use crate::topology::{CpuSet, DeviceKind, Level, Machine};

/// Ranks dealt out to what they are mapped by: each takes what is next there.
pub(super) fn deal(place: &Place<'_>, binding: &Binding, ranks: &Ranks, by: MapBy) -> Result<Sets, Impossible> {
    let elements = Elements::mapped(place.machine, binding.to, by);
    let (objects, level): (Vec<Vec<usize>>, String) = match by {
        MapBy::Slot | MapBy::Core | MapBy::Hwthread => (vec![(0..elements.0.len()).collect()], "node".to_owned()),
        MapBy::Each(_) | MapBy::Even => {
            let level = level_of(place.machine, ranks, by);
            (parts(&elements, level), level.to_string())
        }
        MapBy::Near(kind) => {
            let devices = match kind {
                DeviceKind::Gpu => place.gpus,
                DeviceKind::Nic => place.nics,
            };
            if devices.is_empty() {
                return Err(Impossible::NoDevice { kind });
            }
            (devices.iter().map(|device| elements.near(&device.cpus)).collect(), kind.to_string())
        }
    };
    let unit = unit(if by == MapBy::Hwthread { BindTo::Hwthread } else { binding.to });
    if elements.0.is_empty() {
        return Err(Impossible::TooFew { ranks: Count(ranks.count), width: 1, unit, have: 0 });
    }
    let object_of = |rank: u32| {
        let gpu = ranks.gpus.get(rank as usize).copied().flatten().filter(|_| by == MapBy::Near(DeviceKind::Gpu));
        gpu.unwrap_or(rank / binding.block.unwrap_or(1).max(1)) as usize % objects.len()
    };
    // Devices may be near the same cores: their ranks share them out.
    let same = |one: usize| objects.iter().position(|object| *object == objects[one]).unwrap_or(one);
    let homes: Vec<usize> = (0..ranks.count).map(|rank| same(object_of(rank))).collect();
    let crowd = |object: usize| homes.iter().filter(|home| **home == object).count();
    let share = || homes.iter().map(|home| objects[*home].len() / crowd(*home).max(1)).min().unwrap_or(0);
    let want = match Want::of(binding) {
        Want::Share => share().max(1),
        Want::Count(count) => count as usize,
        // Of what is too small to be cut up, ranks get one element each, in turn.
        Want::Cut => 1,
        Want::Wide => {
            let mut turns = vec![0usize; objects.len()];
            let set = |home: usize| {
                let within = around(&elements, &objects[home], turns[home], binding.to, by);
                turns[home] += 1;
                widened(place.machine, binding, elements.union_of(&[within]))
            };
            return Ok(homes.into_iter().map(set).collect());
        }
    };
    let mut sets: Vec<Option<CpuSet>> = vec![None; homes.len()];
    for (home, object) in objects.iter().enumerate() {
        let own: Vec<usize> = (0..homes.len()).filter(|rank| homes[*rank] == home).collect();
        if let (Want::Cut, Some(parts)) = (Want::of(binding), cut(place.machine, &elements, object, by, own.len())) {
            for (rank, part) in own.iter().zip(parts) {
                sets[*rank] = Some(widened(place.machine, binding, part));
            }
            continue;
        }
        for (rank, first) in own.iter().zip(firsts(&elements, object, want, own.len(), by)) {
            if first + want > object.len() && (!binding.overloads || object.is_empty()) {
                let (ranks, width, have) = (Count(own.len() as u32), want as u32, object.len() as u32);
                return Err(match by {
                    MapBy::Slot | MapBy::Core | MapBy::Hwthread => Impossible::TooFew { ranks, width, unit, have },
                    MapBy::Each(_) | MapBy::Even | MapBy::Near(_) => {
                        Impossible::TooFewNear { level, ranks, width, unit, have }
                    }
                });
            }
            // More than there are is all of them.
            let taken: Vec<usize> =
                (first..first + want.min(object.len())).map(|at| object[at % object.len()]).collect();
            sets[*rank] = Some(widened(place.machine, binding, elements.union_of(&taken)));
        }
    }
    Ok(sets.into_iter().map(Option::unwrap_or_default).collect())
}

/// All of an object's elements in so many parts: whole NUMA nodes or caches where there are enough of them (as Intel MPI 2021.18 has it),
/// else elements, else their hardware threads. The first parts have one more.
fn cut(machine: &Machine, elements: &Elements, object: &[usize], by: MapBy, parts: usize) -> Option<Vec<CpuSet>> {
    let at = |level: Level, object: &[usize]| -> Vec<Vec<usize>> {
        let own = Elements(object.iter().map(|at| elements.0[*at].clone()).collect());
        let of = |part: Vec<usize>| part.into_iter().map(|at| object[at]).collect();
        super::elements::parts(&own, level).into_iter().map(of).collect()
    };
    let [nodes, caches] = [Level::Numa, Level::L3].map(|level| at(level, object));
    let union = |part: &Vec<usize>| elements.union_of(part);
    let is_whole = matches!(by, MapBy::Each(_) | MapBy::Even) && nodes.len() <= caches.len();
    if is_whole && parts <= nodes.len() {
        return split(nodes.iter().map(union).collect(), parts);
    }
    if is_whole && parts <= caches.len() {
        let (each, more) = (parts / nodes.len(), parts % nodes.len());
        let of = |(node, own): (usize, &Vec<usize>)| {
            split(at(Level::L3, own).iter().map(union).collect(), each + usize::from(node < more))
        };
        let found: Option<Vec<Vec<CpuSet>>> = nodes.iter().enumerate().map(of).collect();
        return found.map(|found| found.concat());
    }
    let all = elements.union_of(object);
    let threads = Elements::threads(machine).0.into_iter().map(|thread| thread.cpus).filter(|cpus| cpus.meets(&all));
    split(
        match object.len() < parts {
            true => threads.collect(),
            false => object.iter().map(|at| elements.0[*at].cpus.clone()).collect(),
        },
        parts,
    )
}

/// Pieces in so many parts, in order; `None` where there are too few.
fn split(pieces: Vec<CpuSet>, parts: usize) -> Option<Vec<CpuSet>> {
    let (each, more) = (pieces.len() / parts.max(1), pieces.len() % parts.max(1));
    let mut pieces = pieces.into_iter();
    let mut part = |at: usize| {
        let own = pieces.by_ref().take(each + usize::from(at < more));
        own.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
    };
    (each > 0).then(|| (0..parts).map(&mut part).collect())
}

/// Ranks evenly over the machine. Those for which there is no place begin again.
pub(super) fn evenly(place: &Place<'_>, binding: &Binding, ranks: &Ranks) -> Result<Sets, Impossible> {
    let Want::Count(width) = Want::of(binding) else { return deal(place, binding, ranks, MapBy::Even) };
    let packages = parts(&Elements::of(place.machine, binding.to), Level::Package);
    let places: usize = packages.iter().map(|package| package.len() / width as usize).sum();
    let placed = Ranks { count: ranks.count.min((places as u32).max(1)), ..ranks.clone() };
    let sets = deal(place, binding, &placed, MapBy::Even)?;
    let sets = match binding.rank_by {
        Some(by) => renumber(place, &sets, by),
        None => sets,
    };
    Ok(sets.iter().cycle().take(ranks.count as usize).cloned().collect())
}

/// What ranks are dealt out to.
fn level_of(machine: &Machine, ranks: &Ranks, by: MapBy) -> Level {
    let nodes = machine.cores.iter().map(|core| core.numa).collect::<CpuSet>().count().max(1);
    match by {
        MapBy::Each(level) => level,
        MapBy::Even if ranks.count.is_multiple_of(nodes) => Level::Numa,
        MapBy::Even | MapBy::Slot | MapBy::Core | MapBy::Hwthread | MapBy::Near(_) => Level::Package,
    }
}

/// Around which of an object's elements a rank is bound to more: in each part of the object in turn, or the next element, where ranks are
/// mapped to those.
fn around(elements: &Elements, object: &[usize], turn: usize, to: BindTo, by: MapBy) -> usize {
    let level = match (by, to) {
        (MapBy::Each(_) | MapBy::Even | MapBy::Near(_), BindTo::All(level)) => level,
        (MapBy::Slot | MapBy::Core | MapBy::Hwthread | MapBy::Each(_) | MapBy::Even | MapBy::Near(_), _) => {
            return object[turn % object.len()];
        }
    };
    let of = |at: usize| elements.0[object[at]].at(level);
    let begins = |at: &usize| (0..*at).all(|before| of(before) != of(*at));
    let parts: Vec<usize> = (0..object.len()).filter(begins).collect();
    object[parts[turn % parts.len()]]
}

/// Where in an object the elements of each of its ranks begin.
fn firsts(elements: &Elements, object: &[usize], want: usize, ranks: usize, by: MapBy) -> Vec<usize> {
    let plain = (0..ranks).map(|turn| turn * want);
    if by != MapBy::Slot || want < 2 {
        return plain.collect();
    }
    let package = |at: usize| elements.0[object[at]].package;
    let mut found = Vec::with_capacity(ranks);
    let mut at = 0;
    while found.len() < ranks && at + want <= object.len() {
        let is_within = package(at) == package(at + want - 1);
        if is_within {
            found.push(at);
        }
        at += if is_within { want } else { 1 };
    }
    // Where no package has so many, or too few are left.
    if found.len() < ranks { plain.collect() } else { found }
}
