//! Hosts of the tests' bench, for rows of several nodes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Hosts that are up, with one in front of them that has no sshd. They end when this is dropped.
pub(super) struct Hosts {
    child: Child,
    /// The words before a command that make it one of a host; and other things that are told of the bench.
    told: BTreeMap<String, String>,
}

impl Hosts {
    /// Brings up the hosts `node0`, `node1` ...
    pub(super) fn up(count: usize) -> Result<Hosts> {
        let mut command = Command::new(workspace::release().join("hosts"));
        command.args(["up", &count.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the hosts")?;
        let lines = BufReader::new(child.stdout.take().context("it was asked for")?).lines();
        let mut told = BTreeMap::new();
        for line in lines {
            let line = line?;
            let Some((name, words)) = line.split_once(' ') else { break };
            told.insert(name.to_owned(), words.to_owned());
        }
        let hosts = Hosts { child, told };
        ensure!(hosts.told.contains_key("front"), "the hosts do not come up");
        Ok(hosts)
    }

    fn told(&self, what: &str) -> Result<&str> {
        self.told.get(what).map(String::as_str).with_context(|| format!("the bench has no {what}"))
    }

    /// A command on the host in front.
    pub(super) fn command(&self, program: &Path) -> Result<Command> {
        let mut words = self.told("front")?.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(program);
        Ok(command)
    }

    /// rankrun on the host in front.
    pub(super) fn rankrun(&self) -> Result<Command> {
        self.command(Path::new(self.told("rankrun")?))
    }

    /// The configuration for ssh to the nodes.
    pub(super) fn ssh_config(&self) -> Result<&Path> {
        Ok(Path::new(self.told("ssh")?))
    }

    /// A directory that all hosts see, under this name below theirs, and empty.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = Path::new(self.told("directory")?).join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The end of its stdin ends the bench, and all processes on the hosts.
        drop(self.child.stdin.take());
        // It has nothing to tell by its code.
        let _ = self.child.wait();
    }
}
