//! The rule for addresses: runs connect only to addresses of the public Internet.
//!
//! Refused are loopback, private and local networks (which include the metadata services of clouds), multicast, and
//! every form of IPv6 that embeds an IPv4 address, which another parser might unwrap. The operator can exempt
//! addresses of their own services.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// IPv4 networks outside the public Internet, after IANA's special-purpose address registry.
const NOT_PUBLIC_V4: [Ipv4Net; 15] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // behind a provider's NAT
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link-local, and the metadata services of clouds
    v4(172, 16, 0, 0, 12),   // private
    v4(192, 0, 0, 0, 24),    // protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // relays of 6to4
    v4(192, 168, 0, 0, 16),  // private
    v4(198, 18, 0, 0, 15),   // benchmarks
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(224, 0, 0, 0, 4),     // multicast
    v4(240, 0, 0, 0, 4),     // reserved, and broadcast
];

/// The IPv6 network of global unicast addresses.
// This is an allow list: it excludes the unspecified address, loopback, mapped and compatible IPv4, NAT64, unique
// local, link-local, site-local and multicast addresses, and everything that is not assigned yet.
const PUBLIC_V6: Ipv6Net = v6([0x2000, 0, 0], 3);

/// Networks inside [`PUBLIC_V6`] that do not belong to the public Internet.
const NOT_PUBLIC_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0], 23),     // protocol assignments, and Teredo, which carries IPv4
    v6([0x2001, 0xdb8, 0], 32), // documentation
    v6([0x2002, 0, 0], 16),     // 6to4, which carries IPv4
    v6([0x3fff, 0, 0], 20),     // documentation
];

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6([a, b, c]: [u16; 3], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

/// Addresses that runs may connect to although they are not public, with the operator's permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedAddress {
    network: IpNet,
    /// `None` for any port.
    port: Option<u16>,
}

/// A text does not name an address, an address with a port, or a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "has to be an address (`10.1.2.3`), an address and a port (`127.0.0.1:8080`, `[::1]:8080`) or a network \
     (`10.1.0.0/16`, without bits set behind its prefix)"
)]
pub struct AllowedAddressError;

impl FromStr for AllowedAddress {
    type Err = AllowedAddressError;

    fn from_str(text: &str) -> Result<Self, AllowedAddressError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { network: address.ip().into(), port: Some(address.port()) });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { network: address.into(), port: None });
        }
        let network = text.parse::<IpNet>().map_err(|_| AllowedAddressError)?;
        // `10.0.0.1/8` may mean one address or sixteen million, so it is refused.
        if network.addr() != network.network() {
            return Err(AllowedAddressError);
        }
        Ok(Self { network, port: None })
    }
}

impl fmt::Display for AllowedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.network) {
            (Some(port), network) => write!(f, "{}", SocketAddr::new(network.addr(), port)),
            (None, network) => write!(f, "{network}"),
        }
    }
}

/// Returns `true` if a run may connect to the address at `port`, or at one port or more if `port` is `None`.
pub(super) fn is_allowed(address: IpAddr, port: Option<u16>, exempt: &[AllowedAddress]) -> bool {
    let is_exempt = |exempt: &AllowedAddress| {
        let has_port = exempt.port.is_none_or(|exempt| port.is_none_or(|port| port == exempt));
        exempt.network.contains(&address) && has_port
    };
    is_public(address) || exempt.iter().any(is_exempt)
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            PUBLIC_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|network| network.contains(&address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn special_networks_are_refused_up_to_their_boundaries() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
        ] {
            let number = |text: &str| u32::from(text.parse::<Ipv4Addr>().unwrap());
            for inside in [first, last, "169.254.169.254", "127.0.0.1"] {
                assert!(!public(inside), "{inside}");
            }
            let edges = [number(first).checked_sub(1), number(last).checked_add(1)];
            for outside in edges.into_iter().flatten().map(Ipv4Addr::from) {
                // Some networks follow each other.
                let next = ["223.255.255.255", "9.255.255.255", "11.0.0.0", "1.0.0.0", "128.0.0.0"];
                let known = next.contains(&outside.to_string().as_str());
                assert!(!known || is_public(outside.into()), "{outside}");
                assert!(is_public(outside.into()), "{outside} beside {first}");
            }
        }
    }

    #[test]
    fn ipv6_addresses_that_are_not_public_are_refused() {
        for text in [
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:7f00:1::",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:808:808::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
        ] {
            assert!(!public(text), "{text}");
        }
        for text in ["2606:2800:220:1::1", "2a00:1450::1", "2001:200::1", "2001:4860:4860::8888", "3ffe::1"] {
            assert!(public(text), "{text}");
        }
    }

    #[test]
    fn the_operator_exempts_exactly_the_listed_addresses() {
        let may = |address: &str, exempt: &[&str]| {
            let exempt = exempt.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
            let address = address.parse::<SocketAddr>().unwrap();
            let may = is_allowed(address.ip(), Some(address.port()), &exempt);
            assert!(
                !may || is_allowed(address.ip(), None, &exempt),
                "{address}: allowed at this port but at none"
            );
            may
        };
        let exempt = ["127.0.0.1:8080".parse().unwrap()];
        assert!(is_allowed("127.0.0.1".parse().unwrap(), None, &exempt));
        assert!(!is_allowed("127.0.0.2".parse().unwrap(), None, &exempt));
        assert!(may("127.0.0.1:8080", &["127.0.0.1:8080"]));
        assert!(!may("127.0.0.1:8081", &["127.0.0.1:8080"]));
        assert!(!may("127.0.0.2:8080", &["127.0.0.1:8080"]));
        assert!(may("10.1.255.255:1", &["10.1.0.0/16"]) && !may("10.2.0.0:1", &["10.1.0.0/16"]));
        assert!(
            may("[::1]:80", &["::1"]) && may("[::1]:80", &["[::1]:80"]) && !may("[::1]:81", &["[::1]:80"])
        );
        // An address in another form is another address.
        assert!(!may("[::ffff:127.0.0.1]:8080", &["127.0.0.0/8"]));
        assert!(may("8.8.8.8:53", &[]));
        for text in
            ["", "localhost", "10.0.0.1/8", "10.0.0.0/33", "10.0.0/8", "127.1", "127.0.0.1:99999", "*"]
        {
            assert_eq!(text.parse::<AllowedAddress>(), Err(AllowedAddressError), "{text}");
        }
        for text in ["127.0.0.1:8080", "[::1]:8080", "10.1.0.0/16"] {
            assert_eq!(text.parse::<AllowedAddress>().unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn ipv6_forms_of_ipv4_addresses_are_refused(number in any::<u32>()) {
            let [a, b, c, d] = number.to_be_bytes();
            let high = u16::from_be_bytes([a, b]);
            let low = u16::from_be_bytes([c, d]);
            let inside = Ipv4Addr::from(number);
            let forms = [
                inside.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, !high, !low),
            ];
            for form in forms {
                prop_assert!(!is_public(form.into()), "{}", form);
            }
            let private = inside.is_private() || inside.is_loopback() || inside.is_link_local()
                || inside.is_multicast() || inside.is_broadcast() || inside.is_documentation()
                || inside.is_unspecified();
            prop_assert!(!(private && is_public(inside.into())), "{}", inside);
        }
    }
}
