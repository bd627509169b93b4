//! The variables by which an outer launcher identifies a process in its own job.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Variables that identify a process in another launcher's job. A `*` stands for any rest.
///
/// Variables that describe the whole allocation (`SLURM_JOB_ID`, `SLURM_JOB_NODELIST`, `SLURM_CPUS_PER_TASK`) or tune a
/// library (`I_MPI_FABRICS`, `MPIR_CVAR_*`, `UCX_*`) are not listed.
const OUTER_IDENTITY: &[&str] = &[
    // Slurm: srun sets these per step and per task (srun(1), "OUTPUT ENVIRONMENT VARIABLES").
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_STEP_*",
    "SLURM_STEPID",
    "SLURM_TASK_PID",
    "SLURM_GTIDS",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SRUN_COMM_*",
    "SLURM_PMI_*",
    "SLURM_PMI2_*",
    "SLURM_PMIX_MAPPING_SERV",
    "SLURM_PMIXP_*",
    // PMI-1 and PMI-2 (PMI_VERSION would even change what our own clients ask for). Cray's PMI_MMAP_* and PMI_NO_FORK are settings.
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "PMI_PORT",
    "PMI_ID",
    "PMI_JOBID",
    "PMI_HOSTNAME",
    "PMI_SPAWNED",
    "PMI_APPNUM",
    "PMI_UNIVERSE_SIZE",
    "PMI_LOCAL_*",
    "PMI_CONTROL_*",
    "PMI_KVS*",
    "PMI_VERSION",
    "PMI_SUBVERSION",
    "PMI_TOTALVIEW",
    "PMI_process_mapping",
    "PMI_dead_processes",
    "PMI2_*",
    // PMIx 3 to 6, from a server to its client or tool, and PRRTE. PMIX_PREFIX, PMIX_DEBUG and the like are settings.
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMIX_ID",
    "PMIX_HOSTNAME",
    "PMIX_SERVER_*",
    "PMIX_SYSTEM_TMPDIR",
    "PMIX_SECURITY_MODE",
    "PMIX_BFROP*",
    "PMIX_GDS_MODULE",
    "PMIX_PTL_MODULE",
    "PMIX_DSTORE_*",
    "PMIX_VERSION",
    "PMIX_REINCARNATION",
    "PMIX_PARAM_FILE_PASSED",
    "PMIX_KEEPALIVE_PIPE",
    "PMIX_LAUNCHER_*",
    "PMIX_MYSERVER_URI",
    "PRTE_LAUNCHED",
    "PRTE_SHARED_FS",
    // Hydra, of MPICH 5 and of Intel MPI 2021: seen in the environment of `mpiexec -n 1 env`. HYDRA_IFACE and the like are settings.
    "HYDRA_BSTRAP_*",
    "HYDRA_IP_VERSION",
    "HYDRA_LAUNCH_TYPE",
    "HYDI_*",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "I_MPI_HYDRA_TOPOLIB",
    "I_MPI_HYDRA_UUID",
    "I_MPI_INFO_*",
    "I_MPI_INTERNAL_*",
    "I_MPI_PIN_INFO",
    "I_MPI_PIN_MAPPING",
    // These make Intel MPI speak to another launcher's PMI library instead of our socket.
    "I_MPI_PMI_LIBRARY",
    "I_MPI_PMI",
    // Open MPI: what mpirun 4.1 and 5.0 set for ranks, and the MCA parameters of `OPEN_MPI_IDENTITY`. OMPI_CC,
    // OMPI_ALLOW_RUN_AS_ROOT, OPAL_PREFIX and the like are settings.
    "OMPI_COMM_WORLD_*",
    "OMPI_WORLD_*",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_NUM_APP_CTX",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_APP_SIZES",
    "OMPI_FIRST_RANKS",
    "OMPI_COMMAND",
    "OMPI_ARGV",
    "OMPI_FILE_LOCATION",
    "OMPI_LIBDIR_LOC",
    "OMPI_TOOL_NAME",
    "ORTE_*",
    "OPAL_JOBID",
    "OPAL_VPID",
    "OPAL_USER_PARAMS_GIVEN",
    "OPAL_SYS_PARAMS_GIVEN",
    // MVAPICH, HPE PALS, Flux and JSM.
    "MV2_COMM_WORLD_*",
    "MPISPAWN_*",
    "PALS_RANKID",
    "PALS_NODEID",
    "PALS_LOCAL_RANKID",
    "PALS_APID",
    "FLUX_TASK_RANK",
    "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_*",
    // torch, as torchrun 2.15 sets it.
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_TIMER_FILE",
    // TensorFlow, as operators of Kubernetes set it for a pod.
    "TF_CONFIG",
    // An outer rankrun. Its settings (RANKRUN_GRACE and the like) are kept: they do not identify a process.
    "RANKRUN_JOB_ID",
    "RANKRUN_RANK",
    "RANKRUN_WORLD_SIZE",
    "RANKRUN_LOCAL_RANK",
    "RANKRUN_LOCAL_WORLD_SIZE",
    "RANKRUN_NODE_RANK",
    "RANKRUN_NNODES",
    "RANKRUN_ATTEMPT",
    "RANKRUN_SOCKET",
    "RANKRUN_WORKER",
    "RANKRUN_JAX_COORDINATOR",
    "RANKRUN_JAX_LOCAL_DEVICE",
];

