//! `cargo xtask bench`.

use anyhow::{Result, bail};

pub(crate) fn bench(_runs: Option<usize>, _rows: &[String]) -> Result<()> {
    bail!("no rows yet")
}
