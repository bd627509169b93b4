//! Writes the table of docs/torchrun.md.

use std::fmt::Write as _;

use super::describe::{VARIABLES, typed};
use super::table::TABLE;
use crate::dialect::page::{cell, class, shows};

fn tables() -> String {
    let mut text = String::from("\n| option | variable | | here |\n|---|---|---|---|\n");
    for row in TABLE {
        let variable = row.variable().map(|name| format!("`{name}`")).unwrap_or_default();
        let here = cell(&row.here.text(row.value));
        // Writing into a string does not fail.
        let _ = writeln!(text, "| `{}` | {variable} | {} | {here} |", cell(&typed(row)), class(&row.here));
    }
    text.push_str("\nVariables:\n\n| variable | here |\n|---|---|\n");
    for (name, here) in VARIABLES {
        // As above.
        let _ = writeln!(text, "| `{name}` | {} |", cell(here));
    }
    text.push('\n');
    text
}

#[test]
fn the_torchrun_page_shows_the_table() {
    shows("torchrun.md", "the_torchrun_page", &tables());
}
