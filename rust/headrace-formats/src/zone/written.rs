//! Zones as text: offsets from UTC, names, and Java's abbreviations.

/// The largest offset, as in `java.time`.
const MAX_OFFSET: i32 = 18 * 3600;

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
