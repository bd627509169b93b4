//! MCA parameters of mpirun itself. The library in the ranks does not read these parameters: each one is followed as the
//! option that says the same, or is named in a warning.
//!
//! Names of Open MPI 4.1 (`orte`, `plm_rsh`) and of Open MPI 5 (`prte`, `plm_ssh`); a synonym of an older version is listed too.

use std::ffi::{OsStr, OsString};

use crate::words::quote;

/// What a parameter of mpirun is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parameter {
    /// The ssh command; alternatives are separated by colons, and the first one counts.
    Agent,
    /// More words after the ssh command.
    AgentWords,
    /// The option of the dialect with the same value.
    Option(&'static str),
    /// The option of the dialect without a value, if the parameter is true.
    Switch(&'static str),
    /// The host file of the job.
    HostFile,
    /// The network between the hosts: of one interface, the option of the dialect.
    Interface,
    /// Not done, with the reason.
    Without(&'static str),
}

use Parameter::{Agent, AgentWords, HostFile, Interface, Option as Valued, Switch, Without};

const PLACES: &str = "not read: write --map-by, --ppn or -host for the places of ranks";
const REMOTE: &str = "not read: write --ssh-command for how other hosts are reached";
pub(super) const NETWORK: &str = "not read: write --interface NAME for the network between the hosts";
const ALLOCATION: &str = "not read: the hosts are those of -host, of a host file or of the batch system";
const DAEMONS: &str = "not read: there are no daemons of Open MPI";

/// The frameworks of mpirun and its daemons, by the beginning of the names of their parameters.
const FRAMEWORKS: &[(&str, &str)] = &[
    ("odls_", DAEMONS),
    ("oob_", NETWORK),
    ("orte_", DAEMONS),
    ("plm_", REMOTE),
    ("prte_", DAEMONS),
    ("ras_", ALLOCATION),
    ("rmaps_", PLACES),
];

/// Parameters that change nothing for a job: what daemons print, where they keep their files, how they start one another.
const HARMLESS: &[&str] = &[
    "orte_base_help_aggregate",
    "orte_create_session_dirs",
    "orte_hetero_nodes",
    "orte_keep_fqdn_hostnames",
    "orte_tmpdir_base",
    "plm_rsh_no_tree_spawn",
    "plm_rsh_num_concurrent",
    "plm_ssh_no_tree_spawn",
    "plm_ssh_num_concurrent",
    "prte_base_help_aggregate",
    "prte_hetero_nodes",
    "prte_keep_fqdn_hostnames",
    "prte_tmpdir_base",
];

const PARAMETERS: &[(&str, Parameter)] = &[
    ("plm_rsh_agent", Agent),
    ("orte_rsh_agent", Agent),
    ("pls_rsh_agent", Agent),
    ("plm_ssh_agent", Agent),
    ("plm_rsh_args", AgentWords),
    ("plm_ssh_args", AgentWords),
    ("orte_tag_output", Switch("-tag-output")),
    ("prte_tag_output", Switch("-tag-output")),
    ("orte_timestamp_output", Switch("-timestamp-output")),
    ("prte_timestamp_output", Switch("-timestamp-output")),
    ("orte_output_filename", Valued("-output-filename")),
    ("prte_output_filename", Valued("-output-filename")),
    ("orte_default_hostfile", HostFile),
    ("prte_default_hostfile", HostFile),
    ("hwloc_base_binding_policy", Valued("-bind-to")),
    ("hwloc_default_binding_policy", Valued("-bind-to")),
    ("hwloc_base_cpu_set", Valued("-cpu-set")),
    ("hwloc_base_cpu_list", Valued("-cpu-list")),
    ("hwloc_default_cpu_list", Valued("-cpu-list")),
    ("hwloc_base_slot_list", Valued("-cpu-list")),
    ("hwloc_base_bind_to_core", Switch("-bind-to-core")),
    ("hwloc_base_bind_to_socket", Switch("-bind-to-socket")),
    ("hwloc_base_use_hwthreads_as_cpus", Switch("-use-hwthread-cpus")),
    ("mapby", Valued("-map-by")),
    ("bindto", Valued("-bind-to")),
    ("rankby", Valued("-rank-by")),
    ("hwloc_base_report_bindings", Switch("-report-bindings")),
    ("orte_report_bindings", Switch("-report-bindings")),
    ("rmaps_base_mapping_policy", Valued("-map-by")),
    ("rmaps_default_mapping_policy", Valued("-map-by")),
    ("rmaps_base_ranking_policy", Valued("-rank-by")),
    ("rmaps_default_ranking_policy", Valued("-rank-by")),
    ("rmaps_base_oversubscribe", Switch("-oversubscribe")),
    ("rmaps_base_no_oversubscribe", Switch("-nooversubscribe")),
    ("rmaps_base_bynode", Switch("-bynode")),
    ("rmaps_base_byslot", Switch("-byslot")),
    ("rmaps_base_pernode", Switch("-pernode")),
    ("rmaps_base_n_pernode", Valued("-npernode")),
    ("rmaps_base_cpus_per_rank", Valued("-cpus-per-rank")),
    ("rmaps_base_cpus_per_proc", Valued("-cpus-per-proc")),
    ("rmaps_base_display_map", Switch("-display-map")),
    ("rmaps_base_display_devel_map", Switch("-display-devel-map")),
    ("oob_tcp_if_include", Interface),
];

/// What a parameter of mpirun is here; `None` for a parameter of the library, and for one that changes nothing.
pub(super) fn parameter(name: &str) -> std::option::Option<Parameter> {
    let listed = PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, parameter)| *parameter);
    listed.or_else(|| {
        let is_harmless = HARMLESS.contains(&name) || name.ends_with("_verbose") || name.ends_with("_debug");
        let what = framework(name).filter(|_| !is_harmless)?;
        Some(Without(what))
    })
}

