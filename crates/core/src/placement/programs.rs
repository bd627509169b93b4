//! What programs say about their own threads: the variables by which they are told.

use std::ffi::OsStr;

use crate::env::value_of;
use crate::spec::job::JobSpec;

impl JobSpec {
    /// How many threads of OpenMP the user wants in a rank: the most that an app has.
    pub fn openmp_threads(&self) -> Option<u32> {
        let of = |value: &OsStr| {
            // A list has a number for each level of nested regions.
            let mut levels = value.to_str()?.split(',').map(|level| level.trim().parse::<u32>().ok());
            levels.try_fold(1u32, |all: u32, level| Some(all.saturating_mul(level?)))
        };
        self.values("OMP_NUM_THREADS").filter_map(of).max()
    }

    /// Whether the user binds threads to CPUs that are named: those of two ranks would be the same, and outside of what we choose.
    pub(super) fn binds_itself(&self) -> bool {
        let has = |name: &str, wanted: &dyn Fn(&str) -> bool| {
            self.values(name).any(|value| value.to_str().is_some_and(wanted))
        };
        has("GOMP_CPU_AFFINITY", &|text| !text.is_empty())
            || has("KMP_AFFINITY", &|text| text.contains("proclist"))
            || has("OMP_PLACES", &|text| text.contains('{'))
    }

    /// The values that a variable has in the apps.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a OsStr> {
        self.apps.iter().filter_map(move |app| value_of(&self.base_env, &app.env, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::job::EnvEdit;

    #[test]
    fn threads_and_bindings_of_the_users_are_heeded() {
        let spec = |base: &[(&str, &str)]| JobSpec::sample(2, base, Vec::new());
        assert_eq!(spec(&[]).openmp_threads(), None);
        assert_eq!(spec(&[("OMP_NUM_THREADS", "4")]).openmp_threads(), Some(4));
        assert_eq!(spec(&[("OMP_NUM_THREADS", "4, 2")]).openmp_threads(), Some(8));
        assert_eq!(spec(&[("OMP_NUM_THREADS", "many")]).openmp_threads(), None);
        let edit = EnvEdit::Set { name: "OMP_NUM_THREADS".into(), value: "6".into() };
        assert_eq!(JobSpec::sample(2, &[("OMP_NUM_THREADS", "4")], vec![edit]).openmp_threads(), Some(6));
        for (name, value, expected) in [
            ("GOMP_CPU_AFFINITY", "0-3", true),
            ("KMP_AFFINITY", "granularity=fine,compact", false),
            ("KMP_AFFINITY", "explicit,proclist=[0,1]", true),
            ("OMP_PLACES", "cores", false),
            ("OMP_PLACES", "{0},{1}", true),
        ] {
            assert_eq!(spec(&[(name, value)]).binds_itself(), expected, "{name}={value}");
        }
    }
}
