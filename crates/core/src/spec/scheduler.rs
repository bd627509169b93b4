//! What the scheduler says of a job that is to run again.

/// Whether somebody has cancelled a job of Slurm, by what `scontrol show job` prints of it. While its processes end, Slurm 22.05 prints
/// the state of a job that was cancelled as COMPLETING, with no reason; one that has reached its time limit has the reason TimeLimit,
/// and one that is preempted a time of that. `scontrol requeue` would run all of them again.
pub fn is_cancelled(shown: &str) -> bool {
    let of = |name: &str| {
        let mut words = shown.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let is_ending = |state: &str| state.split(',').any(|state| state == "COMPLETING" || state == "CANCELLED");
    let is_none = |value: Option<&str>| value.is_none_or(|value| value == "None");
    of("JobState").is_some_and(is_ending) && is_none(of("Reason")) && is_none(of("PreemptTime"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_job_is_told_from_one_that_has_reached_its_limit() {
        let shown = |state: &str, reason: &str, preempted: &str| {
            is_cancelled(&format!(
                "JobId=7 JobName=script\n   JobState={state} Reason={reason} Dependency=(null)\n   PreemptEligibleTime=x PreemptTime={preempted}\n"
            ))
        };
        assert!(shown("COMPLETING", "None", "None"));
        assert!(shown("CANCELLED", "None", "None"));
        assert!(shown("CANCELLED,COMPLETING", "None", "None"));
        assert!(!shown("RUNNING", "None", "None"), "scancel --signal, or sbatch --signal");
        assert!(!shown("COMPLETING", "TimeLimit", "None"));
        assert!(!shown("TIMEOUT", "TimeLimit", "None"));
        assert!(!shown("COMPLETING", "None", "2026-11-28T12:55:40"));
        assert!(!is_cancelled(""), "it has not answered");
    }
}
