//! Hosts, and how ranks are placed on them: what the options of the launchers say, in words of ours.

use std::ffi::OsString;
use std::path::PathBuf;

use rankrun_core::hosts::{Host, Mapping, NodeSlots, Wanted, mentions, merge, place};

use super::row::{HYDRA, Launcher, OPEN_MPI};
use crate::dialect::{Typed, with_value};
use crate::message::Problem;

/// One list or file of hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) hosts: Vec<Host>,
    /// The list as written, or the file.
    pub(super) source: Source,
    /// The number of the command that it stands before.
    pub(super) command: usize,
    pub(super) option: Typed,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    List(OsString),
    File(PathBuf),
}

/// What a command line says about hosts and places.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Places {
    pub(super) named: Vec<Named>,
    pub(super) per_node: Option<u32>,
    /// `--map-by node`: one rank goes to each host in turn. Hydra binds by it, and places nothing.
    pub(super) by_node: bool,
    /// One rank goes to each host in turn, whichever launcher it is.
    pub(super) is_round_robin: bool,
    /// `--map-by seq`: one rank goes to each host of the list, in its order.
    pub(super) is_seq: bool,
    /// How many ranks a host may have is not known here.
    pub(super) is_unbounded: bool,
    /// It says how many ranks each object of a host has, and how many objects there are is not known.
    pub(super) is_uncounted: Option<Typed>,
    /// `--oversubscribe`.
    pub(super) oversubscribes: bool,
    /// An option that Hydra has says where ranks go; one that only Hydra has; and some option that only Open MPI has.
    places_by_hydra: bool,
    is_hydra: bool,
    is_open_mpi: bool,
}

impl Places {
    /// Notes an option that these launchers have.
    pub(super) fn note(&mut self, launchers: &[Launcher], places_ranks: bool) {
        let is_of = |all: &[Launcher]| launchers.iter().any(|launcher| all.contains(launcher));
        let (hydra, open_mpi) = (is_of(HYDRA), is_of(OPEN_MPI));
        self.places_by_hydra |= places_ranks && hydra;
        self.is_hydra |= places_ranks && hydra && !open_mpi;
        self.is_open_mpi |= open_mpi && !hydra;
    }

    /// Whether the list of hosts begins again when all slots are used, as under Hydra; Open MPI refuses more ranks than slots.
    fn begins_again(&self) -> bool {
        self.places_by_hydra && (self.is_hydra || !self.is_open_mpi)
    }

    /// Whether the hosts say how many ranks there are.
    pub(super) fn say_the_number(&self) -> bool {
        !self.named.is_empty() || self.per_node.is_some()
    }

    /// The words of ours. `counts` are the ranks of each command, where it says so.
    pub(super) fn words(&self, counts: &[Option<u32>], warnings: &mut Vec<String>) -> Result<Vec<OsString>, Problem> {
        let mut words = Vec::new();
        let is_by_command = self.named.iter().any(|named| named.command != self.named[0].command);
        if is_by_command {
            return self.by_command(counts);
        }
        let hosts = self.of_command(|_| true);
        let is_plain = self.named.len() < 2;
        match (&self.named[..], is_plain && !self.is_seq) {
            ([], _) => {}
            ([named], true) => words.push(match &named.source {
                Source::List(text) => with_value("--hosts", text),
                Source::File(path) => with_value("--hostfile", path.as_os_str()),
            }),
            _ => {
                // Open MPI's seq has one rank for each mention, whatever its slots.
                let one = |host: &Host| Host { slots: Some(1), ..host.clone() };
                let hosts: Vec<Host> = if self.is_seq { hosts.iter().map(one).collect() } else { hosts.clone() };
                words.push(with_value("--hosts", list(&hosts).as_ref()));
            }
        }
        let given: u32 = counts.iter().flatten().fold(0, |sum, count| sum.saturating_add(*count));
        let all = hosts.iter().fold(0u32, |sum, host| sum.saturating_add(self.per_node.or(host.slots).unwrap_or(1)));
        let again = names_again(&hosts);
        let mut is_seq = self.is_seq && !hosts.is_empty();
        if self.begins_again() && given > 0 {
            words.push("--oversubscribe".into());
            is_seq |= hosts.len() > 1 && given > all && !self.is_cyclic();
            let is_bounded = hosts.len() > 1 || hosts.iter().any(|host| host.slots.is_some());
            if !self.is_hydra && is_bounded && given > all {
                warnings.push(format!(
                    "{given} ranks for {all} slots: the list of {} starts over, as under MPICH and Intel MPI; Open MPI refuses that",
                    self.named[0].option.name
                ));
            }
        } else if self.is_unbounded && given > 0 {
            words.push("--oversubscribe".into());
        }
        match again {
            Some(_) if self.begins_again() && self.is_hydra => is_seq = true,
            Some(name) if self.begins_again() && !is_seq => warnings.push(format!(
                "\"{name}\" is named again further on: its ranks are consecutive, as under Open MPI; with -hosts in place of {} \
                 they follow the list, as under MPICH and Intel MPI",
                self.named[0].option.name
            )),
            _ => {}
        }
        if let Some(count) = self.per_node {
            words.push(format!("--ppn={count}").into());
        }
        if is_seq {
            words.push("--map=seq".into());
        } else if self.is_cyclic() {
            words.push("--map=cyclic".into());
        }
        Ok(words)
    }

