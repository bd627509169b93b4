//! Looks up the program of a command before anything is started, and suggests what may have been meant if there is none.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rankrun_core::ExitCode;
use rankrun_core::alone::{INITS, LINKED, is_launcher, is_linked_library, is_prefix};
use rankrun_core::suggest::nearest;
use rankrun_stacks::{Origin, origin};
use rankrun_sys::exec::{ResolveError, resolve, resolve_at};

use crate::ask::At;
use crate::message::Problem;
use crate::subcommands;
use crate::words::{quote, split};
use rankrun_sys::reason;

/// Why there is no program.
#[derive(Debug)]
pub(crate) enum Missing {
    File(ResolveError),
    /// Its interpreter does not exist.
    Interpreter(OsString),
}

/// Finds the file that a command runs, as the ranks will: with the PATH of their environment, from their directory.
pub(crate) fn locate(command: &OsStr, path: Option<&OsStr>, wdir: &Path, at: &mut At<'_>) -> Result<PathBuf, Missing> {
    let file = resolve_at(command, path, wdir, at).map_err(Missing::File)?;
    match interpreter(&file) {
        Some(interpreter) if !at(Path::new(&interpreter)) => Err(Missing::File(ResolveError::Refused)),
        Some(interpreter) if !Path::new(&interpreter).exists() => Err(Missing::Interpreter(interpreter)),
        _ => Ok(file),
    }
}

/// What is wrong with a command, and what may be meant: looks around for that.
pub(crate) fn explain(missing: &Missing, command: &OsStr, path: Option<&OsStr>, wdir: &Path) -> Problem {
    match missing {
        Missing::File(ResolveError::NotFound | ResolveError::Refused) => not_found(command, path, wdir),
        Missing::File(ResolveError::NotExecutable { path, source }) => not_executable(command, path, source),
        Missing::Interpreter(interpreter) => missing_interpreter(command, interpreter),
    }
}

/// The file that a command runs, or what is wrong with it.
pub(crate) fn find(command: &OsStr, path: Option<&OsStr>, wdir: &Path) -> Result<PathBuf, Problem> {
    locate(command, path, wdir, &mut |_| true).map_err(|missing| explain(&missing, command, path, wdir))
}

/// The MPI library of a command whose program calls `MPI_Init`, as far as its file tells. `None` for one that runs a launcher,
/// and for scripts.
pub(crate) fn mpi_library(command: &[OsString], path: Option<&OsStr>, wdir: &Path, at: &mut At<'_>) -> Option<String> {
    let name = |word: &OsStr| Path::new(word).file_name().and_then(OsStr::to_str).map(str::to_owned);
    let mut programs = command.iter().filter(|word| !word.as_bytes().starts_with(b"-"));
    let mut word = programs.next()?;
    loop {
        let called = name(word).unwrap_or_default();
        if is_launcher(&called) {
            return None;
        }
        if !is_prefix(&called) {
            let file = resolve_at(word, path, wdir, at).ok()?;
            if !at(&file) {
                return None;
            }
            return match origin(&file, &INITS, is_linked_library)? {
                Origin::Shared(name) => Some(name),
                Origin::Linked => Some(LINKED.to_owned()),
            };
        }
        // After its options, their values and variables.
        word = programs.find(|word| !word.as_bytes().contains(&b'=') && resolve_at(word, path, wdir, at).is_ok())?;
    }
}

fn not_found(command: &OsStr, path: Option<&OsStr>, wdir: &Path) -> Problem {
    let text = command.to_string_lossy();
    let is_path = command.as_bytes().contains(&b'/');
    let why = if is_path { "no such file" } else { "command not found" };
    let problem = Problem::usage(format!("cannot run \"{text}\": {why}")).code(ExitCode::NOT_FOUND);
    if let Some(hint) = not_a_program(&text, path, wdir) {
        return problem.hint(hint);
    }
    let own = if is_path { None } else { own_command(&text) };
    let hint = if is_path {
        near_file(&text, wdir).map(|near| format!("did you mean \"{near}\"?"))
    } else if wdir.join(command).is_file() {
        Some(how_to_run(&format!("./{text}"), &wdir.join(command)))
    } else if let Some(own) = own {
        Some(own)
    } else {
        let programs = programs(path, wdir);
        let files = names_in(wdir);
        match nearest(&text, programs.iter().map(String::as_str).filter(|name| !is_dangerous(name))) {
            Some(near) => Some(format!("did you mean \"{near}\"?")),
            None => nearest(&text, files.iter().map(String::as_str))
                .filter(|near| wdir.join(near).is_file())
                .map(|near| how_to_run(&format!("./{near}"), &wdir.join(near))),
        }
    };
    problem.hint_if(hint)
}

