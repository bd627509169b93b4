//! The options for jobs whose nodes join by themselves: the same command on every node.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Arg;
use rankrun_core::NodeRank;
use rankrun_core::outer::is_in_rank;
use rankrun_front::Secret;
use rankrun_front::{FrontAddress, Join, LAST_CALL, Part, Plan};

use crate::args::option;
use crate::hosts::read_spares;
use crate::message::Problem;
use crate::settings::{Given, Sources, duration};
use crate::values::START_TIMEOUT;

/// Options that say which nodes a job has. In a rank, the variables of these names tell of the nodes of the outer job.
const OF_THE_NODES: &[&str] = &["nnodes", "node-rank", "rendezvous", "secret-file"];
/// Options that say when a job is to end, and be run again: that of the rank is the outer one.
const OF_THE_JOB: &[&str] = &["time-limit", "preempt-notice", "on-planned-stop"];
/// The most nodes of a job.
const MOST_NODES: u32 = 65_536;

/// Whether the variable of an option is that of a job in a rank of which this is started, and no option.
pub(crate) fn is_of_outer_job(key: &str, env: &[(OsString, OsString)]) -> bool {
    (OF_THE_NODES.contains(&key) || OF_THE_JOB.contains(&key)) && is_in_rank(env)
}

/// How many nodes a job may have (`--nnodes`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeCount {
    /// With fewer it does not run.
    pub(crate) least: u32,
    pub(crate) most: u32,
    /// It was written as MIN:MAX: nodes may come and go.
    pub(crate) is_range: bool,
}

impl std::fmt::Display for NodeCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_range { write!(f, "{}:{}", self.least, self.most) } else { self.most.fmt(f) }
    }
}

impl NodeCount {
    /// On how few it may run; `None` if it needs those that it begins with.
    pub(crate) fn least(self) -> Option<u32> {
        (self.is_range && self.most > 1).then_some(self.least)
    }
}

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Joining {
    pub(crate) nodes: u32,
    /// How many more may join, and wait to replace others.
    pub(crate) spares: u32,
    /// `None`: by the batch system's variables, or by address.
    pub(crate) node: Option<NodeRank>,
    pub(crate) front: FrontAddress,
    pub(crate) secret_file: Given,
    pub(crate) start_timeout: Duration,
    pub(crate) last_call: Duration,
}

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    vec![
        option(
            "nnodes",
            "[MIN:]N",
            heading,
            "Number of nodes that run this same command",
            "Node 0 runs the job, and the others join it. Every node ends with the job's exit code, and writes the output of its \
             own ranks. -n is the number of ranks of the whole job; without it, each node has one. With MIN, the job also runs \
             on fewer: on those that are there 30 s (--last-call) after MIN are, and with --restart on those that are left when others are \
             lost; those that come later, or come back, are taken in (--grow). N:N needs N nodes, and waits for one that was lost to come back. Each keeps its number of ranks, and the ranks are numbered anew. MIN:N without --rendezvous says the same of \
             the hosts of -H, --hostfile or an allocation.",
        ),
        option(
            "node-rank",
            "K",
            heading,
            "Which node this is: 0 to N-1, or auto",
            "\"auto\", the default, takes JOB_COMPLETION_INDEX (Kubernetes), SLURM_NODEID or OMPI_COMM_WORLD_RANK (mpirun, one process a node). Without \
             these, the node that has the address of --rendezvous is node 0, and the others are numbered in order of arrival.",
        ),
        option(
            "rendezvous",
            "HOST:PORT",
            heading,
            "Address and port of node 0",
            "Node 0 listens on the port, at all its addresses. Every node must name the same port.",
        ),
        option(
            "secret-file",
            "FILE",
            heading,
            "File with the secret of the job",
            "32 random bytes in base64, the same on every node, that other users cannot read: \
             (umask 077; head -c 32 /dev/urandom | base64 > secret).",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "start-timeout",
            "DURATION",
            heading,
            "Time for all nodes to join (default 5m)",
            "Then node 0 names the missing nodes and exits; no rank is started. An attempt that needs nodes that were lost waits as long for them to come back.",
        ),
        option(
            "last-call",
            "DURATION",
            heading,
            "Once MIN nodes have joined, time for more to join (default 30s)",
            "Then the job begins with those that are there. A job that takes in nodes while it runs (--grow restart) waits as long for others to come with the \
             first, but at most 5 s.",
        ),
    ]
}

