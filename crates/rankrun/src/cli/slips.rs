//! Slips that are seen only when the settings are put together: an option that took the command for its value, a value that
//! is taken for the command, and variables that look like settings.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_core::outer::{is_outer_identity, matches as name_matches};
use rankrun_core::suggest::nearest;

use crate::args;
use crate::habits::{self, Here};
use crate::keys::KEYS;
use crate::message::Problem;
use crate::spelling::LastOption;
use crate::words::{quote, quote_all};

/// Options whose values are any text: without the value, such an option would take the command as its value.
const ANY_TEXT: &[&str] = &[
    "wdir",
    "env",
    "env-remove",
    "wrap",
    "log-dir",
    "stdout-file",
    "stderr-file",
    "tee-stdout",
    "tee-stderr",
    "error-file",
    "config",
    "report-dir",
    "journal",
    "hosts",
    "hostfile",
    "interface",
    "ssh-command",
    "remote-binary",
    "rendezvous",
    "secret-file",
];

/// `last` is the option at the end of the words: it may have taken the command for its value.
pub(crate) fn no_command(last: Option<&LastOption>) -> Problem {
    let usage = "usage: rankrun [OPTIONS] COMMAND [ARG]..., as in \"rankrun -n 4 python train.py\"";
    let is_text = |last: &&LastOption| last.id.as_deref().is_some_and(|id| ANY_TEXT.contains(&id));
    match last.filter(is_text).map(|last| (last, &last.values[..])) {
        Some((last, values @ [_, ..])) => {
            let what = if values.len() == 1 { "value" } else { "values" };
            let taken = quote_all(values);
            Problem::usage(format!("no command given: {} took {taken} as its {what}", last.name)).hint(usage)
        }
        _ => Problem::usage("no command given").hint(usage),
    }
}

/// Warnings of variables that look like settings, and are none.
pub(crate) fn misspelt_variables(env: &[(OsString, OsString)]) -> Vec<String> {
    let is_about_us = |name: &&str| name.starts_with("RANKRUN_") && !is_outer_identity(OsStr::new(name));
    let names: Vec<&str> = env.iter().filter_map(|(name, _)| name.to_str()).filter(is_about_us).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let command = args::job();
    let is_option = |long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    let only_typed = |name: &str| {
        let long = name.strip_prefix("RANKRUN_")?.to_lowercase().replace('_', "-");
        // A variable of that name is about rankrun, and meant for others.
        if ["help", "version"].contains(&&*long) {
            return None;
        }
        let theirs = || habits::named(&command, &format!("--{long}"));
        Some(match is_option(&long) {
            true if args::REPEATED.contains(&&*long) => {
                format!("{name} is not a setting: write --{long} on the command line, or {long} in a file for --config")
            }
            true => format!("{name} is not a setting: write --{long} on the command line"),
            false => match theirs().first()?.here {
                Here::Same([ours]) => {
                    let key = ours.trim_start_matches('-').split('=').next().unwrap_or_default();
                    format!("{name} is not a setting; did you mean {}?", args::variable(key).display())
                }
                _ => format!("{name} is not a setting: --{long} is an option of another launcher"),
            },
        })
    };
    let known: Vec<String> = KEYS
        .iter()
        .filter(|key| !args::REPEATED.contains(key))
        .map(|key| args::variable(key).to_string_lossy().into_owned())
        .collect();
    names
        .into_iter()
        .filter(|name| !known.iter().any(|known| known == name))
        .filter_map(|name| {
            if let Some(warning) = only_typed(name) {
                return Some(warning);
            }
            // Only the part that is the setting's own is compared: the prefix is right already.
            let settings = known.iter().filter_map(|known| known.strip_prefix("RANKRUN_"));
            let near = nearest(name.strip_prefix("RANKRUN_")?, settings)?;
            Some(format!("{name} is not a setting; did you mean RANKRUN_{near}?"))
        })
        .collect()
}

/// How a value is written that stands behind its option as another word, where it is taken for the command. mpiexec takes
/// `-env NAME VALUE`: our `--env NAME VALUE` would run the value, and is refused.
pub(crate) fn slip(
    last: &LastOption,
    command: &[OsString],
    env: &[(OsString, OsString)],
) -> Option<Result<String, Problem>> {
    let value = command.first()?;
    match (last.id.as_deref()?, &last.values[..]) {
        ("tag", []) if !last.has_inline => {
            let name = if last.name.starts_with("--") { "--tag" } else { "-l" };
            Some(Ok(format!("write {name}={} for a template", quote(value))))
        }
        ("env", [name]) if command.len() > 1 => {
            let is_set = env.iter().any(|(have, _)| name_matches(name, have));
            if is_set || name.as_bytes().iter().any(|byte| b"=*".contains(byte)) {
                return None;
            }
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            let written = format!("write -x {}", quote(&pair));
            Some(match last.name.starts_with("--") {
                true => Err(Problem::usage(format!(
                    "{} takes one word, NAME=VALUE or the NAME of a variable that is set, and {} is not",
                    last.name,
                    name.display()
                ))
                .hint(format!("{written}, or leave out {} {}", last.name, name.display()))),
                false => Ok(written),
            })
        }
        _ => None,
    }
}
