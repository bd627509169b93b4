//! What code objects are called, and their lines.

use std::collections::HashMap;

use rankrun_core::stacks::Frame;

use super::layout::{Layout, Position};
use super::lines::line_of;
use super::runtime::RawFrame;
use crate::images::file_name;
use crate::memory::{Memory, word_at};

/// Bytes of a code object that are read: its header.
const HEADER: usize = 224;
/// The longest name and the longest line table that are read.
const MAX_NAME: u64 = 1024;
const MAX_TABLE: u64 = 1 << 20;

/// The code objects of one process, each read once.
#[derive(Debug)]
pub(crate) struct Codes {
    memory: Memory,
    layout: Layout,
    known: HashMap<u64, Option<Code>>,
}

#[derive(Clone, Debug)]
struct Code {
    name: String,
    file: String,
    first_line: i64,
    table: Vec<u8>,
}

impl Codes {
    pub(crate) fn new(memory: Memory, layout: Layout) -> Codes {
        Codes { memory, layout, known: HashMap::new() }
    }

    /// The frame as it is shown.
    pub(crate) fn frame(&mut self, raw: RawFrame) -> Frame {
        let code = self.known.entry(raw.code).or_insert_with(|| read(self.memory, &self.layout, raw.code));
        let Some(code) = code else {
            return Frame { function: "?".to_owned(), file: None, line: None, is_python: true };
        };
        let offset = match self.layout.position {
            Position::Bytes(_) => Some(raw.position),
            Position::Units(_) => Some(2 * raw.position),
            Position::Address(_) => raw.position.checked_sub(raw.code + self.layout.instructions as u64),
        };
        // Before its first instruction a frame has no position (-1, or an address before them).
        let is_inside = |offset: &u64| *offset < 1 << 30;
        let line = offset.filter(is_inside).and_then(|at| line_of(self.layout.lines, &code.table, code.first_line, at));
        let line = line.or_else(|| u32::try_from(code.first_line).ok());
        Frame {
            function: code.name.clone(),
            file: Some(file_name(&code.file).to_owned()),
            line: line.filter(|line| *line > 0),
            is_python: true,
        }
    }
}

fn read(memory: Memory, layout: &Layout, address: u64) -> Option<Code> {
    let header = memory.copy(address, HEADER);
    let name = string(memory, layout, word_at(&header, layout.name)?)?;
    let file = string(memory, layout, word_at(&header, layout.file_name)?)?;
    let first_line = word_at(&header, layout.first_line)? as i32;
    let table = bytes(memory, word_at(&header, layout.line_table)?).unwrap_or_default();
    Some(Code { name: plain(&name), file, first_line: first_line.into(), table })
}

/// `main.<locals>.step` is called `main.step`.
fn plain(name: &str) -> String {
    name.replace(".<locals>", "")
}

/// A `bytes`: its length is the third word, and its contents follow the hash.
fn bytes(memory: Memory, address: u64) -> Option<Vec<u8>> {
    let length = memory.word(address + 16).filter(|length| *length <= MAX_TABLE)?;
    let bytes = memory.copy(address + 32, usize::try_from(length).ok()?);
    (bytes.len() as u64 == length).then_some(bytes)
}

/// A `str`, in one of its compact forms.
fn string(memory: Memory, layout: &Layout, address: u64) -> Option<String> {
    let length = memory.word(address + 16)?.min(MAX_NAME);
    let state = memory.half(address + 32)? >> layout.kind_shift;
    let (kind, is_compact, is_ascii) = (state & 7, state >> 3 & 1 == 1, state >> 4 & 1 == 1);
    if !is_compact || !matches!(kind, 1 | 2 | 4) {
        return None;
    }
    let start = address + if is_ascii { layout.ascii } else { layout.compact };
    let data = memory.copy(start, usize::try_from(length * u64::from(kind)).ok()?);
    let text = match kind {
        1 => data.iter().map(|&byte| char::from(byte)).collect(),
        2 => {
            let units: Vec<u16> = data.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
            String::from_utf16_lossy(&units)
        }
        _ => data
            .chunks_exact(4)
            .map(|four| char::from_u32(u32::from_le_bytes([four[0], four[1], four[2], four[3]])).unwrap_or('?'))
            .collect(),
    };
    Some(text)
}
