//! Arrays of `pmix_info_t`: made here with all that they point to, or read where libpmix gives them.

use std::ffi::{CStr, CString, OsString, c_char, c_void};
use std::os::unix::ffi::OsStringExt;

use super::abi::{ByteObject, Data, DataArray, Envar, Info, MAX_KEYLEN, MAX_NSLEN, Proc, Value, key, kind};

/// An array that owns what its values point to. libpmix reads it and copies what it keeps.
#[derive(Default)]
pub(super) struct Infos {
    items: Vec<Info>,
    strings: Vec<CString>,
    blobs: Vec<Vec<u8>>,
    arrays: Vec<(Box<DataArray>, Infos)>,
    procs: Vec<(Box<DataArray>, Vec<Proc>)>,
    single: Vec<Box<[Proc]>>,
    /// The items whose bytes are from malloc, and libpmix's if it takes them.
    given: Vec<usize>,
}

// SAFETY: the pointers in `items` lead only to what the same value owns.
unsafe impl Send for Infos {}

impl Infos {
    fn push(&mut self, key: &CStr, kind: u16, data: Data) {
        self.items.push(Info { key: name(key), flags: 0, value: Value { kind, data } });
    }

    pub(super) fn flag(&mut self, key: &CStr, flag: bool) {
        self.push(key, kind::BOOL, Data { flag });
    }

    pub(super) fn number(&mut self, key: &CStr, uint32: u32) {
        self.push(key, kind::UINT32, Data { uint32 });
    }

    pub(super) fn small(&mut self, key: &CStr, uint16: u16) {
        self.push(key, kind::UINT16, Data { uint16 });
    }

    pub(super) fn size(&mut self, key: &CStr, size: usize) {
        self.push(key, kind::SIZE, Data { size });
    }

    pub(super) fn rank(&mut self, key: &CStr, rank: u32) {
        self.push(key, kind::PROC_RANK, Data { uint32: rank });
    }

    pub(super) fn string(&mut self, key: &CStr, text: &CStr) {
        let text = text.to_owned();
        // libpmix does not write to it.
        let string = text.as_ptr().cast_mut();
        self.strings.push(text);
        self.push(key, kind::STRING, Data { string });
    }

    /// A map of nodes or ranks, as `PMIx_generate_regex` and `PMIx_generate_ppn` return it: bytes with an end of their own.
    pub(super) fn regex(&mut self, key: &CStr, bytes: Vec<u8>) {
        self.blob(key, kind::REGEX, bytes);
    }

    /// Bytes that libpmix may take, which it shows by writing null in their place.
    pub(super) fn give_bytes(&mut self, key: &CStr, bytes: &[u8]) {
        // SAFETY: an allocation, which may fail.
        let copy = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<c_char>();
        if copy.is_null() {
            return;
        }
        // SAFETY: there is room for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), copy, bytes.len()) };
        self.given.push(self.items.len());
        self.push(key, kind::BYTE_OBJECT, Data { bytes: ByteObject { bytes: copy, size: bytes.len() } });
    }

    fn blob(&mut self, key: &CStr, kind: u16, mut bytes: Vec<u8>) {
        let object = ByteObject { bytes: bytes.as_mut_ptr().cast::<c_char>(), size: bytes.len() };
        self.blobs.push(bytes);
        self.push(key, kind, Data { bytes: object });
    }

    pub(super) fn array(&mut self, key: &CStr, mut inner: Infos) {
        let mut array =
            Box::new(DataArray { kind: kind::INFO, size: inner.items.len(), array: inner.items.as_mut_ptr().cast() });
        let pointer: *mut DataArray = &raw mut *array;
        self.arrays.push((array, inner));
        self.push(key, kind::DATA_ARRAY, Data { array: pointer });
    }

    pub(super) fn procs(&mut self, key: &CStr, mut procs: Vec<Proc>) {
        let mut array =
            Box::new(DataArray { kind: kind::PROC, size: procs.len(), array: procs.as_mut_ptr().cast::<c_void>() });
        let pointer: *mut DataArray = &raw mut *array;
        self.procs.push((array, procs));
        self.push(key, kind::DATA_ARRAY, Data { array: pointer });
    }

