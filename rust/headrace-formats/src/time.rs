//! Dates and times as text: ISO 8601, in all forms that Spark's `from_json` reads.

use arrow_schema::TimeUnit;

use crate::zone::{WrittenZone, parse_zone};

/// A time as it is written: `2026-03-02T06:00:00.125+01:00`, with a blank instead of the T, with numbers of one digit,
/// without a time, without minutes or seconds, or without a zone.
#[derive(Debug, PartialEq, Eq)]
pub struct Written<'a> {
    /// Since 1970, on the clocks of the zone.
    pub seconds: i64,
    pub nanoseconds: u32,
    pub zone: Option<WrittenZone<'a>>,
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

/// The number of units since 1970, rounded down. None if it does not fit.
#[inline]
pub fn in_units(seconds: i64, nanoseconds: u32, unit: TimeUnit) -> Option<i64> {
    let factor = per_second(unit);
    let fraction = i64::from(nanoseconds) / (1_000_000_000 / factor);
    // The first second of the range is not complete: the product alone may be out of range.
    let units = i128::from(seconds) * i128::from(factor) + i128::from(fraction);
    i64::try_from(units).ok()
}

struct Digits<'a>(&'a [u8]);

impl<'a> Digits<'a> {
    /// A number, and how many digits it has: `least` to `most`, which are at most nine.
    #[inline(always)]
    fn number(&mut self, least: usize, most: usize) -> Option<(u32, usize)> {
        let (mut value, mut count) = (0, 0);
        while let Some(digit @ b'0'..=b'9') = self.0.get(count) {
            if count == most {
                return None;
            }
            value = value * 10 + u32::from(digit - b'0');
            count += 1;
        }
        self.0 = &self.0[count..];
        (count >= least).then_some((value, count))
    }

    #[inline(always)]
    fn short_number(&mut self) -> Option<u32> {
        self.number(1, 2).map(|(value, _)| value)
    }

