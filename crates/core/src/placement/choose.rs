//! Which of a machine's CPUs a job takes, beside other jobs.

use serde::{Deserialize, Serialize};

use super::assign::{assign, numbered};
use super::ranks::{Impossible, Place, Ranks, Sets, Unbound, amount};
use super::request::{BindTo, Binding, Width};
use crate::JobSpec;
use crate::topology::{CpuSet, Machine};

/// How a job holds the CPUs of its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Claim {
    /// For itself: the user has named how many each rank gets, and it uses them all.
    Alone,
    /// A share: who has named how many it needs may have some of them.
    Share,
}

/// What other jobs hold.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Taken {
    pub alone: CpuSet,
    pub shared: CpuSet,
}

/// What is chosen for the ranks of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// `claim`: how the CPUs are held; `None`: other jobs may have them too.
    Bound { sets: Sets, claim: Option<Claim> },
    /// They are not bound, but stay within the list that the user gave.
    Free { why: Free, within: Option<CpuSet> },
}

/// Why ranks are not bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Free {
    /// Nobody has said how, and they are better left alone.
    Better(Unbound),
    /// Other jobs hold the cores.
    Taken,
}

impl Free {
    /// For people, of so many ranks on so many cores.
    pub fn text(self, ranks: u32, cores: u32) -> String {
        match self {
            Free::Taken => "other jobs have the cores".to_owned(),
            Free::Better(Unbound::Alone) => "one rank has the node alone".to_owned(),
            Free::Better(Unbound::Oversubscribed) => format!("there are {ranks} ranks, and {cores} cores"),
            Free::Better(Unbound::Threads { wanted, have }) => {
                format!("OMP_NUM_THREADS is {wanted}, and each rank could have {}", amount(have, "CPU"))
            }
            Free::Better(Unbound::Kinds) => {
                format!("there are cores of several kinds, and too few of one for {ranks} ranks")
            }
        }
    }
}

/// What is decided without a look at the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeftAlone {
    /// The user wants no binding, or there is one rank, which has the node. Nobody is told so unasked.
    Plainly(&'static str),
    /// The ranks are better left alone, for this reason.
    Because(String),
}

/// Whether the ranks of a node are better left alone, as far as that can be told without a look at the machine. `cpus`: of how many
/// CPUs the job may use the time, and on how many.
pub fn left_alone(spec: &JobSpec, ranks: u32, cpus: impl FnOnce() -> (u32, u32)) -> Option<LeftAlone> {
    let binding = &spec.binding;
    if binding.is_off() && binding.cpus.is_empty() {
        return Some(LeftAlone::Plainly("--bind-to none"));
    }
    if binding.is_asked_for() {
        return None;
    }
    if ranks <= 1 {
        return Some(LeftAlone::Plainly("one rank has the node alone"));
    }
    let (cpus, mask) = cpus();
    let why = if ranks > mask && !binding.is_bound_crowded {
        format!("there are {ranks} ranks, and {}", amount(mask, "CPU"))
    } else if cpus < mask {
        // With a quota other containers have the same CPUs.
        format!("a quota leaves the time of {cpus} of {mask} CPUs")
    } else if spec.binds_itself() {
        "the environment binds their threads".to_owned()
    } else {
        return None;
    };
    Some(LeftAlone::Because(why))
}

impl Binding {
    /// Whether the user has named the CPUs of each rank, or wants all of a cache, NUMA node or package: ranks get that, whoever else has it.
    pub fn is_whole(&self) -> bool {
        self.cpus.len() > 1 || matches!((self.to, self.width), (BindTo::All(_), None) | (BindTo::Whole(_), _))
    }

    fn claim(&self) -> Claim {
        match (self.to, self.width) {
            (_, Some(Width::Count(_))) | (BindTo::Core | BindTo::Hwthread | BindTo::Whole(_), None) => Claim::Alone,
            _ if self.cpus.len() > 1 => Claim::Alone,
            (BindTo::Auto | BindTo::None | BindTo::All(_), None) | (_, Some(Width::Max | Width::All)) => Claim::Share,
        }
    }
}

/// Chooses among what other jobs leave; and where that is too little, among what they only share, if the user has said how many each rank
/// needs. Ranks for which there is no room are not bound: two jobs on the same cores would each have half of them, and the others would be
/// idle.
pub fn choose(place: &Place<'_>, binding: &Binding, ranks: &Ranks, taken: &Taken) -> Result<Choice, Impossible> {
    let binding = &numbered(place.machine, binding)?;
    let on = |machine: &Machine| assign(&Place { machine, ..*place }, binding, ranks);
    let claim = binding.claim();
    // What is impossible on the whole machine is refused.
    let whole = match on(place.machine)? {
        Ok(sets) => sets,
        Err(why) => return Ok(Choice::Free { why: Free::Better(why), within: None }),
    };
    // Who wants a list alone shares it.
    let claim = (!binding.is_off()).then_some(claim);
    if (taken.alone.is_empty() && taken.shared.is_empty()) || binding.is_whole() || claim.is_none() {
        return Ok(Choice::Bound { sets: whole, claim });
    }
    let all = taken.alone.union(&taken.shared);
    let tries = match claim {
        Some(Claim::Alone) => &[&all, &taken.alone][..],
        Some(Claim::Share) | None => &[&all][..],
    };
    let found = tries.iter().find_map(|taken| {
        let machine = without(place.machine, taken, binding.to);
        let binding = Binding { overloads: false, is_bound_crowded: false, ..binding.clone() };
        // What is left of the list that the user gave.
        let cpus = binding.cpus.iter().map(|list| list.intersection(&machine.cpus())).filter(|list| !list.is_empty());
        let left = Binding { cpus: cpus.collect(), ..binding.clone() };
        let is_lost = left.cpus.len() < binding.cpus.len();
        assign(&Place { machine: &machine, ..*place }, &left, ranks).ok()?.ok().filter(|_| !is_lost)
    });
    let within = binding.cpus.first().cloned();
    Ok(found.map_or(Choice::Free { why: Free::Taken, within }, |sets| Choice::Bound { sets, claim }))
}

