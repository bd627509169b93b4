//! The reference in docs/cli.md holds the help as it is.

use std::path::Path;
use std::process::Command;

#[test]
fn the_reference_shows_the_help_as_it_is() {
    let help =
        Command::new(env!("CARGO_BIN_EXE_rankrun")).arg("--help").env_clear().env("COLUMNS", "100").output().unwrap();
    let help: Vec<String> =
        String::from_utf8(help.stdout).unwrap().lines().map(|line| line.trim_end().to_owned()).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let have = std::fs::read_to_string(&file).unwrap();
    let (before, _) = have.split_once("```text\n").unwrap();
    let want = format!("{before}```text\n{}\n```\n", help.join("\n"));
    if std::env::var_os("RANKRUN_UPDATE_DOCS").is_some() {
        std::fs::write(&file, want).unwrap();
    } else {
        assert!(
            have == want,
            "docs/cli.md is not up to date: RANKRUN_UPDATE_DOCS=1 cargo test -p rankrun --test reference"
        );
    }
}