/// Programs that do harm when a user follows a wrong suggestion: they are never suggested.
const DANGEROUS: &[&str] = &[
    "chmod", "chown", "dd", "fdisk", "halt", "init", "kill", "killall", "mv", "parted", "pkill", "poweroff", "reboot",
    "rm", "rmdir", "sfdisk", "shred", "shutdown", "telinit", "truncate", "unlink", "userdel", "wipefs",
];

fn is_dangerous(name: &str) -> bool {
    DANGEROUS.contains(&name) || name.starts_with("mkfs")
}

/// What other programs call a subcommand of rankrun.
const SYNONYMS: &[(&str, &str)] = &[
    ("abort", "stop"),
    ("backtrace", "stacks"),
    ("cancel", "stop"),
    ("cleanup", "clean"),
    ("dashboard", "web"),
    ("diagnose", "check"),
    ("doctor", "check"),
    ("flamegraph", "profile"),
    ("follow", "logs"),
    ("htop", "top"),
    ("inspect", "status"),
    ("jobs", "status"),
    ("list", "status"),
    ("log", "logs"),
    ("monitor", "top"),
    ("queue", "status"),
    ("reattach", "attach"),
    ("show", "report"),
    ("terminate", "stop"),
];

/// Subcommands that end something: suggested only where the first letter is right.
const ENDING: &[&str] = &["clean", "restart", "stop"];

/// The subcommand of rankrun that may be meant. It must be the first word, in lower case.
fn own_command(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let names = || subcommands::SUBCOMMANDS.iter().map(|(name, ..)| *name).chain(["help"]);
    let is_form = |name: &&str| {
        lower == *name || lower.strip_suffix('s') == Some(*name) || name.strip_suffix('s') == Some(&*lower)
    };
    let is_safe = |name: &&str| !ENDING.contains(name) || name.as_bytes().first() == lower.as_bytes().first();
    let synonym = || SYNONYMS.iter().find(|(word, _)| *word == lower).map(|(_, name)| *name);
    let own = names().find(is_form).or_else(synonym).or_else(|| nearest(&lower, names().filter(is_safe)))?;
    Some(match text == own {
        true => format!("\"{own}\" is a command of rankrun only as the first word: write rankrun {own}"),
        false => format!("did you mean \"rankrun {own}\"?"),
    })
}

/// Commands that only a shell can run.
const SHELL_WORDS: &[&str] = &[
    "cd", "source", ".", "export", "unset", "set", "alias", "eval", "exec", "ulimit", "umask", "if", "for", "while",
    "time",
];

/// Other launchers, of which rankrun knows the options.
const LAUNCHERS: &[&str] =
    &["mpiexec", "mpiexec.hydra", "mpirun", "orterun", "prterun", "torchrun", "srun", "parallel"];

/// What the first word may be if it is not a program's name, and the correct spelling of that.
fn not_a_program(text: &str, path: Option<&OsStr>, wdir: &Path) -> Option<String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        return Some(format!("the number of ranks is written -n {text}"));
    }
    if text.starts_with('-') && text.len() > 1 {
        return Some("options come before the command: what follows \"--\" is the command".to_owned());
    }
    if ["run", "launch"].contains(&text) {
        return Some(format!("leave out \"{text}\": the command follows the options"));
    }
    if LAUNCHERS.contains(&text) {
        return Some(format!("leave out \"{text}\": rankrun takes its place, and understands many of its options"));
    }
    if text == "version" {
        return Some("the version is printed by \"rankrun --version\"".to_owned());
    }
    let words = split(OsStr::new(text)).unwrap_or_default();
    let [first, others @ ..] = &words[..] else { return None };
    let is_variable = |(name, _): (&str, &str)| {
        let mut letters = name.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    };
    if others.is_empty() {
        return match text.split_once('=') {
            Some(parts) if is_variable(parts) => Some(format!("a variable of the ranks is written -x {text}")),
            _ if SHELL_WORDS.contains(&text) => {
                Some(format!("\"{text}\" is a shell builtin: write bash -c '{text} ...'"))
            }
            _ => None,
        };
    }
    let has_operators = text.contains(['|', '&', ';', '<', '>', '$', '`']) || text.contains('=');
    let is_found = resolve(first, path, wdir).is_ok() || SHELL_WORDS.iter().any(|word| first == word);
    match (has_operators, is_found) {
        (true, _) => Some(format!("a command for a shell is written bash -c {}", quote(OsStr::new(text)))),
        (false, true) => Some(format!("leave out the quotes around the command: {text}")),
        (false, false) => None,
    }
}

