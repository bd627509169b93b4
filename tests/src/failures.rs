//! The failures that the tests bring about and docs/failures.md lists: what happens in which program, and what the
//! report must say of it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_core::verdict::Fate;

use crate::environment::scratch;
use crate::time::wait_until;

/// What a rank is written in, and with which communication library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Python,
    Mpich,
    IntelMpi,
    OpenMpi,
    OpenMpi4,
    Torch,
    C,
    COpenMpi,
    Cpp,
    Rust,
    Shell,
}

impl Program {
    pub const ALL: [Program; 11] = [
        Program::Python,
        Program::Mpich,
        Program::IntelMpi,
        Program::OpenMpi,
        Program::OpenMpi4,
        Program::Torch,
        Program::C,
        Program::COpenMpi,
        Program::Cpp,
        Program::Rust,
        Program::Shell,
    ];

    fn words(self) -> &'static str {
        match self {
            Program::Python => "Python",
            Program::Mpich | Program::IntelMpi | Program::OpenMpi | Program::OpenMpi4 => "mpi4py",
            Program::Torch => "torch",
            Program::C | Program::COpenMpi => "C",
            Program::Cpp => "C++",
            Program::Rust => "Rust",
            Program::Shell => "shell",
        }
    }
}

/// What happens to the rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    Exception,
    Terminate,
    ExitCode,
    Segv,
    Kill,
    Abrt,
    Term,
    StoppedByAnother,
    ExitAfterInit,
    ExitAfterFinalize,
    ExitBeforeInit,
    Abort(i32),
    StuckInFinalize,
    StuckInExitHandlers,
    OutOfMemory,
    FailingHook,
    CommandNotFound,
    ChildSegv,
}

impl Failure {
    pub const ALL: [Failure; 20] = [
        Failure::Exception,
        Failure::Terminate,
        Failure::FailingHook,
        Failure::StuckInFinalize,
        Failure::StuckInExitHandlers,
        Failure::ExitCode,
        Failure::Segv,
        Failure::Kill,
        Failure::Abrt,
        Failure::Term,
        Failure::OutOfMemory,
        Failure::StoppedByAnother,
        Failure::ExitBeforeInit,
        Failure::ExitAfterInit,
        Failure::ExitAfterFinalize,
        Failure::Abort(0),
        Failure::Abort(3),
        Failure::Abort(256),
        Failure::CommandNotFound,
        Failure::ChildSegv,
    ];

    /// How the programs in `tests/programs/failures` call it.
    pub fn argument(self) -> String {
        let name = match self {
            Failure::Exception => "exception",
            Failure::Terminate => "terminate",
            Failure::ExitCode => "exit-code",
            Failure::Segv => "sigsegv",
            Failure::Kill => "sigkill",
            Failure::Abrt => "sigabrt",
            Failure::Term => "sigterm",
            Failure::StoppedByAnother => "sigstop",
            Failure::ExitAfterInit => "exit-after-init",
            Failure::ExitAfterFinalize => "exit-after-finalize",
            Failure::ExitBeforeInit => "exit-before-init",
            Failure::Abort(code) => return format!("abort={code}"),
            Failure::StuckInFinalize => "stuck-in-finalize",
            Failure::StuckInExitHandlers => "stuck-in-exit-handlers",
            Failure::OutOfMemory => "out-of-memory",
            Failure::FailingHook => "failing-hook",
            Failure::CommandNotFound => "not-found",
            Failure::ChildSegv => "child-sigsegv",
        };
        name.to_owned()
    }

