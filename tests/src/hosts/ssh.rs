//! Keys that are thrown away with the bench, and the configurations of server and client.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::host;

/// Every host has a network of its own, so all have the usual port.
pub(super) const PORT: u16 = 22;

/// The client's configuration.
pub(super) fn config(directory: &Path) -> PathBuf {
    directory.join("ssh/config")
}

/// Makes the user's key and one for each node, and the client's configuration.
pub(super) fn write_keys(directory: &Path, names: &[String]) {
    let ssh = directory.join("ssh");
    fs::create_dir(&ssh).expect("the directory of the bench is ours");
    let nodes = &names[1..];
    let keys: Vec<&str> = std::iter::once("user").chain(nodes.iter().map(String::as_str)).collect();
    let generators: Vec<Child> = keys.iter().map(|name| generate(&ssh.join(name))).collect();
    for mut generator in generators {
        assert!(generator.wait().expect("it is our child").success(), "ssh-keygen fails");
    }
    let mut known = String::new();
    for (index, name) in names.iter().enumerate().skip(1) {
        let key = fs::read_to_string(ssh.join(format!("{name}.pub"))).expect("ssh-keygen has written it");
        known += &format!("{name},{} {key}", host::address(index));
    }
    fs::write(ssh.join("known_hosts"), known).expect("the directory is ours");
    let ssh = ssh.display();
    let text = format!(
        "Host *\n\
         User root\n\
         IdentityFile {ssh}/user\n\
         IdentitiesOnly yes\n\
         UserKnownHostsFile {ssh}/known_hosts\n\
         GlobalKnownHostsFile /dev/null\n\
         StrictHostKeyChecking yes\n"
    );
    fs::write(config(directory), text).expect("the directory is ours");
}

fn generate(path: &Path) -> Child {
    Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .spawn()
        .expect("ssh-keygen comes with ssh")
}

/// The configuration of one node's `sshd`. The first value of an option counts, so those of the test come first.
pub(super) fn server_config(directory: &Path, name: &str, lines: &[String]) -> String {
    let directory = directory.display();
    let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    text += &format!(
        "Port {PORT}\n\
         AddressFamily inet\n\
         HostKey {directory}/ssh/{name}\n\
         AuthorizedKeysFile {directory}/ssh/user.pub\n\
         PidFile {directory}/{name}/sshd.pid\n\
         PermitRootLogin yes\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         StrictModes no\n\
         UsePAM no\n\
         UseDNS no\n\
         PrintMotd no\n"
    );
    text
}
