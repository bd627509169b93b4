//! Object files: their sections, their functions, their lines.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use addr2line::Context;
use gimli::{EndianSlice, LittleEndian};
use object::elf::FileHeader64;
use object::read::elf::ElfSection;
use object::{CompressedData, CompressionFormat, Endianness, Object, ObjectSection, ObjectSegment};

use crate::symbols::{Elf, Function, Symbols};

type Lines = Context<EndianSlice<'static, LittleEndian>>;

/// Debug information beyond this size is not read: its index alone would take seconds.
const MAX_DEBUG_BYTES: u64 = 256 << 20;

/// A section that is larger than this when it is expanded is not read: expanding and indexing it would take a good part of the time
/// of a look. A program of Go with such a table has 430 MB.
const MAX_EXPANDED: usize = 16 << 20;

/// An object file: a program, a shared library.
pub(crate) struct Image {
    /// Its file name.
    pub(crate) name: String,
    /// Where execution begins.
    pub(crate) entry: u64,
    pub(crate) build_id: Option<Vec<u8>>,
    /// Whether it belongs to a Python interpreter.
    pub(crate) is_python: bool,
    /// Whether it is a program of Go.
    pub(crate) is_go: bool,
    data: &'static [u8],
    segments: Vec<Segment>,
    symbols: Symbols,
    lines: OnceCell<Option<Lines>>,
    debug_frame: OnceCell<Option<&'static [u8]>>,
}

#[derive(Clone, Copy)]
struct Segment {
    address: u64,
    offset: u64,
    size: u64,
}

/// What says how frames are unwound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    EhFrame,
    DebugFrame,
}

/// A section: its addresses, and its bytes.
pub(crate) type Section = (Range<u64>, &'static [u8]);

impl fmt::Debug for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Image").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Image {
    /// Reads the headers of an object file; `None` if it is none of a 64-bit program.
    pub(crate) fn parse(name: String, data: &'static [u8]) -> Option<Image> {
        let elf = Elf::parse(data).ok()?;
        let segments = elf
            .segments()
            .map(|segment| {
                let (offset, size) = segment.file_range();
                Segment { address: segment.address(), offset, size }
            })
            .collect();
        let build_id = elf.build_id().ok().flatten().map(<[u8]>::to_vec);
        let is_go = [".go.buildinfo", ".gopclntab"].iter().any(|name| elf.section_by_name(name).is_some());
        let is_python = name.starts_with("python") || name.starts_with("libpython");
        Some(Image {
            name,
            entry: elf.entry(),
            build_id,
            is_python,
            is_go,
            data,
            segments,
            symbols: Symbols::default(),
            lines: OnceCell::new(),
            debug_frame: OnceCell::new(),
        })
    }

    /// The address in the file of what was mapped from this offset.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        // A mapping begins at the page that a segment begins in.
        const PAGE: u64 = 0xffff;
        let starts_in = |segment: &&Segment| (segment.offset & !PAGE..segment.offset + segment.size).contains(&offset);
        let exact = |segment: &&Segment| (segment.offset & !0xfff..segment.offset + segment.size).contains(&offset);
        // Of two segments that share a page, the later one is mapped from its beginning.
        let segment = self.segments.iter().rfind(exact).or_else(|| self.segments.iter().rfind(starts_in))?;
        Some((segment.address + offset).wrapping_sub(segment.offset))
    }

    fn elf(&self) -> Option<Elf> {
        Elf::parse(self.data).ok()
    }

    /// A section by its name, if its bytes are in the file.
    pub(crate) fn section(&self, name: &str) -> Option<Section> {
        let elf = self.elf()?;
        let section = elf.section_by_name(name)?;
        let bytes = section.data().ok().filter(|bytes| !bytes.is_empty())?;
        Some((section.address()..section.address() + section.size(), bytes))
    }

    /// How the frames of Go's code are unwound, and of other code without `.eh_frame`. The linker of Go compresses it.
    pub(crate) fn debug_frame(&self) -> Option<&'static [u8]> {
        *self.debug_frame.get_or_init(|| expanded(self.elf()?.section_by_name(".debug_frame")?.compressed_data().ok()?))
    }

    /// By which table the code at each of these addresses of the file is unwound.
    pub(crate) fn tables(&self, addresses: Range<u64>) -> Vec<(Range<u64>, Table)> {
        if self.section(".eh_frame").is_none() {
            return vec![(addresses, Table::DebugFrame)];
        }
        // A program of Go that is linked with C has both: `.eh_frame` is that of C.
        let is_within = |go: &Range<u64>| addresses.start <= go.start && go.start < go.end && go.end <= addresses.end;
        match self.go_code().filter(|go| is_within(go) && self.debug_frame().is_some()) {
            Some(go) => vec![
                (addresses.start..go.start, Table::EhFrame),
                (go.clone(), Table::DebugFrame),
                (go.end..addresses.end, Table::EhFrame),
            ],
            None => vec![(addresses, Table::EhFrame)],
        }
    }

    /// Where the code is that the compiler of Go has made.
    fn go_code(&self) -> Option<Range<u64>> {
        let bound = |name| self.is_go.then(|| self.variable(name)).flatten();
        Some(bound("runtime.text")?..bound("runtime.etext")?)
    }

    /// The address of a variable.
    pub(crate) fn variable(&self, name: &'static str) -> Option<u64> {
        self.symbols.variable(&self.elf()?, name)
    }

    /// Whether the functions at all these addresses were looked up.
    pub(crate) fn knows(&self, addresses: &[u64]) -> bool {
        self.symbols.knows(addresses)
    }

    /// Looks up the functions at these addresses. For the largest libraries that takes some milliseconds, however many
    /// addresses there are.
    pub(crate) fn learn(&self, addresses: &[u64]) {
        if let Some(elf) = self.elf() {
            self.symbols.learn(&elf, addresses);
        }
    }

    /// The function at an address, if it was looked up.
    pub(crate) fn function(&self, address: u64) -> Option<Function> {
        self.symbols.function(address)
    }

    /// Whether lines can be told without reading an index first, which may take long.
    pub(crate) fn has_lines(&self) -> bool {
        self.lines.get().is_some()
    }

    /// The functions, lines and files at an address, by its debug information: innermost first, those that were inlined
    /// included. Empty where there is none.
    pub(crate) fn lines_at(&self, address: u64) -> Vec<Line> {
        let Some(lines) = self.lines.get_or_init(|| self.elf().and_then(|elf| debug_lines(&elf))) else {
            return Vec::new();
        };
        let Ok(mut frames) = lines.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.and_then(|function| function.raw_name().ok().map(|name| name.into_owned()));
            let file = frame.location.as_ref().and_then(|location| location.file);
            found.push(Line {
                function,
                file: file.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()),
                line: frame.location.and_then(|location| location.line).filter(|line| *line > 0),
            });
        }
        found
    }
}

