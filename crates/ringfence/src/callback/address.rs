//! Addresses that no callback goes to, whatever a rule says: what answers there believes whoever
//! can reach it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Services of clouds that give credentials to whoever asks from inside, outside of the
/// link-local networks.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254),
];

/// What is wrong with an address; nothing for most.
pub(super) fn forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => forbidden_v4(address),
        IpAddr::V6(address) => forbidden_v6(address),
    }
}

/// Whether this is an address of this host, loopback or not: one can listen there.
pub(super) fn is_here(address: IpAddr) -> bool {
    match UdpSocket::bind((address.to_canonical(), 0)) {
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
        Ok(_) => true,
    }
}

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    let first = address.octets()[0];
    if address.is_link_local() {
        Some("link-local")
    } else if METADATA_V4.contains(&address) {
        Some("a cloud's metadata service")
    } else if first == 0 {
        Some("unspecified")
    } else if address.is_multicast() {
        Some("multicast")
    } else if address.is_broadcast() {
        Some("broadcast")
    } else if first >= 240 {
        Some("reserved")
    } else {
        None
    }
}

fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_loopback() {
        return None;
    }
    if address.is_unspecified() {
        return Some("unspecified");
    }
    if address.is_unicast_link_local() || address.segments()[0] & 0xffc0 == 0xfec0 {
        return Some("link-local");
    }
    if address.is_multicast() {
        return Some("multicast");
    }
    if METADATA_V6.contains(&address) {
        return Some("a cloud's metadata service");
    }
    inner(address).into_iter().flatten().find_map(forbidden_v4)
}

/// The IPv4 addresses that an IPv6 address stands for, where something on the way translates it.
fn inner(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let s = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let last = join(s[6], s[7]);
    match s {
        // Compatible, mapped, translated.
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => [Some(last), None],
        // NAT64, the well-known prefix and the local ones.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0x64, 0xff9b, 1, ..] => [Some(last), None],
        // 6to4.
        [0x2002, high, low, ..] => [Some(join(high, low)), None],
        // Teredo: its server, and the client with its bits turned.
        [0x2001, 0, high, low, ..] => [Some(join(high, low)), Some(join(!s[6], !s[7]))],
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => [Some(last), None],
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_forbidden(address: &str) -> bool {
        forbidden(address.parse().unwrap()).is_some()
    }

    #[test]
    fn what_believes_its_neighbours_is_not_reached() {
        for bad in [
            "169.254.0.1",
            "169.254.169.254",
            "169.254.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "2001:0:808:808::5601:5601",
            "2a00::5efe:169.254.169.254",
            "::ffff:0.0.0.0",
            "::ffff:224.0.0.1",
        ] {
            assert!(is_forbidden(bad), "{bad}");
        }
    }

    #[test]
    fn this_host_is_known_by_all_of_its_addresses() {
        for here in ["127.0.0.1", "127.255.0.7", "::ffff:127.0.0.1"] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        for elsewhere in ["192.0.2.1", "198.51.100.7"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }

    #[test]
    fn all_else_is() {
        for good in [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "::ffff:127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "169.253.255.255",
            "169.255.0.0",
            "223.255.255.255",
            "8.8.8.8",
            "fd00::1",
            "2606:4700::1111",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(!is_forbidden(good), "{good}");
        }
    }
}