/// Reads them: how many nodes there may be, and how they join if they do so by themselves.
pub(crate) fn read(sources: &Sources<'_>) -> Result<(Option<NodeCount>, Option<Joining>), Problem> {
    let count = sources.get("nnodes", read_nodes)?;
    let nodes = count.map(|count| count.most);
    let node = sources.get("node-rank", read_node)?.flatten();
    let front = sources.get("rendezvous", read_front)?;
    let secret_file = sources.path("secret-file")?;
    let start_timeout = sources.get("start-timeout", duration)?.unwrap_or(START_TIMEOUT);
    let last_call = sources.get("last-call", duration)?.unwrap_or(LAST_CALL);
    let Some(nodes) = nodes.filter(|nodes| *nodes > 1) else {
        let several = "write --nnodes N, how many nodes run this command";
        let of_several = [("--rendezvous", front.is_some()), ("--secret-file", secret_file.is_some())];
        // With --nnodes 1 they are of a command that was written for several nodes.
        let lone = of_several.into_iter().find(|(_, is_given)| *is_given && count.is_none());
        return match (node.filter(|node| node.0 > 0), lone) {
            (Some(node), _) => Err(Problem::usage(format!("--node-rank {node}: there is one node")).hint(several)),
            (None, Some((option, _))) => Err(Problem::usage(format!("{option} without --nnodes")).hint(several)),
            (None, None) => Ok((count, None)),
        };
    };
    let count = count.unwrap_or(NodeCount { least: nodes, most: nodes, is_range: false });
    if count.least().is_some() && front.is_none() && node.is_none() && secret_file.is_none() {
        return Ok((Some(count), None));
    }
    let missing =
        |what: &str, hint: &str| Problem::usage(format!("--nnodes {count} needs {what}")).hint(hint.to_owned());
    let front =
        front.ok_or_else(|| missing("--rendezvous", "write --rendezvous HOST:PORT, where node 0 can be reached"))?;
    let secret_file = secret_file.ok_or_else(|| {
        let file = "(umask 077; head -c 32 /dev/urandom | base64 > secret), the same file on every node";
        let is_loopback = front.host.eq_ignore_ascii_case("localhost")
            || front.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        match is_loopback {
            // No other machine reaches it.
            true => missing(
                "--secret-file",
                &format!("one rankrun starts all ranks of this machine, without --nnodes; several that are to meet here need it: {file}"),
            ),
            false => missing("--secret-file", file),
        }
    })?;
    let spares = sources.get("spares", read_spares)?.unwrap_or(0);
    let all = nodes.saturating_add(spares);
    if let Some(node) = node.filter(|node| node.0 >= all) {
        return Err(Problem::usage(format!("--node-rank {node}: the {all} nodes are numbered from 0 to {}", all - 1)));
    }
    Ok((Some(count), Some(Joining { nodes, spares, node, front, secret_file, start_timeout, last_call })))
}

fn read_nodes(text: &str) -> Result<NodeCount, String> {
    let number = |text: &str| text.parse().ok().filter(|nodes| (1..=MOST_NODES).contains(nodes));
    // As torchrun has it: at least and at most.
    let range = text.split_once(':');
    let (least, most) = range.unwrap_or((text, text));
    match (number(least), number(most)) {
        (Some(least), Some(most)) if least > most => {
            Err(format!("\"{text}\" begins with the larger number: write MIN:MAX"))
        }
        (Some(least), Some(most)) => Ok(NodeCount { least, most, is_range: range.is_some() }),
        _ => Err(format!("\"{text}\" is not a number of nodes from 1 to {MOST_NODES}, or MIN:MAX")),
    }
}

fn read_node(text: &str) -> Result<Option<NodeRank>, String> {
    match text {
        "auto" => Ok(None),
        _ => text
            .parse()
            .map(|node| Some(NodeRank(node)))
            .map_err(|_| format!("\"{text}\" is not the number of a node, or auto")),
    }
}

fn read_front(text: &str) -> Result<FrontAddress, String> {
    let wrong = || format!("\"{text}\" is not HOST:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    match host.is_empty() {
        true => Err(wrong()),
        false => Ok(FrontAddress { host: host.to_owned(), port }),
    }
}

/// Variables that number the nodes of a job, in the order in which they count.
const NUMBERS: &[&str] = &["JOB_COMPLETION_INDEX", "SLURM_NODEID"];
/// Under Open MPI's mpirun with one process on each node, the processes are the nodes.
const OPEN_MPI: (&str, &str) = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");

