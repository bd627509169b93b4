//! The options as text: for `rankrun mpiexec --help`, and for docs/mpiexec.md.

use std::fmt::Write as _;

use super::lists::VARIABLES;
use super::table::{Here, Row, TABLE};

/// What an option is here, in words.
pub(super) fn here(row: &Row) -> String {
    row.here.text(row.value)
}

/// The names and the value of an option, as they are typed.
pub(super) fn typed(row: &Row) -> String {
    let space = if row.value.is_empty() || row.value.starts_with('[') { "" } else { " " };
    format!("{}{space}{}", row.names.join(", "), row.value)
}

/// The names of all options as they are mostly typed, for completions.
pub(crate) fn names() -> Vec<String> {
    let taken = TABLE.iter().filter(|row| !matches!(row.here, Here::Refused(..)));
    let mut names: Vec<String> = taken.flat_map(|row| row.names).map(|name| (*name).to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The list of options for the help.
pub(crate) fn options() -> String {
    let mut text = String::from("Options, and whose they are:\n");
    for row in TABLE {
        let launchers: Vec<&str> = row.launchers.iter().map(|launcher| launcher.short()).collect();
        let launchers = if launchers.is_empty() { "rankrun".to_owned() } else { launchers.join(" ") };
        // Writing into a string does not fail.
        let _ = writeln!(text, "  {}  [{launchers}]\n          {}", typed(row), here(row).replace('`', ""));
    }
    text.push_str("\nVariables:\n");
    for variable in VARIABLES {
        // As above.
        let _ = writeln!(text, "  {}\n          {}", variable.name, variable.here.replace('`', ""));
    }
    text
}
