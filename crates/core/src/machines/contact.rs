//! Contact with a peer on another machine: when a silent peer is asked over a fresh connection, and when it is lost.
//!
//! After a cut TCP sends again only when its retransmission time-out has passed, which doubles each time: up to twice the length of the
//! cut after its begin. New data on the connection does not help: it waits behind the old. So a cut that is shorter than the time-out may
//! leave the connection silent for longer. A fresh connection has no such history. Its answer proves that the cut is over, and so
//! bounds the time in which the old connection must carry something again. If it does not, a process on its way hangs, and the peer is lost.

use std::time::Duration;

use crate::silence::Silence;

/// The shortest and the longest time between two tries to ask.
const STEP: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// What a try may take beyond the time in which it must be connected: a login, and the start of a process there.
const LOGIN: Duration = Duration::from_secs(3);
/// A peer that asks by itself has begun its last try at most so long after the time-out: its clock began up to a second later, it looks
/// once a second, and a lost SYN is sent again after a second.
const LATE: Duration = Duration::from_secs(5);
/// So much before half of the time-out its first try may be answered.
const EARLY: Duration = Duration::from_secs(2);
/// What the old connection may need beyond twice the time after which the fresh one was answered.
const SLACK: Duration = Duration::from_secs(3);

/// How long an answer of the front to a node may be under way: what comes later does not count.
pub const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// What is to be done about a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing.
    Wait,
    /// Ask it over a fresh connection. A try that is not connected yet has failed.
    Ask,
    /// It is lost.
    Lost,
}

/// How a peer is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// By us. `is_open`: the last try has not failed.
    Us { is_open: bool },
    /// It connects by itself.
    Peer,
}

/// The contact with one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contact {
    silence: Silence,
    /// How long it had been silent.
    lasted: Duration,
    /// The same when it was last asked, and when it first answered.
    asked: Option<Duration>,
    answered: Option<Duration>,
}

/// The time between two tries, within which each must be connected.
pub fn step(timeout: Duration) -> Duration {
    (timeout / 12).clamp(STEP.0, STEP.1)
}

/// How long a try may take in all.
pub fn try_bound(timeout: Duration) -> Duration {
    step(timeout) + LOGIN
}

/// How long an agent must wait for a front that gives up nodes after `timeout`: no cut that is shorter keeps it without a sign of life
/// for as long, since an answered try is one.
pub fn patience(timeout: Duration) -> Duration {
    timeout + try_bound(timeout) + SLACK
}

/// How long a connection may be silent at most until its peer is lost.
pub fn longest_silence(timeout: Duration) -> Duration {
    2 * (timeout + try_bound(timeout).max(LATE)) + SLACK
}

impl Contact {
    /// The peer was heard on its connection.
    pub fn heard(&mut self, now: Duration) {
        *self = Contact::default();
        self.silence.heard(now);
    }

    /// It has answered over a fresh connection. An answer to an earlier silence says nothing about this one.
    pub fn answered(&mut self, now: Duration, timeout: Duration) {
        self.lasted = self.silence.look(now);
        if self.lasted + EARLY >= timeout / 2 {
            self.answered.get_or_insert(self.lasted);
        }
    }

    /// It could not be asked now, since others are asked first: [`Step::Ask`] comes again.
    pub fn not_asked_yet(&mut self) {
        self.asked = None;
    }

    /// Asking it has failed on this machine. [`Step::Ask`] comes again until the last try could have failed there; then this is the try
    /// that has failed. A machine that lacks a descriptor or a process must not keep a silent peer from being lost.
    pub fn could_not_ask(&mut self, timeout: Duration) {
        if self.lasted < timeout + try_bound(timeout) {
            self.asked = None;
        }
    }

    /// How long its connection had been silent at the last look.
    pub fn silence(&self) -> Duration {
        self.lasted
    }

    /// It has answered over a fresh connection, and its own is still silent.
    pub fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// Somebody looks, about once a second, after having read all that has come.
    pub fn look(&mut self, now: Duration, timeout: Duration, asks: Asks) -> Step {
        self.lasted = self.silence.look(now);
        if let Some(answered) = self.answered {
            return if self.lasted >= timeout.max(2 * answered + SLACK) { Step::Lost } else { Step::Wait };
        }
        if self.is_due(timeout) {
            self.asked = Some(self.lasted);
            return Step::Ask;
        }
        let may_answer = match asks {
            Asks::Us { is_open } => is_open,
            Asks::Peer => self.lasted < timeout + LATE,
        };
        if self.lasted < timeout || may_answer { Step::Wait } else { Step::Lost }
    }

