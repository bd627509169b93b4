//! Durations and sizes as people write them: `500ms`, `1m30s`, `64K`, `1GiB`.

use std::time::Duration;

/// Why a text is no duration or no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnitError {
    #[error("\"{text}\" is not a duration")]
    Duration { text: String },
    #[error("\"{text}\" is not a size")]
    Size { text: String },
    /// More than [`LONGEST`].
    #[error("\"{text}\" is too long")]
    TooLong { text: String },
}

/// The longest duration: what is longer counts as this. Several of them, and the time since the start of a job, can be
/// added without an overflow.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reads a duration: numbers with units (`h`, `m` or `min`, `s`, `ms`), the largest first; a number alone counts seconds.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    match parse_exactly(text) {
        Err(UnitError::TooLong { .. }) => Ok(LONGEST),
        other => other,
    }
}

/// The same for a program's words: one that asks for more than [`LONGEST`] has miscalculated.
///
/// # Errors
///
/// It is no duration, or too long.
pub fn parse_exactly(text: &str) -> Result<Duration, UnitError> {
    match read_duration(text) {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(UnitError::TooLong { text: text.to_owned() }),
        None => Err(UnitError::Duration { text: text.to_owned() }),
    }
}

fn read_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    if let Some(seconds) = decimal(rest) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut total = Duration::ZERO;
    let mut smallest = f64::INFINITY;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let unit = match &tail[..end] {
            "d" => 86400.0,
            "h" => 3600.0,
            "m" | "min" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        if unit >= smallest {
            return None;
        }
        smallest = unit;
        total = total.checked_add(Duration::try_from_secs_f64(decimal(number)? * unit).ok()?)?;
        rest = &tail[end..];
    }
    Some(total)
}

/// A plain decimal number; neither a sign nor an exponent.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Writes a duration as [`parse_duration`] reads it, in milliseconds at the finest.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.subsec_millis();
    let seconds = duration.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (millis.into(), "ms")];
    let text: String =
        parts.iter().filter(|(number, _)| *number > 0).map(|(number, unit)| format!("{number}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Reads a size in bytes: a number with an optional unit, `K`, `M`, `G`, `T`, each also as `KB` or `KiB`, counted by 1024.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    read_size(text.trim()).ok_or_else(|| UnitError::Size { text: text.to_owned() })
}

fn read_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = decimal(number)? * (1u64 << shift) as f64;
    (bytes < 9e18).then_some(bytes as u64)
}

/// Writes a size with the largest exact unit: `64 KiB`, `1 GiB`, `1000 bytes`.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("5", 5000),
            ("5s", 5000),
            ("0.5", 500),
            ("1.5s", 1500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1h1s", 3_601_000),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in
            ["", "s", "-1", "5x", "1s1m", "1s1s", "1e3", "inf", "1..2s", "5 s x", "1m30", "99999999999999999999h"]
        {
            assert!(parse_duration(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn durations_beyond_all_measure_can_still_be_added() {
        for text in ["18446744073709549000", "9999999h", "200000d"] {
            assert_eq!(parse_duration(text), Ok(LONGEST), "{text}");
            assert_eq!(parse_exactly(text), Err(UnitError::TooLong { text: text.to_owned() }));
        }
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for text in ["500ms", "5s", "1m30s", "2h", "0s", "1h1s250ms"] {
            assert_eq!(parse_duration(text).map(format_duration), Ok(text.to_owned()));
        }
    }

    #[test]
    fn sizes_count_by_1024() {
        for (text, bytes) in
            [("64K", 65536), ("1GiB", 1 << 30), ("0", 0), ("1.5M", 3 << 19), ("10 MB", 10 << 20), ("7", 7)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1X", "99999999999999999999", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text:?} was taken");
        }
        assert_eq!(format_size(1 << 30), "1 GiB");
        assert_eq!(format_size(1000), "1000 bytes");
    }
}
