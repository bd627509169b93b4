//! Which files of /dev/shm are a job's by their name alone (K-8, docs/adr/0007-whose-shared-memory-it-is.md).
//!
//! MPICH and Open MPI put a hash of the name that their launcher has given to the job into the names of their segments. These names
//! have the job's random id in them, so that the hash tells the job: also when the rank that made the file was killed before anybody
//! saw it hold the file.

use super::ids::{Attempt, GroupId, JobId, Pid};
use super::pmix;

/// How many MPI programs in a row of one rank are known. Each has a key-value space of its own, whose name ends in its number.
const PROGRAMS: u32 = 16;
/// How many attempts are known, up to the present one.
const ATTEMPTS: u32 = 64;
/// How many groups of an attempt are known, those that its ranks asked for.
const GROUPS: u32 = 1024;
/// What MPICH 5 has before the hash (`posix_init.c`, `posix_eager_iqueue.c`): `mpich_shm_HASH_NODE`.
const MPICH: [&str; 2] = ["mpich_shm_", "mpich_vci_"];
/// What Open MPI has before the name of the host (`btl_vader_module.c` of 4.1, `btl_sm_module.c` of 5.0):
/// `sm_segment.HOST.UID.JOBID.RANK`.
const OPEN_MPI: [&str; 2] = ["vader_segment.", "sm_segment."];
/// The empty file by which a rank of Open MPI tries whether there is shared memory: `open_mpi.0000`, with the first number that is free
/// (`shmem_posix_module.c`). The rank removes it before it closes it, so that one that nobody holds is of a rank that was killed.
const OPEN_MPI_PROBE: &str = "open_mpi.";

/// The name of the key-value space of a job's attempt, without group and program.
pub fn kvs_prefix(job: &JobId, attempt: Attempt) -> String {
    format!("rankrun_{job}_{attempt}")
}

/// What is known of a file that nobody holds any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traces {
    /// It belongs to the job's user.
    pub is_of_user: bool,
    /// It appeared during the job.
    pub is_new: bool,
    /// A process of the job was seen to hold it for writing, as its creator does.
    pub was_written: bool,
    /// A process outside the job was seen to hold it.
    pub was_held_outside: bool,
    /// Its name has the job's hash in it ([`Names::have`]).
    pub is_named: bool,
}

/// What becomes of such a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The job has made it: it is removed.
    Remove,
    /// The job may have made it: it is named in the report, and stays.
    List,
    /// It is not the job's.
    Ignore,
}

/// The fate of a file. Only evidence of its own counts: a file of another job of the same user may have appeared at the same time, and
/// nobody may hold it just now.
pub fn fate(traces: Traces) -> Fate {
    let Traces { is_of_user, is_new, was_written, was_held_outside, is_named } = traces;
    match (is_of_user && is_new, was_written || is_named, was_held_outside) {
        (false, ..) => Fate::Ignore,
        (true, true, false) => Fate::Remove,
        (true, true, true) | (true, false, _) => Fate::List,
    }
}

/// The numbers by which a job's segments are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    user: u32,
    mpich: Vec<u32>,
    open_mpi: Vec<u32>,
    job: JobId,
    /// The attempts whose further groups are known. There are many of these, so that their numbers are made when a file asks for them.
    with_groups: Vec<Attempt>,
    /// Processes of the job that may be singletons.
    processes: Vec<Pid>,
}

impl Names {
    /// Those of a job in all attempts up to this one, which this user has started. A job's id may have the number of a node behind it.
    pub fn of(job: &JobId, last: Attempt, user: u32) -> Names {
        let id = JobId(job.0.split('-').next().unwrap_or_default().to_owned());
        let attempts = last.0.saturating_sub(ATTEMPTS - 1)..=last.0;
        let (mut mpich, mut open_mpi) = (Vec::new(), Vec::new());
        for attempt in attempts.map(Attempt) {
            let prefix = kvs_prefix(&id, attempt);
            mpich.extend((0..PROGRAMS).map(|program| fnv(&format!("{prefix}_{}_{program}", GroupId(0)))));
            let hash = one_at_a_time(&pmix::namespace(&id, attempt));
            // 4.1 clears a bit of the hash (`OPAL_HASH_JOBID`).
            open_mpi.extend([hash & !0x8000, folded(hash)]);
        }
        Names { user, mpich, open_mpi, job: id, with_groups: vec![last], processes: Vec::new() }
    }

    /// Whether MPICH gives this number to a further group.
    fn is_of_group_of_mpich(&self, hash: u32) -> bool {
        self.with_groups.iter().any(|attempt| {
            let prefix = fnv(&format!("{}_", kvs_prefix(&self.job, *attempt)));
            let mut groups = (1..=GROUPS).map(|group| fnv_from(prefix, &format!("{group}_")));
            groups.any(|group| (0..PROGRAMS).any(|program| fnv_from(group, &program.to_string()) == hash))
        })
    }

