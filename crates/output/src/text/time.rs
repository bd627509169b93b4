//! Wall time as people read it.

use std::time::Duration;

use rankrun_core::calendar::civil_from_days;

/// Appends `2026-03-01T12:34:56.789Z`, which is 24 bytes long: UTC, to the millisecond.
/// `wall` is the time since the Unix epoch.
pub(crate) fn write_utc(wall: Duration, out: &mut Vec<u8>) {
    let seconds = wall.as_secs();
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let of_day = seconds % 86_400;
    let fields = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (of_day / 3600, 2, b':'),
        (of_day / 60 % 60, 2, b':'),
        (of_day % 60, 2, b'.'),
        (u64::from(wall.subsec_millis()), 3, b'Z'),
    ];
    for (value, width, mark) in fields {
        digits(value, width, out);
        out.push(mark);
    }
}

/// Appends a number with leading zeros. Years beyond 9999 take the digits they need.
fn digits(value: u64, width: usize, out: &mut Vec<u8>) {
    let text = value.to_string();
    out.extend(std::iter::repeat_n(b'0', width.saturating_sub(text.len())));
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(seconds: u64, millis: u32) -> String {
        let mut out = Vec::new();
        write_utc(Duration::new(seconds, millis * 1_000_000), &mut out);
        String::from_utf8(out).expect("digits and marks")
    }

    #[test]
    fn times_read_as_date_prints_them() {
        assert_eq!(utc(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(utc(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(utc(1_709_251_200, 0), "2024-03-01T00:00:00.000Z");
        assert_eq!(utc(4_107_542_399, 120), "2100-02-28T23:59:59.120Z");
        assert_eq!(utc(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(civil_from_days(days), (year, month, day));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 if leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
