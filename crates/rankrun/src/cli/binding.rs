//! The options for binding ranks to CPUs.

use clap::Arg;
use rankrun_core::placement::{BindTo, Binding, MapBy, MemoryBinding, Width};
use rankrun_core::topology::CpuSet;

use crate::args::{choice, option, switch};
use crate::choices::{Choice, choice as word};
use crate::message::Problem;
use crate::settings::Sources;

pub(crate) const BIND_TO: &[Choice<BindTo>] = &[
    word("none", BindTo::None, "the kernel puts them anywhere"),
    word("core", BindTo::Core, "one core each, or as many as --cpus-per-rank says"),
    word("hwthread", BindTo::Hwthread, "one hardware thread each, or as many"),
    word("l3", BindTo::All(rankrun_core::topology::Level::L3), "all cores that share a third-level cache"),
    word("numa", BindTo::All(rankrun_core::topology::Level::Numa), "all cores of a NUMA node"),
    word("package", BindTo::All(rankrun_core::topology::Level::Package), "all cores of a package (socket)"),
];

pub(crate) const MEMBIND: &[Choice<MemoryBinding>] = &[
    word("none", MemoryBinding::None, "where the kernel puts it, near the CPU that first writes it"),
    word("bind", MemoryBinding::Bind, "on the NUMA nodes of the rank's CPUs alone"),
    word("preferred", MemoryBinding::Preferred, "there first"),
];

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    let mut args = vec![
        choice(
            "bind-to",
            "WHAT",
            heading,
            "What each rank is bound to",
            "By default each rank gets an equal share of the cores that no other job of yours has, near the GPU with its local rank. Ranks are \
             left alone where that could harm: one rank on a node, more ranks than cores, a share with fewer CPUs than OMP_NUM_THREADS says, a CPU \
             quota, threads that you bind yourself (GOMP_CPU_AFFINITY, OMP_PLACES).",
            BIND_TO,
        ),
        option(
            "cpus-per-rank",
            "N",
            heading,
            "Cores for each rank: a number, or max",
            "Hardware threads, with --bind-to hwthread. \"max\" is an equal share of them. A job that needs more than there are is refused.",
        ),
        option(
            "map-by",
            "WHAT[:PE=N]",
            heading,
            "What the ranks of a node are dealt out to",
            "The next rank gets the next one of: slot or core (the next free cores), l3, numa, package, gpu (cores near the GPU of the rank), nic \
             (near a network card), node (the next host, as --map cyclic). \":PE=N\" is --cpus-per-rank N. By default ranks are spread evenly, \
             neighbours near each other.",
        ),
        option(
            "rank-by",
            "WHAT",
            heading,
            "In which order the places get ranks",
            "core: in the order of the cores. l3, numa, package: one of each in turn. slot: in the order in which they were mapped, the default.",
        ),
        option(
            "cpu-list",
            "LIST[:LIST…]",
            heading,
            "The CPUs that ranks may have, as 0-15,32-47",
            "CPUs are numbered as the kernel does it (lscpu -e). Several lists with colons between them are those of the ranks of a node, in turn: \
             0-3:4-7.",
        ),
        choice(
            "membind",
            "HOW",
            heading,
            "Where the memory of a bound rank is",
            "By default the kernel takes memory near the CPU that first writes it, which is near a rank that is bound.",
            MEMBIND,
        ),
    ];
    args.extend(switch(
        "report-bindings",
        "no-report-bindings",
        heading,
        "Say which CPUs each rank has",
        "A line and a picture for each rank, on stderr. With --dry-run they are shown too.",
    ));
    args
}

/// What the user wants. The second is whether ranks go to the nodes in turn (`--map-by node`).
pub(crate) fn read(sources: &Sources<'_>, overloads: bool) -> Result<(Binding, bool), Problem> {
    let mapped = sources.get("map-by", read_map)?;
    let width = sources.get("cpus-per-rank", read_width)?;
    let of_map = mapped.as_ref().and_then(|map| map.width);
    if let (Some(width), Some(other)) = (width, of_map)
        && width != other
    {
        return Err(Problem::usage("--cpus-per-rank and --map-by …:PE=N say different numbers of cores")
            .hint("leave one of them out"));
    }
    let binding = Binding {
        to: sources.choice("bind-to", BIND_TO)?.unwrap_or_default(),
        width: width.or(of_map),
        map_by: mapped.as_ref().and_then(|map| map.by),
        block: None,
        rank_by: sources.get("rank-by", read_rank)?.flatten(),
        cpus: sources.get("cpu-list", read_lists)?.unwrap_or_default(),
        memory: sources.choice("membind", MEMBIND)?.unwrap_or_default(),
        overloads,
        is_reported: sources.get("report-bindings", crate::settings::read_bool)?.unwrap_or(false),
    };
    if binding.is_off() && (binding.width.is_some() || binding.memory != MemoryBinding::None) {
        let option = if binding.width.is_some() { "--cpus-per-rank" } else { "--membind" };
        return Err(Problem::usage(format!("{option} is for ranks that are bound, and --bind-to none binds none"))
            .hint("leave one of them out"));
    }
    Ok((binding, mapped.is_some_and(|map| map.is_node)))
}

/// The value of `--map-by`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mapped {
    by: Option<MapBy>,
    is_node: bool,
    width: Option<Width>,
}

fn read_map(text: &str) -> Result<Mapped, String> {
    let (what, modifier) = text.split_once(':').map_or((text, None), |(what, modifier)| (what, Some(modifier)));
    let width = match modifier {
        None => None,
        Some(modifier) => {
            let count = modifier.strip_prefix("PE=").or_else(|| modifier.strip_prefix("pe="));
            let count = count.ok_or_else(|| format!("\"{modifier}\" is not PE=N"))?;
            Some(read_width(count)?)
        }
    };
    let is_node = what == "node";
    let by = match is_node {
        true => None,
        false => Some(MapBy::of(what).ok_or_else(|| unknown(what, MapBy::WORDS))?),
    };
    Ok(Mapped { by, is_node, width })
}

fn read_rank(text: &str) -> Result<Option<MapBy>, String> {
    match text {
        "slot" => Ok(None),
        text => match MapBy::of(text) {
            Some(by @ (MapBy::Core | MapBy::Each(_))) => Ok(Some(by)),
            Some(MapBy::Near(_)) | None => Err(unknown(text, &["slot", "core", "l3", "numa", "package"])),
        },
    }
}

fn read_width(text: &str) -> Result<Width, String> {
    match text {
        "max" => Ok(Width::Max),
        text => match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(Width::Count(count)),
            _ => Err(format!("\"{text}\" is not a number of cores or max")),
        },
    }
}

fn read_lists(text: &str) -> Result<Vec<CpuSet>, String> {
    let list = |part: &str| match part.parse::<CpuSet>() {
        Ok(set) if !set.is_empty() => Ok(set),
        _ => Err(format!("\"{part}\" is not a list of CPUs: write 0-15,32-47")),
    };
    text.split(':').map(list).collect()
}

fn unknown(word: &str, known: &[&str]) -> String {
    format!("\"{word}\" is not one of {}", known.join(", "))
}
