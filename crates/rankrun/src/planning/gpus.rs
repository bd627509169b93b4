//! How many GPUs this machine has (`-n gpu`, `--gpus-per-rank`), without a driver's library or tool.

use std::path::Path;

use rankrun_core::env::GpuMask;

use crate::message::Problem;

/// The GPUs of the machine, from the files of its drivers: NVIDIA's, else AMD's, else Intel's.
pub(crate) fn installed() -> u32 {
    count(Path::new("/"))
}

fn count(root: &Path) -> u32 {
    // In a container this directory has only the GPUs that were given to it.
    let nvidia = || entries(&root.join("proc/driver/nvidia/gpus"), |_, _| true);
    let nvidia_devices = || entries(&root.join("dev"), |name, _| is_numbered(name, "nvidia"));
    let amd = || {
        // A node without SIMDs is a CPU (amdkfd, "kfd_topology.c").
        let has_simds = |text: &str| text.lines().any(|line| line.starts_with("simd_count ") && line != "simd_count 0");
        let usable = root.join("dev/kfd").exists();
        let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
        if usable { entries(&nodes, |_, node| has_simds(&read(&node.join("properties")))) } else { 0 }
    };
    let intel = || {
        let is_intel = |device: &Path| read(&device.join("device/vendor")).trim() == "0x8086";
        entries(&root.join("sys/class/drm"), |name, device| is_numbered(name, "renderD") && is_intel(device))
    };
    // WSL shows one device for all GPUs.
    let windows = || u32::from(root.join("dev/dxg").exists());
    let counts: [&dyn Fn() -> u32; 5] = [&nvidia, &nvidia_devices, &amd, &intel, &windows];
    counts.iter().map(|count| count()).find(|count| *count > 0).unwrap_or(0)
}

fn entries(directory: &Path, counts: impl Fn(&str, &Path) -> bool) -> u32 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| counts(&entry.file_name().to_string_lossy(), &entry.path())).count() as u32
}

fn is_numbered(name: &str, kind: &str) -> bool {
    let number = name.strip_prefix(kind);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// An option counts GPUs, and there are none.
pub(crate) fn no_gpus(option: &str, mask: Option<GpuMask>) -> Problem {
    Problem::usage(match mask {
        Some(mask) => format!("{option}: {} lists no GPU", mask.variable),
        None => format!("{option}: this machine has no GPU that rankrun can see"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> u32 {
        let root = tempfile::tempdir().expect("a directory for the test");
        for (name, text) in files {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a name below the directory")).expect("a directory");
            std::fs::write(file, text).expect("a file");
        }
        count(root.path())
    }

    #[test]
    fn gpus_of_each_maker_are_counted() {
        assert_eq!(machine(&[]), 0);
        let information =
            ["proc/driver/nvidia/gpus/0000:01:00.0/information", "proc/driver/nvidia/gpus/0000:02:00.0/information"];
        assert_eq!(machine(&information.map(|name| (name, ""))), 2);
        assert_eq!(
            machine(&[("dev/nvidia0", ""), ("dev/nvidia1", ""), ("dev/nvidiactl", ""), ("dev/nvidia-uvm", "")]),
            2
        );
        let nodes = [
            ("dev/kfd", ""),
            ("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n"),
            ("sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nsimd_count 440\n"),
        ];
        assert_eq!(machine(&nodes), 1);
        assert_eq!(machine(&nodes[1..]), 0, "the device may not be used here");
        let cards = [
            ("sys/class/drm/renderD128/device/vendor", "0x8086\n"),
            ("sys/class/drm/card0/device/vendor", "0x8086\n"),
            ("sys/class/drm/renderD129/device/vendor", "0x1a03\n"),
        ];
        assert_eq!(machine(&cards), 1);
        assert_eq!(machine(&[("dev/dxg", "")]), 1);
    }
}
