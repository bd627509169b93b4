//! Reads what options take: numbers of ranks and GPUs, ranks, where stdin goes.

use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::job::StdinTarget;

use crate::settings::Nproc;

/// How long node 0 waits for the others by default, and they for it.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) fn read_nproc(text: &str) -> Result<Nproc, String> {
    match text {
        "auto" | "cpu" => return Ok(Nproc::Auto),
        "gpu" => return Ok(Nproc::Gpus),
        "gpu-or-cpu" => return Ok(Nproc::GpusOrCpus),
        _ => {}
    }
    match text.parse::<i64>() {
        Ok(0) => Err("a job needs at least 1 rank".to_owned()),
        Ok(count) if count < 0 => Err(format!("{count} is not a number of ranks")),
        Ok(count) => Ok(Nproc::Count(u32::try_from(count).map_err(|_| format!("{count} ranks are too many"))?)),
        Err(_) => Err(format!("\"{text}\" is not a number of ranks, auto, cpu or gpu")),
    }
}

pub(crate) fn read_level(text: &str) -> Result<i8, String> {
    match text {
        "yes" | "true" => Ok(1),
        "no" | "false" => Ok(0),
        _ => text.parse::<u8>().map(|level| level.min(2) as i8).map_err(|_| format!("\"{text}\" is not 0, 1 or 2")),
    }
}

pub(crate) fn read_rank(text: &str) -> Result<Rank, String> {
    let rank = text.parse().map(Rank);
    rank.map_err(|_| format!("\"{text}\" is not a rank"))
}

pub(crate) fn read_stdin(text: &str) -> Result<StdinTarget, String> {
    match text {
        "none" => Ok(StdinTarget::None),
        "all" => Ok(StdinTarget::All),
        "shared" => Ok(StdinTarget::Shared),
        _ => {
            read_rank(text).map(StdinTarget::Rank).map_err(|_| format!("\"{text}\" is not a rank, none, all or shared"))
        }
    }
}

/// The most GPUs of a rank. All their numbers go into its environment.
const MOST_GPUS: u32 = 1024;

/// `none`, or a number; `none` overrides a file.
pub(crate) fn read_gpus(text: &str) -> Result<Option<u32>, String> {
    match text {
        "none" => Ok(None),
        _ => match text.parse::<u32>() {
            Ok(count) if count > MOST_GPUS => Err(format!("{text} GPUs per rank are too many (at most {MOST_GPUS})")),
            Ok(count) if count > 0 => Ok(Some(count)),
            _ => Err(format!("\"{text}\" is not a number of GPUs or none")),
        },
    }
}
