//! Where the ranks are: when they are looked into, and what comes of it. The agents look; [`crate::stacks`] says what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gang::{self, MpiLife};
use crate::ids::{NodeId, Rank, WorkerId};
use crate::job::event::{ClientId, Effect};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::inquiry::Inquiry;
use crate::job::parts::looks::{Held, Purpose, Sights};
use crate::job::parts::node::Node;
use crate::ranks::RankSet;
use crate::stacks::ProcessStack;
use crate::stacks::fold::{Seen, Table, fold};
use crate::stacks::odd::{Hang, OddRank};
use crate::stacks::proof::{Finding, Standing};
use crate::stacks::stall::{self, Action, prints};
use crate::testimony::Exception;
use crate::units::format_duration;

/// The time between the looks that prove that a rank has failed.
const PROVE_AGAIN: Duration = Duration::from_millis(250);

impl Job {
    /// Asks all agents where these ranks are, or all.
    pub(in crate::job) fn look(&mut self, purpose: Purpose, ranks: Option<Vec<Rank>>, native: bool) {
        let asked: Vec<NodeId> = self.nodes.ready().filter(|_| !self.is_paused).collect();
        let is_possible = !asked.is_empty();
        let number = self.looks.begin(self.now, purpose, asked);
        match is_possible {
            true => {
                let workers = ranks.map(|ranks| ranks.into_iter().map(|rank| self.gang.worker(rank)).collect());
                self.send(Order::Look { number, workers, native });
            }
            false => self.close_looks(|look| look.is(number)),
        }
    }

    /// An agent looks into ranks, which last used what connects them at a time of its clock.
    pub(in crate::job) fn looking(&mut self, from: NodeId, number: u64, traffic: Option<Duration>) {
        let traffic = traffic.map(|at| self.moment(from, at).at);
        if let Some(look) = self.looks.get_mut(number) {
            look.found.traffic = look.found.traffic.max(traffic);
        }
    }

    /// Where a rank is.
    pub(in crate::job) fn looked(&mut self, from: NodeId, number: u64, worker: WorkerId, stack: ProcessStack) {
        let node = self.nodes.name(from).to_owned();
        if let Some(look) = self.looks.get_mut(number) {
            look.found.seen.push(Seen { rank: worker.rank, node, stack });
        }
    }

    /// An agent has sent all that it knows.
    pub(in crate::job) fn look_over(&mut self, from: NodeId, number: u64) {
        if let Some(look) = self.looks.get_mut(number) {
            look.answered(from);
        }
        self.close_looks(|look| look.missing().is_empty());
    }

    /// Does what is due.
    pub(in crate::job) fn looks_due(&mut self) {
        let now = self.now;
        if self.looks.is_limit_near(now) && self.gang.stop_ordered().is_none() && !self.alive().is_empty() {
            self.look(Purpose::End, None, false);
        }
        if self.looks.is_stall_due(now) {
            match self.gang.stop_ordered().is_none() && !self.alive().is_empty() && self.has_started() {
                true => self.look(Purpose::Stall, None, false),
                // There is nothing to look at: an attempt is beginning, or ending.
                false => drop(self.looks.judge_stall(now, Some(now), BTreeMap::new())),
            }
        }
        let is_connected: Vec<bool> = self.nodes.iter().map(Node::is_connected).collect();
        self.close_looks(|look| look.is_over(now, |node| is_connected[node.index()]));
        if self.looks.is_hold_over(now) {
            self.release_signal();
        }
    }

    /// Takes what has come of the looks that are over.
    fn close_looks(&mut self, is_over: impl Fn(&Inquiry<Sights>) -> bool) {
        for look in self.looks.take_over(is_over) {
            self.conclude(look);
        }
    }

    fn conclude(&mut self, look: Inquiry<Sights>) {
        let missing = look.missing().clone();
        let Sights { purpose, mut seen, traffic } = look.found;
        seen.sort_by_key(|seen| seen.rank);
        let silent: Vec<String> = missing.iter().map(|node| self.nodes.name(*node).to_owned()).collect();
        let table = fold(&seen, &silent);
        match purpose {
            Purpose::Asked => self.show_table("where the ranks are", &table),
            Purpose::Client { client, each } => {
                let ranks = if each { seen } else { Vec::new() };
                self.out.push(Effect::Stacks { client, table: Box::new(table), ranks });
            }
            Purpose::End => {
                self.looks.keep(table);
                self.release_signal();
            }
            Purpose::Stall => {
                // Of a node that has not answered nothing is known.
                let traffic = if missing.is_empty() { traffic } else { Some(self.now) };
                self.judge_stall(traffic, &seen, table);
            }
            Purpose::Suspects(suspects) => self.judge(suspects, &seen),
            Purpose::Proof(suspects) => self.prove(suspects, &seen, traffic),
            Purpose::Alive => {
                self.show_table("where they are", &table);
                self.looks.keep(table);
            }
        }
    }

