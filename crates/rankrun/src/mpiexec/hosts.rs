//! Lists and files of hosts, as the launchers of MPI read them. Ranks run on this machine only, so that a list is good if
//! it names no other one; how many slots it gives is how many ranks there are without `-n`.

use std::collections::BTreeMap;
use std::net::{ToSocketAddrs, UdpSocket};

/// One entry of a list or a line of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Host {
    pub(super) name: String,
    /// The ranks that it is for, if the entry says so.
    pub(super) slots: Option<u32>,
}

/// `a,b:4,user@c`: the value of `-hosts` and `--host`.
pub(super) fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let hosts: Vec<Host> = entries.map(parse_entry).collect::<Result<_, _>>()?;
    if hosts.is_empty() { Err("it names no host".to_owned()) } else { Ok(hosts) }
}

/// A file of hosts: `host`, `host:n` (Hydra, Intel MPI) or `host slots=n` (Open MPI) in each line, and comments after `#`.
pub(super) fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Open MPI takes blanks around the equals sign.
        let line = line.split('#').next().unwrap_or_default().replace(" =", "=").replace("= ", "=");
        let mut fields = line.split_whitespace();
        let Some(first) = fields.next() else { continue };
        let at = |error: String| format!("line {}: {error}", number + 1);
        let mut host = parse_entry(first).map_err(at)?;
        for field in fields {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            match key {
                "slots" | "cpu" | "count" => host.slots = Some(parse_slots(value).map_err(at)?),
                "max_slots" | "max-slots" | "max" | "user" | "username" | "user_name" | "binding" | "port" | "ssh" => {}
                // Open MPI takes a bare number, and does not use it.
                number if number.parse::<u32>().is_ok() => {}
                _ => return Err(at(format!("\"{field}\" is not slots=N, max_slots=N, user=NAME or binding=WHAT"))),
            }
        }
        hosts.push(host);
    }
    if hosts.is_empty() { Err("it names no host".to_owned()) } else { Ok(hosts) }
}

fn parse_entry(entry: &str) -> Result<Host, String> {
    let bare = entry.rsplit('@').next().unwrap_or(entry);
    // An address of IPv6 has colons of its own, and stands between brackets if slots follow.
    let (name, slots) = match bare.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) if address.contains(':') => (address, rest.strip_prefix(':')),
        _ if bare.matches(':').count() == 1 => {
            let (name, slots) = bare.split_once(':').unwrap_or((bare, ""));
            (name, Some(slots))
        }
        _ => (bare, None),
    };
    if name.is_empty() {
        return Err(format!("\"{entry}\" names no host"));
    }
    // Open MPI writes "*" for as many as there are CPUs.
    let slots = slots.filter(|slots| *slots != "*").map(parse_slots).transpose()?;
    Ok(Host { name: name.to_owned(), slots })
}

fn parse_slots(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|slots| *slots > 0).ok_or_else(|| format!("\"{text}\" is not a number of slots"))
}

/// How many ranks these hosts are for, if they say so: by their slots, or by naming a host several times.
pub(super) fn slots(hosts: &[Host]) -> Option<u32> {
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for host in hosts {
        *times.entry(&host.name).or_default() += 1;
    }
    let is_said = hosts.iter().any(|host| host.slots.is_some()) || times.values().any(|times| *times > 1);
    is_said.then(|| hosts.iter().fold(0, |sum, host| host.slots.unwrap_or(1).saturating_add(sum)))
}

/// Whether a name is one of this machine's. Asks the resolver only for a name that is not plainly its own.
pub(super) fn is_here(name: &str, own: &str) -> bool {
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    if name.eq_ignore_ascii_case("localhost") || name.eq_ignore_ascii_case(own) {
        return true;
    }
    let is_short = !name.contains('.') || !own.contains('.');
    if is_short && name.parse::<std::net::IpAddr>().is_err() && label(name) == label(own) {
        return true;
    }
    let Ok(addresses) = (name, 0).to_socket_addrs() else { return false };
    // A socket can be bound to an address of this machine only.
    addresses.into_iter().any(|address| UdpSocket::bind(address).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: Option<u32>) -> Host {
        Host { name: name.to_owned(), slots }
    }

    #[test]
    fn lists_are_read_as_each_launcher_writes_them() {
        assert_eq!(
            parse_list("a,me@b:4, c.example ,::1,[::1]:2"),
            Ok(vec![
                host("a", None),
                host("b", Some(4)),
                host("c.example", None),
                host("::1", None),
                host("::1", Some(2))
            ])
        );
        for (bad, error) in [
            ("", "it names no host"),
            ("a:", "\"\" is not a number of slots"),
            ("a:x", "\"x\" is not a number of slots"),
            ("a:0", "\"0\" is not a number of slots"),
            (":3", "\":3\" names no host"),
        ] {
            assert_eq!(parse_list(bad), Err(error.to_owned()), "{bad}");
        }
    }

    #[test]
    fn files_are_read_as_each_launcher_writes_them() {
        let text = "# nodes\n\na\nb:2   # two\n  c slots = 4 max_slots=8\nd 7 user=me binding=user:0,1\n";
        let hosts = vec![host("a", None), host("b", Some(2)), host("c", Some(4)), host("d", None)];
        assert_eq!(parse_file(text), Ok(hosts));
        assert_eq!(
            parse_file("a\nb slot=2\n").unwrap_err(),
            "line 2: \"slot=2\" is not slots=N, max_slots=N, user=NAME or binding=WHAT"
        );
        assert_eq!(parse_file("# none\n"), Err("it names no host".to_owned()));
    }

    #[test]
    fn slots_are_those_that_the_list_says() {
        assert_eq!(slots(&[host("a", None)]), None);
        assert_eq!(slots(&[host("a", None), host("a", None)]), Some(2), "a host for each rank, as PBS writes it");
        assert_eq!(slots(&[host("a", Some(3)), host("b", None)]), Some(4));
    }

    #[test]
    fn this_machine_is_known_by_its_names_and_addresses() {
        for name in ["localhost", "LOCALHOST", "vm", "vm.example.org", "127.0.0.1", "::1"] {
            assert!(is_here(name, "vm"), "{name}");
        }
        assert!(is_here("vm", "vm.example.org"));
        assert!(is_here("10", "10"), "a host may be called so");
        for name in ["192.0.2.7", "vm2", "vm.elsewhere.invalid"] {
            assert!(!is_here(name, "vm.example.org"), "{name}");
        }
    }
}
