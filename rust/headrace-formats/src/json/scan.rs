//! The syntax of JSON (RFC 8259): a cursor over the bytes of one record.
//!
//! Beyond the RFC, it accepts what Spark reads: NaN, Infinity and -Infinity (as Python writes them), +Infinity, +INF and
//! -INF, and strings and names in single quotes. And a byte order mark at the beginning.

use crate::fault::{Fault, Result};

/// The deepest nesting of values that are skipped or kept as text. Typed values nest as deep as their type.
const MAX_DEPTH: usize = 512;

pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A number as it is written. `mantissa` and `exponent` are its value if `is_exact`.
pub struct Number<'a> {
    pub text: &'a [u8],
    pub is_negative: bool,
    /// All digits, without the sign and the point.
    pub mantissa: u64,
    /// Of ten.
    pub exponent: i32,
    /// Whether `mantissa` has all digits.
    pub is_exact: bool,
    /// Whether there is neither a point nor an exponent.
    pub is_integer: bool,
}

/// A string between its quotes.
pub struct Quoted<'a> {
    pub raw: &'a [u8],
    pub has_escapes: bool,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: if bytes.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 } }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn rewind(&mut self, position: usize) {
        self.at = position;
    }

    pub fn since(&self, position: usize) -> &'a [u8] {
        &self.bytes[position..self.at]
    }

    #[inline(always)]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline(always)]
    pub fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Skips whitespace, and `byte` if it follows. Returns whether it does.
    #[inline(always)]
    pub fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Skips `text` if it comes next.
    #[inline(always)]
    pub fn take_text(&mut self, text: &[u8]) -> bool {
        let found = self.bytes[self.at..].starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Checks that nothing but whitespace follows.
    pub fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.invalid("the end of the JSON text")) }
    }

    /// Skips whitespace and a colon.
    #[inline(always)]
    pub fn colon(&mut self) -> Result<()> {
        if self.take(b':') { Ok(()) } else { Err(self.invalid("':'")) }
    }

    /// Skips whitespace, and a comma or `close`. Returns whether it was the comma.
    #[inline(always)]
    pub fn comma(&mut self, close: u8) -> Result<bool> {
        if self.take(b',') {
            Ok(true)
        } else if self.take(close) {
            Ok(false)
        } else {
            Err(self.invalid(if close == b'}' { "',' or '}'" } else { "',' or ']'" }))
        }
    }

    /// The text is not JSON.
    #[cold]
    pub fn invalid(&self, expected: &str) -> Fault {
        Fault::new(format!("invalid JSON at byte {}: expected {expected}, found {}", self.at, self.found()))
    }

    /// The text is JSON, but of another type.
    #[cold]
    pub fn mismatch(&self, expected: &str) -> Fault {
        let words = ["true", "false", "null", "NaN", "Infinity", "+INF", "+Infinity"];
        let rest = &self.bytes[self.at..];
        match self.peek() {
            Some(b'"' | b'\'' | b'{' | b'[' | b'-' | b'0'..=b'9') => {}
            _ if words.iter().any(|word| rest.starts_with(word.as_bytes())) => {}
            _ => return self.invalid("a value"),
        }
        Fault::new(format!("expected {expected}, found {}", self.found()))
    }

    fn found(&self) -> String {
        let rest = &self.bytes[self.at..];
        let is_word = |word: &str| rest.starts_with(word.as_bytes());
        match rest.first() {
            None => "the end".into(),
            Some(b'"' | b'\'') => "a string".into(),
            Some(b'{') => "an object".into(),
            Some(b'[') => "an array".into(),
            Some(b'-' | b'0'..=b'9') => "a number".into(),
            Some(_) if is_word("true") || is_word("false") => "a boolean".into(),
            Some(_) if is_word("null") => "null".into(),
            Some(_) if ["NaN", "Infinity", "+INF", "+Infinity"].into_iter().any(is_word) => "a number".into(),
            Some(byte) if byte.is_ascii_graphic() => format!("'{}'", char::from(*byte)),
            Some(byte) => format!("the byte 0x{byte:02x}"),
        }
    }

    #[inline(always)]
    pub fn is_at_string(&self) -> bool {
        matches!(self.peek(), Some(b'"' | b'\''))
    }

    /// A string, from its first quote on.
    #[inline(always)]
    pub fn string(&mut self) -> Result<Quoted<'a>> {
        if self.peek() == Some(b'\'') {
            return self.single_quoted();
        }
        self.quoted_by::<b'"'>()
    }

    #[cold]
    fn single_quoted(&mut self) -> Result<Quoted<'a>> {
        self.quoted_by::<b'\''>()
    }

    #[inline(always)]
    fn quoted_by<const QUOTE: u8>(&mut self) -> Result<Quoted<'a>> {
        debug_assert_eq!(self.peek(), Some(QUOTE));
        let begin = self.at + 1;
        let mut at = begin;
        let mut has_escapes = false;
        loop {
            // Eight bytes at a time, up to one that needs a closer look. Single quotes are rare: JSON does not have them.
            while QUOTE == b'"'
                && let Some(chunk) = self.bytes.get(at..at + 8)
            {
                let special = special_bytes(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
                if special != 0 {
                    at += (special.trailing_zeros() / 8) as usize;
                    break;
                }
                at += 8;
            }
            match self.bytes.get(at) {
                Some(&byte) if byte == QUOTE => break,
                Some(b'\\') => {
                    has_escapes = true;
                    at += 2;
                }
                Some(0..0x20) => {
                    self.at = at;
                    return Err(self.invalid("a string without control characters"));
                }
                Some(_) => at += 1,
                None => {
                    self.at = self.bytes.len();
                    return Err(self.invalid("the end of a string"));
                }
            }
        }
        self.at = at + 1;
        Ok(Quoted { raw: &self.bytes[begin..at], has_escapes })
    }

    /// A number, from its first byte on.
    #[inline(always)]
    pub fn number(&mut self) -> Result<Number<'a>> {
        let begin = self.at;
        let is_negative = self.take_text(b"-");
        let mut number =
            Number { text: b"", is_negative, mantissa: 0, exponent: 0, is_exact: true, is_integer: true };
        let first = self.at;
        let digits = self.digits(&mut number);
        if digits == 0 || digits > 1 && self.bytes[first] == b'0' {
            self.at = first;
            return Err(self.invalid(if digits == 0 { "a digit" } else { "a number without leading zeros" }));
        }
        let mut all = digits;
        if self.peek() == Some(b'.') {
            self.at += 1;
            number.is_integer = false;
            let fraction = self.digits(&mut number);
            if fraction == 0 {
                return Err(self.invalid("a digit"));
            }
            number.exponent = -i32::try_from(fraction).unwrap_or(i32::MAX);
            all += fraction;
        }
        // 19 digits always fit.
        number.is_exact = all <= 19;
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            number.is_integer = false;
            self.exponent(&mut number)?;
        }
        number.text = &self.bytes[begin..self.at];
        Ok(number)
    }

    fn exponent(&mut self, number: &mut Number<'a>) -> Result<()> {
        let is_negative = self.take_text(b"-");
        if !is_negative {
            self.take_text(b"+");
        }
        let mut written =
            Number { text: b"", is_negative, mantissa: 0, exponent: 0, is_exact: true, is_integer: true };
        let digits = self.digits(&mut written);
        if digits == 0 {
            return Err(self.invalid("a digit"));
        }
        // Far from every limit, and far from an overflow.
        let size = if digits > 9 { 100_000_000 } else { written.mantissa.min(100_000_000) as i32 };
        number.exponent = number.exponent.saturating_add(if is_negative { -size } else { size });
        Ok(())
    }

    /// Skips digits and appends them to the mantissa. Returns how many there are.
    #[inline(always)]
    fn digits(&mut self, number: &mut Number<'a>) -> usize {
        let begin = self.at;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            number.mantissa = number.mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        self.at - begin
    }

    /// NaN, Infinity or -Infinity, if it comes next.
    pub fn non_finite(&mut self) -> Option<f64> {
        let words = [
            (&b"NaN"[..], f64::NAN),
            (b"Infinity", f64::INFINITY),
            (b"-Infinity", f64::NEG_INFINITY),
            (b"+Infinity", f64::INFINITY),
            (b"-INF", f64::NEG_INFINITY),
            (b"+INF", f64::INFINITY),
        ];
        words.iter().find(|(word, _)| self.take_text(word)).map(|(_, value)| *value)
    }

    /// Skips any value.
    pub fn skip_value(&mut self) -> Result<()> {
        self.skip_nested(0)
    }

    fn skip_nested(&mut self, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Fault::new(format!("values are nested deeper than {MAX_DEPTH} levels")));
        }
        self.skip_space();
        match self.peek() {
            Some(b'"' | b'\'') => {
                let quoted = self.string()?;
                if quoted.has_escapes { check_escapes(quoted.raw) } else { Ok(()) }
            }
            Some(b'{') => {
                self.at += 1;
                if self.take(b'}') {
                    return Ok(());
                }
                loop {
                    self.skip_space();
                    if !self.is_at_string() {
                        return Err(self.invalid("a name in quotes"));
                    }
                    let name = self.string()?;
                    if name.has_escapes {
                        check_escapes(name.raw)?;
                    }
                    self.colon()?;
                    self.skip_nested(depth + 1)?;
                    if !self.comma(b'}')? {
                        return Ok(());
                    }
                }
            }
            Some(b'[') => {
                self.at += 1;
                if self.take(b']') {
                    return Ok(());
                }
                loop {
                    self.skip_nested(depth + 1)?;
                    if !self.comma(b']')? {
                        return Ok(());
                    }
                }
            }
            Some(b't') if self.take_text(b"true") => Ok(()),
            Some(b'f') if self.take_text(b"false") => Ok(()),
            Some(b'n') if self.take_text(b"null") => Ok(()),
            Some(b'N' | b'I' | b'-' | b'+') if self.non_finite().is_some() => Ok(()),
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            _ => Err(self.invalid("a value")),
        }
    }
}

