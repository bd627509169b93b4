//! The cases of hangs (`tests/hangs/*.cases`): programs that hang, and which rank is odd; and healthy ones, which no stall may end.
//!
//! What is true of a case was written down from the program, not from what rankrun says of it.
//!
//! ```text
//! about: why this is expected, where it is not plain
//! ranks: 4                  -n
//! env: mpich                the Python environment whose programs come first on the PATH
//! needs: gfortran           programs that must be there
//! build: cc -o main main.c  a shell command, run once for these files
//! set: NAME=VALUE           a variable in the environment of rankrun
//! stdin: pipe               rankrun's stdin is a pipe into which nobody writes; else /dev/null
//! run: ./main               the command, in a directory with the files
//! odd: 2                    the ranks that the others wait for, or none
//! place: take main.c        a function of the odd rank's program, and the file if it has one; take<main: and the function that calls it
//! kind: lock|thread         what the odd rank waits for, as `rankrun stacks --json` writes it, with its call: message MPI_Recv
//! others: event             the same of most ranks
//! says: in different calls  the remark, where nobody is odd
//! sample: yes               the case is played in CI; the others with RANKRUN_TEST_SCALE=full
//! healthy: yes              the program goes on, or waits for somebody outside
//! ```

use std::path::Path;

use crate::cases::{Program, Section, sections, texts, words};

/// One program and where its ranks are.
#[derive(Clone, Debug, Default)]
pub struct Hang {
    /// `file::name`.
    pub name: String,
    pub ranks: u32,
    pub program: Program,
    pub variables: Vec<(String, String)>,
    pub stdin_is_pipe: bool,
    pub run: Vec<String>,
    pub healthy: bool,
    pub sample: bool,
    /// `2`, `1-2` or `none`.
    pub odd: String,
    /// Function, or function<caller, and file.
    pub place: Option<(String, Option<String>)>,
    pub kind: Vec<String>,
    pub others: Vec<String>,
    pub says: Option<String>,
}

/// The cases of every file of a directory.
///
/// # Panics
/// If a file is not in the form above: they are ours.
pub fn hangs(directory: &Path) -> Vec<Hang> {
    let of_file = |(file, text): (String, String)| {
        parse(&file, &text).unwrap_or_else(|error| panic!("{}/{file}.cases:{error}", directory.display()))
    };
    texts(directory).into_iter().flat_map(of_file).collect()
}

fn parse(file: &str, text: &str) -> Result<Vec<Hang>, String> {
    let (common, cases) = sections(text)?;
    let of_case = |case: Section| {
        let mut hang = Hang { name: format!("{file}::{}", case.name), ..Hang::default() };
        for (number, key, value) in common.keys.iter().chain(&case.keys) {
            set(&mut hang, key, value).map_err(|error| format!("{number}: {error}"))?;
        }
        hang.program.files = common.files.clone();
        hang.program.files.extend(case.files);
        let is_whole = match (hang.healthy, hang.odd.as_str()) {
            (true, _) => true,
            (false, "none") => hang.says.is_some(),
            (false, odd) => !odd.is_empty() && !hang.kind.is_empty(),
        };
        let is_run = !hang.run.is_empty() && hang.ranks > 0;
        (is_whole && is_run)
            .then_some(hang)
            .ok_or(format!("{}: it needs run, ranks, and odd with kind, or healthy", case.number))
    };
    cases.into_iter().map(of_case).collect()
}

fn set(hang: &mut Hang, key: &str, value: &str) -> Result<(), String> {
    let some = || Some(value.to_owned()).filter(|value| value != "none");
    let any_of = || value.split('|').map(str::to_owned).collect::<Vec<String>>();
    match key {
        "about" => {}
        "ranks" => hang.ranks = value.parse().map_err(|error| format!("\"{value}\": {error}"))?,
        "env" => hang.program.environment = some(),
        "needs" => hang.program.needs = value.split_whitespace().map(str::to_owned).collect(),
        "build" => hang.program.build = some(),
        "set" => {
            let (name, value) = value.split_once('=').ok_or("no NAME=VALUE")?;
            hang.variables.push((name.to_owned(), value.to_owned()));
        }
        "stdin" => hang.stdin_is_pipe = value == "pipe",
        "run" => hang.run = words(value),
        "healthy" => hang.healthy = value == "yes",
        "sample" => hang.sample = value == "yes",
        "odd" => hang.odd = value.to_owned(),
        "place" => {
            let (function, file) = value.split_once(' ').map_or((value, None), |(one, other)| (one, Some(other)));
            hang.place = Some((function.to_owned(), file.map(str::to_owned)));
        }
        "kind" => hang.kind = any_of(),
        "others" => hang.others = any_of(),
        "says" => hang.says = some(),
        _ => return Err(format!("\"{key}\" is no key")),
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_case_has_what_its_file_has_and_its_own() {
        let text =
            "ranks: 4\nodd: 2\n--- a.h\nx\n=== one\nrun: ./a 'b c'\nplace: take main.c\nkind: lock|message MPI_Recv\n";
        let hangs = parse("c", text).expect("it is in the form");
        let [one] = &hangs[..] else { panic!("{hangs:?}") };
        assert_eq!((one.name.as_str(), one.ranks, one.odd.as_str()), ("c::one", 4, "2"));
        assert_eq!(one.run, ["./a", "b c"]);
        assert_eq!(one.place, Some(("take".to_owned(), Some("main.c".to_owned()))));
        assert_eq!(one.kind, ["lock", "message MPI_Recv"]);
        assert!(one.program.files.contains_key("a.h"));
    }

    #[test]
    fn a_case_that_asserts_too_little_is_refused() {
        let error = parse("c", "ranks: 2\n=== one\nrun: true\nodd: 1\n").err();
        assert_eq!(error.as_deref(), Some("2: it needs run, ranks, and odd with kind, or healthy"));
        assert_eq!(parse("c", "=== one\ncolour: red\n").err().as_deref(), Some("2: \"colour\" is no key"));
    }
}