    fn is_cyclic(&self) -> bool {
        self.is_round_robin || self.by_node && !self.is_hydra
    }

    /// The hosts that a command names. Where it names a file and a list, the list selects from the file (Open MPI).
    fn of_command(&self, is_its: impl Fn(&Named) -> bool) -> Vec<Host> {
        let its = || self.named.iter().filter(|named| is_its(named));
        let of = |is_list: bool| its().filter(move |named| matches!(named.source, Source::List(_)) == is_list);
        let lists: Vec<Host> = of(true).flat_map(|named| named.hosts.iter().cloned()).collect();
        let files: Vec<Host> = of(false).flat_map(|named| named.hosts.iter().cloned()).collect();
        if lists.is_empty() || files.is_empty() {
            return its().flat_map(|named| named.hosts.iter().cloned()).collect();
        }
        let in_file = |host: &Host| files.iter().find(|have| have.name.eq_ignore_ascii_case(&host.name));
        lists
            .into_iter()
            .map(|host| match in_file(&host) {
                Some(have) => Host { slots: host.slots.or(have.slots), ..have.clone() },
                None => host,
            })
            .collect()
    }

    /// A list for commands that have hosts of their own: each goes to its own, a command without any to what the others leave free.
    fn by_command(&self, counts: &[Option<u32>]) -> Result<Vec<OsString>, Problem> {
        let option = |command: usize| {
            let own = self.named.iter().find(|named| named.command == command);
            &own.unwrap_or(&self.named[0]).option
        };
        let merged =
            |hosts: Vec<Host>, command: usize| merge(hosts).map_err(|error| option(command).problem(error.to_string()));
        let pool = merged(self.named.iter().flat_map(|named| named.hosts.iter().cloned()).collect(), 0)?;
        let index = |name: &str| pool.iter().position(|node| node.name.eq_ignore_ascii_case(name));
        let mut homes: Vec<usize> = Vec::new();
        let mut used = vec![0u32; pool.len()];
        for (command, count) in counts.iter().enumerate() {
            let ranks = count.unwrap_or(1);
            let mut own = self.of_command(|named| named.command == command);
            let has_own = !own.is_empty();
            match &mut own[..] {
                // One host without a number is for all ranks of its command.
                [host] if host.slots.is_none() => host.slots = Some(self.per_node.unwrap_or(ranks).max(ranks)),
                [] => own = left(&pool, &used),
                _ => {}
            }
            let nodes = merged(own.clone(), command)?;
            let wanted = Wanted {
                ranks: Some(ranks),
                per_node: self.per_node.filter(|_| has_own && own.len() > 1),
                mapping: match () {
                    () if self.is_seq => Mapping::Seq,
                    () if self.is_cyclic() => Mapping::Cyclic,
                    () => Mapping::Block,
                },
                oversubscribe: !has_own || self.oversubscribes || self.begins_again() && self.is_hydra,
            };
            let placed = place(&nodes, &mentions(&own, &nodes), &wanted)
                .map_err(|error| option(command).problem(error.to_string()).hint_if(error.hint()))?;
            for home in placed.iter().filter_map(|home| index(&nodes[*home].name)) {
                used[home] = used[home].saturating_add(1);
                homes.push(home);
            }
        }
        let mut runs: Vec<Host> = Vec::new();
        for home in homes {
            let NodeSlots { name, user, .. } = &pool[home];
            match runs.last_mut() {
                Some(last) if last.name == *name => last.slots = last.slots.map(|slots| slots.saturating_add(1)),
                _ => runs.push(Host { name: name.clone(), user: user.clone(), slots: Some(1), max_slots: None }),
            }
        }
        let mut words = vec![with_value("--hosts", list(&runs).as_ref())];
        // Two names may be one host: only two of them are in order whatever they are.
        if runs.len() > 2 {
            words.push("--map=seq".into());
        }
        Ok(words)
    }
}

/// What commands before have left free, or all where that is nothing.
fn left(pool: &[NodeSlots], used: &[u32]) -> Vec<Host> {
    let host = |(node, used): (&NodeSlots, &u32)| {
        let slots = node.slots.saturating_sub(*used);
        let NodeSlots { name, user, .. } = node.clone();
        (slots > 0).then_some(Host { name, user, slots: Some(slots), max_slots: node.most })
    };
    let free: Vec<Host> = pool.iter().zip(used).filter_map(host).collect();
    match free.is_empty() {
        true => pool.iter().zip(&vec![0; pool.len()]).filter_map(host).collect(),
        false => free,
    }
}

/// A host that is named again after another.
fn names_again(hosts: &[Host]) -> Option<&str> {
    let is_again = |at: usize| {
        let same = |host: &Host| host.name.eq_ignore_ascii_case(&hosts[at].name);
        at > 0 && !same(&hosts[at - 1]) && hosts[..at - 1].iter().any(same)
    };
    (0..hosts.len()).find(|at| is_again(*at)).map(|at| hosts[at].name.as_str())
}

fn list(hosts: &[Host]) -> String {
    hosts.iter().map(written).collect::<Vec<_>>().join(",")
}

/// A host as a list of ours has it.
fn written(host: &Host) -> String {
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
    let slots = host.slots.map(|slots| format!(":{slots}")).unwrap_or_default();
    format!("{user}{name}{slots}")
}
