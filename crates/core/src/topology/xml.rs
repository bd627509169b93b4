//! The machine as a file that hwloc 2 reads (its XML format 2.0, `hwloc2.dtd`): ranks that get it do not each read all of `/sys`.
//!
//! It has what MPI libraries look for: packages, caches, cores, threads, NUMA nodes with their memory, and the PCI devices that communicate or
//! compute, each with the names by which the kernel knows it.

use std::fmt::Write as _;

use super::cpuset::CpuSet;
use super::machine::{CPUS, Files, Machine, NODES};

/// One object of the tree. The order of the kinds is that of parents before children with the same CPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Machine,
    Package,
    /// What makes room for a NUMA node that has the CPUs of no other object.
    Group,
    L3,
    L2,
    L1,
    L1i,
    Core,
    Thread,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Machine => "Machine",
            Kind::Package => "Package",
            Kind::Group => "Group",
            Kind::L3 => "L3Cache",
            Kind::L2 => "L2Cache",
            Kind::L1 => "L1Cache",
            Kind::L1i => "L1iCache",
            Kind::Core => "Core",
            Kind::Thread => "PU",
        }
    }
}

#[derive(Debug)]
struct Object {
    kind: Kind,
    cpus: CpuSet,
    number: Option<u32>,
    /// Further attributes.
    more: String,
    children: Vec<Object>,
    nodes: Vec<Node>,
    devices: Vec<Pci>,
}

#[derive(Clone, Debug)]
struct Node {
    number: u32,
    cpus: CpuSet,
    bytes: u64,
}

#[derive(Debug)]
struct Pci {
    address: String,
    kind: String,
    near: CpuSet,
    /// The kernel's names, with hwloc's number of the type.
    names: Vec<(String, u32)>,
}

const PCI: &str = "/sys/bus/pci/devices";
/// Network controllers, display controllers, accelerators (PCI Code and ID Assignment).
const CLASSES: [&str; 3] = ["0x02", "0x03", "0x12"];
/// Where a PCI device has its names, and hwloc's number of the type (`hwloc_obj_osdev_type_e`).
const NAMES: [(&str, u32); 3] = [("drm", 1), ("net", 2), ("infiniband", 3)];

/// The text of the file. Reads one file for each core, and a few for each cache, NUMA node and PCI device.
pub fn xml(files: &impl Files, machine: &Machine) -> String {
    let nodes = nodes(files, machine);
    let mut root = Object::new(Kind::Machine, machine.cpus());
    root.number = Some(0);
    let mut objects = objects(files, machine);
    let is_known = |node: &Node, objects: &[Object]| {
        node.cpus == root.cpus || objects.iter().any(|object| object.cpus == node.cpus)
    };
    for node in &nodes {
        if !is_known(node, &objects) {
            let group = Object::new(Kind::Group, node.cpus.clone());
            objects.push(Object { more: " depth=\"0\" kind=\"1001\" subkind=\"0\"".to_owned(), ..group });
        }
    }
    // Parents before children.
    objects.sort_by_key(|object| (std::cmp::Reverse(object.cpus.count()), object.kind, object.cpus.lowest()));
    objects.into_iter().for_each(|object| root.insert(object));
    nodes.iter().for_each(|node| root.attach(&node.cpus, &mut |object| object.nodes.push(node.clone())));
    for device in pci(files) {
        let (near, mut device) = (device.near.intersection(&root.cpus), Some(device));
        root.attach(&near, &mut |object| object.devices.extend(device.take()));
    }
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n",
    );
    let mut next = 1;
    root.write(&mut text, &nodes, 1, &mut next);
    text.push_str("</topology>\n");
    text
}

