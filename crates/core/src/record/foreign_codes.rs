//! The exit codes of other launchers (`--strict` of the dialects).
//!
//! Measured with two ranks under Hydra of MPICH 5.0.2, Intel MPI 2021.18, Open MPI 4.1.4 and 5.0.11, torchrun 2.15.

use serde::{Deserialize, Serialize};

use crate::evidence::{Class, Fact};
use crate::exit::ExitCode;
use crate::report::{RankReport, Report};
use crate::status::WorkerStatus;
use crate::verdict::Fate;

/// Whose exit codes a job has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Codes {
    Hydra,
    Intel,
    OpenMpi4,
    OpenMpi5,
    Torchrun,
}

use Codes::{Hydra, Intel, OpenMpi4, OpenMpi5, Torchrun};

impl Codes {
    /// Those of the launchers that are called mpiexec or mpirun.
    pub const OF_MPI: [Codes; 4] = [Hydra, Intel, OpenMpi4, OpenMpi5];

    /// The word for it on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Hydra => "hydra",
            Intel => "intel",
            OpenMpi4 => "openmpi4",
            OpenMpi5 => "openmpi5",
            Torchrun => "torchrun",
        }
    }

    /// The code that this launcher would have ended with. Where it has no such end, the code is ours.
    pub fn of(self, report: &Report) -> ExitCode {
        let is_hydra = matches!(self, Hydra | Intel);
        match report.class {
            // Any end but success, also by a signal to torchrun itself (torchrun 2.15).
            _ if self == Torchrun && report.exit_code != ExitCode::SUCCESS => ExitCode::FAILURE,
            Some(Class::Timeout) => ExitCode(match self {
                Hydra | Intel => 255,
                OpenMpi4 => 110,
                OpenMpi5 => 241,
                Torchrun => 1,
            }),
            Some(Class::SpawnFailed) => self.not_started(),
            Some(Class::Interrupted) if self == Intel => ExitCode(255),
            Some(Class::Interrupted) if is_hydra => ExitCode(report.exit_code.0.saturating_sub(128)),
            Some(Class::Interrupted) => ExitCode::FAILURE,
            Some(Class::Abort) => aborted(report).unwrap_or(report.exit_code),
            Some(Class::Exception | Class::Signal | Class::ExitCode) if is_hydra => {
                let statuses: Vec<WorkerStatus> =
                    report.ranks.iter().filter_map(|rank| own_status(rank, report)).collect();
                self.combined(&statuses).unwrap_or(report.exit_code)
            }
            _ => report.exit_code,
        }
    }

    /// The code of a job that was refused with a code of ours: only a program that cannot be started has one elsewhere.
    pub fn of_refusal(self, ours: ExitCode) -> ExitCode {
        match ours {
            ExitCode::NOT_FOUND | ExitCode::NOT_EXECUTABLE => self.not_started(),
            ours => ours,
        }
    }

    fn not_started(self) -> ExitCode {
        ExitCode(match self {
            Hydra => 255,
            Intel => 141,
            OpenMpi4 => 132,
            OpenMpi5 => 183,
            Torchrun => 1,
        })
    }

    /// Hydra combines the statuses of wait(2) bit by bit, and ends with the signal in it, or with the code. Intel MPI ends with
    /// 255 for any signal.
    fn combined(self, statuses: &[WorkerStatus]) -> Option<ExitCode> {
        let (mut code, mut signal) = (0, 0);
        for status in statuses {
            match status {
                WorkerStatus::Exited { code: own } => code |= own,
                WorkerStatus::Signaled { signal: own, .. } => signal |= (own & 0x7f) as u8,
            }
        }
        match (code, signal) {
            (0, 0) => None,
            (code, 0) => Some(ExitCode(code)),
            _ if self == Intel => Some(ExitCode(255)),
            (_, signal) => Some(ExitCode(signal)),
        }
    }
}

/// How a rank that failed of its own ended, as far as that is known: our own signals may have come in between.
fn own_status(rank: &RankReport, report: &Report) -> Option<WorkerStatus> {
    match (rank.fate, rank.status?) {
        // Its code is known also if it was ended on its way out.
        (Fate::Culprit, WorkerStatus::Signaled { signal, .. }) if report.exit_code != ExitCode::signal(signal) => {
            Some(WorkerStatus::Exited { code: report.exit_code.0 })
        }
        (Fate::Culprit, status) => Some(status),
        (Fate::FailedToo, status) if OURS.iter().any(|signal| status.is_of_signal(*signal)) => None,
        (Fate::FailedToo, status) => Some(status),
        _ => None,
    }
}

/// The signals with which rankrun ends ranks: SIGTERM and SIGKILL.
const OURS: [i32; 2] = [15, 9];

/// The code of the `MPI_Abort` that ended the job: its lowest byte, which may be 0.
fn aborted(report: &Report) -> Option<ExitCode> {
    let culprit = report.culprit.as_ref()?.rank;
    let of_culprit = report.evidence.iter().filter(|evidence| evidence.rank == culprit);
    of_culprit.into_iter().find_map(|evidence| match evidence.fact {
        Fact::Aborted { code, .. } => Some(ExitCode(code.to_le_bytes()[0])),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(codes: Codes, statuses: &[(Option<u8>, i32)]) -> Option<u8> {
        let statuses: Vec<WorkerStatus> = statuses
            .iter()
            .map(|(code, signal)| match code {
                Some(code) => WorkerStatus::Exited { code: *code },
                None => WorkerStatus::Signaled { signal: *signal, core_dumped: false },
            })
            .collect();
        codes.combined(&statuses).map(|code| code.0)
    }

    #[test]
    fn a_program_that_is_not_there_has_a_code_of_its_own() {
        assert_eq!(OpenMpi5.of_refusal(ExitCode::NOT_FOUND), ExitCode(183));
        assert_eq!(Hydra.of_refusal(ExitCode::USAGE), ExitCode::USAGE);
    }

    #[test]
    fn hydra_combines_what_wait_returns() {
        assert_eq!(code(Hydra, &[(Some(3), 0), (Some(4), 0)]), Some(7));
        assert_eq!(code(Hydra, &[(None, 9)]), Some(9));
        assert_eq!(code(Hydra, &[(Some(3), 0), (None, 11)]), Some(11));
        assert_eq!(code(Intel, &[(None, 11)]), Some(255));
        assert_eq!(code(Intel, &[(Some(3), 0), (Some(4), 0)]), Some(7));
        assert_eq!(code(Hydra, &[]), None);
    }
}
