//! Recorded machines, compared with what hwloc finds in the same trees.

use super::recorded::Recorded;
use super::*;

#[test]
fn machines_are_read_as_hwloc_reads_them() {
    let table = Recorded::text("lstopo.txt");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        let [packages, numa, l3, cores, cpus] =
            [(); 5].map(|()| words.next().and_then(|word| word.parse().ok()).expect("a number"));
        let machine = Machine::read(&Recorded::open(name), &CpuSet::first(1024));
        let found = [Level::Package, Level::Numa, Level::L3].map(|level| machine.count(level));
        // Where there is no such cache, or the kernel has no list of its CPUs, the package stands for it.
        let has_lists = !["xeon-2p4c-1n", "opteron-8n2c", "power9-2p16c-4gpu"].contains(&name);
        assert_eq!(found, [packages, numa, if has_lists { l3 } else { packages }], "{name}");
        // The kernel of that time calls the two cores of a module threads of one.
        let cores = if name == "opteron-4p8n8c" { cores / 2 } else { cores };
        assert_eq!((machine.cores.len() as u32, machine.cpus().count()), (cores, cpus), "{name}");
    }
}

#[test]
fn cores_of_slower_kinds_are_known_as_such() {
    let kinds = |name: &str| {
        let machine = Machine::read(&Recorded::open(name), &CpuSet::first(1024));
        let of = |kind: u32| machine.cores.iter().filter(move |core| core.kind == kind).map(|core| core.cpus.clone());
        [0, 1].map(|kind| of(kind).fold(CpuSet::new(), |all, cpus| all.union(&cpus)).to_string())
    };
    assert_eq!(kinds("core-6p8e"), ["0-11", "12-19"]);
    assert_eq!(kinds("gb10-10p10e"), ["5-9,15-19", "0-4,10-14"]);
    assert_eq!(kinds("opteron-8n2c"), ["0-15", ""]);
}

#[test]
fn a_part_of_a_machine_has_the_cores_of_its_cpus() {
    let recorded = Recorded::open("xeon-2p8c2t-8ve");
    let part = Machine::read(&recorded, &"0-3,17".parse().expect("a list"));
    let cores: Vec<String> = part.cores.iter().map(|core| format!("{}:{}", core.package, core.cpus)).collect();
    assert_eq!(cores, ["0:0", "0:1,17", "0:2", "0:3"]);
    assert!(part.cores.iter().all(|core| core.kind == 0), "who may use one thread alone is of no slower kind");
    assert_eq!(part.nodes_of(&"1".parse().expect("a list")), [0]);
    let all = Machine::read(&recorded, &CpuSet::first(64));
    assert_eq!(all.within(&"0-3,17".parse().expect("a list")).cores, part.cores);
}

#[test]
fn a_machine_whose_kernel_says_nothing_has_a_core_for_each_cpu() {
    let machine = Machine::read(&Recorded::of(""), &CpuSet::first(3));
    assert_eq!(machine.cores.len(), 3);
    assert_eq!([Level::Package, Level::Numa, Level::L3].map(|level| machine.count(level)), [1; 3]);
    assert_eq!(machine.nodes_of(&CpuSet::first(1)), [0u32; 0]);
}

#[test]
fn gpus_and_cards_are_found_with_what_is_near_them() {
    let found = |name: &str, kind| -> Vec<String> {
        devices(&Recorded::open(name), kind)
            .into_iter()
            .map(|device| format!("{} {}", device.name, device.cpus))
            .collect()
    };
    insta::assert_snapshot!(found("power9-2p16c-4gpu", DeviceKind::Gpu).join("\n"));
    assert_eq!(found("xeon-2n8c-phi", DeviceKind::Gpu), [""; 0], "the graphics of a management controller are no GPU");
}

/// Four cores with two threads each; thread 7 is off line.
struct OneThreadOff;

impl Files for OneThreadOff {
    fn text(&self, path: &str) -> Option<String> {
        let path = path.strip_prefix("/sys/devices/system/cpu/")?;
        let cpu = path.strip_prefix("cpu").and_then(|rest| rest.split_once('/')?.0.parse::<u32>().ok());
        let text = match (path, cpu) {
            ("present", _) => "0-7".to_owned(),
            ("online", _) => "0-6".to_owned(),
            (_, Some(3)) if path.ends_with("thread_siblings_list") => "3".to_owned(),
            (_, Some(cpu)) if path.ends_with("thread_siblings_list") => format!("{},{}", cpu % 4, cpu % 4 + 4),
            _ => return None,
        };
        Some(text + "\n")
    }

