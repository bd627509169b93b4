//! The options for where ranks run, and their values.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Arg;
use rankrun_core::hosts::{Host, ListError, Mapping, parse_file, parse_list};
use rankrun_core::job::{Budget, Grow, OnFrontLost, PortRange, Recent};
use rankrun_front::{NODE_TIMEOUT, SshSettings};

use crate::args::{choice, option, switch};
use crate::choices;
use crate::message::Problem;
use crate::settings::{Given, Origin, Sources, duration, read_bool};
use crate::values::START_TIMEOUT;
use crate::{ask, file, words};

/// How many ranks each node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PerNode {
    Count(u32),
    /// One for each GPU.
    Gpus,
}

/// Where ranks run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostSettings {
    /// The hosts that the user has named, with the option that named them.
    pub(crate) named: Option<(Given, Vec<Host>)>,
    pub(crate) per_node: Option<PerNode>,
    pub(crate) mapping: Mapping,
    pub(crate) oversubscribe: bool,
    /// How many ranks the job may have with those that are started later.
    pub(crate) universe: Option<u32>,
    /// How many hosts wait without ranks to replace others.
    pub(crate) spares: u32,
    pub(crate) grow: Grow,
    /// The words of the commands that fence a host that was lost, and that find another in its place.
    pub(crate) fence: Option<Vec<OsString>>,
    pub(crate) replace: Option<Vec<OsString>>,
    /// No attempt begins where only time has passed.
    pub(crate) needs_proof: bool,
    /// A host that was lost so often is left out for a time.
    pub(crate) exclude_after: Option<Recent>,
    /// How long the next attempt waits for hosts without which it cannot begin.
    pub(crate) wait_for_nodes: Duration,
    pub(crate) interface: Option<String>,
    pub(crate) local_addr: Option<IpAddr>,
    pub(crate) ports: Option<PortRange>,
    pub(crate) node_timeout: Duration,
    pub(crate) on_front_lost: OnFrontLost,
    pub(crate) ssh: SshSettings,
    /// More options for srun, in a Slurm allocation.
    pub(crate) srun_args: Vec<OsString>,
}

/// The options, for the help under `heading`: first where ranks run, then how hosts are reached.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    let mut args = vec![
        option(
            "hosts",
            "LIST",
            heading,
            "Hosts to run on: a:4,b:4 or node[01-16]:8",
            "The number after the colon is the number of ranks for that host (its slots, default 1). A host that is listed several \
             times gets a slot each time. Brackets are those of Slurm. \"localhost\" and the names of this \
             machine start ranks here. Without -n, all slots are used. Inside an allocation of Slurm, PBS, LSF, Grid Engine or OAR the hosts \
             are those of the allocation.",
        )
        .short('H'),
        option(
            "hostfile",
            "FILE",
            heading,
            "Read the hosts from a file",
            "One host a line, as \"host\", \"host:4\" (MPICH, Intel MPI) or \"host slots=4 max_slots=8\" (Open MPI); # begins a \
             comment.",
        )
        .value_hint(clap::ValueHint::FilePath),
        option(
            "ppn",
            "N",
            heading,
            "Ranks on each host: N or gpu (GPUs)",
            "Overrides the hosts' slots. Without -n, every host has this number of ranks. \"gpu\" means one rank for each GPU of a \
             host, as many GPUs as Slurm reports or as this machine has.",
        ),
        choice("map", "ORDER", heading, "Order of ranks on the hosts", "The slots of each host limit its ranks.", choices::MAP),
    ];
    args.extend(switch(
        "oversubscribe",
        "no-oversubscribe",
        heading,
        "Allow more ranks than slots on a host",
        "When all slots are used, each host in turn gets one more rank. max_slots= in a host file still applies.",
    ));
    args.push(option(
        "universe",
        "N",
        heading,
        "Room for ranks that MPI_Comm_spawn starts (MPI_UNIVERSE_SIZE)",
        "Counts the first ranks too. Hosts that get none of these are reached all the same, so that others can be started there. It is \
         no limit. Without it Open MPI says the number of slots, or of CPUs on one machine, and MPICH and Intel MPI say none, as under their own launchers.",
    ));
    args.push(option(
        "spares",
        "N",
        heading,
        "Hosts that wait to replace others",
        "They are reached, and have no ranks. With --restart, the attempt after the loss of a host runs on a spare in its place, and the job keeps its \
         size. They are the last hosts of the list or, with -n, the first ones that get no ranks. A host that was lost is called again, and is a \
         spare when it is back.",
    ));
    args.push(choice(
        "grow",
        "WHEN",
        heading,
        "When hosts that are back get ranks again",
        "For a job that runs on fewer hosts than it could (--nnodes MIN:MAX).",
        choices::GROW,
    ));
    args.push(option(
        "exclude-after",
        "N/TIME",
        heading,
        "Leave out a host that was lost N times within TIME: 3/1h",
        "For 10 minutes at first, and twice as long each time. Its ranks go to a spare, or the job goes on without it. \"no\", the default, never leaves \
         one out.",
    ));
    args.push(
        option(
            "replace",
            "COMMAND",
            heading,
            "Ask a command for a host in place of a lost one",
            "The name of the lost host is its last argument. It writes the name of a host that ssh reaches, as in --hosts, which is then a spare. It may take \
             5 minutes; the next attempt waits for it if the job needs it.",
        )
        .value_hint(clap::ValueHint::CommandString),
    );
    args.push(
        option(
            "fence",
            "COMMAND",
            heading,
            "Ask a command to cut off a lost host",
            "The name of the host is its last argument. It exits with 0 when nothing of the job can run there any more: it has switched off the host, say. It is run \
             before another attempt, for a host that does not say itself that nothing is left there. Without it, and where it fails, the attempt \
             waits for the time after which rankrun there has ended the ranks by itself.",
        )
        .value_hint(clap::ValueHint::CommandString),
    );
    args.push(choice(
        "unproven",
        "WHAT",
        heading,
        "What to do about a lost host of which nothing is known",
        "When the time has passed after which rankrun there has ended the ranks by itself.",
        choices::UNPROVEN,
    ));
    args.extend(reaching(heading));
    args
}

