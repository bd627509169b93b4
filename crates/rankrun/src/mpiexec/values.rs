//! Values of mpiexec's options that have a language of their own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::row::Row;
use crate::dialect::{For, Typed, name_in_braces};
use crate::message::Problem;

/// The letters of a pattern, and our fields. There is one process group (`%g`) and one proxy (`%p`), so both are 0.
const LETTERS: &[(u8, &str)] = &[(b'r', "{rank}"), (b'h', "{node}"), (b'g', "0"), (b'p', "0")];

/// `out.%r` as our template `out.{rank}`.
pub(super) fn pattern(text: &OsStr, purpose: For) -> Result<OsString, String> {
    let mut template = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match (*byte, after.split_first()) {
            (b'%', Some((letter, after))) => {
                rest = after;
                match LETTERS.iter().find(|(known, _)| known == letter) {
                    Some((_, field)) => template.extend(field.as_bytes()),
                    None if *letter == b'%' => template.push(b'%'),
                    None if *letter == b't' && purpose == For::Tag => template.extend(b"{time}"),
                    None => return Err(format!("%{} is not %r, %h, %g or %p", char::from(*letter))),
                }
            }
            (b'%', None) => return Err("% is its last letter".to_owned()),
            // What looks like a field is text.
            (b'{' | b'}', _) if purpose == For::Tag => template.extend([*byte; 2]),
            (b'{', _) => match name_in_braces(after) {
                Some(end) => {
                    template.extend([b"{{", &after[..end], b"}}"].concat());
                    rest = &after[end + 1..];
                }
                None => template.push(b'{'),
            },
            _ => template.push(*byte),
        }
    }
    Ok(OsString::from_vec(template))
}

/// `gdb:0,3;valgrind --leak-check=full:1-2=exclusive@arch`, as Intel MPI's `-gtool` takes it: our values of `--wrap`.
pub(super) fn tools(text: &str) -> Result<Vec<String>, String> {
    let tools = text.split(';').map(str::trim).filter(|tool| !tool.is_empty());
    let wraps: Vec<String> = tools
        .map(|tool| {
            let wanted = || format!("\"{tool}\" is not COMMAND:RANKS");
            let (command, ranks) = tool.rsplit_once(':').ok_or_else(wanted)?;
            let ranks = ranks.split(['=', '@']).next().unwrap_or_default().trim();
            if command.trim().is_empty() || ranks.parse::<rankrun_core::RankSet>().is_err() {
                return Err(wanted());
            }
            Ok(if ranks == "all" { command.trim().to_owned() } else { format!("{ranks}:{}", command.trim()) })
        })
        .collect::<Result<_, String>>()?;
    if wraps.is_empty() { Err("it names no tool".to_owned()) } else { Ok(wraps) }
}

/// The values of an option, and how many of the words after it they are.
pub(super) fn values_of(option: &Typed, row: &Row, after: &[OsString]) -> Result<(Vec<OsString>, usize), Problem> {
    let missing = || option.problem("a value is missing").hint(format!("it is written {} {}", option.name, row.value));
    match (row.words(), &option.value) {
        (0, Some(_)) if !row.value.starts_with("[=") => Err(option.problem("it takes no value")),
        (0, value) => Ok((value.iter().cloned().collect(), 0)),
        (1, Some(value)) => Ok((vec![value.clone()], 0)),
        (1, None) => after.first().map(|value| (vec![value.clone()], 1)).ok_or_else(missing),
        (_, Some(pair)) if pair.as_bytes().contains(&b'=') => {
            let Typed { name, value } = Typed::of(pair);
            Ok((vec![name.into(), value.unwrap_or_default()], 0))
        }
        (_, Some(name)) => after.first().map(|value| (vec![name.clone(), value.clone()], 1)).ok_or_else(missing),
        // Hydra takes "-genv NAME=VALUE" too, as one word after the option.
        (_, None) => match after {
            [pair, ..] if pair.as_bytes().contains(&b'=') => {
                let Typed { name, value } = Typed::of(pair);
                Ok((vec![name.into(), value.unwrap_or_default()], 1))
            }
            [name, value, ..] => Ok((vec![name.clone(), value.clone()], 2)),
            _ => Err(missing()),
        },
    }
}

/// What a machine has several of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    Node,
    Package,
    Numa,
}

impl Resource {
    fn of(name: &str) -> Option<Resource> {
        match name.to_ascii_lowercase().as_str() {
            "node" => Some(Resource::Node),
            "package" | "socket" => Some(Resource::Package),
            "numa" => Some(Resource::Numa),
            _ => None,
        }
    }
}

