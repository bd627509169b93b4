//! `rankrun profile`: what may be asked, and the answers.

use std::time::Duration;

use rankrun_core::RankSet;
use rankrun_core::control::Answer;
use rankrun_core::job::ClientId;
use rankrun_core::stacks::profile::{MAX_PROFILE, MAX_RATE, Profile, ProfileSpec};

use super::clients::Control;

/// What is asked for, or what is wrong with it.
pub(super) fn request(
    ranks: Option<&str>,
    seconds: f64,
    rate: f64,
    native: bool,
) -> Result<(Option<RankSet>, ProfileSpec), String> {
    let ranks = ranks.map(str::parse::<RankSet>).transpose().map_err(|error| format!("the ranks: {error}"))?;
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero() && *time <= MAX_PROFILE);
    let time = time.ok_or_else(|| format!("the time: {seconds} s is not within 0 and {} s", MAX_PROFILE.as_secs()))?;
    let is_rate = rate.is_finite() && (0.01..=MAX_RATE).contains(&rate);
    match is_rate {
        true => Ok((ranks, ProfileSpec { time, interval: Duration::from_secs_f64(1.0 / rate), native })),
        false => Err(format!("the rate: {rate} is not within 0.01 and {MAX_RATE}")),
    }
}

impl Control {
    /// `rankrun profile`: what was sampled.
    pub(crate) fn answer_profile(&mut self, now: Duration, client: ClientId, profile: Box<Profile>) {
        self.answer(now, client, &Answer::Profile(profile));
    }

    /// The same, where there is nothing to sample.
    pub(crate) fn refuse_profile(&mut self, now: Duration, client: ClientId, error: String) {
        self.answer(now, client, &Answer::Refused { error, hint: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_that_make_no_sense_are_refused() {
        let (ranks, spec) = request(Some("0,2"), 1.5, 20.0, false).expect("it makes sense");
        assert_eq!((spec.time, spec.interval), (Duration::from_millis(1500), Duration::from_millis(50)));
        assert!(ranks.is_some());
        for (seconds, rate) in [(0.0, 20.0), (-1.0, 20.0), (f64::NAN, 20.0), (1e9, 20.0), (1.0, 0.0), (1.0, 1e9)] {
            assert!(request(None, seconds, rate, false).is_err(), "{seconds} {rate}");
        }
        assert!(request(Some("x"), 1.0, 20.0, false).is_err());
    }
}
