//! Numbers as they stand in columns: at most six characters.

/// Bytes, in units of 1,024: `0`, `812`, `1.5K`, `312M`, `12.3G`.
pub(crate) fn size(bytes: f64) -> String {
    if bytes < 1000.0 {
        return format!("{bytes:.0}");
    }
    let mut value = bytes;
    for unit in ['K', 'M', 'G', 'T', 'P'] {
        value /= 1024.0;
        if value < 9.95 {
            return format!("{value:.1}{unit}");
        }
        if value < 999.5 {
            return format!("{value:.0}{unit}");
        }
    }
    format!("{:.0}E", value / 1024.0)
}

/// A part of one CPU, in percent.
pub(crate) fn percent(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A time: `0.4s`, `45s`, `3m20s`, `2h05m`, `4d03h`.
pub(crate) fn time(seconds: f64) -> String {
    let whole = seconds.max(0.0);
    match whole as u64 {
        0..10 => format!("{whole:.1}s"),
        10..60 => format!("{whole:.0}s"),
        60..3600 => format!("{}m{:02}s", whole as u64 / 60, whole as u64 % 60),
        3600..86_400 => format!("{}h{:02}m", whole as u64 / 3600, whole as u64 / 60 % 60),
        _ => format!("{}d{:02}h", whole as u64 / 86_400, whole as u64 / 3600 % 24),
    }
}

/// A number of things, with a prefix in units of 1,000: `45`, `1.2k`.
pub(super) fn count(value: f64) -> String {
    match value {
        _ if value < 10.0 && value.fract().abs() > 1e-9 => format!("{value:.2}"),
        _ if value < 10_000.0 => format!("{value:.0}"),
        _ if value < 1e6 => format!("{:.0}k", value / 1e3),
        _ if value < 1e9 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}G", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_fit_their_column() {
        let sizes = [0.0, 999.0, 1000.0, 1536.0, 10_189.0, 1_023_000.0, 1.3e9, 5e14, 1e19].map(size);
        assert_eq!(sizes, ["0", "999", "1.0K", "1.5K", "10K", "999K", "1.2G", "455T", "9E"]);
        assert_eq!([0.0, 99.9, 99.96, 12_800.0].map(percent), ["0.0", "99.9", "100", "12800"]);
        assert_eq!(
            [0.04, 9.9, 59.4, 200.0, 7500.0, 360_000.0].map(time),
            ["0.0s", "9.9s", "59s", "3m20s", "2h05m", "4d04h"]
        );
        assert_eq!([4.43, 5.0, 45.0, 12_345.0, 4.56e6, 3e9].map(count), ["4.43", "5", "45", "12k", "4.6M", "3.0G"]);
    }
}