/// What is said of a parameter of a framework of mpirun.
fn framework(name: &str) -> std::option::Option<&'static str> {
    FRAMEWORKS.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|(_, what)| *what)
}

/// What to write outside of the dialect for a parameter of mpirun itself; `None` for one of the library.
pub(crate) fn advice(name: &str, value: &str) -> std::option::Option<String> {
    let followed = |option: &str| {
        format!(
            "write \"rankrun mpirun --mca {name} {value} ...\", which takes it as {option}: the ranks do not read it"
        )
    };
    Some(match parameter(name) {
        Some(Agent) => format!("write --ssh-command {}", quote(OsStr::new(value))),
        Some(AgentWords) => format!("write --ssh-command {}", quote(OsStr::new(&format!("ssh {value}")))),
        Some(HostFile) => format!("write --hostfile {}", quote(OsStr::new(value))),
        Some(Interface) if is_interface(value) => format!("write --interface {value}"),
        Some(Interface) => "write --interface NAME for the network between the hosts".to_owned(),
        Some(Valued(option) | Switch(option)) => followed(option),
        Some(Without(_)) => NOT_READ.to_owned(),
        None => framework(name).map(|_| NOT_READ.to_owned())?,
    })
}

const NOT_READ: &str = "leave it out: only mpirun and its daemons read it, and they do not run here";

/// Whether a list of networks is one name of an interface.
pub(super) fn is_interface(list: &str) -> bool {
    !list.is_empty() && !list.contains([',', '/'])
}

/// The option of the dialect that a parameter stands for.
pub(super) fn option_of(name: &str) -> std::option::Option<&'static str> {
    match parameter(name)? {
        Valued(option) | Switch(option) => Some(option),
        Interface => Some("-iface"),
        Agent | AgentWords | HostFile | Without(_) => None,
    }
}

