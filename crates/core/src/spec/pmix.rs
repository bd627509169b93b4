//! The variables by which a rank finds its PMIx server.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::ids::{Attempt, GroupId, JobId};

/// The name of the server.
pub const SERVER_NAME: &str = "rankrun-server";

/// Where the server of a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The port of 127.0.0.1 at which the agent listens.
    pub port: u16,
    /// The directory for session files.
    pub directory: OsString,
    /// The name of the node, as the namespace has it.
    pub host: String,
}

/// The namespace of an attempt: that of the group with which it began, and the beginning of those of the others.
pub fn namespace(job: &JobId, attempt: Attempt) -> String {
    format!("rankrun-{job}.{attempt}")
}

/// The namespace of a group, from that of its attempt.
///
/// Open MPI 5 makes a job's number of the hash of what is before the "@", 16 bits of it, and of the number behind (`opal_pmix_convert_nspace`):
/// so the groups of a job never have the same.
pub fn of_group(namespace: &str, group: GroupId) -> String {
    match group {
        GroupId(0) => namespace.to_owned(),
        group => format!("{namespace}@{group}"),
    }
}

/// The group whose namespace this is. `None`: it is of another job or attempt.
pub fn group_of(namespace: &str, of_group: &str) -> Option<GroupId> {
    match of_group.strip_prefix(namespace)?.strip_prefix('@') {
        None => (namespace == of_group).then_some(GroupId(0)),
        Some(number) => {
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
            number.parse().ok().filter(|_| is_number).map(GroupId)
        }
    }
}

/// The names of the nodes as PMIx has them, each different: libpmix and Open MPI take nodes of one name for one node, with one shared
/// memory. Of nodes that call themselves the same, as two on one machine do, all but the first get a number.
pub fn node_names(hosts: Vec<String>) -> Vec<String> {
    let own: BTreeSet<String> = hosts.iter().cloned().collect();
    let mut taken = BTreeSet::new();
    let name = |host: String| {
        let numbered = (2u32..).map(|number| format!("{host}-{number}")).filter(|name| !own.contains(name));
        let name = std::iter::once(host.clone()).chain(numbered).find(|name| !taken.contains(name));
        let name = name.unwrap_or(host);
        taken.insert(name.clone());
        name
    };
    hosts.into_iter().map(name).collect()
}

/// What is the same for all ranks of a node. `PMIX_RANK` is the rank's own.
///
/// libpmix looks for the address under names that tell which protocol the server speaks; a client takes the newest that it
/// knows (3.2: `PMIX_SERVER_URI3`, 4.2 to 5.0: `41`, 6.1: `51` and `61`). The server has the client's own version.
pub fn environment(facts: &Facts, namespace: &str) -> Vec<(&'static str, OsString)> {
    let uri = OsString::from(format!("{SERVER_NAME}.0;tcp4://127.0.0.1:{}", facts.port));
    let mut env: Vec<(&'static str, OsString)> = [
        "PMIX_SERVER_URI61",
        "PMIX_SERVER_URI51",
        "PMIX_SERVER_URI41",
        "PMIX_SERVER_URI4",
        "PMIX_SERVER_URI3",
        "PMIX_SERVER_URI21",
        "PMIX_SERVER_URI2",
    ]
    .into_iter()
    .map(|name| (name, uri.clone()))
    .collect();
    env.extend([
        ("PMIX_NAMESPACE", namespace.into()),
        ("PMIX_SECURITY_MODE", "native".into()),
        ("PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC".into()),
        ("PMIX_GDS_MODULE", "hash".into()),
        ("PMIX_SERVER_TMPDIR", facts.directory.clone()),
        ("PMIX_SYSTEM_TMPDIR", facts.directory.clone()),
        ("PMIX_HOSTNAME", facts.host.clone().into()),
    ]);
    env.extend(OPEN_MPI_4.iter().map(|(name, value)| (*name, value.into())));
    env
}

/// Open MPI 4 selects the launcher that it believes in by its environment, and never connects if that is another one. Later versions read
/// none of these variables.
///
/// `ess=pmi` asks a PMIx server. A component of `schizo` overwrites that (`check_launch_environment`): `orte` and `alps` with `singleton`,
/// `slurm` too if there is an allocation (`SLURM_NODELIST`) and no step; the others set what belongs to their own launcher. `pmix` has
/// clients of other protocols, preferred to PMIx if their launcher seems to be there (`flux`: `FLUX_JOB_ID`; `s1`, `s2`: Slurm's PMI).
/// Components that a build lacks may be named in a list of exclusions.
pub const OPEN_MPI_4: &[(&str, &str)] = &[
    ("OMPI_MCA_ess", "pmi"),
    ("OMPI_MCA_schizo", "^alps,flux,jsm,moab,orte,singularity,slurm"),
    ("OMPI_MCA_pmix", "^cray,flux,s1,s2"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_of_an_attempt_has_a_namespace_that_tells_its_number() {
        let base = namespace(&JobId("7f3a".to_owned()), Attempt(1));
        assert_eq!(of_group(&base, GroupId(0)), "rankrun-7f3a.1");
        assert_eq!(of_group(&base, GroupId(12)), "rankrun-7f3a.1@12");
        for group in [0, 1, 12, 4_000_000].map(GroupId) {
            assert_eq!(group_of(&base, &of_group(&base, group)), Some(group));
        }
        let others =
            ["rankrun-7f3a.10", "rankrun-7f3a.1@", "rankrun-7f3a.1@x", "rankrun-7f3a.1@+1", "rankrun-7f3a.1@01"];
        for other in others {
            assert_eq!(group_of(&base, other), None, "{other}");
        }
    }

    #[test]
    fn nodes_that_call_themselves_the_same_have_different_names() {
        let names = |hosts: &[&str]| node_names(hosts.iter().map(|host| (*host).to_owned()).collect());
        assert_eq!(names(&["a", "b"]), ["a", "b"]);
        assert_eq!(names(&["a", "a", "a-2", "a", "b"]), ["a", "a-3", "a-2", "a-4", "b"]);
    }
}