    fn judge_stall(&mut self, traffic: Option<Duration>, seen: &[Seen], table: Table) {
        let now = self.now;
        let Some((spec, finding)) = self.looks.judge_stall(now, traffic, prints(seen)) else { return };
        let (silent, doubt) = match finding {
            stall::Finding::No => return,
            stall::Finding::Stalled { silent } => (silent, None),
            stall::Finding::Waits { silent, doubt } => (silent, Some(doubt)),
        };
        if self.gang.stop_ordered().is_some() {
            return;
        }
        let ranks = seen.len();
        let title = format!(
            "{ranks} rank{}, silent for {}",
            if ranks == 1 { "" } else { "s" },
            format_duration(Duration::from_secs(silent.as_secs()))
        );
        match spec.action {
            Action::Kill if doubt.is_none() => {
                let odd = OddRank::of(&table.odd);
                self.looks.keep(table);
                self.event(gang::Event::Hang(Hang { silent, odd }));
            }
            Action::Kill | Action::Warn => {
                let goes_on = match doubt {
                    Some(doubt) if spec.action == Action::Kill => format!("; the job goes on: {doubt}"),
                    Some(doubt) => format!("; {doubt}"),
                    None => String::new(),
                };
                self.show_table(&format!("{title} (--stall {spec}{goes_on})"), &table)
            }
        }
    }

    /// Those that run something are healthy. For those that are at their end, all others are looked into.
    fn judge(&mut self, suspects: Vec<(Rank, Exception)>, seen: &[Seen]) {
        let now = self.now;
        let mut at_their_end = Vec::new();
        for (rank, exception) in suspects {
            let found = seen.iter().find(|seen| seen.rank == rank);
            let standing = found.map_or(Standing::Unknown, |seen| Standing::of(&seen.stack));
            let record = self.gang.ranks().get(rank);
            let is_in_mpi = record.is_some_and(|record| record.mpi == MpiLife::Inited && record.status.is_none());
            match standing {
                Standing::IsAtItsEnd if is_in_mpi => at_their_end.push((rank, exception)),
                // One on its way out may be between the two.
                _ => self.words.has_not_failed(now, rank, standing == Standing::GoesOn),
            }
        }
        if !at_their_end.is_empty() {
            self.look(Purpose::Proof(at_their_end), None, false);
        }
    }

    /// All ranks were looked into for the sake of these.
    fn prove(&mut self, suspects: Vec<(Rank, Exception)>, seen: &[Seen], traffic: Option<Duration>) {
        let (now, grace) = (self.now, self.spec.graces.finalize);
        let living: BTreeSet<Rank> = self.alive().into_iter().collect();
        let last_sign = self.looks.last_sign().max(traffic);
        for (rank, exception) in suspects.into_iter().filter(|(rank, _)| living.contains(rank)) {
            let silent = self.words.silence(now, rank).unwrap_or_default();
            let proof = self.looks.proof(rank);
            match proof.look(now, &living, seen, last_sign) {
                Finding::OthersGoOn => self.words.has_not_failed(now, rank, false),
                Finding::HasFailed if silent >= grace => {
                    self.event(gang::Event::Suspect { worker: self.gang.worker(rank), exception, end: true, silent });
                }
                Finding::HasFailed => self.words.look_at(rank, now + grace - silent),
                Finding::Again => self.words.look_at(rank, now + PROVE_AGAIN),
            }
        }
    }

    fn show_table(&mut self, title: &str, table: &Table) {
        self.out.push(Effect::Table { title: title.to_owned(), table: Box::new(table.clone()) });
    }

    /// A client asks where these ranks are, or all.
    pub(in crate::job) fn stacks_requested(
        &mut self,
        client: ClientId,
        ranks: Option<RankSet>,
        native: bool,
        each: bool,
    ) {
        let ranks = ranks.map(|ranks| self.alive().into_iter().filter(|rank| ranks.contains(*rank)).collect());
        match ranks.as_ref().is_some_and(Vec::is_empty) {
            true => self.out.push(Effect::RefuseStacks { client }),
            false => self.look(Purpose::Client { client, each }, ranks, native),
        }
    }

    /// The user asks for the state of the ranks (SIGQUIT). The job goes on.
    pub(in crate::job) fn print_standings(&mut self, by_key: bool) {
        self.out.push(Effect::Standings { standings: self.standings(), by_key });
        self.ask_for_hooks(true);
        if !self.alive().is_empty() {
            self.look(Purpose::Asked, None, false);
        }
    }

    /// Where the ranks were when the job was ended, or when they should have ended.
    pub fn table_for_report(&self) -> Option<&Table> {
        self.looks.table()
    }

    /// With `-v`, a signal that ends the job waits until it is known where the ranks are. Returns whether it does.
    pub(in crate::job) fn hold_signal(&mut self, number: i32, by_key: bool) -> bool {
        if self.looks.is_holding() {
            // Whoever sends a second one does not want to wait.
            self.release_signal();
            return false;
        }
        let is_first = self.gang.outside().is_none() && self.gang.stop_ordered().is_none();
        if self.settings.verbosity <= 0 || !is_first || self.alive().is_empty() || !self.is_linked() {
            return false;
        }
        self.looks.hold(self.now, number, by_key);
        self.look(Purpose::End, None, false);
        true
    }

    fn release_signal(&mut self) {
        if let Some(Held { number, by_key, .. }) = self.looks.release() {
            self.end_by_signal(number, by_key);
        }
    }
}
