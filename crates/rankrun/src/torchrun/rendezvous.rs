//! Nodes, and how they and their workers meet: torchrun's rendezvous. One node needs little of it; several join node 0.

use std::net::IpAddr;

use super::parse::{Given, Options};
use crate::message::Problem;
use rankrun_core::suggest::nearest;

/// What the workers are told about the rendezvous.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Meeting {
    /// Where rank 0's store is to be, if it is not left to us.
    pub(super) master: Option<(String, String)>,
    /// The id of the run, if it is not left to us.
    pub(super) run_id: Option<String>,
    pub(super) warning: Option<String>,
    /// Several nodes run this command.
    pub(super) nodes: Option<Nodes>,
}

/// The nodes of a job of several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Nodes {
    /// `N`, or `MIN:MAX`.
    pub(super) count: String,
    /// This one; `None` where torchrun would find out.
    pub(super) rank: Option<u64>,
    /// Where node 0 is reached.
    pub(super) address: String,
    /// Nodes come and go.
    pub(super) is_elastic: bool,
    /// The times of `--rdzv-conf` that matter, in seconds: for the first nodes, and for more once there are enough.
    pub(super) join: Option<u64>,
    pub(super) last_call: Option<u64>,
}

const MANY: &str = "write --nnodes N, how many machines run this command";

/// Whether an endpoint is of this machine only: no other machine reaches it.
fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads everything about nodes and rendezvous. `has_secret`: a secret of the job is named, without which no node joins.
pub(super) fn read(options: &Options, has_secret: bool) -> Result<Meeting, Problem> {
    let nodes = options.get("--nnodes").map(nodes).transpose()?;
    let (least, most) = nodes.unwrap_or((1, 1));
    let endpoint =
        options.get("--rdzv-endpoint").map(|given| Ok::<_, Problem>((given, endpoint(given)?))).transpose()?;
    // A port that the kernel chooses is known to nobody else.
    let is_known = |port: &Option<String>| port.as_deref().is_none_or(|port| port.parse() != Ok(0));
    let can_meet = match &endpoint {
        Some((_, (_, port))) => is_known(port),
        None => options.has("--master-addr"),
    };
    // A command without a place to meet has this machine only. The same is true of a place that only this machine reaches,
    // unless several commands of this machine are to meet there: these have a secret.
    let is_local = !has_secret && endpoint.as_ref().is_some_and(|(_, (host, _))| is_loopback(host));
    let is_alone = least == 1 && most > 1 && (!can_meet || is_local || options.has("--standalone"));
    let warning = options.get("--nnodes").filter(|_| is_alone).map(|given| {
        let (origin, text) = (&given.origin, given.text.display());
        format!(
            "{origin} {text}: starting with one node, this machine; others need --rdzv-endpoint HOST:PORT{}",
            if is_local { " of a host that they reach" } else { "" }
        )
    });
    let count = if is_alone { 1 } else { most };
    if let Some(rank) = options.get("--node-rank").filter(|_| count == 1)
        && rank.number()? != 0
    {
        let problem = rank.problem(format!("{} is not the first node, and there is one", rank.utf8()?));
        return Err(problem.hint(MANY));
    }
    let backend = options.get("--rdzv-backend");
    let is_static = match backend.map(Given::utf8).transpose()? {
        None | Some("static") => true,
        Some("c10d") => false,
        Some(name) => {
            let given = backend.expect("it has a name");
            let hint = match nearest(name, ["c10d", "static"]) {
                _ if name.starts_with("etcd") => {
                    format!("{}: no etcd server is needed, on one machine or on several", given.left_out())
                }
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "write c10d or static".to_owned(),
            };
            return Err(given.problem(format!("\"{name}\" is not supported: c10d or static")).hint(hint));
        }
    };
    let times = options.get("--rdzv-conf").map_or(Ok((None, None)), configuration)?;
    let port = options.get("--master-port").map(port).transpose()?;
    let address = options.get("--master-addr").map(|given| Ok::<_, Problem>(given.utf8()?.to_owned())).transpose()?;
    if count > 1 {
        if let Some((given, _)) = endpoint.as_ref().filter(|_| !can_meet) {
            let problem = given.problem("with port 0 no other node knows where to meet".to_owned());
            return Err(problem.hint("write --rdzv-endpoint HOST:PORT, where node 0 can be reached"));
        }
        // Without restarts, a job that needs all of its nodes ends with one of them.
        let restarts = options.get("--max-restarts").map(Given::number).transpose()?.unwrap_or(0);
        let is_range = least < most || (!is_static && restarts > 0);
        let count = if is_range { format!("{least}:{most}") } else { most.to_string() };
        let nodes =
            several(options, count, (is_static, least < most, times), endpoint.map(|(_, found)| found), address, port)?;
        let run_id = options.get("--rdzv-id").map(|id| Ok::<_, Problem>(id.utf8()?.to_owned())).transpose()?;
        return Ok(Meeting {
            run_id: Some(run_id.unwrap_or_else(|| "none".to_owned())),
            nodes: Some(nodes),
            ..Meeting::default()
        });
    }
    // As run.py decides it: whoever names no port gets a free one, and an id.
    let is_auto = options.has("--standalone") || (is_static && endpoint.is_none() && port.is_none());
    if is_auto {
        return Ok(Meeting { warning, ..Meeting::default() });
    }
    let run_id = match options.get("--rdzv-id") {
        Some(id) => id.utf8()?.to_owned(),
        None => "none".to_owned(),
    };
    let local = || "127.0.0.1".to_owned();
    let master = match endpoint {
        _ if !is_static => None,
        Some((_, (host, port))) => Some((host, port.unwrap_or_else(|| "29500".to_owned()))),
        None => Some((address.unwrap_or_else(local), port.unwrap_or_else(|| "29500".to_owned()))),
    };
    Ok(Meeting { master, run_id: Some(run_id), warning, nodes: None })
}

