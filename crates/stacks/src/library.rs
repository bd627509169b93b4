//! Whether a program file calls functions of a library, by its symbol tables alone: nothing of the program runs.

use std::fs::File;
use std::path::Path;

use object::elf::{DT_NEEDED, FileHeader64, SHT_DYNSYM, SHT_SYMTAB, SectionHeader64, Sym64};
use object::read::elf::{Dyn, FileHeader, SectionHeader, Sym};
use object::{Endianness, ReadCache};

/// The largest symbol table with its strings that is read: 16 MB take some 10 ms.
const MAX_TABLE: u64 = 16 << 20;

/// Where a program has the functions from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A shared library of this name; it need not define the functions itself.
    Shared(String),
    /// The program file: the library is linked statically.
    Linked,
}

/// From where a program file has one of these functions; `None` if it does not call any, or the file does not tell.
pub fn origin(file: &Path, functions: &[&str], is_library: impl Fn(&str) -> bool) -> Option<Origin> {
    let data = &ReadCache::new(File::open(file).ok()?);
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let is_called = |table: u32, is_imported: bool| {
        let is_table = |section: &&SectionHeader64<Endianness>| section.sh_type.get(endian) == table;
        let size = sections.iter().find(is_table).map_or(0, |section| section.sh_size.get(endian));
        let symbols = (1..=MAX_TABLE).contains(&size).then(|| sections.symbols(endian, data, table).ok()).flatten()?;
        // As one piece: the table's own strings are read from the file one by one.
        let strings = sections.section(symbols.string_section()).ok()?;
        let strings = (strings.sh_size.get(endian) <= MAX_TABLE).then(|| strings.data(endian, data).ok()).flatten()?;
        let is_named = |symbol: &Sym64<Endianness>| {
            let name = strings.get(symbol.st_name.get(endian) as usize..).unwrap_or_default();
            functions.iter().any(|it| name.strip_prefix(it.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)))
        };
        symbols.iter().find(|symbol| symbol.is_undefined(endian) == is_imported && is_named(symbol)).map(drop)
    };
    if is_called(SHT_DYNSYM, true).is_some() {
        let (entries, strings) = sections.dynamic(endian, data).ok()??;
        let strings = sections.strings(endian, data, strings).ok()?;
        let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
        let mut names = needed.filter_map(|entry| std::str::from_utf8(entry.string(endian, strings).ok()?).ok());
        return names.find(|name| is_library(name)).map(|name| Origin::Shared(name.to_owned()));
    }
    is_called(SHT_SYMTAB, false).map(|()| Origin::Linked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_that_this_program_calls_are_known() {
        let program = std::env::current_exe().expect("this test");
        let is_libc = |name: &str| name.starts_with("libc.so");
        assert!(matches!(origin(&program, &["open64", "open"], is_libc), Some(Origin::Shared(name)) if is_libc(&name)));
        assert_eq!(origin(&program, &["MPI_Init"], |_| true), None);
        assert_eq!(origin(&program, &["open64", "open"], |_| false), None, "of no such library");
        // The program is linked statically with its own functions.
        assert_eq!(origin(&program, &["main"], is_libc), Some(Origin::Linked));
        assert_eq!(origin(Path::new("/etc/passwd"), &["main"], is_libc), None);
        assert_eq!(origin(Path::new("/nowhere"), &["main"], is_libc), None);
    }
}
