//! Dates.

/// Year, month and day of the Gregorian calendar for a number of days since 1970-01-01.
///
/// Days are counted from 0000-03-01, so that the leap day is the last of its year and the months, from March on, follow
/// the line 153/5 days a month; a cycle of 400 years has 146,097 days.
pub fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let cycle = days / 146_097;
    let of_cycle = days % 146_097;
    let year_of_cycle = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let (month, carry) = if from_march < 10 { (from_march + 3, 0) } else { (from_march - 9, 1) };
    (cycle * 400 + year_of_cycle + carry, month, day)
}
