//! What the options of mpiexec and mpirun say about binding ranks to CPUs, in words of ours. Hydra, Open MPI 4 and Open MPI 5 mean different
//! things by the same words: whose they are is told by the launcher's name, by options that only one has, and by how the words are written.

mod hydra;
mod open_mpi;
#[cfg(test)]
mod tests;

use super::row::{HYDRA, Launcher, OPEN_MPI, Part};
use crate::dialect::Typed;
use crate::message::Problem;

/// A value with its option.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Said {
    text: String,
    option: Typed,
}

impl Said {
    /// That the value cannot be had, with what to write.
    fn refused(&self, way_out: &str) -> Problem {
        let text = format!("{} {} is not offered by rankrun", self.option.name, self.text);
        Problem::usage(text).hint(way_out.to_owned())
    }

    fn unknown(&self, word: &str, known: &[&str]) -> Problem {
        self.option.problem(format!("\"{word}\" is not one of {}", known.join(", ")))
    }

    fn number(&self, text: &str) -> Result<u32, Problem> {
        let number = text.parse::<u32>().ok().filter(|number| *number > 0);
        number.ok_or_else(|| self.option.problem(format!("\"{text}\" is not a number of CPUs")))
    }
}

/// Whose words they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flavour {
    Hydra,
    OpenMpi4,
    OpenMpi5,
    /// One of the last two.
    OpenMpi,
}

/// What a command line says about binding, as typed. The last of several values counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Binding {
    to: Option<Said>,
    map: Option<Said>,
    rank: Option<Said>,
    memory: Option<Said>,
    list: Option<Said>,
    per_rank: Option<Said>,
    lists: Option<Said>,
    uses_threads: bool,
    of_name: &'static [Launcher],
    /// The launchers of each option that not all have.
    seen: Vec<&'static [Launcher]>,
    /// Whether long options have one dash or two.
    dashes: [bool; 2],
}

/// Words of ours, and what is done differently.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Native {
    pub(super) words: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Native {
    fn push(&mut self, word: impl Into<String>) {
        self.words.push(word.into());
    }
}

impl Binding {
    pub(super) fn named(family: &'static [Launcher]) -> Binding {
        Binding { of_name: family, ..Binding::default() }
    }

    /// Notes an option that these launchers have.
    pub(super) fn note(&mut self, launchers: &'static [Launcher]) {
        self.seen.push(launchers);
    }

    /// Takes an option. `parameter` is one that an MCA parameter stands for.
    pub(super) fn take(&mut self, part: Part, option: &Typed, text: &str) {
        self.note_dashes(option);
        let said = |text: &str| Some(Said { text: text.to_owned(), option: option.clone() });
        match part {
            Part::BindTo => self.to = said(text),
            Part::BindToThe(word) => self.to = said(word),
            Part::MapByThe(word) => self.map = said(word),
            Part::MapBy => self.map = said(text),
            Part::RankBy => self.rank = said(text),
            Part::Memory => self.memory = said(text),
            Part::List => self.list = said(text),
            Part::PerRank => self.per_rank = said(text),
            Part::CpuBind => self.lists = said(text),
            Part::HardwareThreads => self.uses_threads = true,
        }
    }

    fn note_dashes(&mut self, option: &Typed) {
        let name = option.name.as_str();
        if !name.contains(' ') && name.starts_with('-') {
            self.dashes[usize::from(name.starts_with("--"))] = true;
        }
    }

    /// Whether an option that only these launchers have is there.
    fn has_only(&self, family: &[Launcher]) -> bool {
        self.seen.iter().any(|launchers| launchers.iter().all(|launcher| family.contains(launcher)))
    }

