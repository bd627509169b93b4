//! The programs and the directories of ranks on this machine, looked at before the job begins.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rankrun_core::env::app_environment;
use rankrun_core::job::{App, Wrap};
use rankrun_core::rankmap::Place;
use rankrun_core::{AppIndex, ExitCode, JobSpec, NodeRank};
use rankrun_sys::reason;

use crate::ask::{self, At};
use crate::message::Problem;
use crate::plan::known_facts;
use crate::program::{self, Missing};
use crate::settings::{AppSettings, Settings};

fn check_directory(directory: &Path, at: &mut At<'_>) -> Result<(), Problem> {
    let problem = |text: String| Problem::usage(format!("cannot run in \"{}\": {text}", directory.display()));
    if !at(directory) {
        return Err(problem("not looked up".to_owned()));
    }
    let meta = std::fs::metadata(directory).map_err(|error| problem(reason(&error)))?;
    if !meta.is_dir() {
        return Err(problem("it is not a directory".to_owned()));
    }
    rustix::fs::access(directory, rustix::fs::Access::EXEC_OK).map_err(|error| problem(reason(&error.into())))
}

/// Checks the directories and programs of ranks, and returns the MPI library of each program.
pub(crate) fn look_at(
    spec: &JobSpec,
    here: Option<NodeRank>,
    settings: &Settings,
) -> Result<Vec<Option<String>>, Problem> {
    // Whoever gives the job less time does not want to wait longer for its begin. In less than a second a healthy file system may not
    // have answered.
    let bound = settings.timeout.map_or(ask::BOUND, |timeout| timeout.clamp(ask::LEAST, ask::BOUND));
    // Whoever is in the way of a wrong program is not looked for in this process.
    let unexplained = |_: &Missing, _: &OsStr, _: Option<&OsStr>, _: &Path| Problem::usage(String::new());
    let at_once = ask::at_once(|at| {
        check_programs(spec, here, &settings.apps, at, &unexplained).ok()?;
        Some(mpi_libraries(spec, at))
    });
    if let Some(libraries) = at_once {
        return Ok(libraries);
    }
    let look = |at: &mut At<'_>| {
        check_programs(spec, here, &settings.apps, at, &program::explain).map(|()| mpi_libraries(spec, at))
    };
    ask::ask(bound, look).unwrap_or_else(|silent| {
        let problem = Problem::usage(format!("cannot look up the program: {silent}")).code(ExitCode::NOT_EXECUTABLE);
        Err(problem.hint("its file system does not answer: see whether its server runs"))
    })
}

/// Says what is wrong with a command, which was looked up with a PATH and from a directory.
type Explain<'a> = &'a dyn Fn(&Missing, &OsStr, Option<&OsStr>, &Path) -> Problem;

/// Checks that every rank on this machine has its directory, and that its program can be executed.
fn check_programs(
    spec: &JobSpec,
    here: Option<NodeRank>,
    settings: &[AppSettings],
    at: &mut At<'_>,
    explain: Explain<'_>,
) -> Result<(), Problem> {
    let directory = |place: &Place| PathBuf::from(spec.directory(place.rank));
    let places: Vec<&Place> = spec.map.places().iter().filter(|place| Some(place.node) == here).collect();
    let directories: BTreeSet<PathBuf> = places.iter().map(|place| directory(place)).collect();
    for directory in directories.iter().filter(|directory| *directory != Path::new(&spec.cwd)) {
        check_directory(directory, at)?;
    }
    for (app, index) in spec.apps.iter().zip(0..) {
        let env = app_environment(spec, &known_facts(), AppIndex(index));
        let path = env.get(OsStr::new("PATH")).map(OsString::as_os_str);
        let mut found: BTreeSet<(OsString, PathBuf)> = BTreeSet::new();
        for place in places.iter().filter(|place| place.app == AppIndex(index)) {
            let wraps: Vec<&Wrap> = app.wraps.iter().filter(|wrap| wrap.ranks.contains(place.rank)).collect();
            // The wrap looks up the program of a wrapped rank: it may not be a program at all, as after "sh -c".
            let own = wraps.is_empty().then(|| app.command[0].clone());
            for word in own.into_iter().chain(wraps.iter().map(|wrap| spec.expand(&wrap.command[0], place.rank))) {
                let program = (word, directory(place));
                if !found.contains(&program) {
                    let slip = settings.get(index as usize).and_then(|app| app.slip.clone());
                    let slip = slip.filter(|_| program.0 == app.command[0]);
                    program::locate(&program.0, path, &program.1, at).map_err(|missing| {
                        let problem = explain(&missing, &program.0, path, &program.1);
                        match slip {
                            Some(slip) if problem.code == ExitCode::NOT_FOUND => {
                                Problem { hints: vec![slip], ..problem }
                            }
                            _ => problem,
                        }
                    })?;
                    found.insert(program);
                }
            }
        }
    }
    Ok(())
}

/// The MPI library of each program that calls `MPI_Init`, as far as this machine has the file. One rank is a world of its own.
fn mpi_libraries(spec: &JobSpec, at: &mut At<'_>) -> Vec<Option<String>> {
    let library = |(app, index): (&App, u32)| {
        let is_wanted = spec.map.world_size() > 1 && app.wraps.is_empty();
        let env = is_wanted.then(|| app_environment(spec, &known_facts(), AppIndex(index)))?;
        let rank = spec.map.places().iter().find(|place| place.app == AppIndex(index))?.rank;
        let path = env.get(OsStr::new("PATH")).map(OsString::as_os_str);
        program::mpi_library(&app.command, path, Path::new(&spec.directory(rank)), at)
    };
    spec.apps.iter().zip(0..).map(library).collect()
}
