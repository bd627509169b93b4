//! One stack from a thread's native and Python frames.

use rankrun_core::stacks::Frame;

use crate::native::NativeFrame;

/// Frames of both kinds, innermost first. Each call of Python's evaluation loop is replaced by the Python frames that it
/// runs, innermost first in `runs`; what else the interpreter does between them is left out.
/// `is_whole`: nothing of native code is left out.
pub(crate) fn merge(native: &[NativeFrame], runs: &[Vec<Frame>], is_cut: bool, is_whole: bool) -> Vec<Frame> {
    let native = if is_whole { native } else { without_start(native) };
    if runs.is_empty() {
        return native.iter().flat_map(|frame| frame.frames.clone()).collect();
    }
    let loops = native.iter().filter(|frame| is_evaluation(frame)).count();
    if loops == runs.len() || (is_cut && loops < runs.len()) {
        return interleaved(native, runs, is_whole);
    }
    // The calls cannot be told apart: what Python has called, then all of Python.
    let inner = native.iter().take_while(|frame| is_whole || !frame.is_of_python);
    inner.flat_map(|frame| frame.frames.clone()).chain(runs.iter().flatten().cloned()).collect()
}

fn interleaved(native: &[NativeFrame], runs: &[Vec<Frame>], is_whole: bool) -> Vec<Frame> {
    let mut merged = Vec::new();
    let mut runs = runs.iter();
    let mut is_innermost = true;
    for frame in native {
        if is_evaluation(frame) {
            merged.extend(runs.next().into_iter().flatten().cloned());
            is_innermost = false;
        } else if is_whole || !frame.is_of_python || is_end(frame) || (is_innermost && says_something(frame)) {
            merged.extend(frame.frames.iter().cloned());
        }
    }
    merged.extend(runs.flatten().cloned());
    merged
}

/// Whether it runs Python frames. With tail calls (3.14) each instruction is a function.
fn is_evaluation(frame: &NativeFrame) -> bool {
    let names = ["_PyEval_EvalFrameDefault", "_TAIL_CALL_"];
    frame.is_of_python && frame.symbol.is_some_and(|symbol| names.iter().any(|name| symbol.starts_with(name)))
}

/// Whether the interpreter is on its way out: what is called from there runs after the end of the program.
fn is_end(frame: &NativeFrame) -> bool {
    frame.symbol == Some("Py_FinalizeEx")
}

/// Whether a function of the interpreter that it is in at this moment tells more than that it calls something.
fn says_something(frame: &NativeFrame) -> bool {
    const GLUE: [&str; 14] = [
        "_PyEval_",
        "PyEval_",
        "_PyObject_",
        "PyObject_Call",
        "PyObject_Vectorcall",
        "_PyFunction_",
        "_PyVectorcall",
        "PyVectorcall",
        "PyCFunction_",
        "cfunction_",
        "method_vectorcall",
        "method_call",
        "object_vacall",
        "slot_",
    ];
    frame.symbol.is_some_and(|symbol| !GLUE.iter().any(|glue| symbol.starts_with(glue)))
}

/// Leaves out how every program and every thread begins, and what calls Python's own `main`.
fn without_start(native: &[NativeFrame]) -> &[NativeFrame] {
    let is_main =
        |frame: &NativeFrame| frame.symbol == Some("main") || frame.frames.iter().any(|it| it.function == "main");
    if let Some(main) = native.iter().rposition(is_main) {
        return &native[..=main];
    }
    const START: [&str; 11] = [
        "_start",
        "__libc_start_main",
        "__libc_start_call_main",
        "_start_c",
        "start_thread",
        "start",
        "clone",
        "clone3",
        "__clone",
        "__clone3",
        "thread_start",
    ];
    let starts = |frame: &&NativeFrame| match frame.symbol {
        Some(symbol) => START.iter().any(|name| symbol.starts_with(name) && symbol.len() <= name.len() + 5),
        None => frame.is_entry || is_of_libc(&frame.module),
    };
    let kept = native.len() - native.iter().rev().take_while(starts).count();
    // A thread that has nothing else is shown as it is.
    if kept == 0 { native } else { &native[..kept] }
}

