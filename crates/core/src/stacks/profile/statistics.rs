//! What is robust against a few outliers: medians, and distances from them.

/// The share by which a rank must differ.
pub(super) const LEAST: f64 = 0.10;
/// How many times the spread of the others, and what chance explains: of independent looks, and as it is seen from one part of the time
/// to the next.
const SPREADS: f64 = 3.0;
const CHANCES: f64 = 2.5;
const DRIFTS: f64 = 3.0;
/// The part of the time in which the difference must be seen, and how much of it.
const STEADY: f64 = 0.8;
const SEEN: f64 = 0.25;
/// The deviation of a normal distribution, from the median of the absolute ones.
const OF_MEDIAN: f64 = 1.4826;

/// Values of all ranks, sorted.
#[derive(Clone, Debug)]
pub(super) struct Values {
    own: Vec<f64>,
    sorted: Vec<f64>,
}

impl Values {
    pub(super) fn new(own: Vec<f64>) -> Values {
        let mut sorted = own.clone();
        sorted.sort_by(f64::total_cmp);
        Values { own, sorted }
    }

    pub(super) fn of(&self, rank: usize) -> f64 {
        self.own.get(rank).copied().unwrap_or(0.0)
    }

    /// The median of all ranks but this one; `None` if there is no other.
    pub(super) fn of_others(&self, rank: usize) -> Option<f64> {
        let own = self.of(rank);
        let skipped = self.sorted.partition_point(|value| value.total_cmp(&own).is_lt());
        let count = self.sorted.len().checked_sub(1).filter(|count| *count > 0)?;
        let at = |index: usize| self.sorted[if index < skipped { index } else { index + 1 }];
        Some((at((count - 1) / 2) + at(count / 2)) / 2.0)
    }

    /// How far the others are from their median, as a standard deviation.
    fn spread_of_others(&self, rank: usize, median: f64) -> f64 {
        let others = self.own.iter().enumerate().filter(|(other, _)| *other != rank);
        let mut distances: Vec<f64> = others.map(|(_, value)| (value - median).abs()).collect();
        distances.sort_by(f64::total_cmp);
        match distances.len() {
            0 => 0.0,
            count => OF_MEDIAN * (distances[(count - 1) / 2] + distances[count / 2]) / 2.0,
        }
    }
}

/// A share of the looks at each rank: of all of them, and of those in each part of the time.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    pub(super) all: Values,
    /// Of the parts in which ranks were looked at: by rank, `None` where there was no look at it.
    pub(super) parts: Vec<Vec<Option<f64>>>,
}

impl Shares {
    /// How far a rank is from the median of the others, if that is more than chance and than the others' own differences.
    pub(super) fn difference(&self, rank: usize, looks: f64) -> Option<f64> {
        let others = self.all.of_others(rank)?;
        let own = self.all.of(rank);
        let difference = own - others;
        let chance = ((own * (1.0 - own) + others * (1.0 - others)) / looks.max(1.0)).max(0.0).sqrt();
        let least = LEAST.max(CHANCES * chance).max(SPREADS * self.all.spread_of_others(rank, others));
        if difference.abs() < least {
            return None;
        }
        let parts = self.differences_of_parts(rank);
        let is_steady = is_steady(&parts, difference) && difference.abs() >= DRIFTS * error_of_mean(&parts);
        is_steady.then_some(difference)
    }

    /// How far it is from the median of the others in each part of the time.
    fn differences_of_parts(&self, rank: usize) -> Vec<f64> {
        let mut differences = Vec::new();
        for part in &self.parts {
            let Some(own) = part.get(rank).copied().flatten() else { continue };
            let others: Vec<f64> =
                part.iter().enumerate().filter(|(other, _)| *other != rank).filter_map(|(_, value)| *value).collect();
            let count = others.len();
            if count == 0 {
                continue;
            }
            let mut with_own = others;
            with_own.push(own);
            let Some(median) = Values::new(with_own).of_others(count) else { continue };
            differences.push(own - median);
        }
        differences
    }
}

/// Whether a difference is there in most parts of the time, and not only in one.
fn is_steady(parts: &[f64], difference: f64) -> bool {
    let is_there = |here: &&f64| **here * difference.signum() >= SEEN * difference.abs();
    let seen = parts.iter().filter(is_there).count();
    !parts.is_empty() && seen as f64 >= STEADY * parts.len() as f64
}

/// The standard error of the mean.
fn error_of_mean(parts: &[f64]) -> f64 {
    let count = parts.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let mean = parts.iter().sum::<f64>() / count;
    let squares: f64 = parts.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn the_median_of_the_others_leaves_one_out() {
        let values = Values::new(vec![0.1, 0.9, 0.2, 0.3]);
        assert_eq!(values.of_others(1), Some(0.2));
        assert!((values.of_others(0).expect("there are others") - 0.3).abs() < 1e-9);
        assert_eq!(Values::new(vec![0.5]).of_others(0), None);
        let same = Values::new(vec![0.5; 3]);
        assert_eq!(same.of_others(2), Some(0.5));
    }

    #[test]
    fn a_difference_in_one_part_of_the_time_is_none() {
        let parts = |values: [f64; 10]| values.iter().map(|own| vec![Some(*own), Some(0.0), Some(0.0)]).collect();
        let shares = |values: [f64; 10]| Shares {
            all: Values::new(vec![values.iter().sum::<f64>() / 10.0, 0.0, 0.0]),
            parts: parts(values),
        };
        let steady = shares([0.5, 0.4, 0.6, 0.5, 0.5, 0.4, 0.6, 0.5, 0.0, 0.5]);
        assert!(steady.difference(0, 200.0).is_some());
        let once = shares([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(once.difference(0, 200.0), None);
    }
}
