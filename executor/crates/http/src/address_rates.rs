//! The rate of requests without valid credentials, for each address that they come from.

use a2g_types::rate_limit::{RateLimit, RateState};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Maximum number of addresses that are counted on their own. Beyond it, all others share one rate.
const MAX_ADDRESSES: usize = 4096;
/// The key of all addresses beyond [`MAX_ADDRESSES`].
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The part of an IPv6 address that names a network: one client may use all addresses of its network.
const NETWORK_MASK: u128 = !(u64::MAX as u128);
const MINUTE: Duration = Duration::from_secs(60);

/// Counts the requests without valid credentials of each address.
#[derive(Debug)]
pub(super) struct AddressRates {
    limit: RateLimit,
    states: Mutex<HashMap<IpAddr, RateState>>,
}

impl AddressRates {
    pub(super) fn new(per_minute: NonZeroU32) -> Self {
        Self { limit: RateLimit::per_period(per_minute, MINUTE), states: Mutex::default() }
    }

    /// Counts one request.
    ///
    /// # Errors
    /// The time after which another one passes, if this one does not.
    pub(super) fn acquire(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut states = self.states.lock();
        let mut key = network(address);
        if states.len() >= MAX_ADDRESSES && !states.contains_key(&key) {
            states.retain(|_, state| !state.full_after(now).is_zero());
            if states.len() >= MAX_ADDRESSES {
                key = OTHERS;
            }
        }
        states.entry(key).or_default().acquire(self.limit, now)
    }
}

/// The address of an IPv4 client, or the network of an IPv6 client.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};

    #[test]
    fn each_address_has_its_own_rate_and_their_number_is_bounded() {
        let rates = AddressRates::new(NonZeroU32::new(2).unwrap());
        let now = SystemClock.monotonic();
        let ask = |address: &str, now| rates.acquire(address.parse().unwrap(), now).is_ok();
        let passed =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"].map(|address| ask(address, now));
        assert_eq!(passed, [true, true, false, true]);
        let passed =
            ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"].map(|address| ask(address, now));
        assert_eq!(passed, [true, true, false, true]);
        let rest = u32::try_from(MAX_ADDRESSES).unwrap();
        let passed =
            (0..rest).filter(|n| rates.acquire(Ipv4Addr::from_bits(1 << 24 | n).into(), now).is_ok());
        assert_eq!(passed.count(), MAX_ADDRESSES - 4 + 2, "the last of them share one rate");
        assert_eq!(rates.states.lock().len(), MAX_ADDRESSES + 1);
        // A minute later, the earlier ones are forgotten.
        assert!(ask("192.0.2.9", now + MINUTE));
        assert_eq!(rates.states.lock().len(), 1);
    }
}
