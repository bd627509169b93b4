//! What happens to the front, and what it has done about it.

use rankrun_core::NodeRank;
use rankrun_wire::{ToAgent, ToFront};

use crate::delivery::Told;
use crate::link::LinkError;
use crate::nodes::Act;

/// What happens to the front. Output is no event: its bytes go from the stream to the destinations as they are.
#[derive(Debug)]
pub(crate) enum FrontEvent {
    /// An agent has said something.
    Agent { node: NodeRank, message: ToFront },
    /// An agent can no longer be heard.
    AgentLost { node: NodeRank, error: LinkError },
    /// A signal has arrived from the process `sender`; 0 is the kernel.
    Signal { number: i32, sender: i32 },
    /// A destination has something to say.
    Delivery(Told),
    /// Bytes of our stdin, or its end.
    Stdin(Option<Vec<u8>>),
    /// Time has passed. `quiet`: no output has come.
    Tick { quiet: bool },
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum FrontEffect {
    /// Send a message to a node, or to all.
    Send { to: Option<NodeRank>, message: ToAgent },
    /// Guard or agent of a node are given up.
    Act { node: NodeRank, act: Act },
}
