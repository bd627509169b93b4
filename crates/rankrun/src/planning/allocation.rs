//! The hosts that a batch system has given to this job: Slurm, PBS, LSF, Grid Engine or OAR.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rankrun_core::hosts::{NodeSlots, Slurm, grid_engine_lines, lsf_counts, merge, parse_file, slurm_nodes};
use rankrun_core::outer::is_in_rank;
use rankrun_front::HostsOrigin;

use crate::check::variable;
use crate::file;
use crate::message::Problem;

/// The hosts of an allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Allocation {
    pub(crate) origin: HostsOrigin,
    pub(crate) nodes: Vec<NodeSlots>,
    /// The name that the batch system has for this machine, if it says so.
    pub(crate) own: Option<String>,
}

/// Whether there is an allocation.
pub(crate) fn is_there(env: &[(OsString, OsString)]) -> bool {
    let names = [
        "SLURM_JOB_NODELIST",
        HET_SIZE,
        "PBS_NODEFILE",
        "LSB_DJOB_HOSTFILE",
        "LSB_MCPU_HOSTS",
        "PE_HOSTFILE",
        "OAR_NODEFILE",
    ];
    names.iter().any(|name| variable(env, name).is_some_and(|value| !value.is_empty()))
}

/// The number of components of a heterogeneous job of Slurm (`salloc -N1 : -N2`). In it, salloc sets the variables of an allocation
/// for each component alone (`SLURM_JOB_NODELIST_HET_GROUP_0`).
const HET_SIZE: &str = "SLURM_HET_SIZE";

/// Steps of Slurm from here on are not started with srun: the batch script, salloc's shell and others (`slurm.h`,
/// `SLURM_MAX_NORMAL_STEP_ID`).
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// The largest file of hosts.
const MOST: u64 = 16 << 20;

