//! Writes the table of docs/mpiexec.md.

use std::fmt::Write as _;

use super::describe::{here, typed};
use super::lists::VARIABLES;
use super::table::{Launcher, Row, Special, TABLE, Word};
use crate::dialect::Here;
use crate::dialect::page::{cell, class, shows};

fn launchers(row: &Row) -> String {
    let short = |launcher: &Launcher| launcher.short();
    let names: Vec<&str> = row.launchers.iter().map(short).collect();
    if names.is_empty() { "rankrun".to_owned() } else { names.join(" ") }
}

fn tables() -> String {
    let mut text = String::from("\n| option | of | | here |\n|---|---|---|---|\n");
    for row in TABLE {
        let names: Vec<String> = row.names.iter().map(|name| format!("`{name}`")).collect();
        let value = if row.value.is_empty() { String::new() } else { format!(" *{}*", row.value) };
        // Writing into a string does not fail.
        let _ = writeln!(
            text,
            "| {}{} | {} | {} | {} |",
            names.join(", "),
            cell(&value),
            launchers(row),
            class(&row.here),
            cell(&here(row))
        );
    }
    for row in TABLE {
        let Here::Special(Special::Words(words), _) = row.here else { continue };
        // As above.
        let _ = write!(text, "\nWords of `-{}`:\n\n| word | | here |\n|---|---|---|\n", row.names[0]);
        for Word { name, here: of_word } in words {
            let row = Row { here: *of_word, value: "VALUE", names: &[], ..*row };
            // As above.
            let _ = writeln!(text, "| `{name}` | {} | {} |", class(of_word), cell(&here(&row)));
        }
    }
    text.push_str("\nVariables of the launchers:\n\n| variable | here |\n|---|---|\n");
    for variable in VARIABLES {
        // As above.
        let _ = writeln!(text, "| `{}` | {} |", variable.name, cell(variable.here));
    }
    text.push('\n');
    text
}

#[test]
fn the_page_shows_the_table() {
    shows("mpiexec.md", "the_page", &tables());
}

#[test]
fn what_is_typed_has_its_value_after_a_blank() {
    let row = |name| super::table::named(name).expect("it is an option");
    assert_eq!(typed(row("-n")), "-n, -np N");
    assert_eq!(typed(row("-fwd-environment")), "-fwd-environment[=BOOL]");
}