impl Joining {
    /// What this node is. `variable` is the environment, `own` the addresses of this machine.
    fn part(&self, variable: impl Fn(&str) -> Option<String>, own: &[std::net::IpAddr]) -> Result<Part, Problem> {
        let by_mpirun = || {
            let (rank, local_size) = OPEN_MPI;
            variable(local_size).filter(|size| size == "1").and_then(|_| Some((rank, variable(rank)?)))
        };
        let told = || NUMBERS.iter().find_map(|name| Some((*name, variable(name)?))).or_else(by_mpirun);
        let node = match self.node {
            Some(node) => Some(node),
            None => match told() {
                Some((name, text)) => match text.parse::<u32>().ok().filter(|node| *node < self.nodes + self.spares) {
                    Some(node) => Some(NodeRank(node)),
                    None => {
                        let text = format!(
                            "{name}: \"{text}\" is not the number of one of {} nodes",
                            self.nodes + self.spares
                        );
                        return Err(Problem::usage(text).hint("write --node-rank K, or --nnodes N as there are pods"));
                    }
                },
                None => None,
            },
        };
        Ok(match node {
            Some(NodeRank(0)) => Part::Front,
            None if self.front.is_here(own) => Part::Front,
            node => Part::Member(node),
        })
    }

    /// Makes a job of several nodes of one that is planned for this machine.
    pub(crate) fn apply(
        &self,
        mut plan: Plan,
        variable: impl Fn(&str) -> Option<String>,
        cwd: &Path,
        own: &[std::net::IpAddr],
    ) -> Result<Plan, Problem> {
        let part = self.part(variable, own)?;
        let path = cwd.join(&self.secret_file.text);
        let secret = Secret::read(&path).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            let problem = self.secret_file.problem(format!("{error}{source}"));
            match error.hint() {
                Some(hint) => problem.hint(hint),
                None => problem,
            }
        })?;
        if plan.spec.map.node_count() != self.nodes {
            return Err(
                Problem::usage(format!("some of the {} nodes would have no rank", self.nodes)).hint("write --ppn N")
            );
        }
        let Joining { nodes, spares, start_timeout, last_call, .. } = *self;
        plan.join = Some(Join { nodes, spares, part, front: self.front.clone(), secret, start_timeout, last_call });
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(node: Option<u32>) -> Joining {
        let secret_file =
            Given { key: "secret-file", text: "secret".into(), origin: crate::settings::Origin::CommandLine };
        let front = FrontAddress { host: "192.0.2.1".to_owned(), port: 29400 };
        Joining {
            nodes: 4,
            spares: 0,
            node: node.map(NodeRank),
            front,
            secret_file,
            start_timeout: START_TIMEOUT,
            last_call: LAST_CALL,
        }
    }

    #[test]
    fn a_node_is_numbered_by_its_option_its_variables_or_its_address() {
        let none = |_: &str| None;
        let index = |name: &str| (name == "JOB_COMPLETION_INDEX").then(|| "3".to_owned());
        let part = |joining: &Joining, variable: &dyn Fn(&str) -> Option<String>, own: &[std::net::IpAddr]| {
            joining.part(variable, own).map_err(|problem| problem.to_string())
        };
        let here: std::net::IpAddr = [192, 0, 2, 1].into();
        assert_eq!(part(&joining(Some(0)), &index, &[]), Ok(Part::Front));
        assert_eq!(part(&joining(Some(2)), &index, &[here]), Ok(Part::Member(Some(NodeRank(2)))));
        assert_eq!(part(&joining(None), &index, &[here]), Ok(Part::Member(Some(NodeRank(3)))));
        assert_eq!(part(&joining(None), &none, &[here]), Ok(Part::Front));
        assert_eq!(part(&joining(None), &none, &[]), Ok(Part::Member(None)));
        assert!(part(&joining(None), &|_| Some("4".to_owned()), &[]).is_err());
        // Under mpirun the node rank is that of the process within its node.
        let mpirun = |size: &'static str| {
            move |name: &str| match name {
                "OMPI_COMM_WORLD_RANK" => Some("2".to_owned()),
                "OMPI_COMM_WORLD_LOCAL_SIZE" => Some(size.to_owned()),
                "OMPI_COMM_WORLD_NODE_RANK" => Some("0".to_owned()),
                _ => None,
            }
        };
        assert_eq!(part(&joining(None), &mpirun("1"), &[]), Ok(Part::Member(Some(NodeRank(2)))));
        assert_eq!(part(&joining(None), &mpirun("2"), &[]), Ok(Part::Member(None)));
    }

    #[test]
    fn addresses_are_read() {
        let read = |text| read_front(text).map(|front| (front.host, front.port));
        assert_eq!(read("head:29400"), Ok(("head".to_owned(), 29400)));
        assert_eq!(read("[::1]:5"), Ok(("::1".to_owned(), 5)));
        for wrong in ["head", ":1", "head:", "head:0", "head:99999", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
