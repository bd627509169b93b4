//! One node over ssh: the user's own `ssh` starts a relay there, and its stdin and stdout are the stream. No port is opened.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rankrun_agent::{AGAIN, ALIVE, Options, PROVE, RelayCall};
use rankrun_core::lease::Lapse;
use rankrun_core::{JobId, Purpose, reach};
use rankrun_sys::errand;
use rankrun_sys::exec::OWN;
use rankrun_sys::poll::{Interest, Registry};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::socket;
use rankrun_wire::Memory;
use rankrun_wire::greeting::{Farewell, Heard, Listener, find_farewell};

use super::hosts::{NodeTarget, SshSettings};
use crate::starter::{Program, Request, Starter, Status};

/// What makes a process of rankrun a relay.
const RELAY: &str = Purpose::Relay.argument();
/// Bytes of what ssh writes to stderr that are kept: the last.
const WORDS_KEPT: usize = 8 * 1024;
/// Bytes read at a time before the stream begins.
const READ: usize = 64 * 1024;
/// The size of the pipes to and from ssh.
const PIPE_BYTES: usize = 256 * 1024;

/// This program, for nodes that lack it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnBinary {
    pub(crate) path: OsString,
    /// What tells its build from others.
    pub(crate) id: String,
    pub(crate) size: u64,
}

/// What the relays of a job are called with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) job: JobId,
    pub(crate) marker: String,
    pub(crate) own: OwnBinary,
    pub(crate) agent: Options,
    /// How long the ranks go on without a front.
    pub(crate) keep: Option<Duration>,
}

/// A process of ssh, and what comes of it.
#[derive(Debug)]
pub(crate) struct Ssh {
    program: Program,
    /// Its exit code once it has ended: the relay's, or 255 for ssh itself.
    pub(crate) code: Option<i32>,
    /// Why there was no process of it.
    not_started: Option<String>,
    /// Until the relay has greeted.
    talk: Option<Talk>,
    /// What the login shell printed before that.
    noise: Option<String>,
    words: Words,
    /// This is the session of a relay that has greeted.
    pub(crate) has_greeted: bool,
    /// There is no ssh: it is the relay itself, on this machine.
    pub(crate) is_relay: bool,
}

/// The conversation before the stream begins.
#[derive(Debug)]
struct Talk {
    conn: Conn,
    listener: Listener,
}

/// What a program that reaches other machines writes to stderr.
#[derive(Debug)]
pub(super) struct Words {
    pipe: Option<OwnedFd>,
    kept: Vec<u8>,
    /// How many of the kept bytes are no news.
    shown: usize,
    /// How many were there when the relay greeted: a banner, the words of a login shell.
    before: usize,
    /// What the relay says its end by, and what it has said.
    marker: Option<String>,
    ended: Option<Farewell>,
    /// ssh has logged in.
    has_logged_in: bool,
}

impl Words {
    /// Of a pipe that does not block.
    pub(super) fn new(pipe: OwnedFd) -> Words {
        Words {
            pipe: Some(pipe),
            kept: Vec::new(),
            shown: 0,
            before: 0,
            marker: None,
            ended: None,
            has_logged_in: false,
        }
    }

