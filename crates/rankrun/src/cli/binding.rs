//! The options for binding ranks to CPUs.

use std::ffi::{OsStr, OsString};

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use rankrun_core::placement::{BindTo, Binding, MapBy, MemoryBinding, Numbering, Width};
use rankrun_core::topology::{CpuSet, Level};

use crate::args::{choice, option, switch};
use crate::choices::{self, Choice, choice as word};
use crate::message::Problem;
use crate::settings::Sources;

pub(crate) const BIND_TO: &[Choice<BindTo>] = &[
    word("none", BindTo::None, "the kernel puts them anywhere"),
    word("core", BindTo::Core, "one core each, or as many as --cpus-per-rank says"),
    word("hwthread", BindTo::Hwthread, "one hardware thread each, or as many"),
    word("l3", BindTo::All(Level::L3), "all cores that share a third-level cache"),
    word("numa", BindTo::All(Level::Numa), "all cores of a NUMA node"),
    word("package", BindTo::All(Level::Package), "all cores of a package (socket)"),
];

pub(crate) const MEMBIND: &[Choice<MemoryBinding>] = &[
    word("none", MemoryBinding::None, "where the kernel puts it, near the CPU that first writes it"),
    word("bind", MemoryBinding::Bind, "on the NUMA nodes of the rank's CPUs alone"),
    word("preferred", MemoryBinding::Preferred, "there first"),
];

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    let mut args = vec![
        option(
            "bind-to",
            "WHAT[:N]",
            heading,
            "What each rank is bound to: none, core, hwthread, l3, numa, package",
            &format!(
                "By default each rank gets an equal share of the cores that no other job of yours has, near the GPU with its local rank. Ranks are \
             left alone where that could harm: one rank on a node, more ranks than cores, a share with fewer CPUs than OMP_NUM_THREADS says, a CPU \
             quota, threads that you bind yourself (GOMP_CPU_AFFINITY, OMP_PLACES). Variables of Intel MPI (I_MPI_PIN...) and MVAPICH \
             (MV2_CPU_...) are followed where no option says how ranks are bound.\n{}\n\n\":N\" is N whole ones of l3, numa or package for each rank.",
                meanings()
            ),
        )
        .value_parser(Words)
        .hide_possible_values(true),
        option(
            "cpus-per-rank",
            "N",
            heading,
            "Cores for each rank: a number, max, or all",
            "Hardware threads, with --bind-to hwthread. \"max\" is an equal share of them. \"all\" leaves none over: the first ranks have one more \
             where that does not come out even. A job that needs more than there are is refused.",
        ),
        option(
            "map-by",
            "WHAT[:PE=N]",
            heading,
            "What the ranks of a node are dealt out to",
            "The next rank gets the next one of: slot (the next free cores, within a package), core (the next free cores; hardware threads of \
             the next cores), hwthread (the next hardware thread), l3, numa, package, gpu (cores near the GPU of the rank), nic \
             (near a network card), node (the next host, as --map cyclic). \":PE=N\" is --cpus-per-rank N. \":BLOCK=N\" gives N ranks that follow \
             each other to the same one. By default ranks are spread evenly, neighbours near each other.",
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
        option(
            "core-list",
            "LIST[:LIST…]",
            heading,
            "The same with numbers of cores",
            "Cores that the job may use are counted from 0, in the order of packages, NUMA nodes and caches (hwloc's logical numbers).",
        ),
        option(
            "threads-per-core",
            "N",
            heading,
            "Hardware threads of each core that ranks may have",
            "1 binds ranks to the first hardware thread of their cores.",
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
        "overload",
        "no-overload",
        heading,
        "Let ranks share cores where there are too few",
        "The next rank gets the first cores again. --oversubscribe alone does not allow it.",
    ));
    args.extend(switch(
        "report-bindings",
        "no-report-bindings",
        heading,
        "Say which CPUs each rank has",
        "A line and a picture for each rank, on stderr. With --dry-run they are shown too.",
    ));
    args
}

/// The words of `--bind-to` for completions; a number may follow them.
#[derive(Clone)]
struct Words;

impl TypedValueParser for Words {
    type Value = OsString;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<OsString, clap::Error> {
        Ok(value.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(BIND_TO.iter().map(|choice| PossibleValue::new(choice.word).help(choice.help))))
    }
}

/// What the words of `--bind-to` mean, one on each line.
fn meanings() -> String {
    BIND_TO.iter().map(|choice| format!("\n- {}: {}", choice.word, choice.help)).collect()
}