    /// Tries begin a number of steps before the time-out, from half of it on; the last when it has passed: whatever cut was shorter is
    /// over then.
    fn is_due(&self, timeout: Duration) -> bool {
        let steps = timeout.saturating_sub(self.lasted).as_nanos().div_ceil(step(timeout).as_nanos());
        let mark = timeout.saturating_sub(step(timeout) * u32::try_from(steps).unwrap_or(u32::MAX));
        mark >= timeout / 2 && self.asked.is_none_or(|asked| asked < mark)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Looks each second from the last sign of life on. Returns what was to be done in which second.
    fn steps(timeout: Duration, asks: Asks, answered_after: Option<u64>) -> Vec<(u64, Step)> {
        let mut contact = Contact::default();
        contact.heard(s(100));
        let mut steps = Vec::new();
        for second in 1.. {
            if answered_after == Some(second) {
                contact.answered(s(100 + second), timeout);
            }
            match contact.look(s(100 + second), timeout, asks) {
                Step::Wait => {}
                step => steps.push((second, step)),
            }
            if steps.last().is_some_and(|(_, step)| *step == Step::Lost) {
                return steps;
            }
        }
        unreachable!("a peer that is never heard is lost")
    }

    #[test]
    fn a_silent_peer_is_asked_from_half_the_time_out_on_and_lost_when_the_last_try_has_failed() {
        use Step::{Ask, Lost};
        let fails = Asks::Us { is_open: false };
        assert_eq!(steps(s(6), fails, None), [(4, Ask), (6, Ask), (7, Lost)]);
        assert_eq!(steps(s(3), fails, None), [(3, Ask), (4, Lost)]);
        assert_eq!(steps(s(3), Asks::Peer, None), [(3, Ask), (8, Lost)]);
        let asks = [30, 35, 40, 45, 50, 55, 60].map(|second| (second, Ask));
        assert_eq!(steps(s(60), fails, None), [&asks[..], &[(61, Lost)]].concat());
    }

    #[test]
    fn after_an_answer_the_connection_has_as_long_again() {
        use Step::{Ask, Lost};
        let asked = Asks::Us { is_open: true };
        // A process on the way is stopped: the first try is answered at once.
        assert_eq!(steps(s(60), asked, Some(31)), [(30, Ask), (65, Lost)]);
        assert_eq!(steps(s(6), asked, Some(7)), [(4, Ask), (6, Ask), (17, Lost)]);
        for timeout in [2, 3, 6, 60, 600].map(s) {
            let last = timeout + try_bound(timeout).max(LATE);
            assert!(2 * last + SLACK <= longest_silence(timeout));
        }
    }

    #[test]
    fn a_try_that_was_not_made_comes_again() {
        let mut contact = Contact::default();
        let asks = Asks::Us { is_open: false };
        for second in 0..30 {
            assert_eq!(contact.look(s(second), s(60), asks), Step::Wait);
        }
        for second in [30, 31, 32] {
            assert_eq!(contact.look(s(second), s(60), asks), Step::Ask);
            contact.not_asked_yet();
        }
        contact.heard(s(34));
        assert_eq!(contact.look(s(35), s(60), asks), Step::Wait);
    }

    #[test]
    fn a_peer_that_can_never_be_asked_is_lost_when_a_last_try_would_have_failed() {
        for timeout in [3, 10, 60].map(s) {
            let mut contact = Contact::default();
            contact.heard(s(0));
            let lost = (1..600).find(|second| match contact.look(s(*second), timeout, Asks::Us { is_open: false }) {
                Step::Wait => false,
                Step::Ask => {
                    contact.could_not_ask(timeout);
                    false
                }
                Step::Lost => true,
            });
            let bound = (timeout + try_bound(timeout)).as_secs();
            assert!(lost.is_some_and(|lost| (bound..=bound + 2).contains(&lost)), "{timeout:?}: {lost:?}");
        }
    }

    /// A cut of a connection between a front and an agent, as TCP has it. Times are in milliseconds from the begin of the cut.
    #[derive(Clone, Copy, Debug)]
    struct World {
        timeout: u64,
        /// In thousandths of the time-out.
        share: u64,
        /// Front and agent have heard each other so long before, and look so long after the begin for the first time.
        heard: (u64, u64),
        looks: (u64, u64),
        /// When the first packet is lost in either direction, and the first retransmission time-out.
        lost: (u64, u64),
        rto: (u64, u64),
        /// From a SYN that arrives to the answer.
        login: u64,
        /// Whether the node asks, as one that has joined does.
        joined: bool,
    }

    fn worlds() -> impl Strategy<Value = World> {
        let pair = |range: std::ops::Range<u64>| (range.clone(), range);
        let times = (pair(0..1_000), pair(0..1_000), pair(0..1_000), pair(200..1_000));
        (2_000..120_000u64, 0..1_000u64, times, 10..1_500u64, any::<bool>()).prop_map(
            |(timeout, share, (heard, looks, lost, rto), login, joined)| World {
                timeout,
                share,
                heard,
                looks,
                lost,
                rto,
                login,
                joined,
            },
        )
    }

    impl World {
        fn cut(&self) -> u64 {
            self.timeout * self.share / 1_000
        }

        /// When a packet that was sent then is delivered: it is sent again after 1, 2, 4 time-outs and so on.
        fn delivered(&self, sent: u64, rto: u64) -> u64 {
            let mut at = sent;
            let mut wait = rto;
            while at < self.cut() {
                (at, wait) = (at + wait, 2 * wait);
            }
            at
        }

        /// When the connection carries something again, in both directions.
        fn is_back(&self) -> u64 {
            self.delivered(self.lost.0, self.rto.0).max(self.delivered(self.lost.1, self.rto.1))
        }
    }

    proptest! {
        #[test]
        fn a_cut_shorter_than_the_time_out_loses_nobody(world in worlds()) {
            let timeout = ms(world.timeout);
            let (mut asker, mut front) = (Contact::default(), Contact::default());
            // The node that asks, or the front that does.
            let (heard, looks) = if world.joined { (world.heard.1, world.looks.1) } else { (world.heard.0, world.looks.0) };
            let begin = 10_000;
            asker.heard(ms(begin - heard));
            front.heard(ms(begin - world.heard.0));
            let mut attempt: Option<(u64, u64)> = None;
            let mut told = None;
            let mut now = looks;
            while now < world.is_back() {
                if let Some((_, answer)) = attempt
                    && answer <= now
                    && told.is_none()
                {
                    told = Some(answer);
                    asker.answered(ms(begin + answer), timeout);
                    front.answered(ms(begin + answer), timeout);
                }
                let is_open = attempt.is_some_and(|(until, _)| now < until);
                let asks = Asks::Us { is_open };
                match asker.look(ms(begin + now), timeout, asks) {
                    Step::Wait => {}
                    Step::Ask => {
                        let answer = world.delivered(now, 1_000) + world.login;
                        let is_connected = answer - world.login <= now + step(timeout).as_millis() as u64;
                        let until = now + if is_connected { try_bound(timeout) } else { step(timeout) }.as_millis() as u64;
                        // One that logs in goes on.
                        let logs_in = attempt.is_some_and(|(_, answer)| answer - world.login <= now && answer > now);
                        if !logs_in {
                            attempt = Some((until, if is_connected { answer } else { u64::MAX }));
                        }
                    }
                    Step::Lost => prop_assert!(world.joined, "the front gives up at {now}, and the connection is back at {}", world.is_back()),
                }
                if world.joined {
                    let step = front.look(ms(begin + now), timeout, Asks::Peer);
                    prop_assert!(step != Step::Lost, "the front gives up at {now}, and the connection is back at {}", world.is_back());
                }
                now += 1_000;
            }
            // The agent: what it has heard last, and next.
            let told = told.unwrap_or(world.is_back()).min(world.is_back());
            let longest = (world.heard.1 + told).max(world.is_back() - told);
            prop_assert!(ms(longest) < patience(timeout), "the agent hears nothing for {longest}");
        }

        #[test]
        fn a_peer_that_is_gone_is_lost_in_time(timeout in 2_000..120_000u64, joined in any::<bool>(), bound in 0..5u64) {
            let timeout = ms(timeout);
            let mut contact = Contact::default();
            contact.heard(s(0));
            let mut open_until = 0;
            for second in 1.. {
                let asks = if joined { Asks::Peer } else { Asks::Us { is_open: second < open_until } };
                match contact.look(s(second), timeout, asks) {
                    Step::Wait => {}
                    Step::Ask => open_until = second + bound,
                    Step::Lost => {
                        let longest = timeout + s(2) + if joined { LATE } else { s(bound) };
                        prop_assert!(timeout <= s(second) && s(second) <= longest);
                        break;
                    }
                }
            }
        }
    }
}
