//! Open MPI's options for places and binding, as ORTE 4.1.6 and PRRTE 3.0 do them (`rmaps_base_map_job.c`, `rmaps_base_binding.c`), and tried
//! with Open MPI 4.1.4 and 5.0.11 on recorded machines.

use super::{Binding, Flavour, Native, Said};
use crate::message::Problem;

/// What a word of `--map-by` or `--bind-to` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    /// The next CPUs of the host.
    Slot,
    Hwthread,
    Core,
    Shared(&'static str),
    Near(&'static str),
}

/// The value of `--map-by`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Map {
    object: Option<Object>,
    /// How many ranks each object gets.
    per_object: Option<u32>,
    width: Option<u32>,
    list: Option<String>,
    is_ordered: bool,
    uses_threads: bool,
    spans: bool,
    oversubscribes: bool,
}

/// The value of `--bind-to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    None,
    Object(Object),
    /// Each rank has the next one of the list.
    List,
    /// All of the list, or of the host.
    Whole,
}

/// What the places depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Case {
    pub(super) version: u32,
    pub(super) ranks: Option<u32>,
    pub(super) oversubscribes: bool,
}

const MAP: &[&str] =
    &["slot", "hwthread", "core", "l3cache", "numa", "package", "node", "seq", "ppr:N:WHAT", "pe-list=LIST"];
const BIND: &[&str] = &["none", "hwthread", "core", "l3cache", "numa", "package"];
const RANK: &[&str] = &["slot", "fill", "span", "core", "l3cache", "numa", "package"];
const CACHES: &str = "write core or l3cache: most machines have such a cache for each core";

/// Whether only Open MPI has such values.
pub(super) fn is_spoken(to: &str, map: &str) -> bool {
    let is_own = |word: &str| {
        word.starts_with("pe=") || word.contains("subscribe") || word == "span" || word == "overload-allowed"
    };
    map.split([':', ',']).chain(to.split([':', ','])).any(is_own)
        || map.starts_with("ppr:")
        || ["slot", "seq", "rankfile"].iter().any(|word| map.split(':').next() == Some(word))
        || map.starts_with("pe-list")
}

/// Which version has such values.
pub(super) fn version(to: &str, map: &str, rank: &str) -> Flavour {
    let words = || map.split([':', ',']);
    let is_five = map.starts_with("pe-list")
        || words().any(|word| ["hwtcpus", "corecpus", "inherit", "noinherit", "nolocal", "package"].contains(&word))
        || to.starts_with("package")
        || ["fill", "span"].contains(&rank);
    let is_four = to.starts_with("cpu-list")
        || to.starts_with("cpuset")
        || to == "board"
        || map.starts_with("dist")
        || ["core", "hwthread", "socket", "numa", "l3cache"].contains(&rank);
    match (is_four, is_five) {
        (true, false) => Flavour::OpenMpi4,
        (false, true) => Flavour::OpenMpi5,
        (true, true) | (false, false) => Flavour::OpenMpi,
    }
}

fn object(said: &Said, word: &str) -> Result<Option<Object>, Problem> {
    Ok(Some(match word {
        "slot" | "node" | "seq" => Object::Slot,
        "hwthread" => Object::Hwthread,
        "core" => Object::Core,
        "l3cache" => Object::Shared("l3"),
        "numa" => Object::Shared("numa"),
        "socket" | "package" => Object::Shared("package"),
        // Words of ours.
        "gpu" => Object::Near("gpu"),
        "nic" => Object::Near("nic"),
        "l1cache" | "l2cache" => return Err(said.refused(CACHES)),
        _ => return Ok(None),
    }))
}

fn read_map(said: &Said) -> Result<Map, Problem> {
    let text = said.text.to_ascii_lowercase();
    let mut map = Map::default();
    // Open MPI 4 has commas between modifiers, 5 has colons.
    let mut words = text.split(':');
    let first = words.next().unwrap_or_default();
    if first == "ppr" {
        map.per_object = Some(said.number(words.next().unwrap_or_default())?);
    }
    let named = if first == "ppr" { words.next().unwrap_or_default() } else { first };
    if let Some(list) = named.strip_prefix("pe-list=") {
        map.list = Some(list.to_owned());
    } else if named.starts_with("dist") {
        return Err(said.refused("write --map-by nic or gpu, for the CPUs near the device of each rank"));
    } else if named == "rankfile" {
        return Err(said.refused("write --cpu-list with a list for each rank of a host, as rankrun --cpu-list 0-3:4-7"));
    } else if !named.is_empty() {
        let (named, rest) = named.split_once(',').map_or((named, None), |(named, rest)| (named, Some(rest)));
        map.object = Some(object(said, named)?.ok_or_else(|| said.unknown(named, MAP))?);
        if let Some(rest) = rest {
            return Err(said
                .option
                .problem(format!("\"{rest}\" stands behind a comma"))
                .hint(format!("write {named}:{rest}")));
        }
    }
    for word in words.flat_map(|words| words.split(',')) {
        match word.split_once('=').unwrap_or((word, "")) {
            ("pe", count) => map.width = Some(said.number(count)?),
            ("span", _) => map.spans = true,
            ("oversubscribe", _) => map.oversubscribes = true,
            ("ordered", _) => map.is_ordered = true,
            ("hwtcpus", _) => map.uses_threads = true,
            ("nooversubscribe" | "corecpus" | "inherit" | "noinherit", _) => {}
            ("nolocal", _) => return Err(said.refused("name the other hosts: write -H a,b")),
            ("file", _) => return Err(said.refused("write the hosts as -H a:4,b:4, in the order of the ranks")),
            _ => {
                let known = ["PE=N", "SPAN", "OVERSUBSCRIBE", "NOOVERSUBSCRIBE", "HWTCPUS", "CORECPUS", "ORDERED"];
                return Err(said.unknown(word, &known));
            }
        }
    }
    Ok(map)
}

