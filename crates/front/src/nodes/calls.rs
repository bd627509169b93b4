//! What other machines are called with: this program, and what of this process goes with it.

use std::ffi::OsString;
use std::io;

use bytes::Bytes;
use rankrun_agent::soft_limits;
use rankrun_core::travel::Resource;
use rankrun_core::{JobId, NodeId};
use rankrun_sys::build;
use rankrun_sys::exec::OWN;

use serde::{Deserialize, Serialize};

use super::ssh::{Call, OwnBinary, has_proxy};
use crate::Plan;

/// Nodes that are called at a time, and behind a jump host.
const AT_A_TIME: usize = 64;
const AT_A_TIME_BY_PROXY: usize = 8;

/// What other machines are called with.
#[derive(Debug)]
pub(crate) struct Calls {
    call: Call,
    pub(crate) at_a_time: usize,
    /// The mask of new files' modes, and the limits that the user has set: the front has raised its own.
    pub(crate) umask: u32,
    pub(crate) limits: Vec<(Resource, Option<u64>)>,
    /// The program's bytes, once a node has asked for them.
    pub(crate) binary: Option<Bytes>,
    /// The nodes that wait for it to be read.
    pub(crate) lack_binary: Vec<NodeId>,
}

/// What of them is kept for another front.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    marker: String,
    path: OsString,
    umask: u32,
    limits: Vec<(Resource, Option<u64>)>,
}

impl Calls {
    /// Looks for what relays are called with.
    pub(crate) fn new(plan: &Plan) -> io::Result<Calls> {
        let path = std::env::current_exe()?;
        let own = OwnBinary { size: std::fs::metadata(OWN)?.len(), path: path.into(), id: build::id()? };
        let mut random = [0; 12];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let marker = random.iter().fold("rankrun-".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        let home = std::env::var_os("HOME");
        let is_by_proxy = has_proxy(&plan.hosts.ssh, home.as_deref().map(std::path::Path::new));
        Ok(Calls {
            call: Call {
                job: plan.spec.job.clone(),
                marker,
                own,
                agent: plan.node.clone(),
                keep: plan.hosts.outlasts_front,
            },
            at_a_time: if is_by_proxy { AT_A_TIME_BY_PROXY } else { AT_A_TIME },
            umask: umask(),
            limits: soft_limits(),
            binary: None,
            lack_binary: Vec::new(),
        })
    }

    /// What another front needs to call the same relays, and to start ranks as this one does.
    pub(crate) fn kept(&self) -> Kept {
        let Call { marker, own, .. } = &self.call;
        Kept { marker: marker.clone(), path: own.path.clone(), umask: self.umask, limits: self.limits.clone() }
    }

    /// Another front has called them with this.
    pub(crate) fn going_on(mut self, kept: Kept) -> Calls {
        let Kept { marker, path, umask, limits } = kept;
        (self.call.marker, self.call.own.path) = (marker, path);
        (self.umask, self.limits) = (umask, limits);
        self
    }

    /// What the relay of a node is called with. Two nodes may be one machine: each has a directory and a cgroup of its own.
    pub(crate) fn call(&self, node: NodeId) -> Call {
        Call { job: JobId(format!("{}-n{node}", self.call.job)), ..self.call.clone() }
    }
}

/// The mask of new files' modes. Call it while there is one thread: it is changed for a moment.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.as_raw_mode()
}
