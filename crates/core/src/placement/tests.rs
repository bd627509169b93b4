//! Recorded machines with requests: what each rank gets.

use proptest::prelude::*;

use super::*;
use crate::topology::recorded::Recorded;
use crate::topology::{CpuSet, DeviceKind, Level, Machine, devices};

const MACHINES: [&str; 12] = [
    "xeon-2p4c-1n",
    "opteron-8n2c",
    "opteron-4p8n8c",
    "opteron-4p8n6c-sparse",
    "core-6p8e",
    "gb10-10p10e",
    "xeon-2p8c2t-8ve",
    "kunpeng-2p4n128c",
    "xeon-2p16n2c2t",
    "xeon-node0-offline",
    "power9-2p16c-4gpu",
    "epyc-2p256c512t",
];

fn ranks(count: u32) -> Ranks {
    Ranks { count, gpus: vec![None; count as usize], threads: None }
}

fn asked() -> Binding {
    Binding { map_by: Some(MapBy::Core), ..Binding::default() }
}

/// What a request comes to, by local rank.
fn outcome(name: &str, binding: &Binding, ranks: &Ranks) -> String {
    let recorded = Recorded::open(name);
    let machine = Machine::read(&recorded, &CpuSet::first(1024));
    let [gpus, nics] = [DeviceKind::Gpu, DeviceKind::Nic].map(|kind| devices(&recorded, kind));
    let place = Place { machine: &machine, gpus: &gpus, nics: &nics };
    match assign(&place, binding, ranks) {
        Err(error) => format!("refused: {error}"),
        Ok(Err(why)) => format!("not bound: {why:?}"),
        Ok(Ok(sets)) => sets.iter().map(CpuSet::to_string).collect::<Vec<_>>().join(" | "),
    }
}