/// Whether a value of a boolean parameter is true (`mca_base_var.c`: words, or a number that is not 0).
pub(super) fn is_true(value: &OsStr) -> bool {
    let text = value.to_string_lossy().trim().to_ascii_lowercase();
    ["true", "t", "yes", "y", "enabled"].contains(&&*text) || text.parse::<i64>().is_ok_and(|number| number != 0)
}

/// The ssh command of an agent and its further words; `None` if neither is given. `ssh : rsh` names alternatives.
pub(super) fn ssh_command(agent: Option<&OsStr>, words: Option<&OsStr>) -> Option<OsString> {
    let agent = agent.map(|agent| agent.to_string_lossy().split(':').next().unwrap_or_default().trim().to_owned());
    let words = words.map(|words| words.to_string_lossy().trim().to_owned()).filter(|words| !words.is_empty());
    match (agent.filter(|agent| !agent.is_empty()), words) {
        (None, None) => None,
        (agent, words) => {
            let mut command = agent.unwrap_or_else(|| "ssh".to_owned());
            if let Some(words) = words {
                command = format!("{command} {words}");
            }
            Some(command.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpiexec::table::named;

    #[test]
    fn options_that_parameters_stand_for_exist() {
        for (name, parameter) in PARAMETERS {
            match parameter {
                Valued(option) => assert_eq!(named(option).expect(name).words(), 1, "{name}"),
                Switch(option) => assert_eq!(named(option).expect(name).words(), 0, "{name}"),
                _ => {}
            }
        }
    }

    #[test]
    fn parameters_of_the_library_and_harmless_ones_are_not_ours() {
        for name in ["btl", "pml", "plm_rsh_no_tree_spawn", "rmaps_base_verbose", "plm", "oob", "btl_tcp_if_include"] {
            assert_eq!(parameter(name), None, "{name}");
        }
    }

    #[test]
    fn every_parameter_of_a_framework_of_mpirun_is_known() {
        for (name, what) in [
            ("rmaps_base_subscription_policy", PLACES),
            ("rmaps_rank_file_path", PLACES),
            ("plm_rsh_force_rsh", REMOTE),
            ("oob_tcp_if_exclude", NETWORK),
            ("ras_base_launch_orted_on_hn", ALLOCATION),
            ("odls_base_sigkill_timeout", DAEMONS),
            ("orte_abort_timeout", DAEMONS),
            ("prte_abort_non_zero_exit", DAEMONS),
        ] {
            assert_eq!(parameter(name), Some(Without(what)), "{name}");
        }
    }

    #[test]
    fn outside_of_the_dialect_no_advice_hands_them_to_the_ranks() {
        let said = |name, value| advice(name, value).unwrap_or_default();
        assert_eq!(advice("btl", "self"), None);
        assert_eq!(said("plm_rsh_args", "-p 22"), "write --ssh-command 'ssh -p 22'");
        assert_eq!(said("oob_tcp_if_include", "eth0"), "write --interface eth0");
        assert_eq!(
            said("oob_tcp_if_include", "10.0.0.0/8"),
            "write --interface NAME for the network between the hosts"
        );
        assert!(
            said("orte_tag_output", "1").starts_with("write \"rankrun mpirun --mca orte_tag_output 1 ...\", which")
        );
        assert_eq!(said("rmaps_rank_file_path", "f"), NOT_READ);
        assert_eq!(said("orte_tmpdir_base", "/tmp"), NOT_READ);
    }

    #[test]
    fn the_first_agent_counts_with_all_words() {
        let command = |agent: Option<&str>, words: Option<&str>| {
            ssh_command(agent.map(OsStr::new), words.map(OsStr::new))
                .map(|command| command.into_string().expect("text"))
        };
        assert_eq!(command(None, None), None);
        assert_eq!(command(Some("ssh : rsh"), None).as_deref(), Some("ssh"));
        assert_eq!(command(Some("/opt/ssh -q"), Some("-p 22")).as_deref(), Some("/opt/ssh -q -p 22"));
        assert_eq!(command(None, Some("-p 22")).as_deref(), Some("ssh -p 22"));
    }
}