    pub(super) fn proc(&mut self, key: &CStr, proc: Proc) {
        let mut proc: Box<[Proc]> = Box::new([proc]);
        let pointer = proc.as_mut_ptr();
        self.single.push(proc);
        self.push(key, kind::PROC, Data { proc: pointer });
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut Info {
        self.items.as_mut_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        for item in self.given.iter().map(|index| &self.items[*index]) {
            // SAFETY: `give_bytes` has set this member; libpmix has put null there if the bytes are its own now.
            unsafe { libc::free(item.value.data.bytes.bytes.cast()) };
        }
    }
}

/// A key in its fixed room. A longer one is cut.
pub(super) fn name(key: &CStr) -> [c_char; MAX_KEYLEN + 1] {
    let mut room = [0; MAX_KEYLEN + 1];
    for (place, byte) in room.iter_mut().zip(key.to_bytes().iter().take(MAX_KEYLEN)) {
        *place = *byte as c_char;
    }
    room
}

/// A process by name.
pub(super) fn proc(nspace: &CStr, rank: u32) -> Proc {
    let mut room = [0; MAX_NSLEN + 1];
    for (place, byte) in room.iter_mut().zip(nspace.to_bytes().iter().take(MAX_NSLEN)) {
        *place = *byte as c_char;
    }
    Proc { nspace: room, rank }
}

/// The text in a fixed room, up to its first NUL.
pub(super) fn text(room: &[c_char]) -> String {
    let bytes: Vec<u8> = room.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A C string that may be null.
///
/// # Safety
/// `pointer` is null, or leads to a string that ends with NUL and lives during the call.
pub(super) unsafe fn string(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller promises it.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// A list of C strings that ends with a null pointer, and may be null itself.
///
/// # Safety
/// As for [`string`], for the list and for each string.
pub(super) unsafe fn strings(list: *const *mut c_char) -> Vec<String> {
    let mut found = Vec::new();
    if list.is_null() {
        return found;
    }
    for index in 0.. {
        // SAFETY: the list is read up to its null pointer, and no further.
        let Some(text) = (unsafe { string(*list.add(index)) }) else { break };
        found.push(text);
    }
    found
}

/// The same, in their own bytes.
///
/// # Safety
/// As for [`strings`].
pub(super) unsafe fn words(list: *const *mut c_char) -> Vec<OsString> {
    let mut found = Vec::new();
    if list.is_null() {
        return found;
    }
    for index in 0.. {
        // SAFETY: the list is read up to its null pointer, and no further.
        let word = unsafe { *list.add(index) };
        if word.is_null() {
            break;
        }
        // SAFETY: the caller promises it.
        found.push(OsString::from_vec(unsafe { CStr::from_ptr(word) }.to_bytes().to_vec()));
    }
    found
}

/// What libpmix gives as a pointer and a length.
///
/// # Safety
/// `pointer` is null, or leads to `count` elements that live as long as the result is used.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if pointer.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller promises it.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

/// A text that a client logs, in its own bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogText {
    /// For stderr. Otherwise for stdout.
    pub is_error: bool,
    pub bytes: Vec<u8>,
}

/// The texts for the two streams, and how many other channels are wanted.
///
/// # Safety
/// The values come from libpmix and live during the call.
pub(super) unsafe fn log_texts(infos: &[Info]) -> (Vec<LogText>, usize) {
    let mut texts = Vec::new();
    for info in infos {
        let is_error = info.has(key::LOG_STDERR);
        if !is_error && !info.has(key::LOG_STDOUT) {
            continue;
        }
        // SAFETY: the caller promises it.
        texts.extend(unsafe { info.as_text() }.map(|bytes| LogText { is_error, bytes }));
    }
    let others = infos.len() - texts.len();
    (texts, others)
}

impl Info {
    pub(super) fn has(&self, key: &CStr) -> bool {
        self.key.iter().map(|byte| *byte as u8).zip(key.to_bytes_with_nul()).all(|(have, want)| have == *want)
            && key.to_bytes_with_nul().len() <= self.key.len()
    }

    pub(super) fn name(&self) -> String {
        text(&self.key)
    }

    pub(super) fn is_true(&self) -> bool {
        // As PMIX_INFO_TRUE: a key without a value is true.
        // SAFETY: the kind says which member is set.
        self.value.kind == 0 || (self.value.kind == kind::BOOL && unsafe { self.value.data.flag })
    }

    pub(super) fn as_u32(&self) -> Option<u32> {
        // SAFETY: the kind says which member is set.
        unsafe {
            match self.value.kind {
                kind::UINT32 | kind::PROC_RANK => Some(self.value.data.uint32),
                kind::PERSIST => Some(self.value.data.uint8.into()),
                kind::INT => u32::try_from(self.value.data.integer).ok(),
                kind::SIZE => u32::try_from(self.value.data.size).ok(),
                _ => None,
            }
        }
    }

    /// The bytes of a string, without the NUL.
    ///
    /// # Safety
    /// The value comes from libpmix and lives during the call.
    pub(super) unsafe fn as_text(&self) -> Option<Vec<u8>> {
        if self.value.kind != kind::STRING {
            return None;
        }
        // SAFETY: the kind says which member is set.
        let text = unsafe { self.value.data.string };
        // SAFETY: the caller says that the string is valid.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes().to_vec())
    }

    /// A change to the environment: a name, and the value that it gets, or none any more.
    ///
    /// # Safety
    /// The value comes from libpmix and lives during the call.
    pub(super) unsafe fn as_variable(&self) -> Option<(OsString, Option<OsString>)> {
        if self.has(key::UNSET_ENVAR) {
            // SAFETY: the caller promises it.
            return unsafe { self.as_text() }.map(|name| (OsString::from_vec(name), None));
        }
        if !self.has(key::SET_ENVAR) || self.value.kind != kind::ENVAR {
            return None;
        }
        // SAFETY: the kind says which member is set.
        let Envar { name, value, .. } = unsafe { self.value.data.envar };
        let text = |text: *mut c_char| {
            // SAFETY: the caller says that the strings are valid.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()).map(OsString::from_vec)
        };
        Some((text(name)?, Some(text(value).unwrap_or_default())))
    }

    /// # Safety
    /// The value comes from libpmix and lives during the call.
    pub(super) unsafe fn as_bytes(&self) -> Option<Vec<u8>> {
        if self.value.kind != kind::BYTE_OBJECT {
            return None;
        }
        // SAFETY: the kind says which member is set, and the caller that its pointer is valid.
        Some(
            unsafe { slice(self.value.data.bytes.bytes.cast::<u8>().cast_const(), self.value.data.bytes.size) }
                .to_vec(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_itself_and_no_prefix_of_another() {
        let mut infos = Infos::default();
        infos.flag(c"pmix.wait", true);
        infos.number(c"pmix.rank", 7);
        assert!(infos.items[0].has(c"pmix.wait") && infos.items[0].is_true());
        assert!(!infos.items[0].has(c"pmix.wai") && !infos.items[0].has(c"pmix.waits"));
        assert_eq!((infos.items[1].as_u32(), infos.items[1].name()), (Some(7), "pmix.rank".to_owned()));
        assert_eq!(infos.items[0].as_u32(), None);
    }

    #[test]
    fn what_is_logged_is_the_strings_for_the_streams_alone() {
        let mut infos = Infos::default();
        infos.string(key::LOG_STDERR, c"no memory");
        infos.string(key::LOG_STDOUT, c"bye");
        infos.number(key::LOG_STDERR, 7);
        infos.string(c"pmix.log.email", c"nobody");
        // SAFETY: the values are those of `infos`.
        let (texts, others) = unsafe { log_texts(&infos.items) };
        let text = |is_error, bytes: &str| LogText { is_error, bytes: bytes.into() };
        assert_eq!((texts, others), (vec![text(true, "no memory"), text(false, "bye")], 2));
    }

    /// Open MPI 5 takes the ranks that are lost from the values of type PMIX_PROC alone (`ompi/errhandler/errhandler.c`).
    #[test]
    fn a_process_is_a_value_that_stays_where_it_is() {
        let mut infos = Infos::default();
        for rank in 0..9 {
            infos.proc(key::EVENT_AFFECTED_PROC, proc(c"job", rank));
        }
        let ranks = infos.items.iter().map(|info| {
            assert_eq!(info.value.kind, kind::PROC);
            // SAFETY: the kind says which member is set, and `infos` owns the process.
            unsafe { (*info.value.data.proc).rank }
        });
        assert_eq!(ranks.collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn texts_are_cut_to_their_room() {
        let long = CString::new(vec![b'x'; 1000]).expect("no NUL");
        assert_eq!(text(&name(&long)).len(), MAX_KEYLEN);
        assert_eq!(text(&proc(&long, 0).nspace).len(), MAX_NSLEN);
    }
}