/// The options for how other hosts are reached and watched.
fn reaching(heading: &'static str) -> Vec<Arg> {
    let mut args = vec![
        option(
            "interface",
            "NAME",
            heading,
            "Network interface that connects the hosts",
            "MASTER_ADDR and the like are its address on the host of the first rank.",
        ),
        option(
            "local-addr",
            "ADDRESS",
            heading,
            "Address of this machine for the other hosts",
            "Overrides the address of --interface, or that of the route.",
        ),
        option(
            "port-range",
            "A-B",
            heading,
            "Ports that rankrun listens on for other hosts (default: any free port)",
            "Applies to the agents of a Slurm allocation, torch's store, and the coordinators of JAX and TensorFlow. rankrun takes the first \
             free ports; each job needs three, and with --tf-config one more for each rank. --rendezvous has a port of its own.",
        ),
        option(
            "node-timeout",
            "DURATION",
            heading,
            "Time after which a silent host is lost (default 60s)",
            "A host whose connection ends is lost at once.",
        ),
        option(
            "on-front-lost",
            "WHAT",
            heading,
            "What other hosts do when they lose this machine: kill or wait:DURATION",
            "\"kill\", the default, stops their ranks. \"wait:5m\" lets their ranks run on for 5 minutes first. With --detach, also those of this \
             machine run on when rankrun is killed, and another one takes its place: see \"rankrun resume\".",
        ),
        option(
            "srun-args",
            "WORDS",
            heading,
            "More options for srun in a Slurm allocation",
            "One step of srun starts rankrun on the nodes of the allocation. The words are split as a shell does it: \
             --srun-args '--mem=0 --gres=gpu:4'.",
        ),
        option(
            "ssh-command",
            "COMMAND",
            heading,
            "How to call ssh (default ssh)",
            "The command is split into words as a shell does it: --ssh-command 'ssh -F my_config -J gateway'.",
        ),
        option(
            "remote-binary",
            "PATH",
            heading,
            "rankrun on the other hosts",
            "It must have the same version. By default rankrun is looked up in PATH, and copied to the user's cache directory if \
             no such version is found.",
        ),
    ];
    args.extend(switch(
        "copy",
        "no-copy",
        heading,
        "Copy rankrun to hosts that lack this version (default on)",
        "The copy goes to the user's cache directory on that host. With --no-copy such a host is an error.",
    ));
    args
}

