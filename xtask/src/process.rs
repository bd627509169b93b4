//! Running other programs, with errors that name them.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command with our own stdout and stderr; an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let text = describe(command);
    let status = command.status().with_context(|| format!("cannot start {text}"))?;
    if !status.success() {
        bail!("{text}: {status}");
    }
    Ok(())
}

/// Runs a command and returns what it wrote to stdout; its stderr goes to ours.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let text = describe(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {text}"))?;
    if !output.status.success() {
        bail!("{text}: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a command can be started and succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}
