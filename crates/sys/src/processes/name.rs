//! The name of a process in `ps`. The guard must not be named `rankrun`: it must survive `pkill rankrun`, to clean up.

use std::io;

/// Sets the name of the process (15 bytes at most are kept) and overwrites its command line with `title`, cut to the
/// space that the original arguments took.
pub fn set(name: &str, title: &str) -> io::Result<()> {
    let mut short = [0u8; 16];
    let length = name.len().min(15);
    short[..length].copy_from_slice(&name.as_bytes()[..length]);
    // SAFETY: the kernel reads at most 16 bytes of a buffer that ends in a zero.
    if unsafe { libc::prctl(libc::PR_SET_NAME, short.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (start, end) = arguments()?;
    let room = end.saturating_sub(start);
    let text = &title.as_bytes()[..title.len().min(room.saturating_sub(1))];
    // SAFETY: the kernel says that the arguments of this process lie at start..end, on its stack, writable; nothing of
    // ours reads them any more, since std has copied what it needs and this is a fork that parses no arguments.
    unsafe {
        let memory = std::slice::from_raw_parts_mut(start as *mut u8, room);
        memory.fill(0);
        memory[..text.len()].copy_from_slice(text);
    }
    Ok(())
}

/// Where the arguments lie in memory: fields 48 and 49 of /proc/self/stat (proc(5)).
fn arguments() -> io::Result<(usize, usize)> {
    let stat = crate::kernel::piece_text("/proc/self/stat")?;
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // The first field after the name is the third.
    let mut fields = rest.split_ascii_whitespace().skip(48 - 3);
    let mut next = || fields.next().and_then(|field| field.parse::<usize>().ok());
    match (next(), next()) {
        (Some(start), Some(end)) if start > 0 && end > start => Ok((start, end)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}
