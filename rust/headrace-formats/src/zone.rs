//! Time zones: offsets from UTC as text, and zones of the IANA database.
//!
//! A zone is read from its TZif file (RFC 9636), which whoever uses this crate provides: there is no I/O here. A local
//! time that occurs twice, when clocks are set back, is the earlier one. One that does not occur, when clocks are set
//! forward, is later by the gap. So decides `java.time`, and so Spark: both times have the offset before the change.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::time::days_since_1970;

/// The largest offset, as in `java.time`.
const MAX_OFFSET: i32 = 18 * 3600;
/// The Gregorian calendar repeats after 400 years, with the same days of the week.
const CYCLE_YEARS: i64 = 400;
const CYCLE_SECONDS: i64 = 146_097 * 86_400;

/// A zone as it is written after a time.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum WrittenZone<'a> {
    /// Seconds east of Greenwich.
    Offset(i32),
    /// A zone of the database, which may not exist.
    Name(&'a str),
}

/// `Z`, `+01:00`, `+0100`, `+1`, `+01:00:30`, `UTC`, `GMT+1`, `Europe/Berlin` or one of Java's abbreviations. None if it
/// is no zone.
#[inline]
pub fn parse_zone(text: &[u8]) -> Option<WrittenZone<'_>> {
    match *text {
        [b'Z'] => Some(WrittenZone::Offset(0)),
        // As most writers have it. Beyond the limits, the other function decides.
        [
            sign @ (b'+' | b'-'),
            b'0',
            hours @ b'0'..=b'9',
            b':',
            tens @ b'0'..=b'5',
            minutes @ b'0'..=b'9',
        ] => {
            let digit = |letter: u8| i32::from(letter - b'0');
            let offset = digit(hours) * 3600 + digit(tens) * 600 + digit(minutes) * 60;
            Some(WrittenZone::Offset(if sign == b'-' { -offset } else { offset }))
        }
        _ => parse_rare_zone(text),
    }
}

fn parse_rare_zone(text: &[u8]) -> Option<WrittenZone<'_>> {
    let text = std::str::from_utf8(text).ok()?;
    if text == "z" {
        return Some(WrittenZone::Offset(0));
    }
    if text.starts_with(['+', '-']) {
        return parse_offset(text).map(WrittenZone::Offset);
    }
    for prefix in ["UTC", "GMT", "UT"] {
        match text.strip_prefix(prefix) {
            Some("") => return Some(WrittenZone::Offset(0)),
            Some(rest) if rest.starts_with(['+', '-']) => {
                return parse_offset(rest).map(WrittenZone::Offset);
            }
            _ => {}
        }
    }
    // The names of the database: no other text is kept or looked for.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-' | b'+');
    if text.len() < 2 || text.len() > 64 || !text.bytes().all(is_name) {
        return None;
    }
    Some(match SHORT_IDS.iter().find(|(short, _)| *short == text) {
        Some((_, name)) if name.starts_with('-') => WrittenZone::Offset(parse_offset(name)?),
        Some((_, name)) => WrittenZone::Name(name),
        None => WrittenZone::Name(text),
    })
}

/// Java's abbreviations (`ZoneId.SHORT_IDS` up to Java 22), which Spark reads. Several have other meanings elsewhere.
const SHORT_IDS: [(&str, &str); 28] = [
    ("ACT", "Australia/Darwin"),
    ("AET", "Australia/Sydney"),
    ("AGT", "America/Argentina/Buenos_Aires"),
    ("ART", "Africa/Cairo"),
    ("AST", "America/Anchorage"),
    ("BET", "America/Sao_Paulo"),
    ("BST", "Asia/Dhaka"),
    ("CAT", "Africa/Harare"),
    ("CNT", "America/St_Johns"),
    ("CST", "America/Chicago"),
    ("CTT", "Asia/Shanghai"),
    ("EAT", "Africa/Addis_Ababa"),
    ("ECT", "Europe/Paris"),
    ("IET", "America/Indiana/Indianapolis"),
    ("IST", "Asia/Kolkata"),
    ("JST", "Asia/Tokyo"),
    ("MIT", "Pacific/Apia"),
    ("NET", "Asia/Yerevan"),
    ("NST", "Pacific/Auckland"),
    ("PLT", "Asia/Karachi"),
    ("PNT", "America/Phoenix"),
    ("PRT", "America/Puerto_Rico"),
    ("PST", "America/Los_Angeles"),
    ("SST", "Pacific/Guadalcanal"),
    ("VST", "Asia/Ho_Chi_Minh"),
    ("EST", "-05:00"),
    ("MST", "-07:00"),
    ("HST", "-10:00"),
];

