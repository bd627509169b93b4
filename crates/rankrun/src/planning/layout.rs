//! Which hosts a job runs on, and its map of ranks: from the options, the allocation and the names of this machine.

use rankrun_core::env::gpu_mask;
use rankrun_core::hosts::{Host, NodeSlots, PlacementError, Wanted, mentions, merge, place};
use rankrun_core::{NodeRank, RankMap};
use rankrun_front::{Hosts, HostsOrigin, NodeTarget};

use crate::allocation;
use crate::gpus::no_gpus;
use crate::here;
use crate::hosts::{HostSettings, PerNode};
use crate::joining::Joining;
use crate::message::Problem;
use crate::plan::Surroundings;
use crate::settings::{AppSettings, Nproc, Settings};

/// Where every rank of a job runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) map: RankMap,
    pub(crate) hosts: Hosts,
    /// How many ranks each command has.
    pub(crate) sizes: Vec<u32>,
}

/// Decides where ranks run.
pub(crate) fn layout(settings: &Settings, around: &Surroundings) -> Result<Layout, Problem> {
    let Candidates { origin, nodes, is_counted, listed } = match &settings.joining {
        Some(joining) => joining_nodes(joining, settings, around)?,
        None => candidates(&settings.hosts, around)?,
    };
    let is_elsewhere = nodes.iter().any(|node| !node.is_local);
    let sizes: Result<Vec<Option<u32>>, Problem> =
        settings.apps.iter().map(|app| size(app, around, is_elsewhere)).collect();
    let mut sizes = sizes?;
    let per_node = per_node(settings, around, &nodes)?;
    if settings.hosts.spares > 0 {
        spares_are_possible(settings, nodes.len(), origin)?;
    }
    let spares = settings.hosts.spares as usize;
    // Nodes of an allocation that the job does not begin on can replace others.
    let is_allocation = !matches!(origin, HostsOrigin::User | HostsOrigin::Themselves | HostsOrigin::ThisMachine);
    let most = settings.nodes.filter(|count| count.least().is_some() && settings.restart.is_on() && is_allocation);
    let spares = spares.max(most.map_or(0, |count| nodes.len().saturating_sub(count.most as usize)));
    // Where the number of ranks follows from the hosts, they have none from the beginning.
    let mut nodes = nodes;
    let follows = sizes.iter().any(Option::is_none) && (is_counted || per_node.is_some()) && sizes.len() == 1;
    let mut spare = if follows || settings.joining.is_some() {
        nodes.split_off(nodes.len() - spares.min(nodes.len()))
    } else {
        Vec::new()
    };
    // The number of ranks is left to the slots only where there is one command, and somebody has said what they are.
    let default = |size: &mut Option<u32>| *size = size.or(Some(1));
    if sizes.len() > 1 || !(is_counted || per_node.is_some()) {
        sizes.iter_mut().for_each(default);
    }
    let world = sizes.iter().map(|size| size.map(u64::from)).sum::<Option<u64>>();
    let world =
        world.map(|world| u32::try_from(world).map_err(|_| Problem::usage(format!("{world} ranks are too many"))));
    let wanted = Wanted {
        ranks: world.transpose()?,
        per_node,
        mapping: settings.hosts.mapping,
        // What nobody has counted is no bound; and with `--ppn gpu` the GPUs are: a node may have one task for all of them.
        oversubscribe: settings.hosts.oversubscribe
            || (!is_counted && per_node.is_none())
            || settings.hosts.per_node == Some(PerNode::Gpus),
    };
    let slots: Vec<NodeSlots> = nodes.iter().map(|node| node.slots.clone()).collect();
    let homes = place(&slots, &listed, &wanted);
    if let (Err(PlacementError::TooManyRanks { ranks }), false) = (&homes, is_elsewhere) {
        // The limit of the machine says more.
        crate::capacity::check(*ranks)?;
    }
    let homes = homes.map_err(|error| unplaced(&error))?;
    let sizes: Vec<u32> = sizes.iter().map(|size| size.unwrap_or(homes.len() as u32)).collect();
    let mut ranked: Vec<Option<NodeRank>> = vec![None; nodes.len()];
    homes.iter().for_each(|home| ranked[*home] = Some(NodeRank(0)));
    let mut used = Vec::new();
    // Ranks that are started later may get the others.
    let keeps_all = settings.hosts.universe.is_some_and(|universe| universe as usize > homes.len());
    for (node, rank) in nodes.into_iter().zip(&mut ranked) {
        if rank.is_some() || keeps_all {
            *rank = Some(NodeRank(used.len() as u32));
            used.push(node);
        } else if !follows {
            spare.push(node);
        }
    }
    if spare.len() < settings.hosts.spares as usize {
        let spares = settings.hosts.spares;
        let left = spare.len();
        let text = format!("--spares {spares}: {left} hosts are left without ranks");
        return Err(Problem::usage(text).hint("name more hosts, or say how many ranks there are: -n N"));
    }
    spare.truncate(spares);
    let homes: Vec<NodeRank> = homes.iter().filter_map(|home| ranked[*home]).collect();
    // One whose ranks all fit on this machine as well: srun and ssh have nothing to start.
    let origin = match &used[..] {
        [only] if only.is_local && spare.is_empty() => HostsOrigin::ThisMachine,
        _ => origin,
    };
    let least = least(settings, used.len())?;
    let names = used.iter().map(|node| node.slots.name.clone()).collect();
    let target = |node: Candidate| {
        let NodeSlots { name, user, room, .. } = node.slots;
        NodeTarget { name, user: user.filter(|_| !node.is_local), is_local: node.is_local, slots: room }
    };
    Ok(Layout {
        map: RankMap::of_nodes(names, &homes, &sizes),
        hosts: Hosts {
            targets: used.into_iter().chain(spare).map(target).collect(),
            origin,
            ssh: settings.hosts.ssh.clone(),
            srun_args: settings.hosts.srun_args.clone(),
            least,
            wait_for_nodes: settings.hosts.wait_for_nodes,
            fence: settings.hosts.fence.clone(),
            replace: settings.hosts.replace.clone(),
            needs_proof: settings.hosts.needs_proof,
            exclude_after: settings.hosts.exclude_after,
            grow: settings.hosts.grow,
            node_timeout: settings.hosts.node_timeout,
            on_front_lost: settings.hosts.on_front_lost,
            outlasts_front: None,
            interface: settings.hosts.interface.clone(),
            local_addr: settings.hosts.local_addr,
        },
        sizes,
    })
}

