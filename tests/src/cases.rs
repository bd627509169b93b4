//! Files of cases (`*.cases`): small programs, with what is true of each. [`crate::matrix`] and [`crate::hangs`] say which keys a case has.
//!
//! ```text
//! # a comment, outside of files
//! env: mpich                what stands before the first case holds for every case of the file
//! --- shared.py             a file that every case gets
//! === name_of_the_case
//! key: value
//! --- main.c                a file; one that begins with "#!" may be executed
//! ```

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::FlockOperation;

use crate::environment::Environment;
use crate::skip::skip;

/// A case as its file has it, or what all cases of a file share.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The line that it begins with.
    pub number: usize,
    pub name: String,
    /// Line, key and value.
    pub keys: Vec<(usize, String, String)>,
    pub files: BTreeMap<String, String>,
}

/// What is needed to run the program of a case.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The Python environment whose programs come first on the PATH.
    pub environment: Option<String>,
    /// Programs that must be there, and `root`.
    pub needs: Vec<String>,
    /// A shell command, run once for these files; its products are beside the files in every run.
    pub build: Option<String>,
    pub files: BTreeMap<String, String>,
}

/// The texts of all files of cases in a directory, by their names without the ending.
///
/// # Panics
/// If they cannot be read: they are ours.
pub fn texts(directory: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(directory).expect("the cases are in the repository");
    let mut texts = BTreeMap::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "cases") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            texts.insert(name, fs::read_to_string(&path).expect("a file of cases can be read"));
        }
    }
    texts
}

/// What all cases of a file share, and its cases.
///
/// # Errors
/// The line that is not in the form.
pub fn sections(text: &str) -> Result<(Section, Vec<Section>), String> {
    let mut common = Section::default();
    let mut cases: Vec<Section> = Vec::new();
    let mut file: Option<String> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(name) = line.strip_prefix("=== ") {
            file = None;
            cases.push(Section { number, name: name.trim().to_owned(), ..Section::default() });
            continue;
        }
        let section = cases.last_mut().unwrap_or(&mut common);
        if let Some(name) = line.strip_prefix("--- ") {
            section.files.insert(name.trim().to_owned(), String::new());
            file = Some(name.trim().to_owned());
        } else if let Some(file) = &file {
            let content = section.files.entry(file.clone()).or_default();
            content.push_str(line);
            content.push('\n');
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            let (key, value) = line.split_once(':').ok_or_else(|| format!("{number}: no \"key: value\""))?;
            section.keys.push((number, key.to_owned(), value.trim().to_owned()));
        }
    }
    Ok((common, cases))
}

/// The words of a command, as a shell splits them: quotes hold them together.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (Some(_) | None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// A word in which `{2s}` has become a time that fits the machine's load.
pub fn with_times(word: &str, slowness: u32) -> String {
    match word.strip_prefix('{').and_then(|rest| rest.strip_suffix("s}")).and_then(|time| time.parse::<u32>().ok()) {
        Some(seconds) => format!("{}s", seconds * slowness),
        None => word.to_owned(),
    }
}

impl Program {
    /// The PATH for it; `None` after the calling test has been noted as skipped, where something that it needs is not there.
    pub fn path(&self) -> Option<String> {
        let inherited = env::var("PATH").unwrap_or_default();
        let path = match self.environment.as_deref() {
            Some(name) => format!("{}:{inherited}", Environment::find(name)?.program("")),
            None => inherited,
        };
        for need in &self.needs {
            let met = match need.as_str() {
                "root" => rustix::process::geteuid().is_root(),
                program => env::split_paths(&path).any(|directory| directory.join(program).exists()),
            };
            if !met {
                skip(&format!("\"{need}\" is not there"));
                return None;
            }
        }
        Some(path)
    }

    /// Puts the files into a directory, and what is built of them. `below`: where builds are kept for later runs.
    ///
    /// # Panics
    /// If they cannot be written or built.
    pub fn prepare(&self, path: &str, work: &Path, below: &Path) {
        let Some(build) = &self.build else { return write_files(work, &self.files) };
        let built = built(build, path, &self.files, below);
        for entry in fs::read_dir(&built).expect("it has been made").flatten() {
            let to = work.join(entry.file_name());
            std::os::unix::fs::symlink(entry.path(), to).expect("the directory is ours");
        }
    }
}

fn write_files(directory: &Path, files: &BTreeMap<String, String>) {
    for (name, content) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().expect("it is in the directory")).expect("the directory is ours");
        fs::write(&path, content).expect("the directory is ours");
        if content.starts_with("#!") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        }
    }
}

/// The directory with these files and what the command makes of them. It is made once, for all cases with the same files and
/// command, and for later runs. `$MPICH` and `$IMPI` are the environments of these, for programs of both.
fn built(command: &str, path: &str, files: &BTreeMap<String, String>, below: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (command, files).hash(&mut hasher);
    fs::create_dir_all(below).expect("the build directory can be written");
    let directory = below.join(format!("{:016x}", hasher.finish()));
    let lock = File::create(directory.with_extension("lock")).expect("the build directory can be written");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("it is a file");
    if !directory.exists() {
        let fresh = directory.with_extension("new");
        // One is there if an earlier run was killed.
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir(&fresh).expect("the build directory can be written");
        write_files(&fresh, files);
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&fresh).env("PATH", path);
        for (variable, name) in [("MPICH", "mpich"), ("IMPI", "impi-rt")] {
            if command.contains(&format!("${variable}/"))
                && let Some(environment) = Environment::find(name)
            {
                shell.env(variable, environment.path());
            }
        }
        let output = shell.output().expect("there is a shell");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
        fs::rename(&fresh, &directory).expect("both are in one directory");
    }
    directory
}

/// Runs a test in a thread of its name, as the usual harness does: a skip is noted by that name.
///
/// # Errors
/// Those of the test, and that it has panicked.
pub fn in_thread(name: &str, test: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(test).map_err(|error| error.to_string())?;
    // What it said of a panic is on stderr.
    thread.join().unwrap_or_else(|_| Err("the test panicked".to_owned()))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_file_is_split_into_cases_keys_and_files() {
        let (common, cases) = sections("env: mpich\n--- a.py\nimport os\n=== one\n# no\nrun: sh x: y\n--- b.sh\n# 3\n")
            .expect("it is in the form");
        assert_eq!(common.keys, [(1, "env".to_owned(), "mpich".to_owned())]);
        assert_eq!(common.files["a.py"], "import os\n");
        assert_eq!((cases.len(), cases[0].number, cases[0].name.as_str()), (1, 4, "one"));
        assert_eq!(cases[0].keys, [(6, "run".to_owned(), "sh x: y".to_owned())]);
        assert_eq!(cases[0].files["b.sh"], "# 3\n");
        assert_eq!(sections("=== one\nrun\n").err().as_deref(), Some("2: no \"key: value\""));
    }

    #[test]
    fn times_grow_with_the_load() {
        assert_eq!((with_times("{2s}", 5).as_str(), with_times("{rank}", 5).as_str()), ("10s", "{rank}"));
    }
}
