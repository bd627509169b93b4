//! Ranks that are forked from an interpreter which has imported modules before (`--preload`, docs/adr/0041-prepared-interpreters.md).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::absence::is_interpreter;

/// The variable that makes an interpreter a fork server: what it imports.
pub const SERVER: &str = "RANKRUN_FORK_SERVER";
/// How many threads a library starts. Libraries read it when they are loaded, so that a rank cannot have another number than its server.
pub const THREADS: &str = "OMP_NUM_THREADS";
/// Interpreter options that take the next word as their value.
const WITH_VALUE: &str = "WXQ";
/// Bytes of a script's first line that the kernel reads.
pub const FIRST_LINE: usize = 256;

/// What is imported before ranks are forked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Preload {
    /// What the program's own files import.
    Auto,
    Modules(Vec<String>),
}

impl FromStr for Preload {
    type Err = String;

    fn from_str(text: &str) -> Result<Preload, String> {
        if text == "auto" {
            return Ok(Preload::Auto);
        }
        let is_name = |name: &str| {
            name.split('.').all(|part| {
                let mut chars = part.chars();
                chars.next().is_some_and(|first| first.is_alphabetic() || first == '_')
                    && chars.all(|next| next.is_alphanumeric() || next == '_')
            })
        };
        let modules: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        match modules.iter().find(|name| !is_name(name)) {
            Some(wrong) => Err(format!("\"{wrong}\" is not the name of a Python module: write torch,numpy or auto")),
            None => Ok(Preload::Modules(modules)),
        }
    }
}

impl fmt::Display for Preload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Preload::Auto => f.write_str("auto"),
            Preload::Modules(modules) => f.write_str(&modules.join(",")),
        }
    }
}

/// The first line of a script: the program that runs it, and that program's own arguments. `None`: it is no script.
pub fn script(beginning: &[u8]) -> Option<(OsString, Vec<OsString>)> {
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|word| !word.is_empty());
    let text = |word: &[u8]| OsStr::from_bytes(word).to_owned();
    let program = text(words.next()?);
    let mut rest: Vec<OsString> = words.map(text).collect();
    if !program.as_bytes().ends_with(b"/env") {
        return Some((program, rest));
    }
    // `env -S python3 -u`, and `env python3`.
    if rest.first().is_some_and(|word| word == "-S") {
        rest.remove(0);
    }
    (!rest.is_empty()).then(|| (rest.remove(0), rest))
}

/// Why an interpreter with these arguments cannot serve; `None` if it can. `program`: its path. `script`: the script that it runs, if that is what was named.
pub fn obstacle(program: &OsStr, arguments: &[OsString], script: Option<&OsStr>) -> Option<String> {
    if !is_interpreter(&program.to_string_lossy()) {
        return Some(match script {
            None => format!("\"{}\" is not a Python interpreter", program.display()),
            // Such as the shims of pyenv.
            Some(script) => format!(
                "\"{}\" is a script of {}, not a Python interpreter: name the interpreter itself",
                script.display(),
                program.display()
            ),
        });
    }
    let option = blocking(arguments)?;
    Some(format!("Python is started with -{option}, and rankrun's hook does not get in"))
}

/// The interpreter option that keeps the hook out.
fn blocking(arguments: &[OsString]) -> Option<char> {
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty())?;
        if word == "--check-hash-based-pycs" {
            words.next();
        }
        if letters.starts_with('-') {
            continue;
        }
        for (at, letter) in letters.char_indices() {
            match letter {
                'I' | 'E' | 'S' => return Some(letter),
                // What follows is the program's.
                'c' | 'm' => return None,
                _ if WITH_VALUE.contains(letter) => {
                    if at + letter.len_utf8() == letters.len() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn modules_are_names_with_commas_between() {
        assert_eq!("auto".parse(), Ok(Preload::Auto));
        let modules = Preload::Modules(vec!["torch".into(), "torch.distributed".into()]);
        assert_eq!("torch, torch.distributed".parse(), Ok(modules.clone()));
        assert_eq!(modules.to_string(), "torch,torch.distributed");
        for wrong in ["", "torch,", "torch.", "1a", "a-b", "a/b", "a b"] {
            assert!(wrong.parse::<Preload>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_option_of_the_interpreter_may_keep_the_hook_out() {
        for (arguments, expected) in [
            ("train.py -I", None),
            ("-u -X dev train.py -E", None),
            ("-W error -m pkg -S", None),
            ("-Werror -c pass -I", None),
            ("-", None),
            ("-uI train.py", Some('I')),
            ("-X I -E train.py", Some('E')),
            ("--check-hash-based-pycs always -S x.py", Some('S')),
            ("", None),
        ] {
            assert_eq!(blocking(&words(arguments)), expected, "{arguments}");
        }
        assert_eq!(obstacle(OsStr::new("/usr/bin/python3.11"), &words("train.py"), None), None);
        assert!(obstacle(OsStr::new("/bin/bash"), &[], None).is_some_and(|why| why.contains("/bin/bash")));
        let shim = Some(OsStr::new("/shims/python3"));
        assert!(obstacle(OsStr::new("/bin/bash"), &[], shim).is_some_and(|why| why.contains("/shims/python3")));
    }

    #[test]
    fn the_first_line_of_a_script_says_what_runs_it() {
        let of = |line: &str| script(line.as_bytes()).map(|(program, rest)| (program, rest.len()));
        assert_eq!(of("#!/usr/bin/python3 -s\nimport x"), Some(("/usr/bin/python3".into(), 1)));
        assert_eq!(of("#! /usr/bin/env python3\n"), Some(("python3".into(), 0)));
        assert_eq!(of("#!/usr/bin/env -S python3 -u\n"), Some(("python3".into(), 1)));
        assert_eq!(of("#!/usr/bin/env\n"), None);
        assert_eq!(of("\x7fELF"), None);
    }
}