/// Reads where ranks run. `warnings` gets what was not followed.
pub(crate) fn read(sources: &Sources<'_>, warnings: &mut Vec<String>) -> Result<HostSettings, Problem> {
    let ssh = SshSettings {
        command: match sources.path("ssh-command")? {
            Some(given) => ssh_command(&given)?,
            None => SshSettings::default().command,
        },
        remote_binary: sources.path("remote-binary")?.map(|given| PathBuf::from(given.text)),
        copies: sources.get("copy", read_bool)?.unwrap_or(true),
    };
    Ok(HostSettings {
        named: named(sources, warnings)?,
        per_node: sources.get("ppn", read_per_node)?,
        mapping: sources.choice("map", choices::MAP)?.unwrap_or_default(),
        oversubscribe: sources.get("oversubscribe", read_bool)?.unwrap_or(false),
        universe: sources.get("universe", read_universe)?.flatten(),
        spares: sources.get("spares", read_spares)?.unwrap_or(0),
        grow: sources.choice("grow", choices::GROW)?.unwrap_or_default(),
        fence: command(sources, "fence")?,
        replace: command(sources, "replace")?,
        needs_proof: sources.choice("unproven", choices::UNPROVEN)?.unwrap_or(false),
        exclude_after: sources.get("exclude-after", read_exclusion)?.flatten(),
        wait_for_nodes: sources.get("start-timeout", duration)?.unwrap_or(START_TIMEOUT),
        interface: sources.get("interface", read_interface)?,
        local_addr: sources.get("local-addr", |text| {
            text.parse().map_err(|_| format!("\"{text}\" is not an address of IPv4 or IPv6"))
        })?,
        ports: sources.get("port-range", read_ports)?,
        node_timeout: sources.get("node-timeout", read_node_timeout)?.unwrap_or(NODE_TIMEOUT),
        on_front_lost: sources.get("on-front-lost", read_on_front_lost)?.unwrap_or_default(),
        ssh,
        srun_args: match sources.path("srun-args")? {
            Some(given) => split(&given)?,
            None => Vec::new(),
        },
    })
}

/// Hydra knows two words beside numbers: both stand for the default.
/// The words of a command.
fn command(sources: &Sources<'_>, key: &'static str) -> Result<Option<Vec<OsString>>, Problem> {
    sources.one(key).filter(|given| given.text != "no").map(|given| crate::restarting::read_command(&given)).transpose()
}

fn read_exclusion(text: &str) -> Result<Option<Recent>, String> {
    if text == "no" {
        return Ok(None);
    }
    let budget: Budget = text.parse().map_err(|error| format!("{error}: write 3/1h"))?;
    match budget.recent.filter(|recent| recent.restarts > 0) {
        Some(recent) => Ok(Some(recent)),
        None => Err(format!("\"{text}\" has no number and time: write 3/1h")),
    }
}

pub(crate) fn read_spares(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number of hosts"))
}

fn read_universe(text: &str) -> Result<Option<u32>, String> {
    match text.to_ascii_lowercase().as_str() {
        "system" | "infinite" => Ok(None),
        number => match number.parse() {
            Ok(number @ 1..) => Ok(Some(number)),
            _ => Err(format!("\"{text}\" is not a number of ranks")),
        },
    }
}

fn read_ports(text: &str) -> Result<PortRange, String> {
    let port = |text: &str| text.trim().parse::<u16>().ok();
    let range = match text.split_once(['-', ':']) {
        Some((first, last)) => port(first).zip(port(last)),
        None => port(text).zip(port(text)),
    };
    range
        .and_then(|(first, last)| PortRange::new(first, last))
        .ok_or_else(|| format!("\"{text}\" is not a range of ports, as in 20000-20099"))
}

/// The hosts of the list or of the file, whichever is nearer: the command line, then the environment, then the
/// configuration file.
fn named(sources: &Sources<'_>, warnings: &mut Vec<String>) -> Result<Option<(Given, Vec<Host>)>, Problem> {
    let nearness = |given: &Given| match given.origin {
        Origin::CommandLine => 0,
        Origin::Variable(_) => 1,
        Origin::File { .. } => 2,
    };
    let (list, file) = (sources.path("hosts")?, sources.path("hostfile")?);
    let given = match (list, file) {
        (Some(list), Some(file)) if nearness(&list) == nearness(&file) => {
            return Err(Problem::usage("--hosts and --hostfile both name the hosts").hint("leave one of them out"));
        }
        (Some(list), Some(file)) => {
            if nearness(&list) < nearness(&file) {
                list
            } else {
                file
            }
        }
        (Some(given), None) | (None, Some(given)) => given,
        (None, None) => return Ok(None),
    };
    let hosts = match given.key {
        "hosts" => {
            let text = given.text.to_str().ok_or_else(|| given.problem("the list is not UTF-8 text"))?;
            // `-H a, b`: the rest of the list would be taken for the program.
            if given.origin == Origin::CommandLine && text.ends_with(',') {
                return Err(given.problem("it ends with a comma").hint("write the list without spaces, as in a:4,b:4"));
            }
            let hint = |error: &ListError| match ask::is_file(Path::new(&given.text)) {
                true => Some("hosts are read from a file with --hostfile"),
                false => error.hint(),
            };
            parse_list(text).map_err(|error| given.problem(&error).hint_if(hint(&error).map(str::to_owned)))?
        }
        _ => host_file(&given, warnings)?,
    };
    Ok(Some((given, hosts)))
}

