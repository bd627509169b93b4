//! A session over real descriptors that are closed under it, in the middle of traffic both ways.

use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::{Attempt, GroupId, Rank, Stream, WorkerId};
use rankrun_sys::poll::{Poller, Registry};
use rankrun_sys::reactor::Conn;
use rankrun_sys::socket;
use rankrun_wire::frame::OutputHead;
use rankrun_wire::{Frame, Link, LinkError, Retain, Session, ToAgent, ToFront};

const ID: NonZeroU64 = NonZeroU64::new(0x1234_5678_9abc).expect("not zero");
const RETAIN: usize = 300_000;
const OUTPUTS: u32 = 1500;
const MESSAGES: u32 = 3000;

/// Two ends of a byte stream, for token 0 and token 1.
fn sockets(registry: &Registry) -> [Conn; 2] {
    let (front, agent) = socket::pair().expect("a pair of sockets");
    [(0, front), (1, agent)].map(|(token, fd)| Conn::of_socket(registry, token, fd).expect("a connection"))
}

fn pipes(registry: &Registry) -> [Conn; 2] {
    let ((front_reads, agent_writes), (agent_reads, front_writes)) =
        (socket::pipe().expect("a pipe"), socket::pipe().expect("a pipe"));
    [(0, front_reads, front_writes), (1, agent_reads, agent_writes)]
        .map(|(token, reads, writes)| Conn::of_pair(registry, token, reads, writes).expect("a connection"))
}

fn output(number: u32) -> (OutputHead, Bytes) {
    let worker = WorkerId { rank: Rank(number), attempt: Attempt(1) };
    let length = [3, 60_000, 200, 9000][number as usize % 4];
    let head = OutputHead {
        worker,
        stream: Stream::Stdout,
        at: Duration::from_millis(number.into()),
        more: number.is_multiple_of(2),
    };
    (head, Bytes::from(vec![number as u8; length]))
}

/// Both sides in one loop: the agent (1) sends output and notes, the front (0) sends messages.
struct Both {
    poller: Poller,
    links: [Link; 2],
    outputs: u32,
    notes: u32,
    stdin: u32,
    seen_outputs: u32,
    seen_notes: u32,
    seen_stdin: u32,
}

impl Both {
    fn send(&mut self) -> Result<(), LinkError> {
        let [front, agent] = &mut self.links;
        while front.unsent() == 0 && self.stdin < MESSAGES {
            front.send(&ToAgent::Stdin { group: GroupId(0), bytes: Some(self.stdin.to_le_bytes().repeat(40)) })?;
            self.stdin += 1;
            if self.stdin.is_multiple_of(50) {
                break;
            }
        }
        while agent.unsent() == 0 && agent.has_room() && self.outputs < OUTPUTS {
            let (head, bytes) = output(self.outputs);
            agent.output(head, bytes)?;
            agent.send(&ToFront::Note(self.notes.to_string()))?;
            self.outputs += 1;
            self.notes += 1;
        }
        Ok(())
    }

    fn receive(&mut self, side: usize) -> Result<(), LinkError> {
        let filled = self.links[side].fill();
        if side == 0 {
            while let Some(frame) = self.links[0].next_frame::<ToFront>()? {
                match frame {
                    Frame::Output(head, bytes) => {
                        assert_eq!((head, bytes), (output(self.seen_outputs).0, &*output(self.seen_outputs).1));
                        self.seen_outputs += 1;
                    }
                    Frame::Message(ToFront::Note(text)) => {
                        assert_eq!(text, self.seen_notes.to_string());
                        self.seen_notes += 1;
                        assert_eq!(self.seen_notes, self.seen_outputs, "a note stays behind its output");
                    }
                    Frame::Message(other) => panic!("{other:?}"),
                }
            }
        } else {
            while let Some(frame) = self.links[1].next_frame::<ToAgent>()? {
                let Frame::Message(ToAgent::Stdin { bytes: Some(bytes), .. }) = frame else { panic!("{frame:?}") };
                assert_eq!(bytes, self.seen_stdin.to_le_bytes().repeat(40));
                self.seen_stdin += 1;
            }
        }
        filled
    }

    fn is_done(&self) -> bool {
        (self.seen_outputs, self.seen_notes, self.seen_stdin) == (OUTPUTS, OUTPUTS, MESSAGES)
    }

    /// One turn of the loop. Says which sides have seen the end of their byte stream.
    fn turn(&mut self) -> [bool; 2] {
        self.send().expect("a peer that is gone is no error of a write");
        let mut ready = Vec::new();
        self.poller.wait(Some(Duration::from_secs(5)), &mut ready).expect("an epoll set can be waited for");
        assert!(!ready.is_empty(), "nothing moves any more");
        let mut ended = [false; 2];
        for event in ready {
            if !self.poller.is_current(event) {
                continue;
            }
            let side = event.token as usize;
            self.links[side].flush().expect("a peer that is gone is no error of a write");
            match self.receive(side) {
                Ok(()) => {}
                Err(LinkError::Ended) => ended[side] = true,
                Err(error) => panic!("{error}"),
            }
        }
        ended
    }
}

fn survives(connect: fn(&Registry) -> [Conn; 2]) {
    let poller = Poller::new().expect("a poller");
    let registry = poller.registry();
    let links = connect(&registry).map(|conn| Link::new(conn, Session::new(ID, Retain::UpTo(RETAIN)), 64 * 1024));
    let (outputs, notes, stdin, seen_outputs, seen_notes, seen_stdin) = (0, 0, 0, 0, 0, 0);
    let mut both = Both { poller, links, outputs, notes, stdin, seen_outputs, seen_notes, seen_stdin };
    let mut breaks = 0;
    let mut turns = 0;
    while !both.is_done() {
        both.turn();
        turns += 1;
        // By turns one side closes its descriptor, whatever is under way then, and the other finds out.
        if turns % 7 == 0 && breaks < 40 {
            let (closes, finds) = (breaks % 2, 1 - breaks % 2);
            assert!(both.links[closes].suspend(), "all was retained");
            while !both.turn()[finds] {}
            assert!(both.links[finds].suspend(), "all was retained");
            if breaks % 3 == 0 {
                // The next connection breaks before the two have said where they are, or when one of them has.
                let [front, agent] = connect(&registry);
                both.links[0].resume(front).expect("all was retained");
                if breaks % 2 == 0 {
                    both.links[1].resume(agent).expect("all was retained");
                    both.receive(1).expect("the peer is there");
                }
                assert!(both.links[0].suspend() && both.links[1].suspend(), "all was retained");
            }
            for (link, conn) in both.links.iter_mut().zip(connect(&registry)) {
                link.resume(conn).expect("all was retained");
            }
            breaks += 1;
        }
    }
    assert!(breaks >= 10, "{breaks} breaks in {turns} turns");
}

#[test]
fn a_session_taken_up_again_after_its_descriptor_was_closed_loses_and_doubles_nothing() {
    survives(sockets);
    survives(pipes);
}
