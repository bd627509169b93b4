//! Tells libpmix of the groups of ranks, each of which is a namespace.

use std::io;
use std::path::PathBuf;

use rankrun_core::{GroupId, Rank, pmix};
use rankrun_sys::pmix::{App, Member, Namespace as Described, Server, Who};
use rankrun_sys::reason;
use rankrun_wireup::pmix::Namespace;

/// What all groups have in common.
pub(super) struct Namespaces {
    /// The namespace of the attempt.
    pub(super) base: String,
    pub(super) directory: PathBuf,
    pub(super) nodes: Vec<String>,
    pub(super) node: u32,
    /// What the clients take themselves for: user and group.
    pub(super) owner: (u32, u32),
}

impl Namespaces {
    pub(super) fn name(&self, group: GroupId) -> String {
        pmix::of_group(&self.base, group)
    }

    /// `None`: it is of another job.
    pub(super) fn group(&self, name: &str) -> Option<GroupId> {
        pmix::group_of(&self.base, name)
    }

    pub(super) fn who(&self, rank: Rank) -> Who {
        Who { nspace: self.name(rank.group()), rank: Some(rank.number()) }
    }

    /// Tells libpmix of a group. Returns when libpmix knows it.
    pub(super) fn register(&self, server: &mut Server, group: &Namespace) -> Result<(), String> {
        let described = self.describe(group);
        let made = make_directories(&described);
        made.map_err(|error| format!("cannot make session directories: {}", reason(&error)))?;
        let (user, group) = self.owner;
        server.register(&described, user, group).map_err(|error| error.to_string())
    }

    /// No rank of the group is left on this node.
    pub(super) fn forget(&self, server: &Server, group: GroupId) {
        // What is left goes with the job's directory.
        let _ = std::fs::remove_dir_all(self.directory.join(session(group)));
        server.deregister(&self.name(group));
    }

    fn describe(&self, group: &Namespace) -> Described {
        let mut sizes = vec![0u32; group.apps.len()];
        let mut firsts = vec![0u32; group.apps.len()];
        let mut members = Vec::with_capacity(group.ranks.len());
        for (rank, (node, local_rank, app)) in (0..).zip(&group.ranks) {
            let size = &mut sizes[*app as usize];
            if *size == 0 {
                firsts[*app as usize] = rank;
            }
            members.push(Member { rank, node: *node, local_rank: *local_rank, app: *app, app_rank: *size });
            *size += 1;
        }
        let apps = group.apps.iter().zip(sizes.iter().zip(&firsts)).map(|((command, directory), (size, first))| App {
            size: *size,
            first: *first,
            command: command.clone(),
            directory: directory.clone(),
        });
        Described {
            name: self.name(group.group),
            apps: apps.collect(),
            members,
            nodes: self.nodes.clone(),
            node: self.node,
            directory: self.directory.clone(),
            session: session(group.group),
            oversubscribed: group.oversubscribed,
            universe: group.universe,
            parent: group.parent.map(|parent| self.who(parent)),
        }
    }
}

/// The directory of a group's session files, below the one for all.
fn session(group: GroupId) -> String {
    match group {
        GroupId(0) => "session".to_owned(),
        group => format!("session-{group}"),
    }
}

/// Creates the session directories that the host announces to Open MPI, which then creates none itself.
fn make_directories(namespace: &Described) -> io::Result<()> {
    let local = namespace.members.iter().filter(|member| member.node == namespace.node);
    let session = namespace.session_directory();
    for (at, member) in local.enumerate() {
        if at == 0 {
            std::fs::create_dir(&session)?;
        }
        std::fs::create_dir(session.join(member.rank.to_string()))?;
    }
    Ok(())
}