/// The largest host file: a line of 256 characters for each host that there may be.
const MOST: u64 = 16 << 20;

fn host_file(given: &Given, warnings: &mut Vec<String>) -> Result<Vec<Host>, Problem> {
    let path = Path::new(&given.text);
    let shown = path.display();
    let read =
        |error: std::io::Error| given.problem(format!("cannot read \"{shown}\": {}", rankrun_sys::reason(&error)));
    let bytes = file::read(path, MOST).map_err(|error| {
        let is_list = error.kind() == std::io::ErrorKind::NotFound && shown.to_string().contains(',');
        read(error).hint_if(is_list.then(|| "a list of hosts is written -H a:4,b:4".to_owned()))
    })?;
    let text = String::from_utf8(bytes).map_err(|_| given.problem(format!("\"{shown}\" is not UTF-8 text")))?;
    let file = parse_file(&text).map_err(|error| {
        given
            .problem(format!("\"{shown}\", {error}").replacen(", it names", " names", 1))
            .hint_if(error.hint().map(str::to_owned))
    })?;
    warnings.extend(file.ignored.iter().map(|(line, word)| {
        format!("\"{shown}\", line {line}: {word} is ignored: it is not about ssh or the number of ranks")
    }));
    Ok(file.hosts)
}

fn read_per_node(text: &str) -> Result<PerNode, String> {
    match text {
        "gpu" => Ok(PerNode::Gpus),
        _ => match text.parse() {
            Ok(count) if count > 0 => Ok(PerNode::Count(count)),
            _ => Err(format!("\"{text}\" is not a number of ranks or gpu")),
        },
    }
}

fn read_interface(text: &str) -> Result<String, String> {
    // IFNAMSIZ, with its NUL (netdevice(7)).
    const LONGEST: usize = 15;
    match text.is_empty()
        || text.len() > LONGEST
        || text.contains(|letter: char| letter == '/' || letter.is_whitespace())
    {
        true => Err(format!("\"{text}\" is not the name of a network interface")),
        false => Ok(text.to_owned()),
    }
}

/// Agents are heard every second.
const LEAST_NODE_TIMEOUT: Duration = Duration::from_secs(2);

fn read_node_timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < LEAST_NODE_TIMEOUT => Err(format!("\"{text}\" is too short: write 2s or more")),
        time => Ok(time),
    }
}

fn read_on_front_lost(text: &str) -> Result<OnFrontLost, String> {
    match (text, text.strip_prefix("wait:")) {
        ("kill", _) => Ok(OnFrontLost::Kill),
        (_, Some(time)) => duration(time).map(OnFrontLost::Wait),
        _ => Err(format!("\"{text}\" is not kill or wait:DURATION")),
    }
}

fn ssh_command(given: &Given) -> Result<Vec<OsString>, Problem> {
    match split(given)? {
        words if words.is_empty() => Err(given.problem("it contains no command")),
        words => Ok(words),
    }
}

