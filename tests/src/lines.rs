//! The lines that the helper `lines` writes, and a check that all of them arrived whole and in order.

use std::collections::BTreeMap;

/// What a line is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    Text,
    /// Bytes that are no UTF-8.
    Binary,
    Nul,
}

/// Line `number` of a rank: `length` bytes, the newline included. Short lengths give just the numbers.
pub fn line(rank: usize, number: usize, length: usize, fill: Fill) -> Vec<u8> {
    let mut line = format!("{rank}:{number}:").into_bytes();
    while line.len() + 1 < length {
        line.push(match fill {
            Fill::Text => b'a' + ((rank * 7 + number + line.len()) % 26) as u8,
            Fill::Binary => 0x80 + ((rank + number + line.len()) % 0x80) as u8,
            Fill::Nul => 0,
        });
    }
    line.push(b'\n');
    line
}

/// What [`check`] found wrong.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Lines that no rank wrote: torn, mixed or altered.
    pub torn: usize,
    /// Lines that came before an earlier one of their rank.
    pub disordered: usize,
    /// Lines that did not come.
    pub missing: usize,
}

/// What ends a row that shows a line before it is whole.
const MARK: &[u8] = " […]\n".as_bytes();

/// Checks the untagged output of `ranks` ranks that each ran `lines COUNT LENGTH`.
///
/// A rank that gets no CPU for 100 ms in the middle of a line is quiet, so that the row may be shown with a mark, and the line again
/// when it is whole (docs/output.md). Such a row is no fault if it is the beginning of what a rank writes next.
pub fn check(output: &[u8], ranks: usize, count: usize, length: usize, fill: Fill) -> Faults {
    let mut faults = Faults::default();
    let mut next: BTreeMap<usize, usize> = BTreeMap::new();
    let mut whole = 0;
    for piece in output.split_inclusive(|byte| *byte == b'\n') {
        if let Some(early) = piece.strip_suffix(MARK) {
            let comes = |rank| line(rank, next.get(&rank).copied().unwrap_or(0), length, fill).starts_with(early);
            faults.torn += usize::from(!(0..ranks).any(comes));
            continue;
        }
        let mut fields = piece.splitn(3, |byte| *byte == b':');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<usize>().ok();
        let (Some(rank), Some(place)) = (number(), number()) else {
            faults.torn += 1;
            continue;
        };
        if rank >= ranks || place >= count || piece != line(rank, place, length, fill) {
            faults.torn += 1;
            continue;
        }
        whole += 1;
        let expected = next.entry(rank).or_default();
        if place != *expected {
            faults.disordered += 1;
        }
        *expected = place + 1;
    }
    faults.missing = (ranks * count).saturating_sub(whole);
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_missing_and_disordered_lines_are_found() {
        let [a, b, c] = [0, 1, 2].map(|number| line(0, number, 20, Fill::Text));
        let whole = [a.clone(), b.clone(), c.clone()].concat();
        assert_eq!(check(&whole, 1, 3, 20, Fill::Text), Faults::default());
        let torn = [&a[..10], &b[..], &a[10..], &c[..]].concat();
        assert_eq!(check(&torn, 1, 3, 20, Fill::Text).torn, 2);
        let early = [&a[..10], MARK, &a, &b[..1], MARK, &b, &c].concat();
        assert_eq!(check(&early, 1, 3, 20, Fill::Text), Faults::default());
        let wrong = [&b[..10], MARK, &a, &b, &c].concat();
        assert_eq!(check(&wrong, 1, 3, 20, Fill::Text).torn, 1);
        let disordered = [a, c, b].concat();
        assert_eq!(check(&disordered, 1, 3, 20, Fill::Text).disordered, 2);
        assert_eq!(check(b"", 1, 3, 20, Fill::Text).missing, 3);
    }
}
