//! What crates.io asks of a crate, so that `cargo publish` does not fail on the day of a release.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{process, workspace};

/// Adds what is missing in the manifests of the crates that can be published. Needs no network.
pub(crate) fn check(faults: &mut Vec<String>) -> Result<()> {
    let mut command = Command::new(workspace::cargo());
    let text = process::read(command.current_dir(workspace::root()).args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata wrote no JSON")?;
    for package in metadata["packages"].as_array().into_iter().flatten().filter(|package| is_published(package)) {
        check_package(package, faults);
    }
    Ok(())
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn check_package(package: &Value, faults: &mut Vec<String>) {
    let name = package["name"].as_str().unwrap_or_default();
    for field in ["description", "license", "repository", "readme", "rust_version"] {
        if package[field].as_str().is_none_or(str::is_empty) {
            faults.push(format!("{name}: its Cargo.toml has no {}", field.replace('_', "-")));
        }
    }
    if package["keywords"].as_array().is_none_or(Vec::is_empty) {
        faults.push(format!("{name}: its Cargo.toml has no keywords"));
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let without_version = dependency["req"].as_str().is_none_or(|version| version == "*");
        if dependency["kind"].as_str() != Some("dev") && without_version {
            let other = dependency["name"].as_str().unwrap_or_default();
            faults.push(format!("{name}: its dependency on {other} has no version"));
        }
    }
}

/// Packs the crates as `cargo publish` does, and builds what was packed: a file outside a crate is found missing here.
pub(crate) fn dry_run() -> Result<()> {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root()).args(["publish", "--workspace", "--dry-run", "--quiet", "--allow-dirty"]);
    process::run(&mut command)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_crate_that_cannot_be_published_is_named_with_what_it_lacks() {
        let package = serde_json::json!({
            "name": "part", "description": "A part", "license": "MIT", "repository": "r", "readme": null, "rust_version": "1.89",
            "keywords": ["mpi"], "publish": null,
            "dependencies": [
                {"name": "core", "req": "*", "kind": null, "path": "/core"},
                {"name": "libc", "req": "^0.2", "kind": null},
                {"name": "harness", "req": "*", "kind": "dev", "path": "/harness"},
            ],
        });
        assert!(is_published(&package));
        let mut faults = Vec::new();
        check_package(&package, &mut faults);
        assert_eq!(faults, ["part: its Cargo.toml has no readme", "part: its dependency on core has no version"]);
    }

    #[test]
    fn a_private_crate_is_not_looked_at() {
        assert!(!is_published(&serde_json::json!({"publish": []})));
    }
}
