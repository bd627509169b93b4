//! The table of `placement`: programs down, launchers and kinds of binding across.

use std::fmt;

/// The runs of a variant, in the order of the rounds; `None`: it failed, or there is no such variant.
type Runs = Vec<Option<f64>>;

/// A program with rankrun and one peer. Times are in microseconds, by default, without binding, and bound to cores.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) title: String,
    pub(super) peer: &'static str,
    pub(super) ours: Vec<Runs>,
    pub(super) theirs: Vec<Runs>,
}

#[derive(Default, Debug)]
pub(super) struct Grid {
    pub(super) lines: Vec<Line>,
}

/// The middle of some numbers, and their quartiles.
struct Spread {
    low: f64,
    middle: f64,
    high: f64,
}

impl Spread {
    fn of(mut numbers: Vec<f64>) -> Option<Spread> {
        numbers.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| numbers.get(numbers.len() * part / 4).copied();
        Some(Spread { low: at(1)?, middle: at(2)?, high: at(3)? })
    }

    /// Of the ratios of two variants, round by round.
    fn of_ratios(ours: &Runs, theirs: &Runs) -> Option<Spread> {
        let pairs = ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?));
        Spread::of(pairs.collect())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.middle, self.low, self.high)
    }
}

fn middle(runs: &Runs) -> Option<f64> {
    Spread::of(runs.iter().copied().flatten().collect()).map(|spread| spread.middle)
}

struct Microseconds(Option<f64>);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => write!(f, "–"),
            Some(time @ 100_000.0..) => write!(f, "{:.0} ms", time / 1e3),
            Some(time @ 1000.0..) => write!(f, "{:.1} ms", time / 1e3),
            Some(time @ 10.0..) => write!(f, "{time:.0} µs"),
            Some(time) => write!(f, "{time:.2} µs"),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} | {} |", self.title, self.peer)?;
        for runs in self.ours.iter().chain(&self.theirs) {
            write!(f, " {} |", Microseconds(middle(runs)))?;
        }
        let measured = self.theirs.iter().filter_map(|runs| Some((middle(runs)?, runs)));
        let best = measured.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, runs)| runs);
        for runs in self.ours.iter().take(1) {
            match best.and_then(|best| Spread::of_ratios(runs, best)) {
                Some(ratio) => write!(f, " {ratio} |")?,
                None => write!(f, " – |")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| program | MPI or launcher | rankrun | `--bind-to none` | `--bind-to core` | its launcher | unbound | core | rankrun to the best of the launcher |"
        )?;
        writeln!(f, "|{}", "---|".repeat(9))?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_pairs_to_the_best_variant_of_the_peer() {
        let runs = |numbers: [f64; 5]| numbers.map(Some).to_vec();
        let line = Line {
            title: "triad".to_owned(),
            peer: "MPICH",
            ours: vec![runs([10.0, 20.0, 30.0, 40.0, 50.0]), vec![None], vec![Some(2500.0)]],
            theirs: vec![runs([90.0; 5]), runs([10.0, 20.0, 20.0, 20.0, 20.0]), vec![None; 5]],
        };
        assert_eq!(
            line.to_string(),
            "| triad | MPICH | 30 µs | – | 2.5 ms | 90 µs | 20 µs | – | 1.50 (1.00 to 2.00) |"
        );
    }
}