#[test]
fn recorded_machines_and_requests() {
    let near = MapBy::Near(DeviceKind::Gpu);
    let requests: [(&str, Binding, u32); 17] = [
        ("-n 2", Binding::default(), 2),
        ("-n 3", Binding::default(), 3),
        ("-n 16", Binding::default(), 16),
        ("-n 4 --bind-to core", Binding { to: BindTo::Core, ..Binding::default() }, 4),
        ("-n 4 --bind-to hwthread --map-by core", Binding { to: BindTo::Hwthread, ..asked() }, 4),
        ("-n 4 --cpus-per-rank 2", Binding { width: Some(Width::Count(2)), ..Binding::default() }, 4),
        ("-n 4 --map-by core:PE=3", Binding { width: Some(Width::Count(3)), ..asked() }, 4),
        ("-n 4 --map-by numa", Binding { map_by: Some(MapBy::Each(Level::Numa)), ..Binding::default() }, 4),
        (
            "-n 4 --map-by package --bind-to core --rank-by core",
            Binding {
                to: BindTo::Core,
                map_by: Some(MapBy::Each(Level::Package)),
                rank_by: Some(MapBy::Core),
                ..Binding::default()
            },
            4,
        ),
        ("-n 3 --bind-to numa", Binding { to: BindTo::All(Level::Numa), ..Binding::default() }, 3),
        ("-n 4 --bind-to l3 --map-by core", Binding { to: BindTo::All(Level::L3), ..asked() }, 4),
        ("-n 3 --map-by slot:PE=3", Binding { width: Some(Width::Count(3)), map_by: Some(MapBy::Slot), ..asked() }, 3),
        (
            "-n 3 --map-by slot --bind-to hwthread",
            Binding { to: BindTo::Hwthread, map_by: Some(MapBy::Slot), ..asked() },
            3,
        ),
        (
            "-n 3 --map-by hwthread --bind-to core",
            Binding { to: BindTo::Core, map_by: Some(MapBy::Hwthread), ..asked() },
            3,
        ),
        (
            "-n 4 --map-by package:BLOCK=2 --bind-to core --threads-per-core 1",
            Binding {
                to: BindTo::Core,
                map_by: Some(MapBy::Each(Level::Package)),
                block: Some(2),
                threads_per_core: Some(1),
                ..asked()
            },
            4,
        ),
        (
            "-n 2 --bind-to numa:2",
            Binding { to: BindTo::Whole(Level::Numa), width: Some(Width::Count(2)), ..Binding::default() },
            2,
        ),
        ("-n 4 --map-by gpu", Binding { map_by: Some(near), ..Binding::default() }, 4),
    ];
    let mut text = String::new();
    for name in MACHINES {
        text.push_str(&format!("{name}\n"));
        for (words, binding, count) in &requests {
            text.push_str(&format!("  {words}\n      {}\n", outcome(name, binding, &ranks(*count))));
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn requests_that_cannot_be_met_are_refused_with_the_numbers() {
    let core = Binding { to: BindTo::Core, ..Binding::default() };
    let wide = |width| Binding { width: Some(Width::Count(width)), ..Binding::default() };
    let list = |text: &str| text.split(':').map(|list| list.parse().expect("a list")).collect::<Vec<CpuSet>>();
    let numa = Binding { map_by: Some(MapBy::Each(Level::Numa)), width: Some(Width::Count(3)), ..Binding::default() };
    let text = [
        outcome("xeon-2p4c-1n", &core, &ranks(9)),
        outcome("xeon-2p4c-1n", &wide(5), &ranks(2)),
        outcome("xeon-2p4c-1n", &wide(9), &ranks(1)),
        outcome("core-6p8e", &Binding { to: BindTo::Hwthread, ..Binding::default() }, &ranks(21)),
        outcome("opteron-8n2c", &numa, &ranks(2)),
        outcome("opteron-8n2c", &Binding { cpus: list("0-15,16"), ..Binding::default() }, &ranks(2)),
        outcome("opteron-8n2c", &Binding { cpus: list("0-3"), ..core.clone() }, &ranks(5)),
        outcome("opteron-8n2c", &Binding { cpus: list("0:17"), ..Binding::default() }, &ranks(2)),
        outcome("opteron-8n2c", &Binding { map_by: Some(MapBy::Near(DeviceKind::Gpu)), ..core.clone() }, &ranks(2)),
    ];
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn ranks_share_cores_only_where_the_user_allows_it() {
    let core = Binding { to: BindTo::Core, overloads: true, ..Binding::default() };
    assert_eq!(outcome("xeon-2p4c-1n", &core, &ranks(10)).matches('|').count(), 9);
    assert_eq!(
        outcome("opteron-8n2c", &Binding { cpus: vec!["0-2".parse().expect("a list")], ..core.clone() }, &ranks(4)),
        "0 | 1 | 2 | 0"
    );
    let lists = ["0", "4,5"].map(|list| list.parse().expect("a list")).to_vec();
    assert_eq!(outcome("opteron-8n2c", &Binding { cpus: lists, ..Binding::default() }, &ranks(3)), "0 | 4,5 | 0");
}

#[test]
fn shares_lie_near_the_gpus_of_their_ranks() {
    let recorded = Recorded::of(
        "/sys/devices/system/cpu/online = 0-7\n\
         /sys/devices/system/node/ = node0 node1\n\
         /sys/devices/system/node/node0/cpulist = 0-3\n\
         /sys/devices/system/node/node1/cpulist = 4-7\n\
         /proc/driver/nvidia/gpus/ = 0000:01:00.0 0000:81:00.0\n\
         /sys/bus/pci/devices/0000:01:00.0/numa_node = 1\n\
         /sys/bus/pci/devices/0000:81:00.0/numa_node = 0\n",
    );
    let machine = Machine::read(&recorded, &CpuSet::first(8));
    let gpus = devices(&recorded, DeviceKind::Gpu);
    let place = Place { machine: &machine, gpus: &gpus, nics: &[] };
    let of = |gpus: &[Option<u32>], binding: &Binding| {
        let ranks = Ranks { count: gpus.len() as u32, gpus: gpus.to_vec(), threads: None };
        let sets = assign(&place, binding, &ranks).expect("possible").expect("bound");
        sets.iter().map(CpuSet::to_string).collect::<Vec<_>>().join(" | ")
    };
    let default = Binding::default();
    assert_eq!(of(&[Some(0), Some(1)], &default), "4-7 | 0-3");
    assert_eq!(of(&[Some(0), Some(0), Some(1), Some(1)], &default), "4,5 | 6,7 | 0,1 | 2,3");
    // There is room for two only.
    assert_eq!(of(&[Some(0), Some(0), Some(0), Some(1)], &default), "4,5 | 6,7 | 2,3 | 0,1");
    let gpu = Binding { map_by: Some(MapBy::Near(DeviceKind::Gpu)), to: BindTo::Core, ..Binding::default() };
    assert_eq!(of(&[Some(1), Some(0), Some(1)], &gpu), "0 | 4 | 1");
    assert_eq!(of(&[None, None, None], &gpu), "4 | 0 | 5");
}

#[test]
fn a_share_that_could_harm_is_not_taken() {
    let auto = |name: &str, count, threads| outcome(name, &Binding::default(), &Ranks { threads, ..ranks(count) });
    assert_eq!(auto("opteron-8n2c", 1, None), "not bound: Alone");
    assert_eq!(auto("opteron-8n2c", 17, None), "not bound: Oversubscribed");
    assert_eq!(auto("opteron-8n2c", 4, Some(5)), "not bound: Threads { wanted: 5, have: 4 }");
    assert_eq!(auto("opteron-8n2c", 4, Some(4)), "0-3 | 4-7 | 8-11 | 12-15");
    assert_eq!(auto("core-6p8e", 7, None), "not bound: Kinds");
    assert_eq!(auto("core-6p8e", 2, None), "0-5,12-15 | 6-11,16-19");
}

proptest! {
    /// On any part of any machine.
    #[test]
    fn shares_are_equal_disjoint_and_of_whole_cores(machine in 0..MACHINES.len(), allowed in proptest::collection::btree_set(0u32..64, 1..64), count in 1u32..40) {
        let recorded = Recorded::open(MACHINES[machine]);
        let machine = Machine::read(&recorded, &allowed.into_iter().collect());
        let place = Place { machine: &machine, gpus: &[], nics: &[] };
        let Ok(Ok(sets)) = assign(&place, &Binding::default(), &ranks(count)) else { return Ok(()) };
        prop_assert_eq!(sets.len(), count as usize);
        let cores = |set: &CpuSet| machine.cores.iter().filter(|core| core.cpus.meets(set)).count();
        let mut all = CpuSet::new();
        for set in &sets {
            prop_assert!(!set.is_empty() && !all.meets(set));
            prop_assert_eq!(cores(set), cores(&sets[0]));
            prop_assert!(machine.cores.iter().all(|core| !core.cpus.meets(set) || core.cpus.is_subset(set)));
            all = all.union(set);
        }
        // No more than one core for each rank is left over, of each kind.
        let kinds = machine.cores.iter().map(|core| core.kind + 1).max().unwrap_or(1);
        prop_assert!(machine.cores.len() - cores(&all) < (count * kinds) as usize);
    }

    /// Whatever is asked for: a set for each rank, of CPUs that may be used; or a refusal, and none where ranks may share.
    #[test]
    fn whatever_is_asked_for_stays_within_the_machine(
        machine in 0..MACHINES.len(), count in 1u32..70, to in 0usize..8, width in proptest::option::of(0u32..9), map in 0usize..9, rank in 0usize..6, overloads in any::<bool>(), block in proptest::option::of(0u32..4), threads_per_core in proptest::option::of(0u32..3),
    ) {
        let recorded = Recorded::open(MACHINES[machine]);
        let machine = Machine::read(&recorded, &CpuSet::first(48));
        let tos = [BindTo::Auto, BindTo::None, BindTo::Core, BindTo::Hwthread, BindTo::All(Level::L3), BindTo::All(Level::Numa), BindTo::All(Level::Package), BindTo::Whole(Level::L3)];
        let maps = [None, Some(MapBy::Even), Some(MapBy::Slot), Some(MapBy::Hwthread), Some(MapBy::Core), Some(MapBy::Each(Level::L3)), Some(MapBy::Each(Level::Numa)), Some(MapBy::Each(Level::Package)), Some(MapBy::Near(DeviceKind::Gpu))];
        let width = width.map(|width| match width { 0 => Width::Max, 8 => Width::All, width => Width::Count(width) });
        let binding = Binding { to: tos[to], width, map_by: maps[map], block, rank_by: maps[rank], cpus: Vec::new(), variables: None, numbering: Numbering::Cpus, threads_per_core, memory: MemoryBinding::None, overloads, is_bound_crowded: false, is_reported: false };
        let gpus = devices(&recorded, DeviceKind::Gpu);
        let place = Place { machine: &machine, gpus: &gpus, nics: &[] };
        match assign(&place, &binding, &ranks(count)) {
            Ok(Ok(sets)) => {
                prop_assert_eq!(sets.len(), count as usize);
                prop_assert!(sets.iter().all(|set| !set.is_empty() && set.is_subset(&machine.cpus())), "{sets:?}");
            }
            Ok(Err(_)) => prop_assert!(!binding.is_asked_for()),
            Err(error) => prop_assert!(!overloads || matches!(error, Impossible::NoDevice { .. }), "{error}"),
        }
    }
}

#[test]
fn absurd_numbers_are_refused_or_cut_down() {
    let two = || Ranks { count: 2, gpus: Vec::new(), threads: None };
    let wide = |count, overloads| Binding {
        to: BindTo::Core,
        width: Some(Width::Count(count)),
        overloads,
        ..Binding::default()
    };
    let refused = outcome("opteron-8n2c", &wide(1 << 31, false), &two());
    assert_eq!(refused, "refused: 2 ranks with 2147483648 cores each need 4294967296 cores, and there are 16 cores");
    assert_eq!(outcome("opteron-8n2c", &wide(u32::MAX, true), &two()), "0-15 | 0-15");
    let mapped = Binding { map_by: Some(MapBy::Each(Level::Numa)), ..wide(u32::MAX, true) };
    assert_eq!(outcome("opteron-8n2c", &mapped, &two()), "0,1 | 2,3");
}
