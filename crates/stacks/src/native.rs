//! Native frames: a copied stack is unwound, and its addresses get names.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Instant;

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module, UnwindRegsNative, Unwinder,
    UnwinderNative,
};
use rankrun_core::stacks::Frame;
use rankrun_core::stacks::calls::GENERATED;
use rankrun_sys::trace::Registers;

use crate::capture::Copied;
use crate::image::{Image, Table};
use crate::images::{Images, Loaded, file_name};
use crate::maps::{Mapping, Mappings};
use crate::memory::{Memory, word_at};
use crate::names;

/// A native frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NativeFrame {
    /// Its symbol as it is in the object file.
    pub(crate) symbol: Option<&'static str>,
    /// The object file.
    pub(crate) module: String,
    pub(crate) is_of_python: bool,
    /// It is where the execution of the program begins.
    pub(crate) is_entry: bool,
    /// Those that were inlined first.
    pub(crate) frames: Vec<Frame>,
}

/// A stack whose addresses have no names yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Unwound {
    /// Innermost first.
    calls: Vec<Call>,
    /// There are more.
    pub(crate) is_cut: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Call {
    /// An address within the instruction that calls.
    At(u64),
    /// The start of the function of another object file that the next one calls. It has no frame if it has ended with a jump to
    /// the one before: `MPI_Recv` of Intel MPI is only a jump.
    Entered(u64),
    /// What calls is the kernel: a signal is handled.
    Signal,
}

/// What a call calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Callee {
    At(u64),
    Unknown,
}

/// What is known of the code of a process. It is valid as long as the same files are mapped.
#[derive(Default)]
pub(crate) struct Modules {
    unwinder: UnwinderNative<&'static [u8], MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    /// The start of each mapping whose object file the unwinder knows, or that has none.
    known: HashSet<u64>,
    /// The same for object files: one may have several mappings of code.
    added: HashSet<u64>,
    /// Whether the code at an address is the return from a signal handler.
    returns: HashMap<u64, bool>,
    /// By return address and the mapping of the callee's code: what was called.
    entered: HashMap<(u64, u64), Option<u64>>,
    /// Frames by their address.
    named: HashMap<u64, NativeFrame>,
    /// Functions of the Python interpreter have no lines, and what was inlined into them is not told: most of them are left out anyway.
    pub(crate) has_plain_python: bool,
}

/// Addresses whose names are kept. A stack has most of its return addresses in common with others.
const MAX_NAMED: usize = 65_536;

/// Unwinds the stacks of one process.
pub(crate) struct Stacks<'a> {
    memory: Memory,
    maps: &'a Mappings,
    images: &'a mut Images,
    modules: Modules,
    /// When names are no longer looked up.
    until: Instant,
    /// That time is over, and names are missing.
    pub(crate) is_late: bool,
}

impl Modules {
    fn unwind(
        &mut self,
        address: FrameAddress,
        registers: &mut UnwindRegsNative,
        read: &mut impl FnMut(u64) -> Result<u64, ()>,
    ) -> Result<Option<u64>, framehop::Error> {
        self.unwinder.unwind_frame(address, registers, &mut self.cache, read)
    }
}

