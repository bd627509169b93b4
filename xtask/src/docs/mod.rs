//! `cargo xtask docs`: the pages in `docs/` as a site that can be searched, in `target/site`; and `cargo xtask screens`: the
//! pictures in them.

pub(crate) mod links;

use std::process::Command;

use anyhow::Result;

use crate::{environments, packages, process, workspace};

/// Builds the site. Everything that mkdocs warns of is an error: a link or an anchor that leads nowhere, a page that is not in
/// the table of contents. (`--quiet` would silence the warnings, and they would then not count.)
pub(crate) fn docs() -> Result<()> {
    packages::install_for_docs()?;
    environments::create(&["docs".to_owned()])?;
    let site = workspace::target().join("site");
    process::run(
        Command::new(environments::directory()?.join("docs/bin/mkdocs"))
            .current_dir(workspace::root())
            .args(["build", "--strict", "--clean", "--site-dir"])
            .arg(&site)
            // Its authors announce other projects of theirs in colour on stderr.
            .env("NO_MKDOCS_2_WARNING", "true"),
    )?;
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// Records the screens and the picture of the README anew, with the release build.
pub(crate) fn screens() -> Result<()> {
    packages::install_for_screens()?;
    environments::create(&["screens", "mpich"].map(str::to_owned))?;
    let mut build = workspace::cargo();
    process::run(build.current_dir(workspace::root()).args(["build", "--release", "--package", "rankrun"]))?;
    let binary = workspace::release().join("rankrun");
    let python = environments::directory()?.join("screens/bin/python");
    let images = workspace::root().join("docs/images");
    process::run(Command::new("python3").arg(images.join("screens.py")).arg(&binary).arg(&python))?;
    process::run(Command::new("python3").arg(images.join("record.py")).arg(&binary))
}
