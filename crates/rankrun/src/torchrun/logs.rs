//! Log files, and what of the output is shown: torchrun's directories, masks, prefixes and filters.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::parse::Given;
use super::rendezvous::Meeting;
use super::translate::Writer;
use crate::ask;
use crate::dialect::{For, literal};
use crate::message::Problem;
use rankrun_core::Rank;
use rankrun_core::ranks::RankSet;

/// The bits of a mask, with our options for each: to a file, to a file and the terminal, and the torchrun's file name.
const STREAMS: [(u8, &str, &str, &str); 2] =
    [(1, "--stdout-file", "--tee-stdout", "stdout"), (2, "--stderr-file", "--tee-stderr", "stderr")];

/// Where nothing is kept.
const NOWHERE: &str = "/dev/null";

/// Writes the options for log files and for what is shown.
pub(super) fn write(writer: &mut Writer<'_>, meeting: &Meeting, workers: u32) -> Result<(), Problem> {
    let options = writer.options;
    let mask = |name: &str| options.get(name).map(|given| masks(given, workers)).transpose();
    let redirects = mask("--redirects")?.unwrap_or_default();
    let tees = mask("--tee")?.unwrap_or_default();
    for (name, masks) in [("--redirects", &redirects), ("--tee", &tees)] {
        if let (Some(given), Some((rank, _))) = (options.get(name), masks.range(workers..).next()) {
            writer.warnings.push(format!("{}: {}", given.origin, no_such_rank(*rank, workers)));
        }
    }
    let (redirects, tees) = (of_workers(redirects, workers), of_workers(tees, workers));
    let shown = options.get("--local-ranks-filter").filter(|given| !given.text.is_empty());
    let shown = shown.map(|given| shown_ranks(given, workers)).transpose()?;
    if let Some(shown) = &shown {
        // Where the numbers of nodes may change, those of the first are meant.
        let nodes = meeting.nodes.as_ref().map_or(1, |nodes| nodes.count.parse().unwrap_or(1));
        let ranks = (0..nodes).flat_map(|node| shown.iter().map(move |rank| node * workers + rank));
        writer.push(format!("--only={}", RankSet::of(ranks.map(Rank))));
    }
    let template = match options.get("--log-line-prefix-template").filter(|given| !given.text.is_empty()) {
        Some(given) => Some(given.clone()),
        None => writer
            .around
            .variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
            .map(|text| Given { origin: "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE".to_owned(), text: text.to_owned() }),
    };
    let is_teed = tees.values().any(|mask| *mask != 0);
    if is_teed {
        let role = options.get("--role").map_or(Ok("default"), Given::utf8)?;
        let tag = match &template {
            Some(given) => prefix(given.utf8()?, role),
            None => prefix("[${role_name}${local_rank}]:", role),
        };
        writer.push(format!("--tag={tag}"));
    }
    let given = options.get("--log-dir");
    if given.is_some_and(|given| given.text == NOWHERE) {
        writer.words.extend(["-x".into(), "TORCHELASTIC_ERROR_FILE=".into()]);
        return filters(writer, None, [Vec::new(), Vec::new()]);
    }
    let is_written = redirects.values().chain(tees.values()).any(|mask| *mask != 0);
    let base = match given {
        Some(given) if ask::is_file(Path::new(&given.text)) => {
            let problem = given.problem(format!("\"{}\" is a file", given.text.display()));
            return Err(problem.hint("name a directory, which is made if there is none"));
        }
        Some(given) => literal(&given.text, For::File),
        None if !is_written => return filters(writer, None, [Vec::new(), Vec::new()]),
        None => {
            let temporary = writer.around.variable("TMPDIR").unwrap_or(OsStr::new("/tmp")).to_owned();
            let mut base = literal(&temporary, For::File);
            let shown = temporary.display();
            writer.warnings.push(format!("the log files are below {shown}/torchelastic_*: --log-dir names a place"));
            base.push("/torchelastic_{job}");
            base
        }
    };
    let mut attempt = base;
    attempt.push("/");
    match &meeting.run_id {
        Some(id) => attempt.push(literal(OsStr::new(id), For::File)),
        None => attempt.push("{job}"),
    }
    attempt.push("_{job}/attempt_{attempt}");
    let file = |option: &str, ranks: Option<&str>, name: &str| {
        let mut word = OsString::from(format!("{option}={}", ranks.unwrap_or_default()));
        word.push(&attempt);
        word.push(format!("/{{local_rank}}/{name}"));
        word
    };
    let mut all_teed = [Vec::new(), Vec::new()];
    for ((bit, to_file, to_both, name), all_teed) in STREAMS.into_iter().zip(&mut all_teed) {
        let of = |masks: &Masks, rank: u32| masks.get(&rank).is_some_and(|mask| mask & bit != 0);
        let teed: Vec<u32> = (0..workers).filter(|rank| of(&tees, *rank)).collect();
        let redirected: Vec<u32> = (0..workers).filter(|rank| of(&redirects, *rank) && !of(&tees, *rank)).collect();
        // As torchrun: lines are copied of what it reads for the terminal.
        *all_teed =
            teed.iter().copied().filter(|rank| shown.as_ref().is_none_or(|shown| shown.contains(rank))).collect();
        for (option, ranks) in [(to_file, redirected), (to_both, teed)] {
            if ranks.is_empty() {
                continue;
            }
            let is_all = ranks.len() == workers as usize;
            let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
            let list = format!("{}:", list.join(","));
            writer.push(file(option, (!is_all).then_some(&list), &format!("{name}.log")));
        }
    }
    writer.push(file("--error-file", None, "error.json"));
    filters(writer, Some(&attempt), all_teed)
}

