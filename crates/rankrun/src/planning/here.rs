//! Which names are those of this machine.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use rankrun_sys::errand;
use rankrun_sys::network;

/// How long names are looked up. The resolver may need seconds for a name that nobody knows, and there may be thousands.
const LOOKUPS: Duration = Duration::from_secs(1);

/// Whether a name is plainly one of this machine's, without asking the resolver: one of the two may be short.
pub(crate) fn is_own_name(name: &str, own: &str) -> bool {
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_short = !name.contains('.') || !own.contains('.');
    is_exactly(name, own) || (is_short && name.parse::<IpAddr>().is_err() && label(name) == label(own))
}

fn is_exactly(name: &str, own: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.eq_ignore_ascii_case(own)
}

/// Whether an address that a name stands for is one of this machine's. `None`: nobody knows the name. Asks the resolver, which may take
/// long.
fn is_own_address(name: &str, own: &[IpAddr]) -> Option<bool> {
    let addresses = (name, 0).to_socket_addrs().ok()?;
    Some(addresses.into_iter().any(|address| address.ip().is_loopback() || own.contains(&address.ip())))
}

/// Those of the names that are this machine's. A name that the resolver did not answer for in time counts as another host, unless it
/// differs from this machine's own only in what comes after the first label: clusters number their nodes alike. Addresses are looked at
/// first: they need no answer.
///
/// The resolver is asked in a child process, which can be ended.
pub(crate) fn own_names<'a>(names: &[&'a str], own: &str) -> HashSet<&'a str> {
    let distinct: HashSet<&'a str> = names.iter().copied().collect();
    let (mut found, asked): (HashSet<&str>, HashSet<&str>) =
        distinct.into_iter().partition(|name| is_exactly(name, own));
    let mut asked: Vec<&str> = asked.into_iter().collect();
    if asked.is_empty() {
        return found;
    }
    asked.sort_by_key(|name| (name.parse::<IpAddr>().is_err(), names.iter().position(|it| it == name)));
    let addresses = network::addresses();
    let answered = errand::perform(LOOKUPS, |pipe| {
        for (index, name) in asked.iter().enumerate() {
            if let Some(is_own) = is_own_address(name, &addresses) {
                pipe.write_all(format!("{index} {is_own}\n").as_bytes())?;
            }
        }
        Ok(())
    });
    let answers: HashMap<usize, bool> = match answered {
        // Each line that has come is whole: a short one is written at once.
        Ok(waited) => {
            let text = waited.result;
            let answer = |line: &str| line.split_once(' ').and_then(|(at, is)| Some((at.parse().ok()?, is == "true")));
            String::from_utf8_lossy(&text).lines().filter_map(answer).collect()
        }
        // There is no room for a process, or this one has threads: one name may take longer then.
        Err(_) => {
            let start = Instant::now();
            let in_time = asked.iter().enumerate().take_while(|_| start.elapsed() < LOOKUPS);
            in_time.filter_map(|(index, name)| Some((index, is_own_address(name, &addresses)?))).collect()
        }
    };
    let is_own = |index: usize, name: &str| answers.get(&index).copied().unwrap_or_else(|| is_own_name(name, own));
    found.extend(asked.iter().enumerate().filter(|(index, name)| is_own(*index, name)).map(|(_, name)| *name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_names_and_addresses() {
        let own = ["localhost", "LOCALHOST", "vm", "vm.example.invalid", "127.0.0.1", "::1"];
        let others = ["192.0.2.7", "vm2", "vm.elsewhere.invalid"];
        let addresses = network::addresses();
        let is_here = |name: &str, own: &str| {
            is_exactly(name, own) || is_own_address(name, &addresses).unwrap_or_else(|| is_own_name(name, own))
        };
        for name in own {
            assert!(is_here(name, "vm"), "{name}");
        }
        assert!(is_here("vm", "vm.example.invalid"));
        assert!(is_here("10", "10"), "a host may be called so");
        for name in others {
            assert!(!is_here(name, "vm.example.org"), "{name}");
        }
    }
}