/// `+h`, `+hh`, `+hhmm`, `+hhmmss`, or with colons, where hours and minutes may have one digit.
fn parse_offset(text: &str) -> Option<i32> {
    let (sign, text) = match text.split_at_checked(1)? {
        ("-", rest) => (-1, rest),
        ("+", rest) => (1, rest),
        _ => return None,
    };
    if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') {
        return None;
    }
    let number = |part: &str| part.parse::<i32>().ok();
    let parts: Vec<&str> = text.split(':').collect();
    let (hours, minutes, seconds) = match parts[..] {
        [all] => match all.len() {
            1 | 2 => (number(all)?, 0, 0),
            4 => (number(&all[..2])?, number(&all[2..])?, 0),
            6 => (number(&all[..2])?, number(&all[2..4])?, number(&all[4..])?),
            _ => return None,
        },
        [hours, minutes] if hours.len() <= 2 && minutes.len() <= 2 => (number(hours)?, number(minutes)?, 0),
        [hours, minutes, seconds] if hours.len() <= 2 && minutes.len() == 2 && seconds.len() == 2 => {
            (number(hours)?, number(minutes)?, number(seconds)?)
        }
        _ => return None,
    };
    let offset = hours * 3600 + minutes * 60 + seconds;
    (minutes < 60 && seconds < 60 && offset <= MAX_OFFSET).then_some(sign * offset)
}

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

    /// Of a TZif file. The error says what is wrong with it.
    pub fn from_tzif(data: &[u8]) -> Result<Self, String> {
        let (first, _) = Block::read(data, 4)?;
        let (block, rest) = match data[4] {
            0 => (first, &b""[..]),
            _ => Block::read(&data[first.size..], 8)?,
        };
        let (mut changes, mut offsets) = (Vec::new(), vec![block.initial]);
        let mut change = |instant: i64, offset: i32| {
            let before = offsets[offsets.len() - 1];
            if offset != before {
                // The offset before a change decides about times that occur twice or not at all.
                changes.push(instant + i64::from(before.max(offset)));
                offsets.push(offset);
            }
        };
        for &(instant, offset) in &block.transitions {
            change(instant, offset);
        }
        let last = block.transitions.last().map_or(i64::MIN / 4, |&(instant, _)| instant);
        let mut repeats_from = i64::MAX;
        match Footer::parse(rest)? {
            None => {}
            Some(Footer { standard, summer: None }) => change(last, standard),
            Some(Footer { standard, summer: Some(summer) }) => {
                let first_year = if block.transitions.is_empty() { 1970 } else { year_of(last) };
                // The first year may be one without a change before it. The others are complete.
                repeats_from = days_since_1970(first_year + 2, 1, 1) * 86_400;
                for year in first_year..=first_year + 2 + CYCLE_YEARS {
                    let begin = (summer.begin.second_of(year) - i64::from(standard), summer.offset);
                    let end = (summer.end.second_of(year) - i64::from(summer.offset), standard);
                    let mut both = [begin, end];
                    both.sort_unstable();
                    for (instant, offset) in both.into_iter().filter(|&(instant, _)| instant > last) {
                        change(instant, offset);
                    }
                }
            }
        }
        if !changes.is_sorted() {
            return Err("its changes are not in the order of time".into());
        }
        Ok(Self { changes, offsets, repeats_from })
    }
}

fn year_of(instant: i64) -> i64 {
    crate::time::date_of(instant.div_euclid(86_400)).0
}

/// A header with its data.
struct Block {
    size: usize,
    /// The offset before the first transition.
    initial: i32,
    /// Instants, and the offsets from then on.
    transitions: Vec<(i64, i32)>,
}