/// The masks of the local ranks that have one.
type Masks = BTreeMap<u32, u8>;

/// What is said of a rank that is not there.
fn no_such_rank(rank: u32, workers: u32) -> String {
    match workers {
        1 => format!("there is no local rank {rank}; there is only local rank 0"),
        _ => format!("there is no local rank {rank}; there are 0 to {}", workers - 1),
    }
}

/// The masks of ranks that are there.
fn of_workers(masks: Masks, workers: u32) -> Masks {
    masks.into_iter().filter(|(rank, _)| *rank < workers).collect()
}

/// `0,2`.
fn shown_ranks(given: &Given, workers: u32) -> Result<BTreeSet<u32>, Problem> {
    let text = given.utf8()?;
    let rank = |text: &str| match text.trim().parse::<u32>() {
        Ok(rank) if rank < workers => Ok(rank),
        Ok(rank) => Err(given.problem(no_such_rank(rank, workers))),
        Err(_) => Err(given.problem(format!("\"{text}\" is not a list of local ranks")).hint("write them as in 0,2")),
    };
    text.split(',').map(rank).collect()
}

/// `3`, or `0:3,1:1`.
fn masks(given: &Given, workers: u32) -> Result<Masks, Problem> {
    let text = given.utf8()?;
    let bits = |text: &str| text.parse::<u8>().ok().filter(|mask| *mask <= 3);
    let wrong = || {
        let problem = given.problem(format!("\"{text}\" is not a mask"));
        problem.hint("write 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or RANK:MASK,... for single ranks")
    };
    if let Some(mask) = bits(text) {
        return Ok((0..workers).map(|rank| (rank, mask)).collect());
    }
    text.split(',')
        .map(|part| {
            let (rank, mask) = part.split_once(':').ok_or_else(wrong)?;
            Ok((rank.parse().map_err(|_| wrong())?, bits(mask).ok_or_else(wrong)?))
        })
        .collect()
}

/// A prefix as our tag. Unknown macros are text, as Python's `safe_substitute` leaves them.
fn prefix(template: &str, role: &str) -> String {
    let escape = |text: &str| text.replace('{', "{{").replace('}', "}}");
    let macros = [
        ("role_name", escape(role)),
        ("local_rank", "{local_rank}".to_owned()),
        ("rank", "{rank}".to_owned()),
        ("hostname", "{node}".to_owned()),
    ];
    let (mut tag, mut rest) = (String::new(), template);
    while let Some(at) = rest.find('$') {
        tag.push_str(&escape(&rest[..at]));
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            tag.push('$');
            rest = after;
            continue;
        }
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let found = macros.iter().find_map(|(name, value)| {
            let braced = after.strip_prefix('{').and_then(|text| text.strip_prefix(name)?.strip_prefix('}'));
            let bare = after.strip_prefix(name).filter(|text| !text.starts_with(is_letter));
            Some((value, braced.or(bare)?))
        });
        match found {
            Some((value, after)) => {
                tag.push_str(value);
                rest = after;
            }
            None => {
                tag.push('$');
                rest = after;
            }
        }
    }
    tag + &escape(rest)
}

/// Lines of tee'd streams with certain texts, in a file of their own. The file is made in any case.
fn filters(writer: &mut Writer<'_>, attempt: Option<&OsStr>, teed: [Vec<u32>; 2]) -> Result<(), Problem> {
    let rows = [
        ("--duplicate-stdout-filters", "--match-stdout", "stdout"),
        ("--duplicate-stderr-filters", "--match-stderr", "stderr"),
    ];
    for ((option, ours, stream), ranks) in rows.into_iter().zip(teed) {
        let Some(given) = writer.options.get(option) else { continue };
        let texts = given.utf8()?.replace(",,", "\0");
        let Some(attempt) = attempt.filter(|_| !ranks.is_empty()) else {
            writer.warnings.push(format!("{}: no lines are copied, since no {stream} is tee'd (--tee)", given.origin));
            continue;
        };
        let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
        for text in texts.split(',') {
            let mut word = OsString::from(format!("{ours}={}:", ranks.join(",")));
            word.push(attempt);
            word.push(format!("/filtered_{stream}.log::{}", text.replace('\0', ",")));
            writer.words.push(word);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_become_tags() {
        for (template, tag) in [
            ("[${role_name}${local_rank}]:", "[default{local_rank}]:"),
            ("$rank: ", "{rank}: "),
            ("${hostname}:$$ {x} $ranks ${other}", "{node}:$ {{x}} $ranks ${{other}}"),
        ] {
            assert_eq!(prefix(template, "default"), tag);
        }
        assert_eq!(prefix("$role_name", "a{rank}"), "a{{rank}}");
    }

    #[test]
    fn masks_are_for_all_or_for_single_ranks() {
        let masks = |text: &str| masks(&Given { origin: "-r".to_owned(), text: text.into() }, 2);
        assert_eq!(masks("3").unwrap(), Masks::from([(0, 3), (1, 3)]));
        assert_eq!(masks("1:2,10:1").unwrap(), Masks::from([(1, 2), (10, 1)]));
        for bad in ["4", "", "0:4", "a", "1:", "0:1;1:2"] {
            assert!(masks(bad).is_err(), "{bad}");
        }
    }
}