/// A hint for a file that exists: the file itself if it is executable, otherwise with its interpreter.
fn how_to_run(shown: &str, file: &Path) -> String {
    let executable = rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok();
    match interpreter_for(file).filter(|_| !executable) {
        Some(interpreter) => format!("did you mean \"{interpreter} {}\"?", shown.trim_start_matches("./")),
        None if executable => format!("did you mean \"{shown}\"?"),
        None => format!("\"{shown}\" exists, but is not executable: chmod +x {shown}"),
    }
}

/// The nearest name in the directory that the command names.
fn near_file(command: &str, wdir: &Path) -> Option<String> {
    let (directory, name) = command.rsplit_once('/')?;
    let names = names_in(&wdir.join(if directory.is_empty() { "/" } else { directory }));
    nearest(name, names.iter().map(String::as_str)).map(|near| format!("{directory}/{near}"))
}

fn not_executable(command: &OsStr, file: &Path, source: &std::io::Error) -> Problem {
    let shown = command.display();
    let problem = Problem::usage(format!("cannot run \"{shown}\": {}", lower_first(&reason(source))));
    let problem = problem.code(ExitCode::NOT_EXECUTABLE);
    if file.is_dir() {
        return problem.hint_if(in_directory(&shown.to_string(), file));
    }
    if source.kind() != std::io::ErrorKind::PermissionDenied || !file.is_file() {
        return problem;
    }
    let named = command.as_bytes().contains(&b'/');
    problem.hint(match interpreter_for(file) {
        Some(interpreter) => format!("did you mean \"{interpreter} {shown}\"?"),
        None => format!(
            "make it executable with \"chmod +x {}\"",
            if named { shown.to_string() } else { file.display().to_string() }
        ),
    })
}

/// What may be meant by a directory: its Python package, or the program in it that has its name. Another program may be
/// anybody's.
fn in_directory(shown: &str, directory: &Path) -> Option<String> {
    if directory.join("__main__.py").is_file() {
        return Some(format!("did you mean \"python3 {shown}\"?"));
    }
    let own = directory.canonicalize().ok()?;
    let own = own.file_name()?.to_str()?;
    let is_program = |name: &&String| {
        let file = directory.join(name);
        let is_own = Path::new(name).file_stem().and_then(OsStr::to_str) == Some(own);
        is_own && file.is_file() && rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let names = names_in(directory);
    let program = names.iter().find(is_program)?;
    Some(format!("did you mean \"{}/{program}\"?", shown.trim_end_matches('/')))
}

/// "Permission denied" in the middle of a sentence.
fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn missing_interpreter(command: &OsStr, interpreter: &OsStr) -> Problem {
    let shown = command.display();
    let problem = match interpreter.as_bytes().strip_suffix(b"\r") {
        Some(_) => Problem::usage(format!("cannot run \"{shown}\": its first line has a Windows line end (CR LF)"))
            .hint(format!("remove it with \"sed -i 's/\\r$//' {shown}\"")),
        None => Problem::usage(format!(
            "cannot run \"{shown}\": its interpreter \"{}\" does not exist",
            interpreter.display()
        )),
    };
    problem.code(ExitCode::NOT_EXECUTABLE)
}

/// The interpreter that a script names in its first line.
fn interpreter(file: &Path) -> Option<OsString> {
    let mut start = [0; 256];
    let length = crate::file::open(file).ok()?.read(&mut start).ok()?;
    let line = start[..length].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| *byte == b' ' || *byte == b'\t').find(|word| !word.is_empty())?;
    // The name that env looks for has the line's end, too, and is not there.
    let is_of_env = word.ends_with(b"/env") && line.ends_with(b"\r");
    let word = if is_of_env { [word, b"\r"].concat() } else { word.to_owned() };
    Some(OsString::from_vec(word))
}