    fn words(self, program: Program) -> String {
        let words = match self {
            Failure::Exception if is_mpi(program) && is_python(program) => {
                "an uncaught exception while the others are finalizing"
            }
            Failure::Exception if program == Program::Rust => "a panic",
            Failure::Exception => "an uncaught exception",
            Failure::Terminate => "`std::terminate()`",
            Failure::ExitCode => "exits with 3",
            Failure::Segv => "dies by SIGSEGV",
            Failure::Kill => "dies by SIGKILL",
            Failure::Abrt => "dies by SIGABRT",
            Failure::Term => "dies by SIGTERM",
            Failure::StoppedByAnother => "is stopped (SIGSTOP) by another process",
            Failure::ExitAfterInit => "`_exit(0)` after `MPI_Init`, without `MPI_Finalize`",
            Failure::ExitAfterFinalize => "every rank: `_exit(0)` after `MPI_Finalize`",
            Failure::ExitBeforeInit => "`_exit(0)` before `MPI_Init`",
            Failure::Abort(code) => return format!("`MPI_Abort` or `rankrun.abort` with {code}"),
            Failure::StuckInFinalize => "an uncaught exception while the others are in a barrier",
            Failure::StuckInExitHandlers => "an uncaught exception, then an `atexit` handler that never ends",
            Failure::OutOfMemory => "takes more memory than its cgroup has",
            Failure::FailingHook => "an uncaught exception, and `sys.excepthook` itself fails",
            Failure::CommandNotFound => "runs a command that does not exist",
            Failure::ChildSegv => "hands on the status of a child that died by SIGSEGV",
        };
        words.to_owned()
    }
}

fn is_mpi(program: Program) -> bool {
    use Program::{C, COpenMpi, Cpp, IntelMpi, Mpich, OpenMpi, OpenMpi4};
    matches!(program, Mpich | IntelMpi | OpenMpi | OpenMpi4 | C | COpenMpi | Cpp)
}

fn is_python(program: Program) -> bool {
    use Program::{IntelMpi, Mpich, OpenMpi, OpenMpi4, Python, Torch};
    matches!(program, Python | Mpich | IntelMpi | OpenMpi | OpenMpi4 | Torch)
}

/// What the report must say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    pub code: u8,
    /// `None`: it is no failure.
    pub class: Option<Class>,
    pub cause: String,
    /// What may have become of each of the other ranks; which of these it is, the machine's scheduler decides.
    pub others: &'static [Fate],
    /// From the beginning of the failure to the end of rankrun.
    pub within: Duration,
}

/// One case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    pub program: Program,
    pub failure: Failure,
    pub expected: Expected,
}

impl Case {
    /// Ranks of the job.
    pub const RANKS: u32 = 3;
    /// The one that fails.
    pub const FAILING: u32 = 1;
    /// What the job gets as `--exit-grace`.
    pub const EXIT_GRACE: Duration = Duration::from_secs(1);
}

/// Every combination that makes sense.
pub fn cases() -> Vec<Case> {
    let all = Program::ALL.into_iter().flat_map(|program| Failure::ALL.map(|failure| (program, failure)));
    all.filter_map(|(program, failure)| expected(program, failure).map(|expected| Case { program, failure, expected }))
        .collect()
}

/// Beyond the graces: what a busy machine may take to start the kill, and the proof that nothing is left.
const MARGIN: Duration = Duration::from_secs(5);

