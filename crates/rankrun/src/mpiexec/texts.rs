//! What the table of options says more than once.

pub(super) const BIND: &str = "`--bind-to`, with the `--map-by` that the launcher has for it; core:2 and the like: so many for each rank; user:LIST: `--cpu-list`; rr: hardware threads in turn";
pub(super) const PLACING: &str = "ranks have their numbers in the order in which -map-by places them";
pub(super) const NO_REMOTE: &str = "other machines are reached by ssh, which needs nothing of the kind";
pub(super) const NO_FILES: &str = "no files are copied to other machines";
pub(super) const SHOWN: &str = "places, bindings and protocols are not printed; --dry-run shows the plan";
pub(super) const NODES: &str = "name the other hosts: write -hosts a,b";
pub(super) const DEBUGGER: &str = "write --tty 0 --wrap '0:gdb --args' for the rank that you want to debug";
pub(super) const NO_DVM: &str = "every job is started and ended by a rankrun of its own: leave it out";
pub(super) const NO_RESTART: &str =
    "a rank is not restarted by itself: leave it out; RANKRUN_RESTART=N restarts the job";
pub(super) const RESERVED: &str = "the standard reserves it, and no launcher reads it: leave it out";
pub(super) const KEPT_GOING: &str = "the other ranks run on, also when one is killed or a node is lost; only processes in MPI that handle SIGUSR1 get it";
pub(super) const WHOLE: &str = "ranks have the whole environment";
pub(super) const INHERITED: &str =
    "on its own machine the launcher strips nothing either; --env-remove '*' leaves only what rankrun sets";
pub(super) const REPORT: &str = "the report of a job that was ended says what each rank did, and has every exit code";
pub(super) const TRACE: &str = "write -x LD_PRELOAD=libVT.so to trace, -x LD_PRELOAD=libVTmc.so to check";
pub(super) const HOSTS: &str = "`--hosts` or `--hostfile`; without -n their slots are the number of ranks; under Hydra's names the list begins again when all slots are used (`--oversubscribe --map seq`); where several commands name hosts, each list is for its own command";
pub(super) const PER_NODE: &str = "`--ppn N`; without -n it is N ranks on each host";
pub(super) const COPIES: &str = "the files are in a directory for each job, rank-0000.stdout and so on; the output is on the terminal too, except with nocopy";
pub(super) const SPAWNED: &str = "ranks that MPI_Comm_spawn starts are of the same job: its end and its report are theirs, and whoever asked is answered at once";

pub(super) const MERGE: &str = "write 2>&1 behind the command line";

pub(super) const XML: &str = "write --report-dir DIR for a report as JSON";
