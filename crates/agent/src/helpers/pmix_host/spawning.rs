//! What a client of libpmix asks for by `PMIx_Spawn`, in the words of `MPI_Info`.

use std::ffi::{OsStr, OsString};

use rankrun_core::job::EnvEdit;
use rankrun_core::pmix;
use rankrun_core::spawning::{SpawnApp, SpawnRequest};
use rankrun_sys::pmix::Wanted;

/// The keys of PMIx, and those of `MPI_Info` of which Open MPI makes them (`ompi_dpm_spawn`).
const KEYS: [(&str, &str); 11] = [
    ("pmix.wdir", "wdir"),
    ("pmix.host", "host"),
    ("pmix.hostfile", "hostfile"),
    ("pmix.addhost", "add-host"),
    ("pmix.addhostfile", "add-hostfile"),
    ("pmix.prefix", "ompi_prefix"),
    ("pmix.mapper", "mapper"),
    ("pmix.mapby", "map_by"),
    ("pmix.rankby", "rank_by"),
    ("pmix.bindto", "bind_to"),
    ("pmix.ppr", "ppr"),
];

/// What says nothing of the ranks that are to be started.
const UNUSED: [&str; 4] = ["pmix.pers", "pmix.requestor", "pmix.parent", "pmix.timeout"];

/// A request as the job takes it.
pub(super) fn request(commands: Vec<Wanted>) -> SpawnRequest {
    SpawnRequest { apps: commands.into_iter().map(app).collect(), preput: Vec::new() }
}

fn app(wanted: Wanted) -> SpawnApp {
    let Wanted { words, size, variables, directory, infos } = wanted;
    // A rank passes on what rankrun gave it.
    let ours = |name: &OsStr, value: &Option<OsString>| {
        pmix::OPEN_MPI_4.iter().any(|(of_ours, is)| name == *of_ours && value.as_deref() == Some(OsStr::new(is)))
    };
    let variables = variables.into_iter().filter(|(name, value)| !ours(name, value));
    let env = variables.map(|(name, value)| match value {
        Some(value) => EnvEdit::Set { name, value },
        None => EnvEdit::Remove { name },
    });
    let mut info: Vec<(String, String)> = Vec::new();
    for (key, value) in infos {
        if UNUSED.contains(&key.as_str()) {
            continue;
        }
        let name = KEYS.iter().find(|(of_pmix, _)| *of_pmix == key).map(|(_, name)| (*name).to_owned());
        info.push((name.unwrap_or(key), value));
    }
    if let Some(directory) = directory.filter(|_| !info.iter().any(|(key, _)| key == "wdir")) {
        info.push(("wdir".to_owned(), directory));
    }
    SpawnApp { command: words, size: u32::try_from(size).unwrap_or(0), env: env.collect(), info }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_open_mpi_makes_of_an_mpi_info_is_that_mpi_info_again() {
        let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let wanted = Wanted {
            words: vec!["./worker".into(), "-v".into()],
            size: 2,
            variables: vec![
                ("OMPI_PARENT_PORT".into(), Some("1.0:7".into())),
                ("OMPI_MCA_ess".into(), Some("pmi".into())),
                ("GONE".into(), None),
            ],
            directory: Some("/other".to_owned()),
            infos: vec![
                text("pmix.pers", "ompi5"),
                text("pmix.mapby", "node"),
                text("pmix.wdir", "/tmp"),
                text("pmix.host", "a,b"),
                text("mine", "x"),
            ],
        };
        let request = request(vec![
            wanted,
            Wanted { words: vec!["p".into()], size: -1, directory: Some("/d".into()), ..Wanted::default() },
        ]);
        let [first, second] = &request.apps[..] else { panic!("{request:?}") };
        let info = [text("map_by", "node"), text("wdir", "/tmp"), text("host", "a,b"), text("mine", "x")];
        assert_eq!((first.size, &first.info[..]), (2, &info[..]));
        let env = [
            EnvEdit::Set { name: "OMPI_PARENT_PORT".into(), value: "1.0:7".into() },
            EnvEdit::Remove { name: "GONE".into() },
        ];
        assert_eq!(first.env, env);
        assert_eq!((second.size, &second.info[..]), (0, &[text("wdir", "/d")][..]));
    }
}
