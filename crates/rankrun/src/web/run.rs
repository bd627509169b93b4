//! The command: a port, an address for the user, and an end by a signal.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use rankrun_core::ExitCode;
use rankrun_sys::poll::wait_for;
use rankrun_sys::reason;
use rankrun_sys::signal::{self, SignalFd};
use rustix::event::{PollFd, PollFlags};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::answer::{AT_ONCE, Desk};
use super::gate::Token;
use super::serve::Server;
use crate::commands::jobs;
use crate::commands::report::Reports;
use crate::message::{self, Problem};

/// How long a thread that waited for a job stays for another request.
const THREAD_STAYS: Duration = Duration::from_secs(5);
/// The signals that end it.
const SIGNALS: [i32; 4] = [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT];

/// Serves the page until a signal comes. `port`: 0 is one that is free.
pub(crate) fn run(word: Option<&str>, port: u16, env: Vec<(OsString, OsString)>) -> Result<ExitCode, Problem> {
    let job = word.map(|word| find(word, &env)).transpose()?;
    let failed = |what: &str, error: &io::Error| Problem::internal(format!("cannot {what}: {}", reason(error)));
    let signals = SignalFd::new(&SIGNALS).map_err(|error| failed("receive signals", &error))?;
    let (listener, port) = listen(port)?;
    let token = Token::generate().map_err(|error| failed("get random bytes", &error))?;
    let on_ssh = env.iter().any(|(name, value)| name == "SSH_CONNECTION" && !value.is_empty());
    announce(&token, port, job.as_deref(), on_ssh)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(AT_ONCE)
        .thread_keep_alive(THREAD_STAYS)
        .build()
        .map_err(|error| failed("start", &error))?;
    let server = Server::new(token, Desk::new(env.into_iter()));
    let ended = receive(signals);
    let served: io::Result<i32> = LocalSet::new().block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::select! {
            number = ended => Ok(number.unwrap_or(signal::SIGTERM)),
            () = server.run(listener) => Ok(signal::SIGTERM),
        }
    });
    // A thread may wait for a job that does not answer.
    runtime.shutdown_background();
    let number = served.map_err(|error| failed("serve", &error))?;
    signal::die_of(number);
    Ok(ExitCode::signal(number))
}

/// The first signal. A thread waits for it.
fn receive(signals: SignalFd) -> oneshot::Receiver<i32> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let number = loop {
            wait_for(&mut [PollFd::new(&signals, PollFlags::IN)], None);
            if let Some((number, _)) = signals.next() {
                break number;
            }
        };
        // Nobody receives it when this ends by itself.
        let _ = sender.send(number);
    });
    receiver
}

/// The id of a job, which runs or has left its report.
fn find(word: &str, env: &[(OsString, OsString)]) -> Result<String, Problem> {
    let problem = match jobs::find("web", word) {
        Ok(found) => return Ok(found.job),
        Err(problem) => problem,
    };
    let ended = if word.is_empty() { Vec::new() } else { Reports::of_user(env.iter().cloned()).begin_so(word) };
    match ended.as_slice() {
        [job] => Ok(job.clone()),
        _ => Err(problem),
    }
}

fn listen(port: u16) -> Result<(TcpListener, u16), Problem> {
    let cannot = |error: io::Error| {
        let problem = Problem::internal(format!("cannot listen on 127.0.0.1:{port}: {}", reason(&error)));
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        problem.hint_if(is_taken.then(|| "without --port a free one is taken".to_owned()))
    };
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    Ok((listener, port))
}

/// Prints the address on stdout, and what to do with it on stderr. What is behind `#` is sent to nobody.
fn announce(token: &Token, port: u16, job: Option<&str>, on_ssh: bool) -> Result<(), Problem> {
    let job = job.map(|job| format!("&job={job}")).unwrap_or_default();
    let mut stdout = io::stdout().lock();
    let written =
        writeln!(stdout, "http://127.0.0.1:{port}/#token={}{job}", token.text()).and_then(|()| stdout.flush());
    if let Err(error) = written.as_ref().map_err(reason) {
        return Err(Problem::internal(format!("cannot write to stdout: {error}")));
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let command = format!("ssh -N -L {port}:127.0.0.1:{port} {host}");
    message::say(&match on_ssh {
        true => format!("to open it on your own machine, run there: {command}"),
        false => format!("to open it on another machine, run there: {command}"),
    });
    message::say("anyone with this address can see your jobs; ^C stops the server, jobs keep running");
    Ok(())
}
