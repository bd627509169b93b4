//! Files with command lines: Hydra's `-configfile` and Open MPI's `--app`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::words::split;

/// The command lines of a file: one in each line, `#` at the beginning of a line makes it a comment, and `\` at the end of a
/// line joins it with the next. Words are split as a shell does it, with quotes; nothing is expanded. A word `:` separates
/// commands, as on a command line.
pub(super) fn command_lines(text: &[u8]) -> Result<Vec<Vec<OsString>>, String> {
    let mut lines = Vec::new();
    let (mut joined, mut start) = (Vec::new(), 0);
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if joined.is_empty() {
            start = number;
            if line.trim_ascii_start().starts_with(b"#") {
                continue;
            }
        }
        if let Some(begun) = line.strip_suffix(b"\\") {
            joined.extend([begun, b" "].concat());
            continue;
        }
        joined.extend(line);
        take(&mut lines, &joined, start)?;
        joined.clear();
    }
    take(&mut lines, &joined, start)?;
    if lines.is_empty() { Err("it has no command line".to_owned()) } else { Ok(lines) }
}

fn take(lines: &mut Vec<Vec<OsString>>, text: &[u8], start: usize) -> Result<(), String> {
    if text.contains(&0) {
        return Err(format!("line {}: it has a NUL character", start + 1));
    }
    let words = split(OsStr::from_bytes(text)).ok_or_else(|| format!("line {}: a quote is not closed", start + 1))?;
    // Hydra writes the separator at the end of a line too.
    let commands = words.split(|word| word == ":").filter(|command| !command.is_empty());
    lines.extend(commands.map(<[OsString]>::to_vec));
    Ok(())
}

/// How a file of hosts says the number of ranks of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Syntax {
    /// `host:4`: Hydra and Intel MPI.
    Colon,
    /// `host slots=4`: Open MPI.
    Slots,
}

/// The syntax of the first host with a number.
pub(super) fn syntax(text: &str) -> Option<Syntax> {
    text.lines().find_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A colon of an IPv6 address is not the only one.
        let is_colon = |host: &str| {
            host.rsplit_once(':')
                .is_some_and(|(host, count)| is_number(count) && (!host.contains(':') || host.ends_with(']')))
        };
        match words.next() {
            Some(host) if is_colon(host) => Some(Syntax::Colon),
            _ => words.any(|word| word.starts_with("slots=") || word.starts_with("max")).then_some(Syntax::Slots),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<Vec<String>, String> {
        let lines = command_lines(text.as_bytes())?;
        Ok(lines.iter().map(|words| words.join(OsStr::new("|")).to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn each_line_is_a_command_line() {
        let text = "# two programs\n\n-n 1 ./master 'a b'\n  -n 2 \\\n -env A 1 ./worker #1\n";
        assert_eq!(lines(text).unwrap(), ["-n|1|./master|a b", "-n|2|-env|A|1|./worker|#1"]);
        assert_eq!(lines("-n 1 a :\n-n 2 b : -n 3 c").unwrap(), ["-n|1|a", "-n|2|b", "-n|3|c"]);
        assert_eq!(lines("-n 1 a \\").unwrap(), ["-n|1|a"], "the last line may have no end");
    }

    #[test]
    fn words_keep_their_bytes() {
        let lines = command_lines(b"a \xe9\r\nb \xff\n").unwrap();
        assert_eq!((lines[0][1].as_bytes(), lines[1][1].as_bytes()), (&b"\xe9"[..], &b"\xff"[..]));
        assert!(command_lines(b"a \0").is_err());
    }

    #[test]
    fn a_file_without_a_command_line_is_refused() {
        assert_eq!(lines("# nothing\n").unwrap_err(), "it has no command line");
        assert_eq!(lines("a\n\n-n 1 'b\n").unwrap_err(), "line 3: a quote is not closed");
    }
}
