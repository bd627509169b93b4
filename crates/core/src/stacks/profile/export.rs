//! Profiles for other programs: collapsed stacks, as `flamegraph.pl` and inferno read them, and the JSON of speedscope.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::request::{Profile, RankProfile};
use super::samples::{Activity, Count, MAIN, Samples};
use crate::stacks::Frame;

/// The scheme of speedscope's files.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// One line for each stack: `rank 3;main;train;forward (model.py:12) 123`. The last frame of a thread that waits is `[waits: futex]`.
pub fn collapsed(profile: &Profile) -> String {
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for RankProfile { rank, samples, .. } in &profile.ranks {
        for count in &samples.counts {
            let frames = stack(samples, count).into_iter().map(|frame| plain(&name(&frame)));
            let line: Vec<String> = std::iter::once(format!("rank {rank}")).chain(frames).collect();
            *stacks.entry(line.join(";")).or_default() += count.total();
        }
    }
    stacks.into_iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
}

/// A stack, outermost first: with its thread, if that is not the main one, and with what it waits in, if it waits.
fn stack(samples: &Samples, count: &Count) -> Vec<Frame> {
    let special = super::samples::special;
    let thread = samples.threads.get(count.thread as usize).filter(|name| *name != MAIN);
    let call = count.call.and_then(|call| samples.calls.get(call as usize)).map(|call| format!("[waits: {call}]"));
    let wait = match count.activity {
        Activity::Running => None,
        Activity::Queued => Some("[no CPU]".to_owned()),
        Activity::Sleeping => Some(call.unwrap_or_else(|| "[waits]".to_owned())),
        Activity::Disk => Some(call.unwrap_or_else(|| "[waits: disk]".to_owned())),
        Activity::Other => Some("[stopped]".to_owned()),
    };
    let frames = samples.stack(count.node).into_iter().cloned();
    thread.map(|name| special(name)).into_iter().chain(frames).chain(wait.map(|wait| special(&wait))).collect()
}

/// `forward (model.py:12)`.
fn name(frame: &Frame) -> String {
    let Frame { function, file, line, .. } = frame;
    match (file, line) {
        (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
        (Some(file), None) => format!("{function} ({file})"),
        (None, _) => function.clone(),
    }
}

/// Semicolons and ends of lines have a meaning.
fn plain(name: &str) -> String {
    name.replace(';', ":").replace(['\n', '\r'], " ")
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'a str,
    name: &'a str,
    exporter: &'a str,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Default, Serialize)]
struct Shared {
    frames: Vec<Named>,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
struct Named {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct Sampled {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: f64,
    #[serde(rename = "endValue")]
    end: f64,
    samples: Vec<Vec<usize>>,
    weights: Vec<f64>,
}

/// The file of <https://www.speedscope.app>: first all ranks together, by time and by CPU time, then each rank.
///
/// # Errors
///
/// It cannot be written as JSON.
pub fn speedscope(profile: &Profile, name: &str) -> Result<String, serde_json::Error> {
    let mut shared = Shared::default();
    let mut known: HashMap<Named, usize> = HashMap::new();
    let mut index = |frame: &Frame| {
        let named = Named { name: frame.function.clone(), file: frame.file.clone(), line: frame.line };
        *known.entry(named).or_insert_with_key(|named| {
            shared.frames.push(named.clone());
            shared.frames.len() - 1
        })
    };
    let mut ranks = Vec::new();
    let (mut all, mut running) = (BTreeMap::new(), BTreeMap::new());
    for RankProfile { rank, samples, .. } in &profile.ranks {
        let weight = samples.seconds_per_look();
        let mut own: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for count in &samples.counts {
            let stack: Vec<usize> = stack(samples, count).iter().map(&mut index).collect();
            let weight = count.total() as f64 * weight;
            if count.activity == Activity::Running {
                *running.entry(stack.clone()).or_default() += weight;
            }
            *all.entry(stack.clone()).or_default() += weight;
            *own.entry(stack).or_default() += weight;
        }
        ranks.push((format!("rank {rank}"), own));
    }
    let first = [("all ranks".to_owned(), all), ("all ranks, on CPU".to_owned(), running)];
    let profiles = first.into_iter().chain(ranks).map(|(name, stacks)| sampled(name, stacks)).collect();
    let exporter = concat!("rankrun ", env!("CARGO_PKG_VERSION"));
    serde_json::to_string(&File { schema: SCHEMA, name, exporter, active: 0, shared, profiles })
}

fn sampled(name: String, stacks: BTreeMap<Vec<usize>, f64>) -> Sampled {
    let (samples, weights): (Vec<Vec<usize>>, Vec<f64>) = stacks.into_iter().unzip();
    let end = weights.iter().sum();
    Sampled { kind: "sampled", name, unit: "seconds", start: 0.0, end, samples, weights }
}
