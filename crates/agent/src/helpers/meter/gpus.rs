//! What processes use of NVIDIA's GPUs, by NVIDIA's own program.
//!
//! `nvidia-smi pmon` writes a line a second for each process on each GPU. It runs as long as the meter does, since its start can take
//! seconds; it is asked nothing and never waited for. The library below it (NVML) would need `dlopen`, which a static binary does not
//! have, and its calls can hang in the driver.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rankrun_core::usage::GpuUsage;
use rankrun_sys::{exec, socket};

const PROGRAM: &str = "nvidia-smi";
/// Utilisation and memory of each process, once a second.
const ARGUMENTS: [&str; 5] = ["pmon", "-s", "um", "-d", "1"];
/// A sample is of no use after this time: the program has ended, or hangs.
const FRESH: Duration = Duration::from_secs(4);
/// Bytes of a line. A longer one is not of this program.
const LONGEST_LINE: usize = 4096;

/// The program, and what it has written.
#[derive(Debug)]
pub(super) struct Gpus {
    program: Option<(Child, ChildStdout)>,
    pending: Vec<u8>,
    columns: Columns,
    samples: HashMap<(i32, u32), (Instant, GpuUsage)>,
}

impl Gpus {
    /// Starts the program, where there is one.
    pub(super) fn start(path: Option<OsString>) -> Gpus {
        let program = path.and_then(|path| start(&path));
        Gpus { program, pending: Vec::new(), columns: Columns::default(), samples: HashMap::new() }
    }