    /// The pipe is ready.
    pub(super) fn read(&mut self, registry: &Registry) {
        let mut room = [0; 4096];
        while let Some(pipe) = &self.pipe {
            match rustix::io::read(pipe, &mut room) {
                Ok(0) => {
                    // It is closed with the pipe anyway.
                    let _ = registry.remove(pipe.as_fd());
                    self.pipe = None;
                }
                Ok(count) => {
                    self.kept.extend_from_slice(&room[..count]);
                    self.take_verbose();
                    self.take_farewell();
                    let over = self.kept.len().saturating_sub(WORDS_KEPT);
                    self.kept.drain(..over);
                    self.shown = self.shown.saturating_sub(over);
                    self.before = self.before.saturating_sub(over);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// What ssh logs only because it was asked to is no reason of anything.
    fn take_verbose(&mut self) {
        if self.marker.is_none() {
            return;
        }
        let mut at = self.shown;
        while let Some(length) = self.kept[at..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.kept[at..at + length]);
            // In a line that is no text the place would be another.
            let found = if matches!(line, Cow::Borrowed(_)) { reach::verbose_at(&line) } else { None };
            let Some((from, kind)) = found else {
                at += length + 1;
                continue;
            };
            self.has_logged_in |= kind == reach::Verbose::LoggedIn;
            self.kept.drain(at + from..=at + length);
        }
    }

    /// What the relay says at its end is no word of ssh.
    fn take_farewell(&mut self) {
        let Some(marker) = &self.marker else { return };
        if let Some((farewell, line)) = find_farewell(marker, &self.kept[self.shown..]) {
            self.ended = Some(farewell);
            self.kept.drain(self.shown + line.start..self.shown + line.end);
        }
    }

    /// All, as far as it is kept.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }

    /// What was written since the relay greeted.
    fn since_greeting(&self) -> String {
        String::from_utf8_lossy(&self.kept[self.before..]).into_owned()
    }

    /// The whole lines since the last call.
    pub(super) fn news(&mut self) -> Vec<String> {
        let new = &self.kept[self.shown..];
        let Some(end) = new.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let text = String::from_utf8_lossy(&new[..end]).into_owned();
        self.shown += end + 1;
        text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

impl Ssh {
    /// Asks for an ssh to a node. Its stdout is watched under `token`, its stderr under `words`.
    pub(crate) fn start(
        starter: &mut Starter,
        registry: &Registry,
        (token, words): (u64, u64),
        settings: &SshSettings,
        target: &NodeTarget,
        call: &Call,
    ) -> io::Result<Ssh> {
        let arguments = arguments(settings, target, call, &words_of_relay(call), &[])?;
        let ssh = Ssh::of(starter, registry, (token, words), arguments, &call.marker)?;
        Ok(Ssh { is_relay: target.is_local, ..ssh })
    }

    /// The same for a node whose relay has lost the front before this one.
    pub(crate) fn again(
        starter: &mut Starter,
        registry: &Registry,
        (token, words): (u64, u64),
        settings: &SshSettings,
        target: &NodeTarget,
        call: &Call,
    ) -> io::Result<Ssh> {
        let again = [AGAIN, &call.job.0, &call.marker].map(str::to_owned);
        // It has been there.
        let settings = SshSettings { copies: false, ..settings.clone() };
        let arguments = arguments(&settings, target, call, &again, &[])?;
        let ssh = Ssh::of(starter, registry, (token, words), arguments, &call.marker)?;
        Ok(Ssh { is_relay: target.is_local, ..ssh })
    }

    /// Asks for an ssh over a fresh connection, to a node whose own is silent: whether its agent runs. All that it writes is watched
    /// under `token`. It fails if it is not connected within `bound`.
    pub(super) fn asking(
        starter: &mut Starter,
        registry: &Registry,
        token: u64,
        (settings, target): (&SshSettings, &NodeTarget),
        call: &Call,
        bound: Duration,
    ) -> io::Result<Ssh> {
        let words = [ALIVE, &call.job.0, &call.marker].map(str::to_owned);
        // It has been there.
        let settings = SshSettings { copies: false, ..settings.clone() };
        // Not over a connection of the user's, which is as silent as ours.
        let own = ["ControlPath=none".to_owned(), format!("ConnectTimeout={}", bound.as_secs().max(1))];
        let arguments = arguments(&settings, target, call, &words, &own)?;
        Ssh::of(starter, registry, (token, token), arguments, &call.marker)
    }

    fn of(
        starter: &mut Starter,
        registry: &Registry,
        (token, words): (u64, u64),
        arguments: Vec<OsString>,
        marker: &str,
    ) -> io::Result<Ssh> {
        let (stdin, ours_in) = socket::pipe()?;
        let (ours_out, stdout) = socket::pipe()?;
        let (ours_err, stderr) = socket::pipe()?;
        [&ours_in, &ours_out].into_iter().for_each(|pipe| socket::widen_pipe(pipe, PIPE_BYTES));
        socket::set_nonblocking(&ours_err)?;
        let program = starter.request(Request::of(arguments, [stdin, stdout, stderr]))?;
        let conn = Conn::of_pair(registry, token, ours_out, ours_in)?;
        registry.add(&ours_err, words, Interest::Read)?;
        Ok(Ssh {
            program,
            code: None,
            not_started: None,
            talk: Some(Talk { conn, listener: Listener::new(marker) }),
            noise: None,
            words: Words { marker: Some(marker.to_owned()), ..Words::new(ours_err) },
            has_greeted: false,
            is_relay: false,
        })
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.program.pid()
    }

    /// Why there was no process of it, if so.
    pub(crate) fn not_started(&self) -> Option<String> {
        self.not_started.clone()
    }

    /// Its stdout is ready before the stream has begun. Returns what was heard, and the connection once it is a stream.
    pub(crate) fn hear(&mut self, is_writable: bool, is_readable: bool) -> (Heard, Option<Conn>) {
        let Some(talk) = &mut self.talk else { return (Heard::More, None) };
        if is_writable {
            // If it is gone, that is read next.
            let _ = talk.conn.flush();
        }
        let mut room = vec![0; if is_readable { READ } else { 0 }];
        let count = match talk.conn.read(&mut room) {
            _ if !is_readable => 0,
            Ok(Incoming::Bytes(count)) => count,
            Ok(Incoming::Nothing) => 0,
            Ok(Incoming::End) | Err(_) => {
                // It is reaped soon, and then it is known why.
                talk.listener.end();
                self.keep_noise();
                self.talk = None;
                return (Heard::More, None);
            }
        };
        let heard = talk.listener.hear(&room[..count]);
        if heard != Heard::More {
            self.keep_noise();
        }
        match heard {
            Heard::Ready { .. } => {
                self.has_greeted = true;
                self.words.before = self.words.kept.len();
                (heard, self.talk.take().map(|talk| talk.conn))
            }
            heard => (heard, None),
        }
    }

    /// Whether it has logged in on the node.
    pub(crate) fn has_logged_in(&self) -> bool {
        self.words.has_logged_in
    }

    /// Nothing more is said to it: what runs on the node sees the end of its stdin.
    pub(crate) fn hang_up(&mut self) {
        self.keep_noise();
        self.talk = None;
    }

    fn keep_noise(&mut self) {
        let noise = self.talk.as_ref().map(|talk| talk.listener.noise());
        self.noise = noise.and_then(|(size, begin)| reach::noise(size, begin));
    }

    /// What the login shell printed before rankrun began.
    pub(crate) fn noise(&self) -> Option<String> {
        self.noise.clone()
    }

    /// Sends the program itself.
    pub(crate) fn send(&mut self, bytes: Bytes) {
        if let Some(talk) = &mut self.talk {
            // If it is gone, that is read next.
            let _ = talk.conn.send([bytes]);
        }
    }

    /// The bytes that were sent to it before the stream begins, and that nobody has taken.
    pub(crate) fn unsent(&self) -> usize {
        self.talk.as_ref().map_or(0, |talk| talk.conn.unsent())
    }

    /// Its stderr is ready.
    pub(crate) fn read_words(&mut self, registry: &Registry) {
        self.words.read(registry);
    }

    /// All that it wrote to stderr, as far as it is kept.
    pub(crate) fn words(&self) -> String {
        self.words.text()
    }

    /// What was found in /dev/shm of the node in place of the agent, by what the relay has said at its end.
    pub(super) fn memory(&self) -> Option<Memory> {
        self.words.ended.as_ref()?.memory.clone()
    }

    /// Why the guard has ended the agent, by what the relay has said at its end.
    pub(super) fn farewell(&self) -> Option<Option<Lapse>> {
        self.words.ended.as_ref().map(|farewell| farewell.lapse)
    }

    /// What it wrote to stderr since the relay greeted: why the connection has ended, if it says so.
    pub(crate) fn last_words(&self) -> String {
        self.words.since_greeting()
    }

    /// The whole lines that it wrote to stderr since the last call.
    pub(crate) fn new_words(&mut self) -> Vec<String> {
        self.words.news()
    }

    /// Reaps it, if it has ended. It is ended where the relay has, and nothing more is to be read (`is_read`).
    pub(crate) fn reap(&mut self, is_read: bool) -> bool {
        if self.code.is_some() {
            return false;
        }
        self.code = match self.program.look() {
            Status::Runs if is_read && self.words.ended.is_some() => {
                self.program.kill();
                None
            }
            Status::Coming | Status::Runs => None,
            Status::Ended(code) => Some(self.words.ended.as_ref().map_or(code, |farewell| i32::from(farewell.code))),
            Status::NotStarted(why) => {
                self.not_started = Some(why);
                Some(255)
            }
        };
        self.code.is_some()
    }

    /// Ends it. The relay sees the end of the stream, if it can be reached.
    pub(crate) fn kill(&self) {
        self.program.kill();
    }
}

/// The command that asks a node which was lost what is left of the job there, and ends that after so long.
pub(super) fn proving(
    settings: &SshSettings,
    target: &NodeTarget,
    call: &Call,
    patience: Duration,
) -> io::Result<Vec<OsString>> {
    let words = [PROVE.to_owned(), call.job.0.clone(), patience.as_millis().to_string()];
    // It has been there.
    let settings = SshSettings { copies: false, ..settings.clone() };
    arguments(&settings, target, call, &words, &[])
}

/// The whole command that calls a relay with these words, with these options of ssh beside those that each has.
fn arguments(
    settings: &SshSettings,
    target: &NodeTarget,
    call: &Call,
    words: &[String],
    options: &[String],
) -> io::Result<Vec<OsString>> {
    if target.is_local {
        // It is a process of its own, which outlasts us. This program may have been replaced meanwhile.
        let own = [OWN, RELAY].map(OsString::from);
        return Ok(own.into_iter().chain(words.iter().map(OsString::from)).collect());
    }
    let line = line_to_run(settings, call, &format!("{RELAY} {}", words.join(" ")))?;
    let mut arguments = settings.command.clone();
    // No X11, no agent, no terminal; and no master that would live on as our child, and hold our pipes. Its log says when it has logged in:
    // over a master of the user's (`ControlPath`) at this level only.
    // ssh itself must not end a connection that is silent: we do, after --node-timeout.
    arguments.extend(["-x", "-a", "-T"].map(OsString::from));
    let own = ["ControlMaster=no", "BatchMode=yes", "LogLevel=DEBUG1", "ServerAliveInterval=0"];
    let options = own.into_iter().chain(options.iter().map(String::as_str));
    arguments.extend(options.flat_map(|option| ["-o".into(), option.into()]));
    if let Some(user) = &target.user {
        arguments.extend(["-l".into(), user.into()]);
    }
    arguments.extend([OsString::from(&target.name), line.into()]);
    Ok(arguments)
}

/// How long the home directory may take to answer.
const CONFIG_BOUND: Duration = Duration::from_secs(1);

/// Whether ssh may go by way of another host: then every connection goes through one sshd.
///
/// Call it while this process has one thread: the home directory may not answer, and a child asks it.
pub(crate) fn has_proxy(settings: &SshSettings, home: Option<&Path>) -> bool {
    let is_proxy = |text: &str| {
        let text = text.to_lowercase();
        text.contains("proxyjump") || text.contains("proxycommand")
    };
    let words = || settings.command.iter().map(|word| word.to_string_lossy());
    if words().any(|word| is_proxy(&word) || word == "-J") {
        return true;
    }
    let Some(path) = home.map(|home| home.join(".ssh/config")) else { return false };
    let asked = errand::perform(CONFIG_BOUND, |answer| {
        let is_found = std::fs::read_to_string(&path).is_ok_and(|text| is_proxy(&text));
        answer.write_all(&[u8::from(is_found)])
    });
    asked.is_ok_and(|waited| waited.result == [1])
}

/// The words that start a relay.
fn words_of_relay(call: &Call) -> Vec<String> {
    let Call { job, marker, agent, keep, .. } = call;
    RelayCall { job: job.clone(), marker: marker.clone(), options: agent.clone(), keep: *keep }.words().to_vec()
}

/// The line that the login shell of the node runs, so that rankrun is called with `relay`. sh, csh and fish read it alike: one word in
/// single quotes, without quotes, backslashes, exclamation marks and line breaks in it.
fn line_to_run(settings: &SshSettings, call: &Call, relay: &str) -> io::Result<String> {
    // Nodes may share a home, and have equal numbers of processes.
    let Call { job, marker, own, .. } = call;
    let script = match &settings.remote_binary {
        Some(path) => format!("exec {} {relay}", plain(path.as_os_str())?),
        None => {
            let OwnBinary { path, id, size } = own;
            let same_place = plain(path).map(|path| format!("{path} ")).unwrap_or_default();
            let copy = match settings.copies {
                true => format!(
                    "umask 077; T=$D/.{id}.{marker}.{job}; mkdir -p \"$D\" && head -c {size} > \"$T\" && chmod 700 \"$T\" && \
                     \"$T\" {RELAY} is {id} && mv \"$T\" \"$D/rankrun-{id}\" && exec \"$D/rankrun-{id}\" {relay}; \
                     rm -f \"$T\"; echo {marker} failed; "
                ),
                false => String::new(),
            };
            format!(
                "D=${{XDG_CACHE_HOME:-$HOME/.cache}}/rankrun/bin; for F in {same_place}\"$D/rankrun-{id}\"; do \
                 if test -x \"$F\" && \"$F\" {RELAY} is {id} 2> /dev/null; then exec \"$F\" {relay}; fi; done; \
                 echo {marker} need $(uname -sm); {copy}exit 127"
            )
        }
    };
    Ok(format!("exec sh -c '{script}'"))
}

/// A path that needs no quotes in any shell.
fn plain(path: &OsStr) -> io::Result<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._+-,:@%=".contains(byte);
    match path.to_str().filter(|text| !text.is_empty() && text.as_bytes().iter().all(is_plain)) {
        Some(text) => Ok(text.to_owned()),
        None => {
            let text = format!("the path \"{}\" has characters that login shells read differently", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use rankrun_sys::poll::Poller;

    use std::process::Command;

    use super::*;

    fn call(path: &str) -> Call {
        Call {
            job: JobId("7f3a91c2-n1".to_owned()),
            marker: "rr0123456789abcdef".to_owned(),
            own: OwnBinary { path: path.into(), id: "00ff".to_owned(), size: 12 },
            agent: Options { containment: None, is_away: true, patience: Duration::from_secs(30) },
            keep: None,
        }
    }

    #[test]
    fn words_from_before_the_greeting_are_no_reason_and_a_farewell_is_no_word() {
        let (reader, writer) = socket::pipe().expect("a pipe");
        socket::set_nonblocking(&reader).expect("it is a pipe");
        let poller = Poller::new().expect("a poller");
        let mut words = Words { marker: Some("rr-1".to_owned()), ..Words::new(reader) };
        let say = |text: &str, words: &mut Words| {
            rustix::io::write(&writer, text.as_bytes()).expect("there is room");
            words.read(&poller.registry());
        };
        say("*** authorized use only ***\n", &mut words);
        words.before = words.kept.len();
        assert_eq!(words.since_greeting(), "");
        say("Connection to a closed.\nrr-1 end", &mut words);
        assert_eq!(words.ended, None);
        say("ed 123 0\nKilled\n", &mut words);
        assert_eq!(
            (words.since_greeting().as_str(), words.ended.clone()),
            ("Connection to a closed.\nKilled\n", Some(Farewell { code: 123, lapse: None, memory: None }))
        );
    }

    #[test]
    fn a_farewell_with_many_names_is_one() {
        let (reader, writer) = socket::pipe().expect("a pipe");
        socket::set_nonblocking(&reader).expect("it is a pipe");
        let poller = Poller::new().expect("a poller");
        let mut words = Words { marker: Some("rr-1".to_owned()), ..Words::new(reader) };
        let created: Vec<OsString> = (0..600).map(|number| format!("/dev/shm/file-{number:015}").into()).collect();
        let said = Farewell { code: 123, lapse: None, memory: Some(Memory { created, ..Memory::default() }) };
        let noise = "x".repeat(WORDS_KEPT);
        let text = format!("{noise}\n{}", rankrun_wire::greeting::farewell("rr-1", &said));
        rustix::io::write(&writer, text.as_bytes()).expect("there is room");
        words.read(&poller.registry());
        let Some(Farewell { code: 123, memory: Some(memory), .. }) = words.ended else { panic!("{:?}", words.ended) };
        assert!(memory.created.len() > 50 && memory.created.len() as u64 + memory.more_created == 600, "{memory:?}");
        assert!(String::from_utf8_lossy(&words.kept).trim_end().bytes().all(|byte| byte == b'x'));
    }

    #[test]
    fn the_login_is_read_from_what_ssh_logs_and_is_no_word_of_it() {
        let (reader, writer) = socket::pipe().expect("a pipe");
        socket::set_nonblocking(&reader).expect("it is a pipe");
        let poller = Poller::new().expect("a poller");
        let mut words = Words { marker: Some("rr-1".to_owned()), ..Words::new(reader) };
        let mut say = |text: &str| {
            rustix::io::write(&writer, text.as_bytes()).expect("there is room");
            words.read(&poller.registry());
            (words.has_logged_in, words.text())
        };
        assert_eq!(say("*** banner ***\r\nAuthenti"), (false, "*** banner ***\r\nAuthenti".to_owned()));
        let (has_logged_in, text) =
            say("cated to node0 ([10.99.0.1]:22) using \"publickey\".\r\nsh: not found\nTransferred: sent 1");
        assert_eq!((has_logged_in, &*text), (true, "*** banner ***\r\nsh: not found\nTransferred: sent 1"));
        assert_eq!(say(", received 2 bytes, in 0.1 seconds\r\n").1, "*** banner ***\r\nsh: not found\n");
    }

    fn line_of_start(settings: &SshSettings, call: &Call) -> io::Result<String> {
        line_to_run(settings, call, &format!("{RELAY} {}", words_of_relay(call).join(" ")))
    }

    #[test]
    fn the_line_has_nothing_that_shells_read_differently() {
        let line = line_of_start(&SshSettings::default(), &call("/usr/bin/rankrun")).expect("a line");
        let word = line.strip_prefix("exec sh -c '").and_then(|rest| rest.strip_suffix('\'')).expect("one word");
        assert!(!word.contains(['\'', '\\', '!', '\n']), "{word}");
        insta::assert_snapshot!(line);
        // The place of our own program is only a shortcut; a path that was asked for is not.
        assert!(!line_of_start(&SshSettings::default(), &call("/home/a b/rankrun")).expect("a line").contains("a b"));
        let asked = SshSettings { remote_binary: Some("/home/a b/rankrun".into()), ..SshSettings::default() };
        assert!(line_of_start(&asked, &call("/usr/bin/rankrun")).is_err());
    }

    #[test]
    fn a_node_that_lacks_the_program_asks_for_it_and_puts_it_into_the_cache() {
        let home = std::env::temp_dir().join(format!("rankrun-ssh-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("a home");
        // It stands for the program: it knows its own id, and greets.
        let program = "#!/bin/sh\n[ \"$2\" = is ] && exit 0\necho \"$3 ready\"\n";
        let mut call = call("/nonexistent/rankrun");
        call.own.size = program.len() as u64;
        let line = line_of_start(&SshSettings::default(), &call).expect("a line");
        for times in 0..2 {
            let mut shell = Command::new("sh");
            let pipe = std::process::Stdio::piped;
            shell.args(["-c", &line]).env("HOME", &home).env_remove("XDG_CACHE_HOME").stdin(pipe()).stdout(pipe());
            let mut shell = shell.spawn().expect("a shell");
            if times == 0 {
                use std::io::Write;
                shell.stdin.take().expect("its stdin").write_all(program.as_bytes()).expect("it reads");
            }
            let output = shell.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(text.contains(" need Linux "), times == 0, "{text}");
            assert!(text.ends_with("rr0123456789abcdef ready\n"), "{text}");
        }
        std::fs::remove_dir_all(&home).expect("removed");
    }
}
