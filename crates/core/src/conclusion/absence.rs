//! Why a Python process of a rank runs without the interpreter hook (docs/adr/0020-interpreter-hook.md).
//!
//! Without the hook, an exception that ends the program is only text on stderr: if the process then waits in
//! `MPI_Finalize`, rankrun cannot know that it has failed.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::shorten;

/// An interpreter that is younger may not have imported the hook yet, where nothing else explains that it is silent.
pub const YOUNG: Duration = Duration::from_secs(5);
/// The first version in which the hook acts.
const OLDEST: (u32, u32) = (3, 6);
/// Bytes of a path that are quoted.
const PATH_KEPT: usize = 60;

/// What the agent gives to Python interpreters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hook {
    /// `--hook none`.
    Off,
    /// It could not be written to the job's directory.
    Missing,
    /// This directory at the front of `PYTHONPATH`.
    In(String),
}

/// What was read of a live process that has not said hello.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sight {
    /// The path of its executable; empty if it cannot be read.
    pub executable: String,
    /// Its command line, with the name of the program.
    pub arguments: Vec<String>,
    /// Its `PYTHONPATH` and `RANKRUN_SOCKET`, as it was started; `None` if its environment cannot be read.
    pub environment: Option<Environment>,
    /// The file name of the Python library that it has mapped, if it was looked for and found.
    pub library: Option<String>,
    /// It belongs to the user of the agent.
    pub is_own: bool,
    /// How long it has lived, without the time in which it waited for a CPU.
    pub age: Duration,
}

/// The part of its environment that matters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Environment {
    pub python_path: Option<String>,
    pub has_socket: bool,
}

/// Why there is no hook in a Python process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Absence {
    /// `--hook none`.
    Off,
    /// It could not be written to the job's directory.
    Missing,
    /// Python was started with this option: `-I`, `-E` or `-S`.
    Option(char),
    TooOld {
        version: String,
    },
    /// Another implementation than CPython.
    Other {
        name: String,
    },
    /// The program is no interpreter, and has loaded one.
    Embedded {
        program: String,
    },
    /// `PYTHONPATH` is this, without the hook.
    PathReplaced {
        path: String,
    },
    /// The environment lacks this variable, which the rank was given.
    Removed {
        name: String,
    },
    /// A module of the same name comes first in `PYTHONPATH`.
    Shadowed {
        directory: String,
    },
    /// It does not see the job's directory: it is in a container, or in a mount namespace of its own.
    OutOfSight {
        directory: String,
    },
    /// The worker socket is open to one user only.
    OtherUser,
    Unknown,
}

/// Which Python a file name is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Interpreter<'a> {
    name: &'a str,
    is_cpython: bool,
    version: Option<(u32, u32)>,
}