/// Whether hosts can wait for the loss of others.
fn spares_are_possible(settings: &Settings, nodes: usize, origin: HostsOrigin) -> Result<(), Problem> {
    let wrong = |text: &str, hint: &str| {
        Err(Problem::usage(format!("--spares {}: {text}", settings.hosts.spares)).hint(hint.to_owned()))
    };
    if !settings.restart.is_on() {
        return wrong("a host is replaced when the job is restarted after its loss", "add --restart N");
    }
    match origin {
        HostsOrigin::Themselves => Ok(()),
        _ if nodes <= settings.hosts.spares as usize => {
            wrong(&format!("the job has only {nodes} hosts"), "name more hosts with -H, or allocate more")
        }
        _ => Ok(()),
    }
}

/// On how few of its nodes the job may run; `None`: it needs all.
fn least(settings: &Settings, nodes: usize) -> Result<Option<u32>, Problem> {
    let Some((count, least)) = settings.nodes.and_then(|count| Some((count, count.least()?))) else { return Ok(None) };
    let wrong = |text: String| Err(Problem::usage(format!("--nnodes {count}: {text}")));
    match nodes as u32 {
        1 if settings.joining.is_none() => wrong("the job has no host but this one".to_owned()).map_err(|problem| {
            problem.hint("name hosts with -H, or write --rendezvous HOST:PORT, where node 0 can be reached")
        }),
        nodes if nodes > count.most => wrong(format!("the job has {nodes} hosts")),
        nodes if nodes < least => wrong(format!("the job has only {nodes} hosts")),
        _ => Ok(Some(least)),
    }
}

