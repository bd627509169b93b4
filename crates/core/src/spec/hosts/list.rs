//! Lists of hosts: `a,b:4`, `node[01-16,20]:8`, `rack[1-2]n[1-4]`, `me@host`, `[::1]:2`.
//!
//! The syntax of brackets is that of Slurm's host lists (`scontrol show hostnames`): numbers and ranges of them, padded
//! with zeros to the width of a range's first number; the last brackets count fastest.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

/// The most hosts of one list or file. Larger than any machine of today; `n[1-999999999]` is a slip.
pub const MAX_HOSTS: usize = 65_536;

/// The longest name of a host: 253 characters in DNS.
const MAX_NAME: usize = 255;

/// The most digits of a number in brackets: they fit into 64 bits.
pub(super) const MAX_DIGITS: usize = 18;

/// One host of a list, or one line of a host file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    pub name: String,
    /// The user to log in as, if the list names one.
    pub user: Option<String>,
    /// How many ranks it is for, if the list says so. Never 0.
    pub slots: Option<u32>,
    /// The most ranks that it may ever have (Open MPI's `max_slots`).
    pub max_slots: Option<u32>,
}

impl Host {
    /// A host of which nothing but the name is known.
    pub fn named(name: impl Into<String>) -> Host {
        Host { name: name.into(), user: None, slots: None, max_slots: None }
    }
}

/// What is wrong with a list. `entry` is the part of the list.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListError {
    #[error("it names no host")]
    Empty,
    #[error("\"{entry}\" has no name of a host")]
    NoName { entry: String },
    #[error("\"{entry}\": a \"[\" is not closed")]
    Unclosed { entry: String },
    #[error("\"{entry}\": there is no \"[\" for a \"]\"")]
    Unopened { entry: String },
    #[error("\"{entry}\": \"{range}\" is not a number or a range of numbers")]
    NotARange { entry: String, range: String },
    #[error("\"{entry}\": the range {range} runs backwards")]
    Backwards { entry: String, range: String },
    #[error("\"{entry}\": \"{slots}\" is not a number of slots")]
    NotSlots { entry: String, slots: String },
    #[error("\"{entry}\" has 0 slots")]
    NoSlots { entry: String },
    #[error("\"{entry}\" is not the name of a host: it begins with \"-\"")]
    Dash { entry: String },
    #[error("\"{entry}\" is not the name of a host: it begins with \"+\"")]
    Plus { entry: String },
    #[error("\"{entry}\" is not the name of a host: {character:?} is not allowed in it")]
    Character { entry: String, character: char },
    #[error("\"{entry}\" is not an address of IPv6")]
    NotAnAddress { entry: String },
    #[error("a name in \"{entry}\" is longer than {MAX_NAME} characters")]
    TooLong { entry: String },
    #[error("it names more than {MAX_HOSTS} hosts")]
    TooMany,
}

impl ListError {
    /// What to write instead.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ListError::Empty | ListError::NoName { .. } => Some("write names, as in a:4,b:4 or node[01-16]:8"),
            ListError::Unclosed { .. }
            | ListError::Unopened { .. }
            | ListError::NotARange { .. }
            | ListError::Backwards { .. } => Some("numbers in brackets are written node[01-16,20]"),
            ListError::NotSlots { .. } => Some("the number of ranks of a host is written after a colon, as in a:4"),
            ListError::NoSlots { .. } => Some("leave the host out, or write how many ranks it is for, as in a:4"),
            ListError::NotAnAddress { .. } => Some("an address of IPv6 with slots is written [fe80::1]:4"),
            ListError::Plus { .. } => {
                Some("write the host itself: nodes of an allocation are not counted (+n1, +e of Open MPI)")
            }
            ListError::Dash { .. } | ListError::Character { .. } | ListError::TooLong { .. } | ListError::TooMany => {
                None
            }
        }
    }
}

/// Reads a list of hosts: `a:4,b:4`, `node[01-16,20]:8`. Each name stands for itself, in the order of the list; a name
/// that is written twice is there twice.
pub fn parse_list(text: &str) -> Result<Vec<Host>, ListError> {
    let mut hosts = Vec::new();
    for entry in split(text) {
        expand_into(entry, &mut hosts)?;
    }
    if hosts.is_empty() { Err(ListError::Empty) } else { Ok(hosts) }
}

