//! What begins before the command line has been read: guard and agent of this machine get ready meanwhile.

use std::ffi::OsString;

use rankrun_core::JobId;
use rankrun_front::Prepared;
use rankrun_sys::fork;

use crate::message::Problem;
use crate::{mpiexec, plan, subcommands, torchrun};

/// Words that ask for a text, or for a process of its own for the job, unless they are a program's.
const ASK_FOR_TEXTS: [&str; 7] = ["--help", "-h", "--version", "-V", "--dry-run", "--detach", "help"];

/// The job that the words may be.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) job: JobId,
    /// `None` where it is likely that nothing is to be run, and where they could not be forked: that is tried again.
    pub(crate) prepared: Option<Prepared>,
    /// The parent of this process when it began: it may end at any time.
    pub(crate) parent: i32,
}

impl Early {
    /// The calling process must have one thread.
    pub(crate) fn of(words: &[OsString], env: &[(OsString, OsString)]) -> Result<Early, Problem> {
        let parent = fork::parent_pid();
        let job = JobId(random_name()?);
        let prepared = is_likely_job(words).then(|| Prepared::new(&job, plan::node_options(env)).ok()).flatten();
        Ok(Early { job, prepared, parent })
    }
}

/// Whether these words run a job. A wrong guess costs time, nothing else.
fn is_likely_job(words: &[OsString]) -> bool {
    let Some(first) = words.first() else { return false };
    let is_dialect = mpiexec::is_name(first) || torchrun::is_name(first);
    let is_other = first.to_str().is_some_and(|name| subcommands::subcommand(name).is_some()) && !is_dialect;
    !is_other && !words.iter().any(|word| ASK_FOR_TEXTS.iter().any(|text| word == text))
}

/// Eight hexadecimal digits.
fn random_name() -> Result<String, Problem> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Problem::internal(format!("cannot get random bytes: {error}")))?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_are_eight_digits_and_differ() {
        let name = || random_name().expect("random bytes");
        let (one, other) = (name(), name());
        assert_eq!(one.len(), 8);
        assert_ne!(one, other);
    }

    #[test]
    fn nothing_is_prepared_for_a_text() {
        let is_job = |words: &str| is_likely_job(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        for job in ["-n 2 true", "true", "mpiexec -n 2 true", "/opt/bin/torchrun train.py", "./check", "-- check"] {
            assert!(is_job(job), "{job}");
        }
        for text in ["check", "status 7f3a91c2", "--version", "help", "-n 2 --dry-run true", "mpiexec --help"] {
            assert!(!is_job(text), "{text}");
        }
        assert!(!is_likely_job(&[]));
    }
}