    /// Reads what the program has written meanwhile.
    pub(super) fn read(&mut self, now: Instant) {
        let Some((_, output)) = &mut self.program else { return };
        let mut room = [0; 8192];
        loop {
            match output.read(&mut room) {
                Ok(count @ 1..) => self.pending.extend_from_slice(&room[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It has ended: there is no GPU, or no driver.
                Ok(_) | Err(_) => {
                    self.end();
                    break;
                }
            }
        }
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            if let Some((pid, usage)) = self.columns.read(&String::from_utf8_lossy(&line)) {
                self.samples.insert((pid, usage.index), (now, usage));
            }
        }
        if self.pending.len() > LONGEST_LINE {
            self.pending.clear();
        }
        self.samples.retain(|_, (at, _)| now.saturating_duration_since(*at) < FRESH);
    }

    /// What these processes use together, by GPU.
    pub(super) fn of(&self, pids: &[i32]) -> Vec<GpuUsage> {
        if self.samples.is_empty() {
            return Vec::new();
        }
        let mut sums: Vec<GpuUsage> = Vec::new();
        for ((pid, index), (_, usage)) in &self.samples {
            if !pids.contains(pid) {
                continue;
            }
            let add = |one: Option<u64>, other: Option<u64>| one.map_or(other, |one| Some(one + other.unwrap_or(0)));
            match sums.iter_mut().find(|sum| sum.index == *index) {
                Some(sum) => {
                    let busy = add(sum.busy.map(u64::from), usage.busy.map(u64::from));
                    sum.busy = busy.map(|busy| busy.min(100) as u32);
                    sum.memory = add(sum.memory, usage.memory);
                }
                None => sums.push(*usage),
            }
        }
        sums.sort_unstable_by_key(|usage| usage.index);
        sums
    }

    fn end(&mut self) {
        if let Some((mut program, _)) = self.program.take() {
            // It may have ended. One that the driver holds ends when it can: the agent reaps it.
            let _ = program.kill();
            let _ = program.try_wait();
        }
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(path: &OsString) -> Option<(Child, ChildStdout)> {
    let program = exec::resolve(PROGRAM.as_ref(), Some(path), Path::new("/")).ok()?;
    let mut command = Command::new(program);
    command.args(ARGUMENTS).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut program = command.spawn().ok()?;
    let output = program.stdout.take()?;
    let output = OwnedFd::from(output);
    socket::set_nonblocking(&output).ok()?;
    Some((program, output.into()))
}

/// Where what stands in a line, by the program's own heading: `# gpu pid type sm mem enc dec jpg ofa fb ccpm command`. Drivers have
/// different columns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Columns(Vec<String>);

impl Columns {
    fn read(&mut self, line: &str) -> Option<(i32, GpuUsage)> {
        if let Some(heading) = line.strip_prefix('#') {
            let names: Vec<String> = heading.split_ascii_whitespace().map(str::to_owned).collect();
            // The line below it has the units.
            if names.iter().any(|name| name == "pid") {
                self.0 = names;
            }
            return None;
        }
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let field = |name: &str| {
            let at = self.0.iter().position(|known| known == name)?;
            fields.get(at)?.parse::<u64>().ok()
        };
        let pid = i32::try_from(field("pid")?).ok()?;
        let index = u32::try_from(field("gpu")?).ok()?;
        let busy = field("sm").map(|busy| busy.min(100) as u32);
        Some((pid, GpuUsage { index, busy, memory: field("fb").map(|mebibytes| mebibytes << 20) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_pmon_are_read_by_their_heading() {
        let mut columns = Columns::default();
        assert_eq!(columns.read("    0      12345     C     98     50      -      -    1024   python"), None);
        // Driver 470, `nvidia-smi pmon -s um`.
        for line in [
            "# gpu        pid  type    sm   mem   enc   dec    fb   command",
            "# Idx          #   C/G     %     %     %     %    MB   name",
            "    1          -     -     -     -     -     -     -   -",
        ] {
            assert_eq!(columns.read(line), None, "{line}");
        }
        let old = columns.read("    0      12345     C    98    50     -     -  1024   python");
        assert_eq!(old, Some((12345, GpuUsage { index: 0, busy: Some(98), memory: Some(1 << 30) })));
        // Driver 550.
        columns.read("# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command ");
        columns.read("# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name ");
        let new =
            columns.read("    7      2345     C      -      -      -      -      -      -    512      0    python3");
        assert_eq!(new, Some((2345, GpuUsage { index: 7, busy: None, memory: Some(512 << 20) })));
    }

    #[test]
    fn processes_of_a_rank_on_the_same_gpu_are_added_up() {
        let now = Instant::now();
        let mut gpus = Gpus::start(None);
        for (pid, index, busy, memory) in
            [(1, 0, Some(60), Some(5)), (2, 0, Some(70), Some(6)), (2, 1, None, Some(7)), (3, 0, None, None)]
        {
            gpus.samples.insert((pid, index), (now, GpuUsage { index, busy, memory }));
        }
        assert_eq!(
            gpus.of(&[1, 2]),
            [
                GpuUsage { index: 0, busy: Some(100), memory: Some(11) },
                GpuUsage { index: 1, busy: None, memory: Some(7) }
            ]
        );
        assert_eq!(gpus.of(&[4]), []);
    }

    /// A program of the same name that writes what NVIDIA's does.
    #[test]
    fn the_program_is_found_in_the_path_and_ended() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(PROGRAM);
        let heading = "# gpu pid type sm mem fb command";
        let script = format!("#!/bin/sh\necho '{heading}'\necho ' 0 77 C 12 3 45 python'\nexec sleep 600\n");
        std::fs::write(&path, script).expect("it is ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        let mut gpus = Gpus::start(Some(directory.path().as_os_str().to_owned()));
        let until = Instant::now() + Duration::from_secs(60);
        while gpus.of(&[77]).is_empty() {
            assert!(Instant::now() < until, "{gpus:?}");
            gpus.read(Instant::now());
            std::thread::yield_now();
        }
        assert_eq!(gpus.of(&[77]), [GpuUsage { index: 0, busy: Some(12), memory: Some(45 << 20) }]);
        gpus.read(Instant::now() + FRESH);
        assert_eq!(gpus.of(&[77]), [], "it is too old");
        let (mut program, output) = gpus.program.take().expect("it runs");
        program.kill().expect("it runs");
        program.wait().expect("it ends");
        gpus.program = Some((program, output));
        gpus.read(Instant::now());
        assert!(gpus.program.is_none());
    }
}