/// Reads a list of names without slots and users, as batch systems write it.
pub fn parse_names(text: &str) -> Result<Vec<String>, ListError> {
    Ok(parse_list(text)?.into_iter().map(|host| host.name).collect())
}

/// The entries between the commas that are outside of brackets. Empty ones are left out.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    let entries = text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    entries.map(str::trim).filter(|entry| !entry.is_empty())
}

/// Reads one entry, and adds its hosts.
pub(super) fn expand_into(entry: &str, hosts: &mut Vec<Host>) -> Result<(), ListError> {
    let shown = || shown(entry);
    let (user, rest) = match entry.rsplit_once('@') {
        Some((user, rest)) => (Some(check(user, entry)?.to_owned()), rest),
        None => (None, entry),
    };
    let (pattern, slots) = split_slots(rest, entry)?;
    let slots = match slots {
        // Open MPI writes "*" for as many as the host has CPUs.
        None | Some("*") => None,
        Some(text) => Some(parse_slots(text, entry)?),
    };
    let host = |name: String| Host { name, user: user.clone(), slots, max_slots: None };
    if let Pattern::Address(address) = pattern {
        if hosts.len() == MAX_HOSTS {
            return Err(ListError::TooMany);
        }
        hosts.push(host(address.to_owned()));
        return Ok(());
    }
    let Pattern::Name(name) = pattern else { return Ok(()) };
    if name.is_empty() {
        return Err(ListError::NoName { entry: shown() });
    }
    if name.starts_with('-') {
        return Err(ListError::Dash { entry: shown() });
    }
    // Open MPI's nth node of the allocation, or its empty nodes.
    if name.starts_with('+') {
        return Err(ListError::Plus { entry: shown() });
    }
    let parts = parse_parts(name, entry)?;
    let width: usize = parts.iter().map(Part::longest).sum();
    if width > MAX_NAME {
        return Err(ListError::TooLong { entry: shown() });
    }
    let room = (MAX_HOSTS - hosts.len()) as u64;
    let product = parts.iter().try_fold(1u64, |product, part| product.checked_mul(part.count()));
    if product.is_none_or(|product| product > room) {
        return Err(ListError::TooMany);
    }
    let mut names = vec![String::new()];
    for part in &parts {
        names = names.iter().flat_map(|name| part.appended_to(name)).collect();
    }
    hosts.extend(names.into_iter().map(host));
    Ok(())
}

/// An entry as an error shows it.
fn shown(entry: &str) -> String {
    const SHOWN: usize = 80;
    match entry.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &entry[..end]),
        None => entry.to_owned(),
    }
}

enum Pattern<'a> {
    /// A name, with numbers in brackets.
    Name(&'a str),
    /// An address of IPv6, without brackets.
    Address(&'a str),
}

/// Takes the slots off the end.
fn split_slots<'a>(text: &'a str, entry: &str) -> Result<(Pattern<'a>, Option<&'a str>), ListError> {
    let is_address = |text: &str| text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    let not_an_address = || ListError::NotAnAddress { entry: shown(entry) };
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && address.contains(':')
    {
        let slots = match rest {
            "" => None,
            _ => Some(rest.strip_prefix(':').ok_or_else(not_an_address)?),
        };
        return if is_address(address) {
            Ok((Pattern::Address(checked_zone(address, entry)?), slots))
        } else {
            Err(not_an_address())
        };
    }
    match text.matches(':').count() {
        0 => Ok((Pattern::Name(text), None)),
        1 => {
            let (name, slots) = text.split_once(':').unwrap_or((text, ""));
            Ok((Pattern::Name(name), Some(slots)))
        }
        _ if is_address(text) => Ok((Pattern::Address(checked_zone(text, entry)?), None)),
        _ => Err(not_an_address()),
    }
}

