//! Whether the ranks of a node can be forked from one interpreter (`--preload`).

use std::ffi::OsString;

use crate::ids::{AppIndex, Rank};
use crate::spec::job::JobSpec;

impl JobSpec {
    /// Why the ranks of an app on one node cannot be forked from one interpreter, as far as the job says. `threads`: the value of [`crate::preload::THREADS`] of
    /// each.
    pub fn fork_obstacle(&self, app: AppIndex, ranks: &[Rank], threads: &[Option<OsString>]) -> Option<String> {
        let is_one = |of: &dyn Fn(Rank) -> Vec<OsString>| ranks.windows(2).all(|pair| of(pair[0]) == of(pair[1]));
        let what = if !self.hook {
            "it needs rankrun's hook in Python (--hook)"
        } else if !is_one(&|rank| self.command(rank)) {
            "its ranks have different commands"
        } else if !is_one(&|rank| vec![self.directory(rank)]) {
            "its ranks have different working directories"
        } else if threads.windows(2).any(|pair| pair[0] != pair[1]) {
            "its ranks have different numbers of threads (OMP_NUM_THREADS), which libraries read when they are imported"
        } else {
            return None;
        };
        Some(match self.apps.len() {
            1 => what.replacen("its ranks", "the ranks of this node", 1),
            _ => format!("command {}: {what}", app.index()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_differ_are_not_forked_from_one() {
        let mut spec = JobSpec::sample(2, &[], Vec::new());
        let ranks = [Rank(0), Rank(1)];
        let obstacle = |spec: &JobSpec, threads: [Option<&str>; 2]| {
            spec.fork_obstacle(AppIndex(0), &ranks, &threads.map(|text| text.map(OsString::from)))
        };
        assert_eq!(obstacle(&spec, [None, None]), None);
        assert!(obstacle(&spec, [Some("1"), Some("2")]).is_some_and(|why| why.contains("OMP_NUM_THREADS")));
        spec.expands_args = true;
        spec.apps[0].command = vec!["python".into(), "{rank}.py".into()];
        assert!(obstacle(&spec, [None, None]).is_some_and(|why| why.contains("commands")));
        spec.hook = false;
        assert!(obstacle(&spec, [None, None]).is_some_and(|why| why.contains("--hook")));
    }
}
