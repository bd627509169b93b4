//! Lines that are copied to a file of their own.

use std::os::unix::ffi::OsStrExt;

use rankrun_core::rankmap::Place;
use rankrun_core::{JobSpec, Stream};
use rankrun_front::MatchedLines;
use rankrun_output::Names;

use crate::message::Problem;
use crate::plan::tag;
use crate::settings::Settings;

/// The lines of a stream that are copied to a file, with their tags.
pub(crate) fn matches(settings: &Settings, spec: &JobSpec, stream: Stream) -> Result<Option<MatchedLines>, Problem> {
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
