//! docs/cli.md has the help as it is, and every variable that a rank gets.

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

#[test]
fn every_variable_that_a_rank_gets_is_documented() {
    let home = tempfile::tempdir().unwrap();
    let inherited = [("PATH", "/usr/bin:/bin".into()), ("HOME", home.path().as_os_str().to_owned())];
    let env = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).env_clear().envs(inherited.clone()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = env("env", &[]);
    let of_rank = env(env!("CARGO_BIN_EXE_rankrun"), &["-n", "1", "--buffer", "line", "env"]);
    let names = of_rank.lines().filter(|line| !plain.contains(*line)).filter_map(|line| line.split_once('='));
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")).unwrap();
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(
        names.len() > 30 && missing.is_empty(),
        "docs/cli.md says nothing of {missing:?} ({} are there)",
        names.len()
    );
}
