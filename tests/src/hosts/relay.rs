//! A relay that holds back what TCP connections carry: kernels need `netem` for that, and not all have it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use super::host::Host;
use super::setup::find_program;
use crate::helper::helper;
use crate::time::{monotonic, pause};

/// The user that the relay runs as, so that its own connections are not led to it again.
pub(super) const USER: u32 = 64_999;

/// Pieces under way in one direction of one connection. When so many are, the sender is not read from: a network, too, holds only
/// so much. At 64 KiB each they are more than a window of TCP.
const PIECES: usize = 1024;

/// A relay that runs on a host.
#[derive(Debug)]
pub(super) struct Relay {
    child: Child,
    delays: ChildStdin,
    port: u16,
}

impl Relay {
    pub(super) fn start(host: &Host, delay: Duration) -> Relay {
        let setpriv = find_program("setpriv").expect("it was there before");
        let mut command = host.command(setpriv);
        command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups", "--"]);
        command.arg(helper("hosts")).arg("relay").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the relay can be started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("the relay reports its port");
        let port = line.trim().parse().expect("the relay reports its port");
        let delays = child.stdin.take().expect("it was asked for");
        let mut relay = Relay { child, delays, port };
        relay.set(delay);
        relay
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set(&mut self, delay: Duration) {
        writeln!(self.delays, "{}", delay.as_micros()).expect("the relay lives");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // One that has ended already is only reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Relays every connection to where it was meant to go, until stdin ends. Each line of stdin is a delay in microseconds.
///
/// # Errors
/// If no port is to be had.
pub fn relay() -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", 0))?;
    let delay = Arc::new(AtomicU64::new(0));
    println(&listener.local_addr()?.port().to_string())?;
    let shared = Arc::clone(&delay);
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let delay = Arc::clone(&shared);
            // A connection that cannot be made is closed: the other side sees that.
            thread::spawn(move || serve(near, &delay));
        }
    });
    for line in io::stdin().lock().lines() {
        delay.store(line?.trim().parse().unwrap_or_default(), Ordering::Relaxed);
    }
    Ok(())
}

fn println(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn serve(near: TcpStream, delay: &Arc<AtomicU64>) -> io::Result<()> {
    let goal = rustix::net::sockopt::ip_original_dst(&near)?;
    let far = TcpStream::connect(goal)?;
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        from.set_nodelay(true)?;
        let (sender, receiver) = sync_channel(PIECES);
        let delay = Arc::clone(delay);
        thread::spawn(move || deliver(&receiver, to));
        thread::spawn(move || {
            let mut from = from;
            let mut buffer = vec![0; 1 << 16];
            loop {
                // A connection that breaks ends for the other side as well.
                let count = from.read(&mut buffer).unwrap_or(0);
                let due = monotonic() + Duration::from_micros(delay.load(Ordering::Relaxed));
                // An empty piece is the end. Nobody receives when the other side cannot be written to.
                if sender.send((due, buffer[..count].to_vec())).is_err() || count == 0 {
                    break;
                }
            }
        });
    }
    Ok(())
}

/// Writes each piece when it is due.
fn deliver(pieces: &Receiver<(Duration, Vec<u8>)>, mut to: TcpStream) {
    for (due, piece) in pieces {
        pause(due.saturating_sub(monotonic()));
        if piece.is_empty() || to.write_all(&piece).is_err() {
            break;
        }
    }
    // The other direction may go on. A socket that is closed already is no error.
    let _ = to.shutdown(Shutdown::Write);
}
