//! Output that is kept for the end of the job, rank by rank.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::console::{Source, write_block, write_line};
use crate::lines::{Line, LineSink};

/// What is kept in memory at most, in bytes, before it goes to a file: front, guard and agent together have 20 MiB
/// (docs/architecture.md).
const GROUPED_MEMORY: usize = 4 << 20;

/// How much is handed out at once, in bytes.
const PIECE: usize = 1 << 20;

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: BTreeMap<Source, Group>,
    in_memory: usize,
    /// When so much is in memory, it goes to the file. Grows when the file cannot be written: memory then has to do.
    spill_at: usize,
    dir: PathBuf,
    file: Option<File>,
    file_length: u64,
}

/// What one source wrote, tagged and ready.
#[derive(Debug, Default)]
struct Group {
    /// Offset and length of what is in the file, in order.
    extents: Vec<(u64, u64)>,
    tail: Vec<u8>,
    /// How much of the first extent was handed out.
    done: usize,
    /// Some of it was handed out.
    is_begun: bool,
}

/// A piece of a group.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) source: Source,
    pub(crate) bytes: Vec<u8>,
    /// It is the first of its group.
    pub(crate) is_first: bool,
    /// Bytes that could not be read again from the file.
    pub(crate) lost: Option<(u64, io::Error)>,
}

/// The lines of one source, on their way to its group.
#[derive(Debug)]
pub(crate) struct GroupedRows<'a> {
    pub(crate) groups: &'a mut Groups,
    pub(crate) source: Source,
    pub(crate) prefix: &'a [u8],
}

impl LineSink for GroupedRows<'_> {
    fn block(&mut self, lines: &[u8]) {
        self.append(|tail, prefix| write_block(tail, prefix, lines));
    }

    fn line(&mut self, line: Line<'_>) {
        self.append(|tail, prefix| {
            write_line(tail, prefix, line);
        });
    }
}

impl GroupedRows<'_> {
    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>, &[u8])) {
        let tail = &mut self.groups.groups.entry(self.source).or_default().tail;
        let before = tail.len();
        write(tail, self.prefix);
        self.groups.in_memory += tail.len() - before;
        self.groups.spill();
    }
}

impl Groups {
    pub(crate) fn new(dir: PathBuf) -> Groups {
        Groups { groups: BTreeMap::new(), in_memory: 0, spill_at: GROUPED_MEMORY, dir, file: None, file_length: 0 }
    }

    /// Hands out the next piece, rank by rank, stdout before stderr.
    pub(crate) fn next_piece(&mut self) -> Option<Piece> {
        loop {
            let mut entry = self.groups.first_entry()?;
            let source = *entry.key();
            let group = entry.get_mut();
            let is_first = !std::mem::replace(&mut group.is_begun, true);
            let mut lost = None;
            let bytes = match (group.extents.first().copied(), &self.file) {
                (Some((offset, length)), Some(file)) => {
                    let count = (length as usize - group.done).min(PIECE);
                    let mut bytes = vec![0; count];
                    if let Err(error) = file.read_exact_at(&mut bytes, offset + group.done as u64) {
                        lost = Some((count as u64, error));
                        bytes.clear();
                    }
                    group.done += count;
                    if group.done as u64 == length {
                        group.extents.remove(0);
                        group.done = 0;
                    }
                    bytes
                }
                _ => {
                    self.in_memory -= group.tail.len();
                    std::mem::take(&mut group.tail)
                }
            };
            if group.extents.is_empty() && group.tail.is_empty() {
                entry.remove();
            }
            if !bytes.is_empty() || lost.is_some() {
                return Some(Piece { source, bytes, is_first, lost });
            }
        }
    }

    /// Moves what is in memory to the file, when it is too much.
    fn spill(&mut self) {
        if self.in_memory < self.spill_at {
            return;
        }
        if let Err(_full) = self.try_spill() {
            self.spill_at = self.in_memory + GROUPED_MEMORY;
        } else {
            self.spill_at = GROUPED_MEMORY;
        }
    }

    fn try_spill(&mut self) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile_in(&self.dir)?),
        };
        for group in self.groups.values_mut().filter(|group| !group.tail.is_empty()) {
            file.write_all_at(&group.tail, self.file_length)?;
            let length = group.tail.len() as u64;
            match group.extents.last_mut() {
                Some((offset, last)) if *offset + *last == self.file_length => *last += length,
                _ => group.extents.push((self.file_length, length)),
            }
            self.file_length += length;
            self.in_memory -= group.tail.len();
            group.tail = Vec::new();
        }
        Ok(())
    }
}
