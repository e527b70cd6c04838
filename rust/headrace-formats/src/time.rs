//! Dates and times as text, in ISO 8601.

use arrow_schema::TimeUnit;

/// A point in time as it is written: `2026-03-02T06:00:00.125+01:00`, with a blank instead of the T, without seconds,
/// without a time, or without a zone.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// Since 1970, in UTC if `has_zone`.
    pub seconds: i64,
    pub nanoseconds: u32,
    pub has_zone: bool,
}

/// Units in a second.
pub fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

impl Written {
    /// The number of units since 1970, rounded down. None if it does not fit.
    #[inline]
    pub fn in_units(&self, unit: TimeUnit) -> Option<i64> {
        let factor = per_second(unit);
        let fraction = i64::from(self.nanoseconds) / (1_000_000_000 / factor);
        self.seconds.checked_mul(factor)?.checked_add(fraction)
    }
}

struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    /// A number of exactly `count` digits.
    #[inline(always)]
    fn number(&mut self, count: usize) -> Option<u32> {
        let mut value = 0;
        for &digit in self.0.get(..count)? {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value * 10 + u32::from(digit - b'0');
        }
        self.0 = &self.0[count..];
        Some(value)
    }

    #[inline(always)]
    fn take(&mut self, byte: u8) -> bool {
        let found = self.0.first() == Some(&byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    /// Digits after a point, as nanoseconds. More than nine digits are cut off.
    fn fraction(&mut self) -> Option<u32> {
        if !self.take(b'.') {
            return Some(0);
        }
        let count = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let used = digits.iter().take(9).fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
        (count > 0).then(|| used * 10_u32.pow(9_u32.saturating_sub(count as u32)))
    }

    fn day(&mut self) -> Option<i64> {
        let year = self.number(4)?;
        let month = self.take(b'-').then(|| self.number(2))??;
        let day = self.take(b'-').then(|| self.number(2))??;
        is_day(year, month, day).then(|| days_since_1970(i64::from(year), month, day))
    }

    /// Seconds and nanoseconds since midnight.
    fn time(&mut self) -> Option<(u32, u32)> {
        let hour = self.number(2)?;
        let minute = self.take(b':').then(|| self.number(2))??;
        let (mut second, mut nanoseconds) = (0, 0);
        if self.take(b':') {
            second = self.number(2)?;
            nanoseconds = self.fraction()?;
        }
        (hour < 24 && minute < 60 && second < 60).then_some((hour * 3600 + minute * 60 + second, nanoseconds))
    }

    /// Seconds east of Greenwich: `Z`, `+01:00`, `+0100` or `+01`. None inside if there is no zone.
    fn zone(&mut self) -> Option<Option<i64>> {
        if self.0.is_empty() {
            return Some(None);
        }
        if self.take(b'Z') || self.take(b'z') {
            return Some(Some(0));
        }
        let sign = if self.take(b'-') { -1 } else { self.take(b'+').then_some(1)? };
        let hours = self.number(2)?;
        let has_colon = self.take(b':');
        let minutes = if has_colon || !self.0.is_empty() { self.number(2)? } else { 0 };
        (hours <= 18 && minutes < 60).then(|| Some(sign * i64::from(hours * 3600 + minutes * 60)))
    }
}

pub fn parse_timestamp(text: &[u8]) -> Option<Written> {
    let mut rest = Digits(text);
    let days = rest.day()?;
    if rest.0.is_empty() {
        return Some(Written { seconds: days * 86_400, nanoseconds: 0, has_zone: false });
    }
    if !(rest.take(b'T') || rest.take(b' ') || rest.take(b't')) {
        return None;
    }
    let (seconds, nanoseconds) = rest.time()?;
    let zone = rest.zone()?;
    let seconds = days * 86_400 + i64::from(seconds) - zone.unwrap_or(0);
    rest.0.is_empty().then_some(Written { seconds, nanoseconds, has_zone: zone.is_some() })
}

/// Days since 1970.
pub fn parse_date(text: &[u8]) -> Option<i32> {
    let mut rest = Digits(text);
    let days = rest.day()?;
    if rest.0.is_empty() { i32::try_from(days).ok() } else { None }
}

/// Seconds and nanoseconds since midnight.
pub fn parse_time(text: &[u8]) -> Option<(u32, u32)> {
    let mut rest = Digits(text);
    let time = rest.time()?;
    rest.0.is_empty().then_some(time)
}

fn is_day(year: u32, month: u32, day: u32) -> bool {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// Of the proleptic Gregorian calendar. Years begin in March here, so that a leap day is the last day of one.
fn days_since_1970(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day.
fn date_of(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Appends `2026-03-02`. False if the year has not four digits.
pub fn write_date(days: i64, text: &mut Vec<u8>) -> bool {
    let (year, month, day) = date_of(days);
    if !(0..=9999).contains(&year) {
        return false;
    }
    digits(year as u64, 4, text);
    text.push(b'-');
    digits(u64::from(month), 2, text);
    text.push(b'-');
    digits(u64::from(day), 2, text);
    true
}

/// Appends `06:00:00.125`, with as many digits of the second as the unit has.
pub fn write_time(units: i64, unit: TimeUnit, text: &mut Vec<u8>) {
    let factor = per_second(unit);
    let seconds = (units / factor) as u64;
    digits(seconds / 3600, 2, text);
    text.push(b':');
    digits(seconds / 60 % 60, 2, text);
    text.push(b':');
    digits(seconds % 60, 2, text);
    let width = factor.ilog10() as usize;
    if width > 0 {
        text.push(b'.');
        digits((units % factor) as u64, width, text);
    }
}

/// Appends `2026-03-02T06:00:00.125`, and `Z` if the time has a zone. False if the year has not four digits.
pub fn write_timestamp(units: i64, unit: TimeUnit, has_zone: bool, text: &mut Vec<u8>) -> bool {
    let day = 86_400 * per_second(unit);
    if !write_date(units.div_euclid(day), text) {
        return false;
    }
    text.push(b'T');
    write_time(units.rem_euclid(day), unit, text);
    if has_zone {
        text.push(b'Z');
    }
    true
}

fn digits(value: u64, width: usize, text: &mut Vec<u8>) {
    let begin = text.len();
    text.resize(begin + width, b'0');
    let mut rest = value;
    for place in text[begin..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_some_centuries_is_read_as_it_is_written() {
        for days in -719_528..1_000_000 {
            let mut text = Vec::new();
            assert!(write_date(days, &mut text));
            assert_eq!(parse_date(&text), Some(days as i32), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn times_in_all_forms() {
        let read = |text: &str| {
            parse_timestamp(text.as_bytes()).map(|t| (t.in_units(TimeUnit::Millisecond).unwrap(), t.has_zone))
        };
        assert_eq!(read("1970-01-01T00:00:01Z"), Some((1000, true)));
        assert_eq!(read("1970-01-01 00:00:01.5"), Some((1500, false)));
        assert_eq!(read("1970-01-01T01:00:00.0019999999999+01:00"), Some((1, true)));
        assert_eq!(read("1969-12-31T23:59:59.999Z"), Some((-1, true)));
        assert_eq!(read("1970-01-01T01:00+0100"), Some((0, true)));
        assert_eq!(read("1970-01-01T01:00-01"), Some((7_200_000, true)));
        assert_eq!(read("1970-01-02"), Some((86_400_000, false)));
        for wrong in [
            "",
            "now",
            "1970",
            "1970-13-01",
            "1970-02-29",
            "1970-01-01T",
            "1970-01-01T24:00",
            "1970-01-01T00:00:60Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+1",
            "1970-01-01T00:00:00+01:",
            "1970-01-01Z",
            "1970-01-01T00:00:00Zz",
            "1970-1-1",
            "+1970-01-01",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_written() {
        let written = |units, unit, has_zone| {
            let mut text = Vec::new();
            assert!(write_timestamp(units, unit, has_zone, &mut text));
            String::from_utf8(text).unwrap()
        };
        assert_eq!(written(-1, TimeUnit::Microsecond, true), "1969-12-31T23:59:59.999999Z");
        assert_eq!(written(0, TimeUnit::Second, false), "1970-01-01T00:00:00");
        assert!(!write_timestamp(i64::MAX, TimeUnit::Second, true, &mut Vec::new()));
    }
}
