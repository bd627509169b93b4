//! Nodes, and how their workers meet: torchrun's rendezvous, of which one node needs little.

use super::parse::{Given, Options};
use super::table::ETCD;
use crate::message::Problem;

/// What the workers are told about the rendezvous.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Meeting {
    /// Where rank 0's store is to be, if it is not left to us.
    pub(super) master: Option<(String, String)>,
    /// The id of the run, if it is not left to us.
    pub(super) run_id: Option<String>,
    pub(super) warning: Option<String>,
}

const MANY: &str = "several machines come with many nodes: this version of rankrun starts workers on one";

/// Reads everything about nodes and rendezvous.
pub(super) fn read(options: &Options) -> Result<Meeting, Problem> {
    let warning = options.get("--nnodes").map(nodes).transpose()?.flatten();
    if let Some(rank) = options.get("--node-rank")
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
            return Err(given.problem(format!("\"{name}\" is not supported: c10d or static")).hint(ETCD));
        }
    };
    let endpoint =
        options.get("--rdzv-endpoint").map(|given| Ok::<_, Problem>((given, endpoint(given)?))).transpose()?;
    let port = options.get("--master-port").map(port).transpose()?;
    let address = options.get("--master-addr").map(|given| Ok::<_, Problem>(given.utf8()?.to_owned())).transpose()?;
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
    Ok(Meeting { master, run_id: Some(run_id), warning })
}

/// `N` or `MIN:MAX`. Returns a warning where more nodes might come.
fn nodes(given: &Given) -> Result<Option<String>, Problem> {
    let text = given.utf8()?;
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count > 0);
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    match (number(min), number(max)) {
        (Some(min), Some(max)) if min > max => {
            Err(given.problem(format!("\"{text}\" begins with the larger number")).hint("write MIN:MAX"))
        }
        (Some(1), Some(1)) => Ok(None),
        (Some(1), Some(_)) => Ok(Some(format!(
            "{} {text}: starting with one node, this machine; nodes that join a running job come with many nodes",
            given.origin
        ))),
        (Some(_), Some(_)) => {
            let problem = given.problem(format!("{text} nodes are not supported yet"));
            Err(problem.hint(format!("{MANY}; write --nnodes 1")))
        }
        _ => Err(given.problem(format!("\"{text}\" is not a number of nodes")).hint("write N, or MIN:MAX")),
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
