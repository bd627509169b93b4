//! The cases of the matrix (`tests/matrix/*.cases`): programs that fail or succeed, and what must be said of them.
//!
//! A file is one language. Its form, line by line:
//!
//! ```text
//! # a comment, outside of files
//! env: mpich                what stands before the first case holds for every case of the file
//! --- shared.py             a file that every case gets
//! === name_of_the_case
//! about: why this is expected, where it is not plain
//! ranks: 2                  -n of the first command (2)
//! env: mpich                the Python environment whose programs come first on the PATH
//! needs: gfortran root      programs that must be there, and "root"
//! build: cc -o main main.c  a shell command, run once for these files; its products are beside the files in every run
//! options: --timeout {2s}   {2s} is two seconds, and more on a loaded machine
//! set: NAME=VALUE           a variable in the environment of rankrun
//! run: ./main 'one word'    the command, in a directory with the files
//! culprit: 1                or 0|1, or none (1)
//! class: exception          or exception|exit-code
//! code: 1                   the exit code of rankrun
//! says: ValueError: no      the headline has this; once for each text
//! says-not: Connection      the headline has not
//! fates: 0=victim *=succeeded|ended-by-rankrun    of the others: * is the rest (ended-by-rankrun)
//! how: 0 exited 1           how rank 0 ended has this
//! how-not: on SIGTERM       no rank ended like that; once for each text
//! prints: done              a line of stdout; once for each
//! notes: rankrun: a rank    a healthy job is told of by this, and nothing else
//! within: 10                seconds from the failure to the end of the job at most (10)
//! loaded: yes               the case runs under `cargo xtask test --loaded` too
//! --- main.c                a file; one that begins with "#!" may be executed
//! ```
//!
//! A case with `healthy: yes` is a job that succeeds: exit code 0, every rank succeeded, no word from rankrun.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cases::{Program, Section, sections, texts, words};

/// One program and what must be said of it.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// `language::name`.
    pub name: String,
    pub ranks: u32,
    pub program: Program,
    pub options: Vec<String>,
    pub variables: Vec<(String, String)>,
    pub run: Vec<String>,
    pub healthy: bool,
    pub loaded: bool,
    /// Ranks, or `none`.
    pub culprit: Vec<String>,
    pub class: Vec<String>,
    pub code: Vec<i32>,
    pub says: Vec<String>,
    pub says_not: Vec<String>,
    /// What may have become of a rank that is not the culprit, by rank.
    pub fates: BTreeMap<u32, Vec<String>>,
    /// The same for all other ranks.
    pub rest: Vec<String>,
    pub how: Vec<(u32, String)>,
    pub how_not: Vec<String>,
    pub prints: Vec<String>,
    pub notes: Vec<String>,
    /// Seconds.
    pub within: u32,
}

/// The cases of every file of a directory, by name.
///
/// # Panics
/// If a file is not in the form above, or two cases have one name: they are ours.
pub fn cases(directory: &Path) -> Vec<Case> {
    let of_language = |(language, text): (String, String)| {
        parse(&language, &text).unwrap_or_else(|error| panic!("{}/{language}.cases:{error}", directory.display()))
    };
    let cases: Vec<Case> = texts(directory).into_iter().flat_map(of_language).collect();
    let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "two cases are called {twice:?}");
    cases
}

/// The cases of one file; else the line and what is wrong with it.
fn parse(language: &str, text: &str) -> Result<Vec<Case>, String> {
    let (common, cases) = sections(text)?;
    let of_section = |section: Section| {
        let name = format!("{language}::{}", section.name);
        let mut case = Case { name, ranks: 2, within: 10, ..Case::default() };
        for (number, key, value) in common.keys.iter().chain(&section.keys) {
            set(&mut case, key, value).map_err(|error| format!("{number}: {error}"))?;
        }
        case.program.files = common.files.clone();
        case.program.files.extend(section.files);
        finish(case).map_err(|error| format!("{}: {error}", section.number))
    };
    cases.into_iter().map(of_section).collect()
}

