//! Which line an instruction is of: the line tables of code objects.

use super::layout::LineTable;

/// The line of the instruction at an offset in bytes; `None` if it has none, or the table does not reach it.
pub(crate) fn line_of(kind: LineTable, table: &[u8], first: i64, offset: u64) -> Option<u32> {
    let line = match kind {
        LineTable::Lnotab => in_lnotab(table, first, offset),
        LineTable::Deltas => in_deltas(table, first, offset)?,
        LineTable::Locations => in_locations(table, first, offset)?,
    };
    u32::try_from(line).ok().filter(|line| *line > 0)
}

/// Objects/lnotab_notes.txt of 3.9: pairs of steps, the second with a sign.
fn in_lnotab(table: &[u8], first: i64, offset: u64) -> i64 {
    let (mut line, mut at) = (first, 0);
    for pair in table.chunks_exact(2) {
        at += u64::from(pair[0]);
        if at > offset {
            break;
        }
        line += i64::from(pair[1] as i8);
    }
    line
}

/// Objects/lnotab_notes.txt of 3.10: the length of a range, and its line's distance from the one before.
fn in_deltas(table: &[u8], first: i64, offset: u64) -> Option<i64> {
    const NO_LINE: i8 = -128;
    let (mut line, mut end) = (first, 0);
    for pair in table.chunks_exact(2) {
        let step = pair[1] as i8;
        let has_line = step != NO_LINE;
        line += if has_line { i64::from(step) } else { 0 };
        end += u64::from(pair[0]);
        if offset < end {
            return has_line.then_some(line);
        }
    }
    None
}

/// Objects/locations.md of 3.11: entries of a code, a length, and numbers of six bits a byte.
fn in_locations(table: &[u8], first: i64, offset: u64) -> Option<i64> {
    let (mut line, mut end, mut at) = (first, 0, 0);
    while let Some(&head) = table.get(at) {
        at += 1;
        let code = head >> 3 & 15;
        // Instructions are two bytes long.
        end += 2 * (u64::from(head & 7) + 1);
        let mut has_line = true;
        match code {
            15 => has_line = false,
            13 => line += signed(table, &mut at),
            14 => {
                line += signed(table, &mut at);
                unsigned(table, &mut at);
                unsigned(table, &mut at);
                unsigned(table, &mut at);
            }
            10..=12 => {
                line += i64::from(code - 10);
                at += 2;
            }
            _ => at += 1,
        }
        if offset < end {
            return has_line.then_some(line);
        }
    }
    None
}

fn unsigned(table: &[u8], at: &mut usize) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some(&byte) = table.get(*at) {
        *at += 1;
        number |= u64::from(byte & 63).checked_shl(shift).unwrap_or(0);
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    number
}

fn signed(table: &[u8], at: &mut usize) -> i64 {
    let number = unsigned(table, at);
    let size = (number >> 1) as i64;
    if number & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_each_kind_is_read() {
        // Two bytes on line 10, four on line 12, then back to line 11.
        assert_eq!(line_of(LineTable::Lnotab, &[2, 2, 4, 0xff], 10, 1), Some(10));
        assert_eq!(line_of(LineTable::Lnotab, &[2, 2, 4, 0xff], 10, 2), Some(12));
        assert_eq!(line_of(LineTable::Lnotab, &[2, 2, 4, 0xff], 10, 6), Some(11));
        assert_eq!(line_of(LineTable::Deltas, &[2, 0, 4, 2, 2, 0x80, 2, 0xff], 10, 4), Some(12));
        assert_eq!(line_of(LineTable::Deltas, &[2, 0, 4, 2, 2, 0x80, 2, 0xff], 10, 6), None);
        assert_eq!(line_of(LineTable::Deltas, &[2, 0, 4, 2, 2, 0x80, 2, 0xff], 10, 8), Some(11));
        // One instruction, one line on (short form 11); two instructions, 70 lines back (no columns).
        let table = [0x80 | 11 << 3, 0, 0, 0x80 | 13 << 3 | 1, 0x40 | 13, 2];
        assert_eq!(line_of(LineTable::Locations, &table, 100, 0), Some(101));
        assert_eq!(line_of(LineTable::Locations, &table, 100, 4), Some(31));
        assert_eq!(line_of(LineTable::Locations, &table, 100, 6), None);
    }

    #[test]
    fn a_broken_table_ends() {
        for kind in [LineTable::Lnotab, LineTable::Deltas, LineTable::Locations] {
            for byte in 0..=255 {
                let table = [byte; 41];
                // Whatever it says, it says it in the end.
                line_of(kind, &table, 1, u64::MAX);
            }
        }
    }
}
