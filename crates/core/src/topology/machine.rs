//! A machine as its kernel describes it: cores with their hardware threads, and what they share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;

/// A machine's files below /sys and /proc, or a recording of them.
pub trait Files {
    /// The text of a file; `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String>;

    /// The names in a directory, in any order; none if it cannot be read.
    fn names(&self, directory: &str) -> Vec<String>;
}

/// A core, with the CPUs (hardware threads) that this process may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Core {
    /// Never empty.
    pub cpus: CpuSet,
    /// The package, the NUMA node and the group of cores with one third-level cache: positions among those of the machine that have a usable
    /// CPU. A core without a third-level cache shares that of its package.
    pub package: u32,
    pub numa: u32,
    pub l3: u32,
    /// Of a machine with cores of several kinds: 0 is the fastest kind.
    pub kind: u32,
}

/// What several cores share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Level {
    L3,
    Numa,
    Package,
}

/// The part of a machine that this process may use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// By package, NUMA node, third-level cache and first CPU: neighbours in this list are near each other.
    pub cores: Vec<Core>,
    /// The kernel's numbers of the NUMA nodes, by position. Empty where the kernel knows none.
    pub numa_nodes: Vec<u32>,
}

pub(super) const CPUS: &str = "/sys/devices/system/cpu";
pub(super) const NODES: &str = "/sys/devices/system/node";

/// A core with less than this part of the greatest capacity is of a slower kind: the capacities of equal cores differ by a few per cent.
const SLOW: f64 = 0.8;

