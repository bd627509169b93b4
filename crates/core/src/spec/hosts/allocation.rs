//! The hosts that a batch system has given to a job, from the values of its variables.

use super::list::{Host, ListError, parse_names, parse_slots};
use super::slots::NodeSlots;
use crate::ids::NodeRank;
use crate::rankmap::RankMap;

/// The values of Slurm's variables, of the allocation or of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slurm<'a> {
    /// `SLURM_JOB_NODELIST`.
    pub node_list: &'a str,
    /// `SLURM_TASKS_PER_NODE`, such as `4(x3),2`.
    pub tasks: Option<&'a str>,
    /// `SLURM_JOB_CPUS_PER_NODE`, in the same form.
    pub cpus: Option<&'a str>,
    /// `SLURM_CPUS_PER_TASK`.
    pub cpus_per_task: Option<&'a str>,
}

/// What is wrong with what a batch system says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AllocationError {
    #[error("the list of nodes: {0}")]
    Nodes(ListError),
    #[error("\"{0}\" is not a list of counts such as 4(x3),2")]
    Counts(String),
    #[error("the list has {nodes} nodes, and \"{text}\" has counts for {counts}")]
    Uneven { nodes: usize, counts: usize, text: String },
    #[error("\"{0}\" is not a list of hosts, each with its number of slots")]
    Pairs(String),
    #[error("line {line}: \"{text}\" is not a host and its number of slots")]
    Line { line: u32, text: String },
}

/// The nodes of a Slurm allocation. The slots of a node are its tasks; it has room for a rank on each of its CPUs (by
/// `--cpus-per-task`, if that was given). Without a number of tasks, each CPU is a slot.
pub fn slurm_nodes(slurm: &Slurm<'_>) -> Result<Vec<NodeSlots>, AllocationError> {
    let names = parse_names(slurm.node_list).map_err(AllocationError::Nodes)?;
    let counts = |text: Option<&str>| text.map(|text| counts(text, names.len())).transpose();
    let (tasks, cpus) = (counts(slurm.tasks)?, counts(slurm.cpus)?);
    let each = slurm.cpus_per_task.and_then(|text| text.parse::<u32>().ok()).unwrap_or(1).max(1);
    let node = |(i, name): (usize, String)| {
        let of = |counts: &Option<Vec<u32>>| counts.as_ref().map(|counts| counts[i]);
        let by_cpu = of(&cpus).map(|cpus| (cpus / each).max(1));
        let slots = of(&tasks).or(by_cpu).unwrap_or(1);
        let room = by_cpu.map_or(slots, |by_cpu| by_cpu.max(slots));
        NodeSlots { name, user: None, slots, room: Some(room), most: None }
    };
    Ok(names.into_iter().enumerate().map(node).collect())
}

/// Whether the ranks are where the tasks of Slurm would be: in blocks, as many on each node as it has tasks. Also false if
/// the nodes have different numbers of tasks: `MPI_Init` of Intel MPI 2021 fails ("unable to allocate shared memory") with
/// such a list even if it is true.
pub fn are_like_tasks(map: &RankMap, slurm: &Slurm<'_>) -> bool {
    match slurm_nodes(slurm) {
        Ok(nodes) if nodes.len() == 1 => map.node_count() == 1,
        Ok(nodes) if nodes.windows(2).any(|pair| pair[0].slots != pair[1].slots) => false,
        Ok(nodes) => {
            let of_node = |(node, number)| std::iter::repeat_n(NodeRank(number), node as usize);
            nodes
                .iter()
                .map(|node| node.slots)
                .zip(0..)
                .flat_map(of_node)
                .eq(map.places().iter().map(|place| place.node))
        }
        Err(_) => false,
    }
}

/// `4(x3),2`: 4, 4, 4 and 2.
fn counts(text: &str, nodes: usize) -> Result<Vec<u32>, AllocationError> {
    let wrong = || AllocationError::Counts(text.to_owned());
    let mut counts: Vec<u32> = Vec::new();
    for item in text.split(',').map(str::trim) {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(wrong)?),
            None => (item, "1"),
        };
        let count: u32 = count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        let times: usize = times.parse().map_err(|_| wrong())?;
        // What is beyond the nodes is only counted.
        let total = counts.len().checked_add(times).ok_or_else(wrong)?;
        if total > nodes {
            return Err(AllocationError::Uneven { nodes, counts: total, text: text.to_owned() });
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    match counts.len() == nodes {
        true => Ok(counts),
        false => Err(AllocationError::Uneven { nodes, counts: counts.len(), text: text.to_owned() }),
    }
}

