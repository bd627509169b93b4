//! Where the log files of the ranks are: templates, since each attempt may have files of its own.

use std::path::{Path, PathBuf};

use rankrun_core::template::Field;
use rankrun_core::{JobSpec, Rank, Template};
use rankrun_output::LogPlaces;

/// The places of the log files. Relative ones are below the job's working directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Logs {
    /// A directory for all ranks, or by its fields one for each. Where a job may be started again, each attempt has one of
    /// its own in it, `attempt-0` for the first, unless the template names the attempt.
    Directory(Template),
    /// The files that stdout and stderr go to instead of the console. Attempts follow each other in them.
    Files([Option<Template>; 2]),
}

impl Logs {
    /// The places in an attempt.
    pub fn places(&self, spec: &JobSpec) -> LogPlaces {
        let of_rank = |place: &Template, rank: Rank| Path::new(&spec.cwd).join(place.expand(spec, rank));
        let of_all =
            |place: &Template| -> Vec<PathBuf> { spec.map.places().iter().map(|at| of_rank(place, at.rank)).collect() };
        let differs = |field| matches!(field, Field::Rank | Field::LocalRank | Field::Node);
        match self {
            Logs::Files([stdout, stderr]) => LogPlaces::files(stdout.as_ref().map(of_all), stderr.as_ref().map(of_all)),
            Logs::Directory(place) => {
                let all = match place.fields().any(differs) {
                    true => of_all(place),
                    false => vec![of_rank(place, Rank(0))],
                };
                let is_divided = (spec.restart.is_on() || spec.attempt.0 > 0)
                    && !place.fields().any(|field| field == Field::Attempt);
                let own = |directory: PathBuf| match is_divided {
                    true => directory.join(format!("attempt-{}", spec.attempt)),
                    false => directory,
                };
                LogPlaces::directories(all.into_iter().map(own).collect())
            }
        }
    }

    /// Whether another attempt has other files.
    pub(crate) fn are_for_each_attempt(&self) -> bool {
        matches!(self, Logs::Directory(_))
    }
}
