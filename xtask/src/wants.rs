//! What chosen tests want of this machine: the Python environments and the programs that their sources name. No list has to be kept
//! beside the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// The package of the black-box tests.
const BLACK_BOX: &str = "rankrun-tests";

/// The tests that a filter chooses.
pub(crate) struct Wants {
    /// The sources of the chosen black-box tests. Unit tests want nothing.
    sources: String,
    has_black_box: bool,
}

impl Wants {
    /// Asks nextest, which has built the tests, which of them it would run. `arguments` are the filters.
    pub(crate) fn of(arguments: &[String]) -> Result<Wants> {
        let mut command = workspace::cargo();
        command.current_dir(workspace::root()).stderr(Stdio::inherit());
        command.args(["nextest", "list", "--workspace", "--message-format", "json"]).args(arguments);
        let output = command.output().context("cannot start cargo nextest")?;
        if !output.status.success() {
            bail!("cargo nextest list: {}", output.status);
        }
        let list = serde_json::from_slice(&output.stdout).context("cargo nextest list wrote no JSON")?;
        let chosen = chosen(&list);
        let mut sources = String::new();
        for (binary, tests) in &chosen {
            for file in files(&workspace::root().join("tests"), binary, tests) {
                sources.push_str(&fs::read_to_string(&file).unwrap_or_default());
            }
        }
        Ok(Wants { sources, has_black_box: !chosen.is_empty() })
    }

    /// Whether a test runs rankrun.
    pub(crate) fn has_black_box(&self) -> bool {
        self.has_black_box
    }

    /// Whether a test names this Python environment: in Rust, as the key of a case, or as the variable of a case's build.
    pub(crate) fn environment(&self, name: &str) -> bool {
        let variable = match name {
            "mpich" => "$MPICH/",
            "impi-rt" => "$IMPI/",
            _ => "\0",
        };
        let quoted = format!("\"{name}\"");
        let is_key = |line: &str| line.strip_prefix("env: ").is_some_and(|value| value.trim() == name);
        self.sources.contains(&quoted) || self.sources.contains(variable) || self.sources.lines().any(is_key)
    }

    /// Whether a test has one of these words; no words are those of every black-box test.
    pub(crate) fn any_of(&self, words: &[&str]) -> bool {
        self.has_black_box && (words.is_empty() || words.iter().any(|word| self.sources.contains(word)))
    }
}

/// The chosen black-box tests, by their binaries, of the list that nextest makes.
fn chosen(list: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let suites = list["rust-suites"].as_object().into_iter().flatten();
    let ours = suites.filter(|(_, suite)| suite["package-name"] == BLACK_BOX && suite["kind"] == "test");
    let mut chosen = BTreeMap::new();
    for (_, suite) in ours {
        let tests = suite["testcases"].as_object().into_iter().flatten();
        let matching = tests.filter(|(_, test)| test["filter-match"]["status"] == "matches");
        let names: BTreeSet<String> = matching.map(|(name, _)| name.clone()).collect();
        if !names.is_empty() {
            chosen.insert(suite["binary-name"].as_str().unwrap_or_default().to_owned(), names);
        }
    }
    chosen
}

/// The files that may hold these tests of a binary: a test is called `file::name`, or as its file.
fn files(tests: &Path, binary: &str, names: &BTreeSet<String>) -> Vec<PathBuf> {
    let modules: BTreeSet<&str> =
        names.iter().map(|name| name.split_once("::").map_or(&**name, |(file, _)| file)).collect();
    let mut files = vec![tests.join("tests").join(format!("{binary}.rs"))];
    for module in modules {
        files.extend([
            tests.join("tests").join(format!("{module}.rs")),
            tests.join("matrix").join(format!("{module}.cases")),
            tests.join("hangs").join(format!("{module}.cases")),
            tests.join("python").join(format!("{module}.py")),
        ]);
    }
    files
}

#[cfg(test)]
mod unit {
    use serde_json::json;

    use super::*;

    fn wants(sources: &str) -> Wants {
        Wants { sources: sources.to_owned(), has_black_box: true }
    }

    #[test]
    fn only_black_box_tests_that_match_are_chosen() {
        let case = |status: &str| json!({ "filter-match": { "status": status } });
        let suite = |package: &str, kind: &str, tests: Value| json!({ "package-name": package, "kind": kind, "binary-name": "jobs", "testcases": tests });
        let list = json!({ "rust-suites": {
            "rankrun-core": suite("rankrun-core", "lib", json!({ "a": case("matches") })),
            "rankrun-tests": suite("rankrun-tests", "lib", json!({ "b": case("matches") })),
            "rankrun-tests::jobs": suite("rankrun-tests", "test", json!({ "mpi::c": case("matches"), "jax::d": case("mismatch") })),
        } });
        let expected = BTreeMap::from([("jobs".to_owned(), BTreeSet::from(["mpi::c".to_owned()]))]);
        assert_eq!(chosen(&list), expected);
    }

    #[test]
    fn environments_are_read_from_rust_from_cases_and_from_their_builds() {
        let wants =
            wants("Environment::find(\"torch\")\nenv: mpich \nbuild: cc -I$IMPI/include main.c\n// jax and \"tool\"");
        let found: Vec<&str> =
            ["torch", "mpich", "impi-rt", "jax", "tools"].into_iter().filter(|name| wants.environment(name)).collect();
        assert_eq!(found, ["torch", "mpich", "impi-rt"]);
    }

    #[test]
    fn unit_tests_want_no_program_and_black_box_tests_what_is_for_all_and_what_they_name() {
        let unit = Wants { sources: String::new(), has_black_box: false };
        assert!(!unit.any_of(&[]));
        let shells = wants("login shells: \"fish\"");
        assert!(shells.any_of(&[]) && shells.any_of(&["zsh", "fish"]) && !shells.any_of(&["zsh"]));
    }

    #[test]
    fn the_files_of_a_test_are_found_by_its_name() {
        let tests = workspace::root().join("tests");
        let names = BTreeSet::from(["mpi::a".to_owned(), "python::b".to_owned(), "test_hook".to_owned()]);
        let found: Vec<PathBuf> = files(&tests, "python", &names).into_iter().filter(|file| file.exists()).collect();
        let expected =
            ["tests/python.rs", "tests/mpi.rs", "tests/python.rs", "matrix/python.cases", "python/test_hook.py"];
        assert!(expected.iter().all(|file| found.contains(&tests.join(file))), "{found:?}");
    }
}