impl<'a> Interpreter<'a> {
    /// By the file name of an executable: `python3.11`, `python3-dbg`, `pypy3.9`.
    fn of(executable: &'a str) -> Option<Interpreter<'a>> {
        // The kernel's mark of a file that has been replaced, as by an update.
        let path = executable.strip_suffix(" (deleted)").unwrap_or(executable);
        let name = path.rsplit('/').next().unwrap_or(path);
        if let Some(rest) = name.strip_prefix("python") {
            let is_version = rest.chars().next().is_none_or(|first| first.is_ascii_digit() || first == '-');
            return is_version.then(|| Interpreter { name, is_cpython: true, version: version(rest) });
        }
        let is_other = name.starts_with("pypy") || name.starts_with("graalpy");
        is_other.then_some(Interpreter { name, is_cpython: false, version: None })
    }
}

/// The version at the start of `3.11`, `2.7-dbg`, `3.13t`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

/// Whether a program is a Python interpreter, by its path: then no library needs to be looked for.
pub fn is_interpreter(executable: &str) -> bool {
    Interpreter::of(executable).is_some()
}

/// Why there is no hook in a process; `None` if it is not Python, or may still be starting.
///
/// `has_module` says whether a directory, as the process sees it, has a module `sitecustomize`. It is asked only where
/// nothing else explains the absence: the directories are on the user's file systems.
pub fn absence(sight: &Sight, hook: &Hook, mut has_module: impl FnMut(&str) -> bool) -> Option<Absence> {
    let interpreter = Interpreter::of(&sight.executable);
    let version = match (&interpreter, &sight.library) {
        (Some(interpreter), _) if !interpreter.is_cpython => {
            return Some(Absence::Other { name: interpreter.name.to_owned() });
        }
        (Some(interpreter), _) => interpreter.version,
        (None, Some(library)) => library.strip_prefix("libpython").and_then(version),
        (None, None) => return None,
    };
    let directory = match hook {
        Hook::Off => return Some(Absence::Off),
        Hook::Missing => return Some(Absence::Missing),
        Hook::In(directory) => directory.as_str(),
    };
    if let Some((major, minor)) = version.filter(|version| *version < OLDEST) {
        return Some(Absence::TooOld { version: format!("{major}.{minor}") });
    }
    if interpreter.is_none() {
        let program = sight.executable.rsplit('/').next().unwrap_or_default().to_owned();
        return Some(Absence::Embedded { program });
    }
    if let Some(option) = ignoring_option(&sight.arguments) {
        return Some(Absence::Option(option));
    }
    if let Some(environment) = &sight.environment {
        if !environment.has_socket {
            return Some(match sight.is_own {
                true => Absence::Removed { name: "RANKRUN_SOCKET".to_owned() },
                false => Absence::OtherUser,
            });
        }
        let Some(path) = environment.python_path.as_deref().filter(|path| !path.is_empty()) else {
            return Some(Absence::Removed { name: "PYTHONPATH".to_owned() });
        };
        if !path.split(':').any(|entry| entry == directory) {
            return Some(Absence::PathReplaced { path: path.to_owned() });
        }
    }
    if !sight.is_own {
        return Some(Absence::OtherUser);
    }
    if sight.age < YOUNG {
        return None;
    }
    let path = sight.environment.as_ref().and_then(|environment| environment.python_path.as_deref());
    let before = path.into_iter().flat_map(|path| path.split(':')).take_while(|entry| *entry != directory);
    if let Some(shadow) = before.filter(|entry| !entry.is_empty()).find(|entry| has_module(entry)) {
        return Some(Absence::Shadowed { directory: shadow.to_owned() });
    }
    if path.is_some() && !has_module(directory) {
        return Some(Absence::OutOfSight { directory: directory.to_owned() });
    }
    Some(Absence::Unknown)
}

/// The option by which Python was told to ignore `PYTHONPATH` or `sitecustomize` (Python's `Python/getopt.c`).
fn ignoring_option(arguments: &[String]) -> Option<char> {
    let mut words = arguments.iter().skip(1);
    while let Some(word) = words.next() {
        if word == "--check-hash-based-pycs" {
            words.next();
            continue;
        }
        let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty() && !letters.starts_with('-'))?;
        for (at, letter) in letters.char_indices() {
            match letter {
                'I' | 'E' | 'S' => return Some(letter),
                // What follows is the program, and its arguments.
                'c' | 'm' => return None,
                // The rest of the word is its value, or else the next word.
                'W' | 'X' | 'Q' => {
                    if at + 1 == letters.len() {
                        words.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absence::Off => f.write_str("--hook none"),
            Absence::Missing => f.write_str("the hook could not be written to the job's directory"),
            Absence::Option(option) => write!(f, "Python was started with -{option}"),
            Absence::TooOld { version } => {
                write!(f, "Python {version} is too old ({}.{} is needed)", OLDEST.0, OLDEST.1)
            }
            Absence::Other { name } => write!(f, "{name} is not CPython"),
            Absence::Embedded { program } => write!(f, "\"{program}\" embeds Python"),
            Absence::PathReplaced { path } => write!(f, "PYTHONPATH was replaced by \"{}\"", short(path)),
            Absence::Removed { name } => write!(f, "{name} was removed from its environment"),
            Absence::Shadowed { directory } => {
                write!(f, "\"{}/sitecustomize\" comes first in PYTHONPATH", short(directory))
            }
            Absence::OutOfSight { directory } => write!(f, "it does not see \"{directory}\""),
            Absence::OtherUser => f.write_str("it runs as another user"),
            Absence::Unknown => f.write_str("the reason is not known"),
        }
    }
}

impl Absence {
    /// What to do about it.
    pub fn advice(&self) -> String {
        match self {
            Absence::Off => "leave --hook none out".to_owned(),
            Absence::Option(option) => format!("start Python without -{option}"),
            Absence::PathReplaced { path } => {
                format!("add to PYTHONPATH instead of replacing it: PYTHONPATH={}:$PYTHONPATH", short(path))
            }
            Absence::Removed { name } => {
                format!("let {name} through where the environment is made anew (env -i, sudo)")
            }
            Absence::Shadowed { directory } => {
                format!("put that directory behind the others: PYTHONPATH=$PYTHONPATH:{}", short(directory))
            }
            Absence::OutOfSight { directory } => format!("mount \"{directory}\" in the container"),
            Absence::Missing
            | Absence::TooOld { .. }
            | Absence::Other { .. }
            | Absence::Embedded { .. }
            | Absence::OtherUser
            | Absence::Unknown => {
                "--on-suspect kill ends a job when a rank is silent for 10 s after a traceback".to_owned()
            }
        }
    }
}

fn short(path: &str) -> String {
    let mut path = path.to_owned();
    shorten(&mut path, PATH_KEPT);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOK: &str = "/tmp/rankrun-0/7f3a/hook";

    /// A `python3.11` of the rank that has all that it was given.
    fn sight() -> Sight {
        Sight {
            executable: "/usr/bin/python3.11".to_owned(),
            arguments: words("python3 train.py -I"),
            environment: Some(Environment { python_path: Some(format!("{HOOK}:/lib")), has_socket: true }),
            library: None,
            is_own: true,
            age: YOUNG,
        }
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn with_path(path: Option<&str>) -> Sight {
        let environment = Environment { python_path: path.map(str::to_owned), has_socket: true };
        Sight { environment: Some(environment), ..sight() }
    }

    fn why(sight: &Sight) -> Option<String> {
        absence(sight, &Hook::In(HOOK.to_owned()), |directory| directory == HOOK).map(|why| why.to_string())
    }

    fn of_program(executable: &str) -> Option<String> {
        why(&Sight { executable: executable.to_owned(), ..sight() })
    }

    #[test]
    fn options_are_read_as_python_reads_them() {
        for (line, expected) in [
            ("python3 -I train.py", Some('I')),
            ("python3 -uE -m train", Some('E')),
            ("python3 -OOSc pass", Some('S')),
            ("python3 -W ignore -I x.py", Some('I')),
            ("python3 -Wignore -X dev -E x.py", Some('E')),
            ("python3 --check-hash-based-pycs never -I x.py", Some('I')),
            ("python3 -Xfrozen_modules=off train.py -I", None),
            ("python3 -c -I", None),
            ("python3 -m train -E", None),
            ("python3 - -I", None),
            ("python3 -- -I", None),
            ("python3 -s -P -B train.py", None),
            // The value of -W is no option.
            ("python3 -W -I x.py", None),
            ("python3", None),
        ] {
            assert_eq!(ignoring_option(&words(line)), expected, "{line}");
        }
        assert_eq!(ignoring_option(&[]), None);
    }

    #[test]
    fn interpreters_are_known_by_their_names() {
        for name in
            ["python", "/usr/bin/python3", "/x/python3.13t", "python3-dbg", "/x/python3.11 (deleted)", "python2.7"]
        {
            assert!(is_interpreter(name), "{name}");
        }
        for name in ["/usr/bin/pythonista", "/usr/bin/ipython", "/usr/bin/bash", "", "/opt/python/solver"] {
            assert!(!is_interpreter(name), "{name}");
        }
        assert_eq!(of_program("/usr/bin/sleep"), None);
        assert_eq!(of_program("/usr/bin/python2.7").as_deref(), Some("Python 2.7 is too old (3.6 is needed)"));
        assert_eq!(of_program("/usr/bin/python3.5m").as_deref(), Some("Python 3.5 is too old (3.6 is needed)"));
        assert_eq!(of_program("/opt/pypy3.9").as_deref(), Some("pypy3.9 is not CPython"));
        let embedded = |library: &str| {
            why(&Sight { executable: "/opt/solver".to_owned(), library: Some(library.to_owned()), ..sight() })
        };
        assert_eq!(embedded("libpython3.11.so.1.0").as_deref(), Some("\"solver\" embeds Python"));
        assert_eq!(embedded("libpython2.7.so.1.0").as_deref(), Some("Python 2.7 is too old (3.6 is needed)"));
    }

    #[test]
    fn what_is_certain_comes_before_what_is_likely() {
        assert_eq!(why(&with_path(Some("/opt/mine"))).as_deref(), Some("PYTHONPATH was replaced by \"/opt/mine\""));
        assert_eq!(why(&with_path(None)).as_deref(), Some("PYTHONPATH was removed from its environment"));
        let cleared = Sight { environment: Some(Environment::default()), ..sight() };
        assert_eq!(why(&cleared).as_deref(), Some("RANKRUN_SOCKET was removed from its environment"));
        assert_eq!(why(&Sight { is_own: false, ..cleared }).as_deref(), Some("it runs as another user"));
        assert_eq!(
            why(&Sight { is_own: false, environment: None, ..sight() }).as_deref(),
            Some("it runs as another user")
        );
        let isolated = Sight { arguments: words("python3 -I x.py"), ..with_path(None) };
        assert_eq!(why(&isolated).as_deref(), Some("Python was started with -I"), "the option alone would do");
        for (hook, expected) in [(Hook::Off, Absence::Off), (Hook::Missing, Absence::Missing)] {
            assert_eq!(absence(&sight(), &hook, |_| true), Some(expected));
        }
    }

    #[test]
    fn an_interpreter_that_may_still_be_starting_is_not_judged() {
        assert_eq!(why(&Sight { age: YOUNG / 2, ..sight() }), None);
        assert_eq!(why(&sight()).as_deref(), Some("the reason is not known"));
        let shadow = with_path(Some(&format!("/a::/b:{HOOK}:/c")));
        let has = |directories: &'static [&'static str]| {
            absence(&shadow, &Hook::In(HOOK.to_owned()), |directory| directories.contains(&directory))
        };
        assert_eq!(has(&["/b", "/c", HOOK]), Some(Absence::Shadowed { directory: "/b".to_owned() }));
        assert_eq!(has(&["/c"]), Some(Absence::OutOfSight { directory: HOOK.to_owned() }));
        assert_eq!(has(&["/c", HOOK]), Some(Absence::Unknown));
        // Its title may have been written over its environment: nothing is made up of that.
        assert_eq!(why(&Sight { environment: None, ..sight() }).as_deref(), Some("the reason is not known"));
    }

    #[test]
    fn every_reason_and_every_advice_is_a_short_line() {
        let path = "/a".repeat(500);
        for absence in [
            Absence::Off,
            Absence::Missing,
            Absence::Option('I'),
            Absence::TooOld { version: "2.7".to_owned() },
            Absence::Other { name: "pypy3.9".to_owned() },
            Absence::Embedded { program: "solver".to_owned() },
            Absence::PathReplaced { path: path.clone() },
            Absence::Removed { name: "PYTHONPATH".to_owned() },
            Absence::Shadowed { directory: path },
            Absence::OutOfSight { directory: HOOK.to_owned() },
            Absence::OtherUser,
            Absence::Unknown,
        ] {
            for line in [absence.to_string(), absence.advice()] {
                assert!(!line.is_empty() && line.len() < 150 && !line.contains('\n'), "{line}");
            }
            let json = serde_json::to_string(&absence).expect("plain data");
            assert_eq!(serde_json::from_str::<Absence>(&json).expect("our own"), absence, "{json}");
        }
    }
}
