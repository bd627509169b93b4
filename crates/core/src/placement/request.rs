//! How the user wants ranks to be bound to CPUs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::topology::{CpuSet, DeviceKind, Level};

/// How ranks are bound on each node. The default leaves it to rankrun, which binds where that can only help.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Binding {
    pub to: BindTo,
    /// How many cores each rank gets; of hardware threads, where it is bound to those.
    pub width: Option<Width>,
    pub map_by: Option<MapBy>,
    /// So many ranks that follow each other go to the same object; without, one.
    pub block: Option<u32>,
    pub rank_by: Option<MapBy>,
    /// One set: the CPUs that all ranks share out. Several: those of the ranks of a node, in turn.
    pub cpus: Vec<CpuSet>,
    /// What the numbers in `cpus` count.
    pub numbering: Numbering,
    /// Only so many hardware threads of each core are used: the first ones.
    pub threads_per_core: Option<u32>,
    pub memory: MemoryBinding,
    /// More ranks than there are cores for are allowed: they share.
    pub overloads: bool,
    /// Where nobody has said how and there are more ranks than cores, they are bound too, as with [`Width::All`].
    pub is_bound_crowded: bool,
    /// The user wants to see it (`--report-bindings`).
    pub is_reported: bool,
    /// The variables that say so, where no option does. They may be left over from other programs: what cannot be is no reason to refuse the job.
    pub variables: Option<String>,
}

/// What a rank is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum BindTo {
    /// An equal share of the cores; nothing where that could harm.
    #[default]
    Auto,
    None,
    Core,
    Hwthread,
    /// All of what its cores share.
    All(Level),
    /// As many whole ones of these as its width says.
    Whole(Level),
}

/// What the numbers of a list count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Numbering {
    /// CPUs, as the kernel numbers them.
    #[default]
    Cpus,
    /// Cores that this job may use, from 0, in the order of packages, NUMA nodes and caches: hwloc's logical numbers.
    Cores,
}

/// How many cores a rank gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Width {
    Count(u32),
    /// Its equal share.
    Max,
    /// Its part when all are cut up among the ranks that have them: the first ranks get one more each where that does not come out even. Whole
    /// NUMA nodes or caches, where there are enough for the ranks of a package; hardware threads, where there are more ranks than cores.
    All,
}

/// What the ranks of a node are dealt out to, one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapBy {
    /// The next free ones, all of a rank's in one package where a package has so many.
    Slot,
    /// The next free cores. Of hardware threads, those of the next cores: the second threads come when the first of all cores are taken.
    Core,
    /// The next hardware thread, with the core that it belongs to where ranks are bound to cores.
    Hwthread,
    /// Each in turn.
    Each(Level),
    /// Each NUMA node in turn where all get the same number of ranks, else each package.
    Even,
    Near(DeviceKind),
}

/// Where a rank's memory may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MemoryBinding {
    /// Where the kernel puts it: near the CPU that first writes it.
    #[default]
    None,
    /// On the NUMA nodes of the rank's CPUs alone.
    Bind,
    /// There first.
    Preferred,
}

impl Binding {
    /// Whether the user has asked for anything: then what cannot be done is refused.
    pub fn is_asked_for(&self) -> bool {
        let Binding {
            to,
            width,
            map_by,
            block: _,
            rank_by,
            cpus,
            numbering: _,
            threads_per_core,
            memory,
            overloads: _,
            is_bound_crowded: _,
            is_reported: _,
            variables: _,
        } = self;
        *to != BindTo::Auto
            || width.is_some()
            || map_by.is_some()
            || rank_by.is_some()
            || !cpus.is_empty()
            || threads_per_core.is_some()
            || *memory != MemoryBinding::None
    }

    /// Whether no rank is to be bound.
    pub fn is_off(&self) -> bool {
        self.to == BindTo::None
    }
}

/// The level with this name.
fn level(word: &str) -> Option<Level> {
    Some(match word {
        "l3" => Level::L3,
        "numa" => Level::Numa,
        "package" | "socket" => Level::Package,
        _ => return None,
    })
}

impl MapBy {
    pub const WORDS: &'static [&'static str] =
        &["slot", "hwthread", "core", "l3", "numa", "package", "gpu", "nic", "node"];

    /// `None` for a word that is another's.
    pub fn of(word: &str) -> Option<MapBy> {
        Some(match word {
            "slot" => MapBy::Slot,
            "hwthread" => MapBy::Hwthread,
            "core" => MapBy::Core,
            "gpu" => MapBy::Near(DeviceKind::Gpu),
            "nic" => MapBy::Near(DeviceKind::Nic),
            word => MapBy::Each(level(word)?),
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::L3 => "L3 cache",
            Level::Numa => "NUMA node",
            Level::Package => "package",
        })
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Gpu => "GPU",
            DeviceKind::Nic => "network card",
        })
    }
}