fn unplaced(error: &PlacementError) -> Problem {
    Problem::usage(error.to_string()).hint_if(error.hint())
}

/// A node that may get ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Candidate {
    slots: NodeSlots,
    is_local: bool,
}

/// The nodes that may get ranks.
struct Candidates {
    origin: HostsOrigin,
    nodes: Vec<Candidate>,
    /// Somebody has said how many ranks they are for.
    is_counted: bool,
    /// The nodes as the user has listed them, which may name one several times: for `--map seq`.
    listed: Vec<(usize, u32)>,
}

/// The nodes that run this same command. Those that are not node 0 say their names when they join.
fn joining_nodes(joining: &Joining, settings: &Settings, around: &Surroundings) -> Result<Candidates, Problem> {
    let nodes = joining.nodes;
    if let Some((given, _)) = &settings.hosts.named {
        return Err(given
            .problem(format!("the {nodes} nodes of --nnodes join by themselves"))
            .hint("leave one of them out"));
    }
    let count = |app: &AppSettings| match app.nproc {
        Some(Nproc::Count(count)) => Some(count),
        Some(Nproc::Auto | Nproc::Gpus | Nproc::GpusOrCpus) | None => None,
    };
    // In blocks, of which the first may have one more. Too many are refused later.
    let world = settings.apps.iter().map(|app| count(app).map(u64::from)).sum::<Option<u64>>();
    let (all, least) = (u64::from(nodes), |ranks: u64| u32::try_from(ranks).unwrap_or(u32::MAX));
    let slots = |node: u32| {
        world.map_or(1, |world| least(world / all).saturating_add(u32::from(u64::from(node) < world % all)))
    };
    if slots(nodes - 1) == 0 {
        return Err(Problem::usage(format!("{} ranks are too few for {nodes} nodes", world.unwrap_or(0)))
            .hint("-n is the number of ranks of the whole job; --ppn is that of each node"));
    }
    let node = |node: u32| {
        let name = if node == 0 { around.host.clone() } else { format!("node{node}") };
        let slots = NodeSlots { name, user: None, slots: slots(node), room: None, most: None };
        Candidate { slots, is_local: node == 0 }
    };
    Ok(Candidates {
        origin: HostsOrigin::Themselves,
        nodes: (0..nodes + settings.hosts.spares).map(node).collect(),
        is_counted: true,
        listed: Vec::new(),
    })
}