impl Block {
    /// The block at the beginning, and what follows it. An instant has `width` bytes.
    fn read(data: &[u8], width: usize) -> Result<(Self, &[u8]), String> {
        const HEADER: usize = 44;
        let short = || "it is cut off".to_string();
        let header = data.get(..HEADER).ok_or_else(short)?;
        if !header.starts_with(b"TZif") {
            return Err("it is not a TZif file".into());
        }
        let number = |at: usize| {
            let bytes: [u8; 4] = header[at..at + 4].try_into().unwrap_or_default();
            u32::from_be_bytes(bytes) as usize
        };
        let counts @ [utc, wall, leaps, times, types, letters] = [20, 24, 28, 32, 36, 40].map(number);
        if counts.iter().any(|&count| count > 100_000) {
            return Err("its counts are too large".into());
        }
        let size = HEADER + times * (width + 1) + types * 6 + letters + leaps * (width + 4) + wall + utc;
        let body = data.get(HEADER..size).ok_or_else(short)?;
        let (instants, body) = body.split_at(times * width);
        let (indexes, body) = body.split_at(times);
        let offsets: Vec<i32> = body[..types * 6]
            .chunks_exact(6)
            .map(|each| i32::from_be_bytes([each[0], each[1], each[2], each[3]]))
            .collect();
        if offsets.iter().any(|offset| offset.unsigned_abs() > 26 * 3600) {
            return Err("an offset is too large".into());
        }
        let initial = *offsets.first().ok_or("it has no type of time")?;
        let mut transitions = Vec::with_capacity(times);
        for (instant, &index) in instants.chunks_exact(width).zip(indexes) {
            let negative = instant[0] >= 0x80;
            let mut bytes = if negative { [0xFF; 8] } else { [0; 8] };
            bytes[8 - width..].copy_from_slice(instant);
            let offset = *offsets.get(usize::from(index)).ok_or("it has no such type of time")?;
            // Some files begin with an instant before the universe.
            transitions.push((i64::from_be_bytes(bytes).clamp(i64::MIN / 4, i64::MAX / 4), offset));
        }
        Ok((Self { size, initial, transitions }, &data[size..]))
    }
}

/// The rule for the time after the last transition, as in the variable TZ of POSIX: `CET-1CEST,M3.5.0,M10.5.0/3`.
struct Footer {
    standard: i32,
    summer: Option<Summer>,
}

struct Summer {
    offset: i32,
    begin: YearDay,
    end: YearDay,
}

/// A second of every year.
struct YearDay {
    day: RuleDay,
    /// Since midnight; may be negative, or after the day.
    second: i64,
}

enum RuleDay {
    /// The nth day of the week (0 is Sunday) of a month; the fifth is the last one.
    Weekday { month: u32, nth: i64, weekday: i64 },
    /// From 1 on, without counting 29 February.
    WithoutLeapDay(i64),
    /// From 0 on.
    Plain(i64),
}

impl YearDay {
    /// Local seconds since 1970.
    fn second_of(&self, year: i64) -> i64 {
        let first = days_since_1970(year, 1, 1);
        let day = match self.day {
            RuleDay::Weekday { month, nth, weekday } => {
                let begin = days_since_1970(year, month, 1);
                let next = if month == 12 {
                    days_since_1970(year + 1, 1, 1)
                } else {
                    days_since_1970(year, month + 1, 1)
                };
                // 1 January 1970 was a Thursday.
                let first = begin + (weekday - (begin + 4)).rem_euclid(7);
                let found = first + 7 * (nth - 1);
                if found < next { found } else { found - 7 }
            }
            RuleDay::WithoutLeapDay(day) => {
                let is_leap = days_since_1970(year + 1, 1, 1) - first == 366;
                first + day - 1 + i64::from(is_leap && day >= 60)
            }
            RuleDay::Plain(day) => first + day,
        };
        day * 86_400 + self.second
    }
}

impl Footer {
    /// None if there is none.
    fn parse(text: &[u8]) -> Result<Option<Self>, String> {
        let text = std::str::from_utf8(text).unwrap_or_default().trim_matches('\n');
        if text.is_empty() {
            return Ok(None);
        }
        Self::read(text).map(Some).ok_or_else(|| format!("its rule {text:?} is invalid"))
    }

    fn read(text: &str) -> Option<Self> {
        let mut rest = Text(text);
        rest.name()?;
        let standard = -rest.clock()?;
        if rest.0.is_empty() {
            return Some(Self { standard: i32::try_from(standard).ok()?, summer: None });
        }
        rest.name()?;
        let offset = if rest.0.starts_with(',') { standard + 3600 } else { -rest.clock()? };
        let begin = rest.year_day()?;
        let end = rest.year_day()?;
        let summer = Summer { offset: i32::try_from(offset).ok()?, begin, end };
        rest.0.is_empty().then_some(Self { standard: i32::try_from(standard).ok()?, summer: Some(summer) })
    }
}

