//! `cargo xtask docs`: the pages in `docs/` as a site that can be searched, in `target/site`.

pub(crate) mod links;

use std::process::Command;

use anyhow::Result;

use crate::{environments, process, workspace};

/// Builds the site. Everything that mkdocs warns of is an error: a link or an anchor that leads nowhere, a page that is not in
/// the table of contents. (`--quiet` would silence the warnings, and they would then not count.)
pub(crate) fn docs() -> Result<()> {
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
