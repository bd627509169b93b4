//! The lines of CPython's tracebacks.

pub(crate) const HEADER: &str = "Traceback (most recent call last):";
const GROUP_HEADER: &str = "Exception Group Traceback (most recent call last):";

/// Whether a traceback begins here. A progress bar may stand before it, on the same line.
pub(crate) fn is_header(line: &str) -> bool {
    let Some(before) = line.strip_suffix(HEADER) else { return false };
    let is_of_group = before.ends_with("Exception Group ") || before.trim_start().starts_with('|');
    before.is_empty() || !is_of_group && !before.trim().is_empty()
}

/// Whether the traceback of an exception group begins here.
pub(crate) fn is_group_header(line: &str) -> bool {
    line.ends_with(GROUP_HEADER)
}

/// Whether a file belongs to Python or to an installed package, and not to the program.
pub(crate) fn is_library(file: &str) -> bool {
    ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen "]
        .iter()
        .any(|part| file.contains(part))
}

/// `ValueError: failure!`, as it ends a traceback.
pub(crate) fn exception_line(line: &str) -> Option<(&str, &str)> {
    let (kind, message) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    let is_name = |c: char| c.is_alphanumeric() || c == '.' || c == '_' || c == '<' || c == '>';
    let fits = kind.chars().all(is_name) && kind.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
    fits.then_some((kind, message))
}

/// `  File "a.py", line 5, in func`; loguru marks one with `> `, and faulthandler has no comma.
pub(crate) fn frame(line: &str) -> Option<(String, u32, String)> {
    let rest = line.trim_start_matches([' ', '>', '|']).strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let (number, function) = match rest.split_once(" in ") {
        Some((number, function)) => (number.trim_end_matches(','), function),
        None => (rest, ""),
    };
    Some((file.to_owned(), number.trim().parse().ok()?, function.to_owned()))
}

/// The frame of a traceback that says most: the last one of the program's own, else the last.
pub(crate) fn place<'a>(lines: impl Iterator<Item = &'a str>) -> Option<(String, u32, String)> {
    let frames: Vec<_> = lines.filter_map(frame).collect();
    let own = frames.iter().rev().find(|(file, ..)| !is_library(file));
    own.or(frames.last()).cloned()
}

/// A line of a group's traceback without the margin (`  | `); any other as it is.
pub(crate) fn within_margin(line: &str) -> &str {
    let bare = line.trim_start_matches(' ');
    bare.strip_prefix("| ").or_else(|| bare.strip_prefix("+ ")).unwrap_or(line)
}

pub(crate) fn within_group(line: &str) -> &str {
    line.trim_start_matches([' ', '|', '+'])
}

/// The first exception of a group, by the group's traceback: where that is a group too, the first of its own.
pub(crate) fn first_of_group(traceback: &str) -> Option<String> {
    let (_, inside) = traceback.split_once(GROUP_HEADER)?;
    let lines = inside.lines().skip_while(|line| !line.contains("---------------- 1 -")).skip(1);
    let is_frame =
        |line: &str| within_margin(line).starts_with("  ") || line.contains("Traceback (most recent call last):");
    let named = lines.filter(|line| !is_frame(line)).map(within_group);
    let mut named = named.filter_map(|line| exception_line(line).map(|(kind, _)| (kind, line))).peekable();
    let first = named.peek().map(|(_, line)| *line)?;
    let found = named.find(|(kind, _)| !kind.ends_with("Group")).map_or(first, |(_, line)| line);
    Some(found.to_owned())
}
