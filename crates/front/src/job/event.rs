//! The events that the front handles, and the effects that it orders.

use std::time::Duration;

use rankrun_core::control::{Answer, Request};
use rankrun_core::gang::Requester;
use rankrun_core::{NodeId, NodeRank};
use rankrun_wire::message::Meeting;
use rankrun_wire::{ToAgent, ToFront};

use crate::delivery::DeliveryEvent;
use crate::job::control::ClientId;
use crate::link::LinkError;
use rankrun_agent::Act;

/// An event. Output is not one: its bytes go directly from the stream to the destinations.
#[derive(Debug)]
pub(crate) enum FrontEvent {
    /// An agent has sent a message.
    Agent { node: NodeId, message: ToFront },
    /// The connection to an agent is lost.
    AgentLost { node: NodeId, error: LinkError },
    /// A signal has arrived from the process `sender`; 0 is the kernel.
    Signal { number: i32, sender: i32 },
    /// A destination has reported something.
    Delivery(DeliveryEvent),
    /// Bytes of our stdin, or its end.
    Stdin(Option<Vec<u8>>),
    /// Another process asks something (`rankrun status`).
    Request { client: ClientId, by: Requester, request: Request },
    /// Time has passed. `quiet`: no output has come.
    Tick { quiet: bool },
}

/// An effect for the loop to perform.
#[derive(Debug)]
pub(crate) enum FrontEffect {
    /// Send a message to all nodes, or to one.
    Send(ToAgent),
    SendTo(NodeId, ToAgent),
    /// Tell a node to start the present attempt. The message has the whole job in it, and is made when it is sent.
    Start(NodeRank, Meeting),
    /// The job is ended from outside: note for the report where the ranks are.
    KeepStandings(Duration),
    /// Answer a request.
    Answer {
        client: ClientId,
        answer: Box<Answer>,
    },
    /// Guard or agent of a node are given up.
    Act {
        node: NodeId,
        act: Act,
    },
}