/// MCA parameters that mpirun (Open MPI 4 and 5) itself exports: a rank's identity and the address of its daemon.
///
/// The rest cannot be distinguished from what the user exported: mpirun passes both on with the same prefix. The ranks
/// of an inner rankrun therefore get the parameters of an outer `mpirun --mca` too. `orte_*`, `prte_*` and `pmix_*` that are not
/// listed (`orte_tmpdir_base`, `orte_base_help_aggregate`, `pmix_base_async_modex`) are settings.
const OPEN_MPI_IDENTITY: &[&str] = &[
    "OMPI_MCA_PREFIXES",
    "OMPI_MCA_ess",
    "OMPI_MCA_ess_base_*",
    // Ours: see `NOT_ALONE`.
    "OMPI_MCA_ess_singleton_server",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_num_procs",
    "OMPI_MCA_orte_app_num",
    "OMPI_MCA_orte_base_applied_binding",
    "OMPI_MCA_orte_bound_at_launch",
    "OMPI_MCA_orte_cpu_bitmap",
    "OMPI_MCA_orte_daemon_*",
    "OMPI_MCA_orte_ess_*",
    "OMPI_MCA_orte_externally_bound",
    "OMPI_MCA_orte_hnp_uri",
    "OMPI_MCA_orte_jobfam_session_dir",
    "OMPI_MCA_orte_launch",
    "OMPI_MCA_orte_local_daemon_uri",
    "OMPI_MCA_orte_node_regex",
    "OMPI_MCA_orte_num_nodes",
    "OMPI_MCA_orte_parent_uri",
    "OMPI_MCA_orte_precondition_transports",
    "OMPI_MCA_orte_top_session_dir",
    // Which PMI a rank connects with: an mpirun decides it for its own ranks.
    "OMPI_MCA_pmix",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint",
    "PRTE_MCA_ess",
    "PRTE_MCA_ess_base_*",
    "PRTE_MCA_prte_ess_*",
    "PRTE_MCA_prte_hnp_uri",
    "PRTE_MCA_prte_jobfam_session_dir",
    "PRTE_MCA_prte_launch",
    "PRTE_MCA_prte_parent_uri",
    "PRTE_MCA_prte_top_session_dir",
    "PMIX_MCA_mca_base_component_show_load_errors",
];

/// Whether the process with the environment `env` runs in a rank of an outer rankrun.
pub fn is_in_rank(env: &[(OsString, OsString)]) -> bool {
    env.iter().any(|(name, value)| name == "RANKRUN_RANK" && !value.is_empty())
}

/// Whether a variable identifies this process in an outer job, and so must not reach our ranks.
pub fn is_outer_identity(name: &OsStr) -> bool {
    let listed = |patterns: &[&str]| patterns.iter().any(|pattern| matches(OsStr::new(pattern), name));
    listed(OUTER_IDENTITY) || listed(OPEN_MPI_IDENTITY)
}

/// Whether a name is the pattern, or begins with the part of it before a final `*`.
pub fn matches(pattern: &OsStr, name: &OsStr) -> bool {
    match pattern.as_bytes().strip_suffix(b"*") {
        Some(prefix) => name.as_bytes().starts_with(prefix),
        None => pattern == name,
    }
}
