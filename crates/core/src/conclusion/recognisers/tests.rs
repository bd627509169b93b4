use proptest::prelude::*;

use super::choose::FAMILIES;
use super::message::{Message, SIGABRT};
use super::*;
use crate::status::WorkerStatus;
use crate::traceback::first_of_group;

fn exited(code: u8) -> End {
    End { status: Some(WorkerStatus::Exited { code }), ..End::default() }
}

fn headline(text: &str, end: End) -> Option<String> {
    choose(&text.lines().collect::<Vec<_>>(), end).map(|cause| cause.exception.headline())
}

/// JAX 0.10.2, when a rank has left with 0 before `jax.distributed.initialize()`.
const JAX: &str = "\
F1122 09:27:50.923305    8246 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most \
likely indicates that another task died; see the other task logs for more details. Disable Python buffering, i.e. `python -u`, to \
be sure to see all the previous output. absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded

RPC: /xla.coordination.CoordinationService/RegisterTask
*** Check failure stack trace: ***
    @     0x7f2b37440634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
    @     0x7f2b374405b6  absl::lts_20260107::log_internal::LogMessage::Flush()
    @     0x7f2b3749a82e  std::_Function_handler<>::_M_invoke()
    @     0x7f2b334eb505  std::_Function_handler<>::_M_invoke()
    @     0x7f2b335040ee  xla::CoordinationServiceAgent::SetError()
    @     0x7f2b33503b62  xla::CoordinationServiceAgent::Connect()
    @     0x7f2b334e9f6a  xla::DistributedRuntimeCoordinationServiceClient::Connect()
    @     0x7f2b374963e3  nanobind::detail::func_create<>()::{lambda()#1}::__invoke()
    @     0x7f2b3342520d  nanobind::detail::nb_func_vectorcall_simple_1()
    @     0x7f2b3e6e0ba3  PyObject_Vectorcall
Fatal Python error: Aborted

Current thread 0x00007f2b3ee1eb80 (most recent call first):
  File \"/x/site-packages/jax/_src/distributed.py\", line 173 in initialize
  File \"/x/site-packages/jax/_src/distributed.py\", line 332 in initialize
  File \"/x/c.py\", line 3 in <module>

Extension modules: numpy._core._multiarray_umath, numpy.linalg._umath_linalg (total: 2)
";

/// CPython 3.11 with faulthandler, and glibc 2.36.
const DOUBLE_FREE: &str = "free(): double free detected in tcache 2\nFatal Python error: Aborted\n\n\
    Current thread 0x00007f2b3ee1eb80 (most recent call first):\n  File \"/x/a.py\", line 3 in <module>\n";

#[test]
fn what_was_said_before_an_abort_comes_before_faulthandlers_title() {
    let aborted =
        End { status: Some(WorkerStatus::Signaled { signal: SIGABRT, core_dumped: false }), ..End::default() };
    assert_eq!(headline(DOUBLE_FREE, aborted).as_deref(), Some("free(): double free detected in tcache 2"));
    let cause = choose(&DOUBLE_FREE.lines().collect::<Vec<_>>(), aborted).expect("a cause").exception;
    assert_eq!((cause.file.as_deref(), cause.line), (Some("/x/a.py"), Some(3)), "faulthandler knows where");
    let title = DOUBLE_FREE.split_once('\n').expect("lines").1;
    assert_eq!(headline(title, aborted).as_deref(), Some("Fatal Python error: Aborted"));
}

#[test]
fn a_check_that_failed_is_the_cause_before_its_stack() {
    let aborted =
        End { status: Some(WorkerStatus::Signaled { signal: SIGABRT, core_dumped: false }), ..End::default() };
    let cause = headline(JAX, aborted).expect("a cause");
    assert!(
        cause.starts_with("Terminating process because the JAX distributed service detected fatal errors."),
        "{cause}"
    );
    assert_eq!(crate::peers::loss_in(&cause), Some(crate::peers::Loss::Peer));
    let cause = headline(
        "F0102 03:04:05.060708 9 a.cc:1] Check failed: n > 0 (0 vs. 0)\n*** Check failure stack trace: ***\n",
        aborted,
    );
    assert_eq!(cause.as_deref(), Some("Check failed: n > 0 (0 vs. 0)"));
    assert_eq!(headline(JAX, exited(3)), None, "it does not end with that code");
}

/// What recognisers look for, in no order: a program may print anything.
const MARKS: [&str; 58] = [
    "",
    "words of the program",
    "  indented",
    "\tat a.B.c(B.java:5)",
    "Traceback (most recent call last):",
    "  + Exception Group Traceback (most recent call last):",
    "  | ValueError: x",
    "  File \"a.py\", line 5, in f",
    "ValueError:",
    "ValueError: no data",
    "Original Traceback (most recent call last):",
    "The above exception was the direct cause of the following exception:",
    "Exception in thread Thread-1:",
    "Exception ignored in: <x>",
    "SyntaxError: invalid syntax",
    "Fatal Python error: Aborted",
    "Current thread 0x1 (most recent call first):",
    "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    "Could not override 'x'.",
    "╭───── Traceback (most recent call last) ─────╮",
    "╰──────╯",
    "thread 'main' (4711) panicked at src/main.rs:5:9:",
    "stack backtrace:",
    "panic: oops",
    "goroutine 1 [running]:",
    "exit status 2",
    "Exception in thread \"main\" java.lang.IllegalStateException: closed",
    "Caused by: java.io.IOException: quota",
    "# A fatal error has been detected by the Java Runtime Environment:",
    "Node.js v20.20.2",
    "   ^",
    "FATAL ERROR: JavaScript heap out of memory",
    "Error in f(x) : bad",
    "Execution halted",
    "no mesh at main.pl line 2.",
    "BEGIN failed--compilation aborted at main.pl line 1.",
    "ERROR: LoadError: x",
    "Stacktrace:",
    "free(): invalid pointer",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "  what():  std::bad_alloc",
    "a.out: a.c:5: main: Assertion `n == m' failed.",
    "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x1",
    "SUMMARY: AddressSanitizer: heap-use-after-free a.c:5 in main",
    "a.c:5:9: runtime error: division by zero",
    "At line 4 of file a.f90 (unit = 10)",
    "Fortran runtime error: End of file",
    "Program received signal SIGSEGV: Segmentation fault - invalid memory reference.",
    "a.out: error while loading shared libraries: libx.so: cannot open shared object file",
    "Abort(1) on node 1 (rank 1 in comm 0): Fatal error in internal_Send: Invalid rank, error stack:",
    "internal_Send(78).: Invalid rank has value 7",
    "[host:1] *** An error occurred in MPI_Send",
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD",
    "main.sh: line 2: foo: command not found",
    "==== short test summary info ====",
    "FAILED (failures=1)",
    "[  FAILED  ] 2 tests, listed below:",
    "FATAL: giving up on it",
];

proptest! {
    #[test]
    fn no_order_of_lines_is_too_much(
        picks in proptest::collection::vec(0..MARKS.len(), 0..40),
        code in proptest::sample::select(vec![1u8, 2, 7, 101, 127, 134]),
    ) {
        let lines: Vec<&str> = picks.into_iter().map(|pick| MARKS[pick]).collect();
        choose(&lines, exited(code));
        for recogniser in FAMILIES.into_iter().flatten() {
            if let Some(Message { lines: taken, .. }) = (recogniser.find)(&lines) {
                prop_assert!(taken.start < taken.end && taken.end <= lines.len(), "{taken:?} of {lines:?}");
            }
        }
    }
}

#[test]
fn of_groups_within_groups_the_innermost_exception_is_the_first() {
    let rule = "+-+---------------- 1 ----------------";
    let header = "| Exception Group Traceback (most recent call last):";
    let title = "| ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)";
    let frame = "|   File \"/a/b.py\", line 4, in f\n    |     run: int = g()";
    let cut = format!("  {header}\n  {frame}\n  {title}\n  {rule}\n    {header}\n    {frame}\n    {title}\n");
    let whole = format!(
        "{cut}    {rule}\n      | Traceback (most recent call last):\n      {frame}\n      | ValueError: no mesh\n"
    );
    assert_eq!(first_of_group(&whole).as_deref(), Some("ValueError: no mesh"));
    assert_eq!(first_of_group(&cut).as_deref(), title.strip_prefix("| "), "no more of it is known");
}
