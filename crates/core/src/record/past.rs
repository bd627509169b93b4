//! The attempts before the present one, as far as they are kept: a job without a limit of restarts would fill the memory.

use crate::report::AttemptReport;

/// The first attempts are kept, since the first failure may have led to the others.
const FIRST: usize = 50;
/// Attempts that are kept: besides the first, the last ones. A report has at most 1 MiB.
const MOST: usize = 300;

/// The attempts that have failed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PastAttempts {
    kept: Vec<AttemptReport>,
    left_out: u64,
}

impl PastAttempts {
    /// An attempt has failed, and another follows.
    pub fn push(&mut self, past: AttemptReport) {
        if self.kept.len() == MOST {
            self.kept.remove(FIRST);
            self.left_out += 1;
        }
        self.kept.push(past);
    }

    /// Those that are kept, in order.
    pub fn kept(&self) -> &[AttemptReport] {
        &self.kept
    }

    /// How many are not kept.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    #[test]
    fn of_attempts_without_end_the_first_and_the_last_are_kept() {
        let mut past = PastAttempts::default();
        for attempt in 0..5_000 {
            past.push(AttemptReport {
                attempt,
                summary: String::new(),
                exit_code: ExitCode(1),
                class: None,
                rank: None,
                began: 0.0,
                seconds: 0.0,
                report: None,
            });
        }
        let kept: Vec<u32> = past.kept().iter().map(|past| past.attempt).collect();
        assert_eq!(kept, (0..50).chain(4_750..5_000).collect::<Vec<_>>());
        assert_eq!(past.left_out(), 4_700);
    }
}
