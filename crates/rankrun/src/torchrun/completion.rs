//! Completion scripts for `torchrun`, from the table.

use super::parse::Given;
use super::table::{Row, TABLE};
use crate::message::Problem;

/// The script for a shell.
pub(super) fn script(shell: &Given) -> Result<String, Problem> {
    let words = |row: &'static Row| [Some(row.name), row.short];
    let options: Vec<&str> = TABLE.iter().flat_map(words).flatten().collect();
    Ok(match shell.utf8()? {
        "bash" => format!("complete -o default -W '{}' torchrun\n", options.join(" ")),
        "zsh" => {
            let lines: Vec<String> = TABLE.iter().map(zsh).collect();
            format!(
                "#compdef torchrun\n_arguments -s \\\n{}\n  '1:script:_files' '*:argument:_files'\n",
                lines.concat()
            )
        }
        "tcsh" => {
            let names: Vec<&str> = TABLE.iter().map(|row| row.name.trim_start_matches('-')).collect();
            format!("complete torchrun 'c/--/({})/' 'p/*/f/'\n", names.join(" "))
        }
        other => return Err(shell.problem(format!("\"{other}\" is not one of bash, zsh, tcsh"))),
    })
}

fn zsh(row: &'static Row) -> String {
    let value = if row.is_flag() { String::new() } else { format!(":{}:", row.value.replace([':', '|'], " ")) };
    let equals = if row.is_flag() { "" } else { "=" };
    let names = [Some(format!("{}{equals}", row.name)), row.short.map(str::to_owned)];
    names.into_iter().flatten().map(|name| format!("  '{name}{value}' \\\n")).collect()
}