impl Machine {
    /// Reads the part of a machine that has these CPUs: about one file for each core. Where the files say nothing, each CPU is a core, and all
    /// are in one package.
    pub fn read(files: &impl Files, allowed: &CpuSet) -> Machine {
        let online = files.text(&format!("{CPUS}/online")).and_then(|text| text.parse::<CpuSet>().ok());
        let usable = online.map_or_else(|| allowed.clone(), |online| online.intersection(allowed));
        let list = |path: String| files.text(&path).and_then(|text| text.parse::<CpuSet>().ok());
        let mut siblings = BTreeMap::new();
        let threads = groups(&usable, |cpu| {
            let all = list(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"))?;
            siblings.insert(cpu, all.count());
            Some(all)
        });
        let firsts: CpuSet = threads.iter().filter_map(CpuSet::lowest).collect();
        let packages = known_groups(&firsts, |cpu| list(format!("{CPUS}/cpu{cpu}/topology/core_siblings_list")));
        let caches = known_groups(&firsts, |cpu| l3(files, cpu));
        let nodes = numa_nodes(files, &firsts);
        let kinds = kinds(files, &siblings, &firsts);
        let position = |groups: &[CpuSet], cpu: u32| groups.iter().position(|group| group.contains(cpu));
        let package = |cpu| position(&packages, cpu).unwrap_or(0);
        let mut cores: Vec<(Option<usize>, Core)> = Vec::with_capacity(threads.len());
        for (cpus, first) in threads.into_iter().filter_map(|cpus| cpus.lowest().map(|first| (cpus, first))) {
            let numa = nodes.iter().position(|(_, cpus)| cpus.contains(first)).unwrap_or(0);
            let kind = kinds.get(&first).copied().unwrap_or(0);
            cores.push((
                position(&caches, first),
                Core { cpus, package: package(first) as u32, numa: numa as u32, l3: 0, kind },
            ));
        }
        number_caches(&mut cores);
        let mut cores: Vec<Core> = cores.into_iter().map(|(_, core)| core).collect();
        cores.sort_by_key(|core| (core.package, core.numa, core.l3, core.cpus.lowest()));
        Machine { cores, numa_nodes: nodes.into_iter().map(|(number, _)| number).collect() }
    }

    pub fn cpus(&self) -> CpuSet {
        self.cores.iter().fold(CpuSet::new(), |all, core| all.union(&core.cpus))
    }

    /// How many there are of what is shared at a level.
    pub fn count(&self, level: Level) -> u32 {
        self.cores.iter().map(|core| core.at(level) + 1).max().unwrap_or(0)
    }

    /// The part of the machine with these CPUs alone. What is shared keeps its numbers.
    pub fn within(&self, cpus: &CpuSet) -> Machine {
        let cores = self.cores.iter().map(|core| Core { cpus: core.cpus.intersection(cpus), ..core.clone() });
        Machine { cores: cores.filter(|core| !core.cpus.is_empty()).collect(), numa_nodes: self.numa_nodes.clone() }
    }

    /// The kernel's numbers of the NUMA nodes of these CPUs.
    pub fn nodes_of(&self, cpus: &CpuSet) -> Vec<u32> {
        let met = self.cores.iter().filter(|core| core.cpus.meets(cpus));
        let mut nodes: Vec<u32> = met.filter_map(|core| self.numa_nodes.get(core.numa as usize).copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

impl Core {
    /// The position of what it shares at a level.
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::L3 => self.l3,
            Level::Numa => self.numa,
            Level::Package => self.package,
        }
    }
}

/// The groups that these CPUs form, in the order of their first CPUs. `of` is asked for one CPU of each; one that it does not know is alone.
fn groups(cpus: &CpuSet, mut of: impl FnMut(u32) -> Option<CpuSet>) -> Vec<CpuSet> {
    let mut found: Vec<CpuSet> = Vec::new();
    let mut rest = cpus.clone();
    while let Some(first) = rest.lowest() {
        let own: CpuSet = [first].into_iter().collect();
        // Whoever does not list itself, or lists others' CPUs, is not believed: no CPU is in two groups.
        let group = of(first).map_or_else(|| own.clone(), |group| group.intersection(&rest).union(&own));
        rest = rest.without(&group);
        found.push(group);
    }
    found
}

/// The same, without those that nobody knows anything about.
fn known_groups(cpus: &CpuSet, of: impl Fn(u32) -> Option<CpuSet>) -> Vec<CpuSet> {
    let mut unknown = Vec::new();
    let groups = groups(cpus, |cpu| {
        let group = of(cpu);
        unknown.extend(group.is_none().then_some(cpu));
        group
    });
    groups.into_iter().filter(|group| group.lowest().is_none_or(|first| !unknown.contains(&first))).collect()
}

/// The CPUs that share a third-level cache with this one.
fn l3(files: &impl Files, cpu: u32) -> Option<CpuSet> {
    // The third-level cache is index 3 where the first level has two.
    [3, 2, 4].into_iter().find_map(|index| {
        let cache = format!("{CPUS}/cpu{cpu}/cache/index{index}");
        files.text(&format!("{cache}/level")).filter(|level| level.trim() == "3")?;
        files.text(&format!("{cache}/shared_cpu_list"))?.parse().ok()
    })
}

/// The NUMA nodes with a CPU of these: their numbers and CPUs. Nodes of memory alone have none.
fn numa_nodes(files: &impl Files, cpus: &CpuSet) -> Vec<(u32, CpuSet)> {
    let names = files.names(NODES);
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    let node = |number: u32| {
        let list: CpuSet = files.text(&format!("{NODES}/node{number}/cpulist"))?.parse().ok()?;
        list.meets(cpus).then_some((number, list))
    };
    numbers.into_iter().filter_map(node).collect()
}

/// The kinds of cores by first CPU, where there are several: by what the kernel calls slow (Intel), by capacity (Arm), else by the number of
/// threads, which `siblings` has.
fn kinds(files: &impl Files, siblings: &BTreeMap<u32, u32>, firsts: &CpuSet) -> BTreeMap<u32, u32> {
    let slow: Option<CpuSet> = files.text("/sys/devices/cpu_atom/cpus").and_then(|text| text.parse().ok());
    if let Some(slow) = slow.filter(|slow| slow.meets(firsts)) {
        return firsts.iter().map(|cpu| (cpu, u32::from(slow.contains(cpu)))).collect();
    }
    let capacity = |cpu: u32| files.text(&format!("{CPUS}/cpu{cpu}/cpu_capacity"))?.trim().parse::<f64>().ok();
    // Most machines have no such file: the first CPU answers for all.
    if firsts.lowest().and_then(capacity).is_some() {
        let of: Vec<(u32, f64)> = firsts.iter().map(|cpu| (cpu, capacity(cpu).unwrap_or(0.0))).collect();
        let most = of.iter().map(|(_, capacity)| *capacity).fold(0.0, f64::max);
        return of.into_iter().map(|(cpu, capacity)| (cpu, u32::from(capacity < SLOW * most))).collect();
    }
    // A core of which a thread is off line has fewer, too.
    let list = |name: &str| files.text(&format!("{CPUS}/{name}")).and_then(|text| text.parse::<CpuSet>().ok());
    if let (Some(present), Some(online)) = (list("present"), list("online"))
        && present != online
    {
        return BTreeMap::new();
    }
    let most = siblings.values().copied().max().unwrap_or(1);
    let kind = |cpu: u32| (cpu, u32::from(siblings.get(&cpu).is_some_and(|count| *count < most)));
    firsts.iter().map(kind).collect()
}

/// Numbers the third-level caches, in the order of the cores. The cores of a package that have none are one group.
fn number_caches(cores: &mut [(Option<usize>, Core)]) {
    cores.sort_by_key(|(cache, core)| (core.package, core.numa, *cache, core.cpus.lowest()));
    let mut keys: Vec<(Option<usize>, u32)> = Vec::new();
    for (cache, core) in cores {
        let key = (*cache, if cache.is_none() { core.package } else { 0 });
        let known = keys.iter().position(|known| *known == key);
        core.l3 = known.unwrap_or(keys.len()) as u32;
        if known.is_none() {
            keys.push(key);
        }
    }
}