fn split(given: &Given) -> Result<Vec<OsString>, Problem> {
    let open = || given.problem(format!("a quote is not closed in \"{}\"", given.text.display()));
    words::split(&given.text).ok_or_else(open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::{Invocation, read as read_words};
    use crate::settings::{Settings, resolve};

    fn resolved(env: &[(&str, &str)], words: &[&str]) -> Result<Settings, String> {
        let words = words.iter().chain(&["true"]).map(OsString::from).collect();
        let Ok(Invocation::Job(segments)) = read_words(words) else { panic!("a job") };
        let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        resolve(&segments, &env).map_err(|problem| problem.to_string())
    }

    fn names(settings: &Settings) -> String {
        let named = settings.hosts.named.as_ref();
        named.map(|(_, hosts)| rankrun_core::hosts::fold(hosts.iter().map(|host| &host.name))).unwrap_or_default()
    }

    #[test]
    fn hosts_are_named_by_a_list_or_a_file_whichever_is_nearer() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "c:2 ifhn=c-ib\nd slots=3\n").expect("it can be written");
        let path = file.path().to_str().expect("UTF-8");
        let of = |env: &[(&str, &str)], words: &[&str]| names(&resolved(env, words).expect("good settings"));
        assert_eq!(of(&[], &[]), "");
        assert_eq!(of(&[], &["-H", "n[1-3]:2"]), "n[1-3]");
        assert_eq!(of(&[], &["-Ha,b"]), "a,b");
        assert_eq!(of(&[], &["--hostfile", path]), "c,d");
        assert_eq!(of(&[("RANKRUN_HOSTFILE", path)], &["-H", "a"]), "a");
        assert_eq!(of(&[("RANKRUN_HOSTS", "a")], &["--hostfile", path]), "c,d");
        let warnings = resolved(&[], &["--hostfile", path]).expect("good settings").warnings;
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].ends_with("line 1: ifhn= is ignored: it is not about ssh or the number of ranks"));
    }

    #[test]
    fn values_are_read() {
        let words = [
            "--ppn",
            "4",
            "--map",
            "cyclic",
            "--oversubscribe",
            "--interface",
            "eth0",
            "--local-addr",
            "fe80::1",
            "--port-range",
            "20000-20099",
            "--node-timeout",
            "3s",
            "--on-front-lost",
            "wait:1m",
            "--ssh-command",
            "ssh -F 'my config'",
            "--remote-binary",
            "/opt/rankrun",
            "--no-copy",
        ];
        let hosts = resolved(&[], &words).expect("good settings").hosts;
        assert_eq!(
            (hosts.per_node, hosts.mapping, hosts.oversubscribe),
            (Some(PerNode::Count(4)), Mapping::Cyclic, true)
        );
        assert_eq!((hosts.interface.as_deref(), hosts.node_timeout), (Some("eth0"), Duration::from_secs(3)));
        assert_eq!(hosts.on_front_lost, OnFrontLost::Wait(Duration::from_secs(60)));
        assert_eq!(hosts.local_addr, "fe80::1".parse().ok());
        assert_eq!(hosts.ports, PortRange::new(20_000, 20_099));
        let command = ["ssh", "-F", "my config"].map(OsString::from).to_vec();
        assert_eq!(hosts.ssh, SshSettings { command, remote_binary: Some("/opt/rankrun".into()), copies: false });
        assert_eq!(
            resolved(&[("RANKRUN_PPN", "gpu")], &[]).expect("good settings").hosts.per_node,
            Some(PerNode::Gpus)
        );
        assert!(resolved(&[("RANKRUN_COPY", "no")], &["--copy"]).expect("good settings").hosts.ssh.copies);
    }

    #[test]
    fn mistakes_are_told_with_the_option() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("hosts");
        std::fs::write(&path, "a:4\nb slots=x\n").expect("it can be written");
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "# none\n").expect("it can be written");
        let [path, empty] = [&path, &empty].map(|path| path.to_str().expect("UTF-8"));
        let cases: &[&[&str]] = &[
            &["-H", "n[1-"],
            &["-H", "a:0"],
            &["-H", ""],
            &["-H", "a,"],
            &["-H", path],
            &["--hostfile", "a:2,b"],
            &["--hostfile", path],
            &["--hostfile", empty],
            &["--hostfile", "/nonexistent"],
            &["--hostfile", path, "-H", "a"],
            &["--ppn", "0"],
            &["--ppn", "cpu"],
            &["--map", "random"],
            &["--interface", "a/b"],
            &["--local-addr", "node01"],
            &["--port-range", "20099-20000"],
            &["--port-range", "0-5"],
            &["--port-range", "1-65536"],
            &["--node-timeout", "1s"],
            &["--on-front-lost", "wait"],
            &["--on-front-lost", "wait:x"],
            &["--ssh-command", "ssh '"],
            &["--ssh-command", " "],
        ];
        let error = |words: &&[&str]| {
            let words: Vec<OsString> = words.iter().chain(&["true"]).map(OsString::from).collect();
            let problem = match read_words(words) {
                Ok(Invocation::Job(segments)) => resolve(&segments, &[]).expect_err("a mistake").to_string(),
                Err(problem) => problem.to_string(),
                _ => panic!("a job"),
            };
            problem.replace(directory.path().to_str().expect("UTF-8"), "DIR")
        };
        insta::assert_snapshot!(cases.iter().map(error).collect::<Vec<_>>().join("\n"));
    }
}
