//! The addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of the network interfaces that are up, in the kernel's order, without those that only reach this machine or
/// one link. None if the kernel does not tell.
pub fn addresses() -> Vec<IpAddr> {
    named_addresses().into_iter().map(|(_, address)| address).collect()
}

/// The same, each with the name of its interface.
pub fn named_addresses() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills in a list, which is read only until freeifaddrs. Each address is read as the type that its
    // family says.
    unsafe {
        if libc::getifaddrs(&mut first) != 0 {
            return found;
        }
        let mut next = first;
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            if !is_up || entry.ifa_addr.is_null() || entry.ifa_name.is_null() {
                continue;
            }
            let address = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
                }
                _ => continue,
            };
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            found.push((name, address));
        }
        libc::freeifaddrs(first);
    }
    found.retain(|(_, address)| !is_near(address));
    found
}

/// Whether an address reaches this machine alone, or one link.
fn is_near(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_reaches_this_machine_alone() {
        assert!(addresses().iter().all(|address| !address.is_loopback()));
        assert!(is_near(&"127.0.0.1".parse().expect("an address")));
        assert!(is_near(&"fe80::1".parse().expect("an address")));
        assert!(!is_near(&"10.0.0.1".parse().expect("an address")));
    }
}