/// A place in the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// As the compiler writes it.
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

/// The bytes of a section, expanded if they are compressed with zlib.
fn expanded(stored: CompressedData<'static>) -> Option<&'static [u8]> {
    match stored.format {
        CompressionFormat::None => Some(stored.data).filter(|bytes| !bytes.is_empty()),
        CompressionFormat::Zlib => {
            let size = usize::try_from(stored.uncompressed_size).ok().filter(|size| *size <= MAX_EXPANDED)?;
            let bytes = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(stored.data, size).ok()?;
            // Like the file itself, which stays mapped.
            Some(Box::leak(bytes.into_boxed_slice()))
        }
        _ => None,
    }
}

fn debug_lines(elf: &Elf) -> Option<Lines> {
    let is_debug = |name: &str| name.starts_with(".debug_");
    let size: u64 = elf.sections().filter(|section| section.name().is_ok_and(is_debug)).map(|it| it.size()).sum();
    elf.section_by_name(".debug_info")?;
    if size > MAX_DEBUG_BYTES {
        return None;
    }
    let load = |id: gimli::SectionId| -> Result<_, gimli::Error> {
        let section = elf.section_by_name(id.name());
        // Those that are compressed are left out.
        let is_plain = |section: &ElfSection<'static, '_, FileHeader64<Endianness>>| {
            section.compressed_file_range().is_ok_and(|range| range.format == CompressionFormat::None)
        };
        let bytes = section.filter(is_plain).and_then(|section| section.data().ok()).unwrap_or_default();
        Ok(EndianSlice::new(bytes, LittleEndian))
    };
    Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;

    use super::*;

    #[test]
    fn a_section_is_expanded_whole_or_not_at_all() {
        let bytes: Vec<u8> = (0..100_000_u32).flat_map(|number| (number % 999).to_le_bytes()).collect();
        let packed: &'static [u8] = Box::leak(compress_to_vec_zlib(&bytes, 6).into_boxed_slice());
        let zlib = |data, size| CompressedData { format: CompressionFormat::Zlib, data, uncompressed_size: size };
        let size = bytes.len() as u64;
        assert_eq!(expanded(zlib(packed, size)), Some(&bytes[..]));
        assert_eq!(expanded(zlib(packed, size - 1)), None, "it says less than it has");
        assert_eq!(expanded(zlib(&packed[..packed.len() / 2], size)), None, "its end is missing");
        assert_eq!(expanded(zlib(b"not zlib", size)), None);
        assert_eq!(expanded(zlib(packed, MAX_EXPANDED as u64 + 1)), None, "it says that it is too large");
        assert_eq!(expanded(zlib(packed, u64::MAX)), None);
        assert_eq!(expanded(CompressedData::none(packed)), Some(packed));
        assert_eq!(expanded(CompressedData::none(b"")), None);
    }
}
