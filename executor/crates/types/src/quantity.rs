//! Quantities with their unit in the type.
//!
//! A quantity can only be constructed within its range: zero never means "unlimited", and a number out of range is
//! refused when it is parsed. 1 MB is 2^20 bytes here and on every wire.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The size of one MB in every manifest, policy and report.
pub const BYTES_PER_MB: u64 = 1 << 20;

/// A number outside the range of its quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an integer from {min} to {max}")]
pub struct OutOfRangeError {
    /// Minimum value, in the unit of the quantity.
    pub min: u64,
    /// Maximum value, in the unit of the quantity.
    pub max: u64,
}

fn check_range(value: u64, min: u64, max: u64) -> Result<u64, OutOfRangeError> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(OutOfRangeError { min, max }) }
}

/// An amount of guest memory, or of bytes written to files: whole MB, from 1 MB to 1 TiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MemoryLimit {
    mb: u64,
}

impl MemoryLimit {
    /// Maximum configurable limit in MB.
    pub const MAX_MB: u64 = 1 << 20;

    /// Makes a limit of `mb` MB.
    ///
    /// # Errors
    /// [`OutOfRangeError`] outside 1 to [`Self::MAX_MB`].
    pub fn from_mb(mb: u64) -> Result<Self, OutOfRangeError> {
        check_range(mb, 1, Self::MAX_MB).map(|mb| Self { mb })
    }

    /// The limit nearest to `bytes`, in whole MB below it.
    pub(crate) fn nearest(bytes: u64) -> Self {
        Self { mb: (bytes / BYTES_PER_MB).clamp(1, Self::MAX_MB) }
    }

    /// The limit in MB.
    #[must_use]
    pub fn mb(self) -> u64 {
        self.mb
    }

    /// The limit in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.mb * BYTES_PER_MB
    }
}

/// CPU time as a percentage of wall time; 100 is one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct CpuPercent(u32);

impl CpuPercent {
    /// Maximum configurable share: a hundred cores.
    pub const MAX: u64 = 10_000;

    /// Makes a share of `percent`.
    ///
    /// # Errors
    /// [`OutOfRangeError`] outside 1 to [`Self::MAX`].
    pub fn new(percent: u64) -> Result<Self, OutOfRangeError> {
        let percent = check_range(percent, 1, Self::MAX)?;
        u32::try_from(percent).map(Self).map_err(|_| OutOfRangeError { min: 1, max: Self::MAX })
    }

    /// The share nearest to `percent`.
    pub(crate) fn nearest(percent: u64) -> Self {
        Self::new(percent.clamp(1, Self::MAX)).unwrap_or(Self(1))
    }

    /// The share in percent.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The share in percent, as a counted amount.
    pub(crate) fn percent(self) -> u64 {
        self.0.into()
    }
}

/// Maximum duration of a run on the monotonic clock, from 1 ms to a week. Only a caller's timeout may have a fraction
/// of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Seconds", into = "Seconds")]
pub struct Timeout {
    millis: u64,
}

/// The serialized form of a timeout: seconds, as an integer if there is no fraction.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Seconds {
    Whole(u64),
    Fractional(f64),
}

impl Timeout {
    /// Maximum configurable timeout in seconds.
    pub const MAX_SECONDS: u64 = 7 * 24 * 60 * 60;
    /// The timeout if nothing is configured.
    pub const DEFAULT: Self = Self { millis: 60_000 };

    /// Makes a timeout of `seconds`.
    ///
    /// # Errors
    /// [`OutOfRangeError`] outside 1 to [`Self::MAX_SECONDS`].
    pub fn from_seconds(seconds: u64) -> Result<Self, OutOfRangeError> {
        check_range(seconds, 1, Self::MAX_SECONDS).map(|seconds| Self { millis: seconds * 1000 })
    }

    /// Makes a timeout of `millis` milliseconds.
    ///
    /// # Errors
    /// [`OutOfRangeError`] outside 1 to [`Self::MAX_SECONDS`] times 1,000.
    pub fn from_millis(millis: u64) -> Result<Self, OutOfRangeError> {
        check_range(millis, 1, Self::MAX_SECONDS * 1000).map(|millis| Self { millis })
    }

    /// The timeout nearest to `millis` milliseconds.
    pub(crate) fn nearest(millis: u64) -> Self {
        Self { millis: millis.clamp(1, Self::MAX_SECONDS * 1000) }
    }

