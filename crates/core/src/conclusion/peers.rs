//! How a failure tells that it comes from the loss of another rank.

use crate::testimony::Exception;
use crate::traceback::{exception_line, frame, is_header};

/// What was lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// Nobody answered, who may never have been there.
    Unreached,
    /// The other end of a connection, which may be anything.
    Connection,
    /// A rank: only libraries for ranks speak like that.
    Peer,
}

/// What gloo, NCCL, torch's store, JAX and MPI libraries say when a rank is gone, or does not answer.
const PEER: [&str; 27] = [
    // JAX, of its service or its heartbeats.
    "most likely indicates that another task died",
    "connection closed by peer [",
    "gloo/transport/",
    "recvvalue failed",
    "sendbytes failed",
    "recvbytes failed",
    "failed to recv, got 0 bytes",
    "remote process exited or there was a network error",
    "ncclremoteerror",
    "nccl communicator was aborted",
    "watchdog caught collective operation timeout",
    "process group watchdog thread terminated",
    "failed to pass monitoredbarrier",
    "for recv operation to complete",
    "for send operation to complete",
    "clients joined",
    "wait timeout after",
    "collectivefingerprint",
    "mpi_err_proc_failed",
    "mpix_err_proc_failed",
    "communication error with rank",
    // Open MPI without its texts.
    "a peer hung up",
    "readline failed",
    "distnetworkerror",
    "diststoreerror",
    "distbackenderror",
    "socket closed by remote peer",
];

/// What sockets and pipes say, in Python and elsewhere, of a connection that there was.
const CONNECTION: [&str; 20] = [
    "connection closed",
    "connection reset by peer",
    "connection was reset",
    "connection lost",
    "connection aborted",
    "lost connection",
    "lost the connection",
    "closed the connection",
    "closed connection",
    "connectionreseterror",
    "connectionabortederror",
    "brokenpipeerror",
    "broken pipe",
    "socket closed",
    "peer closed",
    "closed by peer",
    "peer disconnected",
    "server disconnected",
    "incompletereaderror",
    "eoferror: ran out of input from peer",
];

/// What they say where there was none, or no answer.
const UNREACHED: [&str; 4] = ["connectionrefusederror", "connection refused", "socket timeout", "connection timed out"];

/// What a line of text says to be lost.
pub fn loss_in(text: &str) -> Option<Loss> {
    // What `multiprocessing.connection` raises where the other end is gone; the end of a file has a message.
    if text.trim_end() == "EOFError" {
        return Some(Loss::Connection);
    }
    let text = text.to_ascii_lowercase();
    let has = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
    [(Loss::Peer, &PEER[..]), (Loss::Connection, &CONNECTION[..]), (Loss::Unreached, &UNREACHED[..])]
        .into_iter()
        .find_map(|(loss, phrases)| has(phrases).then_some(loss))
}

/// What an exception says to be lost: in its own words, all lines of them, or in those of an exception that it comes from. The
/// source lines of a traceback are no words of it.
pub fn loss_of(exception: &Exception) -> Option<Loss> {
    let own = match exception.message.as_str() {
        "" => loss_in(&exception.kind),
        message => loss_in(&format!("{}: {message}", exception.kind)),
    };
    let causes = exception
        .traceback
        .lines()
        .filter(|line| !line.starts_with([' ', '\t']) && !is_header(line) && frame(line).is_none())
        .filter(|line| exception_line(line).is_some_and(|(kind, _)| is_exception(kind)))
        .filter_map(loss_in)
        .max();
    own.max(causes).or_else(|| loss_of_mpi(exception))
}

/// The calls of MPI with ranks of another group that fail without a word of it when one of those is gone.
const WITH_OTHERS: [&str; 4] = [".Disconnect", ".Accept", ".Connect", ".Merge"];

/// What an error of MPI is that does not say what was lost: of a call with another group, or one whose text is not made yet.
fn loss_of_mpi(exception: &Exception) -> Option<Loss> {
    if !exception.kind.starts_with("mpi4py.") {
        return None;
    }
    let is_bare = exception.message.is_empty() && exception.traceback.is_empty();
    let called = exception.traceback.lines().filter_map(frame).next_back().map(|(.., function)| function);
    let is_with_others = called.is_some_and(|name| WITH_OTHERS.iter().any(|call| name.ends_with(call)));
    (is_bare || is_with_others).then_some(Loss::Connection)
}

/// The collective of torch in which an exception was raised, by its name in `torch.distributed`.
pub(crate) fn collective_of(exception: &Exception) -> Option<String> {
    let is_torch = |file: &str| file.ends_with("torch/distributed/distributed_c10d.py");
    let (.., function) = exception.traceback.lines().filter_map(frame).rfind(|(file, ..)| is_torch(file))?;
    Some(function).filter(|name| !name.starts_with('_'))
}