    #[inline(always)]
    fn take(&mut self, byte: u8) -> bool {
        let found = self.0.first() == Some(&byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// Digits after a point, as nanoseconds. More than nine digits are cut off.
    fn fraction(&mut self) -> u32 {
        if !self.take(b'.') {
            return 0;
        }
        let count = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let used = digits.iter().take(9).fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
        used * 10_u32.pow(9_u32.saturating_sub(count as u32))
    }

    /// Days since 1970. Month and day may be missing, but not if the year has more than four digits: that is a number.
    fn day(&mut self, longest_year: usize) -> Option<i64> {
        let sign = if self.take(b'-') { -1 } else { 1 };
        if sign > 0 {
            self.take(b'+');
        }
        let (year, digits) = self.number(4, longest_year)?;
        let year = sign * i64::from(year);
        if self.is_at_end() {
            return (digits == 4).then(|| days_since_1970(year, 1, 1));
        }
        let month = self.take(b'-').then(|| self.short_number())??;
        let day = if self.is_at_end() { 1 } else { self.take(b'-').then(|| self.short_number())?? };
        is_day(year, month, day).then(|| days_since_1970(year, month, day))
    }

    /// What is between a day and a time.
    fn separator(&mut self) -> bool {
        self.take(b'T') || self.take(b' ') || self.take(b't')
    }

    /// Seconds and nanoseconds since midnight, and whether there are minutes.
    fn time(&mut self) -> Option<(u32, u32, bool)> {
        let hour = self.short_number()?;
        let (mut minute, mut second, mut nanoseconds) = (0, 0, 0);
        let has_minutes = self.take(b':');
        if has_minutes {
            minute = self.short_number()?;
            if self.take(b':') {
                second = self.short_number()?;
                nanoseconds = self.fraction();
            }
        }
        let seconds = hour * 3600 + minute * 60 + second;
        (hour < 24 && minute < 60 && second < 60).then_some((seconds, nanoseconds, has_minutes))
    }
}

/// Without blanks and control characters at both ends.
fn trimmed(text: &[u8]) -> &[u8] {
    let is_kept = |&byte: &u8| byte > b' ' && byte != 0x7F;
    let begin = text.iter().position(is_kept).unwrap_or(text.len());
    let end = text.iter().rposition(is_kept).map_or(begin, |last| last + 1);
    &text[begin..end]
}

pub fn parse_timestamp(text: &[u8]) -> Option<Written<'_>> {
    const LONGEST_YEAR: usize = 6;
    let mut rest = Digits(trimmed(text));
    let days = rest.day(LONGEST_YEAR)?;
    if rest.is_at_end() {
        return Some(Written { seconds: days * 86_400, nanoseconds: 0, zone: None });
    }
    if !rest.separator() {
        return None;
    }
    let (seconds, nanoseconds, has_minutes) = rest.time()?;
    let zone = match rest.is_at_end() {
        true => None,
        false if has_minutes => Some(parse_zone(trimmed(rest.0))?),
        false => return None,
    };
    Some(Written { seconds: days * 86_400 + i64::from(seconds), nanoseconds, zone })
}

/// Days since 1970. As in Spark, the day of a timestamp is the one that is written: whatever comes after it is skipped.
pub fn parse_date(text: &[u8]) -> Option<i32> {
    const LONGEST_YEAR: usize = 7;
    let mut rest = Digits(trimmed(text));
    let days = rest.day(LONGEST_YEAR)?;
    if rest.is_at_end() || rest.separator() { i32::try_from(days).ok() } else { None }
}

/// Seconds and nanoseconds since midnight.
pub fn parse_time(text: &[u8]) -> Option<(u32, u32)> {
    let mut rest = Digits(trimmed(text));
    let (seconds, nanoseconds, has_minutes) = rest.time()?;
    (rest.is_at_end() && has_minutes).then_some((seconds, nanoseconds))
}

fn is_day(year: i64, month: u32, day: u32) -> bool {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// Of the proleptic Gregorian calendar. Years begin in March here, so that a leap day is the last day of one.
pub(crate) fn days_since_1970(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day.
pub(crate) fn date_of(days: i64) -> (i64, u32, u32) {
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
            let found = parse_timestamp(text.as_bytes())?;
            let offset = match found.zone {
                Some(WrittenZone::Offset(seconds)) => i64::from(seconds),
                _ => 0,
            };
            let units = in_units(found.seconds - offset, found.nanoseconds, TimeUnit::Millisecond)?;
            Some((units, found.zone.is_some()))
        };
        assert_eq!(read("1970-01-01T00:00:01Z"), Some((1000, true)));
        assert_eq!(read("1970-01-01 00:00:01.5"), Some((1500, false)));
        assert_eq!(read("1970-01-01T01:00:00.0019999999999+01:00"), Some((1, true)));
        assert_eq!(read("1969-12-31T23:59:59.999Z"), Some((-1, true)));
        assert_eq!(read("1970-01-01T01:00+0100"), Some((0, true)));
        assert_eq!(read("1970-01-01T01:00-01"), Some((7_200_000, true)));
        assert_eq!(read("1970-01-01T01:00:00 +1"), Some((0, true)));
        assert_eq!(read("1970-01-02"), Some((86_400_000, false)));
        assert_eq!(read("1970-1-2"), Some((86_400_000, false)));
        assert_eq!(read(" 1970-1-1 1:2:3.\t"), Some((3_723_000, false)));
        assert_eq!(read("1970"), Some((0, false)));
        assert_eq!(read("1970-02"), Some((31 * 86_400_000, false)));
        assert_eq!(read("+1970-01-01T01"), Some((3_600_000, false)));
        assert_eq!(read("-0001-12-31"), Some((-62_167_305_600_000, false)));
        assert_eq!(read("999999-12-31"), Some((31_494_784_694_400_000, false)));
        for wrong in [
            "",
            " ",
            "now",
            "19700",
            "1970-",
            "1970-13-01",
            "1970-02-29",
            "1970-001-01",
            "1000000-01-01",
            "1970-01-01T",
            "1970-01-01T24:00",
            "1970-01-01T00:00:60Z",
            "1970-01-01T00:00:00+",
            "1970-01-01T00:00:00+01:",
            "1970-01-01T00:00:00+19",
            "1970-01-01T00Z",
            "1970-01-01Z",
            "06:00:00",
            "T06:00:00",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_day_of_a_timestamp_is_the_one_that_is_written() {
        for text in ["1970-01-02", " 1970-1-2 ", "1970-01-02T23:59:59.999-18:00", "1970-01-02 and more"] {
            assert_eq!(parse_date(text.as_bytes()), Some(1), "{text}");
        }
        assert_eq!(parse_date(b"5881580-07-11"), Some(i32::MAX));
        for wrong in ["5881580-07-12", "1970-01-02Z", "1", "19700101", ""] {
            assert_eq!(parse_date(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_first_and_the_last_microsecond_fit() {
        for limit in [i64::MIN, i64::MAX] {
            let (seconds, rest) = (limit.div_euclid(1_000_000), limit.rem_euclid(1_000_000));
            let nanoseconds = rest as u32 * 1000;
            assert_eq!(in_units(seconds, nanoseconds, TimeUnit::Microsecond), Some(limit));
        }
        assert_eq!(in_units(i64::MAX / 1_000_000 + 1, 0, TimeUnit::Microsecond), None);
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
