//! `--local-addr`: an address of this machine.

use std::net::IpAddr;

use crate::message::Problem;

/// Refuses an address that this machine does not have, or that leads every host to itself: the other hosts would connect to another
/// machine, or to none.
pub(crate) fn check(address: IpAddr, own: &[IpAddr]) -> Result<(), Problem> {
    // Addresses of one link are not in the list.
    let is_of_link = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if is_of_link || own.contains(&address) {
        return Ok(());
    }
    let known: Vec<String> = own.iter().map(IpAddr::to_string).collect();
    let why = match address.is_loopback() {
        true => "other hosts cannot reach this machine at a loopback address",
        false => "this machine does not have this address",
    };
    let problem = Problem::usage(format!("--local-addr {address}: {why}"));
    Err(match known.is_empty() {
        true => problem.hint("no interface of this machine is up, except the loopback interface"),
        false => problem.hint(format!("it has {}", known.join(", "))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_machine_is_refused_with_those_of_this_machine() {
        let own = [IpAddr::from([192, 0, 2, 7]), "2001:db8::7".parse().expect("an address")];
        for good in ["192.0.2.7", "2001:db8::7", "fe80::1"] {
            check(good.parse().expect("an address"), &own).expect(good);
        }
        let text = |own: &[IpAddr]| check(IpAddr::from([1, 2, 3, 4]), own).expect_err("not ours").to_string();
        assert_eq!(
            text(&own),
            "error: --local-addr 1.2.3.4: this machine does not have this address\nhint: it has 192.0.2.7, 2001:db8::7"
        );
        let loopback = check(IpAddr::from([127, 0, 0, 1]), &own).expect_err("nobody reaches it").to_string();
        assert!(loopback.contains("other hosts cannot reach this machine at a loopback address"), "{loopback}");
        assert!(text(&[]).ends_with("except the loopback interface"));
    }
}
