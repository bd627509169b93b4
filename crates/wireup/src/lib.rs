//! Servers without I/O for the protocols that ranks use to find each other.
//!
//! A server here owns no socket, clock or thread. Bytes from a rank go in, [effects](pmi1::Effect) come out, and a
//! driver performs them. What a client sends can end its own connection and nothing else: it never panics the server,
//! never grows its memory beyond a constant for each client, and never reaches another client's conversation.

pub mod messages;
pub mod pmi1;
pub mod pmix;
pub mod tcpstore;
pub mod worker;