    /// Whether Open MPI gives this number to a further group.
    fn is_of_group_of_open_mpi(&self, job: u32) -> bool {
        // 5.0 adds the number of the group to that of the first one.
        let is_of_5 = self.open_mpi.contains(&(job & 0xffff_0000));
        is_of_5
            || self.with_groups.iter().any(|attempt| {
                let first = pmix::namespace(&self.job, *attempt);
                let name = |group| pmix::of_group(&first, GroupId(group));
                (1..=GROUPS).any(|group| one_at_a_time(&name(group)) & !0x8000 == job)
            })
    }

    /// Processes of the job. A process of Open MPI 5 that no launcher serves (a singleton, `--mpi none`) is the only rank of a world that is
    /// named after its host and its pid, and leaves its segment when it ends (5.0.11).
    pub fn set_processes(&mut self, processes: Vec<Pid>) {
        self.processes = processes;
    }

    /// Whether a number in the name of a segment is that of a singleton.
    fn is_singleton(&self, host: &str, job: u32) -> bool {
        // As PMIx names it (`pmix_client.c`).
        let namespace = |pid: &Pid| format!("singleton.{host}.{pid}");
        self.processes.iter().any(|pid| folded(one_at_a_time(&namespace(pid))) == job)
    }

    /// Those of a job of which only the id is known.
    pub fn of_any_attempt(job: &JobId, user: u32) -> Names {
        let with_groups = (0..ATTEMPTS).map(Attempt).collect();
        Names { with_groups, ..Names::of(job, Attempt(ATTEMPTS - 1), user) }
    }

    /// Whether a file of this name, which appeared during the job and which nobody outside of it holds, is the job's.
    pub fn have(&self, name: &str) -> bool {
        let hexadecimal = |digits| u32::from_str_radix(digits, 16).ok();
        if let Some(rest) = MPICH.iter().find_map(|prefix| name.strip_prefix(prefix)) {
            let hash = rest.split_once('_').filter(|(_, node)| is_number(node)).and_then(|(hash, _)| hexadecimal(hash));
            // A world of one, which no launcher serves, has the number of its process there.
            let is_of_process = |number: u32| self.processes.iter().any(|pid| u32::try_from(pid.0) == Ok(number));
            return hash.is_some_and(|hash| {
                self.mpich.contains(&hash) || is_of_process(hash) || self.is_of_group_of_mpich(hash)
            });
        }
        if is_probe(name) {
            return true;
        }
        // The name of a host may have dots in it.
        let Some(rest) = OPEN_MPI.iter().find_map(|prefix| name.strip_prefix(prefix)) else { return false };
        let mut parts = rest.rsplitn(4, '.');
        let (rank, job, user, host) = (parts.next(), parts.next(), parts.next(), parts.next());
        let (Some(rank), Some(job), Some(host)) = (rank, job.and_then(hexadecimal), host) else { return false };
        is_number(rank)
            && user.is_some_and(|user| user == self.user.to_string())
            && (self.open_mpi.contains(&job)
                || (rank == "0" && self.is_singleton(host, job))
                || self.is_of_group_of_open_mpi(job))
    }
}

