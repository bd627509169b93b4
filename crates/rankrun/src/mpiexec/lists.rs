//! The lists beside the options: words of `--output` and the like, and variables of the launchers.

use super::row::Part;
use super::table::{Here, Word};
use super::texts::{COPIES, DEBUGGER, MERGE, NO_RESTART, REPORT, SHOWN, SPAWNED, WHOLE, XML};
use crate::dialect::Here::{Already, Differs, Refused, Same, Without};

const fn word(name: &'static str, here: Here) -> Word {
    Word { name, here }
}

/// The words of `--output` (Open MPI 5).
pub(super) const OUTPUT: &[Word] = &[
    word("TAG", Same(&["--tag"])),
    word("TAG-DETAILED", Same(&["--tag={node}:{rank}:{stream}: "])),
    word("TAG-FULLNAME", Same(&["--tag={node}:{rank}:{stream}: "])),
    word("RANK", Same(&["--tag"])),
    word("TIMESTAMP", Same(&["--timestamps"])),
    word("DIRECTORY", Differs(&["--log-dir={}/{job}"], COPIES)),
    word("DIR", Differs(&["--log-dir={}/{job}"], COPIES)),
    word(
        "FILE",
        Refused("write --log-dir DIR for files and the terminal, --stdout-file 'FILE.{rank}' for files alone"),
    ),
    word(
        "FILENAME",
        Refused("write --log-dir DIR for files and the terminal, --stdout-file 'FILE.{rank}' for files alone"),
    ),
    word("NOCOPY", Same(&["--output=none"])),
    word("RAW", Same(&["--output=raw"])),
    word("PATTERN", Refused("write --stdout-file 'FILE.{rank}'")),
    word("MERGE-STDERR-TO-STDOUT", Refused(MERGE)),
    word("MERGE", Refused(MERGE)),
    word("XML", Refused(XML)),
];

/// The words of `--display` (Open MPI 5).
pub(super) const DISPLAY: &[Word] = &[
    word("ALLOCATION", Without(SHOWN)),
    word("BINDINGS", Without(SHOWN)),
    word("BIND", Without(SHOWN)),
    word("MAP", Without(SHOWN)),
    word("MAP-DEVEL", Without(SHOWN)),
    word("TOPO", Without(SHOWN)),
];

/// With it the library handles failures (ULFM), as `mpirun --with-ft ulfm` tells it.
const ULFM: Here = Same(&["--keep-going", "-x", "OMPI_MCA_mpi_ft_enable=1"]);

/// The words of `--with-ft` (Open MPI 5).
pub(super) const FAULT_TOLERANCE: &[Word] = &[
    word("ULFM", ULFM),
    word("MPI", ULFM),
    word("YES", ULFM),
    word("TRUE", ULFM),
    word("1", ULFM),
    word("NONE", Already("the first failure ends the job")),
    word("NO", Already("the first failure ends the job")),
    word("FALSE", Already("the first failure ends the job")),
    word("0", Already("the first failure ends the job")),
];

/// The words of `--runtime-options` (Open MPI 5).
pub(super) const RUNTIME: &[Word] = &[
    word("ERROR-NONZERO-STATUS=0", Same(&["--keep-going"])),
    word("ERROR-NONZERO-STATUS=false", Same(&["--keep-going"])),
    word("ERROR-NONZERO-STATUS", Already("the first failure ends the job")),
    word("ABORT-NONZERO-STATUS", Already("the first failure ends the job")),
    word("CONTINUOUS", Same(&["--keep-going"])),
    word("RECOVERABLE", Same(&["--keep-going"])),
    word("NOTIFYERRORS", Already("libraries are told of ranks that are gone")),
    word("AUTORESTART", Refused(NO_RESTART)),
    word("MAX-RESTARTS=0", Already("ranks are not restarted")),
    word("MAX-RESTARTS", Refused(NO_RESTART)),
    word("DONOTLAUNCH", Same(&["--dry-run"])),
    word("SHOW-PROGRESS", Already("a job starts in well under a second")),
    word("TIMEOUT", Same(&["--timeout={}"])),
    word("SPAWN-TIMEOUT", Already(SPAWNED)),
    word("REPORT-STATE-ON-TIMEOUT", Already(REPORT)),
    word("GET-STACK-TRACES", Without("no stacks are printed; the report says what each rank did")),
    word("AGGREGATE-HELP", Already("every line that a rank writes is shown")),
    word("FWD-ENVIRONMENT", Already(WHOLE)),
    word("STOP-ON-EXEC", Refused(DEBUGGER)),
    word("STOP-IN-INIT", Refused(DEBUGGER)),
    word("STOP-IN-APP", Refused(DEBUGGER)),
];

