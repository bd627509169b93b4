//! Limits the notes of agents to what a person can read: a rank that sends garbage to its socket causes thousands.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time over which notes are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Notes of one rank that are printed in that time.
const OF_ONE: u32 = 3;
/// Notes that are printed in that time in all.
const OF_ALL: u32 = 20;
/// Ranks whose notes are counted one by one. Those of others are counted together.
const COUNTED: usize = 16;

/// What was printed lately, and what was not.
#[derive(Debug, Default)]
pub struct Notes {
    /// When the present time began; `None` if nothing was noted since the last.
    since: Option<Duration>,
    printed: u32,
    of: BTreeMap<String, Count>,
    last: String,
}

#[derive(Debug, Default)]
struct Count {
    printed: u32,
    withheld: u64,
}

impl Notes {
    /// Whether a note is to be printed; else it is counted.
    pub fn take(&mut self, now: Duration, text: &str) -> bool {
        self.since.get_or_insert(now);
        let who = subject(text);
        let is_known = self.of.contains_key(who) || self.of.len() < COUNTED;
        let is_repeated = self.last == text;
        let count = self.of.entry(if is_known { who } else { OTHERS }.to_owned()).or_default();
        if count.printed >= OF_ONE || self.printed >= OF_ALL || is_repeated {
            count.withheld += 1;
            return false;
        }
        count.printed += 1;
        self.printed += 1;
        text.clone_into(&mut self.last);
        true
    }

    /// When [`Notes::withheld`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.since.map(|since| since + WINDOW)
    }

    /// How many notes were not printed. With `now`: only if the period is over.
    pub fn withheld(&mut self, now: Option<Duration>) -> Vec<String> {
        if self.deadline().is_none_or(|deadline| now.is_some_and(|now| now < deadline)) {
            return Vec::new();
        }
        self.since = None;
        self.printed = 0;
        self.last.clear();
        let counts = std::mem::take(&mut self.of).into_iter().filter(|(_, count)| count.withheld > 0);
        counts
            .map(|(who, count)| {
                let (noun, verb) = if count.withheld == 1 { ("note", "was") } else { ("notes", "were") };
                format!("{} more {noun} of {who} {verb} not printed", count.withheld)
            })
            .collect()
    }
}

/// All ranks that are not counted one by one.
const OTHERS: &str = "others";

/// The subject of a note: the rank, if it begins with `rank 3`, otherwise the node.
fn subject(text: &str) -> &str {
    let digits = text.strip_prefix("rank ").map(|rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    match digits {
        Some(digits @ 1..) => &text[.."rank ".len() + digits],
        Some(_) | None => "the node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_rank_that_causes_thousands_of_notes_fills_three_lines_and_one_a_second() {
        let mut notes = Notes::default();
        let mut printed = Vec::new();
        for number in 0..6_800u64 {
            let now = ms(number * 3_000 / 6_800);
            printed.extend(notes.withheld(Some(now)));
            let text = format!("rank 3, pid {number}: worker socket: no JSON");
            printed.extend(notes.take(now, &text).then_some(text));
        }
        printed.extend(notes.withheld(None));
        assert_eq!(printed.len(), 12, "{printed:?}");
        let withheld = printed.iter().filter_map(|line| line.split_once(" more notes of rank 3 were not printed"));
        let withheld: u64 = withheld.map(|(count, _)| count.parse::<u64>().expect("a number")).sum();
        assert_eq!(withheld, 6_800 - 9);
        assert_eq!((notes.deadline(), notes.withheld(None)), (None, Vec::new()));
    }

    #[test]
    fn ranks_do_not_crowd_out_each_other_and_many_are_bounded_together() {
        let mut notes = Notes::default();
        assert!(
            (0..10).map(|note| notes.take(ms(0), &format!("rank 1: {note}"))).filter(|printed| *printed).count() == 3
        );
        assert!(notes.take(ms(0), "rank 2: something else"));
        assert!(!notes.take(ms(0), "rank 2: something else"), "the same again");
        assert!(notes.take(ms(0), "cannot open /dev/null"));
        let more = (3..1_000).filter(|rank| notes.take(ms(1), &format!("rank {rank}: x"))).count();
        assert_eq!(more, 15, "20 in all");
        let lines = notes.withheld(Some(ms(1_000)));
        assert!(lines.len() <= COUNTED + 1, "{lines:?}");
        assert!(lines.contains(&"7 more notes of rank 1 were not printed".to_owned()), "{lines:?}");
        assert!(lines.contains(&"1 more note of rank 2 was not printed".to_owned()), "{lines:?}");
    }
}