/// The allocation in which rankrun runs. `None` outside of one, and within a rank: there, its hosts are taken.
pub(crate) fn find(env: &[(OsString, OsString)]) -> Result<Option<Allocation>, Problem> {
    let text = |name: &str| variable(env, name).and_then(OsStr::to_str).filter(|text| !text.is_empty());
    if is_in_rank(env) {
        return Ok(None);
    }
    // In a step that srun has started, its own nodes count: the user has chosen them.
    let step = text("SLURM_STEP_ID").and_then(|id| id.parse::<u32>().ok()).filter(|id| *id < FIRST_SPECIAL_STEP);
    let components = text(HET_SIZE).and_then(|size| size.parse::<u32>().ok()).unwrap_or(1);
    if step.is_none() && components > 1 {
        return Err(heterogeneous(components));
    }
    if let Some(job_list) = text("SLURM_JOB_NODELIST") {
        // Of a shell with a terminal (srun --pty) only the first task is there for long.
        let tasks = step.and_then(|_| text("SLURM_STEP_NUM_TASKS")).and_then(|tasks| tasks.parse::<u32>().ok());
        if let Some(tasks) = tasks.filter(|tasks| *tasks > 1 && text("SLURM_PTY_PORT").is_none()) {
            return Err(many(tasks, text("SLURM_STEP_NUM_NODES").and_then(|nodes| nodes.parse().ok())));
        }
        // In a step of a heterogeneous job srun puts the step's nodes there too, and leaves the counts of the component.
        let is_of_step = |list: &&str| components > 1 || *list != job_list;
        let step_list = step.and_then(|_| text("SLURM_STEP_NODELIST")).filter(is_of_step);
        let (name, node_list, tasks, cpus) = match step_list {
            Some(list) => ("SLURM_STEP_NODELIST", list, text("SLURM_STEP_TASKS_PER_NODE"), None),
            None => ("SLURM_JOB_NODELIST", job_list, text("SLURM_TASKS_PER_NODE"), text("SLURM_JOB_CPUS_PER_NODE")),
        };
        let slurm = Slurm { node_list, tasks, cpus, cpus_per_task: text("SLURM_CPUS_PER_TASK") };
        let nodes = slurm_nodes(&slurm).map_err(|error| unreadable(name, error))?;
        let own = text("SLURMD_NODENAME").map(str::to_owned);
        return Ok(Some(Allocation { origin: HostsOrigin::Slurm, nodes, own }));
    }
    let text_of = |name: &str, path: &str| {
        let read = file::read(Path::new(path), MOST);
        let bytes =
            read.map_err(|error| unreadable(name, format!("cannot read \"{path}\": {}", rankrun_sys::reason(&error))))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let of_file = |name: &str, path: &str| {
        let file =
            parse_file(&text_of(name, path)?).map_err(|error| unreadable(name, format!("\"{path}\": {error}")))?;
        merge(file.hosts).map_err(|error| unreadable(name, error))
    };
    if let Some(path) = text("PBS_NODEFILE") {
        let nodes = of_file("PBS_NODEFILE", path)?;
        return Ok(Some(Allocation { origin: HostsOrigin::Pbs, nodes, own: None }));
    }
    let (origin, nodes) = if let Some(path) = text("LSB_DJOB_HOSTFILE") {
        (HostsOrigin::Lsf, of_file("LSB_DJOB_HOSTFILE", path)?)
    } else if let Some(pairs) = text("LSB_MCPU_HOSTS") {
        let hosts = lsf_counts(pairs).map_err(|error| unreadable("LSB_MCPU_HOSTS", error))?;
        (HostsOrigin::Lsf, merge(hosts).map_err(|error| unreadable("LSB_MCPU_HOSTS", error))?)
    } else if let Some(path) = text("PE_HOSTFILE") {
        let hosts = grid_engine_lines(&text_of("PE_HOSTFILE", path)?)
            .map_err(|error| unreadable("PE_HOSTFILE", format!("\"{path}\": {error}")))?;
        (HostsOrigin::GridEngine, merge(hosts).map_err(|error| unreadable("PE_HOSTFILE", error))?)
    } else if let Some(path) = text("OAR_NODEFILE") {
        (HostsOrigin::Oar, of_file("OAR_NODEFILE", path)?)
    } else {
        return Ok(None);
    };
    Ok(Some(Allocation { origin, nodes, own: None }))
}

/// srun has started rankrun several times, and each would start the whole job.
fn many(tasks: u32, nodes: Option<u32>) -> Problem {
    let hint = match nodes {
        Some(nodes) if nodes == tasks => format!(
            "leave out srun: rankrun starts on all nodes by itself; or let the nodes join: --nnodes {nodes} --rendezvous HOST:PORT \
             --secret-file FILE; -H localhost is a job of its own in each task"
        ),
        _ => "leave out srun: rankrun starts on all nodes by itself, with a rank for each task; -H localhost is a job of its own in \
              each task"
            .to_owned(),
    };
    Problem::usage(format!("srun has started rankrun {tasks} times, and each would be the whole job")).hint(hint)
}

/// srun starts the agents in one component only.
fn heterogeneous(components: u32) -> Problem {
    let text = format!("cannot run on the {components} components of a heterogeneous job of Slurm ({HET_SIZE})");
    Problem::usage(text).hint(
        "name the hosts of the components, which ssh must reach: -H HOST:RANKS,...; -H localhost runs here only, and \
         \"srun --het-group=K -N1 -n1 rankrun -n N\" on a node of component K",
    )
}

fn unreadable(name: &str, error: impl std::fmt::Display) -> Problem {
    Problem::usage(format!("{name}: {error}")).hint("name the hosts with -H, or write -H localhost to run here only")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(env: &[(&str, &str)]) -> String {
        let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        match find(&env) {
            Ok(None) => "none".to_owned(),
            Ok(Some(allocation)) => {
                let node = |node: &NodeSlots| format!(" {}:{}", node.name, node.slots);
                let nodes: String = allocation.nodes.iter().map(node).collect();
                let own = allocation.own.map(|own| format!(", this is {own}")).unwrap_or_default();
                format!("{:?}{nodes}{own}", allocation.origin)
            }
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn each_batch_system_is_known_by_its_variables() {
        assert_eq!(found(&[]), "none");
        let slurm = [("SLURM_JOB_NODELIST", "n[1-3]"), ("SLURM_TASKS_PER_NODE", "4(x2),2"), ("SLURMD_NODENAME", "n2")];
        assert_eq!(found(&slurm), "Slurm n1:4 n2:4 n3:2, this is n2");
        assert_eq!(found(&[("LSB_MCPU_HOSTS", "a 4 b 2")]), "Lsf a:4 b:2");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "a\na\nb\na\n").expect("it can be written");
        let path = file.path().to_str().expect("UTF-8");
        assert_eq!(found(&[("PBS_NODEFILE", path)]), "Pbs a:3 b:1");
        assert_eq!(found(&[("LSB_DJOB_HOSTFILE", path), ("LSB_MCPU_HOSTS", "c 4")]), "Lsf a:3 b:1");
        assert_eq!(found(&[("OAR_NODEFILE", path)]), "Oar a:3 b:1");
        std::fs::write(file.path(), "a 4 all.q@a UNDEFINED\nb 2 all.q@b <NULL>\na 1 fast.q@a UNDEFINED\n")
            .expect("again");
        assert_eq!(found(&[("PE_HOSTFILE", path)]), "GridEngine a:5 b:2");
        // A file that cannot be read is no reason to run on this machine alone.
        for name in ["PE_HOSTFILE", "OAR_NODEFILE"] {
            let text = found(&[(name, "/nonexistent/hosts")]);
            assert!(text.contains(name) && text.contains("cannot read \"/nonexistent/hosts\""), "{text}");
        }
    }

    #[test]
    fn a_step_counts_with_its_own_nodes_and_a_rank_with_none() {
        let job = [("SLURM_JOB_NODELIST", "n[1-4]"), ("SLURM_TASKS_PER_NODE", "2(x4)")];
        let step = [("SLURM_STEP_NODELIST", "n3"), ("SLURM_STEP_TASKS_PER_NODE", "1")];
        let with =
            |id: &str, more: &[(&str, &str)]| found(&[&job[..], &step[..], &[("SLURM_STEP_ID", id)], more].concat());
        assert_eq!(with("0", &[]), "Slurm n3:1");
        assert_eq!(with("4294967290", &[]), "Slurm n1:2 n2:2 n3:2 n4:2", "the shell of salloc");
        assert_eq!(with("0", &[("RANKRUN_RANK", "0")]), "none");
        // One of several tasks of a step.
        let tasks = |tasks, nodes| [("SLURM_STEP_NUM_TASKS", tasks), ("SLURM_STEP_NUM_NODES", nodes)];
        assert_eq!(with("0", &tasks("1", "1")), "Slurm n3:1");
        assert_eq!(with("4294967290", &tasks("2", "2")), "Slurm n1:2 n2:2 n3:2 n4:2");
        assert_eq!(with("0", &[("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_PTY_PORT", "4242")]), "Slurm n3:1");
        insta::assert_snapshot!(with("0", &tasks("2", "2")) + &with("0", &tasks("8", "2")));
    }

    #[test]
    fn a_heterogeneous_job_of_slurm_is_refused_outside_of_its_steps() {
        let groups = [
            ("SLURM_HET_SIZE", "2"),
            ("SLURM_JOB_NODELIST_HET_GROUP_0", "n1"),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", "n[2-3]"),
            ("SLURM_NTASKS", "3"),
        ];
        let with = |more: &[(&str, &str)]| found(&[&groups[..], more].concat());
        insta::assert_snapshot!(with(&[]), @r#"
        error: cannot run on the 2 components of a heterogeneous job of Slurm (SLURM_HET_SIZE)
        hint: name the hosts of the components, which ssh must reach: -H HOST:RANKS,...; -H localhost runs here only, and "srun --het-group=K -N1 -n1 rankrun -n N" on a node of component K
        "#);
        // As in a batch script.
        assert_eq!(with(&[("SLURM_JOB_NODELIST", "n1"), ("SLURM_STEP_ID", "4294967291")]), with(&[]));
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NODELIST", "n2"), ("SLURM_JOB_NODELIST", "n2")];
        assert_eq!(
            with(&[&step[..], &[("SLURM_STEP_TASKS_PER_NODE", "1"), ("SLURM_JOB_CPUS_PER_NODE", "1(x2)")]].concat()),
            "Slurm n2:1"
        );
        assert_eq!(with(&[("RANKRUN_RANK", "0")]), "none");
        assert!(is_there(&[("SLURM_HET_SIZE".into(), "2".into())]), "torchrun runs on this machine");
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_a_way_out() {
        let text = [
            found(&[("SLURM_JOB_NODELIST", "n[1-")]),
            found(&[("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "4")]),
            found(&[("PBS_NODEFILE", "/nonexistent")]),
            found(&[("LSB_MCPU_HOSTS", "a b")]),
        ];
        insta::assert_snapshot!(text.join("\n"));
    }
}
