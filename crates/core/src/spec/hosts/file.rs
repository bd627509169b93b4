//! Files of hosts: a host on each line, in the forms of Hydra, Open MPI, and plain lists.

use super::list::{Host, ListError, check, expand_into, parse_slots, split};

/// What a file says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostFile {
    pub hosts: Vec<Host>,
    /// Words that were not followed, each once, with the number of the first line that has it.
    pub ignored: Vec<(u32, String)>,
}

/// What is wrong with a file, and the number of the line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    #[error("line {line}: {error}")]
    List {
        line: u32,
        // It is shown with its line; as a source it would be shown twice.
        error: ListError,
    },
    #[error("line {line}: \"{word}\" is not slots=N, max_slots=N or user=NAME")]
    Word { line: u32, word: String },
    #[error("line {line}: \"{host}\" has slots={slots} and max_slots={most}")]
    MostTooSmall { line: u32, host: String, slots: u32, most: u32 },
    #[error("line {line}: \"{host}\" has a number of slots after its colon and after slots=")]
    SlotsTwice { line: u32, host: String },
    #[error("it names no host")]
    Empty,
}

impl FileError {
    /// What to write instead.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            FileError::List { error, .. } => error.hint(),
            FileError::Empty => Some("write a host on each line, as in \"a:4\" or \"a slots=4\""),
            FileError::Word { .. } => Some("a line is written \"a\", \"a:4\" or \"a slots=4 max_slots=8\""),
            FileError::MostTooSmall { .. } | FileError::SlotsTwice { .. } => None,
        }
    }
}

/// Keys that other launchers know, and that say nothing here: addresses of interfaces (Hydra), binding (Intel MPI), ports.
const IGNORED: &[&str] = &["ifhn", "binding", "bindings", "port", "ssh", "proxy", "topology", "max_user_slots"];

/// Reads a file of hosts. A line is `host`, `host:n` (Hydra, Intel MPI) or `host slots=n max_slots=m` (Open MPI); the host
/// may have numbers in brackets (Slurm). Comments begin with `#`.
pub fn parse_file(text: &str) -> Result<HostFile, FileError> {
    let mut file = HostFile::default();
    for (line, number) in text.lines().zip(1u32..) {
        // Open MPI takes blanks around the equals sign.
        let line = line.split('#').next().unwrap_or_default().replace(" =", "=").replace("= ", "=");
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((first, fields)) = words.split_first() else { continue };
        let at = |error| FileError::List { line: number, error };
        let from = file.hosts.len();
        // A line may be a whole list.
        let entries: Vec<&str> = if fields.is_empty() { split(first).collect() } else { vec![*first] };
        for entry in entries {
            expand_into(entry, &mut file.hosts).map_err(at)?;
        }
        let hosts = &mut file.hosts[from..];
        for field in fields {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            match key.to_ascii_lowercase().as_str() {
                "slots" | "cpu" | "cpus" | "count" if hosts.iter().any(|host| host.slots.is_some()) => {
                    return Err(FileError::SlotsTwice { line: number, host: (*first).to_owned() });
                }
                "slots" | "cpu" | "cpus" | "count" => {
                    let slots = parse_slots(value, field).map_err(at)?;
                    hosts.iter_mut().for_each(|host| host.slots = Some(slots));
                }
                "max_slots" | "max-slots" | "slots_max" | "slots-max" | "max" => {
                    let most = parse_slots(value, field).map_err(at)?;
                    hosts.iter_mut().for_each(|host| host.max_slots = Some(most));
                }
                "user" | "username" | "user_name" => {
                    let user = check(value, field).map_err(at)?;
                    hosts.iter_mut().for_each(|host| host.user = Some(user.to_owned()));
                }
                key if IGNORED.contains(&key) => {
                    let key = format!("{key}=");
                    if file.ignored.iter().all(|(_, known)| *known != key) {
                        file.ignored.push((number, key));
                    }
                }
                _ => return Err(FileError::Word { line: number, word: (*field).to_owned() }),
            }
        }
        if let [Host { slots: Some(slots), max_slots: Some(most), .. }, ..] = hosts
            && slots > most
        {
            let (slots, most) = (*slots, *most);
            return Err(FileError::MostTooSmall { line: number, host: (*first).to_owned(), slots, most });
        }
    }
    if file.hosts.is_empty() { Err(FileError::Empty) } else { Ok(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let file = parse_file(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let hosts = file.hosts.iter().map(|host| {
            let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
            format!("{user}{} {} {}", host.name, number(host.slots), number(host.max_slots))
        });
        let ignored = file.ignored.iter().map(|(line, word)| format!("line {line}: {word} ignored"));
        hosts.chain(ignored).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn each_launchers_form_is_read() {
        for (text, expected) in [
            ("a\nb\na\n", "a - -; b - -; a - -"),
            ("# nodes\n\na:2 # two\nb:3 ifhn=b-ib\nc ifhn=c-ib\n", "a 2 -; b 3 -; c - -; line 4: ifhn= ignored"),
            ("a slots=4 max_slots=8\n b slots = 2\nc max-slots=3", "a 4 8; b 2 -; c - 3"),
            ("node[01-02]:8\nrack[1-2]n1 slots=2", "node01 8 -; node02 8 -; rack1n1 2 -; rack2n1 2 -"),
            ("a:2,b:3\n", "a 2 -; b 3 -"),
            ("me@a slots=1\nb user=you\n", "me@a 1 -; you@b - -"),
            ("[::1]:2\nfe80::2 slots=3\r\n", "::1 2 -; fe80::2 3 -"),
        ] {
            assert_eq!(written(text), expected, "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let cases = [
            "",
            "# none\n",
            "a\n\nb slot=2\n",
            "a:x",
            "a\nb slots=0\n",
            "a:2 slots=2",
            "a slots=4 max_slots=2",
            "a b",
            "a 2",
            "n[1-",
            "a\n-oProxyCommand=x",
            "a user=-x",
            "n[1-65536]\nm",
            "a slots=",
            "a max_slots=x",
        ];
        let text: Vec<String> = cases
            .iter()
            .map(|text| {
                let error = parse_file(text).map(|file| file.hosts.len()).expect_err(text);
                let hint = error.hint().map(|hint| format!("\n    hint: {hint}")).unwrap_or_default();
                format!("{text:?}: {error}{hint}")
            })
            .collect();
        insta::assert_snapshot!(text.join("\n"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_a_panic(text in "[ab1\\[\\]:,=# \\n-]{0,40}|(a|b:2|slots|=|max_slots|3| |\n|#){0,16}") {
            if let Ok(file) = parse_file(&text) {
                proptest::prop_assert!(!file.hosts.is_empty());
            }
        }
    }
}
