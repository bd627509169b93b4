//! Where things are in the structures of CPython. The numbers are offsets in bytes on 64-bit machines, of release builds.

use crate::memory::{Memory, word_at};

/// Where the frames of a thread begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum First {
    /// `tstate->frame`, or since 3.13 `tstate->current_frame`.
    Direct(u64),
    /// `tstate->cframe->current_frame` (3.11, 3.12).
    Behind(u64, u64),
}

/// How frames say which of them one call of the evaluation loop runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Runs {
    /// Each has a call of its own (to 3.10).
    Each,
    /// The outermost has `is_entry` set, at this offset (3.11).
    Marked(usize),
    /// Below the outermost is a frame whose `owner`, at this offset, is at least 3: it is no Python frame (3.12 on).
    Shim(usize),
}

/// How the position in a function is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// `f_lasti`, an index of bytes (3.9).
    Bytes(usize),
    /// `f_lasti`, an index of instructions of two bytes (3.10).
    Units(usize),
    /// The address of the last instruction (3.11, 3.12), or of the current one.
    Address(usize),
}

/// Who holds the GIL.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gil {
    /// `_PyRuntime.gilstate.tstate_current` (to 3.11).
    Current(u64),
    /// `interp->ceval.gil`, with `last_holder` and `locked` (3.12).
    Pointed(u64, u64, u64),
    /// The same in the interpreter itself (3.13 on): holder, locked.
    Own(u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LineTable {
    /// `co_lnotab` (3.9).
    Lnotab,
    /// PEP 626 (3.10).
    Deltas,
    /// PEP 657 (3.11 on).
    Locations,
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// `3.12`, or more exactly.
    pub(crate) version: String,
    // _PyRuntimeState
    pub(crate) interpreters: u64,
    // PyInterpreterState
    pub(crate) next_interpreter: u64,
    pub(crate) threads: u64,
    // PyThreadState
    pub(crate) next_thread: u64,
    pub(crate) pthread: u64,
    pub(crate) native_id: Option<u64>,
    pub(crate) first: First,
    pub(crate) gil: Gil,
    // _PyInterpreterFrame, or PyFrameObject
    pub(crate) previous: usize,
    pub(crate) code: usize,
    pub(crate) position: Position,
    pub(crate) runs: Runs,
    // PyCodeObject
    pub(crate) file_name: usize,
    pub(crate) name: usize,
    pub(crate) first_line: usize,
    pub(crate) line_table: usize,
    pub(crate) lines: LineTable,
    pub(crate) instructions: usize,
    // PyUnicodeObject: the sizes of the headers
    pub(crate) ascii: u64,
    pub(crate) compact: u64,
    /// The lowest bit of the kind of a string, in its state.
    pub(crate) kind_shift: u32,
}

/// The layout of a version before 3.13, which does not describe itself.
pub(crate) fn of_version(minor: u32, version: String) -> Option<Layout> {
    let old = Layout {
        version,
        interpreters: 32,
        next_interpreter: 0,
        threads: 8,
        next_thread: 8,
        pthread: 176,
        native_id: None,
        first: First::Direct(24),
        gil: Gil::Current(568),
        previous: 24,
        code: 32,
        position: Position::Bytes(104),
        runs: Runs::Each,
        file_name: 104,
        name: 112,
        first_line: 40,
        line_table: 120,
        lines: LineTable::Lnotab,
        instructions: 0,
        ascii: 48,
        compact: 72,
        kind_shift: 2,
    };
    match minor {
        9 => Some(old),
        10 => Some(Layout { position: Position::Units(96), lines: LineTable::Deltas, ..old }),
        11 => Some(Layout {
            interpreters: 40,
            threads: 16,
            pthread: 152,
            native_id: Some(160),
            first: First::Behind(56, 8),
            gil: Gil::Current(576),
            previous: 48,
            code: 32,
            position: Position::Address(56),
            runs: Runs::Marked(68),
            file_name: 112,
            name: 128,
            first_line: 72,
            line_table: 136,
            lines: LineTable::Locations,
            instructions: 184,
            ..old
        }),
        12 => Some(Layout {
            interpreters: 40,
            threads: 72,
            pthread: 136,
            native_id: Some(144),
            first: First::Behind(56, 0),
            gil: Gil::Pointed(384, 8, 16),
            previous: 8,
            code: 0,
            position: Position::Address(56),
            runs: Runs::Shim(70),
            file_name: 112,
            name: 128,
            first_line: 68,
            line_table: 136,
            lines: LineTable::Locations,
            instructions: 192,
            ascii: 40,
            compact: 56,
            ..old
        }),
        _ => None,
    }
}

/// The layout that an interpreter describes at the beginning of `_PyRuntime` (`_Py_DebugOffsets`, 3.13 on).
pub(crate) fn described(memory: Memory, runtime: u64) -> Option<Layout> {
    let bytes = memory.copy(runtime, 1024);
    if bytes.get(..8)? != b"xdebugpy" {
        return None;
    }
    let word = |index: usize| word_at(&bytes, 8 * index);
    let version = word(1)?;
    let is_free_threaded = word(2)? != 0;
    // runtime_state: size, finalizing, interpreters_head. What follows has grown in 3.14.
    let is_old = version < 0x030e_0000;
    let interpreter = 6;
    let (interpreter_length, frame_length) = if is_old { (13, 6) } else { (16, 8) };
    let extra = usize::from(!is_old);
    let thread = interpreter + interpreter_length;
    let frame = thread + 9;
    let code = frame + frame_length;
    let code_length = if is_old { 10 } else { 11 };
    // Here follow pyobject (2), type_object (4), tuple_object and list_object (3 each), in 3.14 set_object (4), then
    // dict_object (3), float_object (2), long_object (3), bytes_object (3), unicode_object.
    let unicode = code + code_length + 2 + 4 + 3 + 3 + 4 * extra + 3 + 2 + 3 + 3;
    let small = |index: usize| word(index).filter(|offset| *offset < 1 << 20);
    let offset = |index: usize| small(index).and_then(|offset| usize::try_from(offset).ok());
    let ascii = small(unicode + 3).filter(|size| (24..=64).contains(size))?;
    Some(Layout {
        version: version_of(version),
        interpreters: small(5)?,
        next_interpreter: small(interpreter + 2)?,
        threads: small(interpreter + 3)?,
        next_thread: small(thread + 2)?,
        pthread: small(thread + 5)?,
        native_id: Some(small(thread + 6)?),
        first: First::Direct(small(thread + 4)?),
        gil: Gil::Own(small(interpreter + 12 + extra)?, small(interpreter + 11 + extra)?),
        previous: offset(frame + 1)?,
        code: offset(frame + 2)?,
        position: Position::Address(offset(frame + 3)?),
        runs: Runs::Shim(offset(frame + 5)?),
        file_name: offset(code + 1)?,
        name: offset(code + 3)?,
        first_line: offset(code + 5)?,
        line_table: offset(code + 4)?,
        lines: LineTable::Locations,
        instructions: offset(code + 9)?,
        ascii,
        compact: ascii + 16,
        kind_shift: if is_free_threaded && !is_old { 8 } else { 2 },
    })
}

/// The text of `PY_VERSION_HEX`.
pub(crate) fn version_of(number: u64) -> String {
    format!("{}.{}.{}", number >> 24 & 0xff, number >> 16 & 0xff, number >> 8 & 0xff)
}