/// The highest bit of every byte that is a quote, a backslash or a control character. Bytes after the first such one may
/// be wrong.
#[inline(always)]
fn special_bytes(chunk: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zero_bytes = |value: u64| value.wrapping_sub(ONES) & !value & HIGH;
    let controls = chunk.wrapping_sub(ONES * 0x20) & !chunk & HIGH;
    controls | zero_bytes(chunk ^ (ONES * u64::from(b'"'))) | zero_bytes(chunk ^ (ONES * u64::from(b'\\')))
}

fn check_escapes(raw: &[u8]) -> Result<()> {
    unescape(raw, &mut Vec::new())
}

/// Appends the text of a string with escapes.
pub fn unescape(raw: &[u8], text: &mut Vec<u8>) -> Result<()> {
    let mut rest = raw;
    while let Some(plain) = rest.iter().position(|&byte| byte == b'\\') {
        text.extend_from_slice(&rest[..plain]);
        let (escape, after) = rest[plain + 1..].split_first().ok_or_else(|| invalid_escape("\\"))?;
        rest = after;
        text.push(match escape {
            b'"' | b'\'' | b'\\' | b'/' => *escape,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut code = hex4(&mut rest)?;
                if (0xD800..0xDC00).contains(&code) {
                    let low = match rest.strip_prefix(b"\\u") {
                        Some(after) => {
                            rest = after;
                            hex4(&mut rest)?
                        }
                        None => 0,
                    };
                    if !(0xDC00..0xE000).contains(&low) {
                        return Err(Fault::new("a string contains half of a surrogate pair"));
                    }
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                }
                let Some(character) = char::from_u32(code) else {
                    return Err(Fault::new("a string contains half of a surrogate pair"));
                };
                text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            other => return Err(invalid_escape(&format!("\\{}", other.escape_ascii()))),
        });
    }
    text.extend_from_slice(rest);
    Ok(())
}

fn hex4(rest: &mut &[u8]) -> Result<u32> {
    let digits = rest.get(..4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    let digits = digits.ok_or_else(|| invalid_escape("\\u"))?;
    *rest = &rest[4..];
    Ok(digits.iter().fold(0, |code, &digit| code * 16 + char::from(digit).to_digit(16).unwrap_or(0)))
}

#[cold]
fn invalid_escape(escape: &str) -> Fault {
    Fault::new(format!("invalid JSON: a string contains the invalid escape {escape}"))
}
