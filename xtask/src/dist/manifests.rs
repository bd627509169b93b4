//! What crates.io asks of a crate, so that `cargo publish` does not fail on the day of a release.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{process, workspace};

/// Adds what is missing in the manifests of the crates that can be published. Needs no network.
pub(crate) fn check(faults: &mut Vec<String>) -> Result<()> {
    for package in packages()?.iter().filter(|package| is_published(package)) {
        check_package(package, faults);
    }
    Ok(())
}

/// The names of the crates that can be published.
fn published() -> Result<Vec<String>> {
    let packages = packages()?;
    let published = packages.iter().filter(|package| is_published(package));
    Ok(published.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect())
}

fn packages() -> Result<Vec<Value>> {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root()).args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let text = process::read(&mut command)?;
    let mut metadata: Value = serde_json::from_str(&text).context("cargo metadata wrote no JSON")?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("cargo metadata lists no packages"),
    }
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

/// Packs the crates as `cargo publish` does, and checks that what was packed compiles: a file outside a crate is missing there.
///
/// cargo's own verification is not used: it keeps the unpacked crates of an earlier dry run as long as the version is the same.
pub(crate) fn dry_run(scratch: &Path) -> Result<()> {
    let in_root = |words: &[&str]| {
        let mut command = workspace::cargo();
        command.current_dir(workspace::root()).args(words).args(["--no-verify", "--quiet", "--allow-dirty"]);
        command
    };
    process::run(&mut in_root(&["publish", "--workspace", "--dry-run"]))?;
    let names = published()?;
    // The dry run leaves no package in a known place; this does.
    let packed = scratch.join("packed");
    let options = names.iter().flat_map(|name| ["--package", name.as_str()]);
    process::run(in_root(&["package"]).args(options).arg("--target-dir").arg(&packed))?;
    let place = scratch.join("crates");
    fs::create_dir_all(&place)?;
    let mut patches = String::new();
    for name in &names {
        let package = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let file = packed.join(format!("package/{package}.crate"));
        // With the time of unpacking: all files of a package bear one date, and cargo would take changed ones for built.
        process::run(Command::new("tar").arg("-xmzf").arg(file).arg("-C").arg(&place))?;
        patches.push_str(&format!("{name} = {{ path = \"{package}\" }}\n"));
    }
    // Each crate finds the others as it would on crates.io, but here.
    let workspace = format!("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n{patches}");
    fs::write(place.join("Cargo.toml"), workspace)?;
    fs::copy(workspace::root().join("Cargo.lock"), place.join("Cargo.lock"))?;
    // The dependencies are those that `cargo xtask lint` has checked already.
    let mut command = workspace::cargo();
    command.current_dir(&place).args(["check", "--quiet", "--workspace", "--offline"]);
    process::run(command.env("CARGO_TARGET_DIR", workspace::target()))
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
