//! The object files that were looked at, kept by build id for all processes.

use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;

use rankrun_sys::mapped;

use crate::image::Image;
use crate::maps::{Mapping, Mappings};
use crate::memory::Memory;

/// Files that are kept. A process of machine learning has 500; beyond this number a file is not looked at.
const MAX_IMAGES: usize = 8192;

/// The object files.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// By device, inode and path; `None` for what is no object file, or cannot be read.
    by_file: HashMap<(String, String), Option<Rc<Image>>>,
    by_build_id: HashMap<Vec<u8>, Rc<Image>>,
}

/// An object file where a process has mapped it.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) image: Rc<Image>,
    /// What is to be added to addresses of the file.
    pub(crate) bias: u64,
}

impl Images {
    /// The object file of a mapping.
    pub(crate) fn loaded(&mut self, memory: Memory, mapping: &Mapping) -> Option<Loaded> {
        let image = self.image(memory, mapping)?;
        let bias = mapping.start.wrapping_sub(image.address_of(mapping.offset)?);
        Some(Loaded { image, bias })
    }

    /// All files that a process executes code of, and whose name passes.
    pub(crate) fn named(&mut self, memory: Memory, maps: &Mappings, passes: impl Fn(&str) -> bool) -> Vec<Loaded> {
        let code = maps.0.iter().filter(|mapping| mapping.is_executable && passes(file_name(&mapping.path)));
        code.filter_map(|mapping| self.loaded(memory, mapping)).collect()
    }

    fn image(&mut self, memory: Memory, mapping: &Mapping) -> Option<Rc<Image>> {
        let key = (mapping.file.clone(), mapping.path.clone());
        if let Some(known) = self.by_file.get(&key) {
            return known.clone();
        }
        if self.by_file.len() >= MAX_IMAGES {
            return None;
        }
        let image = open(memory, mapping).map(|image| match &image.build_id {
            Some(id) => Rc::clone(self.by_build_id.entry(id.clone()).or_insert(Rc::new(image))),
            None => Rc::new(image),
        });
        self.by_file.insert(key, image.clone());
        image
    }
}

fn open(memory: Memory, mapping: &Mapping) -> Option<Image> {
    if mapping.path == "[vdso]" {
        // The kernel's, the same for all processes: a few pages, once.
        let length = usize::try_from(mapping.end - mapping.start).ok()?;
        let bytes = memory.copy(mapping.start, length.min(1 << 20));
        return Image::parse("vdso".to_owned(), Box::leak(bytes.into_boxed_slice()));
    }
    if !mapping.path.starts_with('/') {
        return None;
    }
    let name = file_name(&mapping.path).to_owned();
    // By the mapping itself, it is found even where it was replaced or deleted; that needs rights that few have. By its
    // path, it must still be the same file: package managers replace the files of programs that run.
    let pid = memory.pid;
    let by_mapping = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let file = File::open(by_mapping).ok().or_else(|| {
        let is_deleted = mapping.path.ends_with(" (deleted)");
        let file = File::open(format!("/proc/{pid}/root{}", mapping.path));
        file.ok().filter(|_| !is_deleted)
    })?;
    Image::parse(name, mapped::map(&file).ok()?)
}

/// The name of a file without its directory, and without the kernel's remark.
pub(crate) fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}
