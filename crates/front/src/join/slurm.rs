//! What a step of Slurm runs on each node: it reads the secret from stdin, and joins as the node that Slurm says it is.

use std::ffi::OsString;
use std::io::Read;
use std::time::Duration;

use rankrun_agent::Options;
use rankrun_core::hosts::parse_names;
use rankrun_core::{ExitCode, NodeRank};
use rankrun_wire::identity::Secret;

use super::member::{MemberPlan, run_as};
use super::settings::{FrontAddress, Join, LAST_CALL, Part};

/// How long it tries to reach the front.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a secret, at most.
const SECRET_MOST: u64 = 4096;

/// Runs it. `words` are those after its name. Returns the exit code. The calling process must have one thread.
pub fn run_slurm_node(words: &[OsString]) -> u8 {
    match plan(words) {
        Ok(plan) => run_as(plan).code.0,
        Err(why) => {
            use std::io::Write;
            // srun passes it on.
            let _ = writeln!(std::io::stderr(), "rankrun: {why}");
            ExitCode::INTERNAL.0
        }
    }
}

fn plan(words: &[OsString]) -> Result<MemberPlan, String> {
    let [host, port, names, containment, patience] = words else {
        return Err("this is called by another rankrun alone".to_owned());
    };
    let text = |word: &OsString| word.to_str().map(str::to_owned).ok_or("a word is not UTF-8".to_owned());
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let own = variable("SLURMD_NODENAME").ok_or("SLURMD_NODENAME is not set")?;
    let names = parse_names(&text(names)?).map_err(|error| error.to_string())?;
    let rank = names.iter().position(|name| *name == own).ok_or_else(|| format!("node {own} is none of the job"))?;
    let host = match text(host)?.as_str() {
        // srun sets it for its tasks.
        "-" => variable("SLURM_LAUNCH_NODE_IPADDR").ok_or("SLURM_LAUNCH_NODE_IPADDR is not set")?,
        host => host.to_owned(),
    };
    let number = |word: &OsString| text(word)?.parse::<u64>().map_err(|error| error.to_string());
    let port = u16::try_from(number(port)?).map_err(|error| error.to_string())?;
    let mut secret = String::new();
    std::io::stdin().take(SECRET_MOST).read_to_string(&mut secret).map_err(|error| error.to_string())?;
    let secret = Secret::parse(secret.as_bytes()).ok_or("no secret came through srun")?;
    let rank = NodeRank(rank as u32);
    let join = Join {
        nodes: names.len() as u32,
        spares: 0,
        last_call: LAST_CALL,
        part: Part::Member(Some(rank)),
        front: FrontAddress { host, port },
        secret,
        start_timeout: START_TIMEOUT,
    };
    let containment = Some(text(containment)?).filter(|text| text != "-");
    let patience = Duration::from_millis(number(patience)?);
    let agent = Options { containment, is_away: true, patience };
    Ok(MemberPlan { join, rank: Some(rank), agent, drain: Duration::ZERO, output: None, is_quiet: true, color: false })
}
