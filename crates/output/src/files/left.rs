//! Where somebody who has looked at a transcript has left it, for the next one.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::unfinished::Unfinished;

/// The name of the file.
pub(crate) const LEFT: &str = "left";
pub(crate) const LEFT_PART: &str = "left.part";

/// Where somebody who has looked at a transcript has left it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// The next entry.
    pub at: u64,
    /// What was ready to be shown, by stream, and was not taken.
    pub ready: [Vec<u8>; 2],
    /// What was read before, and not shown.
    pub unfinished: Vec<Unfinished>,
}

impl Left {
    /// Where the last one has left, if one has.
    pub fn read(directory: &Path) -> Option<Left> {
        postcard::from_bytes(&std::fs::read(directory.join(LEFT)).ok()?).ok()
    }

    /// For the next one.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        let part = directory.join(LEFT_PART);
        let bytes = postcard::to_allocvec(self).map_err(io::Error::other)?;
        crate::open(File::options().create(true).write(true).truncate(true), &part)?.write_all(&bytes)?;
        std::fs::rename(part, directory.join(LEFT))
    }
}
