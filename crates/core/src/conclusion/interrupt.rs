//! Failures of ranks that are the user's ^C, or a signal that rankrun got too.

use std::time::Duration;

use crate::exit::ExitCode;
use crate::finding::Finding;
use crate::gang::{Gang, Outside, PlannedStop, PlannedWhy};
use crate::grace::SIGINT;
use crate::order::Weight;

/// A signal to a whole process group, a container or a step of Slurm reaches ranks and rankrun within this time.
pub(crate) const SHARED: Duration = Duration::from_secs(1);

/// The exceptions that ^C raises: of Python, of Julia, of Ruby.
const INTERRUPTS: [&str; 3] = ["KeyboardInterrupt", "InterruptException", "Interrupt"];

/// Whether SIGINT raises an exception of this type.
pub(crate) fn is_raised_by_sigint(kind: &str) -> bool {
    INTERRUPTS.contains(&kind)
}

/// The signal that ended the job from outside, if a rank ended by the same one just before: whoever sent it sent it to both.
pub(crate) fn is_shared(gang: &Gang, finding: &Finding) -> Option<Outside> {
    let (outside, at) = gang.ended_from_outside()?;
    let (Outside::Signal(signal) | Outside::Planned(PlannedStop { why: PlannedWhy::Signal(signal), .. })) = outside
    else {
        return None;
    };
    let kind = finding.exception.as_ref().map(|exception| exception.kind.as_str()).filter(|kind| !kind.is_empty());
    let is_by_it = match kind {
        Some(kind) => signal == SIGINT && is_raised_by_sigint(kind),
        None => finding.code == ExitCode::signal(signal),
    };
    let is_near = finding.at <= at && at - finding.at <= SHARED;
    (is_by_it && is_near && gang.requested().is_none()).then_some(outside)
}

/// Whether a failure is the user's ^C on the terminal that its rank has. rankrun does not get that key. A rank that does not
/// handle it dies by SIGINT, or of the exception that its language makes of it, or a shell exits with 128 + 2 for it.
///
/// What our own SIGINT does to the rank comes after it, and is no interrupt.
pub(crate) fn is_interrupt(gang: &Gang, finding: &Finding) -> bool {
    let is_ours = matches!(finding.weight, Weight::LateOwn | Weight::Late);
    let kind = finding.exception.as_ref().map(|exception| exception.kind.as_str()).filter(|kind| !kind.is_empty());
    let is_by_signal = finding.code == ExitCode::signal(SIGINT);
    gang.rules().terminal == Some(finding.rank) && !is_ours && kind.map_or(is_by_signal, is_raised_by_sigint)
}
