//! A configuration file: the long names of the options as TOML keys.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rankrun_core::suggest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::message::Problem;
use crate::{args, file};

/// The values of a file, as text, by key, each with the line on which it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    values: BTreeMap<String, Vec<(String, u32)>>,
}

impl Config {
    /// The values of a key, in order; several only for options that may be repeated.
    pub(crate) fn values(&self, key: &str) -> &[(String, u32)] {
        self.values.get(key).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The largest configuration file: far more than anybody writes.
const MOST: u64 = 1 << 20;

pub(crate) fn read(path: &Path) -> Result<Config, Problem> {
    let shown = path.display();
    let bytes = file::read(path, MOST).map_err(|error| {
        Problem::usage(format!("cannot read the configuration file \"{shown}\": {}", rankrun_sys::reason(&error)))
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Problem::usage(format!("the configuration file \"{shown}\" is not UTF-8 text")))?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Config, Problem> {
    let line_of = |span: Range<usize>| {
        let before = text.as_bytes().iter().take(span.start);
        before.filter(|byte| **byte == b'\n').count() as u32 + 1
    };
    let at = |line: u32| format!("{}:{line}", path.display());
    let table = DeTable::parse(text).map_err(|error| {
        let place = match error.span() {
            Some(span) => at(line_of(span)),
            None => path.display().to_string(),
        };
        Problem::usage(format!("{place}: {}", error.message().trim_end().replace('\n', ", ")))
    })?;
    let command = args::job();
    let known: Vec<&str> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !args::ONLY_TYPED.contains(&arg.get_id().as_str()))
        .map(|arg| arg.get_id().as_str())
        .collect();
    let mut values = BTreeMap::new();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span());
        let key = key.get_ref().as_ref();
        if !known.contains(&key) {
            let near = nearest(&key.replace('_', "-"), known.iter().copied())
                .or_else(|| known.iter().copied().find(|known| *known == key.replace('_', "-")));
            let problem = Problem::usage(format!("{}: unknown key \"{key}\"", at(line)));
            return Err(problem.hint(match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "the keys are the long names of the options, as \"rankrun --help\" lists them".to_owned(),
            }));
        }
        let read = texts(key, value, &line_of).ok_or_else(|| {
            let wanted = match key {
                "env" => "a table of strings",
                _ if args::REPEATED.contains(&key) => "a string or an array of strings",
                _ if args::SWITCHES.contains(&key) => "true or false",
                _ => "a string or a number",
            };
            let found = value.get_ref().type_str();
            let problem = Problem::usage(format!("{}: \"{key}\" must be {wanted} (found: {found})", at(line)));
            problem.hint_if(in_one_string(key, value.get_ref()))
        })?;
        values.insert(key.to_owned(), read);
    }
    Ok(Config { path: path.to_owned(), values })
}

/// A value as it would be typed, one for each repetition; `None` if the key does not take such a value.
fn texts(key: &str, value: &Spanned<DeValue<'_>>, line_of: &dyn Fn(Range<usize>) -> u32) -> Option<Vec<(String, u32)>> {
    let line = line_of(value.span());
    if key == "env" {
        let entries = value.get_ref().as_table()?.iter().map(|(name, value)| {
            let line = line_of(name.span());
            Some((format!("{}={}", name.get_ref(), scalar(value.get_ref())?), line))
        });
        return entries.collect();
    }
    match value.get_ref() {
        DeValue::Array(items) if args::REPEATED.contains(&key) => {
            items.iter().map(|item| Some((item.get_ref().as_str()?.to_owned(), line_of(item.span())))).collect()
        }
        DeValue::Boolean(yes) => {
            let taken = args::SWITCHES.contains(&key) || key == "tag" || key == "quiet";
            taken.then(|| vec![(if *yes { "yes" } else { "no" }.to_owned(), line)])
        }
        _ if args::SWITCHES.contains(&key) => None,
        scalar_value => Some(vec![(scalar(scalar_value)?, line)]),
    }
}

/// How an array is written for an option that takes a list in one string. Files and commands are none.
fn in_one_string(key: &str, value: &DeValue<'_>) -> Option<String> {
    let takes_list = ["restart-on", "no-restart-codes", "hosts", "only"].contains(&key);
    let items = value.as_array().filter(|items| takes_list && !items.is_empty())?;
    let items: Option<Vec<String>> = items.iter().map(|item| scalar(item.get_ref())).collect();
    Some(format!("write {key} = \"{}\"", items?.join(",")))
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        parse(Path::new("rankrun.toml"), text).map_err(|problem| problem.to_string())
    }

    #[test]
    fn values_know_their_lines() {
        let text = "# settings\nnproc = 4\ngrace = \"10s\"\ntag = true\nkeep-going = false\nwrap = [\n  \"0:gdb --args\",\n  \"time\"]\n\n[env]\nA = \"1\"\nB = 2\n";
        let config = config(text).expect("a good file");
        let value = |text: &str, line| (text.to_owned(), line);
        assert_eq!(config.values("nproc"), [value("4", 2)]);
        assert_eq!(config.values("grace"), [value("10s", 3)]);
        assert_eq!(config.values("tag"), [value("yes", 4)]);
        assert_eq!(config.values("keep-going"), [value("no", 5)]);
        assert_eq!(config.values("wrap"), [value("0:gdb --args", 7), value("time", 8)]);
        assert_eq!(config.values("env"), [value("A=1", 11), value("B=2", 12)]);
        assert_eq!(config.values("linger"), []);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let error = |text| config(text).expect_err("a bad file");
        insta::assert_snapshot!(error("nproc = 4\ngrcae = \"1s\"\n"), @r#"
        error: rankrun.toml:2: unknown key "grcae"
        hint: did you mean "grace"?
        "#);
        insta::assert_snapshot!(error("keep_going = true\n"), @r#"
        error: rankrun.toml:1: unknown key "keep_going"
        hint: did you mean "keep-going"?
        "#);
        insta::assert_snapshot!(error("zzz = 1\n"), @r#"
        error: rankrun.toml:1: unknown key "zzz"
        hint: the keys are the long names of the options, as "rankrun --help" lists them
        "#);
        insta::assert_snapshot!(error("nproc = 4\ngrace = \n"), @"error: rankrun.toml:2: string values must be quoted, expected literal string");
        insta::assert_snapshot!(error("nproc = 4\nnproc = 5\n"), @"error: rankrun.toml:2: duplicate key");
        insta::assert_snapshot!(error("[grace]\nx = 1\n"), @r#"error: rankrun.toml:1: "grace" must be a string or a number (found: table)"#);
        insta::assert_snapshot!(error("restart-on = [\"signal\", \"abort\"]\n"), @r#"
        error: rankrun.toml:1: "restart-on" must be a string or a number (found: array)
        hint: write restart-on = "signal,abort"
        "#);
        insta::assert_snapshot!(error("keep-going = 1\n"), @r#"error: rankrun.toml:1: "keep-going" must be true or false (found: integer)"#);
        insta::assert_snapshot!(error("env = \"A=1\"\n"), @r#"error: rankrun.toml:1: "env" must be a table of strings (found: string)"#);
        insta::assert_snapshot!(error("dry-run = true\n"), @r#"
        error: rankrun.toml:1: unknown key "dry-run"
        hint: the keys are the long names of the options, as "rankrun --help" lists them
        "#);
    }
}
