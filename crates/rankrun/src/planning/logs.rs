//! Where the log files are, and the lines that are copied to a file of their own.

use std::os::unix::ffi::OsStrExt;

use rankrun_core::rankmap::Place;
use rankrun_core::{JobSpec, Stream};
use rankrun_front::{Logs, MatchedLines, Places, StreamFiles};
use rankrun_output::Names;

use crate::files::Files;
use crate::message::Problem;
use crate::plan::tag;
use crate::settings::Settings;

/// The lines of a stream that are copied to a file, with their tags.
fn matches(settings: &Settings, spec: &JobSpec, stream: Stream) -> Result<Option<MatchedLines>, Problem> {
    let Some(wanted) = &settings.matches[stream.index()] else { return Ok(None) };
    let tag = tag(settings)?;
    let prefix = |place: &Place| {
        let node = spec.map.node_name(place.node).to_owned();
        let names = Names { local_rank: place.local_rank, node, app: place.app };
        tag.as_ref().map_or_else(Vec::new, |tag| tag.of_rank(place.rank, &names, stream))
    };
    Ok(Some(MatchedLines {
        file: wanted.files.name.clone(),
        ranks: wanted.files.ranks.clone(),
        texts: wanted.texts.iter().map(|text| text.as_bytes().to_vec()).collect(),
        prefixes: spec.map.places().iter().map(prefix).collect(),
    }))
}

/// Where log files go: a directory, or one for each rank; or the files that the streams go to instead of the console.
pub(crate) fn logs(settings: &Settings, spec: &JobSpec) -> Result<Option<Logs>, Problem> {
    let of_stream = |index: usize| {
        let kinds = [&settings.files[index], &settings.tees[index]];
        let files = |files: &Files| StreamFiles { ranks: files.ranks.clone(), name: files.name.clone() };
        kinds.into_iter().flatten().map(files).collect()
    };
    match &settings.log_dir {
        Some(_) if settings.has_files() => {
            let problem = Problem::usage("--log-dir cannot be used with --stdout-file, --tee-stdout and the like");
            Err(problem.hint("--log-dir alone writes both streams to files, and --output none hides them"))
        }
        directory => {
            let places = match directory {
                Some(directory) => Places::Directory(directory.clone()),
                None if settings.has_files() || settings.has_matches() || settings.error_file.is_some() => {
                    Places::Files([of_stream(0), of_stream(1)])
                }
                None => return Ok(None),
            };
            let matches = [matches(settings, spec, Stream::Stdout)?, matches(settings, spec, Stream::Stderr)?];
            Ok(Some(Logs { places, matches }))
        }
    }
}
