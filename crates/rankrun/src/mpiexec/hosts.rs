//! Hosts, and how ranks are placed on them: what the options of the launchers say, in words of ours.

use std::ffi::OsString;
use std::path::PathBuf;

use rankrun_core::hosts::Host;

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
    /// One rank goes to each host in turn.
    pub(super) is_cyclic: bool,
    /// An option of Hydra says it: there, the list of hosts begins again when all slots are used.
    pub(super) begins_again: bool,
}

impl Places {
    /// Whether the hosts say how many ranks there are.
    pub(super) fn say_the_number(&self) -> bool {
        !self.named.is_empty() || self.per_node.is_some()
    }

    /// The words of ours. `counts` are the ranks of each command, where it says so.
    pub(super) fn words(&self, counts: &[Option<u32>]) -> Result<Vec<OsString>, Problem> {
        let mut words = Vec::new();
        let mut is_cyclic = self.is_cyclic;
        match &self.named[..] {
            [] => {}
            [first, others @ ..] if others.iter().any(|named| named.command != first.command) => {
                words.push(with_value("--hosts", &self.by_command(counts)?));
            }
            [named] => words.push(match &named.source {
                Source::List(text) => with_value("--hosts", text),
                Source::File(path) => with_value("--hostfile", path.as_os_str()),
            }),
            several => {
                let hosts: Vec<String> = several.iter().flat_map(|named| &named.hosts).map(written).collect();
                words.push(with_value("--hosts", hosts.join(",").as_ref()));
            }
        }
        let given: u32 = counts.iter().flatten().fold(0, |sum, count| sum.saturating_add(*count));
        if self.begins_again && given > 0 {
            words.push("--oversubscribe".into());
            let hosts: Vec<&Host> = self.named.iter().flat_map(|named| &named.hosts).collect();
            let has_slots = hosts.iter().any(|host| host.slots.is_some());
            let is_one_each = self.per_node.map_or(!has_slots, |count| count == 1);
            is_cyclic |= is_one_each && hosts.len() > 1 && given as usize > hosts.len();
        }
        if let Some(count) = self.per_node {
            words.push(format!("--ppn={count}").into());
        }
        if is_cyclic {
            words.push("--map=cyclic".into());
        }
        Ok(words)
    }

    /// A list where each command has hosts of its own: the same as one list if each names one, since ranks go to hosts in
    /// the order of their numbers.
    fn by_command(&self, counts: &[Option<u32>]) -> Result<OsString, Problem> {
        let problem = |named: &Named| {
            named
                .option
                .problem("hosts of one command are taken only where each command names one, and no other")
                .hint("name all hosts once, before the first command, with their numbers of ranks: -hosts a:4,b:2")
        };
        let mut list: Vec<Host> = Vec::new();
        for (command, count) in counts.iter().enumerate() {
            let mut of_command = self.named.iter().filter(|named| named.command == command);
            let (Some(named), None) = (of_command.next(), of_command.next()) else {
                return Err(problem(&self.named[0]));
            };
            let [host] = &named.hosts[..] else { return Err(problem(named)) };
            let slots = count.unwrap_or(1);
            match list.iter().position(|have| have.name.eq_ignore_ascii_case(&host.name)) {
                None => list.push(Host { slots: Some(slots), ..host.clone() }),
                Some(at) if at + 1 == list.len() => {
                    list[at].slots = list[at].slots.map(|have| have.saturating_add(slots));
                }
                Some(_) => return Err(problem(named)),
            }
        }
        Ok(list.iter().map(written).collect::<Vec<_>>().join(",").into())
    }
}

/// A host as a list of ours has it.
fn written(host: &Host) -> String {
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
    let slots = host.slots.map(|slots| format!(":{slots}")).unwrap_or_default();
    format!("{user}{name}{slots}")
}
