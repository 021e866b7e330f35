//! Local time for lists; JSON, the journal and logs are in UTC. The `local-offset` feature of the `time` crate uses
//! the C library, which is unsound with threads, and therefore fails in a process with several threads. `tz-rs` reads
//! the zone files itself.

use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Date, OffsetDateTime, UtcOffset};
use tz::TimeZone;

const TO_THE_SECOND: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
const TO_THE_MILLISECOND: &[BorrowedFormatItem<'_>] = format_description!(
    "[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3] [offset_hour sign:mandatory]:[offset_minute]"
);

/// The time zone of the user.
pub(super) struct LocalTime(TimeZone);

impl LocalTime {
    /// The zone of `TZ`, or else the machine's; UTC if neither can be read.
    ///
    /// # Ambient Authority
    /// Reads the variable `TZ`, `/etc/localtime` and the zones of the system.
    #[allow(clippy::disallowed_methods, reason = "TZ is a convention of the environment")]
    pub(super) fn read() -> Self {
        let zone = match std::env::var("TZ") {
            Ok(named) => TimeZone::from_posix_tz(&named),
            Err(_) => TimeZone::local(),
        };
        Self(zone.unwrap_or_else(|_| TimeZone::utc()))
    }

    /// UTC, so that tests do not depend on the machine.
    #[cfg(test)]
    pub(super) fn utc() -> Self {
        Self(TimeZone::utc())
    }

    /// Formats date and time to the second.
    pub(super) fn format_seconds(&self, at: OffsetDateTime) -> String {
        self.to_local(at).format(TO_THE_SECOND).unwrap_or_else(|_| at.to_string())
    }

    /// Formats date and time to the millisecond, with the offset from UTC.
    pub(super) fn format_milliseconds(&self, at: OffsetDateTime) -> String {
        self.to_local(at).format(TO_THE_MILLISECOND).unwrap_or_else(|_| at.to_string())
    }

    /// The start of a day in this zone.
    pub(super) fn midnight(&self, day: Date) -> OffsetDateTime {
        let at = day.midnight();
        // The offset may change between midnight UTC and local midnight.
        let near = at.assume_offset(self.offset(at.assume_utc()));
        at.assume_offset(self.offset(near))
    }

    fn to_local(&self, at: OffsetDateTime) -> OffsetDateTime {
        at.checked_to_offset(self.offset(at)).unwrap_or(at)
    }

    fn offset(&self, at: OffsetDateTime) -> UtcOffset {
        let seconds =
            self.0.find_local_time_type(at.unix_timestamp()).map_or(0, tz::LocalTimeType::ut_offset);
        UtcOffset::from_whole_seconds(seconds).unwrap_or(UtcOffset::UTC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::{date, datetime};

    #[test]
    fn daylight_saving_time_is_applied() {
        let local = LocalTime(TimeZone::from_posix_tz("CET-1CEST,M3.5.0,M10.5.0/3").unwrap());
        assert_eq!(local.format_seconds(datetime!(2026-11-23 12:00:00 UTC)), "2026-11-23 13:00:00");
        assert_eq!(
            local.format_milliseconds(datetime!(2026-07-01 22:30:00.0425 UTC)),
            "2026-07-02 00:30:00.042 +02:00"
        );
        assert_eq!(local.midnight(date!(2026 - 07 - 01)), datetime!(2026-06-30 22:00 UTC));
        // The day on which summer ends.
        assert_eq!(local.midnight(date!(2026 - 10 - 25)), datetime!(2026-10-24 22:00 UTC));
        assert_eq!(local.midnight(date!(2026 - 10 - 26)), datetime!(2026-10-25 23:00 UTC));
    }
}