/// The usual interpreter of a script, by its name.
fn interpreter_for(file: &Path) -> Option<&'static str> {
    match file.extension()?.to_str()? {
        "py" => Some("python3"),
        "sh" => Some("sh"),
        "jl" => Some("julia"),
        "pl" => Some("perl"),
        "rb" => Some("ruby"),
        "R" => Some("Rscript"),
        _ => None,
    }
}

/// The names of all executable files on the PATH.
fn programs(path: Option<&OsStr>, wdir: &Path) -> Vec<String> {
    let directories = path.map(std::env::split_paths).into_iter().flatten();
    directories.flat_map(|directory| names_in(&wdir.join(directory))).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // The order of a directory is arbitrary, and the same mistake must give the same hint.
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A directory with a program `bin/solver`, and the files `train.py`, `run.sh`, `tool` and `crlf`.
    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let write = |name: &str, text: &str, mode: u32| {
            let file = directory.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a name below the directory")).expect("a directory");
            std::fs::write(&file, text).expect("a file");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        write("bin/solver", "#!/bin/sh\n", 0o755);
        write("bin/bare", "exit 3\n", 0o755);
        write("train.py", "print()\n", 0o644);
        write("run.sh", "#!/bin/sh\n", 0o755);
        write("data", "\n", 0o644);
        write("crlf", "#!/bin/sh\r\n", 0o755);
        write("crlf-env", "#!/usr/bin/env python3\r\n", 0o755);
        write("heat/build.sh", "#!/bin/sh\n", 0o755);
        write("heat/heat", "#!/bin/sh\n", 0o755);
        write("old/sig_rankrun", "#!/bin/sh\n", 0o755);
        write("elsewhere", "#!/no/such/python3 -u\n", 0o755);
        directory
    }

    fn resolved(command: &str) -> String {
        let directory = directory();
        let path = directory.path().join("bin");
        match find(command.as_ref(), Some(path.as_os_str()), directory.path()) {
            Ok(file) => format!("found {}", file.strip_prefix(directory.path()).unwrap_or(&file).display()),
            Err(problem) => {
                let text = problem.to_string().replace(&directory.path().display().to_string(), "DIR");
                format!("{text}\nexit {}", problem.code.0)
            }
        }
    }

    #[test]
    fn programs_are_found_on_the_path_and_by_their_name() {
        assert_eq!(resolved("solver"), "found bin/solver");
        assert_eq!(resolved("./run.sh"), "found run.sh");
        assert_eq!(resolved("/bin/sh"), "found /bin/sh");
        assert_eq!(resolved("bare"), "found bin/bare", "what has no #! line is a shell script");
    }

    #[test]
    fn what_is_not_found_comes_with_what_may_be_meant() {
        insta::assert_snapshot!(resolved("slover"), @r#"
        error: cannot run "slover": command not found
        hint: did you mean "solver"?
        exit 127
        "#);
        insta::assert_snapshot!(resolved("train.py"), @r#"
        error: cannot run "train.py": command not found
        hint: did you mean "python3 train.py"?
        exit 127
        "#);
        insta::assert_snapshot!(resolved("run.sh"), @r#"
        error: cannot run "run.sh": command not found
        hint: did you mean "./run.sh"?
        exit 127
        "#);
        insta::assert_snapshot!(resolved("./trian.py"), @r#"
        error: cannot run "./trian.py": no such file
        hint: did you mean "./train.py"?
        exit 127
        "#);
        insta::assert_snapshot!(resolved("data"), @r#"
        error: cannot run "data": command not found
        hint: "./data" exists, but is not executable: chmod +x ./data
        exit 127
        "#);
        insta::assert_snapshot!(resolved("no-such-thing"), @r#"
        error: cannot run "no-such-thing": command not found
        exit 127
        "#);
    }

    #[test]
    fn a_command_of_rankrun_is_meant_rather_than_another_program() {
        for (typed, hint) in [
            ("reprot", "did you mean \"rankrun report\"?"),
            ("report", "\"report\" is a command of rankrun only as the first word: write rankrun report"),
            ("Report", "did you mean \"rankrun report\"?"),
            ("reports", "did you mean \"rankrun report\"?"),
            ("checks", "did you mean \"rankrun check\"?"),
            ("completion", "did you mean \"rankrun completions\"?"),
            ("halp", "did you mean \"rankrun help\"?"),
            ("stpo", "did you mean \"rankrun stop\"?"),
            ("list", "did you mean \"rankrun status\"?"),
            ("inspect", "did you mean \"rankrun status\"?"),
            ("reattach", "did you mean \"rankrun attach\"?"),
            ("log", "did you mean \"rankrun logs\"?"),
            ("htop", "did you mean \"rankrun top\"?"),
            ("cancel", "did you mean \"rankrun stop\"?"),
        ] {
            assert_eq!(hint_of(typed).as_deref(), Some(hint), "{typed}");
        }
    }

    #[test]
    fn no_harmful_program_and_nothing_for_a_letter_is_suggested() {
        for typed in ["rebot", "haltt", "powerof", "shutdwn", "mkfs.ext5", "", "-", "m", "r"] {
            assert_eq!(hint_of(typed), None, "{typed}");
        }
    }

    #[test]
    fn a_word_that_other_launchers_want_is_left_out() {
        assert_eq!(hint_of("run").as_deref(), Some("leave out \"run\": the command follows the options"));
        let place = "leave out \"mpiexec\": rankrun takes its place, and understands many of its options";
        assert_eq!(hint_of("mpiexec").as_deref(), Some(place), "and not msgexec");
        let after = "options come before the command: what follows \"--\" is the command";
        assert_eq!(hint_of("-n").as_deref(), Some(after));
    }

    /// The hint for a command that is not there, where there are programs that nobody should be led to.
    fn hint_of(command: &str) -> Option<String> {
        let directory = directory();
        let path = directory.path().join("bin");
        for name in ["reboot", "halt", "poweroff", "shutdown", "mkfs.ext4", "R", "rm", "rev"] {
            std::fs::copy(path.join("solver"), path.join(name)).expect("a program");
        }
        let problem = find(command.as_ref(), Some(path.as_os_str()), directory.path()).expect_err("no such program");
        problem.hints.into_iter().next()
    }

    #[test]
    fn what_is_no_program_at_all_is_told_how_to_be_written() {
        insta::assert_snapshot!(resolved("4"), @r#"
        error: cannot run "4": command not found
        hint: the number of ranks is written -n 4
        exit 127
        "#);
        insta::assert_snapshot!(resolved("FOO=1"), @r#"
        error: cannot run "FOO=1": command not found
        hint: a variable of the ranks is written -x FOO=1
        exit 127
        "#);
        insta::assert_snapshot!(resolved("solver --steps 3"), @r#"
        error: cannot run "solver --steps 3": command not found
        hint: leave out the quotes around the command: solver --steps 3
        exit 127
        "#);
        insta::assert_snapshot!(resolved("cd /tmp && solver"), @r#"
        error: cannot run "cd /tmp && solver": no such file
        hint: a command for a shell is written bash -c 'cd /tmp && solver'
        exit 127
        "#);
        insta::assert_snapshot!(resolved("source"), @r#"
        error: cannot run "source": command not found
        hint: "source" is a shell builtin: write bash -c 'source ...'
        exit 127
        "#);
        insta::assert_snapshot!(resolved("no such thing"), @r#"
        error: cannot run "no such thing": command not found
        exit 127
        "#);
        insta::assert_snapshot!(resolved("./bin/solvr"), @r#"
        error: cannot run "./bin/solvr": no such file
        hint: did you mean "./bin/solver"?
        exit 127
        "#);
    }

    #[test]
    fn what_cannot_be_executed_says_why() {
        insta::assert_snapshot!(resolved("./train.py"), @r#"
        error: cannot run "./train.py": permission denied
        hint: did you mean "python3 ./train.py"?
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./data"), @r#"
        error: cannot run "./data": permission denied
        hint: make it executable with "chmod +x ./data"
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./bin"), @r#"
        error: cannot run "./bin": is a directory
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./heat/"), @r#"
        error: cannot run "./heat/": is a directory
        hint: did you mean "./heat/heat"?
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./old"), @r#"
        error: cannot run "./old": is a directory
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./crlf"), @r#"
        error: cannot run "./crlf": its first line has a Windows line end (CR LF)
        hint: remove it with "sed -i 's/\r$//' ./crlf"
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./crlf-env"), @r#"
        error: cannot run "./crlf-env": its first line has a Windows line end (CR LF)
        hint: remove it with "sed -i 's/\r$//' ./crlf-env"
        exit 126
        "#);
        insta::assert_snapshot!(resolved("./elsewhere"), @r#"
        error: cannot run "./elsewhere": its interpreter "/no/such/python3" does not exist
        exit 126
        "#);
    }
}
