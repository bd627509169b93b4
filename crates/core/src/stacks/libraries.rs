//! Libraries whose calls spin or run tasks: what is inside of them says nothing of the program.

use super::{Frame, ThreadStack};

/// Libraries that spin while they wait, by the beginning of their files' names: what is inside of the call into them changes from
/// one microsecond to the next.
const SPINNING: [&str; 17] = [
    "libmpi",
    "libopen-pal",
    "libopen-rte",
    "libpmix",
    "libuc",
    "libfabric",
    "libpsm",
    "libhcoll",
    "libsharp",
    "libgloo",
    "libnccl",
    "librccl",
    "libgomp",
    "libiomp",
    "libomp",
    "libtbb",
    "libpsm2",
];
/// Those of them that wait for other ranks.
const OF_MPI: [&str; 8] =
    ["libmpi", "libopen-pal", "libopen-rte", "libpmix", "libuc", "libfabric", "libpsm", "libhcoll"];
/// The same of GPUs. What waits for a GPU cannot be told from what lets it compute.
const GPU: [&str; 7] = ["libcuda", "libcublas", "libcudnn", "libamdhip64", "libhsa-runtime", "libze_", "libnvidia"];
/// What these libraries call to wait.
const SYSTEM: [&str; 5] = ["libc.so", "libc-", "libpthread", "ld-", "[vdso]"];

fn is_of(frame: &Frame, libraries: &[&str]) -> bool {
    let file = frame.file.as_deref().filter(|_| !frame.is_python).unwrap_or_default();
    libraries.iter().any(|library| file.starts_with(library))
}

/// The innermost frames, if they are of a library that spins while it waits.
pub(super) fn inside(thread: &ThreadStack) -> &[Frame] {
    let is_spinning = |frame: &Frame| is_of(frame, &SPINNING) || is_of(frame, &GPU);
    let own = thread.frames.iter().position(|frame| !is_spinning(frame) && !is_of(frame, &SYSTEM));
    let frames = &thread.frames[..own.unwrap_or(thread.frames.len())];
    &frames[..frames.iter().rposition(is_spinning).map_or(0, |at| at + 1)]
}

/// Whether some of these frames are of a GPU's library.
pub(super) fn waits_for_gpu(inside: &[Frame]) -> bool {
    inside.iter().any(|frame| is_of(frame, &GPU))
}

/// How many of the innermost frames are of a library that waits for other ranks, whatever it is called with.
pub(super) fn inside_mpi(thread: &ThreadStack) -> Option<usize> {
    let inside = inside(thread);
    inside.last().filter(|outermost| is_of(outermost, &OF_MPI) && !waits_for_gpu(inside)).map(|_| inside.len())
}

/// Whether a frame is of a loop that runs tasks one after another: those that wait are on no stack.
pub(super) fn is_of_loop(frame: &Frame) -> bool {
    let is_of_asyncio = frame.file.as_deref() == Some("base_events.py") && frame.function.ends_with("run_forever");
    frame.is_of_go() || is_of_asyncio || frame.function == "uv_run"
}