    fn flavour(&self) -> Flavour {
        use Launcher::{OpenMpi4, OpenMpi5};
        let said = |said: &Option<Said>| said.as_ref().map(|said| said.text.to_ascii_lowercase()).unwrap_or_default();
        let (to, map, rank) = (said(&self.to), said(&self.map), said(&self.rank));
        if self.of_name == HYDRA {
            return Flavour::Hydra;
        }
        let is_named_open = !self.of_name.is_empty() && self.of_name.iter().all(|launcher| OPEN_MPI.contains(launcher));
        let is_open = is_named_open || self.has_only(OPEN_MPI) || open_mpi::is_spoken(&to, &map);
        let is_hydra = self.has_only(HYDRA) || hydra::is_spoken(&to, &map);
        let has_one_dash = self.dashes[0] && !self.dashes[1];
        if !is_open && (is_hydra || has_one_dash) {
            return Flavour::Hydra;
        }
        let is = |launcher: Launcher| self.of_name == [launcher] || self.has_only(&[launcher]);
        match (is(OpenMpi4), is(OpenMpi5)) {
            (true, false) => Flavour::OpenMpi4,
            (false, true) => Flavour::OpenMpi5,
            // mpirun of Open MPI 5 does not take such options with one dash.
            _ if has_one_dash && is_open => Flavour::OpenMpi4,
            _ => open_mpi::version(&to, &map, &rank),
        }
    }

    /// The words of ours. `ranks` is their number, where it is known.
    pub(super) fn words(&self, ranks: Option<u32>, oversubscribes: bool) -> Result<Native, Problem> {
        let mut native = Native::default();
        if let Some(lists) = &self.lists {
            self.cpu_bind(lists, &mut native)?;
        }
        let memory = self.memory(&mut native);
        let case = |version| open_mpi::Case { version, ranks, oversubscribes };
        let found = match self.flavour() {
            Flavour::Hydra => hydra::words(self, ranks)?,
            Flavour::OpenMpi4 => open_mpi::words(self, case(4))?,
            Flavour::OpenMpi5 => open_mpi::words(self, case(5))?,
            Flavour::OpenMpi => {
                let mut found = open_mpi::words(self, case(5))?;
                let other = open_mpi::words(self, case(4));
                if let Some(other) = other.ok().filter(|other| other.words != found.words) {
                    found.notes.push(format!(
                        "ranks are placed as by Open MPI 5; Open MPI 4 would place them as \"rankrun {}\"",
                        other.words.join(" ")
                    ));
                }
                found
            }
        };
        let is_unbound = found.words.iter().any(|word| word == "--bind-to=none");
        native.words.extend(found.words);
        native.notes.extend(found.notes);
        native.words.extend(memory.filter(|_| !is_unbound));
        Ok(native)
    }

    /// `-cpu-bind list:0-1:2-3`, which Intel MPI has; it takes no notice of other values.
    fn cpu_bind(&self, said: &Said, native: &mut Native) -> Result<(), Problem> {
        let lists = said.text.split(',').find_map(|word| word.strip_prefix("list:"));
        let at = said.text.find("list:").map(|at| &said.text[at + 5..]);
        match at.or(lists) {
            Some(lists) => {
                check_lists(said, lists.split(':'))?;
                native.words.extend(each(lists.split(':')));
            }
            None if said.text == "none" => native.push("--bind-to=none"),
            None => native.notes.push(format!(
                "{} {}: not followed, as under Intel MPI, which follows list:CPUS:CPUS alone",
                said.option.name, said.text
            )),
        }
        Ok(())
    }

    fn memory(&self, native: &mut Native) -> Option<String> {
        let said = self.memory.as_ref()?;
        match said.text.split(':').next().unwrap_or_default() {
            "bind" => return Some("--membind=bind".to_owned()),
            "firsttouch" | "none" => {}
            _ => native.notes.push(format!(
                "{} {}: memory is where the kernel puts it; write --wrap 'numactl --interleave=all' to interleave it",
                said.option.name, said.text
            )),
        }
        None
    }
}

/// Lists of CPUs for the ranks of a node, in turn. One list is for all.
fn each<'a>(lists: impl Iterator<Item = &'a str>) -> Vec<String> {
    let lists: Vec<&str> = lists.collect();
    let word = format!("--cpu-list={}", lists.join(":"));
    if lists.len() == 1 { vec![word, "--bind-to=none".to_owned()] } else { vec![word] }
}

fn check_lists<'a>(said: &Said, lists: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    for list in lists {
        if list.parse::<rankrun_core::topology::CpuSet>().ok().is_none_or(|list| list.is_empty()) {
            return Err(said.option.problem(format!("\"{list}\" is not a list of CPUs")));
        }
    }
    Ok(())
}