impl Object {
    fn new(kind: Kind, cpus: CpuSet) -> Object {
        Object {
            kind,
            cpus,
            number: None,
            more: String::new(),
            children: Vec::new(),
            nodes: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// Puts an object below the smallest that has all its CPUs. One that overlaps another is left out: the kernel says what cannot be.
    fn insert(&mut self, object: Object) {
        match self.children.iter_mut().find(|child| child.cpus.meets(&object.cpus)) {
            Some(child) if object.cpus.without(&child.cpus).is_empty() => child.insert(object),
            Some(_) => {}
            None => self.children.push(object),
        }
    }

    /// Finds the highest object below the machine with these CPUs, else the smallest that has them all.
    fn attach(&mut self, cpus: &CpuSet, with: &mut dyn FnMut(&mut Object)) {
        let has_all = |child: &&mut Object| !cpus.is_empty() && cpus.without(&child.cpus).is_empty();
        let is_found = self.cpus == *cpus && self.kind != Kind::Machine;
        let child = if is_found { None } else { self.children.iter_mut().find(has_all) };
        match child {
            Some(child) => child.attach(cpus, with),
            None => with(self),
        }
    }

    fn write(&self, text: &mut String, nodes: &[Node], depth: usize, next: &mut u32) {
        let indent = "  ".repeat(depth);
        let of_nodes: CpuSet =
            nodes.iter().filter(|node| node.cpus.meets(&self.cpus)).map(|node| node.number).collect();
        let number = self.number.map(|number| format!(" os_index=\"{number}\"")).unwrap_or_default();
        let allowed = match self.kind {
            Kind::Machine => {
                format!(" allowed_cpuset=\"{}\" allowed_nodeset=\"{}\"", bits(&self.cpus), bits(&of_nodes))
            }
            _ => String::new(),
        };
        // Writing into a string does not fail, here and below.
        let _ = writeln!(
            text,
            "{indent}<object type=\"{}\"{number}{}{allowed} gp_index=\"{}\"{}>",
            self.kind.name(),
            sets(&self.cpus, &of_nodes),
            take(next),
            self.more
        );
        for node in &self.nodes {
            let own: CpuSet = [node.number].into_iter().collect();
            let _ = writeln!(
                text,
                "{indent}  <object type=\"NUMANode\" os_index=\"{}\"{} gp_index=\"{}\" local_memory=\"{}\"/>",
                node.number,
                sets(&node.cpus, &own),
                take(next),
                node.bytes
            );
        }
        self.children.iter().for_each(|child| child.write(text, nodes, depth + 1, next));
        for device in &self.devices {
            let _ = writeln!(
                text,
                "{indent}  <object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"{}\" pci_type=\"{}\" pci_link_speed=\"0.000000\">",
                take(next),
                device.address,
                device.kind
            );
            for (name, kind) in &device.names {
                let _ = writeln!(
                    text,
                    "{indent}    <object type=\"OSDev\" gp_index=\"{}\" name=\"{name}\" osdev_type=\"{kind}\"/>",
                    take(next)
                );
            }
            let _ = writeln!(text, "{indent}  </object>");
        }
        let _ = writeln!(text, "{indent}</object>");
    }
}

fn take(next: &mut u32) -> u32 {
    *next += 1;
    *next - 1
}

fn sets(cpus: &CpuSet, nodes: &CpuSet) -> String {
    let (cpus, nodes) = (bits(cpus), bits(nodes));
    format!(" cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\" nodeset=\"{nodes}\" complete_nodeset=\"{nodes}\"")
}

/// As hwloc writes a set: 32 bits each, the highest first.
fn bits(set: &CpuSet) -> String {
    let mut parts: Vec<String> = set
        .words()
        .iter()
        .flat_map(|word| [*word as u32, (*word >> 32) as u32])
        .map(|part| format!("0x{part:08x}"))
        .collect();
    while parts.len() > 1 && parts.last().is_some_and(|part| part == "0x00000000") {
        parts.pop();
    }
    parts.reverse();
    if parts.is_empty() { "0x0".to_owned() } else { parts.join(",") }
}

/// Everything below the machine.
fn objects(files: &impl Files, machine: &Machine) -> Vec<Object> {
    let mut found: Vec<Object> = Vec::new();
    let mut groups: Vec<(Kind, u32, CpuSet)> = Vec::new();
    for core in &machine.cores {
        for (kind, position) in [(Kind::Package, core.package), (Kind::L3, core.l3)] {
            match groups.iter_mut().find(|(known, number, _)| (*known, *number) == (kind, position)) {
                Some((_, _, cpus)) => *cpus = cpus.union(&core.cpus),
                None => groups.push((kind, position, core.cpus.clone())),
            }
        }
    }
    for (kind, _, cpus) in groups {
        let first = cpus.lowest().unwrap_or(0);
        match kind {
            Kind::Package => found.push(Object::new(kind, cpus)),
            _ => {
                let cache = caches(files, first).into_iter().find(|cache| cache.kind == kind);
                found.extend(cache.map(|cache| Object { more: cache.more, ..Object::new(kind, cpus) }));
            }
        }
    }
    // The caches of equal cores are equal: those of the first of each kind are read.
    let mut kinds: Vec<(u32, Vec<Cache>)> = Vec::new();
    let mut covered = CpuSet::new();
    for core in &machine.cores {
        let first = core.cpus.lowest().unwrap_or(0);
        if !kinds.iter().any(|(kind, _)| *kind == core.kind) {
            kinds.push((core.kind, caches(files, first)));
        }
        let of_kind = kinds.iter().find(|(kind, _)| *kind == core.kind).map(|(_, caches)| &caches[..]);
        for cache in of_kind.unwrap_or_default() {
            let more = cache.more.clone();
            match cache.kind {
                Kind::L1 | Kind::L1i => found.push(Object { more, ..Object::new(cache.kind, core.cpus.clone()) }),
                Kind::L2 if !covered.contains(first) => {
                    let cpus = match cache.cpus.count() > core.cpus.count() {
                        true => shared(files, first, cache.index),
                        false => core.cpus.clone(),
                    };
                    let cpus = cpus.union(&core.cpus).intersection(&machine.cpus());
                    covered = covered.union(&cpus);
                    found.push(Object { more, ..Object::new(Kind::L2, cpus) });
                }
                _ => {}
            }
        }
        found.push(Object::new(Kind::Core, core.cpus.clone()));
        found.extend(core.cpus.iter().map(|cpu| {
            let cpus = [cpu].into_iter().collect();
            Object { number: Some(cpu), ..Object::new(Kind::Thread, cpus) }
        }));
    }
    found
}

/// A cache of a CPU.
struct Cache {
    kind: Kind,
    index: u32,
    cpus: CpuSet,
    more: String,
}

fn cache_path(cpu: u32, index: u32, file: &str) -> String {
    format!("{CPUS}/cpu{cpu}/cache/index{index}/{file}")
}

fn shared(files: &impl Files, cpu: u32, index: u32) -> CpuSet {
    let list = files.text(&cache_path(cpu, index, "shared_cpu_list"));
    list.and_then(|list| list.parse().ok()).unwrap_or_default()
}

fn caches(files: &impl Files, cpu: u32) -> Vec<Cache> {
    let mut found = Vec::new();
    for index in 0..8 {
        let text = |file: &str| files.text(&cache_path(cpu, index, file)).map(|text| text.trim().to_owned());
        let Some(level) = text("level") else { break };
        // The numbers of hwloc: unified, data, instructions.
        let (kind, number) = match (level.as_str(), text("type").as_deref()) {
            ("3", _) => (Kind::L3, 0),
            ("2", Some("Unified")) => (Kind::L2, 0),
            ("2", Some("Data")) => (Kind::L2, 1),
            ("1", Some("Unified")) => (Kind::L1, 0),
            ("1", Some("Data")) => (Kind::L1, 1),
            ("1", Some("Instruction")) => (Kind::L1i, 2),
            _ => continue,
        };
        let size = text("size").and_then(|size| size.trim_end_matches('K').parse::<u64>().ok()).unwrap_or(0) << 10;
        let count = |file: &str| text(file).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let (line, ways) = (count("coherency_line_size"), count("ways_of_associativity"));
        let more = format!(
            " cache_size=\"{size}\" depth=\"{level}\" cache_linesize=\"{line}\" cache_associativity=\"{ways}\" cache_type=\"{number}\""
        );
        found.push(Cache { kind, index, cpus: shared(files, cpu, index), more });
    }
    found
}

/// The NUMA nodes of the machine's CPUs; where the kernel knows none, one with all.
fn nodes(files: &impl Files, machine: &Machine) -> Vec<Node> {
    let node = |(position, number): (usize, &u32)| {
        let cores = machine.cores.iter().filter(|core| core.numa as usize == position);
        let cpus = cores.fold(CpuSet::new(), |all, core| all.union(&core.cpus));
        (!cpus.is_empty()).then(|| Node { number: *number, cpus, bytes: memory(files, *number) })
    };
    let found: Vec<Node> = machine.numa_nodes.iter().enumerate().filter_map(node).collect();
    match found.is_empty() {
        true => vec![Node { number: 0, cpus: machine.cpus(), bytes: 0 }],
        false => found,
    }
}

/// The memory of a NUMA node, in bytes; 0 where the kernel does not say.
fn memory(files: &impl Files, node: u32) -> u64 {
    let text = files.text(&format!("{NODES}/node{node}/meminfo")).unwrap_or_default();
    let total = text.lines().find_map(|line| line.split_once("MemTotal:"));
    total.and_then(|(_, size)| size.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn pci(files: &impl Files) -> Vec<Pci> {
    let mut addresses = files.names(PCI);
    addresses.sort_unstable();
    let device = |address: String| {
        let text = |file: &str| files.text(&format!("{PCI}/{address}/{file}")).map(|text| text.trim().to_owned());
        let class = text("class").filter(|class| CLASSES.iter().any(|wanted| class.starts_with(wanted)))?;
        let digits =
            |file: &str| text(file).and_then(|text| Some(text.strip_prefix("0x")?.to_owned())).unwrap_or_default();
        let kind = format!(
            "{:0>4} [{:0>4}:{:0>4}] [0000:0000] 00",
            class.trim_start_matches("0x").get(..4).unwrap_or_default(),
            digits("vendor"),
            digits("device")
        );
        let near = text("local_cpulist").and_then(|list| list.parse().ok()).unwrap_or_default();
        let names = NAMES.iter().flat_map(|(directory, kind)| {
            let mut names = files.names(&format!("{PCI}/{address}/{directory}"));
            names.sort_unstable();
            // No other character is in a name of the kernel's; one would break the file.
            let is_plain = |name: &String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
            names.into_iter().filter(is_plain).map(move |name| (name, *kind))
        });
        let names = names.collect();
        Some(Pci { address, kind, near, names })
    };
    addresses.into_iter().filter_map(device).collect()
}