/// The cores that nobody has a thread of; of ranks that are bound to threads, the threads.
fn without(machine: &Machine, taken: &CpuSet, to: BindTo) -> Machine {
    let cpus = match to {
        BindTo::Hwthread => machine.cpus().without(taken),
        BindTo::Auto | BindTo::None | BindTo::Core | BindTo::All(_) | BindTo::Whole(_) => {
            let free = machine.cores.iter().filter(|core| !core.cpus.meets(taken));
            free.fold(CpuSet::new(), |all, core| all.union(&core.cpus))
        }
    };
    machine.within(&cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Files;

    struct Cpus;

    impl Files for Cpus {
        fn text(&self, _: &str) -> Option<String> {
            None
        }

        fn names(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    fn chosen(binding: &Binding, count: u32, alone: &str, shared: &str) -> String {
        let machine = Machine::read(&Cpus, &CpuSet::first(4));
        let place = Place { machine: &machine, gpus: &[], nics: &[] };
        let [alone, shared] = [alone, shared].map(|text| text.parse().expect("a list"));
        let ranks = Ranks { count, gpus: Vec::new(), threads: None };
        match choose(&place, binding, &ranks, &Taken { alone, shared }) {
            Err(error) => format!("refused: {error}"),
            Ok(Choice::Free { why, within: None }) => format!("free: {why:?}"),
            Ok(Choice::Free { why, within: Some(list) }) => format!("free: {why:?} within {list}"),
            Ok(Choice::Bound { sets, claim }) => {
                let claim = claim.map_or_else(|| "None".to_owned(), |claim| format!("{claim:?}"));
                format!("{claim} {}", sets.iter().map(CpuSet::to_string).collect::<Vec<_>>().join(" | "))
            }
        }
    }

    #[test]
    fn jobs_get_different_cores_as_long_as_there_are_any() {
        let auto = Binding::default();
        let core = Binding { to: BindTo::Core, ..Binding::default() };
        for (binding, count, alone, shared, expected) in [
            (&auto, 2, "", "", "Share 0,1 | 2,3"),
            (&auto, 2, "0", "", "Share 1 | 2"),
            (&auto, 2, "", "0,1", "Share 2 | 3"),
            (&auto, 2, "0-2", "", "free: Taken"),
            (&auto, 2, "", "0-3", "free: Taken"),
            (&auto, 5, "", "0-3", "free: Better(Oversubscribed)"),
            (&core, 1, "", "", "Alone 0"),
            (&core, 1, "0", "", "Alone 1"),
            (&core, 2, "0", "1-3", "Alone 1 | 2"),
            (&core, 2, "0-2", "3", "free: Taken"),
            (&core, 5, "0", "", "refused: 5 ranks with 1 core each need 5 cores, and there are 4 cores"),
        ] {
            assert_eq!(chosen(binding, count, alone, shared), expected, "{binding:?} {count} {alone} {shared}");
        }
    }

    #[test]
    fn a_list_of_the_users_is_kept_to() {
        let list = |text: &str| text.split(':').map(|list| list.parse().expect("a list")).collect();
        let one = Binding { to: BindTo::Core, cpus: list("0,1"), ..Binding::default() };
        assert_eq!(chosen(&one, 1, "0", ""), "Alone 1");
        assert_eq!(chosen(&one, 1, "0,1", ""), "free: Taken within 0,1");
        let off = Binding { to: BindTo::None, cpus: list("0,1"), ..Binding::default() };
        assert_eq!(chosen(&off, 2, "0", "1"), "None 0,1 | 0,1");
        let alone = Binding { cpus: list("0,1"), ..Binding::default() };
        assert_eq!(chosen(&alone, 2, "0-3", ""), "free: Taken within 0,1");
        let package = Binding { to: BindTo::All(crate::topology::Level::Package), ..Binding::default() };
        assert_eq!(chosen(&package, 2, "0", ""), "Share 0-3 | 0-3", "all of it, though another job has a part");
        let each = Binding { cpus: list("0:1"), ..Binding::default() };
        assert_eq!(chosen(&each, 2, "0,1", ""), "Alone 0 | 1");
    }
}