    fn names(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn a_core_with_a_thread_off_line_is_as_fast_as_the_others() {
    let machine = Machine::read(&OneThreadOff, &CpuSet::first(8));
    let cores: Vec<(String, u32)> = machine.cores.iter().map(|core| (core.cpus.to_string(), core.kind)).collect();
    assert_eq!(cores, [("0,4", 0), ("1,5", 0), ("2,6", 0), ("3", 0)].map(|(cpus, kind)| (cpus.to_owned(), kind)));
}

/// A machine of two cores with two threads each, one of which is slower and has its own NUMA node.
struct Small;

impl Files for Small {
    fn text(&self, path: &str) -> Option<String> {
        let text = match path.strip_prefix("/sys/devices/system/")? {
            "cpu/cpu0/topology/thread_siblings_list" => "0,2",
            "cpu/cpu1/topology/thread_siblings_list" => "1,3",
            "cpu/cpu0/topology/core_siblings_list" => "0-3",
            "node/node0/cpulist" => "0,2",
            "node/node1/cpulist" => "1,3",
            "node/node1/meminfo" => "Node 1 MemFree: 1 kB\nNode 1 MemTotal:       1024 kB",
            "cpu/cpu0/cache/index0/level" | "cpu/cpu1/cache/index0/level" => "1",
            "cpu/cpu0/cache/index0/type" | "cpu/cpu1/cache/index0/type" => "Data",
            "cpu/cpu0/cache/index0/size" => "48K",
            "cpu/cpu0/cache/index0/coherency_line_size" => "64",
            "cpu/cpu0/cache/index0/ways_of_associativity" => "12",
            "cpu/cpu0/cache/index0/shared_cpu_list" => "0,2",
            _ => return None,
        };
        Some(format!("{text}\n"))
    }

    fn names(&self, directory: &str) -> Vec<String> {
        match directory {
            "/sys/devices/system/node" => vec!["node0".to_owned(), "node1".to_owned(), "possible".to_owned()],
            _ => Vec::new(),
        }
    }
}

/// The small machine with a network card near its second core, and a device that matters to nobody.
struct WithCard;

impl Files for WithCard {
    fn text(&self, path: &str) -> Option<String> {
        let text = match path {
            "/sys/bus/pci/devices/0000:41:00.0/class" => "0x020700",
            "/sys/bus/pci/devices/0000:41:00.0/vendor" => "0x15b3",
            "/sys/bus/pci/devices/0000:41:00.0/device" => "0x101b",
            "/sys/bus/pci/devices/0000:41:00.0/local_cpulist" => "1,3",
            "/sys/bus/pci/devices/0000:00:01.0/class" => "0x060400",
            path => return Small.text(path),
        };
        Some(format!("{text}\n"))
    }

    fn names(&self, directory: &str) -> Vec<String> {
        match directory {
            "/sys/bus/pci/devices" => vec!["0000:41:00.0".to_owned(), "0000:00:01.0".to_owned()],
            "/sys/bus/pci/devices/0000:41:00.0/infiniband" => vec!["mlx5_0".to_owned(), "a\"b".to_owned()],
            directory => Small.names(directory),
        }
    }
}

#[test]
fn hwloc_gets_caches_nodes_and_devices_where_they_belong() {
    let machine = Machine::read(&WithCard, &CpuSet::first(4));
    insta::assert_snapshot!(xml(&WithCard, &machine));
}

#[test]
fn every_core_and_thread_of_a_recorded_machine_is_in_the_file_for_hwloc() {
    let table = Recorded::text("lstopo.txt");
    for name in table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next()) {
        let recorded = Recorded::open(name);
        let machine = Machine::read(&recorded, &CpuSet::first(1024));
        let text = xml(&recorded, &machine);
        let count = |kind: &str| text.matches(&format!("type=\"{kind}\"")).count();
        let expected = [machine.cores.len(), machine.cpus().count() as usize, machine.count(Level::Package) as usize];
        assert_eq!([count("Core"), count("PU"), count("Package")], expected, "{name}");
        assert_eq!(count("NUMANode"), machine.numa_nodes.len().max(1), "{name}");
        assert_eq!(text.matches("<object").count(), text.matches("/>").count() + text.matches("</object>").count());
    }
}
