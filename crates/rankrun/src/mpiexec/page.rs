//! Writes the table of docs/mpiexec.md.

use std::fmt::Write as _;
use std::path::Path;

use super::describe::{here, typed};
use super::lists::VARIABLES;
use super::table::{Here, Launcher, Row, Special, TABLE, Word};

const BEGIN: &str = "<!-- Written by `RANKRUN_UPDATE_DOCS=1 cargo test -p rankrun --bin rankrun the_page`. -->\n";
const END: &str = "<!-- End of what is written. -->\n";

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("'*'", "'\\*'")
}

fn class(here: Here) -> &'static str {
    match here {
        Here::Same(_) | Here::Already(_) | Here::Special(..) => "same",
        Here::Differs(..) | Here::Without(_) => "different",
        Here::Refused(_) => "refused",
    }
}

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
            class(row.here),
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
            let _ = writeln!(text, "| `{name}` | {} | {} |", class(*of_word), cell(&here(&row)));
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
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mpiexec.md");
    let have = std::fs::read_to_string(&file).expect("the page is there");
    let (before, rest) = have.split_once(BEGIN).expect("it says where the tables begin");
    let (_, after) = rest.split_once(END).expect("it says where the tables end");
    let page = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("RANKRUN_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &page).expect("the page can be written");
    }
    assert!(
        have == page || std::env::var_os("RANKRUN_UPDATE_DOCS").is_some(),
        "docs/mpiexec.md is not up to date: see the comment in it"
    );
}

#[test]
fn what_is_typed_has_its_value_after_a_blank() {
    let row = |name| super::table::named(name).expect("it is an option");
    assert_eq!(typed(row("-n")), "-n, -np N");
    assert_eq!(typed(row("-fwd-environment")), "-fwd-environment[=BOOL]");
}
