//! The names of functions, from the symbol tables of object files.
//!
//! A table may have a million entries. None is copied or sorted at first: one pass finds all functions that are asked for, and what was
//! found is kept. Where functions are asked for again and again, an index is worth its memory.

use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Ordering;
use std::collections::HashMap;

use object::Endianness;
use object::elf::{FileHeader64, SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC, Sym64};
use object::read::elf::{ElfFile, Sym, SymbolTable};

pub(crate) type Elf = ElfFile<'static, FileHeader64<Endianness>>;
type Table = SymbolTable<'static, FileHeader64<Endianness>>;

/// A function of an object file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Function {
    pub(crate) start: u64,
    size: u64,
    /// As it is in the file.
    pub(crate) name: &'static str,
}

/// The functions and variables of one object file that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    functions: RefCell<HashMap<u64, Option<Function>>>,
    passes: Cell<u32>,
    index: OnceCell<Vec<Entry>>,
    variables: RefCell<HashMap<&'static str, Option<u64>>>,
}

impl Symbols {
    /// Whether all these addresses were looked up.
    pub(crate) fn knows(&self, addresses: &[u64]) -> bool {
        let known = self.functions.borrow();
        addresses.iter().all(|address| known.contains_key(address))
    }

    /// Looks up the functions at these addresses, in one pass.
    pub(crate) fn learn(&self, elf: &Elf, addresses: &[u64]) {
        let mut known = self.functions.borrow_mut();
        let mut wanted: Vec<u64> = addresses.iter().copied().filter(|address| !known.contains_key(address)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return;
        }
        let passes = self.passes.replace(self.passes.get().saturating_add(1));
        let found = match passes < PASSES {
            true => functions(elf, &wanted),
            false => {
                let index = self.index.get_or_init(|| index(elf));
                wanted.iter().map(|address| in_index(elf, index, *address)).collect()
            }
        };
        known.extend(wanted.into_iter().zip(found));
    }

    /// The function at an address; `None` if there is none, or it was not looked up.
    pub(crate) fn function(&self, address: u64) -> Option<Function> {
        self.functions.borrow().get(&address).copied().flatten()
    }

    /// The address of a variable.
    pub(crate) fn variable(&self, elf: &Elf, name: &'static str) -> Option<u64> {
        let mut known = self.variables.borrow_mut();
        *known.entry(name).or_insert_with(|| {
            let tables = [elf.elf_dynamic_symbol_table(), elf.elf_symbol_table()];
            tables.into_iter().find_map(|table| {
                let is_it = |symbol: &&Sym64<Endianness>| {
                    symbol.st_shndx(elf.endian()) != SHN_UNDEF
                        && table.symbol_name(elf.endian(), symbol) == Ok(name.as_bytes())
                };
                table.iter().find(is_it).map(|symbol| symbol.st_value(elf.endian()))
            })
        })
    }
}

/// Passes over the tables of an object file before an index is made of them.
const PASSES: u32 = 4;

/// A function in the index: where it begins, and which symbol it is. The symbols of the second table come after those of the first.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    symbol: u32,
}

/// All functions, by their start.
fn index(elf: &Elf) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut symbol = 0;
    for table in tables(elf) {
        for it in table.iter() {
            if is_function(it, elf.endian()) {
                all.push(Entry { start: it.st_value(elf.endian()), symbol });
            }
            symbol += 1;
        }
    }
    all.sort_unstable_by_key(|entry| entry.start);
    all
}

fn in_index(elf: &Elf, index: &[Entry], address: u64) -> Option<Function> {
    let end = index.partition_point(|entry| entry.start <= address);
    let start = index[..end].last()?.start;
    let first = index[..end].partition_point(|entry| entry.start < start);
    let [one, other] = tables(elf);
    let of = |entry: &Entry| {
        let at = entry.symbol as usize;
        let (table, at) = if at < one.len() { (one, at) } else { (other, at - one.len()) };
        let symbol = table.iter().nth(at)?;
        let name = table.symbol_name(elf.endian(), symbol).ok().and_then(|name| std::str::from_utf8(name).ok())?;
        let size = symbol.st_size(elf.endian());
        (!name.is_empty()).then_some(Function { start, size, name })
    };
    let best = index[first..end].iter().filter_map(of).min_by_key(|function| rank(function.name))?;
    Some(best).filter(|it| it.size == 0 || address < it.start.saturating_add(it.size))
}

