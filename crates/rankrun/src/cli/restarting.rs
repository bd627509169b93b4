//! The options for starting a job again after a failure, and their values.

use std::ffi::OsString;

use clap::Arg;
use rankrun_core::job::{
    Budget, OnFailureCommand, RestartError, RestartScope, RestartSpec, StartRetries, parse_classes,
};

use crate::args::{choice, option, switch};
use crate::choices;
use crate::message::Problem;
use crate::settings::{Given, Origin, Sources, duration, read_bool};
use crate::words;

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    let mut args = vec![
        option(
            "restart",
            "N[/TIME]",
            heading,
            "Restart after a failure, up to N times [in TIME]",
            "With --restart 3/1h, rankrun gives up at the failure that would need a fourth restart within an hour. A restart stops \
             every rank and starts all of them with the next RANKRUN_ATTEMPT. The default is 0: no restart.",
        ),
        option(
            "max-restarts",
            "N",
            heading,
            "Restart after a failure, up to N times",
            "The same as --restart N. With --restart N/TIME, both limits hold.",
        ),
        option(
            "backoff",
            "MIN..MAX",
            heading,
            "Time before a restart (default 1s..30s)",
            "The first restart is at once. Before the next ones rankrun waits for a random time, from MIN to a limit that \
             doubles with each restart up to MAX. An attempt that was up for 5m resets the backoff.",
        ),
        option(
            "restart-on",
            "CLASS,...",
            heading,
            "Restart only after these failures",
            "The classes are those of the report: out-of-memory, exception, abort, signal, exit-code, stuck-in-finalize, \
             stuck-in-exit-handlers, exit-without-finalize, exit-before-init, left-early, stopped, hang, \
             node-lost. The default is all of them. A job that was ended by its user or by --timeout is never restarted.",
        ),
        option(
            "no-restart-codes",
            "CODES",
            heading,
            "Do not restart after these exit codes, such as 2,64-78",
            "Compared with the exit code of rankrun: that of the rank that failed first.",
        ),
        option(
            "progress-file",
            "FILE",
            heading,
            "File that changes as the job makes progress",
            "For example a checkpoint. A program may instead send \"progress\" to the worker socket.",
        )
        .value_hint(clap::ValueHint::FilePath),
        choice(
            "restart-scope",
            "SCOPE",
            heading,
            "What to restart",
            "With \"rank\", --restart applies to each rank separately.",
            choices::RESTART_SCOPE,
        ),
        option(
            "start-retries",
            "N",
            heading,
            "Retries when ranks cannot be started (default 2)",
            "Also when ranks are not ready within --ready-timeout. A retry does not count as a restart. Without --restart and \
             --max-restarts, the default is 0.",
        ),
        option(
            "start-backoff",
            "DURATION",
            heading,
            "Time before such a retry (default 1s)",
            "The time is the same before each retry.",
        ),
        option(
            "ready-timeout",
            "DURATION",
            heading,
            "Time for all ranks to say that they are ready",
            "For programs that send \"ready\" to the worker socket. 0, the default, means no limit.",
        ),
        option(
            "stopped-timeout",
            "DURATION",
            heading,
            "Time after which a rank that another process stopped has failed (default 0)",
            "Stopped with SIGSTOP, or by a debugger. 0 means at once. A rank that is continued in time has not failed.",
        ),
        choice(
            "on-giveup",
            "WHAT",
            heading,
            "What to do when the job is not restarted any more",
            "For jobs of Slurm.",
            choices::ON_GIVEUP,
        ),
        choice(
            "node-loss",
            "WHAT",
            heading,
            "What a restart after the loss of a node costs of the budget",
            "For jobs that may go on without the node, or with another one (--nnodes MIN:MAX, --spares).",
            choices::NODE_LOSS,
        ),
        option(
            "on-failure",
            "COMMAND",
            heading,
            "Ask a command what to do after a failure",
            "The command gets the report as JSON on its stdin. Its stdout is the answer: \"restart\", \"stop\" or \"wait 30s\" \
             (restart after 30 s); empty output leaves the decision to the other options. The limit of --restart still applies. \
             The command is split into words as a shell does it, with quotes.",
        )
        .value_hint(clap::ValueHint::CommandString),
        option(
            "on-failure-timeout",
            "DURATION",
            heading,
            "Time for the command of --on-failure (default 30s)",
            "A command that takes longer is killed, and the other options decide.",
        ),
    ];
    args.extend(switch(
        "breaker",
        "no-breaker",
        heading,
        "Do not restart after a failure that repeats itself (default on)",
        "Gives up when two attempts in a row were ended by the same error, each within 60s of its start and before any \
         progress; or failed in the same way, at any time, without progress, if the job tells its progress. Signals and \
         lost nodes do not count. --no-breaker turns this off.",
    ));
    args
}