/// What the value of a launcher's variable stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    HostFile,
    PerNode,
    Binding(Part),
}

/// A variable that a launcher reads.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// What the translator does with it, if it does something.
    pub(super) meaning: Option<Meaning>,
    pub(super) here: &'static str,
}

const fn variable(name: &'static str, meaning: Option<Meaning>, here: &'static str) -> Variable {
    Variable { name, meaning, here }
}

/// The variables that the launchers read.
pub(super) const VARIABLES: &[Variable] = &[
    variable("MPIEXEC_TIMEOUT", None, "`--timeout`, in seconds"),
    variable("HYDRA_HOST_FILE", Some(Meaning::HostFile), "`-f`"),
    variable("I_MPI_HYDRA_HOST_FILE", Some(Meaning::HostFile), "`-f`"),
    variable("OMPI_MCA_orte_default_hostfile", Some(Meaning::HostFile), "`--hostfile`"),
    variable("PRTE_MCA_prte_default_hostfile", Some(Meaning::HostFile), "`--hostfile`"),
    variable("I_MPI_PERHOST", Some(Meaning::PerNode), "`-ppn`"),
    variable("HYDRA_BINDING", Some(Meaning::Binding(Part::BindTo)), "`-bind-to`"),
    variable("HYDRA_MAPPING", Some(Meaning::Binding(Part::MapBy)), "`-map-by`"),
    variable("HYDRA_MEMBIND", Some(Meaning::Binding(Part::Memory)), "`-membind`"),
    variable(
        "I_MPI_PIN, I_MPI_PIN_DOMAIN, I_MPI_PIN_ORDER, I_MPI_PIN_CELL, I_MPI_PIN_PROCESSOR_LIST",
        None,
        "how ranks are bound, where no option says it: as under Intel MPI; its library does not read them. Ranks of Intel MPI that are more than the cores are bound too, in turn",
    ),
    variable(
        "MV2_ENABLE_AFFINITY, MV2_CPU_MAPPING, MV2_CPU_BINDING_POLICY, MV2_CPU_BINDING_LEVEL, MV2_HYBRID_BINDING_POLICY",
        None,
        "how ranks are bound, where no option says it: as MVAPICH does it",
    ),
    variable(
        "OMPI_MCA_*",
        None,
        "reaches the ranks: the library reads it. Parameters of mpirun itself: as with `--mca`",
    ),
    variable("PMIX_MCA_*", None, "reaches the ranks"),
    variable("PRTE_MCA_*", None, "as with `--prtemca`"),
    variable("I_MPI_*", None, "the others reach the ranks: the library reads them, rankrun does not"),
    variable("HYDRA_*, I_MPI_HYDRA_*", None, "the others are not read: other machines are reached by ssh alone"),
];

/// How many nodes a resource manager has given to a job: Slurm, PBS and Grid Engine.
pub(super) const NODES: &[&str] = &["SLURM_JOB_NUM_NODES", "PBS_NUM_NODES", "NHOSTS"];

/// How many ranks it has given to it.
pub(super) const TASKS: &[&str] = &["SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "NSLOTS"];
