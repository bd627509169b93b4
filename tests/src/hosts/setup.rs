//! What must be there before the first process of a bench: programs, permissions, files.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::{Names, Plan, host, slurm, ssh};
use crate::helper::shared_directory;

/// The programs of a bench, and the Debian packages that bring them.
const PROGRAMS: [(&str, &str); 7] = [
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
];

/// The home of root on each host. It is in a file system of the host alone, like all of `/run`.
pub(super) const HOME: &str = "/run/root";

/// Why there can be no hosts on this machine.
pub(super) fn missing() -> Option<String> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let look = || {
        if !rustix::process::geteuid().is_root() {
            return Some("hosts on one machine need root".to_owned());
        }
        let lacking = PROGRAMS.iter().find(|(name, _)| find_program(name).is_none());
        if let Some((name, package)) = lacking {
            return Some(format!("{name} is missing; cargo xtask test installs Debian's package {package} as root"));
        }
        let mut probe = Command::new("unshare");
        probe.args(["--mount", "--net", "--uts", "--ipc", "--", "true"]);
        let permitted = probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        (!permitted).then(|| "this machine permits no network and mount namespaces".to_owned())
    };
    MISSING.get_or_init(look).clone()
}

/// A program on PATH, or where Debian has those of the administrator.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|file| file.is_file())
}

/// The names of all hosts. The front is the first.
pub(super) fn names(nodes: usize) -> Vec<String> {
    std::iter::once("front".to_owned()).chain((0..nodes).map(|number| format!("node{number}"))).collect()
}

/// The directories that every host sees under their own path, although its `/tmp` is another.
pub(super) fn visible(directory: &Path) -> Vec<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = tests.parent().unwrap_or(tests).to_owned();
    let environments = env::var_os("RANKRUN_ENV_DIR").map(PathBuf::from);
    [directory.to_owned(), shared_directory().to_owned(), repository].into_iter().chain(environments).collect()
}

/// Writes what the holders put in the place of the machine's own files.
pub(super) fn write_files(directory: &Path, names: &[String], plan: &Plan) {
    let etc = directory.join("etc");
    let write = |path: PathBuf, text: &str| fs::write(path, text).expect("the directory of the bench is ours");
    let make = |path: &Path| fs::create_dir(path).expect("the directory of the bench is ours");
    make(&etc);
    make(&directory.join("jobs"));
    fs::set_permissions(directory.join("jobs"), fs::Permissions::from_mode(0o777)).expect("the directory is ours");
    let mut hosts = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    for (index, name) in names.iter().enumerate() {
        hosts += &match plan.names {
            Names::Ipv6 => format!("{} {name}\n", host::address_6(index)),
            Names::Ipv4 | Names::OwnIsLoopback => format!("{} {name}\n", host::address(index)),
        };
    }
    write(etc.join("hosts"), &hosts);
    // Names are those in /etc/hosts: no lookup leaves the host, and an unknown name is unknown at once.
    write(etc.join("nsswitch.conf"), "passwd: files\ngroup: files\nshadow: files\nhosts: files\n");
    write(etc.join("resolv.conf"), "");
    let passwd = fs::read_to_string("/etc/passwd").expect("everybody may read /etc/passwd");
    write(
        etc.join("passwd"),
        &with_root(&passwd, |fields| {
            fields[5] = HOME.to_owned();
            if let Some(shell) = &plan.shell {
                fields[6].clone_from(shell);
            }
        }),
    );
    // sshd refuses an account whose password is locked ("!"), also with a key.
    let shadow = fs::read_to_string("/etc/shadow").expect("root may read /etc/shadow");
    write(etc.join("shadow"), &with_root(&shadow, |fields| fields[1] = "*".to_owned()));
    fs::set_permissions(etc.join("shadow"), fs::Permissions::from_mode(0o600)).expect("the file is ours");
    if plan.shared_home {
        make(&directory.join("home"));
    }
    if plan.slurm {
        slurm::write_files(directory, plan.nodes);
    }
    let visible = visible(directory);
    let visible: Vec<String> = visible.iter().map(|path| path.display().to_string()).collect();
    write(directory.join("visible"), &visible.join("\n"));
    for (index, name) in names.iter().enumerate() {
        let own = directory.join(name);
        make(&own);
        make(&own.join("stage"));
        write(own.join("hostname"), &format!("{name}\n"));
        if plan.names == Names::OwnIsLoopback {
            let line = format!("{} {name}\n", host::address(index));
            write(own.join("hosts"), &hosts.replace(&line, &format!("127.0.1.1 {name}\n")));
        }
        // The front has none: nobody logs in there.
        if index > 0 {
            write(own.join("sshd_config"), &ssh::server_config(directory, name, &plan.sshd));
        }
    }
}

/// A file of accounts with another line for root.
fn with_root(accounts: &str, change: impl Fn(&mut Vec<String>)) -> String {
    let lines = accounts.lines().map(|line| {
        let mut fields: Vec<String> = line.split(':').map(str::to_owned).collect();
        if fields[0] == "root" {
            change(&mut fields);
        }
        fields.join(":") + "\n"
    });
    lines.collect()
}
