//! Time zones: offsets from UTC as text, and zones of the IANA database.
//!
//! A zone is read from its TZif file (RFC 9636), which whoever uses this crate provides: there is no I/O here. A local
//! time that occurs twice, when clocks are set back, is the earlier one. One that does not occur, when clocks are set
//! forward, is later by the gap. So decides `java.time`, and so Spark: both times have the offset before the change.

mod database;
mod tzif;
mod written;

pub use database::{ZoneDatabase, ZoneSource};
pub use written::{WrittenZone, parse_zone};

/// The Gregorian calendar repeats after 400 years.
const CYCLE_SECONDS: i64 = 146_097 * 86_400;

/// From the time on a zone's clocks to UTC.
#[derive(Debug, PartialEq, Eq)]
pub struct Zone {
    /// The local seconds since 1970 from which on the next offset counts.
    changes: Vec<i64>,
    /// One more than changes.
    offsets: Vec<i32>,
    /// From this local second on, everything repeats after 400 years.
    repeats_from: i64,
}

impl Zone {
    pub fn fixed(offset: i32) -> Self {
        Self { changes: Vec::new(), offsets: vec![offset], repeats_from: i64::MAX }
    }

    /// Seconds since 1970 in UTC. `local` is at most some millions of years from 1970.
    #[inline]
    pub fn to_utc(&self, local: i64) -> i64 {
        let mut within = local;
        if local >= self.repeats_from {
            within = self.repeats_from + (local - self.repeats_from) % CYCLE_SECONDS;
        }
        let index = self.changes.partition_point(|&change| change <= within);
        local - i64::from(self.offsets[index])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::tzif::Footer;
    use super::*;
    use crate::time::days_since_1970;

    /// A file of version 2 with transitions (instant, offset), after `initial`.
    fn tzif(initial: i32, transitions: &[(i64, i32)], footer: &str) -> Vec<u8> {
        let header = |times: usize, types: usize| {
            let mut bytes = b"TZif2".to_vec();
            bytes.resize(32, 0);
            for count in [times, types, 1] {
                bytes.extend((count as u32).to_be_bytes());
            }
            bytes
        };
        let kind = |offset: i32| [&offset.to_be_bytes()[..], &[0, 0]].concat();
        // The first block, for old readers, has no transitions.
        let mut bytes = [header(0, 1), kind(initial), vec![0]].concat();
        bytes.extend(header(transitions.len(), transitions.len() + 1));
        bytes.extend(transitions.iter().flat_map(|(instant, _)| instant.to_be_bytes()));
        bytes.extend((1..=transitions.len() as u8).collect::<Vec<_>>());
        bytes.extend(kind(initial));
        bytes.extend(transitions.iter().flat_map(|&(_, offset)| kind(offset)));
        bytes.push(0);
        bytes.extend(format!("\n{footer}\n").bytes());
        bytes
    }

    const HOUR: i64 = 3600;

    #[test]
    fn times_in_a_gap_are_later_and_times_that_occur_twice_are_the_earlier_ones() {
        let zone = Zone::from_tzif(&tzif(0, &[(100 * HOUR, 3600), (200 * HOUR, 0)], "")).unwrap();
        assert_eq!(zone.to_utc(100 * HOUR - 1), 100 * HOUR - 1);
        assert_eq!(zone.to_utc(100 * HOUR), 100 * HOUR, "in the gap: the clocks show 101:00 then");
        assert_eq!(zone.to_utc(101 * HOUR - 1), 101 * HOUR - 1);
        assert_eq!(zone.to_utc(101 * HOUR), 100 * HOUR);
        assert_eq!(zone.to_utc(200 * HOUR), 199 * HOUR, "the first of two");
        assert_eq!(zone.to_utc(201 * HOUR - 1), 200 * HOUR - 1);
        assert_eq!(zone.to_utc(201 * HOUR), 201 * HOUR);
        assert_eq!(zone.to_utc(i64::MIN / 1000), i64::MIN / 1000);
    }

    #[test]
    fn the_rule_of_the_footer_is_for_all_later_years() {
        let zone = Zone::from_tzif(&tzif(3600, &[], "CET-1CEST,M3.5.0,M10.5.0/3")).unwrap();
        for (year, begin, end) in [(2026, 29, 25), (2400, 26, 29), (2826, 29, 25), (200_026, 29, 25)] {
            let noon = |month, day| days_since_1970(year, month, day) * 86_400 + 12 * HOUR;
            assert_eq!(zone.to_utc(noon(3, begin - 1)), noon(3, begin - 1) - HOUR, "{year}");
            assert_eq!(zone.to_utc(noon(3, begin)), noon(3, begin) - 2 * HOUR, "{year}");
            assert_eq!(zone.to_utc(noon(10, end - 1)), noon(10, end - 1) - 2 * HOUR, "{year}");
            assert_eq!(zone.to_utc(noon(10, end)), noon(10, end) - HOUR, "{year}");
        }
    }

    #[test]
    fn footers_of_all_kinds_are_read() {
        for footer in [
            "UTC0",
            "<+0330>-3:30",
            "EST5EDT,M3.2.0,M11.1.0",
            "IST-1GMT0,M10.5.0,M3.5.0/1",
            "<-02>2<-01>,M3.5.0/-1,M10.5.0/0",
            "EET-2EEST,M4.5.5/0,M10.5.4/24",
            "XXX3YYY,J60/2,J300",
            "XXX3YYY2:30:15,0/0,364/23:59:59",
        ] {
            assert!(Footer::read(footer).is_some(), "{footer}");
            assert!(Zone::from_tzif(&tzif(0, &[], footer)).is_ok(), "{footer}");
        }
        for wrong in [
            "UTC",
            "0",
            "A1B",
            "A1B,M3.2",
            "A1B,M13.1.0,M1.1.0",
            "A1B,M3.6.0,M1.1.0",
            "A1B,M3.1.0,M4.1.0x",
            "<+1",
        ] {
            assert!(Footer::read(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_and_no_crash() {
        let whole = tzif(0, &[(100 * HOUR, 3600), (200 * HOUR, 0)], "CET-1CEST,M3.5.0,M10.5.0/3");
        for end in 0..whole.len() {
            let _ = Zone::from_tzif(&whole[..end]);
            for value in [0, 1, 0x7F, 0xFF] {
                let mut damaged = whole.clone();
                damaged[end] = value;
                let _ = Zone::from_tzif(&damaged).map(|zone| zone.to_utc(150 * HOUR));
            }
        }
        assert!(Zone::from_tzif(b"").is_err());
        assert!(Zone::from_tzif(&whole[..60]).is_err());
    }

    #[test]
    fn zones_are_read_as_java_reads_them() {
        let offset = |text: &str| match parse_zone(text.as_bytes()) {
            Some(WrittenZone::Offset(offset)) => Some(offset),
            _ => None,
        };
        for (text, seconds) in [
            ("Z", 0),
            ("+00:00", 0),
            ("-01:30", -5400),
            ("+1", 3600),
            ("+1:0", 3600),
            ("+1:00", 3600),
            ("+01", 3600),
            ("+0130", 5400),
            ("+010030", 3630),
            ("-01:00:30", -3630),
            ("+18:00", 64_800),
            ("UTC", 0),
            ("GMT-8", -28_800),
            ("UT+01:30", 5400),
            ("EST", -18_000),
        ] {
            assert_eq!(offset(text), Some(seconds), "{text}");
        }
        for wrong in [
            "", "+", "+18:01", "+19", "+100", "+01:", "+01:60", "+1:0:0", "+0100:30", "UTC+", "+-1", "[UTC]",
            "a b",
        ] {
            assert_eq!(parse_zone(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse_zone(b"Europe/Berlin"), Some(WrittenZone::Name("Europe/Berlin")));
        assert_eq!(parse_zone(b"PST"), Some(WrittenZone::Name("America/Los_Angeles")));
    }

    #[test]
    fn a_database_loads_what_exists_once() {
        struct One(Arc<std::sync::Mutex<Vec<String>>>);
        impl ZoneSource for One {
            fn names(&self) -> Option<HashSet<String>> {
                self.0.lock().unwrap().push("names".into());
                Some(["Here/There".to_owned()].into())
            }
            fn file(&self, name: &str) -> Option<Vec<u8>> {
                self.0.lock().unwrap().push(name.into());
                Some(tzif(7200, &[], "X-2"))
            }
        }
        let asked = Arc::default();
        let database = ZoneDatabase::new(Box::new(One(Arc::clone(&asked))));
        for _ in 0..2 {
            assert_eq!(database.parse("Here/There").unwrap().to_utc(7200), 0);
            assert_eq!(database.parse("../There"), None);
            assert_eq!(database.parse("No/Where"), None);
            assert_eq!(database.parse("+02:00").unwrap().to_utc(7200), 0);
        }
        assert_eq!(*asked.lock().unwrap(), ["names", "Here/There"]);
    }
}