fn candidates(settings: &HostSettings, around: &Surroundings) -> Result<Candidates, Problem> {
    let here = |origin| {
        let slots = NodeSlots { name: around.host.clone(), user: None, slots: 1, room: None, most: None };
        Candidates { origin, nodes: vec![Candidate { slots, is_local: true }], is_counted: false, listed: Vec::new() }
    };
    // This machine alone, without a number, is what there is without any list.
    let is_plain = |nodes: &[Candidate]| matches!(nodes, [node] if node.is_local && node.slots.slots == 1 && node.slots.room.is_none());
    if let Some((given, hosts)) = &settings.named {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let own = here::own_names(&names, &around.host);
        // All names of this machine are one.
        let hosts = hosts.iter().cloned().map(|mut host| {
            if own.contains(host.name.as_str()) {
                host.name.clone_from(&around.host);
                host.user = None;
            }
            host
        });
        let hosts: Vec<Host> = hosts.collect();
        let nodes = merge(hosts.iter().cloned()).map_err(|error| given.problem(error))?;
        let listed = mentions(&hosts, &nodes);
        let is_local = |slots: &NodeSlots| !own.is_empty() && slots.name == around.host;
        let nodes: Vec<Candidate> =
            nodes.into_iter().map(|slots| Candidate { is_local: is_local(&slots), slots }).collect();
        return Ok(match is_plain(&nodes) {
            true => here(HostsOrigin::User),
            false => Candidates { origin: HostsOrigin::User, nodes, is_counted: true, listed },
        });
    }
    let Some(found) = allocation::find(&around.env)? else {
        return Ok(here(HostsOrigin::ThisMachine));
    };
    let is_local = |name: &str| match &found.own {
        Some(own) => name.eq_ignore_ascii_case(own),
        // The names of a batch system are those of its nodes: the resolver is not asked.
        None => here::is_own_name(name, &around.host),
    };
    let local = |slots: NodeSlots| match is_local(&slots.name) {
        true => Candidate { slots: NodeSlots { name: around.host.clone(), ..slots }, is_local: true },
        false => Candidate { slots, is_local: false },
    };
    let nodes: Vec<Candidate> = found.nodes.into_iter().map(local).collect();
    // An allocation of one machine has no bound on the number of ranks.
    Ok(match &nodes[..] {
        [node] if node.is_local => here(HostsOrigin::ThisMachine),
        _ => Candidates { origin: found.origin, nodes, is_counted: true, listed: Vec::new() },
    })
}

/// How many ranks a command has; `None` if it does not say so.
fn size(app: &AppSettings, around: &Surroundings, is_elsewhere: bool) -> Result<Option<u32>, Problem> {
    let gpus = || gpu_mask(&around.env, &app.env).map_or_else(|| around.gpus(), |mask| mask.devices);
    let only_here = |word: &str, what: &str, hint: &str| match is_elsewhere {
        true => {
            let text = format!("-n {word} counts the {what} of this machine, and the job has other hosts");
            Err(Problem::usage(text).hint(hint))
        }
        false => Ok(()),
    };
    match app.nproc {
        None => Ok(None),
        Some(Nproc::Count(count)) => Ok(Some(count)),
        Some(Nproc::Auto) => {
            only_here("auto", "CPUs", "write -n N or --ppn N, or leave out -n for all slots of the hosts")?;
            Ok(Some(around.cpus()))
        }
        Some(Nproc::GpusOrCpus) => {
            only_here("gpu-or-cpu", "GPUs or CPUs", "write --ppn gpu for one rank on each GPU, or --ppn N")?;
            Ok(Some(Some(gpus()).filter(|count| *count > 0).unwrap_or_else(|| around.cpus())))
        }
        Some(Nproc::Gpus) => {
            only_here("gpu", "GPUs", "write --ppn gpu for one rank on each GPU of every host")?;
            match gpus() {
                0 => Err(no_gpus("-n gpu", gpu_mask(&around.env, &app.env))
                    .hint("write -n auto for one rank on each CPU, or a number")),
                count => Ok(Some(count)),
            }
        }
    }
}

