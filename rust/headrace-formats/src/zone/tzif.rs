//! TZif files (RFC 9636), and the rule in their last line for the years after the last transition.

use super::Zone;
use crate::time::days_since_1970;

/// With the same days of the week.
const CYCLE_YEARS: i64 = 400;

impl Zone {
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
pub(super) struct Footer {
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

    pub(super) fn read(text: &str) -> Option<Self> {
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