struct Text<'a>(&'a str);

impl Text<'_> {
    fn take(&mut self, letter: char) -> bool {
        match self.0.strip_prefix(letter) {
            Some(rest) => self.0 = rest,
            None => return false,
        }
        true
    }

    /// An abbreviation, which has no meaning here.
    fn name(&mut self) -> Option<()> {
        let end = if self.0.starts_with('<') {
            self.0.find('>')? + 1
        } else {
            self.0.find(|letter: char| !letter.is_ascii_alphabetic())?
        };
        self.0 = &self.0[end..];
        (end > 0).then_some(())
    }

    fn number(&mut self) -> Option<i64> {
        let end = self.0.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        if digits.len() > 3 { None } else { digits.parse().ok() }
    }

    /// `[+-]hh[:mm[:ss]]` in seconds.
    fn clock(&mut self) -> Option<i64> {
        let sign = if self.take('-') { -1 } else { 1 };
        if sign > 0 {
            self.take('+');
        }
        let mut seconds = self.number()? * 3600;
        for unit in [60, 1] {
            if !self.take(':') {
                break;
            }
            seconds += self.number()? * unit;
        }
        Some(sign * seconds)
    }

    /// `,M3.5.0/3`
    fn year_day(&mut self) -> Option<YearDay> {
        if !self.take(',') {
            return None;
        }
        let day = if self.take('M') {
            let month = u32::try_from(self.number()?).ok().filter(|month| (1..=12).contains(month))?;
            let nth = self.take('.').then(|| self.number())??;
            let weekday = self.take('.').then(|| self.number())??;
            ((1..=5).contains(&nth) && weekday <= 6).then_some(RuleDay::Weekday { month, nth, weekday })?
        } else if self.take('J') {
            RuleDay::WithoutLeapDay(self.number()?)
        } else {
            RuleDay::Plain(self.number()?)
        };
        let second = if self.take('/') { self.clock()? } else { 2 * 3600 };
        Some(YearDay { day, second })
    }
}

/// Where the files of the IANA database come from.
pub trait ZoneSource: Send + Sync {
    /// The names of all zones. None if it cannot be asked now.
    fn names(&self) -> Option<HashSet<String>>;

    /// The TZif file of one of them. None if it cannot be read now.
    fn file(&self, name: &str) -> Option<Vec<u8>>;
}

/// No zone has a name.
struct NoZones;

impl ZoneSource for NoZones {
    fn names(&self) -> Option<HashSet<String>> {
        Some(HashSet::new())
    }

    fn file(&self, _name: &str) -> Option<Vec<u8>> {
        None
    }
}

/// Zones by name. Each is loaded when it is needed first. A name that no zone has costs a look into a table: names come
/// from records.
pub struct ZoneDatabase {
    source: Box<dyn ZoneSource>,
    names: OnceLock<HashSet<String>>,
    loaded: RwLock<HashMap<String, Arc<Zone>>>,
}

impl Default for ZoneDatabase {
    /// Without zones.
    fn default() -> Self {
        Self::new(Box::new(NoZones))
    }
}

impl ZoneDatabase {
    pub fn new(source: Box<dyn ZoneSource>) -> Self {
        Self { source, names: OnceLock::new(), loaded: RwLock::default() }
    }

    /// The zone, or None if the database has no such zone.
    pub fn find(&self, name: &str) -> Option<Arc<Zone>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if loaded.is_some() {
            return loaded;
        }
        if !self.has(name) {
            return None;
        }
        // Without a lock: the source may wait for another thread (for Python's interpreter), which may wait for the lock.
        let found = Arc::new(Zone::from_tzif(&self.source.file(name)?).ok()?);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        Some(loaded.entry(name.to_owned()).or_insert(found).clone())
    }

    fn has(&self, name: &str) -> bool {
        if let Some(names) = self.names.get() {
            return names.contains(name);
        }
        let Some(names) = self.source.names() else { return false };
        let found = names.contains(name);
        // Another thread may have been faster, with the same names.
        let _ = self.names.set(names);
        found
    }

    /// The zone that a setting names. None if there is no such zone.
    pub fn parse(&self, text: &str) -> Option<Arc<Zone>> {
        match parse_zone(text.as_bytes())? {
            WrittenZone::Offset(offset) => Some(Arc::new(Zone::fixed(offset))),
            WrittenZone::Name(name) => self.find(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