fn is_of_libc(module: &str) -> bool {
    ["libc.so", "libc-2", "libpthread", "ld-linux", "ld-musl"].iter().any(|name| module.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(function: &'static str, module: &str) -> NativeFrame {
        let frame =
            Frame { function: function.to_owned(), file: Some(module.to_owned()), line: None, is_python: false };
        let symbol = (!function.starts_with("0x")).then_some(function);
        NativeFrame {
            symbol,
            module: module.to_owned(),
            is_of_python: module.contains("python"),
            is_entry: false,
            frames: vec![frame],
        }
    }

    fn python(function: &str) -> Frame {
        Frame { function: function.to_owned(), file: Some("train.py".to_owned()), line: Some(1), is_python: true }
    }

    fn names(frames: &[Frame]) -> Vec<&str> {
        frames.iter().map(|frame| frame.function.as_str()).collect()
    }

    fn stack() -> Vec<NativeFrame> {
        [
            ("poll", "libc.so.6"),
            ("MPI_Allreduce", "libmpi.so.12"),
            ("cfunction_call", "libpython3.11.so"),
            ("_PyEval_EvalFrameDefault", "libpython3.11.so"),
            ("callback", "libapp.so"),
            ("PyObject_CallNoArgs", "libpython3.11.so"),
            ("_PyEval_EvalFrameDefault.cold", "libpython3.11.so"),
            ("Py_BytesMain", "libpython3.11.so"),
            ("0x2724a", "libc.so.6"),
            ("__libc_start_main", "libc.so.6"),
            ("_start", "python3.11"),
        ]
        .map(|(function, module)| native(function, module))
        .to_vec()
    }

    #[test]
    fn python_frames_take_the_place_of_the_evaluation_loop() {
        let runs = vec![vec![python("reduce"), python("step")], vec![python("main")]];
        let merged = merge(&stack(), &runs, false, false);
        assert_eq!(names(&merged), ["poll", "MPI_Allreduce", "reduce", "step", "callback", "main"]);
    }

    #[test]
    fn what_runs_at_exit_is_known_by_its_caller() {
        let frames = ["_PyEval_EvalFrameDefault", "atexit_callfuncs", "Py_FinalizeEx", "Py_RunMain"];
        let frames = frames.map(|name| native(name, "libpython3.11.so"));
        assert_eq!(names(&merge(&frames, &[vec![python("save")]], false, false)), ["save", "Py_FinalizeEx"]);
    }

    #[test]
    fn a_stack_whose_loops_cannot_be_told_apart_shows_all_of_python() {
        let merged = merge(&stack(), &[vec![python("main")]], false, false);
        assert_eq!(names(&merged), ["poll", "MPI_Allreduce", "main"]);
    }

    #[test]
    fn a_cut_stack_keeps_the_outer_python_frames() {
        let runs = vec![vec![python("reduce")], vec![python("main")]];
        let merged = merge(&stack()[..4], &runs, true, false);
        assert_eq!(names(&merged), ["poll", "MPI_Allreduce", "reduce", "main"]);
    }

    #[test]
    fn nothing_is_left_out_where_all_of_native_code_is_asked_for() {
        let runs = vec![vec![python("reduce"), python("step")], vec![python("main")]];
        let merged = merge(&stack(), &runs, false, true);
        let inner =
            ["poll", "MPI_Allreduce", "cfunction_call", "reduce", "step", "callback", "PyObject_CallNoArgs", "main"];
        let outer = ["Py_BytesMain", "0x2724a", "__libc_start_main", "_start"];
        assert_eq!(names(&merged), [&inner[..], &outer].concat());
    }

    #[test]
    fn the_start_of_a_program_is_left_out_and_its_exit_is_not() {
        let frames = ["pause", "handler", "0x41000", "exit", "0x2724a", "__libc_start_main"];
        let frames = frames.map(|name| native(name, "libc.so.6"));
        assert_eq!(names(&merge(&frames, &[], false, false)), ["pause", "handler", "0x41000", "exit"]);
        let frames = ["clone3"].map(|name| native(name, "libc.so.6"));
        assert_eq!(names(&merge(&frames, &[], false, false)), ["clone3"]);
    }
}