/// The zone of an address (`fe80::1%eth0`) is the name of an interface.
fn checked_zone<'a>(address: &'a str, entry: &str) -> Result<&'a str, ListError> {
    if let Some((_, zone)) = address.split_once('%') {
        check(zone, entry)?;
    }
    Ok(address)
}

pub(super) fn parse_slots(text: &str, entry: &str) -> Result<u32, ListError> {
    match text.parse::<u32>() {
        Ok(0) => Err(ListError::NoSlots { entry: shown(entry) }),
        Ok(slots) => Ok(slots),
        Err(_) => Err(ListError::NotSlots { entry: shown(entry), slots: shown(text) }),
    }
}

/// Names go into command lines and files: they have letters, digits and a few signs.
pub(super) fn check<'a>(name: &'a str, entry: &str) -> Result<&'a str, ListError> {
    if name.is_empty() {
        return Err(ListError::NoName { entry: shown(entry) });
    }
    if name.starts_with('-') {
        return Err(ListError::Dash { entry: shown(entry) });
    }
    match name.chars().find(|letter| !letter.is_alphanumeric() && !"-_.+".contains(*letter)) {
        Some(character) => Err(ListError::Character { entry: shown(entry), character }),
        None => Ok(name),
    }
}

/// A piece of a name.
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// Numbers from `first` to `last`, each with at least `width` digits.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Part<'_> {
    /// How many names it makes of one.
    fn count(&self) -> u64 {
        match self {
            Part::Text(_) => 1,
            Part::Numbers(ranges) => ranges
                .iter()
                .fold(0, |sum: u64, range| sum.saturating_add((range.last - range.first).saturating_add(1))),
        }
    }

    /// The most characters that it adds.
    fn longest(&self) -> usize {
        match self {
            Part::Text(text) => text.len(),
            Part::Numbers(ranges) => {
                let digits = |range: &Range| range.width.max(range.last.checked_ilog10().unwrap_or(0) as usize + 1);
                ranges.iter().map(digits).max().unwrap_or(0)
            }
        }
    }

    fn appended_to(&self, name: &str) -> Vec<String> {
        match self {
            Part::Text(text) => vec![format!("{name}{text}")],
            Part::Numbers(ranges) => {
                let numbers = ranges.iter().flat_map(|range| (range.first..=range.last).map(|n| (n, range.width)));
                let with = |(number, width): (u64, usize)| {
                    let mut name = name.to_owned();
                    // Writing into a string does not fail.
                    let _ = write!(name, "{number:0width$}");
                    name
                };
                numbers.map(with).collect()
            }
        }
    }
}

fn parse_parts<'a>(name: &'a str, entry: &str) -> Result<Vec<Part<'a>>, ListError> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let end = rest.find(['[', ']']).unwrap_or(rest.len());
        let (text, after) = rest.split_at(end);
        if !text.is_empty() {
            if let Some(character) = text.chars().find(|letter| !letter.is_alphanumeric() && !"-_.+".contains(*letter))
            {
                return Err(ListError::Character { entry: shown(entry), character });
            }
            parts.push(Part::Text(text));
        }
        rest = match after.strip_prefix('[') {
            Some(inner) => {
                let unclosed = || ListError::Unclosed { entry: shown(entry) };
                let (ranges, after) = inner.split_once(']').ok_or_else(unclosed)?;
                let ranges: Result<Vec<Range>, ListError> =
                    ranges.split(',').map(|range| parse_range(range.trim(), entry)).collect();
                parts.push(Part::Numbers(ranges?));
                after
            }
            None if after.is_empty() => after,
            None => return Err(ListError::Unopened { entry: shown(entry) }),
        };
    }
    Ok(parts)
}