/// What the user wants. The second is whether ranks go to the nodes in turn (`--map-by node`).
pub(crate) fn read(sources: &Sources<'_>) -> Result<(Binding, bool), Problem> {
    let mapped = sources.get("map-by", read_map)?;
    let width = sources.get("cpus-per-rank", read_width)?;
    let of_map = mapped.as_ref().and_then(|map| map.width);
    if let (Some(width), Some(other)) = (width, of_map)
        && width != other
    {
        return Err(Problem::usage("--cpus-per-rank and --map-by …:PE=N say different numbers of cores")
            .hint("leave one of them out"));
    }
    let (to, whole) = sources.get("bind-to", read_to)?.unwrap_or_default();
    if whole.is_some() && width.or(of_map).is_some() {
        return Err(Problem::usage("--bind-to …:N and --cpus-per-rank both say how much each rank gets")
            .hint("leave one of them out"));
    }
    let (cpus, cores) = (sources.get("cpu-list", read_lists)?, sources.get("core-list", read_lists)?);
    if cpus.is_some() && cores.is_some() {
        return Err(Problem::usage("--cpu-list and --core-list are both given").hint("leave one of them out"));
    }
    let numbering = if cores.is_some() { Numbering::Cores } else { Numbering::Cpus };
    let is_overload = sources.get("overload", crate::settings::read_bool)?.unwrap_or(false);
    let binding = Binding {
        variables: None,
        to,
        width: whole.or(width).or(of_map),
        map_by: mapped.as_ref().and_then(|map| map.by),
        block: mapped.as_ref().and_then(|map| map.block),
        rank_by: sources.get("rank-by", read_rank)?.flatten(),
        cpus: cpus.or(cores).unwrap_or_default(),
        numbering,
        threads_per_core: sources.get("threads-per-core", read_number)?,
        memory: sources.choice("membind", MEMBIND)?.unwrap_or_default(),
        overloads: is_overload,
        is_bound_crowded: false,
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
    block: Option<u32>,
}

fn read_map(text: &str) -> Result<Mapped, String> {
    let mut modifiers = text.split(':');
    let what = modifiers.next().unwrap_or_default();
    let is_node = what == "node";
    let by = match is_node {
        true => None,
        false => Some(MapBy::of(what).ok_or_else(|| unknown(what, MapBy::WORDS))?),
    };
    let mut mapped = Mapped { by, is_node, width: None, block: None };
    for modifier in modifiers {
        let (name, value) = modifier.split_once('=').unwrap_or((modifier, ""));
        match name.to_ascii_uppercase().as_str() {
            "PE" => mapped.width = Some(read_width(value)?),
            "BLOCK" => mapped.block = Some(read_number(value)?),
            _ => return Err(format!("\"{modifier}\" is not PE=N or BLOCK=N")),
        }
    }
    let has_none = matches!(mapped.by, None | Some(MapBy::Slot | MapBy::Core | MapBy::Hwthread));
    if mapped.block.is_some() && has_none {
        return Err(format!("BLOCK=N is for l3, numa, package, gpu and nic: each {what} takes one rank"));
    }
    Ok(mapped)
}

/// The value of `--bind-to`, and how many whole ones a rank gets.
fn read_to(text: &str) -> Result<(BindTo, Option<Width>), String> {
    // The older word of other launchers.
    let choose = |word: &str| choices::choose(BIND_TO, if word == "socket" { "package" } else { word });
    let Some((word, count)) = text.split_once(':') else { return Ok((choose(text)?, None)) };
    let count = Some(Width::Count(read_number(count)?));
    match choose(word)? {
        BindTo::All(level) | BindTo::Whole(level) => Ok((BindTo::Whole(level), count)),
        to @ (BindTo::Core | BindTo::Hwthread) => Ok((to, count)),
        BindTo::Auto | BindTo::None => Err(format!("\"{word}\" has no number")),
    }
}

fn read_rank(text: &str) -> Result<Option<MapBy>, String> {
    match text {
        "slot" => Ok(None),
        text => match MapBy::of(text) {
            Some(by @ (MapBy::Core | MapBy::Each(_))) => Ok(Some(by)),
            Some(MapBy::Slot | MapBy::Hwthread | MapBy::Even | MapBy::Near(_)) | None => {
                Err(unknown(text, &["slot", "core", "l3", "numa", "package"]))
            }
        },
    }
}

fn read_width(text: &str) -> Result<Width, String> {
    match text {
        "max" => Ok(Width::Max),
        "all" => Ok(Width::All),
        text => match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(Width::Count(count)),
            _ => Err(format!("\"{text}\" is not a number of cores, max or all")),
        },
    }
}

fn read_number(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("\"{text}\" is not a number from 1 on"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::{Invocation, read_job};

    fn told(line: &str) -> Result<Binding, String> {
        let words = line.split(' ').chain(["-n", "2", "a"]).map(OsString::from).collect();
        let Ok(Invocation::Job(segments)) = read_job(words, false) else { return Err("no job".to_owned()) };
        let settings = crate::settings::resolve(&segments, &[]).map_err(|problem| problem.to_string())?;
        Ok(settings.binding)
    }

    #[test]
    fn words_have_numbers_behind_colons() {
        let two = told("--bind-to numa:2").expect("a binding");
        assert_eq!((two.to, two.width), (BindTo::Whole(Level::Numa), Some(Width::Count(2))));
        assert_eq!(told("--bind-to core:3").expect("a binding").width, Some(Width::Count(3)));
        let blocks = told("--map-by package:BLOCK=2:PE=3").expect("a binding");
        assert_eq!((blocks.block, blocks.width), (Some(2), Some(Width::Count(3))));
        assert_eq!(told("--core-list 0-3 --threads-per-core 1").expect("a binding").numbering, Numbering::Cores);
        assert!(told("--overload --bind-to core").expect("a binding").overloads);
    }

    #[test]
    fn contradictions_and_unknown_words_are_refused() {
        for line in [
            "--bind-to none:2",
            "--bind-to cores",
            "--bind-to numa:2 --cpus-per-rank 3",
            "--map-by package:N=2",
            "--map-by package:PE=2 --cpus-per-rank 3",
            "--cpu-list 0 --core-list 0",
            "--threads-per-core 0",
            "--bind-to none --cpus-per-rank 2",
        ] {
            assert!(told(line).is_err(), "{line}");
        }
    }
}
