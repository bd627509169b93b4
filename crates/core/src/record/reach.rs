//! Why a node could not be reached: at which step of its start, and what is to be done.

use serde::{Deserialize, Serialize};

use std::fmt;

/// A step on the way to a running agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Step {
    Resolve,
    Connect,
    Authenticate,
    /// rankrun does not start on the node.
    Start,
    /// rankrun is not there, and could not be copied.
    Copy,
    /// What answers is not rankrun.
    Handshake,
    Version,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Resolve => "cannot resolve its name",
            Step::Connect => "cannot connect to it",
            Step::Authenticate => "cannot log in",
            Step::Start => "cannot start rankrun there",
            Step::Copy => "cannot copy rankrun there",
            Step::Handshake => "no answer of rankrun",
            Step::Version => "another version of rankrun",
        })
    }
}

/// Texts of OpenSSH's client, in lower case, by the step that failed. The first that is found counts.
const TEXTS: &[(Step, &[&str])] = &[
    (Step::Authenticate, &["remote host identification has changed", "host key verification failed"]),
    (Step::Authenticate, &["permission denied (", "too many authentication failures", "no supported authentication"]),
    (Step::Resolve, &["could not resolve hostname", "name or service not known"]),
    (
        Step::Connect,
        &[
            "connection refused",
            "connection timed out",
            "operation timed out",
            "no route to host",
            "network is unreachable",
            "connection reset",
            "connection closed",
            "kex_exchange_identification",
            "ssh_exchange_identification",
            "banner exchange",
            "connect to host",
        ],
    ),
];

/// The code with which ssh says that it has failed itself.
pub const SSH_FAILED: i32 = 255;

/// The step at which ssh ended. `code` is its exit code, `words` what it wrote to stderr.
pub fn step_of(code: i32, words: &str) -> Step {
    let words = words.to_lowercase();
    if code != SSH_FAILED {
        return Step::Start;
    }
    let found = TEXTS.iter().find(|(_, texts)| texts.iter().any(|text| words.contains(text)));
    found.map_or(Step::Connect, |(step, _)| *step)
}

/// Whether another try may succeed: sshd refuses connections while too many are being opened (`MaxStartups`).
pub fn is_worth_retrying(code: i32, words: &str) -> bool {
    let words = words.to_lowercase();
    let is_early = words.contains("kex_exchange_identification") || words.contains("ssh_exchange_identification");
    code == SSH_FAILED && is_early && !words.contains("connection refused")
}

/// A line that ssh writes to stderr only because rankrun asks for it (`LogLevel=DEBUG1` of OpenSSH 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verbose {
    /// The host has accepted the user: what follows is a matter of the login shell.
    LoggedIn,
    /// Of no use here.
    Other,
}

/// Whether a line of ssh is one of these.
pub fn verbose(line: &str) -> Option<Verbose> {
    match line {
        line if line.starts_with("Authenticated to ") => Some(Verbose::LoggedIn),
        // Of a session over a connection that the user's own ssh has opened before (`ControlMaster`).
        line if line.starts_with("debug1: mux_client_request_session: master session id") => Some(Verbose::LoggedIn),
        line if line.starts_with("debug1: ") => Some(Verbose::Other),
        // The user's own level may hide the last of these.
        line if [
            "Authenticated using ",
            "Transferred: sent ",
            "Bytes per second: sent ",
            "Warning: Permanently added ",
        ]
        .iter()
        .any(|start| line.starts_with(start)) =>
        {
            Some(Verbose::Other)
        }
        _ => None,
    }
}

/// Where such a line begins in this one: the remote side may have written the begin of a line before.
pub fn verbose_at(line: &str) -> Option<(usize, Verbose)> {
    let inside = || line.find("debug1: ").and_then(|at| Some((at, verbose(&line[at..])?)));
    verbose(line).map(|kind| (0, kind)).or_else(inside)
}

/// The step at which a node is that has not led to rankrun within so many seconds, and what is said of it.
pub fn silence(has_logged_in: bool, seconds: u64) -> (Step, String) {
    match has_logged_in {
        true => (
            Step::Handshake,
            format!("ssh has logged in, but the login shell did not start rankrun within {seconds} s"),
        ),
        false => (Step::Connect, format!("no answer within {seconds} s")),
    }
}

/// Why the stream to a node has ended.
pub mod why {
    use std::time::Duration;

    use super::{SSH_FAILED, essence};
    use crate::lease::Lapse;
    use crate::status::signal_name;

    /// How long after the end of a srun the loss of a node that it has started is told together with it.
    const AFTER_SRUN: Duration = Duration::from_secs(60);