/// What ranks are bound to, and whether they may share it.
fn read_to(said: &Said) -> Result<(To, bool), Problem> {
    let text = said.text.to_ascii_lowercase();
    let mut words = text.split([':', ',']);
    let word = words.next().unwrap_or_default();
    let (mut overloads, mut is_ordered) = (false, false);
    for word in words {
        match word {
            "overload-allowed" | "oversubscribe-allowed" => overloads = true,
            "if-supported" | "no-overload" => {}
            "ordered" => is_ordered = true,
            word => return Err(said.unknown(word, &["overload-allowed", "no-overload", "if-supported"])),
        }
    }
    let to = match word {
        "none" => To::None,
        "cpu-list" | "cpulist" | "cpuset" if is_ordered => To::List,
        "cpu-list" | "cpulist" | "cpuset" | "board" => To::Whole,
        word => match object(said, word)? {
            Some(Object::Slot | Object::Near(_)) | None => return Err(said.unknown(word, BIND)),
            Some(object) => To::Object(object),
        },
    };
    Ok((to, overloads))
}

pub(super) fn words(binding: &Binding, case: Case) -> Result<Native, Problem> {
    let mut native = Native::default();
    let map = binding.map.as_ref().map(read_map).transpose()?.unwrap_or_default();
    let to = binding.to.as_ref().map(read_to).transpose()?;
    let overloads = to.is_some_and(|(_, overloads)| overloads);
    let to = to.map(|(to, _)| to);
    let per_rank = binding.per_rank.as_ref().map(|said| said.number(&said.text)).transpose()?;
    let width = map.width.or(per_rank);
    let uses_threads = binding.uses_threads || map.uses_threads;
    if map.spans {
        native.notes.push("SPAN: each host has its ranks one after the other, from its first object on".to_owned());
    }
    let list = binding.list.as_ref().map(|said| said.text.as_str()).or(map.list.as_deref());
    if let Some(list) = list {
        let said = binding.list.as_ref().or(binding.map.as_ref());
        return of_list(said, list, to, map.is_ordered, uses_threads).map(|words| Native { words, ..native });
    }
    if to == Some(To::None) || to == Some(To::Whole) {
        native.push("--bind-to=none");
        return Ok(native);
    }
    // Places on hosts alone say nothing here.
    let is_place = matches!(map.object, None | Some(Object::Slot)) && width.is_none() && to.is_none();
    if is_place && (binding.rank.is_none() || map.object.is_none()) {
        return Ok(native);
    }
    if case.version == 5 && to.is_none() && width.is_none() && (map.oversubscribes || case.oversubscribes) {
        native.push("--bind-to=none");
        return Ok(native);
    }
    let few = case.ranks.is_some_and(|ranks| ranks <= 2);
    let unit = if uses_threads { Object::Hwthread } else { Object::Core };
    let place = mapped(&map, to, width, few, unit, case.version);
    let to = match to {
        Some(To::Object(object)) => object,
        Some(To::List) => return Err(said_list(binding)),
        Some(To::None | To::Whole) | None => bound(&map, place, width, few, unit, case.version),
    };
    let what = match (place, to) {
        // Among all of a host, Open MPI 4 takes the one with the fewest ranks.
        (Object::Slot, Object::Shared(level)) if case.version == 4 && width.is_none() => level,
        // Open MPI 4 takes CPUs of two packages where it must.
        (Object::Slot, Object::Hwthread) => "hwthread",
        (Object::Slot, _) if case.version == 4 => "core",
        (Object::Slot, _) => "slot",
        (Object::Core, Object::Core) if width.is_some() => "slot",
        (Object::Hwthread, _) => "hwthread",
        (Object::Core, _) => "core",
        (Object::Shared(what) | Object::Near(what), _) => what,
    };
    let mut word = format!("--map-by={what}");
    match (map.per_object, place) {
        (None | Some(1), _) | (_, Object::Slot) => {}
        (Some(count), Object::Shared(_) | Object::Near(_)) => word.push_str(&format!(":BLOCK={count}")),
        (Some(_), Object::Core | Object::Hwthread) => {
            let said = binding.map.as_ref().expect("per_object is read from it");
            return Err(said.refused("write --map-by core:overload-allowed, or hwthread with --bind-to core"));
        }
    }
    if let Some(width) = width {
        word.push_str(&format!(":PE={width}"));
    }
    native.push(word);
    native.push(match to {
        Object::Hwthread => "--bind-to=hwthread".to_owned(),
        Object::Core | Object::Slot | Object::Near(_) => "--bind-to=core".to_owned(),
        Object::Shared(what) => format!("--bind-to={what}"),
    });
    let is_by_object = matches!(place, Object::Shared(_)) || overloads && place == Object::Core;
    let is_numbered_by_object = case.version == 5 && map.per_object.is_none() && is_by_object && !map.spans;
    match &binding.rank {
        Some(said) => ranked(said, what, &mut native)?,
        None if is_numbered_by_object => native.push("--rank-by=core"),
        None => {}
    }
    if overloads {
        native.push("--overload");
    }
    Ok(native)
}

