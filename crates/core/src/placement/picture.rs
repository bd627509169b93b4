//! Shows people which CPUs a rank has.

use crate::topology::{CpuSet, Level, Machine};

/// More cores than these are counted, not drawn.
const DRAWN: usize = 64;

/// One line: `CPUs 0-3, package 0, NUMA node 0  [BB..|....]`. Each package is in brackets, its NUMA nodes are apart, and a core is `B` (bound),
/// `b` (to some of its threads) or `.`.
pub fn picture(machine: &Machine, cpus: &CpuSet) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let mut text = format!("CPU{} {cpus}", plural(cpus.count() as usize));
    let at = |level: Level| -> Vec<u32> {
        let met = machine.cores.iter().filter(|core| core.cpus.meets(cpus));
        let mut found: Vec<u32> = met.map(|core| core.at(level)).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    for level in [Level::Package, Level::Numa] {
        let found = at(level);
        // One alone tells nothing.
        if machine.count(level) > 1 && !found.is_empty() {
            // A NUMA node has the kernel's number, by which numactl knows it.
            let number = |at: &u32| match level {
                Level::Numa => machine.numa_nodes.get(*at as usize).copied().unwrap_or(*at),
                Level::L3 | Level::Package => *at,
            };
            let numbers = found.iter().map(number).collect::<CpuSet>();
            text.push_str(&format!(", {level}{} {numbers}", plural(found.len())));
        }
    }
    text.push_str("  ");
    text.push_str(&if machine.cores.len() <= DRAWN { drawn(machine, cpus) } else { counted(machine, cpus) });
    text
}

fn drawn(machine: &Machine, cpus: &CpuSet) -> String {
    let mut text = String::new();
    let mut before = None;
    for core in &machine.cores {
        match before {
            Some((package, _)) if package != core.package => text.push_str("]["),
            Some((_, numa)) if numa != core.numa => text.push('|'),
            Some(_) => {}
            None => text.push('['),
        }
        before = Some((core.package, core.numa));
        let bound = core.cpus.intersection(cpus);
        text.push(if bound.is_empty() {
            '.'
        } else if bound == core.cpus {
            'B'
        } else {
            'b'
        });
    }
    text.push(']');
    text
}

fn counted(machine: &Machine, cpus: &CpuSet) -> String {
    let of = |package: u32| {
        let cores = || machine.cores.iter().filter(move |core| core.package == package);
        format!("[{} of {}]", cores().filter(|core| core.cpus.meets(cpus)).count(), cores().count())
    };
    format!("{} cores", (0..machine.count(Level::Package)).map(of).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::recorded::Recorded;

    #[test]
    fn a_rank_is_shown_among_the_cores() {
        let shown = |name: &str, cpus: &str| {
            let machine = Machine::read(&Recorded::open(name), &CpuSet::first(1024));
            picture(&machine, &cpus.parse().expect("a list"))
        };
        let text = [
            shown("opteron-8n2c", "2"),
            shown("opteron-4p8n8c", "0-15"),
            shown("xeon-2p8c2t-8ve", "0,16"),
            shown("xeon-2p8c2t-8ve", "0-3"),
            shown("core-6p8e", "0-5,12-15"),
            shown("kunpeng-2p4n128c", "0-40"),
            shown("epyc-2p256c512t", "120-135"),
        ];
        insta::assert_snapshot!(text.join("\n"));
    }
}
