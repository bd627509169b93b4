//! What ranks are bound to: pieces of a machine.

use super::ranks::{Place, Sets};
use super::request::{BindTo, Binding, MapBy, Width};
use crate::topology::{Core, CpuSet, Level, Machine};

/// What ranks are bound to: cores or hardware threads, in the machine's order.
pub(super) struct Elements(pub(super) Vec<Core>);

impl Elements {
    pub(super) fn cores(machine: &Machine) -> Elements {
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

    pub(super) fn of_kind(self, kind: u32) -> Elements {
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
