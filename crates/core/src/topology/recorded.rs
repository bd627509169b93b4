//! Recorded trees of real machines, for tests. A line of a recording is a file with its text, or a directory with its names; numbers in
//! brackets stand for several paths (`tests/topologies/README.md`).

use std::collections::BTreeMap;
use std::path::Path;

use super::{CpuSet, Files};

/// A machine's files.
pub(crate) struct Recorded {
    files: BTreeMap<String, String>,
    directories: BTreeMap<String, Vec<String>>,
}

impl Recorded {
    pub(crate) fn open(name: &str) -> Recorded {
        Recorded::of(&Recorded::text(&format!("{name}.txt")))
    }

    /// The text of a file beside the recordings.
    pub(crate) fn text(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub(crate) fn of(text: &str) -> Recorded {
        let mut recorded = Recorded { files: BTreeMap::new(), directories: BTreeMap::new() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (path, text) = line.split_once(" = ").unwrap_or_else(|| panic!("{line:?} is no line of a recording"));
            for path in expanded(path) {
                match path.strip_suffix('/') {
                    Some(directory) => {
                        let names = text.split(' ').map(str::to_owned).collect();
                        recorded.directories.insert(directory.to_owned(), names);
                    }
                    None => {
                        recorded.files.insert(path, format!("{text}\n"));
                    }
                }
            }
        }
        recorded
    }
}

/// The paths that a path with one pair of brackets stands for.
fn expanded(path: &str) -> Vec<String> {
    let parts = path.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once(']')?)));
    let Some((before, (numbers, after))) = parts else { return vec![path.to_owned()] };
    let numbers: CpuSet = numbers.parse().expect("a list of numbers");
    numbers.iter().map(|number| format!("{before}{number}{after}")).collect()
}

impl Files for Recorded {
    fn text(&self, path: &str) -> Option<String> {
        self.files.get(path).cloned()
    }

    fn names(&self, directory: &str) -> Vec<String> {
        self.directories.get(directory).cloned().unwrap_or_default()
    }
}