    /// Guard or relay have outlived the agent, and say that it has not reported an end, and why the guard has ended it, if it has.
    pub fn agent_lost(lapse: Option<Lapse>) -> &'static str {
        lapse.map_or("its agent was killed, or ended without a report", Lapse::why)
    }

    /// A node was lost, and the srun that has started it was ended by a signal so long before: Slurm ends what a srun has started when that
    /// is gone.
    pub fn after_srun(why: &str, signal: i32, before: Duration) -> Option<String> {
        let seconds = (before.as_secs_f64() * 10.0).round() / 10.0;
        let how = format!("{why}, {seconds} s after {} ended srun on this machine", signal_name(signal));
        (before <= AFTER_SRUN).then_some(how)
    }

    /// The stream over ssh has ended. `farewell` is what the relay there has told at its end: why the guard has ended the agent, if it has. `code` is that of ssh (128 and the
    /// number of a signal, if one ended it), `words` what ssh wrote since the relay greeted. `None`: nothing is known yet.
    /// `is_relay`: there is no ssh, the relay is a process of this machine.
    pub fn stream_ended(
        farewell: Option<Option<Lapse>>,
        code: Option<i32>,
        words: &str,
        is_relay: bool,
    ) -> Option<String> {
        let who = if is_relay { "the process that holds its agent (rr-relay)" } else { "its ssh on this machine" };
        let words = essence(words);
        match (farewell, code) {
            (Some(lapse), _) => Some(agent_lost(lapse).to_owned()),
            (None, _) if !words.is_empty() => Some(format!("its connection was closed: {words}")),
            (None, None) => None,
            (None, Some(code)) if code > 128 && code != SSH_FAILED => {
                Some(format!("{who} was ended by {}", signal_name(code - 128)))
            }
            // sshd tells by which signal the relay has ended, and ssh does not pass it on.
            (None, Some(SSH_FAILED)) => Some("the relay of rankrun was killed there".to_owned()),
            (None, Some(code)) if is_relay => Some(format!("{who} ended with exit code {code}")),
            (None, Some(code)) => Some(format!("ssh to it ended with exit code {code}")),
        }
    }
}

/// What to do about it, where that can be known. `host` is the node as ssh was called for it.
pub fn way_out(step: Step, host: &str, words: &str) -> Option<String> {
    let words = words.to_lowercase();
    match step {
        // Of many lines only the last are kept, and the title is not one of them.
        Step::Authenticate if words.contains("has changed") => {
            Some(format!("if the host was installed anew, remove its old key: ssh-keygen -R {host}"))
        }
        Step::Authenticate if words.contains("host key verification failed") => {
            Some(format!("log in once by hand, to accept the host's key: ssh {host}"))
        }
        Step::Authenticate => {
            Some(format!("rankrun asks for no password: \"ssh -o BatchMode=yes {host} true\" must work"))
        }
        Step::Connect | Step::Resolve => {
            Some(format!("\"ssh {host} true\" must work; --ssh-command names another ssh"))
        }
        Step::Handshake if words.contains("login shell did not start") => Some(format!(
            "\"ssh {host} true\" must end by itself: look at what the startup files (~/.bashrc) do without a terminal, and remove \
             ~/.cache/rankrun/bin there"
        )),
        Step::Start | Step::Handshake if words.contains("before rankrun began") => Some(
            "look at what its startup files (~/.bashrc) do when nobody types: \"ssh HOST true\"".replace("HOST", host),
        ),
        Step::Start if words.contains("exec format error") => Some(
            "the node has another kind of processor: install rankrun there, and name it by --remote-binary".to_owned(),
        ),
        Step::Start | Step::Handshake => None,
        Step::Copy => Some("install the same version there, or name it by --remote-binary".to_owned()),
        Step::Version => Some("remove --remote-binary, and rankrun copies itself".to_owned()),
    }
}

/// The same in a job of OAR, whose nodes may refuse ssh.
pub fn way_out_of_oar(step: Step) -> Option<String> {
    match step {
        Step::Connect | Step::Authenticate => {
            Some("nodes of OAR may accept its own ssh only: --ssh-command oarsh".to_owned())
        }
        Step::Resolve | Step::Start | Step::Copy | Step::Handshake | Step::Version => None,
    }
}

/// Why a node could not be reached where ssh itself says nothing and ended with `code`.
pub fn silent_end(code: i32) -> String {
    match code {
        SSH_FAILED => "ssh printed no reason".to_owned(),
        code => format!("ssh ended with exit code {code} before rankrun began"),
    }
}

/// What a login shell printed before rankrun began: so many bytes, and the first of them.
pub fn noise(size: usize, begin: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(begin);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
    let most = 60;
    let (begin, rest) = match line.char_indices().nth(most) {
        Some((at, _)) => (&line[..at], "..."),
        None if line.len() < size.saturating_sub(1) => (&*line, "..."),
        None => (&*line, ""),
    };
    Some(format!("its login shell printed {size} bytes before rankrun began: \"{begin}{rest}\""))
}