fn said_list(binding: &Binding) -> Problem {
    let said = binding.to.as_ref().expect("the word is read from it");
    said.option.problem("it needs --cpu-list with the CPUs".to_owned())
}

/// What ranks are mapped by.
fn mapped(map: &Map, to: Option<To>, width: Option<u32>, few: bool, unit: Object, version: u32) -> Object {
    match (map.object, version) {
        (Some(object), _) => object,
        (None, 4) if few && width.is_some() => Object::Slot,
        (None, 4) if few => unit,
        (None, 4) => Object::Shared("numa"),
        (None, _) if width.is_some() => Object::Slot,
        (None, _) => match to {
            Some(To::Object(object)) => object,
            Some(To::None | To::List | To::Whole) | None => unit,
        },
    }
}

/// What ranks are bound to where no option says it.
fn bound(map: &Map, place: Object, width: Option<u32>, few: bool, unit: Object, version: u32) -> Object {
    let is_by_object = map.per_object.is_none() || version == 5;
    match place {
        _ if width.is_some() => unit,
        Object::Near(_) => Object::Shared("numa"),
        Object::Hwthread | Object::Core | Object::Shared(_) if is_by_object => place,
        Object::Slot | Object::Hwthread | Object::Core | Object::Shared(_) if few => unit,
        Object::Slot | Object::Hwthread | Object::Core | Object::Shared(_) => Object::Shared("numa"),
    }
}

/// `--rank-by`.
fn ranked(said: &Said, mapped: &str, native: &mut Native) -> Result<(), Problem> {
    let word = said.text.split([':', ',']).next().unwrap_or_default().to_ascii_lowercase();
    match word.as_str() {
        "slot" => {}
        "fill" | "core" | "hwthread" => native.push("--rank-by=core"),
        "span" if ["l3", "numa", "package"].contains(&mapped) => native.push(format!("--rank-by={mapped}")),
        "span" => {}
        "node" => {
            native.notes.push(format!("{} node: write --map-by node for ranks on each host in turn", said.option.name))
        }
        word => match object(said, word)? {
            Some(Object::Shared(what)) => native.push(format!("--rank-by={what}")),
            _ => return Err(said.unknown(word, RANK)),
        },
    }
    Ok(())
}

/// `--cpu-list`, and `pe-list=`: numbers of cores.
fn of_list(
    said: Option<&Said>,
    list: &str,
    to: Option<To>,
    is_ordered: bool,
    uses_threads: bool,
) -> Result<Vec<String>, Problem> {
    let said = said.expect("a list is read from an option");
    super::check_lists(said, std::iter::once(list))?;
    if uses_threads {
        return Err(said.refused("write \"rankrun --cpu-list\" with the kernel's numbers of the CPUs"));
    }
    let words: &[&str] = match (to, is_ordered) {
        // The hardware threads of the list in the kernel's order: first threads come first.
        (Some(To::List), _) => &["--map-by=core", "--bind-to=hwthread"],
        (_, true) => &["--map-by=core", "--bind-to=core"],
        (Some(To::Object(Object::Core)), false) => &["--map-by=core", "--bind-to=core"],
        (Some(To::Object(Object::Hwthread)), false) => &["--map-by=core", "--bind-to=hwthread"],
        (Some(To::None | To::Whole | To::Object(_)) | None, false) => &["--bind-to=none"],
    };
    let lists = match is_ordered && list.contains(',') {
        // The items of the list, in their order.
        true => return Ok(vec![format!("--core-list={}", list.replace(',', ":"))]),
        false => format!("--core-list={list}"),
    };
    Ok(std::iter::once(lists).chain(words.iter().map(|word| (*word).to_owned())).collect())
}