/// `LSB_MCPU_HOSTS`: hosts and their slots in turn, `a 4 b 2`.
pub fn lsf_counts(text: &str) -> Result<Vec<Host>, AllocationError> {
    let wrong = || AllocationError::Pairs(text.to_owned());
    let words: Vec<&str> = text.split_whitespace().collect();
    let host = |pair: &[&str]| match pair {
        [name, slots] => {
            let slots = parse_slots(slots, name).map_err(|_| wrong())?;
            match parse_names(name).map_err(AllocationError::Nodes)?.as_slice() {
                [name] => Ok(Host { slots: Some(slots), ..Host::named(name) }),
                _ => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    };
    let hosts: Vec<Host> = words.chunks(2).map(host).collect::<Result<_, _>>()?;
    if hosts.is_empty() { Err(wrong()) } else { Ok(hosts) }
}

/// The file `PE_HOSTFILE` of Grid Engine: `host slots queue processors` on each line (`sge_pe(5)`). The queue and the
/// processors may be missing, and say nothing here. A host may have a line for each of its queues; a line with 0 slots gives
/// none.
pub fn grid_engine_lines(text: &str) -> Result<Vec<Host>, AllocationError> {
    let mut hosts = Vec::new();
    for (line, number) in text.lines().zip(1u32..) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let wrong = || AllocationError::Line { line: number, text: line.trim().to_owned() };
        let slots: u32 = words.next().and_then(|slots| slots.parse().ok()).ok_or_else(wrong)?;
        let names = parse_names(name).map_err(AllocationError::Nodes)?;
        let [name] = names.as_slice() else { return Err(wrong()) };
        if slots > 0 {
            hosts.push(Host { slots: Some(slots), ..Host::named(name) });
        }
    }
    if hosts.is_empty() { Err(AllocationError::Nodes(ListError::Empty)) } else { Ok(hosts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slurm(node_list: &str, tasks: &str, cpus: &str, each: &str) -> String {
        let [tasks, cpus, cpus_per_task] = [tasks, cpus, each].map(|text| Some(text).filter(|text| !text.is_empty()));
        let values = Slurm { node_list, tasks, cpus, cpus_per_task };
        match slurm_nodes(&values) {
            Ok(nodes) => {
                let node = |node: &NodeSlots| format!("{}:{}/{}", node.name, node.slots, node.room.unwrap_or(0));
                nodes.iter().map(node).collect::<Vec<_>>().join(" ")
            }
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn nodes_of_slurm_have_their_tasks_and_room_for_their_cpus() {
        let cases = [
            ("node[01-04]", "4(x3),2", "8(x4)", ""),
            ("node[1-2],big", "1(x3)", "8(x2),64", ""),
            ("n[1-2]", "", "8(x2)", "4"),
            ("n[1-2]", "2(x2)", "8(x2)", "2"),
            ("n1", "", "", ""),
            ("n1", "16", "4", ""),
            ("n[1-2]", "4(x3)", "", ""),
            ("n[1-4]", "4(x3)", "", ""),
            ("n[1-2]", "4(x18446744073709551615),4", "", ""),
            ("n[1-2]", "4(x", "", ""),
            ("n[1-2]", "0(x2)", "", ""),
            ("n[1-", "1", "", ""),
        ];
        let text = cases.map(|(list, tasks, cpus, each)| {
            format!("{list} {tasks:?} {cpus:?} {each:?}: {}", slurm(list, tasks, cpus, each))
        });
        insta::assert_snapshot!(text.join("\n"));
    }

    #[test]
    fn ranks_are_like_tasks_only_in_equal_blocks_of_their_numbers() {
        let map = |homes: &[u32]| {
            let nodes = homes.iter().max().map_or(0, |most| most + 1);
            let homes: Vec<NodeRank> = homes.iter().map(|node| NodeRank(*node)).collect();
            RankMap::of_nodes((0..nodes).map(|node| format!("n{node}")).collect(), &homes, &[homes.len() as u32])
        };
        let is_like = |homes: &[u32], node_list, tasks| {
            are_like_tasks(&map(homes), &Slurm { node_list, tasks: Some(tasks), ..Slurm::default() })
        };
        assert!(is_like(&[0, 0, 1, 1], "n[0-1]", "2(x2)"));
        assert!(is_like(&[0, 0, 1, 1], "n[0-1]", "2,2"));
        assert!(!is_like(&[0, 0, 1], "n[0-1]", "2,1"), "different numbers");
        assert!(!is_like(&[0, 1, 0, 1], "n[0-1]", "2(x2)"), "cyclic");
        assert!(!is_like(&[0, 1, 1], "n[0-1]", "2,1"));
        assert!(!is_like(&[0, 0, 0, 0], "n[0-1]", "2(x2)"), "one node of two");
        assert!(!is_like(&[0, 0, 1], "n[0-1]", "2(x2)"), "fewer ranks");
        assert!(is_like(&[0, 0, 0], "n0", "8"), "on one node there is one place");
        assert!(!is_like(&[0, 0], "n[0-1]", "none"));
    }

    #[test]
    fn pairs_of_lsf_are_hosts_with_slots() {
        let hosts = lsf_counts("hosta 4 hostb 2").expect("pairs");
        let read: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        assert_eq!(read, [("hosta", Some(4)), ("hostb", Some(2))]);
        for bad in ["", "a", "a 0", "a b", "a 2 b", "-x 2", "a,b 2"] {
            assert!(lsf_counts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_of_grid_engine_are_hosts_with_slots() {
        let text = "a.site.org 4 all.q@a.site.org UNDEFINED\nb 2 all.q@b 0,0:0,1\n\na.site.org 1 fast.q@a.site.org <NULL>\nc 0 q\n";
        let hosts = grid_engine_lines(text).expect("lines");
        let read: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        assert_eq!(read, [("a.site.org", Some(4)), ("b", Some(2)), ("a.site.org", Some(1))]);
        for bad in ["", "a", "a b c d", "a -1 q", "-x 2 q", "a,b 2 q", "a 0 q"] {
            assert!(grid_engine_lines(bad).is_err(), "{bad}");
        }
        assert_eq!(
            grid_engine_lines("a 1 q\nb x q").unwrap_err().to_string(),
            "line 2: \"b x q\" is not a host and its number of slots"
        );
    }
}
