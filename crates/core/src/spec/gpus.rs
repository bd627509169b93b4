//! The GPUs of a rank: the variables that select them, a rank's share, and the one that JAX uses.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::ids::{LocalRank, NodeRank, Rank};
use crate::outer::matches;
use crate::rankmap::Place;
use crate::spec::job::{App, EnvEdit, JobSpec};

/// `--gpus-per-rank` needs more devices than a mask lists.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable} lists too few GPUs: rank {rank} needs {needed}, and {available} are left for it")]
pub struct GpuMaskError {
    pub rank: Rank,
    pub variable: &'static str,
    pub needed: u32,
    pub available: u32,
}

/// Whether the GPU masks of the environment are long enough for every rank of a node.
pub fn check_gpus(spec: &JobSpec, node: NodeRank) -> Result<(), GpuMaskError> {
    let Some(needed) = spec.gpus_per_rank else {
        return Ok(());
    };
    for place in spec.map.on_node(node) {
        for slice in gpu_masks(spec, spec.app(place.app), place.local_rank, needed) {
            let available = slice.devices.len() as u32;
            if available < needed {
                return Err(GpuMaskError { rank: place.rank, variable: slice.variable, needed, available });
            }
        }
    }
    Ok(())
}

pub(crate) struct GpuSlice {
    pub(crate) variable: &'static str,
    pub(crate) devices: Vec<Vec<u8>>,
}

/// A rank's share of each GPU mask.
///
/// HIP applies `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES` to what `ROCR_VISIBLE_DEVICES` has left, so that slicing
/// both layers would leave a rank nothing: the inner layer is sliced where there is one. Where there is no mask at all,
/// `CUDA_VISIBLE_DEVICES` (which HIP reads too) and `ZE_AFFINITY_MASK` count the devices from 0.
pub(crate) fn gpu_masks(spec: &JobSpec, app: &App, local_rank: LocalRank, per_rank: u32) -> Vec<GpuSlice> {
    let first = local_rank.index().saturating_mul(per_rank as usize);
    let last = first.saturating_add(per_rank as usize);
    let slice = |variable: &'static str| -> Option<GpuSlice> {
        let mask = value_of(&spec.base_env, &app.env, variable)?;
        let devices = mask
            .as_bytes()
            .split(|byte| *byte == b',')
            .filter(|device| !device.is_empty())
            .skip(first)
            .take(per_rank as usize);
        Some(GpuSlice { variable, devices: devices.map(<[u8]>::to_vec).collect() })
    };
    let mut slices: Vec<GpuSlice> =
        ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"].into_iter().filter_map(slice).collect();
    if slices.is_empty() {
        slices.extend(slice("ROCR_VISIBLE_DEVICES"));
    }
    slices.extend(slice("ZE_AFFINITY_MASK"));
    if slices.is_empty() {
        let devices: Vec<Vec<u8>> = (first..last).map(|device| device.to_string().into_bytes()).collect();
        slices.extend(
            ["CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]
                .map(|variable| GpuSlice { variable, devices: devices.clone() }),
        );
    }
    slices
}

/// The GPU that each rank of a node uses first, by position among the machine's `count`: the first of its share, else the one with the number of
/// its local rank. `None` where a mask names it otherwise than by its number.
pub fn first_gpus(spec: &JobSpec, node: NodeRank, count: u32) -> Vec<Option<u32>> {
    let first = |place: &Place| {
        if count == 0 {
            return None;
        }
        let app = spec.app(place.app);
        let per_rank = spec.gpus_per_rank.unwrap_or(1);
        let of_mask = || {
            let slices = gpu_masks(spec, app, place.local_rank, per_rank);
            let first = slices.first()?.devices.first()?;
            std::str::from_utf8(first).ok()?.parse::<u32>().ok().filter(|device| *device < count)
        };
        match spec.gpus_per_rank {
            Some(_) => of_mask(),
            // Who sees all takes the one with its number.
            None if gpu_mask(&spec.base_env, &app.env).is_none() => Some(place.local_rank.0 % count),
            None => of_mask(),
        }
    };
    spec.map.on_node(node).map(first).collect()
}

/// The variables that select the GPUs of a program.
pub const GPU_MASKS: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];

/// One of them, with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuMask {
    pub variable: &'static str,
    /// How many it lists.
    pub devices: u32,
}

/// The mask that the ranks of an app with these edits get, if there is one.
pub fn gpu_mask(base_env: &[(OsString, OsString)], edits: &[EnvEdit]) -> Option<GpuMask> {
    GPU_MASKS.into_iter().find_map(|variable| {
        let mask = value_of(base_env, edits, variable)?;
        let devices = mask.as_bytes().split(|byte| *byte == b',').filter(|device| !device.is_empty());
        // CUDA and HIP use the entries before the first invalid number ("-1" hides all).
        let devices = devices.take_while(|device| !device.starts_with(b"-")).count() as u32;
        Some(GpuMask { variable, devices })
    })
}

/// The value of a variable in a rank, before rankrun has its say: the user's edit, otherwise the inherited one.
pub(crate) fn value_of<'a>(
    base_env: &'a [(OsString, OsString)],
    edits: &'a [EnvEdit],
    variable: &str,
) -> Option<&'a OsStr> {
    let variable = OsStr::new(variable);
    for edit in edits.iter().rev() {
        match edit {
            EnvEdit::Set { name, value } if name == variable => return Some(value.as_os_str()),
            EnvEdit::Remove { name } if matches(name, variable) => return None,
            // A value that differs for each rank is not sliced.
            EnvEdit::Set { .. } | EnvEdit::Fill { .. } | EnvEdit::Remove { .. } => {}
        }
    }
    let inherited = base_env.iter().find(|(name, _)| name == variable);
    inherited.map(|(_, value)| value.as_os_str())
}

/// The device that JAX is to use in a rank, as an index into what the rank sees; `None` for all of them.
///
/// Ranks that see the same GPUs take one each, as JAX itself does it under Slurm and Open MPI: two processes that
/// both took all of them would lack memory. A rank that is alone, or has GPUs of its own, uses what it sees.
pub(crate) fn jax_device(spec: &JobSpec, app: &App, place: &Place) -> Option<u32> {
    let has_its_own = spec.gpus_per_rank.is_some() || app.env.iter().any(differs_from_rank_to_rank);
    let is_alone = spec.map.local_size(place.node) < 2;
    (!has_its_own && !is_alone).then_some(place.local_rank.0)
}

fn differs_from_rank_to_rank(edit: &EnvEdit) -> bool {
    matches!(edit, EnvEdit::Fill { name, .. } if GPU_MASKS.iter().any(|mask| matches(OsStr::new(mask), name)))
}
