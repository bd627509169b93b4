//! What a process has mapped of a library, and whether it has used it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

/// Bytes of a process's list of mappings that are read: programs of machine learning have a thousand of them.
const MAPPINGS: u64 = 4 << 20;
/// Bytes of a page map that are read, eight for each page. Intel MPI has 150 MB of uninitialised data.
const PAGE_MAP: u64 = 512 << 10;
/// Bits of a page's entry: it is in memory, or in swap.
const TOUCHED: u64 = 3 << 62;

/// What a process has mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    pub library: Option<Library>,
    /// Another file is mapped whose path was asked for.
    pub has_file: bool,
}

/// A library that a process has mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    /// Its file name, without directory.
    pub name: String,
    /// Pages of its uninitialised data that the process has touched.
    pub touched: usize,
}

/// The first library of a process whose file name is wanted, with a look for another file by its path. `None` if the process
/// may not be read.
pub fn mapped(pid: i32, is_wanted: impl Fn(&str) -> bool, is_file: impl Fn(&str) -> bool) -> Option<Mapped> {
    let mut maps = Vec::new();
    File::open(format!("/proc/{pid}/maps")).ok()?.take(MAPPINGS).read_to_end(&mut maps).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let mut found: Option<Library> = None;
    let mut has_file = false;
    // The end of the library's mapping in the line before. Its uninitialised data follows without a gap, and has no name.
    let mut end = None;
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let Some((from, to)) = fields.next().and_then(|range| range.split_once('-')) else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else { continue };
        let path = fields.nth(4).unwrap_or_default().trim_start();
        let name = path.rsplit('/').next().unwrap_or(path);
        if path.is_empty() {
            if end == Some(from)
                && let Some(library) = &mut found
            {
                library.touched += touched(pid, from, to).unwrap_or_default();
            }
            end = None;
            continue;
        }
        has_file |= is_file(path);
        let is_known = found.as_ref().is_some_and(|library| library.name == name);
        if is_known || (found.is_none() && path.starts_with('/') && is_wanted(name)) {
            found.get_or_insert_with(|| Library { name: name.to_owned(), touched: 0 });
            end = Some(to);
        } else {
            end = None;
        }
    }
    Some(Mapped { library: found, has_file })
}

/// The pages of a range of addresses that are in memory or in swap.
fn touched(pid: i32, from: u64, to: u64) -> Option<usize> {
    let page = rustix::param::page_size() as u64;
    let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let size = (to.saturating_sub(from) / page * 8).min(PAGE_MAP);
    let mut entries = vec![0; usize::try_from(size).ok()?];
    let count = file.read_at(&mut entries, from / page * 8).ok()?;
    let is_touched = |entry: &&[u8]| {
        let bytes: [u8; 8] = (**entry).try_into().unwrap_or_default();
        u64::from_ne_bytes(bytes) & TOUCHED != 0
    };
    Some(entries[..count].chunks_exact(8).filter(is_touched).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_of_this_process_is_found_and_used() {
        let is_libc = |name: &str| name.starts_with("libc.so") || name.starts_with("libc-");
        let pid = std::process::id() as i32;
        let found = mapped(pid, is_libc, |path| path.contains("/libc.so")).expect("it is this process");
        assert!(found.library.is_some_and(|library| library.touched > 0) && found.has_file);
        let nothing = Mapped { library: None, has_file: false };
        assert_eq!(mapped(pid, |name| name == "libmpi.so.40", |_| false), Some(nothing));
        assert_eq!(mapped(i32::MAX, is_libc, |_| false), None);
    }
}
