//! GPUs and network cards, with the CPUs that are near them.

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;
use super::machine::Files;

/// What ranks are placed near to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DeviceKind {
    Gpu,
    Nic,
}

/// A device of a kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its address on the bus, or its name.
    pub name: String,
    /// The CPUs near it: those of its NUMA node. Empty where the machine does not say.
    pub cpus: CpuSet,
}

const PCI: &str = "/sys/bus/pci/devices";
/// Vendors of graphics in servers' management controllers: ASPEED, Matrox.
const NO_GPU: [&str; 2] = ["0x1a03", "0x102b"];

/// The devices of a kind, in the order in which programs number them.
pub fn devices(files: &impl Files, kind: DeviceKind) -> Vec<Device> {
    match kind {
        DeviceKind::Gpu => gpus(files),
        DeviceKind::Nic => nics(files),
    }
}

/// GPUs in the order of their addresses: NVIDIA's and AMD's libraries number equal GPUs so.
fn gpus(files: &impl Files) -> Vec<Device> {
    let nvidia = sorted(files.names("/proc/driver/nvidia/gpus"));
    if !nvidia.is_empty() {
        return nvidia.into_iter().map(|name| near(files, &format!("{PCI}/{name}"), name)).collect();
    }
    let is_gpu = |name: &String| {
        let read = |file: &str| files.text(&format!("{PCI}/{name}/{file}")).unwrap_or_default();
        let class = read("class");
        // VGA, 3D and display controllers, and accelerators (PCI Code and ID Assignment, base classes 03h and 12h).
        let is_wanted = ["0x0300", "0x0302", "0x0380", "0x1200"].iter().any(|wanted| class.starts_with(wanted));
        is_wanted && !NO_GPU.contains(&read("vendor").trim())
    };
    let found = sorted(files.names(PCI)).into_iter().filter(is_gpu);
    found.map(|name| near(files, &format!("{PCI}/{name}"), name)).collect()
}

/// The cards of the fast network, else all that are no virtual ones.
fn nics(files: &impl Files) -> Vec<Device> {
    let of = |class: &str| -> Vec<Device> {
        let names = sorted(files.names(class));
        let is_real = |name: &String| files.text(&format!("{class}/{name}/device/vendor")).is_some();
        names.into_iter().filter(is_real).map(|name| near(files, &format!("{class}/{name}/device"), name)).collect()
    };
    let fast = of("/sys/class/infiniband");
    if fast.is_empty() { of("/sys/class/net") } else { fast }
}

fn near(files: &impl Files, directory: &str, name: String) -> Device {
    let node = files.text(&format!("{directory}/numa_node")).and_then(|text| text.trim().parse::<u32>().ok());
    let of_node = node.and_then(|node| files.text(&format!("/sys/devices/system/node/node{node}/cpulist")));
    let list = of_node.or_else(|| files.text(&format!("{directory}/local_cpulist")));
    Device { name, cpus: list.and_then(|list| list.parse().ok()).unwrap_or_default() }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}