/// Reads the policy. A path in it is still as written.
pub(crate) fn read(sources: &Sources<'_>, keep_going: bool) -> Result<RestartSpec, Problem> {
    fn parsed<T: std::str::FromStr<Err = RestartError>>(text: &str) -> Result<T, String> {
        text.parse().map_err(|error: RestartError| error.to_string())
    }
    let default = RestartSpec::default();
    let total = sources.get("max-restarts", read_total)?.unwrap_or_default();
    let budget = sources.get("restart", parsed::<Budget>)?.unwrap_or_default().and(total);
    let retries = if budget.allows_any() { StartRetries::OF_RESTARTS.retries } else { 0 };
    let scope = sources.choice("restart-scope", choices::RESTART_SCOPE)?.unwrap_or_default();
    if let (RestartScope::Rank, false, Some(given)) = (scope, keep_going, sources.one("restart-scope")) {
        let problem = given.problem("\"rank\" needs --keep-going: without it, the first failure stops all ranks");
        return Err(problem.hint("add --keep-going if the ranks do not depend on each other"));
    }
    let timeout = sources.get("on-failure-timeout", duration)?.unwrap_or(OnFailureCommand::TIMEOUT);
    Ok(RestartSpec {
        budget,
        backoff: sources.get("backoff", parsed)?.unwrap_or(default.backoff),
        on: sources
            .get("restart-on", |text| parse_classes(text).map_err(|error| error.to_string()))?
            .unwrap_or(default.on),
        never_codes: sources.get("no-restart-codes", parsed)?.unwrap_or(default.never_codes),
        start: StartRetries {
            retries: sources.get("start-retries", read_number)?.unwrap_or(retries),
            backoff: sources.get("start-backoff", duration)?.unwrap_or(default.start.backoff),
        },
        scope,
        stopped_timeout: sources.get("stopped-timeout", duration)?.unwrap_or(default.stopped_timeout),
        ready_timeout: sources.get("ready-timeout", duration)?.filter(|time| !time.is_zero()),
        on_giveup: sources.choice("on-giveup", choices::ON_GIVEUP)?.unwrap_or_default(),
        node_loss: sources.choice("node-loss", choices::NODE_LOSS)?.unwrap_or_default(),
        breaker: sources.get("breaker", read_bool)?.unwrap_or(default.breaker),
        progress_file: sources.path("progress-file")?.map(|given| given.text),
        on_failure: sources
            .path("on-failure")?
            .map(|given| Ok(OnFailureCommand { command: read_command(&given)?, timeout }))
            .transpose()?,
        healthy: default.healthy,
    })
}

/// Options that do nothing without a restart.
const OF_RESTARTS: [&str; 8] = [
    "backoff",
    "restart-on",
    "no-restart-codes",
    "start-backoff",
    "on-giveup",
    "on-failure-timeout",
    "progress-file",
    "restart-scope",
];