/// Whether a word is the name of a type of exceptions.
fn is_exception(kind: &str) -> bool {
    let name = kind.rsplit('.').next().unwrap_or(kind);
    ["Error", "Exception", "Timeout", "Warning", "Interrupt", "Exit"].iter().any(|end| name.ends_with(end))
}

/// Whether a line is about something that is tried again, or only a warning.
pub(crate) fn is_mild(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let begins = lower.split_whitespace().take(5).any(|word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        ["w", "warn", "warning", "info", "debug", "notice"].contains(&word)
    });
    begins || ["retry", "reconnect", "trying again", "will continue", "ignored"].iter().any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_mpi_in_a_call_with_another_group_may_be_the_loss_of_it() {
        let in_call = |call: &str| {
            let frames = format!("  File \"src/mpi4py/MPI.src/Comm.pyx\", line 1760, in mpi4py.MPI.Comm.{call}\n");
            format!("Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    c.x()\n{frames}E: x")
        };
        let of = |message: &str, traceback: &str| loss_of(&exception("mpi4py.MPI.Exception", message, traceback));
        assert_eq!(of("MPI_ERR_COMM: invalid communicator", &in_call("Disconnect")), Some(Loss::Connection));
        assert_eq!(of("MPI_ERR_COMM: invalid communicator", &in_call("Send")), None);
        assert_eq!(of("", ""), Some(Loss::Connection), "its text is not made yet");
        assert_eq!(loss_of(&exception("ValueError", "", "")), None);
    }

    fn exception(kind: &str, message: &str, traceback: &str) -> Exception {
        Exception {
            kind: kind.to_owned(),
            message: message.to_owned(),
            traceback: traceback.to_owned(),
            ..Exception::default()
        }
    }

    #[test]
    fn victims_are_known_by_their_whole_message_and_by_what_it_comes_from() {
        let gloo = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711";
        let barrier =
            "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 1000 ms\n Original exception: \n[x] Timed out";
        let late = "all_reduce failed\n[gloo] Timed out waiting 2000ms for recv operation to complete";
        let wrapped = "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    c.recv(1)\n\
            ConnectionResetError: [Errno 104] Connection reset by peer\n\nThe above exception was the direct cause of the \
            following exception:\n\nTraceback (most recent call last):\n  File \"a.py\", line 5, in f\nRuntimeError: failed\n";
        for (found, expected) in [
            (exception("RuntimeError", gloo, ""), Some(Loss::Peer)),
            (exception("RuntimeError", barrier, ""), Some(Loss::Peer)),
            (exception("RuntimeError", late, ""), Some(Loss::Peer)),
            (exception("RuntimeError", "failed", wrapped), Some(Loss::Connection)),
            (exception("ConnectionResetError", "", ""), Some(Loss::Connection)),
            (exception("EOFError", "peer closed the connection", ""), Some(Loss::Connection)),
            (exception("EOFError", "", ""), Some(Loss::Connection)),
            (exception("EOFError", "Ran out of input", ""), None),
            (exception("EOFError", "EOF when reading a line", ""), None),
            (
                exception("asyncio.exceptions.IncompleteReadError", "0 bytes read on a total of 4 expected bytes", ""),
                Some(Loss::Connection),
            ),
            (exception("ConnectionRefusedError", "[Errno 111] Connection refused", ""), Some(Loss::Unreached)),
            (exception("ConnectionError", "connect: Connection refused", ""), Some(Loss::Unreached)),
            (exception("ValueError", "boom", ""), None),
        ] {
            assert_eq!(loss_of(&found), expected, "{found:?}");
        }
    }

    #[test]
    fn the_end_of_a_pipe_is_a_loss_also_where_it_is_handled() {
        // Python 3.12, of `Connection.recv`.
        let wrapped = "Traceback (most recent call last):\n  File \"a.py\", line 5, in f\n    c.recv()\n  \
            File \"/usr/lib/python3.12/multiprocessing/connection.py\", line 399, in _recv\n    raise EOFError\nEOFError\n\n\
            During handling of the above exception, another exception occurred:\n\n\
            Traceback (most recent call last):\n  File \"a.py\", line 7, in f\nRuntimeError: no reply\n";
        assert_eq!(loss_of(&exception("RuntimeError", "no reply", wrapped)), Some(Loss::Connection));
    }

    #[test]
    fn the_source_of_a_frame_is_no_word_of_an_exception() {
        let handler = "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    except ConnectionResetError:\n\
            ValueError: boom\n";
        assert_eq!(loss_of(&exception("ValueError", "boom", handler)), None);
    }

    #[test]
    fn a_warning_is_no_failure() {
        assert!(is_mild("W: Connection refused, retrying"));
        assert!(is_mild("2026-01-01 12:00:00 WARNING connection reset by peer"));
        assert!(!is_mild("connect: Connection refused"));
    }
}
