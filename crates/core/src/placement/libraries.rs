//! How ranks are bound by what their MPI library is.

use super::request::Binding;
use super::variables::wish;
use super::wish::Wish;
use crate::env::value_of;
use crate::job::MpiMode;
use crate::{JobSpec, NodeRank};

/// The library of Open MPI, which has no such variables.
const OPEN_MPI: &str = "libmpi.so.40";
/// The library of MPICH and all that are compatible with it.
const MPICH: &str = "libmpi.so.12";

impl JobSpec {
    /// How ranks are bound: as the options say, else by the variables of their MPI library. `libraries` are those of each app's program, where
    /// they are known.
    pub fn wish(&self, options: &Binding, libraries: &[Option<String>]) -> Wish {
        let is_open_mpi = libraries.iter().flatten().any(|library| library == OPEN_MPI);
        if options.is_asked_for() || is_open_mpi || self.mpi == MpiMode::None {
            return Wish { binding: options.clone(), notes: Vec::new() };
        }
        let nodes = (0..self.map.node_count()).map(NodeRank);
        let ranks = nodes.map(|node| self.map.local_size(node)).max().unwrap_or(0);
        let of = |app: usize| {
            let app = self.apps.get(app)?;
            let value = |name: &str| {
                Some(value_of(&self.base_env, &app.env, name)?.to_str()?.to_owned()).filter(|text| !text.is_empty())
            };
            wish(&value, ranks)
        };
        let mut found = of(0).unwrap_or_default();
        if (1..self.apps.len()).any(|app| of(app).unwrap_or_default().binding != found.binding) {
            found = Wish::default();
            found.notes.push("programs have different variables for binding: none is followed".to_owned());
        }
        let is_intel = |(library, app): (&Option<String>, &crate::job::App)| {
            library.as_deref() == Some(MPICH) && value_of(&self.base_env, &app.env, "I_MPI_ROOT").is_some()
        };
        let is_bound_crowded = libraries.len() == self.apps.len() && libraries.iter().zip(&self.apps).all(is_intel);
        let (overloads, is_reported) = (options.overloads || found.binding.overloads, options.is_reported);
        Wish { binding: Binding { overloads, is_reported, is_bound_crowded, ..found.binding }, notes: found.notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::EnvEdit;
    use crate::placement::BindTo;

    #[test]
    fn variables_of_a_library_are_read_where_its_programs_run() {
        let domain = |value: &str| EnvEdit::Set { name: "I_MPI_PIN_DOMAIN".into(), value: value.into() };
        let spec = |base: &[(&str, &str)], edits| JobSpec::sample(2, base, edits);
        let library = |name: &str| vec![Some(name.to_owned())];
        let numa = spec(&[("I_MPI_ROOT", "/opt/intel")], vec![domain("numa")]);
        assert!(numa.wish(&Binding::default(), &library(MPICH)).binding.is_asked_for());
        assert!(numa.wish(&Binding::default(), &[None]).binding.is_asked_for(), "behind a script");
        assert!(!numa.wish(&Binding::default(), &library(OPEN_MPI)).binding.is_asked_for());
        let core = Binding { to: BindTo::Core, ..Binding::default() };
        assert_eq!(numa.wish(&core, &library(MPICH)).binding, core, "options come first");
        let without_mpi = JobSpec { mpi: MpiMode::None, ..spec(&[], vec![domain("numa")]) };
        assert!(!without_mpi.wish(&Binding::default(), &[None]).binding.is_asked_for(), "as under torchrun");
        let unknown = spec(&[("I_MPI_PIN_DOMAIN", "core:4")], Vec::new()).wish(&Binding::default(), &[None]);
        assert_eq!(unknown.notes.len(), 1, "{:?}", unknown.notes);
    }

    #[test]
    fn ranks_of_intel_mpi_are_bound_where_they_are_more_than_the_cores() {
        let crowded = |base: &[(&str, &str)], libraries: &[Option<String>]| {
            JobSpec::sample(2, base, Vec::new()).wish(&Binding::default(), libraries).binding.is_bound_crowded
        };
        let root = [("I_MPI_ROOT", "/opt/intel")];
        assert!(crowded(&root, &[Some(MPICH.to_owned())]));
        assert!(!crowded(&root, &[None]));
        assert!(!crowded(&root, &[Some(OPEN_MPI.to_owned())]));
        assert!(!crowded(&[], &[Some(MPICH.to_owned())]), "MPICH does not bind");
    }
}