/// What must be said; `None` where such a program cannot fail like that, or its library adds nothing to the case.
fn expected(program: Program, failure: Failure) -> Option<Expected> {
    use Program::{C, COpenMpi, Cpp, IntelMpi, Mpich, OpenMpi, OpenMpi4, Python, Rust, Shell, Torch};
    const ENDED: &[Fate] = &[Fate::EndedByRankrun];
    let told = "ValueError: failure!";
    let case = |code: u8, class: Class, cause: &str| Expected {
        code,
        class: Some(class),
        cause: cause.to_owned(),
        // The peers of a lost rank find that out themselves, where its connections show it.
        others: if program == Torch { &[Fate::Victim, Fate::EndedByRankrun] } else { ENDED },
        within: MARGIN,
    };
    let fits = |programs: &[Program], expected: Expected| programs.contains(&program).then_some(expected);
    match failure {
        Failure::Exception => match program {
            Python | Torch => Some(case(1, Class::Exception, told)),
            Mpich | IntelMpi | OpenMpi | OpenMpi4 => {
                let others = &[Fate::Succeeded, Fate::EndedByRankrun];
                Some(Expected { others, ..case(1, Class::Exception, told) })
            }
            Cpp => Some(case(134, Class::Signal, "std::runtime_error: failure! (killed by SIGABRT)")),
            Rust => Some(case(101, Class::Exception, "panic: failure!")),
            C | COpenMpi | Shell => None,
        },
        Failure::Terminate => fits(&[Cpp], case(134, Class::Signal, "std::terminate (killed by SIGABRT)")),
        Failure::ExitCode => fits(&Program::ALL, case(3, Class::ExitCode, "exited with code 3")),
        Failure::Segv => fits(
            &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi, Rust, Shell],
            case(139, Class::Signal, "killed by SIGSEGV"),
        ),
        Failure::Kill => fits(
            &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, Torch, C, COpenMpi, Rust, Shell],
            case(137, Class::Signal, "killed by SIGKILL"),
        ),
        Failure::Abrt => fits(
            &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi, Rust, Shell],
            case(134, Class::Signal, "killed by SIGABRT"),
        ),
        Failure::Term => fits(
            &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi],
            case(143, Class::Signal, "killed by SIGTERM"),
        ),
        Failure::StoppedByAnother => fits(
            &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, Torch, C, COpenMpi, Rust, Shell],
            case(147, Class::Stopped, "stopped by SIGSTOP, which rankrun did not send"),
        ),
        Failure::ExitAfterInit => {
            let cause = "exited with code 0 without MPI_Finalize, while others were in MPI";
            fits(&[Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi], case(1, Class::ExitWithoutFinalize, cause))
        }
        Failure::ExitAfterFinalize => {
            let none = Expected { class: None, others: &[Fate::Succeeded], ..case(0, Class::ExitCode, "") };
            fits(&[Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi], none)
        }
        Failure::ExitBeforeInit => {
            let cause = "exited with code 0 before MPI_Init, while others waited for it there";
            fits(&[Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi], case(1, Class::ExitBeforeInit, cause))
        }
        Failure::Abort(code) => {
            let exit = if code == 3 { 3 } else { 1 };
            fits(
                &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi],
                case(exit, Class::Abort, &format!("abort with code {code}")),
            )
        }
        Failure::StuckInFinalize => fits(&[Mpich, IntelMpi, OpenMpi, OpenMpi4], case(1, Class::StuckInFinalize, told)),
        Failure::StuckInExitHandlers => {
            let stuck = case(1, Class::StuckInExitHandlers, told);
            fits(&[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4], Expected { within: MARGIN + Case::EXIT_GRACE, ..stuck })
        }
        Failure::OutOfMemory => fits(
            &[Python, Mpich, IntelMpi, OpenMpi, OpenMpi4, C, COpenMpi, Rust, Shell],
            case(137, Class::OutOfMemory, "out of memory: killed by the kernel"),
        ),
        Failure::FailingHook => match program {
            Python => Some(case(1, Class::Exception, told)),
            Mpich | IntelMpi | OpenMpi | OpenMpi4 => Some(case(1, Class::StuckInFinalize, told)),
            Torch | C | COpenMpi | Cpp | Rust | Shell => None,
        },
        Failure::CommandNotFound => fits(&[Shell], case(127, Class::ExitCode, "rankrun-no-such-command: not found")),
        Failure::ChildSegv => fits(&[Shell], case(139, Class::ExitCode, "Segmentation fault")),
    }
}

/// A row of docs/failures.md, and the programs of which it is true.
type Row = (String, Vec<Program>);

