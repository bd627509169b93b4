//! Prints where processes are: `cargo run -p rankrun-stacks --example look -- PID...`
#![allow(clippy::print_stdout, reason = "an example writes to its terminal")]

use std::time::Instant;

use rankrun_core::Pid;
use rankrun_core::stacks::Frame;
use rankrun_stacks::{Bounds, Looker};

fn main() {
    let mut looker = Looker::new(Bounds::default());
    for pid in std::env::args().skip(1).filter_map(|word| word.parse().ok()) {
        let start = Instant::now();
        let process = looker.look(Pid(pid));
        println!(
            "{pid} {} ({:?}, looked for {:?}, stopped for {} us)",
            process.command,
            process.interpreter,
            start.elapsed(),
            process.stopped_us
        );
        if let Some(why) = &process.unseen {
            println!("  unseen: {why}");
        }
        for thread in &process.threads {
            let kernel = thread.kernel.as_deref().unwrap_or("-");
            println!(
                "  {} {} {:?} {kernel}{}{}{}",
                thread.tid.0,
                thread.name,
                thread.state,
                if thread.holds_gil { ", holds the GIL" } else { "" },
                if thread.is_idle { ", idle" } else { "" },
                if thread.is_cut { ", cut" } else { "" },
            );
            thread.frames.iter().for_each(print);
        }
        for other in &process.others {
            println!(
                "  process {} of {}: {} {:?} {:?}",
                other.pid.0, other.parent.0, other.command, other.state, other.unseen
            );
            other.frames.iter().for_each(print);
        }
    }
}

fn print(frame: &Frame) {
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    println!("    {} {}{line}", frame.function, frame.file.as_deref().unwrap_or("?"));
}