fn tables(elf: &Elf) -> [&Table; 2] {
    [elf.elf_symbol_table(), elf.elf_dynamic_symbol_table()]
}

fn is_function(symbol: &Sym64<Endianness>, endian: Endianness) -> bool {
    let kind = symbol.st_type();
    (kind == STT_FUNC || kind == STT_GNU_IFUNC) && symbol.st_shndx(endian) != SHN_UNDEF
}

/// The function at each of some addresses, which are sorted.
fn functions(elf: &Elf, wanted: &[u64]) -> Vec<Option<Function>> {
    // Of the functions that begin at or below an address and above the address before it, the last one.
    let mut nearest: Vec<Option<Function>> = vec![None; wanted.len()];
    for table in tables(elf) {
        collect(table, elf.endian(), wanted, &mut nearest);
    }
    let mut last: Option<Function> = None;
    for (address, function) in wanted.iter().zip(&mut nearest) {
        last = function.or(last);
        // Written in assembly it has no size.
        *function = last.filter(|it| it.size == 0 || *address < it.start.saturating_add(it.size));
    }
    nearest
}

fn collect(table: &Table, endian: Endianness, wanted: &[u64], nearest: &mut [Option<Function>]) {
    for symbol in table.iter() {
        if !is_function(symbol, endian) {
            continue;
        }
        let start = symbol.st_value(endian);
        let next = wanted.partition_point(|address| *address < start);
        let Some(best) = nearest.get_mut(next) else { continue };
        let order = best.map_or(Ordering::Greater, |best| start.cmp(&best.start));
        if order == Ordering::Less {
            continue;
        }
        let Some(name) = table.symbol_name(endian, symbol).ok().and_then(|name| std::str::from_utf8(name).ok()) else {
            continue;
        };
        let is_better = order == Ordering::Greater || best.is_some_and(|best| rank(name) < rank(best.name));
        if !name.is_empty() && is_better {
            *best = Some(Function { start, size: symbol.st_size(endian), name });
        }
    }
}

/// Of several names for one function, people write that with the fewest underscores and letters in front: `read` for
/// `__libc_read`, `MPI_Recv` for `PMPI_Recv`.
fn rank(name: &str) -> (usize, usize, &str) {
    (name.bytes().take_while(|&byte| byte == b'_').count(), name.len(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_finds_what_a_search_for_each_address_finds() {
        let program = std::env::current_exe().and_then(std::fs::read).expect("the test's own program");
        let elf = Elf::parse(Box::leak(program.into_boxed_slice())).expect("it is an object file");
        let endian = elf.endian();
        let all: Vec<(u64, u64)> = elf
            .elf_symbol_table()
            .iter()
            .filter(|symbol| symbol.st_type() == STT_FUNC && symbol.st_shndx(endian) != SHN_UNDEF)
            .map(|symbol| (symbol.st_value(endian), symbol.st_size(endian)))
            .collect();
        let end = all.iter().map(|(start, _)| *start).max().expect("it has functions") + 4096;
        let mut wanted: Vec<u64> = (0..300).map(|index| index * end / 300).collect();
        wanted.extend(all.iter().step_by(50).flat_map(|(start, size)| [*start, start + size / 2, start + size]));
        let symbols = Symbols::default();
        let (some, rest) = wanted.split_at(100);
        symbols.learn(&elf, some);
        symbols.learn(&elf, rest);
        assert!(symbols.knows(&wanted));
        for address in wanted {
            let nearest = all.iter().map(|(start, _)| *start).filter(|start| *start <= address).max();
            let is_inside =
                |(start, size): &&(u64, u64)| Some(*start) == nearest && *size > 0 && address < start + size;
            let expected = all.iter().find(is_inside).map(|(start, _)| *start);
            let found = symbols.function(address).filter(|function| function.size > 0);
            assert_eq!(found.map(|function| function.start), expected, "{address:#x}");
        }
        assert_eq!(symbols.variable(&elf, "no_such_variable"), None);
    }

    #[test]
    fn the_name_that_people_write_is_taken() {
        let mut names = ["__libc_read", "read", "__read", "_read"];
        names.sort_unstable_by_key(|name| rank(name));
        assert_eq!(names[0], "read");
        assert!(rank("MPI_Recv") < rank("PMPI_Recv"));
    }
}
