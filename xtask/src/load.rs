//! Busy loops that take the CPUs from the tests.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// How many: with two CPUs a process that waits for one gets a fifth of it.
const LOOPS: usize = 8;

/// Busy loops, ended when this is dropped.
pub(crate) struct Load {
    loops: Vec<Child>,
}

impl Load {
    /// Starts the loops. Each ends by itself when we are gone, however we ended: it looks for its parent now and then.
    pub(crate) fn start() -> Result<Load> {
        let script = format!(
            "while kill -0 {} 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done",
            std::process::id()
        );
        let mut load = Load { loops: Vec::new() };
        for _ in 0..LOOPS {
            let busy = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            load.loops.push(busy.context("cannot start a busy loop")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for busy in &mut self.loops {
            // One that has ended by itself is no failure.
            let _ = busy.kill();
            let _ = busy.wait();
        }
    }
}