fn parse_range(text: &str, entry: &str) -> Result<Range, ListError> {
    let wrong = || ListError::NotARange { entry: shown(entry), range: shown(text) };
    let number = |digits: &str| match digits.len() {
        1..=MAX_DIGITS if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<u64>().ok(),
        _ => None,
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range =
        Range { first: number(first).ok_or_else(wrong)?, last: number(last).ok_or_else(wrong)?, width: first.len() };
    match range.first <= range.last {
        true => Ok(range),
        false => Err(ListError::Backwards { entry: shown(entry), range: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse_names(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn brackets_stand_for_numbers() {
        for (text, expected) in [
            ("a,b", "a b"),
            ("node[01-03,20]", "node01 node02 node03 node20"),
            ("node[8-10]", "node8 node9 node10"),
            ("node[08-10]", "node08 node09 node10"),
            ("n[1-2]-ib,m", "n1-ib n2-ib m"),
            ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
            ("n[1-2].x[7,9].y", "n1.x7.y n1.x9.y n2.x7.y n2.x9.y"),
            ("[1-2]", "1 2"),
            ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
            (" a , b ,, c ,", "a b c"),
            ("n[2,1]", "n2 n1"),
            ("a,a", "a a"),
            ("::1,fe80::2%eth0,[::3]", "::1 fe80::2%eth0 ::3"),
        ] {
            assert_eq!(names(text).join(" "), expected, "{text}");
        }
    }

    #[test]
    fn slots_and_users_stand_with_names_and_with_brackets() {
        let read = |text: &str| -> Vec<(String, Option<String>, Option<u32>)> {
            let hosts = parse_list(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            hosts.into_iter().map(|host| (host.name, host.user, host.slots)).collect()
        };
        let host = |name: &str, user: Option<&str>, slots| (name.to_owned(), user.map(str::to_owned), slots);
        assert_eq!(
            read("a:4,me@b,c:*"),
            [host("a", None, Some(4)), host("b", Some("me"), None), host("c", None, None)]
        );
        assert_eq!(read("n[1-2]:8"), [host("n1", None, Some(8)), host("n2", None, Some(8))]);
        assert_eq!(read("[fe80::1]:2"), [host("fe80::1", None, Some(2))]);
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let cases = [
            "",
            ",",
            ":3",
            "me@:3",
            "a:",
            "a:x",
            "a:0",
            "n[1-2]:0",
            "n[1-",
            "n1]",
            "n[2-1]",
            "n[]",
            "n[1,]",
            "n[a-b]",
            "n[1-2-3]",
            "n[[1]]",
            "n[1-9999999999999999999]",
            "n[1-65537]",
            "n[1-300]x[1-300]",
            "n[1-60000],m[1-60000]",
            "n[0-999999999999999999]x[0-999999999999999999]",
            // Their sum is that of a few names in 64 bits.
            "n[0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,1-446744073709551619]",
            "-oProxyCommand=x",
            "-l@a",
            "a b",
            "a;b",
            "a/b",
            "a:b:c",
            "[::1",
            "[::1]2",
            "[a:b]",
            "fe80::1%;x",
            "n[1-2]:3:4",
        ];
        let text: Vec<String> = cases
            .iter()
            .map(|list| {
                let error = parse_list(list).map(|hosts| hosts.len()).expect_err(list);
                let hint = error.hint().map(|hint| format!("\n    hint: {hint}")).unwrap_or_default();
                format!("{list:?}: {error}{hint}")
            })
            .collect();
        insta::assert_snapshot!(text.join("\n"));
    }

    #[test]
    fn long_names_and_long_entries_are_bounded() {
        assert!(parse_list(&"a".repeat(MAX_NAME)).is_ok());
        assert!(matches!(parse_list(&"a".repeat(MAX_NAME + 1)), Err(ListError::TooLong { .. })));
        let error = parse_list(&format!("{}!", "a".repeat(10_000))).expect_err("a character");
        assert!(error.to_string().len() < 200);
        assert_eq!(parse_list("n[1-65536]").map(|hosts| hosts.len()), Ok(MAX_HOSTS));
    }

    #[test]
    fn a_relative_node_of_open_mpi_is_refused() {
        for text in ["+n1", "a,+e:2", "me@+n0"] {
            let error = parse_list(text).expect_err(text);
            assert!(matches!(error, ListError::Plus { .. }) && error.hint().is_some(), "{text}: {error}");
        }
        assert!(crate::hosts::parse_file("a\n+n1\n").is_err());
        assert!(parse_list("c++").is_ok(), "elsewhere in a name");
    }
}
