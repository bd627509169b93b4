//! The bytes in front of a line: time, colour and tag.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use rankrun_core::{GroupId, Rank, RankSet, Stream};

use crate::config::{Config, Mode, Names};
use crate::template::{Fields, Template};
use crate::time::write_utc;

/// Colours that read well on dark and on light ground, as SGR parameters. Red is left to errors.
const PALETTE: [&str; 6] = ["36", "33", "32", "35", "34", "96"];

/// What stands for these ranks: `3`, `0-2,5`, `spawn 1 rank 0`.
fn name(ranks: &[Rank]) -> String {
    match ranks {
        [rank] if rank.group() != GroupId(0) => rank.name(),
        _ => RankSet::of(ranks.iter().copied()).to_string(),
    }
}

/// Makes the tags of all ranks.
pub(crate) struct Tagger {
    template: Option<Template>,
    timestamps: bool,
    color: bool,
    rank_width: usize,
    names: NamesOf,
    /// Those of the ranks of further groups.
    further: HashMap<GroupId, NamesOf>,
}

/// What gives the names of a rank.
pub(crate) type NamesOf = Box<dyn Fn(Rank) -> Names + Send>;

impl fmt::Debug for Tagger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tagger").field("template", &self.template).finish_non_exhaustive()
    }
}

impl Tagger {
    pub(crate) fn new(config: &Config, names: NamesOf) -> Tagger {
        let template = config.tag.clone().filter(|template| !template.is_empty());
        let is_folded = config.mode == Mode::Folded;
        Tagger {
            template: if is_folded { template.or_else(|| Some(Template::default())) } else { template },
            timestamps: config.timestamps,
            color: config.color,
            // Sets of ranks differ in width anyway.
            rank_width: if is_folded { 0 } else { config.world_size.saturating_sub(1).to_string().len() },
            names,
            further: HashMap::new(),
        }
    }

    /// A further group begins.
    pub(crate) fn add(&mut self, group: GroupId, names: NamesOf) {
        self.further.insert(group, names);
    }

    /// Another attempt begins: it has none of the further groups of the last.
    pub(crate) fn begin_attempt(&mut self) {
        self.further.clear();
    }

    /// Whether the tag of a rank changes with time.
    pub(crate) fn has_time(&self) -> bool {
        self.timestamps || self.template.as_ref().is_some_and(Template::has_time)
    }

    /// Appends the tag of one rank. `wall` is the time since the Unix epoch.
    pub(crate) fn rank(&self, rank: Rank, stream: Stream, wall: Duration, out: &mut Vec<u8>) {
        self.ranks(&[rank], stream, wall, out);
    }

    /// Appends the tag of a line that several ranks wrote. Fields in which the ranks differ read `*`. The ranks are
    /// sorted and not empty.
    pub(crate) fn ranks(&self, ranks: &[Rank], stream: Stream, wall: Duration, out: &mut Vec<u8>) {
        if self.timestamps {
            write_utc(wall, out);
            out.push(b' ');
        }
        if let Some(template) = &self.template {
            self.fill_in(template, ranks, stream, wall, out);
        }
    }

    fn fill_in(&self, template: &Template, ranks: &[Rank], stream: Stream, wall: Duration, out: &mut Vec<u8>) {
        let names: Vec<Names> =
            ranks.iter().map(|rank| self.further.get(&rank.group()).unwrap_or(&self.names)(*rank)).collect();
        let common = |field: &dyn Fn(&Names) -> String| -> String {
            let mut values = names.iter().map(field);
            let first = values.next().unwrap_or_default();
            if values.all(|value| value == first) { first } else { "*".to_owned() }
        };
        let fields = Fields {
            rank: &name(ranks),
            rank_width: self.rank_width,
            local_rank: &common(&|names| names.local_rank.to_string()),
            node: &common(&|names| names.node.clone()),
            app: &common(&|names| names.app.to_string()),
            stream,
            wall,
        };
        match ranks {
            [rank] if self.color => {
                let color = PALETTE[rank.number() as usize % PALETTE.len()];
                out.extend_from_slice(format!("\x1b[{color}m").as_bytes());
                template.render(&fields, out);
                out.extend_from_slice(b"\x1b[0m");
            }
            _ => template.render(&fields, out),
        }
    }
}
