//! `rankrun web`, those who ask it, and jobs that are only played.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::helper::rankrun;
use crate::processes;
use crate::skip::in_time;
use crate::time::{monotonic, wait_until};

const BOUND: Duration = Duration::from_secs(10);

/// A server that runs.
#[derive(Debug)]
pub struct Web {
    child: Child,
    pub address: String,
    pub port: u16,
    pub token: String,
    is_ended: bool,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Said {
    /// The body, as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Web {
    /// Starts it, and waits for its address.
    ///
    /// # Panics
    /// If it does not print one.
    pub fn start(arguments: &[&str], environment: &[(&str, &Path)]) -> Web {
        let mut command = Command::new(rankrun());
        command.arg("web").args(arguments).envs(environment.iter().copied());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("rankrun can be started");
        let mut address = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut address).expect("it can be read");
        let rest = address.trim().strip_prefix("http://127.0.0.1:").unwrap_or_else(|| panic!("{address:?}"));
        let (port, token) = rest.split_once("/#token=").expect("a token");
        let token = token.split('&').next().unwrap_or_default().to_owned();
        let port = port.parse().expect("a port");
        Web { child, address: address.trim().to_owned(), port, token, is_ended: false }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Connects to it.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("it listens");
        stream.set_read_timeout(Some(in_time(BOUND))).expect("a socket");
        stream
    }

    /// Asks with the token.
    pub fn get(&self, path: &str) -> Said {
        self.ask("GET", path, &[("host", "127.0.0.1"), ("authorization", &format!("Bearer {}", self.token))])
    }

    /// Asks so.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Said {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(format!("{method} {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n").as_bytes())
    }

    /// Sends bytes, and reads to the end; an empty answer if it is only closed.
    ///
    /// # Panics
    /// If it neither answers nor closes the connection.
    pub fn send(&self, bytes: &[u8]) -> Said {
        let mut stream = self.connect();
        let mut answer = Vec::new();
        // It may refuse what is too long before it has read all of it.
        let _ = stream.write_all(bytes);
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}: {bytes:?}"),
            _ => {}
        }
        parse(&answer)
    }

    /// Ends it by a signal, and proves that it has left no process.
    ///
    /// # Panics
    /// If it does not end, or has a child.
    pub fn end(mut self, signal: Signal) -> ExitStatus {
        let children = processes::descendants(self.pid());
        assert!(children.is_empty(), "{children:?}");
        processes::send(self.pid(), signal);
        let status = wait_until(in_time(BOUND), || self.child.try_wait().expect("it is our child"));
        self.is_ended = status.is_some();
        status.expect("it ends")
    }
}

impl Drop for Web {
    /// After a failure.
    fn drop(&mut self) {
        if !self.is_ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// An answer of HTTP with its length in the head, or up to the end of the connection.
pub fn parse(answer: &[u8]) -> Said {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Said { status, head: head.to_owned(), body: body.to_owned() }
}

/// A job that is only played: a front that answers what `rankrun web` asks. Its ranks are odd in all ways.
#[derive(Debug)]
pub struct Played {
    /// What XDG_RUNTIME_DIR is to be.
    pub runtime: PathBuf,
    pub job: String,
    asked: Arc<AtomicUsize>,
}

impl Played {
    /// Plays a job below a directory.
    ///
    /// # Panics
    /// If the directory cannot be written.
    pub fn start(runtime: &Path, ranks: u32) -> Played {
        let job = format!("{ranks:08}");
        let directory = runtime.join("rankrun").join(&job);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).expect("the directory is ours");
        let listener = UnixListener::bind(directory.join("control.sock")).expect("the directory is ours");
        let asked = Arc::new(AtomicUsize::new(0));
        let (name, count) = (job.clone(), Arc::clone(&asked));
        let begun = monotonic();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (name, count) = (name.clone(), Arc::clone(&count));
                thread::spawn(move || answer(&stream, &name, ranks, begun, &count));
            }
        });
        Played { runtime: runtime.to_owned(), job, asked }
    }

    /// How often its ranks were asked for.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// It is over: nobody answers any more.
    ///
    /// # Panics
    /// If its directory is gone already.
    pub fn remove(self) {
        fs::remove_dir_all(self.runtime.join("rankrun").join(&self.job)).expect("the directory is ours");
    }
}

/// Answers the requests of a connection.
fn answer(stream: &UnixStream, job: &str, ranks: u32, begun: Duration, asked: &AtomicUsize) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let request: Value = serde_json::from_str(&line).expect("it is JSON");
        if request["request"] != "status" {
            continue;
        }
        // The first answer is nine seconds after the start of the job.
        let second = 9.0 + (monotonic() - begun).as_secs_f64();
        let shown = if request["ranks"] == true { ranks } else { 0 };
        asked.fetch_add(usize::from(shown > 0), Ordering::Relaxed);
        let status = json!({
            "rankrun": 1, "answer": "status", "job": job, "release": "0.1.0", "pid": 42, "front_pid": 42, "detached": false,
            "command": ["python", "train.py", "--config", "large model.yaml"], "directory": "/home/me", "world_size": ranks, "attempt": 1,
            "started": 400.0, "now": 1000.0 + second, "state": "running", "since": 1000.0, "until": null, "why": null, "restarts_left": 2,
            "ranks": (0..shown).map(|number| rank(number, second)).collect::<Vec<_>>(),
        });
        let mut writer = stream;
        // Whoever asked may be gone.
        if writer.write_all(format!("{status}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// A rank of a job with eight ranks a node: rank 3 is stopped, rank 5 idle, rank 6 dead; of each 100 ranks one is behind and one is silent.
fn rank(number: u32, second: f64) -> Value {
    let now = 1000.0 + second;
    let start = if number % 100 == 50 { 10.0 } else { 40.0 };
    let done = (start + second / 10.0 + f64::from(number % 3)).min(100.0);
    let cpu = if number == 5 { 0.01 } else { 0.97 + f64::from(number % 7) / 100.0 };
    let is_dead = number == 6;
    let usage = json!({
        "at": now, "cpu": cpu * second, "memory": (300 + u64::from(number % 13)) << 20, "read": (f64::from(number % 5) * second) as u64 * 1_000_000,
        "written": 0, "processes": 3, "threads": 40, "is_stopped": number == 3,
        "gpus": [{ "index": number % 8, "busy": 90 + number % 8, "memory": 12_u64 << 30 }],
    });
    let mut rank = json!({
        "rank": number, "attempt": 1, "node": format!("node{:03}", number / 8), "pid": (!is_dead).then_some(1000 + number),
        "state": if is_dead { "ended" } else { "running" }, "since": 1000.0, "until": null, "why": is_dead.then_some("SIGKILL"),
        "is_saving": false, "phase": "in-mpi", "phase_since": 1001.0, "wrote": if number % 100 == 70 { 900.0 } else { now - 0.3 },
        "last_line": format!("epoch 3: {done:3.0}%|####      | {done:.0}/100 [00:10<00:12,  4.43it/s, loss=0.312]"), "note": null,
    });
    if !is_dead {
        rank["usage"] = usage;
    }
    rank
}