/// Where several nodes meet. Node 0 listens there; the workers have another port.
fn several(
    options: &Options,
    count: String,
    (is_static, is_elastic, (join, last_call)): (bool, bool, (Option<u64>, Option<u64>)),
    endpoint: Option<(String, Option<String>)>,
    address: Option<String>,
    port: Option<String>,
) -> Result<Nodes, Problem> {
    // The ports of torchrun: that of c10d, and that of a static rendezvous.
    let default = if is_static { "29500" } else { "29400" };
    let (host, port) = match (endpoint, address) {
        (Some((host, port)), _) => (host, port.unwrap_or_else(|| default.to_owned())),
        (None, Some(host)) => (host, port.unwrap_or_else(|| default.to_owned())),
        (None, None) => {
            return Err(Problem::usage(format!("--nnodes {count} needs --rdzv-endpoint or --master-addr"))
                .hint("write --rdzv-endpoint HOST:PORT, where node 0 can be reached"));
        }
    };
    let rank = match options.get("--node-rank") {
        Some(rank) => Some(u64::from(rank.number()?)),
        // A static rendezvous numbers them by the option alone, whose default is 0.
        None => is_static.then_some(0),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(Nodes { count, rank, address: format!("{host}:{port}"), is_elastic, join, last_call })
}

/// `N` or `MIN:MAX`.
fn nodes(given: &Given) -> Result<(u32, u32), Problem> {
    let text = given.utf8()?;
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count > 0);
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    match (number(min), number(max)) {
        (Some(min), Some(max)) if min > max => {
            Err(given.problem(format!("\"{text}\" begins with the larger number")).hint("write MIN:MAX"))
        }
        (Some(min), Some(max)) => Ok((min, max)),
        _ => Err(given.problem(format!("\"{text}\" is not a number of nodes")).hint("write N, or MIN:MAX")),
    }
}

/// Refuses what torchrun refuses. Returns `join_timeout` and `last_call_timeout`; nothing else is needed here.
fn configuration(given: &Given) -> Result<(Option<u64>, Option<u64>), Problem> {
    let text = given.utf8()?.trim();
    let is_pair = |pair: &str| {
        pair.split_once('=').is_some_and(|(key, value)| !key.trim().is_empty() && !value.trim().is_empty())
    };
    match text.is_empty() || text.split(',').all(is_pair) {
        true => {
            let pairs = || text.split(',').filter_map(|pair| pair.split_once('='));
            let time = |name: &str| {
                let (_, value) = pairs().rfind(|(key, _)| key.trim() == name)?;
                let wrong = || given.problem(format!("{name}={value}: not a number of seconds"));
                Some(value.trim().parse::<u64>().ok().filter(|time| *time > 0).ok_or_else(wrong))
            };
            Ok((time("join_timeout").transpose()?, time("last_call_timeout").transpose()?))
        }
        false => Err(given.problem(format!("\"{text}\" is not KEY=VALUE,...")).hint("write it as in join_timeout=600")),
    }
}

/// `host`, `host:port` or `[address]:port`.
fn endpoint(given: &Given) -> Result<(String, Option<String>), Problem> {
    let text = given.utf8()?.trim();
    let wrong =
        |what: &str| given.problem(format!("\"{text}\": {what}")).hint("write HOST:PORT, as in localhost:29400");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| wrong("a \"]\" is missing"))?;
            (host, rest.strip_prefix(':'))
        }
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(wrong("the host is missing"));
    }
    if let Some(port) = port
        && port.parse::<u16>().is_err()
    {
        return Err(wrong("the port is not a number from 0 to 65535"));
    }
    Ok((host.to_owned(), port.map(str::to_owned)))
}

fn port(given: &Given) -> Result<String, Problem> {
    let text = given.utf8()?.trim();
    match text.parse::<u16>() {
        Ok(port) => Ok(port.to_string()),
        Err(_) => Err(given.problem(format!("\"{text}\" is not a port, a number from 0 to 65535"))),
    }
}