    /// The timeout in milliseconds.
    pub(crate) fn millis(self) -> u64 {
        self.millis
    }

    /// The timeout in seconds, rounded up.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.millis.div_ceil(1000)
    }

    /// The timeout as a duration.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

impl TryFrom<Seconds> for Timeout {
    type Error = OutOfRangeError;

    fn try_from(seconds: Seconds) -> Result<Self, OutOfRangeError> {
        match seconds {
            Seconds::Whole(seconds) => Self::from_seconds(seconds),
            Seconds::Fractional(seconds) => {
                let out_of_range = |_| OutOfRangeError { min: 1, max: Self::MAX_SECONDS };
                let duration = Duration::try_from_secs_f64(seconds).map_err(out_of_range)?;
                let millis = duration.as_nanos().div_ceil(1_000_000);
                Self::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
            }
        }
    }
}

impl From<Timeout> for Seconds {
    fn from(timeout: Timeout) -> Self {
        if timeout.millis.is_multiple_of(1000) {
            Self::Whole(timeout.seconds())
        } else {
            Self::Fractional(timeout.duration().as_secs_f64())
        }
    }
}

/// Maximum output of a guest in bytes: result, logs and artifacts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct OutputLimit {
    bytes: u64,
}

impl OutputLimit {
    /// Maximum configurable limit in bytes.
    pub const MAX_BYTES: u64 = 1 << 30;

    /// Makes a limit of `bytes`.
    ///
    /// # Errors
    /// [`OutOfRangeError`] outside 1 to [`Self::MAX_BYTES`].
    pub fn from_bytes(bytes: u64) -> Result<Self, OutOfRangeError> {
        check_range(bytes, 1, Self::MAX_BYTES).map(|bytes| Self { bytes })
    }

    /// The limit nearest to `bytes`.
    pub(crate) fn nearest(bytes: u64) -> Self {
        Self { bytes: bytes.clamp(1, Self::MAX_BYTES) }
    }

    /// The limit in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

/// Serializes a quantity as its number. Deserialization checks the range.
macro_rules! as_number {
    ($quantity:ty, $make:path, $get:path) => {
        impl TryFrom<u64> for $quantity {
            type Error = OutOfRangeError;

            fn try_from(number: u64) -> Result<Self, OutOfRangeError> {
                $make(number)
            }
        }

        impl From<$quantity> for u64 {
            fn from(quantity: $quantity) -> Self {
                $get(quantity).into()
            }
        }
    };
}

as_number!(MemoryLimit, MemoryLimit::from_mb, MemoryLimit::mb);
as_number!(CpuPercent, CpuPercent::new, CpuPercent::get);
as_number!(OutputLimit, OutputLimit::from_bytes, OutputLimit::bytes);

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MB", self.mb)
    }
}

impl fmt::Display for CpuPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.duration().as_secs_f64())
    }
}

impl fmt::Display for OutputLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_as_it_is_written() {
        for (millis, written) in [(1000, "1"), (250, "0.25"), (1001, "1.001"), (604_800_000, "604800")] {
            let timeout = Timeout::from_millis(millis).unwrap();
            assert_eq!(serde_json::to_string(&timeout).unwrap(), written);
            assert_eq!(serde_json::from_str::<Timeout>(written).unwrap(), timeout);
            assert_eq!(timeout.to_string(), format!("{written} s"));
        }
        for bad in ["0", "0.0", "-1", "604801", "604800.5", "1e300", "null", "\"1\""] {
            assert!(serde_json::from_str::<Timeout>(bad).is_err(), "{bad}");
        }
        assert_eq!(Timeout::from_millis(1).unwrap().seconds(), 1);
    }

    #[test]
    fn zero_is_never_unlimited() {
        assert!(MemoryLimit::from_mb(0).is_err());
        assert!(CpuPercent::new(0).is_err());
        assert!(Timeout::from_seconds(0).is_err());
        assert!(OutputLimit::from_bytes(0).is_err());
    }

    #[test]
    fn the_largest_value_fits_and_one_more_does_not() {
        assert_eq!(MemoryLimit::from_mb(MemoryLimit::MAX_MB).unwrap().bytes(), 1 << 40);
        assert!(MemoryLimit::from_mb(MemoryLimit::MAX_MB + 1).is_err());
        assert!(CpuPercent::new(CpuPercent::MAX).is_ok());
        assert!(CpuPercent::new(CpuPercent::MAX + 1).is_err());
        assert!(Timeout::from_seconds(u64::MAX).is_err());
    }
}