impl<'a> Stacks<'a> {
    pub(crate) fn new(memory: Memory, maps: &'a Mappings, images: &'a mut Images, until: Instant) -> Stacks<'a> {
        Stacks::with(memory, maps, images, until, Modules::default())
    }

    /// With what is known of the same process and the same mappings.
    pub(crate) fn with(
        memory: Memory,
        maps: &'a Mappings,
        images: &'a mut Images,
        until: Instant,
        modules: Modules,
    ) -> Stacks<'a> {
        Stacks { memory, maps, images, modules, until, is_late: false }
    }

    /// For the next stacks of this process.
    pub(crate) fn into_modules(self) -> Modules {
        self.modules
    }

    /// The calls of a thread, at most `depth`.
    pub(crate) fn unwind(&mut self, copied: &Copied, depth: usize) -> Unwound {
        let depth = if self.is_over() { 1 } else { depth };
        let (calls, is_cut) = self.addresses(copied, depth);
        Unwound { calls, is_cut }
    }

    /// Looks up the functions of all these stacks, with one pass over each symbol table.
    pub(crate) fn learn<'b>(&mut self, stacks: impl Iterator<Item = &'b Unwound>) {
        let mut images: Vec<(Rc<Image>, Vec<u64>)> = Vec::new();
        for call in stacks.flat_map(|stack| &stack.calls) {
            let (Call::At(address) | Call::Entered(address)) = *call else { continue };
            let Some(mapping) = self.maps.code_at(address) else { continue };
            let Some(Loaded { image, bias }) = self.images.loaded(self.memory, mapping) else { continue };
            let own = address.wrapping_sub(bias);
            match images.iter_mut().find(|(known, _)| Rc::ptr_eq(known, &image)) {
                Some((_, addresses)) => addresses.push(own),
                None => images.push((image, vec![own])),
            }
        }
        for (image, addresses) in images {
            if !image.knows(&addresses) && !self.is_over() {
                image.learn(&addresses);
            }
        }
    }

    /// The frames of a stack, innermost first.
    pub(crate) fn frames(&mut self, stack: &Unwound) -> Vec<NativeFrame> {
        let mut frames: Vec<NativeFrame> = Vec::with_capacity(stack.calls.len());
        for call in &stack.calls {
            frames.extend(match *call {
                Call::At(address) => Some(self.named(address)),
                Call::Entered(address) => self.entered(address, frames.last()),
                Call::Signal => Some(signal()),
            });
            if frames.last().and_then(|frame| frame.symbol).is_some_and(switches_stacks) {
                break;
            }
        }
        frames
    }

    fn named(&mut self, address: u64) -> NativeFrame {
        if let Some(known) = self.modules.named.get(&address) {
            return known.clone();
        }
        let frame = self.name(address);
        // Without the time for it, lines are missing.
        if self.modules.named.len() < MAX_NAMED && !self.is_late {
            self.modules.named.insert(address, frame.clone());
        }
        frame
    }

    /// The function at an address, if it has a name and is not the one that is there already.
    fn entered(&mut self, address: u64, inner: Option<&NativeFrame>) -> Option<NativeFrame> {
        let mapping = self.maps.code_at(address)?;
        let Loaded { image, bias } = self.images.loaded(self.memory, mapping)?;
        let symbol = image.function(address.wrapping_sub(bias))?.name;
        let is_there = inner.is_some_and(|inner| inner.symbol == Some(symbol));
        let frame = Frame {
            function: names::short(symbol, image.is_go),
            file: Some(image.name.clone()),
            line: None,
            is_python: false,
        };
        (!is_there).then(|| NativeFrame {
            symbol: Some(symbol),
            module: image.name.clone(),
            is_of_python: image.is_python,
            is_entry: false,
            frames: vec![frame],
        })
    }

    fn is_over(&mut self) -> bool {
        self.is_late = self.is_late || Instant::now() >= self.until;
        self.is_late
    }

    /// The calls, innermost first.
    fn addresses(&mut self, copied: &Copied, depth: usize) -> (Vec<Call>, bool) {
        let stack = Stack { start: copied.registers.sp, bytes: &copied.stack };
        let mut pc = copied.registers.pc;
        let mut registers = unwind_registers(copied.registers);
        let mut lacks_fp = copied.lacks_fp;
        let mut address = FrameAddress::from_instruction_pointer(pc);
        let mut found: Vec<Call> = Vec::new();
        loop {
            if self.maps.code_at(pc).is_none() && !found.is_empty() {
                return (found, true);
            }
            found.push(Call::At(address.address_for_lookup()));
            if found.len() >= depth {
                return (found, true);
            }
            self.load(pc);
            if let Some(interrupted) = self.interrupted(pc, registers.sp(), &stack) {
                // All registers of what was interrupted are on the stack.
                found.pop();
                found.push(Call::Signal);
                registers = unwind_registers(interrupted);
                pc = interrupted.pc;
                address = FrameAddress::from_instruction_pointer(pc);
                lacks_fp = false;
                continue;
            }
            let before = registers;
            let mut read = |at: u64| stack.word(at).ok_or(());
            let mut next = self.modules.unwind(address, &mut registers, &mut read);
            let goes_on =
                |next: &Result<Option<u64>, _>| matches!(next, Ok(Some(pc)) if self.maps.code_at(*pc).is_some());
            if lacks_fp && !goes_on(&next) {
                // What the frame pointer should be is still on the stack if a caller has one.
                lacks_fp = false;
                if let Some(fp) = self.likely_fp(pc, before.sp(), &stack) {
                    let mut with_fp = before;
                    set_fp(&mut with_fp, fp);
                    let other = self.modules.unwind(address, &mut with_fp, &mut read);
                    if goes_on(&other) {
                        (next, registers) = (other, with_fp);
                    }
                }
            }
            match next {
                Ok(Some(caller)) => {
                    let Some(return_address) = NonZeroU64::new(caller) else { return (found, false) };
                    found.extend(self.called_from(caller, pc).map(Call::Entered));
                    pc = caller;
                    address = FrameAddress::from_return_address(return_address.get()).unwrap_or(address);
                }
                Ok(None) | Err(framehop::Error::ReturnAddressIsNull) => return (found, false),
                Err(_) => return (found, true),
            }
        }
    }

    /// Tells the unwinder of the object file at an address.
    fn load(&mut self, pc: u64) {
        let Some(mapping) = self.maps.code_at(pc) else { return };
        if !self.modules.known.insert(mapping.start) {
            return;
        }
        let Some(Loaded { image, bias }) = self.images.loaded(self.memory, mapping) else { return };
        let same_file = |other: &&Mapping| other.file == mapping.file && other.path == mapping.path;
        let (start, end) = if mapping.path.starts_with('/') {
            let of_it = || self.maps.0.iter().filter(same_file);
            // The same file may be mapped again, elsewhere, as data.
            let near = || of_it().filter(|other| other.start.wrapping_sub(bias) < u64::from(u32::MAX));
            (
                near().map(|other| other.start).min().unwrap_or(mapping.start),
                near().map(|other| other.end).max().unwrap_or(mapping.end),
            )
        } else {
            (mapping.start, mapping.end)
        };
        if !self.modules.added.insert(start) {
            return;
        }
        let section = |name: &str| image.section(name);
        let (text, got) = (section(".text"), section(".got"));
        let (table, index) = (section(".eh_frame"), section(".eh_frame_hdr"));
        for (addresses, by) in image.tables(start.wrapping_sub(bias)..end.wrapping_sub(bias)) {
            let of_eh_frame = by == Table::EhFrame;
            let (table, index) = (table.as_ref().filter(|_| of_eh_frame), index.as_ref().filter(|_| of_eh_frame));
            let info = ExplicitModuleSectionInfo {
                base_svma: start.wrapping_sub(bias),
                text_svma: text.as_ref().map(|section| section.0.clone()),
                text: text.as_ref().map(|section| section.1),
                got_svma: got.as_ref().map(|section| section.0.clone()),
                eh_frame_svma: table.map(|section| section.0.clone()),
                eh_frame: table.map(|section| section.1),
                eh_frame_hdr_svma: index.map(|section| section.0.clone()),
                eh_frame_hdr: index.map(|section| section.1),
                debug_frame: image.debug_frame().filter(|_| !of_eh_frame),
                ..Default::default()
            };
            let range = addresses.start.wrapping_add(bias)..addresses.end.wrapping_add(bias);
            self.modules.unwinder.add_module(Module::new(image.name.clone(), range, start, info));
        }
    }

    /// The registers that a signal handler's caller will have, if the code at `pc` is the return from a handler.
    fn interrupted(&mut self, pc: u64, sp: u64, stack: &Stack<'_>) -> Option<Registers> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        // mov $15, %rax; syscall: what every C library has there.
        const RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
        let memory = self.memory;
        let is_return = *self.modules.returns.entry(pc).or_insert_with(|| {
            let mut code = [0; RETURN.len()];
            memory.fill(pc, &mut code) && code == RETURN
        });
        if !is_return {
            return None;
        }
        // struct ucontext of the kernel: flags, link, stack_t (24 bytes), then r8 to r15, di, si, bp, bx, dx, ax, cx, sp, ip.
        let register = |index: u64| stack.word(sp + 40 + 8 * index);
        Some(Registers { fp: register(10)?, sp: register(15)?, pc: register(16)?, ..Registers::default() })
    }

    /// The innermost place on the stack that looks like a saved frame pointer below the return address of the function at
    /// `pc`.
    fn likely_fp(&mut self, pc: u64, sp: u64, stack: &Stack<'_>) -> Option<u64> {
        /// Words that are tried: larger frames are rare.
        const TRIES: usize = 4096;
        let end = stack.start + stack.bytes.len() as u64;
        let first = sp.next_multiple_of(8);
        let places = (first..end).step_by(8).take(TRIES);
        let calls: Vec<(u64, Callee)> = places.filter_map(|at| Some((at, self.callee(stack.word(at + 8)?)?))).collect();
        // Calls of former functions are still on the stack. A function that is not called directly, or whose caller has
        // ended with a jump to it, has another callee in front of its return address.
        let start = self.start_of_function(pc);
        let is_own = |callee: Callee| matches!((callee, start), (Callee::At(target), Some(start)) if target == start);
        let own = calls.iter().find(|(_, callee)| is_own(*callee));
        own.or(calls.first()).map(|(at, _)| *at)
    }

    /// What the instruction before an address calls, if it is a call.
    fn callee(&self, address: u64) -> Option<Callee> {
        self.maps.code_at(address)?;
        let mut before = [0; 7];
        if !self.memory.fill(address.wrapping_sub(7), &mut before) {
            return None;
        }
        // x86-64: call rel32; call through a register or memory (ff /2), two to seven bytes long.
        if let [_, _, 0xe8, a, b, c, d] = before {
            return Some(Callee::At(address.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into())));
        }
        let is_indirect = |length: usize| before[7 - length] == 0xff && before[8 - length] >> 3 & 7 == 2;
        [2, 3, 4, 6, 7].into_iter().any(is_indirect).then_some(Callee::Unknown)
    }

    /// The function in the object file of `pc` that is called in front of a return address, if the call comes from another file.
    fn called_from(&mut self, return_address: u64, pc: u64) -> Option<u64> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let is_same = |one: &Mapping, other: &Mapping| one.file == other.file && one.path == other.path;
        let (caller, own) = (self.maps.code_at(return_address)?, self.maps.code_at(pc)?);
        if is_same(caller, own) {
            return None;
        }
        let key = (return_address, own.start);
        if let Some(known) = self.modules.entered.get(&key) {
            return *known;
        }
        let found = self
            .target_of_call(return_address)
            .filter(|target| self.maps.code_at(*target).is_some_and(|mapping| is_same(mapping, own)));
        self.modules.entered.insert(key, found);
        found
    }

    /// What is called in front of a return address, through a slot or an entry of the procedure linkage table.
    fn target_of_call(&self, return_address: u64) -> Option<u64> {
        let mut before = [0; 7];
        if !self.memory.fill(return_address.wrapping_sub(7), &mut before) {
            return None;
        }
        match before {
            // call *slot(%rip)
            [_, 0xff, 0x15, a, b, c, d] => self.word(relative(return_address, [a, b, c, d])),
            // call stub
            [_, _, 0xe8, a, b, c, d] => self.behind_stub(relative(return_address, [a, b, c, d])),
            _ => None,
        }
    }

    /// Where an entry of the procedure linkage table jumps to.
    fn behind_stub(&self, address: u64) -> Option<u64> {
        let mut code = [0; 16];
        if !self.memory.fill(address, &mut code) {
            return None;
        }
        // endbr64, then perhaps a prefix: jmp *slot(%rip).
        let skipped = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
        let skipped = if code[skipped] == 0xf2 { skipped + 1 } else { skipped };
        let [0xff, 0x25, a, b, c, d] = code[skipped..skipped + 6] else { return None };
        self.word(relative(address + skipped as u64 + 6, [a, b, c, d]))
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.fill(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// Where the function at an address begins, if it has a name.
    fn start_of_function(&mut self, address: u64) -> Option<u64> {
        let mapping = self.maps.code_at(address)?;
        let Loaded { image, bias } = self.images.loaded(self.memory, mapping)?;
        let own = address.wrapping_sub(bias);
        if !image.knows(&[own]) && !self.is_over() {
            image.learn(&[own]);
        }
        Some(image.function(own)?.start.wrapping_add(bias))
    }

    fn name(&mut self, address: u64) -> NativeFrame {
        let Some(mapping) = self.maps.code_at(address) else {
            return unnamed(address, "?".to_owned());
        };
        let Some(Loaded { image, bias }) = self.images.loaded(self.memory, mapping) else {
            let name = file_name(&mapping.path);
            // Code that was made at run time.
            let module = if name.is_empty() { GENERATED } else { name };
            return unnamed(address - mapping.start + mapping.offset, module.to_owned());
        };
        let own = address.wrapping_sub(bias);
        let symbol = image.function(own).map(|function| function.name);
        let is_plain = image.is_python && self.modules.has_plain_python;
        let lines = if is_plain {
            Vec::new()
        } else if image.has_lines() || !self.is_over() {
            image.lines_at(own)
        } else {
            Vec::new()
        };
        let last = lines.len().saturating_sub(1);
        let mut frames: Vec<Frame> = lines
            .into_iter()
            .enumerate()
            .map(|(index, line)| {
                // The names of debug information lack what the linker knows, as aliases.
                let name = line.function.as_deref().or(if index == last { symbol } else { None });
                Frame {
                    function: name.map_or_else(|| format!("{own:#x}"), |name| names::short(name, image.is_go)),
                    file: Some(line.file.unwrap_or_else(|| image.name.clone())),
                    line: line.line,
                    is_python: false,
                }
            })
            .collect();
        if frames.is_empty() {
            let function = symbol.map_or_else(|| format!("{own:#x}"), |name| names::short(name, image.is_go));
            frames.push(Frame { function, file: Some(image.name.clone()), line: None, is_python: false });
        }
        // `_start` is some dozens of bytes long.
        let is_entry = own.wrapping_sub(image.entry) < 64;
        NativeFrame { symbol, module: image.name.clone(), is_of_python: image.is_python, is_entry, frames }
    }
}

/// What an instruction that ends at `end` names with a distance.
fn relative(end: u64, distance: [u8; 4]) -> u64 {
    end.wrapping_add_signed(i32::from_le_bytes(distance).into())
}

/// Where a signal interrupted the program.
fn signal() -> NativeFrame {
    let frame = Frame { function: "<signal>".to_owned(), file: None, line: None, is_python: false };
    NativeFrame { symbol: None, module: String::new(), is_of_python: false, is_entry: false, frames: vec![frame] }
}

fn unnamed(offset: u64, module: String) -> NativeFrame {
    let frame = Frame { function: format!("{offset:#x}"), file: Some(module.clone()), line: None, is_python: false };
    NativeFrame { symbol: None, module, is_of_python: false, is_entry: false, frames: vec![frame] }
}

/// Whether a function of Go's runtime begins on another stack than that of who calls it: what is above it on its own stack is old.
fn switches_stacks(symbol: &str) -> bool {
    ["runtime.mcall", "runtime.systemstack"].contains(&symbol.strip_suffix(".abi0").unwrap_or(symbol))
}

struct Stack<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl Stack<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        word_at(self.bytes, usize::try_from(address.checked_sub(self.start)?).ok()?)
    }
}

#[cfg(target_arch = "x86_64")]
fn unwind_registers(registers: Registers) -> UnwindRegsNative {
    UnwindRegsNative::new(registers.pc, registers.sp, registers.fp)
}

#[cfg(target_arch = "x86_64")]
fn set_fp(registers: &mut UnwindRegsNative, fp: u64) {
    registers.set_bp(fp);
}

#[cfg(target_arch = "aarch64")]
fn unwind_registers(registers: Registers) -> UnwindRegsNative {
    UnwindRegsNative::new(registers.lr, registers.sp, registers.fp)
}

#[cfg(target_arch = "aarch64")]
fn set_fp(registers: &mut UnwindRegsNative, fp: u64) {
    registers.set_fp(fp);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_of_gos_runtime_ends_where_it_was_changed_to() {
        assert!(["runtime.mcall", "runtime.mcall.abi0", "runtime.systemstack.abi0"].into_iter().all(switches_stacks));
        assert!(!["runtime.systemstack_switch", "main.mcall", "runtime.abi0"].into_iter().any(switches_stacks));
    }
}
