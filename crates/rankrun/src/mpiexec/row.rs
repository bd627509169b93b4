//! What a row of the table of options says.

use super::values::Resource;

/// The launchers that have an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Launcher {
    Hydra,
    Intel,
    OpenMpi4,
    OpenMpi5,
}

impl Launcher {
    /// Its name in lists.
    pub(super) fn short(self) -> &'static str {
        match self {
            Launcher::Hydra => "Hydra",
            Launcher::Intel => "Intel",
            Launcher::OpenMpi4 => "OMPI4",
            Launcher::OpenMpi5 => "OMPI5",
        }
    }
}

/// What an option is about: all commands, or the one that it stands before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Job,
    Command,
}

/// What an option is here.
pub(super) type Here = crate::dialect::Here<Special>;

/// An option whose value the translator reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Special {
    /// The number of ranks.
    Count,
    /// The number of ranks on each of these.
    Per(Resource),
    /// One rank on each node.
    OnePerNode,
    /// One rank to each node in turn.
    RoundRobin,
    /// Places, and perhaps the number of ranks on each node.
    MapBy,
    /// The same without its first word.
    Ppr,
    /// Which CPUs ranks have.
    Binding(Part),
    Hosts,
    HostFile,
    /// Hydra takes a list of hosts here, Intel MPI a file.
    HostsOrFile,
    /// A file of command lines.
    CommandLines,
    /// Set a variable.
    Set {
        everywhere: bool,
    },
    /// Pass on all variables but these.
    Drop {
        everywhere: bool,
    },
    /// Set the variable that begins so.
    Mca(&'static str),
    /// A directory in front of `PATH`.
    SearchPath,
    /// These words of ours, for every command.
    Everywhere(&'static [&'static str]),
    /// Open MPI's own directory: its `bin` and `lib` in front of the paths.
    Prefix,
    /// Commands in front of the program of some ranks, and a file of them.
    Tool,
    ToolFile,
    /// A tag with `%r` and the like.
    TagPattern,
    /// A file with `%r` and the like, for the option of ours.
    File(&'static str),
    /// A list of words.
    Words(&'static [Word]),
    /// Whose exit codes are wanted.
    Strict,
    Help,
    Version,
}

impl Special {
    /// Whether it is about hosts and the number of ranks on each.
    pub(super) fn places_ranks(self) -> bool {
        matches!(self, S::Per(_) | S::Hosts | S::HostFile | S::HostsOrFile)
    }
}

/// One of the words of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) here: Here,
}

use Special as S;

/// One option in all its spellings. A long name may have one dash or two.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) launchers: &'static [Launcher],
    pub(super) names: &'static [&'static str],
    /// The names of the words after it: none, one, or two; `[=X]` if the value needs an equals sign and may be left out.
    pub(super) value: &'static str,
    pub(super) scope: Scope,
    pub(super) here: Here,
}

impl Row {
    /// What the option is about: options about the same thing take each other's place.
    pub(super) fn subject(&self) -> &'static str {
        let places =
            || matches!(self.here, Here::Special(S::Per(_) | S::OnePerNode | S::RoundRobin | S::MapBy | S::Ppr, _));
        match self.names[0] {
            "-byslot" | "-bycore" | "-bysocket" => "places",
            "-binding" | "-bind-to-core" | "-bind-to-socket" => "-bind-to",
            "-oversubscribe" | "-nooversubscribe" => "oversubscription",
            _ if places() => "places",
            name => name,
        }
    }

    /// Whether its value is a file that stands for the rest of the command line.
    pub(super) fn reads_lines(&self) -> bool {
        matches!(self.here, Here::Special(S::CommandLines, _))
    }

    /// How many words after it belong to it.
    pub(super) fn words(&self) -> usize {
        match self.value {
            "" => 0,
            value if value.starts_with("[=") => 0,
            value => value.split(' ').count(),
        }
    }
}

pub(super) const HYDRA: &[Launcher] = &[Launcher::Hydra, Launcher::Intel];
pub(super) const OPEN_MPI: &[Launcher] = &[Launcher::OpenMpi4, Launcher::OpenMpi5];

/// An option about binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    BindTo,
    /// The word of `-bind-to` that the option stands for.
    BindToThe(&'static str),
    /// The word of `-map-by` that the option stands for.
    MapByThe(&'static str),
    MapBy,
    RankBy,
    Memory,
    /// The numbers of the CPUs.
    List,
    PerRank,
    HardwareThreads,
    /// Intel MPI's `list:0-1:2-3`.
    CpuBind,
}