/// The number of `--ppn`.
fn per_node(settings: &Settings, around: &Surroundings, nodes: &[Candidate]) -> Result<Option<u32>, Problem> {
    match settings.hosts.per_node {
        None => Ok(None),
        Some(PerNode::Count(count)) => Ok(Some(count)),
        Some(PerNode::Gpus) => {
            let edits = settings.apps.first().map(|app| app.env.as_slice()).unwrap_or_default();
            let mask = gpu_mask(&around.env, edits);
            let of_slurm = crate::slurm::gpus_on_node(around);
            let is_here = nodes.iter().any(|node| node.is_local);
            let count = match mask.as_ref().filter(|_| is_here) {
                Some(mask) => mask.devices,
                None => of_slurm.unwrap_or_else(|| if is_here { around.gpus() } else { 0 }),
            };
            match count {
                0 if !is_here => Err(Problem::usage("--ppn gpu: the GPUs of other hosts are not known here")
                    .hint("write --ppn N, as many as each host has GPUs")),
                0 => Err(no_gpus("--ppn gpu", mask).hint("write --ppn N, as many as each host has GPUs")),
                count => Ok(Some(count)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::OnceCell;
    use std::ffi::OsString;

    use super::*;
    use crate::invocation::{Invocation, read};

    fn planned(env: &[(&str, &str)], words: &[&str]) -> Result<Layout, Problem> {
        let words = words.iter().chain(if words.contains(&":") { &[][..] } else { &["true"] }).map(OsString::from);
        let Ok(Invocation::Job(segments)) = read(words.collect()) else { panic!("a job") };
        let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let around = Surroundings {
            job: rankrun_core::JobId("7f3a91c2".to_owned()),
            env: env.clone(),
            cwd: "/".into(),
            host: "vm".to_owned(),
            cpus: OnceCell::from(3),
            gpus: OnceCell::from(2),
            terminals: [false; 3],
            foreground: false,
            same_destination: false,
            are_files: [true; 2],
            is_stdin_given: false,
            window: None,
        };
        let settings = crate::settings::resolve(&segments, &env).expect("good settings");
        layout(&settings, &around)
    }

    /// The map of a job, as its hosts with their ranks; or the problem.
    fn laid_out(env: &[(&str, &str)], words: &[&str]) -> String {
        match planned(env, words) {
            Err(problem) => problem.to_string(),
            Ok(Layout { map, hosts, sizes }) => {
                let nodes: Vec<String> = hosts
                    .targets
                    .iter()
                    .zip(0u32..)
                    .map(|(target, node)| {
                        assert_eq!(map.node_name(NodeRank(node)), target.name);
                        let ranks: Vec<String> =
                            map.on_node(NodeRank(node)).map(|place| place.rank.to_string()).collect();
                        let user = target.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
                        format!("{}{user}{} {}", if target.is_local { "*" } else { "" }, target.name, ranks.join(","))
                    })
                    .collect();
                assert_eq!(sizes.iter().sum::<u32>(), map.world_size());
                nodes.join("; ")
            }
        }
    }

    #[test]
    fn ranks_go_to_the_hosts_that_are_named() {
        for (words, expected) in [
            (&[][..], "*vm 0"),
            (&["-n", "3"], "*vm 0,1,2"),
            (&["--ppn", "2"], "*vm 0,1"),
            (&["--ppn", "gpu"], "*vm 0,1"),
            (&["-n", "auto"], "*vm 0,1,2"),
            (&["-H", "localhost"], "*vm 0"),
            (&["-H", "localhost", "-n", "3"], "*vm 0,1,2"),
            (&["-H", "localhost:4"], "*vm 0,1,2,3"),
            (&["-H", "localhost:2,127.0.0.1,vm"], "*vm 0,1,2,3"),
            (&["-H", "203.0.113.1:2,vm:2"], "203.0.113.1 0,1; *vm 2,3"),
            (&["-H", "203.0.113.[1-2]:2,localhost:2", "-n", "2"], "203.0.113.1 0,1"),
            (&["-H", "203.0.113.[1-2]", "--ppn", "2", "--map", "cyclic"], "203.0.113.1 0,2; 203.0.113.2 1,3"),
            (&["-H", "me@203.0.113.1,me@localhost"], "me@203.0.113.1 0; *vm 1"),
            (&["-H", "203.0.113.1:1,vm:3", "-n", "1", "true", ":", "-n", "2", "true"], "203.0.113.1 0; *vm 1,2"),
            (&["-H", "203.0.113.1,vm", "-n", "4", "--oversubscribe"], "203.0.113.1 0,1; *vm 2,3"),
        ] {
            assert_eq!(laid_out(&[], words), expected, "{words:?}");
        }
    }

    #[test]
    fn an_allocation_says_where_ranks_go_unless_hosts_are_named() {
        let slurm = [
            ("SLURM_JOB_NODELIST", "n[1-2],vm"),
            ("SLURM_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_JOB_CPUS_PER_NODE", "4(x3)"),
        ];
        for (words, expected) in [
            (&[][..], "n1 0,1; n2 2,3; *vm 4"),
            (&["-n", "3"], "n1 0,1; n2 2"),
            (&["-n", "8"], "n1 0,1,2; n2 3,4,5; *vm 6,7"),
            (&["--ppn", "4"], "n1 0,1,2,3; n2 4,5,6,7; *vm 8,9,10,11"),
            (&["-H", "localhost:2"], "*vm 0,1"),
        ] {
            assert_eq!(laid_out(&slurm, words), expected, "{words:?}");
        }
        let with = |more: &[(&str, &str)], words: &[&str]| laid_out(&[&slurm[..], more].concat(), words);
        assert_eq!(with(&[("SLURMD_NODENAME", "n2")], &["-n", "3"]), "n1 0,1; *vm 2", "the node is this machine");
        assert_eq!(with(&[("RANKRUN_RANK", "0")], &["-n", "3"]), "*vm 0,1,2", "within a rank");
        assert_eq!(with(&[("SLURM_GPUS_ON_NODE", "3")], &["--ppn", "gpu", "-n", "4"]), "n1 0,1,2; n2 3");
        let alone = [("SLURM_JOB_NODELIST", "vm"), ("SLURM_TASKS_PER_NODE", "4")];
        assert_eq!(laid_out(&alone, &[]), "*vm 0", "one machine is as without Slurm");
        let heterogeneous = [("SLURM_HET_SIZE", "2")];
        assert_eq!(laid_out(&heterogeneous, &["-H", "localhost", "-n", "2"]), "*vm 0,1");
        assert!(laid_out(&heterogeneous, &["-n", "2"]).contains("heterogeneous"));
        assert_eq!(laid_out(&alone, &["-n", "9"]), "*vm 0,1,2,3,4,5,6,7,8");
    }

    #[test]
    fn a_job_of_an_allocation_whose_ranks_all_fit_on_this_machine_is_a_local_one() {
        let slurm = [("SLURM_JOB_NODELIST", "vm,n[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x3)")];
        let origin = |own: &str, words: &[&str]| {
            let env = [&slurm[..], &[("SLURMD_NODENAME", own)]].concat();
            planned(&env, words).map(|layout| layout.hosts.origin).map_err(|problem| problem.to_string())
        };
        assert_eq!(origin("vm", &["-n", "2"]), Ok(HostsOrigin::ThisMachine));
        assert_eq!(origin("vm", &["-n", "3"]), Ok(HostsOrigin::Slurm));
        assert_eq!(origin("n1", &["-n", "2"]), Ok(HostsOrigin::Slurm), "the first node is another machine");
    }

    #[test]
    fn what_cannot_be_placed_is_refused_with_a_way_out() {
        let slurm =
            [("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "1(x2)"), ("SLURM_JOB_CPUS_PER_NODE", "2(x2)")];
        let text = [
            laid_out(&[], &["-H", "203.0.113.1,localhost", "-n", "4"]),
            laid_out(&[], &["-H", "localhost:2", "-n", "4"]),
            laid_out(&[], &["-H", "localhost,localhost", "-n", "3"]),
            laid_out(&[], &["-H", "203.0.113.[1-4]:2", "--ppn", "3"]),
            laid_out(&[], &["--ppn", "2", "-n", "3"]),
            laid_out(&[], &["-H", "me@203.0.113.1,you@203.0.113.1"]),
            laid_out(&[], &["-H", "203.0.113.1:4", "-n", "auto"]),
            laid_out(&[], &["-H", "203.0.113.1:4", "-n", "gpu"]),
            laid_out(&[], &["-H", "203.0.113.1", "--ppn", "gpu"]),
            laid_out(&slurm, &["-n", "5"]),
            laid_out(&[("SLURM_JOB_NODELIST", "n[1-")], &[]),
        ];
        insta::assert_snapshot!(text.join("\n"));
    }
}