/// What `--map-by`, `-ppn` and the like say about the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placement {
    /// So many ranks on each of these.
    Per(u32, Resource),
    /// So many ranks on each of what is not counted here.
    PerUncounted,
    /// One rank goes to each node in turn.
    Cyclic,
    /// One rank goes to each host of the list, in its order.
    Seq,
    /// It places ranks within a node.
    Places,
}

/// Reads the value of `--map-by`: `ppr:4:node:PE=2`, `core`, `numa:SPAN`.
pub(super) fn map_by(text: &str) -> Result<Placement, String> {
    let mut fields = text.split(':');
    match fields.next().map(str::to_ascii_lowercase).as_deref() {
        Some("ppr") => {}
        Some("node") => return Ok(Placement::Cyclic),
        Some("seq") => return Ok(Placement::Seq),
        _ => return Ok(Placement::Places),
    }
    let count = fields.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    let count = count.ok_or_else(|| format!("\"{text}\" is not ppr:N:RESOURCE"))?;
    let resource = fields.next().ok_or_else(|| format!("\"{text}\" is not ppr:N:RESOURCE"))?;
    let resource = resource.split(',').next().unwrap_or_default();
    match Resource::of(resource) {
        Some(resource) => Ok(Placement::Per(count, resource)),
        None if resource.eq_ignore_ascii_case("slot") => Ok(Placement::Places),
        None => Ok(Placement::PerUncounted),
    }
}

/// Whether a value of `--map-by` lets hosts have more ranks than slots.
pub(super) fn oversubscribes(text: &str) -> bool {
    text.split([':', ',']).any(|word| word.eq_ignore_ascii_case("oversubscribe"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::literal;

    #[test]
    fn patterns_become_templates() {
        let of = |purpose, text: &str| Ok::<_, String>(pattern(OsStr::new(text), purpose)?.into_string().unwrap());
        for purpose in [For::Tag, For::File] {
            assert_eq!(of(purpose, "out.%r.%h").as_deref(), Ok("out.{rank}.{node}"));
            assert_eq!(of(purpose, "%%%g-%p").as_deref(), Ok("%0-0"));
            assert_eq!(of(purpose, "%x").unwrap_err(), "%x is not %r, %h, %g or %p");
            assert!(of(purpose, "100%").is_err());
        }
        assert_eq!(of(For::Tag, "%t {a}").as_deref(), Ok("{time} {{a}}"));
        assert!(of(For::File, "%t").is_err(), "a file has one name");
    }

    #[test]
    fn what_looks_like_a_field_of_ours_is_text_in_a_pattern() {
        for text in ["{rank}", "a{x}b", "{A}", "{{", "{", "}", "{}"] {
            let file = pattern(OsStr::new(text), For::File).unwrap();
            let template = rankrun_core::Template::strict(&file).unwrap();
            assert_eq!(template.fixed(), Some(OsStr::new(text)), "{text}");
        }
        for text in ["{rank}", "a{x}b", "{{rank}}", "${rank}", "{job}{node}", "{"] {
            let value = rankrun_core::Template::lenient(&literal(OsStr::new(text), For::Value));
            assert_eq!(value.fixed(), Some(OsStr::new(text)), "{text}");
            let file = rankrun_core::Template::strict(&literal(OsStr::new(text), For::File)).unwrap();
            assert_eq!(file.fixed(), Some(OsStr::new(text)), "{text}");
        }
    }

    #[test]
    fn tools_become_wraps() {
        assert_eq!(tools("gdb --args:0,3; valgrind:1-2=exclusive@knc").unwrap(), ["0,3:gdb --args", "1-2:valgrind"]);
        assert_eq!(tools("amplxe-cl -r dir:all").unwrap(), ["amplxe-cl -r dir"]);
        for bad in ["gdb", "", "gdb:x", ":0"] {
            assert!(tools(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn maps_say_how_many_ranks_a_node_has() {
        assert_eq!(map_by("ppr:4:node:PE=2"), Ok(Placement::Per(4, Resource::Node)));
        assert_eq!(map_by("PPR:4:Socket"), Ok(Placement::Per(4, Resource::Package)));
        assert_eq!(map_by("ppr:1:numa"), Ok(Placement::Per(1, Resource::Numa)));
        assert_eq!(map_by("node:PE=2"), Ok(Placement::Cyclic));
        assert_eq!(map_by("seq"), Ok(Placement::Seq));
        for text in ["core", "numa:PE=2,SPAN", "slot"] {
            assert_eq!(map_by(text), Ok(Placement::Places), "{text}");
        }
        assert!(map_by("ppr:x:node").is_err());
        assert!(map_by("ppr:2").is_err());
        assert_eq!(map_by("ppr:2:l3cache"), Ok(Placement::PerUncounted));
        assert!(oversubscribes(":OVERSUBSCRIBE") && !oversubscribes("node:nooversubscribe"));
    }
}
