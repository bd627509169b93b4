//! Where the ranks of a job meet, and how torch, JAX and TensorFlow are told.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::Rank;
use crate::spec::job::{JobSpec, TorchStore};

/// Variables that tell torch where the store is, and who serves it. A user who sets one of them means another store.
const STORE_VARIABLES: [&str; 3] = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"];

/// Ports that are held for the job, on the node of its first rank. Each is for one listener: a program may use torch and JAX
/// side by side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rendezvous {
    pub addr: String,
    /// For torch's store.
    pub master_port: u16,
    /// Whether the agent serves torch's store there. Else the first rank does.
    pub agent_store: bool,
    /// For JAX's coordinator, which the first rank starts.
    pub jax_port: u16,
    /// For TensorFlow's servers, by rank; empty unless the job wants `TF_CONFIG`.
    pub tensorflow_ports: Vec<u16>,
    /// Where the ranks of this node find torch's store, if agents relay it.
    pub relay: Option<SocketAddr>,
}

impl Rendezvous {
    /// How many ports a job needs.
    pub fn port_count(spec: &JobSpec) -> usize {
        2 + if spec.tf_config { spec.map.world_size() as usize } else { 0 }
    }

    /// Whether the agent is to serve torch's store: it is wanted, and the ranks will look for it at the agent's port.
    pub fn wants_agent_store(spec: &JobSpec) -> bool {
        spec.torch_store != TorchStore::Rank0
            && !spec.apps.iter().any(|app| STORE_VARIABLES.iter().any(|name| app.edits(OsStr::new(name))))
    }

    /// Whether each agent is to serve its own ranks alone, and to relay the store to those of other nodes. So it is also while there is one
    /// node: others may come.
    pub fn wants_relay(spec: &JobSpec) -> bool {
        spec.torch_store == TorchStore::Relay
    }

    /// A rendezvous at these ports; `None` if they are too few.
    pub fn new(addr: impl Into<String>, ports: &[u16], agent_store: bool) -> Option<Rendezvous> {
        let [master_port, jax_port, tensorflow_ports @ ..] = ports else { return None };
        let (master_port, jax_port) = (*master_port, *jax_port);
        Some(Rendezvous {
            addr: addr.into(),
            master_port,
            agent_store,
            jax_port,
            tensorflow_ports: tensorflow_ports.to_vec(),
            relay: None,
        })
    }

    /// What all ranks get alike.
    pub(crate) fn shared(&self) -> [(&'static str, OsString); 4] {
        let (addr, port) = match self.relay {
            Some(relay) => (relay.ip().to_string(), relay.port()),
            None => (self.addr.clone(), self.master_port),
        };
        [
            ("MASTER_ADDR", OsString::from(addr)),
            ("MASTER_PORT", port.to_string().into()),
            // torch 2.15, distributed/rendezvous.py: with "True" no rank starts a store at this address.
            ("TORCHELASTIC_USE_AGENT_STORE", if self.agent_store { "True" } else { "False" }.into()),
            ("RANKRUN_JAX_COORDINATOR", self.at(self.jax_port).into()),
        ]
    }

    /// The address with a port, as gRPC reads it: an IPv6 address in brackets.
    fn at(&self, port: u16) -> String {
        match self.addr.contains(':') {
            true => format!("[{}]:{port}", self.addr),
            false => format!("{}:{port}", self.addr),
        }
    }

    /// The `TF_CONFIG` of a rank, as `tf.distribute.MultiWorkerMirroredStrategy` reads it: all ranks are workers.
    pub(crate) fn tf_config(&self, rank: Rank) -> Option<OsString> {
        self.tensorflow_ports.get(rank.number() as usize)?;
        let workers: Vec<String> = self.tensorflow_ports.iter().map(|port| format!("\"{}\"", self.at(*port))).collect();
        let workers = workers.join(", ");
        let task = format!("{{\"type\": \"worker\", \"index\": {rank}}}");
        Some(format!("{{\"cluster\": {{\"worker\": [{workers}]}}, \"task\": {task}}}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_a_worker_of_tensorflow_with_a_port_of_its_own() {
        let rendezvous = Rendezvous::new("127.0.0.1", &[41000, 41001, 41002, 41003], true).expect("enough ports");
        insta::assert_snapshot!(rendezvous.tf_config(Rank(1)).expect("a rank of it").display(), @r#"{"cluster": {"worker": ["127.0.0.1:41002", "127.0.0.1:41003"]}, "task": {"type": "worker", "index": 1}}"#);
        assert_eq!(rendezvous.tf_config(Rank(2)), None, "there are two ranks");
        let without = Rendezvous::new("127.0.0.1", &[41000, 41001], true).expect("enough ports");
        assert_eq!(without.tf_config(Rank(0)), None);
        assert_eq!(Rendezvous::new("127.0.0.1", &[41000], true), None);
    }

    #[test]
    fn a_relay_is_for_torch_alone() {
        let relay = Some((std::net::Ipv6Addr::LOCALHOST, 5).into());
        let rendezvous = Rendezvous::new("10.0.0.1", &[41000, 41001], true).expect("enough ports");
        let [address, port, _, coordinator] = Rendezvous { relay, ..rendezvous }.shared().map(|(_, value)| value);
        assert_eq!((address, port, coordinator), ("::1".into(), "5".into(), "10.0.0.1:41001".into()));
    }

    #[test]
    fn an_ipv6_address_is_bare_for_torch_and_in_brackets_before_a_port() {
        let rendezvous = Rendezvous::new("2001:db8::1", &[41000, 41001, 41002], true).expect("enough ports");
        let [address, _, _, coordinator] = rendezvous.shared().map(|(_, value)| value);
        assert_eq!((address, coordinator), ("2001:db8::1".into(), "[2001:db8::1]:41001".into()));
        let config = rendezvous.tf_config(Rank(0)).expect("a rank of it").into_string().expect("text");
        assert!(config.contains("[\"[2001:db8::1]:41002\"]"), "{config}");
    }
}
