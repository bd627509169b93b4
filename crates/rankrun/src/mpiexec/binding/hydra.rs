//! Hydra's `-bind-to` and `-map-by`, as MPICH 5.0.2 does them (`hydra/lib/tools/topo/hwloc/topo_hwloc.c`). Where there are more ranks than
//! places, it begins again.

use super::{Binding, Native, Said, check_lists, each};
use crate::message::Problem;

/// What a word of `-bind-to` or `-map-by` means, in words of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    Hwthread,
    Core,
    Shared(&'static str),
    Near(&'static str),
    Machine,
}

const WORDS: &[&str] = &[
    "none",
    "rr",
    "user:LIST",
    "machine",
    "socket",
    "package",
    "numa",
    "numanode",
    "core",
    "hwthread",
    "l3cache",
    "gpu",
    "ib",
];

/// Whether only Hydra has such values.
pub(super) fn is_spoken(to: &str, map: &str) -> bool {
    let is_number = |text: &str| text.split_once(':').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
    let is_own = |text: &str| ["rr", "machine", "numanode"].contains(&text) || text.starts_with("user:");
    is_own(to) || is_own(map) || is_number(to) || is_number(map)
}

/// The object and how many of it.
fn read(said: &Said) -> Result<(Object, u32), Problem> {
    let device = || said.refused("write gpu or ib for the device of each rank, or -bind-to user:CPUS,CPUS");
    let (word, count) = match said.text.split_once(':') {
        Some(("pci" | "gpu", _)) => return Err(device()),
        Some((word, count)) => (word, said.number(count)?),
        None => (said.text.as_str(), 1),
    };
    let object = match word.to_ascii_lowercase().as_str() {
        "hwthread" => Object::Hwthread,
        "core" => Object::Core,
        "l3cache" | "l3ucache" => Object::Shared("l3"),
        "numa" | "numanode" => Object::Shared("numa"),
        "socket" | "package" => Object::Shared("package"),
        "machine" | "board" | "node" => Object::Machine,
        "gpu" => Object::Near("gpu"),
        "ib" | "hfi" | "hsn" | "en" | "eth" => Object::Near("nic"),
        word if word.starts_with('l') && word.ends_with("cache") => {
            return Err(said.refused("write core or l3cache: most machines have such a cache for each core"));
        }
        word if ["gpu", "ib", "hfi", "pci"].iter().any(|device| word.starts_with(device)) => {
            return Err(device());
        }
        word => return Err(said.unknown(word, WORDS)),
    };
    Ok((object, count))
}

pub(super) fn words(binding: &Binding, ranks: Option<u32>) -> Result<Native, Problem> {
    let mut native = Native::default();
    // Alone, -map-by does nothing.
    let Some(to) = &binding.to else { return Ok(native) };
    match to.text.as_str() {
        "none" => {
            native.push("--bind-to=none");
            return Ok(native);
        }
        "rr" => {
            native.words.extend(["--map-by=core", "--bind-to=hwthread", "--overload"].map(str::to_owned));
            let text = "rr: hardware threads are in the order of the cores, not of the kernel's numbers";
            native.notes.push(format!("{} {text}", to.option.name));
            return Ok(native);
        }
        text => {
            if let Some(list) = text.strip_prefix("user:") {
                return user(to, list, ranks);
            }
        }
    }
    let (object, count) = read(to)?;
    let map = binding.map.as_ref().map(|map| Ok((read(map)?, map))).transpose()?;
    if let Some(((_, 2..), map)) = map {
        return Err(map.refused("write one of them for each rank, as -map-by socket"));
    }
    let map = map.map(|((object, _), map)| (object, map));
    let by = |what: &str| match count {
        1 => format!("--map-by={what}"),
        count => format!("--map-by={what}:PE={count}"),
    };
    let (map_by, bind_to) = match (object, map) {
        (Object::Machine, _) => {
            native.push("--bind-to=none");
            return Ok(native);
        }
        (Object::Near(device), _) => (format!("--map-by={device}"), "numa".to_owned()),
        (Object::Core, None | Some((Object::Core, _))) => (by("core"), "core".to_owned()),
        (Object::Hwthread, None | Some((Object::Hwthread, _))) => (by("hwthread"), "hwthread".to_owned()),
        (Object::Core, Some((Object::Hwthread, _))) if count == 1 => (by("hwthread"), "core".to_owned()),
        (Object::Hwthread, Some((Object::Core, _))) if count == 1 => (by("core"), "hwthread".to_owned()),
        (Object::Core, Some((Object::Shared(what) | Object::Near(what), _))) => (by(what), "core".to_owned()),
        (Object::Hwthread, Some((Object::Shared(what) | Object::Near(what), _))) => (by(what), "hwthread".to_owned()),
        (Object::Core, Some((Object::Machine, _))) => (by("core"), "core".to_owned()),
        (Object::Hwthread, Some((Object::Machine, _))) => (by("hwthread"), "hwthread".to_owned()),
        (Object::Shared(what), map) if count > 1 => {
            if map.is_some_and(|(object, _)| object != Object::Shared(what)) {
                return Err(to.refused("leave -map-by out, or write the lists as -bind-to user:CPUS,CPUS"));
            }
            ("--map-by=slot".to_owned(), format!("{what}:{count}"))
        }
        (Object::Shared(what), None | Some((Object::Machine, _))) => (format!("--map-by={what}"), what.to_owned()),
        (Object::Shared(what), Some((map, _))) => {
            let map = match map {
                Object::Hwthread => "hwthread",
                Object::Core | Object::Machine => "core",
                Object::Shared(map) | Object::Near(map) => map,
            };
            (format!("--map-by={map}"), what.to_owned())
        }
        (Object::Core | Object::Hwthread, Some((Object::Core | Object::Hwthread, map))) => {
            return Err(map.refused("write -bind-to user:CPUS,CPUS with the CPUs of each rank"));
        }
    };
    native.words.extend([map_by, format!("--bind-to={bind_to}"), "--overload".to_owned()]);
    Ok(native)
}

/// `user:0-3,8+10,2x2`: a list for each rank of a node.
fn user(said: &Said, text: &str, ranks: Option<u32>) -> Result<Native, Problem> {
    let mut lists = Vec::new();
    for item in text.split(',') {
        let (item, times) = match item.split_once('x') {
            Some((item, times)) => (item, said.number(times)?),
            None => (item, 1),
        };
        lists.extend(std::iter::repeat_n(item.replace('+', ","), times.min(1 << 16) as usize));
    }
    check_lists(said, lists.iter().map(String::as_str))?;
    let mut native = Native { words: each(lists.iter().map(String::as_str)), notes: Vec::new() };
    if ranks.is_some_and(|ranks| ranks as usize > lists.len()) {
        native.notes.push(format!(
            "{} {}: the list begins again for ranks beyond its end, which Hydra leaves unbound",
            said.option.name, said.text
        ));
    }
    Ok(native)
}
