//! The values of options that name files for some ranks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_core::{RankSet, Template};

use crate::message::Problem;
use crate::settings::{Given, template};

/// Files for a stream of some ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Files {
    pub(crate) ranks: RankSet,
    pub(crate) name: Template,
}

/// Lines of some ranks that are copied to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MatchSettings {
    pub(crate) files: Files,
    pub(crate) texts: Vec<OsString>,
}

/// `[RANKS:]TEXT`: the ranks, and the text.
pub(crate) fn of_ranks(text: &OsStr) -> (RankSet, &OsStr) {
    let bytes = text.as_bytes();
    let ranks = bytes.iter().position(|byte| *byte == b':').and_then(|colon| {
        let ranks: RankSet = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
        Some((ranks, OsStr::from_bytes(&bytes[colon + 1..])))
    });
    ranks.unwrap_or((RankSet::All, text))
}

/// The value of an option that names files.
pub(crate) fn files(given: &Given) -> Result<Files, Problem> {
    let (ranks, name) = of_ranks(&given.text);
    match name.is_empty() {
        true => Err(given.problem("the name is empty")),
        false => Ok(Files { ranks, name: template(given, name)? }),
    }
}

/// `[RANKS:]FILE::TEXT`, each with the same file.
pub(crate) fn matches(all: Vec<Given>) -> Result<Option<MatchSettings>, Problem> {
    let mut matches: Option<MatchSettings> = None;
    for given in all {
        let bytes = given.text.as_bytes();
        let wrong = || given.problem(format!("\"{}\" is not [RANKS:]FILE::TEXT", given.text.display()));
        let at = bytes.windows(2).position(|pair| pair == b"::").filter(|at| *at > 0).ok_or_else(wrong)?;
        let (ranks, name) = of_ranks(OsStr::from_bytes(&bytes[..at]));
        let files = Files { ranks, name: template(&given, name)? };
        let text = OsStr::from_bytes(&bytes[at + 2..]).to_owned();
        match &mut matches {
            None => matches = Some(MatchSettings { files, texts: vec![text] }),
            Some(known) if known.files == files => known.texts.push(text),
            Some(_) => {
                let problem = given.problem("there is one file for the lines of a stream, and this is another one");
                return Err(problem.hint("name the same ranks and the same file each time"));
            }
        }
    }
    Ok(matches)
}
