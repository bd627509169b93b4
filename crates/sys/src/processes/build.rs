//! Which build of rankrun this is.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// ELF: the types of a segment with notes, and of the note with the linker's hash of the content.
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
/// Bytes of notes, at most.
const NOTES_MOST: usize = 64 * 1024;

/// The linker's hash of this program's content, in hexadecimal: two programs with the same one are the same build. Without such a
/// hash, the size of the file and our version.
pub fn id() -> io::Result<String> {
    let file = File::open("/proc/self/exe")?;
    let size = file.metadata()?.len();
    Ok(build_id(&file)?.unwrap_or_else(|| format!("{}-{size}", env!("CARGO_PKG_VERSION"))))
}

/// This program's bytes.
pub fn bytes() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open("/proc/self/exe")?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn build_id(file: &File) -> io::Result<Option<String>> {
    let mut header = [0u8; 64];
    file.read_exact_at(&mut header, 0)?;
    let (offset, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    for index in 0..u64::from(count) {
        let mut segment = [0u8; 56];
        file.read_exact_at(&mut segment, offset + index * u64::from(size))?;
        if u32_at(&segment, 0) != PT_NOTE {
            continue;
        }
        let mut notes = vec![0; (u64_at(&segment, 32) as usize).min(NOTES_MOST)];
        file.read_exact_at(&mut notes, u64_at(&segment, 8))?;
        if let Some(id) = in_notes(&notes) {
            return Ok(Some(id.iter().map(|byte| format!("{byte:02x}")).collect()));
        }
    }
    Ok(None)
}

/// Each note: length of the name, length of the content, type; then both, each filled up to four bytes.
fn in_notes(mut notes: &[u8]) -> Option<&[u8]> {
    while notes.len() >= 12 {
        let (name, content) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
        let kind = u32_at(notes, 8);
        let begin = 12 + name.checked_next_multiple_of(4)?;
        let found = notes.get(begin..begin.checked_add(content)?)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(found);
        }
        notes = notes.get(begin + content.checked_next_multiple_of(4)?..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_an_id_that_does_not_change() {
        let id = id().expect("this program can be read");
        assert!(id.len() >= 8 && !id.contains('/'), "{id}");
        assert_eq!(Some(id), super::id().ok());
    }

    #[test]
    fn notes_that_are_cut_short_are_no_id() {
        let note =
            [&4u32.to_le_bytes()[..], &4u32.to_le_bytes(), &3u32.to_le_bytes(), b"GNU\0", &[1, 2, 3, 4]].concat();
        assert_eq!(in_notes(&note), Some(&[1, 2, 3, 4][..]));
        (0..note.len()).for_each(|length| assert_eq!(in_notes(&note[..length]), None));
    }
}