/// The lines of ssh's words that say why, on one line: without its banners and its rows of `@`.
pub fn essence(words: &str) -> String {
    let lines = words.lines().map(str::trim).filter(|line| !line.is_empty() && !line.chars().all(|c| c == '@'));
    let lines = lines.map(|line| line.trim_matches('@').trim());
    let mut kept: Vec<&str> = lines.filter(|line| !line.starts_with("Warning: Permanently added")).collect();
    let most = 3;
    if kept.len() > most {
        kept.drain(..kept.len() - most);
    }
    kept.join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lease::Lapse;

    #[test]
    fn a_login_shell_that_does_not_run_the_command_is_no_failure_to_connect() {
        let (step, why) = silence(true, 30);
        assert_eq!(step, Step::Handshake);
        assert!(way_out(step, "node1", &why).is_some_and(|hint| hint.contains("~/.bashrc")), "{why}");
        assert_eq!(silence(false, 60), (Step::Connect, "no answer within 60 s".to_owned()));
    }

    #[test]
    fn a_line_of_ssh_within_another_is_found() {
        let line = "exec: debug1: client_input_channel_req: channel 0 rtype exit-status reply 0";
        assert_eq!(verbose_at(line), Some((6, Verbose::Other)));
        assert_eq!(verbose_at(&line[6..]), Some((0, Verbose::Other)));
        assert_eq!(verbose_at("exec: /nonexist: not found"), None);
    }

    #[test]
    fn lines_that_rankrun_has_asked_ssh_for_are_told_from_its_reasons() {
        for (line, kind) in [
            ("Authenticated to node0 ([10.99.0.1]:22) using \"publickey\".", Some(Verbose::LoggedIn)),
            ("Authenticated to node0 (via proxy) using \"publickey\".", Some(Verbose::LoggedIn)),
            ("Authenticated using \"publickey\" with partial success.", Some(Verbose::Other)),
            ("debug1: mux_client_request_session: master session id: 2", Some(Verbose::LoggedIn)),
            ("debug1: client_input_channel_req: channel 0 rtype exit-status reply 0", Some(Verbose::Other)),
            ("Transferred: sent 3, received 4 bytes, in 0.1 seconds", Some(Verbose::Other)),
            ("Bytes per second: sent 9.1, received 1.0", Some(Verbose::Other)),
            ("Connection closed by 10.99.0.1 port 22", None),
            ("Permission denied (publickey).", None),
        ] {
            assert_eq!(verbose(line), kind, "{line}");
        }
    }

    #[test]
    fn the_end_of_a_stream_is_put_down_to_who_was_killed() {
        let why = |farewell, code, words| why::stream_ended(farewell, code, words, false);
        let closed = "Connection to node1 closed by remote host.";
        assert_eq!(why(None, None, ""), None);
        let told = |lapse| why(Some(lapse), Some(255), closed);
        assert_eq!(told(None).as_deref(), Some("its agent was killed, or ended without a report"));
        let stopped = "another process stopped its agent, and its guard killed it";
        assert_eq!(told(Some(Lapse::Stopped)).as_deref(), Some(stopped));
        assert_eq!(why(None, Some(137), "").as_deref(), Some("its ssh on this machine was ended by SIGKILL"));
        assert_eq!(why(None, Some(255), closed), Some(format!("its connection was closed: {closed}")));
        assert_eq!(why(None, Some(255), "").as_deref(), Some("the relay of rankrun was killed there"));
        assert_eq!(why(None, Some(125), "").as_deref(), Some("ssh to it ended with exit code 125"));
    }

    #[test]
    fn a_srun_that_was_killed_just_before_is_named() {
        let after = |ms| why::after_srun("its connection was closed", 9, Duration::from_millis(ms));
        let told = "its connection was closed, 0.3 s after SIGKILL ended srun on this machine";
        assert_eq!(after(340).as_deref(), Some(told));
        assert_eq!(after(60_001), None, "it had nothing to do with it");
    }

    #[test]
    fn a_failure_is_put_down_to_its_step() {
        // As OpenSSH 9.2 says it.
        let cases = [
            (255, "ssh: Could not resolve hostname node99: Name or service not known"),
            (255, "ssh: connect to host node1 port 22: Connection refused"),
            (255, "ssh: connect to host node1 port 22: No route to host"),
            (255, "root@node1: Permission denied (publickey)."),
            (
                255,
                "No ED25519 host key is known for node1 and you have requested strict checking.\nHost key verification failed.",
            ),
            (
                255,
                "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@@@\nHost key verification failed.",
            ),
            (
                255,
                "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.2 port 22",
            ),
            (126, "sh: 1: /opt/rankrun: Exec format error"),
            (127, "sh: 1: exec: /opt/rankrun: not found"),
            (255, ""),
        ];
        let text = cases.map(|(code, words)| {
            let step = step_of(code, words);
            let retry = if is_worth_retrying(code, words) { " (again)" } else { "" };
            format!("{step}{retry}: {}\n  {:?}", essence(words), way_out(step, "node1", words))
        });
        insta::assert_snapshot!(text.join("\n"));
    }
}
