//! Where the log files of the ranks are: templates, since each attempt may have files of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rankrun_core::rankmap::Place;
use rankrun_core::template::Field;
use rankrun_core::{JobSpec, Rank, RankSet, Stream, Template};
use rankrun_output::{LogPlaces, Matches};
use serde::{Deserialize, Serialize};

/// The files of some ranks for one stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StreamFiles {
    pub ranks: RankSet,
    pub name: Template,
}

/// The lines of a stream that are copied to a file of their own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MatchedLines {
    pub file: Template,
    pub ranks: RankSet,
    /// A line with one of these is copied.
    pub texts: Vec<Vec<u8>>,
    /// What is put in front of the lines of each rank.
    pub prefixes: Vec<Vec<u8>>,
}

/// Where the log files are. Relative places are below the job's working directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Logs {
    pub places: Places,
    /// By stream.
    pub matches: [Option<MatchedLines>; 2],
}

/// The places of the log files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Places {
    /// A directory for all ranks, or by its fields one for each. Where a job may be started again, each attempt has one of
    /// its own in it, `attempt-0` for the first, unless the template names the attempt.
    Directory(Template),
    /// For stdout and stderr the files that they go to beside the console, or instead of it: of those that have a rank, the
    /// first counts. Attempts follow each other in a file whose name does not have the attempt.
    Files([Vec<StreamFiles>; 2]),
}

impl Logs {
    /// The places in an attempt.
    pub fn places(&self, spec: &JobSpec) -> LogPlaces {
        let of_rank = |place: &Template, rank: Rank| Path::new(&spec.cwd).join(spec.expand(place, rank));
        let of_all =
            |place: &Template| -> Vec<PathBuf> { spec.map.places().iter().map(|at| of_rank(place, at.rank)).collect() };
        let differs = |field| matches!(field, Field::Rank | Field::LocalRank | Field::Node);
        // What an earlier attempt has written in a file whose name it shares is kept. Any other is from an earlier job.
        let mut kept = BTreeSet::new();
        let mut keep = |place: &Template, file: PathBuf| {
            if spec.attempt.0 > 0 && !has_attempt(place) {
                kept.insert(file.clone());
            }
            file
        };
        let places = match &self.places {
            Places::Files(streams) => {
                let [stdout, stderr]: [Vec<Option<PathBuf>>; 2] = streams.each_ref().map(|all| {
                    let file = |at: &Place| {
                        let own = all.iter().find(|files| files.ranks.contains(at.rank));
                        own.map(|files| keep(&files.name, of_rank(&files.name, at.rank)))
                    };
                    spec.map.places().iter().map(file).collect()
                });
                let is_of_all = Stream::ALL.map(|stream| {
                    let files = [&stdout, &stderr][stream.index()];
                    let is_same = files.iter().all(|file| file.is_some() && *file == files[0]);
                    // That of one rank may be its own.
                    let is_for_any = |own: &StreamFiles| own.ranks == RankSet::All && !own.name.fields().any(differs);
                    is_same && (files.len() > 1 || streams[stream.index()].iter().any(is_for_any))
                });
                LogPlaces::files(stdout, stderr).of_all(is_of_all)
            }
            Places::Directory(place) => {
                let all = match place.fields().any(differs) {
                    true => of_all(place),
                    false => vec![of_rank(place, Rank(0))],
                };
                let is_divided = (spec.restart.is_on() || spec.attempt.0 > 0) && !has_attempt(place);
                let own = |directory: PathBuf| match is_divided {
                    true => directory.join(format!("attempt-{}", spec.attempt)),
                    false => directory,
                };
                LogPlaces::directories(all.into_iter().map(own).collect())
            }
        };
        // The ranks themselves write their error files.
        let files = spec.error_file.iter().flat_map(of_all);
        let parents: BTreeSet<PathBuf> = files.filter_map(|file| file.parent().map(Path::to_owned)).collect();
        let matches = self.matches.each_ref().map(|lines| {
            lines.as_ref().map(|lines| Matches {
                file: keep(&lines.file, of_rank(&lines.file, Rank(0))),
                ranks: lines.ranks.clone(),
                texts: lines.texts.clone(),
                prefixes: lines.prefixes.clone(),
            })
        });
        places.with_directories(parents.into_iter().collect()).with_matches(matches).keeping(kept)
    }

    /// Whether another attempt has other files.
    pub(crate) fn are_for_each_attempt(&self, spec: &JobSpec) -> bool {
        match &self.places {
            Places::Directory(_) => true,
            Places::Files(streams) => {
                let files = streams.iter().flatten().map(|files| &files.name);
                let all = files.chain(&spec.error_file).chain(self.matches.iter().flatten().map(|lines| &lines.file));
                all.into_iter().any(has_attempt)
            }
        }
    }
}

fn has_attempt(place: &Template) -> bool {
    place.fields().any(|field| field == Field::Attempt)
}