/// The tables of docs/failures.md: what a failure leads to in most programs, then what in others, and what becomes of the
/// other ranks.
pub fn table(cases: &[Case]) -> String {
    let (mut general, mut exceptions) = (Vec::new(), Vec::new());
    for failure in Failure::ALL {
        let mut rows: Vec<Row> = Vec::new();
        for case in cases.iter().filter(|case| case.failure == failure) {
            let row = row(case);
            match rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, programs)) => programs.push(case.program),
                None => rows.push((row, vec![case.program])),
            }
        }
        // Of rows that are true of equally many programs, the first one.
        let most = (0..rows.len()).rev().max_by_key(|at| names(&rows[*at].1).len()).expect("every failure has a case");
        general.push(rows.remove(most));
        exceptions.extend(rows);
    }
    let mut text = "\n### What a failure leads to\n\n".to_owned();
    write_rows(&mut text, &general);
    text.push_str("\n### Where it depends on the program\n\n");
    write_rows(&mut text, &exceptions);
    text.push_str("\n### The other ranks\n\nThey are `ended-by-rankrun`, except in these cases:\n\n");
    for line in fates(cases) {
        let _ = writeln!(text, "* {line}");
    }
    text.push('\n');
    text
}

fn row(Case { program, failure, expected }: &Case) -> String {
    let (what, code) = (failure.words(*program), expected.code);
    match expected.class {
        Some(class) => format!("| {what} | {code} | `{}` | {} |", kebab(class), expected.cause),
        None => format!("| {what} | {code} | none | it is no failure |"),
    }
}

fn names(programs: &[Program]) -> Vec<&'static str> {
    let mut names: Vec<&str> = programs.iter().map(|program| program.words()).collect();
    names.dedup();
    names
}

fn write_rows(text: &mut String, rows: &[Row]) {
    text.push_str(
        "| what rank 1 does | exit code | class | the cause in the report | tested in |\n|---|---|---|---|---|\n",
    );
    for (row, programs) in rows {
        let tested = if programs.len() == Program::ALL.len() { "all".to_owned() } else { names(programs).join(", ") };
        let _ = writeln!(text, "{row} {tested} |");
    }
}

/// What becomes of the other ranks where rankrun does not end them: in all cases of a program, or in one.
fn fates(cases: &[Case]) -> Vec<String> {
    let shown = |fates: &[Fate]| format!("`{}`", fates.iter().map(kebab).collect::<Vec<_>>().join("` or `"));
    let mut lines: Vec<String> = Vec::new();
    for program in Program::ALL {
        let of_program: Vec<&Case> = cases.iter().filter(|case| case.program == program).collect();
        let first = of_program[0].expected.others;
        let is_same = of_program.iter().all(|case| case.expected.others == first);
        for case in of_program.into_iter().filter(|case| case.expected.others != [Fate::EndedByRankrun]) {
            let fates = shown(case.expected.others);
            lines.push(match is_same {
                true => format!("in every case of {}: {fates}", program.words()),
                false => format!("{}: {fates}", case.failure.words(program)),
            });
        }
    }
    let mut told = BTreeSet::new();
    lines.retain(|line| told.insert(line.clone()));
    lines
}

/// The name of a variant as it stands in the report.
fn kebab(variant: impl std::fmt::Debug) -> String {
    let mut name = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

/// A memory cgroup (v1) with a limit, which is removed when this is dropped.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
}

impl MemoryCgroup {
    /// A cgroup of at most `limit` bytes; `None` if none can be made here.
    pub fn new(limit: u64) -> Option<MemoryCgroup> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let is_memory = fields.get(2) == Some(&"cgroup") && fields.get(3)?.split(',').any(|name| name == "memory");
            is_memory.then(|| PathBuf::from(fields[1]))
        })?;
        // The scratch directory lends its name, which no other test has.
        let unique = scratch();
        let path = mount.join(unique.file_name()?);
        let _ = fs::remove_dir(&unique);
        fs::create_dir(&path).ok()?;
        let cgroup = MemoryCgroup { path };
        fs::write(cgroup.path.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        // Swapped out memory is not charged, where there is swap.
        let _ = fs::write(cgroup.path.join("memory.swappiness"), "0");
        Some(cgroup)
    }

    pub fn path(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // The kernel lets go of a dead process a moment after it is reaped.
        let _ = wait_until(Duration::from_secs(2), || fs::remove_dir(&self.path).ok());
    }
}