/// Warns of options on the command line that have no effect. In a file they may be there for other jobs.
pub(crate) fn warning(spec: &RestartSpec, given: &[Given]) -> Option<String> {
    let is_idle = |given: &&Given| given.origin == Origin::CommandLine && OF_RESTARTS.contains(&given.key);
    let idle = given.iter().find(is_idle).filter(|_| !spec.is_on())?;
    let text = |key: &str| given.iter().find(|given| given.key == key).map(|given| given.text.to_string_lossy());
    if text("max-restarts").is_some_and(|text| text == "0") && text("restart").is_some_and(|text| text != "0") {
        return Some(format!("--{} has no effect: --max-restarts 0 turns restarts off", idle.key));
    }
    Some(format!("--{} has no effect without --restart, --max-restarts or --on-failure", idle.key))
}

fn read_total(text: &str) -> Result<Budget, String> {
    read_number(text).map(|total| Budget { total: Some(total), recent: None })
}

fn read_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number"))
}

pub(crate) fn read_command(given: &Given) -> Result<Vec<OsString>, Problem> {
    match words::split(&given.text) {
        None => Err(given.problem(format!("a quote is not closed in \"{}\"", given.text.display()))),
        Some(words) if words.is_empty() => Err(given.problem("the command is empty")),
        Some(words) => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rankrun_core::evidence::Class;
    use rankrun_core::job::OnGiveup;

    use super::*;
    use crate::invocation::{Invocation, read};
    use crate::settings::{Settings, resolve};

    fn resolved(env: &[(&str, &str)], words: &[&str]) -> Result<Settings, String> {
        let words = words.iter().chain(&["true"]).map(OsString::from).collect();
        let Ok(Invocation::Job(segments)) = read(words) else { panic!("a job") };
        let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        resolve(&segments, &env).map_err(|problem| problem.to_string())
    }

    fn policy(env: &[(&str, &str)], words: &[&str]) -> RestartSpec {
        resolved(env, words).expect("good settings").restart
    }

    #[test]
    fn the_help_and_the_page_name_every_class() {
        let help = crate::texts::described(|| args(""))
            .iter()
            .find(|arg| arg.get_id() == "restart-on")
            .and_then(|arg| arg.get_long_help().cloned());
        let help = help.map(|help| help.to_string()).unwrap_or_default();
        let page = include_str!("../../../../docs/restart.md");
        for class in rankrun_core::job::RESTARTABLE {
            assert!(help.contains(class.word()), "--restart-on: {}", class.word());
            assert!(page.contains(&format!("`{}`", class.word())), "docs/restart.md: {}", class.word());
        }
    }

    #[test]
    fn a_job_has_no_policy_unless_one_is_given() {
        assert_eq!(policy(&[], &[]), RestartSpec::default());
        assert!(!policy(&[("RANKRUN_RESTART", "3/1h")], &["--max-restarts", "0"]).is_on());
    }

    #[test]
    fn every_option_is_read() {
        let spec = policy(
            &[("RANKRUN_MAX_RESTARTS", "20"), ("RANKRUN_BREAKER", "no")],
            &[
                "--restart",
                "3/1h",
                "--backoff=2s..1m",
                "--restart-on",
                "signal,out-of-memory",
                "--no-restart-codes",
                "2,64-78",
                "--progress-file",
                "ckpt",
                "--restart-scope=rank",
                "--keep-going",
                "--start-retries",
                "4",
                "--start-backoff",
                "500ms",
                "--ready-timeout",
                "1m",
                "--stopped-timeout",
                "10s",
                "--on-giveup",
                "requeue",
                "--on-failure",
                "./decide 'a b'",
                "--on-failure-timeout",
                "5s",
            ],
        );
        let second = Duration::from_secs(1);
        let expected = RestartSpec {
            budget: "3/1h".parse::<Budget>().expect("a budget").and(Budget { recent: None, total: Some(20) }),
            backoff: "2s..1m".parse().expect("times"),
            on: [Class::Signal, Class::OutOfMemory].into(),
            never_codes: "2,64-78".parse().expect("codes"),
            start: StartRetries { retries: 4, backoff: second / 2 },
            scope: RestartScope::Rank,
            stopped_timeout: 10 * second,
            ready_timeout: Some(60 * second),
            on_giveup: OnGiveup::Requeue,
            breaker: false,
            progress_file: Some("ckpt".into()),
            on_failure: Some(OnFailureCommand { command: vec!["./decide".into(), "a b".into()], timeout: 5 * second }),
            ..RestartSpec::default()
        };
        assert_eq!(spec, expected);
        assert!(policy(&[("RANKRUN_BREAKER", "no")], &["--breaker"]).breaker);
        assert_eq!(policy(&[], &["--restart", "1"]).start, StartRetries::OF_RESTARTS);
    }

    #[test]
    fn mistakes_are_told_with_the_option() {
        let error = |words: &[&str]| resolved(&[], words).expect_err("a mistake");
        let errors = [
            error(&["--restart", "often"]),
            error(&["--restart", "3/0"]),
            error(&["--max-restarts", "x"]),
            error(&["--backoff", "30s..1s"]),
            error(&["--backoff", "1s.30s"]),
            error(&["--restart-on", "signals"]),
            error(&["--restart-on", "crash"]),
            error(&["--restart-on", "timeout"]),
            error(&["--no-restart-codes", "0"]),
            error(&["--restart", "3", "--restart-scope", "rank"]),
            error(&["--restart", "-1"]),
            error(&["--start-retries", "-1"]),
            error(&["--ready-timeout", "-3s"]),
            error(&["--on-failure", " "]),
            error(&["--on-failure", "'a"]),
        ];
        insta::assert_snapshot!(errors.join("\n"), @r#"
        error: --restart: "often" is not a number of restarts: write 3 or 3/1h
        error: --restart: the window is 0: write 3 without one, or 3/1h
        error: --max-restarts: "x" is not a number
        error: --backoff: "30s..1s" goes backwards: write the shorter time first, as in 1s..30s
        error: --backoff: "1s.30s" is not MIN..MAX: write 1s..30s, or 5s for both
        error: --restart-on: "signals" is not a class of failures; did you mean "signal"?
        error: --restart-on: "crash" is not a class of failures: write some of out-of-memory,exception,abort,signal,exit-code,stuck-in-finalize,stuck-in-exit-handlers,exit-without-finalize,exit-before-init,left-early,stopped,hang,node-lost
        error: --restart-on: a job that ended with "timeout" is never restarted
        error: --no-restart-codes: "0" is not an exit code of a failure: write 1 to 255, or a range such as 64-78
        error: --restart-scope: "rank" needs --keep-going: without it, the first failure stops all ranks
        hint: add --keep-going if the ranks do not depend on each other
        error: --restart: "-1" is not a number of restarts: write 3 or 3/1h
        error: --start-retries: "-1" is not a number
        error: --ready-timeout: "-3s" is not a duration: write 500ms, 5s, 1m30s or 2h
        error: --on-failure: the command is empty
        error: --on-failure: a quote is not closed in "'a"
        "#);
    }

    #[test]
    fn an_option_without_effect_is_a_warning_where_it_was_typed() {
        let warnings = |env: &[(&str, &str)], words: &[&str]| resolved(env, words).expect("good settings").warnings;
        let text = "--backoff has no effect without --restart, --max-restarts or --on-failure";
        assert_eq!(warnings(&[], &["--backoff", "5s"]), [text]);
        assert!(warnings(&[("RANKRUN_BACKOFF", "5s")], &[]).is_empty());
        let off = "--backoff has no effect: --max-restarts 0 turns restarts off";
        assert_eq!(warnings(&[], &["--restart", "5", "--max-restarts", "0", "--backoff", "0..0"]), [off]);
        assert!(warnings(&[], &["--backoff", "5s", "--restart", "1"]).is_empty());
    }
}