/// Whether this is the name of a file by which a rank of Open MPI tries whether there is shared memory, of whichever job.
pub fn is_probe(name: &str) -> bool {
    name.strip_prefix(OPEN_MPI_PROBE).is_some_and(|number| number.len() == 4 && is_number(number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// FNV-1a, as MPICH has it (`HASH_FNV` of its uthash, `MPIR_pmi_init`).
fn fnv(text: &str) -> u32 {
    fnv_from(2_166_136_261, text)
}

/// The same, of a text that goes on after one of this hash.
fn fnv_from(hash: u32, text: &str) -> u32 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

/// Open MPI 5.0 folds the hash to 16 bits (`opal_pmix_convert_nspace`).
fn folded(hash: u32) -> u32 {
    (hash >> 16 ^ hash & 0xffff) << 16
}

/// Jenkins' one-at-a-time hash, as Open MPI has it (`OPAL_HASH_STR`).
fn one_at_a_time(text: &str) -> u32 {
    let mut hash = text.bytes().fold(0u32, |hash, byte| {
        let hash = hash.wrapping_add(u32::from(byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    });
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(job: &str, attempt: u32) -> Names {
        Names::of(&JobId(job.to_owned()), Attempt(attempt), 0)
    }

    #[test]
    fn segments_that_mpich_and_open_mpi_made_in_a_job_are_known_by_name() {
        // Seen with MPICH 5.0.2, Open MPI 5.0.11 and Open MPI 4.1.4.
        assert!(names("e939867a", 0).have("mpich_shm_d3b4d99a_0"));
        assert!(names("e939867a", 0).have("mpich_vci_d3b4d99a_3"));
        assert!(names("55f8fa9c", 0).have("sm_segment.vm.0.f9880000.1"));
        assert!(names("4c1b1b75", 0).have("vader_segment.vm.0.4f83248f.1"));
        // Of the first group, and of one that it asked for.
        assert!(names("9adce144", 0).have("mpich_shm_8726c41c_0") && names("9adce144", 0).have("mpich_shm_ac9dd7a7_0"));
        assert!(
            !names("9adce145", 0).have("mpich_shm_8726c41c_0") && !names("9adce145", 0).have("mpich_shm_ac9dd7a7_0")
        );
        assert!(names("162dad6b", 0).have("sm_segment.vm.0.86f0001.1"));
        assert!(names("0b5b30f7", 0).have("vader_segment.vm.0.e3a237b2.1"));
        assert!(Names::of_any_attempt(&JobId("0b5b30f7".to_owned()), 0).have("vader_segment.vm.0.e3a237b2.1"));
        assert!(names("55f8fa9c-n2", 0).have("sm_segment.node.of.some.domain.0.f9880000.12"), "on another node");
    }

    #[test]
    fn a_segment_of_a_singleton_is_known_by_the_pid_of_its_process() {
        // Seen with Open MPI 5.0.11 on the host "vm".
        let mut names = names("55f8fa9c", 0);
        assert!(!names.have("sm_segment.vm.0.dd4a0000.0"));
        names.set_processes(vec![Pid(21_919), Pid(21_920)]);
        assert!(names.have("sm_segment.vm.0.dd4a0000.0"));
        // MPICH 5.0.2 of the process 21919.
        assert!(names.have("mpich_shm_559f_0") && !names.have("mpich_shm_559e_0"));
        for other in ["sm_segment.vm.0.dd4a0000.1", "sm_segment.vm.0.dd4b0000.0", "sm_segment.other.0.dd4a0000.0"] {
            assert!(!names.have(other), "{other}");
        }
    }

    #[test]
    fn a_probe_of_open_mpi_that_nobody_holds_is_of_a_rank_that_was_killed() {
        assert!(names("55f8fa9c", 0).have("open_mpi.0000"));
        assert!(names("55f8fa9c", 0).have("open_mpi.0012"));
    }

    #[test]
    fn only_a_new_file_of_the_user_that_the_job_wrote_or_that_has_its_name_is_removed() {
        let new = Traces { is_of_user: true, is_new: true, ..Traces::default() };
        assert_eq!(fate(Traces { was_written: true, ..new }), Fate::Remove);
        assert_eq!(fate(Traces { is_named: true, ..new }), Fate::Remove);
        assert_eq!(fate(Traces { is_named: true, was_written: true, was_held_outside: true, ..new }), Fate::List);
        assert_eq!(fate(new), Fate::List, "it may be of another job of this user");
        for old in [Traces { is_new: false, ..new }, Traces { is_of_user: false, ..new }] {
            assert_eq!(fate(Traces { was_written: true, is_named: true, ..old }), Fate::Ignore);
        }
    }

    #[test]
    fn segments_of_other_jobs_users_and_programs_are_not_known() {
        for (job, name) in [
            ("e939867b", "mpich_shm_d3b4d99a_0"),
            ("e939867a", "mpich_shm_d3b4d99b_0"),
            ("e939867a", "mpich_shm_d3b4d99a_"),
            ("e939867a", "mpich_shm_d3b4d99a_x"),
            ("e939867a", "mpich_shm_d3b4d99a"),
            ("e939867a", "mpich_shm_1804289383_4711"),
            ("55f8fa9c", "sm_segment.vm.1000.f9880000.1"),
            ("55f8fa9c", "sm_segment.vm.0.f9890000.1"),
            ("55f8fa9c", "sm_segment.0.f9880000.1"),
            ("55f8fa9d", "sm_segment.vm.0.f9880000.1"),
            ("55f8fa9c", "open_mpi.00000"),
            ("55f8fa9c", "open_mpi.data"),
            ("55f8fa9c", ""),
        ] {
            assert!(!names(job, 0).have(name), "{job}: {name}");
        }
    }

    #[test]
    fn segments_of_past_attempts_and_of_later_programs_of_a_rank_are_known_too() {
        let segment = |kvs: &str| format!("mpich_shm_{:x}_0", fnv(kvs));
        assert!(names("e939867a", 3).have("mpich_shm_d3b4d99a_0"));
        assert!(names("e939867a", 3).have(&segment("rankrun_e939867a_3_0_7")));
        assert!(!names("e939867a", 3).have(&segment("rankrun_e939867a_4_0_0")), "an attempt that has not begun");
        assert!(Names::of_any_attempt(&JobId("e939867a".to_owned()), 0).have(&segment("rankrun_e939867a_4_0_0")));
    }
}