fn set(case: &mut Case, key: &str, value: &str) -> Result<(), String> {
    let some = |value: &str| Some(value.to_owned()).filter(|value| value != "none");
    let number = |value: &str| value.parse::<u32>().map_err(|error| format!("\"{value}\": {error}"));
    let any_of = |value: &str| value.split('|').map(str::to_owned).collect::<Vec<String>>();
    match key {
        "about" => {}
        "ranks" => case.ranks = number(value)?,
        "env" => case.program.environment = some(value),
        "needs" => case.program.needs = value.split_whitespace().map(str::to_owned).collect(),
        "build" => case.program.build = some(value),
        "options" => case.options = words(value),
        "set" => {
            let (name, value) = value.split_once('=').ok_or("no NAME=VALUE")?;
            case.variables.push((name.to_owned(), value.to_owned()));
        }
        "run" => case.run = words(value),
        "healthy" => case.healthy = value == "yes",
        "loaded" => case.loaded = value == "yes",
        "culprit" => case.culprit = any_of(value),
        "class" => case.class = any_of(value),
        "code" => {
            let codes = any_of(value).into_iter().map(|code| code.parse().map_err(|error| format!("{code}: {error}")));
            case.code = codes.collect::<Result<_, String>>()?;
        }
        "says" => case.says.push(value.to_owned()),
        "says-not" => case.says_not.push(value.to_owned()),
        "fates" => {
            for word in value.split_whitespace() {
                let (rank, fates) = word.split_once('=').ok_or("no RANK=FATE")?;
                match rank {
                    "*" => case.rest = any_of(fates),
                    _ => drop(case.fates.insert(number(rank)?, any_of(fates))),
                }
            }
        }
        "how" => {
            let (rank, text) = value.split_once(' ').ok_or("no RANK TEXT")?;
            case.how.push((number(rank)?, text.to_owned()));
        }
        "how-not" => case.how_not.push(value.to_owned()),
        "prints" => case.prints.push(value.to_owned()),
        "notes" => case.notes.push(value.to_owned()),
        "within" => case.within = number(value)?,
        _ => return Err(format!("\"{key}\" is no key")),
    }
    Ok(())
}

/// Fills in what goes without saying, and refuses a case that asserts too little.
fn finish(mut case: Case) -> Result<Case, String> {
    if case.run.is_empty() {
        return Err("nothing is run".to_owned());
    }
    if case.rest.is_empty() {
        case.rest = vec![if case.healthy { "succeeded" } else { "ended-by-rankrun" }.to_owned()];
    }
    if case.healthy {
        case.culprit = vec!["none".to_owned()];
        case.class = vec!["none".to_owned()];
        case.code = vec![0];
    } else {
        if case.culprit.is_empty() {
            case.culprit = vec!["1".to_owned()];
        }
        if case.class.is_empty() || case.code.is_empty() || case.says.is_empty() {
            return Err("a failure needs class, code and says".to_owned());
        }
    }
    Ok(case)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_case_has_what_its_file_has_and_its_own() {
        let text = "env: mpich\n--- a.py\nimport os\n=== one\nrun: sh 'a b'  c\nclass: exit-code\ncode: 3|4\nsays: x: y\n\
                    fates: 0=victim|succeeded *=unknown\n--- b.sh\nexit 3\n=== two\nhealthy: yes\nrun: true\n";
        let cases = parse("shell", text).expect("it is in the form");
        let [one, two] = &cases[..] else { panic!("{cases:?}") };
        assert_eq!((one.name.as_str(), one.program.environment.as_deref()), ("shell::one", Some("mpich")));
        assert_eq!(one.run, ["sh", "a b", "c"]);
        assert_eq!((one.code.clone(), one.says.clone()), (vec![3, 4], vec!["x: y".to_owned()]));
        assert_eq!(one.culprit, ["1"]);
        assert_eq!(
            (&one.fates[&0][..], &one.rest[..]),
            (&["victim".into(), "succeeded".into()][..], &["unknown".into()][..])
        );
        assert_eq!(one.program.files.keys().collect::<Vec<_>>(), ["a.py", "b.sh"]);
        assert_eq!(two.program.files.keys().collect::<Vec<_>>(), ["a.py"]);
        assert_eq!((two.culprit[0].as_str(), two.code[0]), ("none", 0));
    }

    #[test]
    fn a_failure_that_asserts_too_little_is_refused() {
        assert_eq!(
            parse("c", "=== one\nrun: true\ncode: 1\n").err().as_deref(),
            Some("1: a failure needs class, code and says")
        );
        assert_eq!(parse("c", "=== one\ncolour: red\n").err().as_deref(), Some("2: \"colour\" is no key"));
    }
}
