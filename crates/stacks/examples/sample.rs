//! Samples processes for some seconds: `cargo run -p rankrun-stacks --example sample -- SECONDS RATE PID...`
#![allow(clippy::print_stdout, reason = "an example writes to its terminal")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rankrun_core::Pid;
use rankrun_stacks::{Bounds, Look, Sampler};

fn main() {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<f64>().ok());
    let (seconds, rate) = (words.next().unwrap_or(5.0), words.next().unwrap_or(20.0));
    let mut sampler = Sampler::new(Bounds::default());
    let all: Vec<usize> = words.map(|pid| sampler.add(Pid(pid as i32))).collect();
    let start = Instant::now();
    let (_sender, clock) = mpsc::sync_channel::<()>(0);
    let mut spent = Duration::ZERO;
    let mut number = 0;
    while start.elapsed().as_secs_f64() < seconds {
        let begun = Instant::now();
        for index in &all {
            if sampler.look(*index, begun, 0) != Look::Seen {
                return;
            }
        }
        number += 1;
        spent += begun.elapsed();
        let next = start + Duration::from_secs_f64(f64::from(number) / rate);
        let _ = clock.recv_timeout(next.saturating_duration_since(Instant::now()));
    }
    println!("{number} looks, {:?} each", spent / number.max(1) as u32);
    for index in all {
        let samples = sampler.take(index);
        println!(
            "{} {} looks, missed {} {:?}, {:?}",
            samples.command, samples.looks, samples.missed, samples.unseen, samples.stops
        );
        let mut counts: Vec<_> = samples.counts.iter().collect();
        counts.sort_by_key(|count| std::cmp::Reverse(count.total()));
        for count in counts.iter().take(12) {
            let names: Vec<String> = samples
                .stack(count.node)
                .iter()
                .map(|frame| {
                    format!("{}{}", frame.function, frame.line.map(|line| format!(":{line}")).unwrap_or_default())
                })
                .collect();
            let call = count.call.map(|call| samples.calls[call as usize].clone());
            println!(
                "  {:4} {:?} {call:?} {} {} {:?}",
                count.total(),
                count.activity,
                samples.threads[count.thread as usize],
                names.join(";"),
                count.cost
            );
        }
    }
}
