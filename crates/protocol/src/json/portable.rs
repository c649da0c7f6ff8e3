//! JSON that every client's parser reads.
//!
//! Bodies are handed on as they were written, to clients in many languages. The grammar of JSON allows two things at which some of
//! their parsers fail, and with them a whole page of history, on each resume again: a `\u` escape of half a surrogate pair, which is
//! no character, and a number that no 64-bit floating-point number comes near. RFC 7493 (I-JSON) rules both out.

use crate::depth::end_of_string;
use memchr::memchr;

/// The longest number, in characters: Jackson refuses longer ones.
const NUMBER_CHARS_MAX: usize = 1_000;
/// A number without an exponent of three digits is out of range only with this many digits in a row, or more.
const DIGITS_SUSPECTED: usize = 200;

/// A place in JSON text at which some parsers fail.
pub(super) struct Unportable {
    /// The offset of the escape or the number, in bytes.
    pub at: usize,
    pub why: String,
}

/// The first such place in a valid JSON text. Nothing is allocated if there is none, and a text without backslashes and long
/// numbers is looked through by comparisons that the compiler vectorises.
pub(super) fn find_unportable(json: &[u8]) -> Option<Unportable> {
    half_of_pair(json).or_else(|| may_hold_large_number(json).then(|| large_number(json)).flatten())
}

/// In JSON, backslashes stand in strings alone.
fn half_of_pair(json: &[u8]) -> Option<Unportable> {
    let mut at = 0;
    while let Some(ahead) = json.get(at..).and_then(|rest| memchr(b'\\', rest)) {
        at += ahead;
        at += match (utf16_unit(json, at), utf16_unit(json, at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                let escape = String::from_utf8_lossy(json.get(at..at + 6).unwrap_or_default());
                let why = format!("holds {escape}, half of a surrogate pair, which is not a character");
                return Some(Unportable { at, why });
            }
            _ => 2,
        };
    }
    None
}

/// The number of an escape `\uXXXX`.
fn utf16_unit(json: &[u8], at: usize) -> Option<u32> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
}

fn may_hold_large_number(json: &[u8]) -> bool {
    let is_in_long_run = |at: usize| {
        let digits = |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let before = json[..at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        before + digits(&json[at..]) >= DIGITS_SUSPECTED
    };
    // A run of that many digits has one of them at each such step.
    holds_long_exponent(json)
        || (DIGITS_SUSPECTED - 1..json.len())
            .step_by(DIGITS_SUSPECTED)
            .any(|at| json[at].is_ascii_digit() && is_in_long_run(at))
}

/// Whether `e` and two digits, or a sign and a digit, follow a digit anywhere; also in strings: a false alarm costs a second pass. Without
/// a branch in the loop and with a result of one byte the compiler does many places at once.
fn holds_long_exponent(json: &[u8]) -> bool {
    let places = json.len().saturating_sub(3);
    let [digit, e, next, last] = std::array::from_fn(|ahead| json.get(ahead..ahead + places).unwrap_or_default());
    let mut found = 0_u8;
    for (((digit, e), next), last) in digit.iter().zip(e).zip(next).zip(last) {
        let is_exponent = digit.is_ascii_digit()
            & (e | 0x20 == b'e')
            & (next.is_ascii_digit() | (*next == b'+'))
            & last.is_ascii_digit();
        found |= u8::from(is_exponent);
    }
    found != 0
}

fn large_number(json: &[u8]) -> Option<Unportable> {
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = end_of_string(json, at) + 1,
            b'-' | b'0'..=b'9' => {
                let is_of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let length = json[at..].iter().take_while(is_of_number).count();
                let number = std::str::from_utf8(&json[at..at + length]).unwrap_or_default();
                if number.parse::<f64>().is_ok_and(f64::is_infinite) {
                    let why = "holds a number beyond the range of 64-bit floating point; send it as a string";
                    return Some(Unportable { at, why: why.into() });
                }
                if length > NUMBER_CHARS_MAX {
                    let why = format!("holds a number of more than {NUMBER_CHARS_MAX} characters; send it as a string");
                    return Some(Unportable { at, why });
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}

/// The path of the value at an offset of a valid JSON text, as `a.b[1]`; of the object whose field has the offset in its name.
#[cold]
pub(super) fn path_at(json: &[u8], offset: usize) -> String {
    enum Step<'a> {
        Element(usize),
        Field(Option<&'a [u8]>),
    }

    let mut steps = Vec::new();
    let mut at = 0;
    while at < offset
        && let Some(byte) = json.get(at)
    {
        match (byte, steps.last_mut()) {
            (b'[', _) => steps.push(Step::Element(0)),
            (b'{', _) => steps.push(Step::Field(None)),
            (b']' | b'}', _) => drop(steps.pop()),
            (b',', Some(Step::Element(index))) => *index += 1,
            (b',', Some(Step::Field(name))) => *name = None,
            (b'"', step) => {
                let end = end_of_string(json, at);
                if let Some(Step::Field(name @ None)) = step
                    && end < offset
                {
                    *name = json.get(at + 1..end);
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for step in &steps {
        match step {
            Step::Element(index) => path += &format!("[{index}]"),
            Step::Field(Some(name)) => {
                path += if path.is_empty() { "" } else { "." };
                path += &String::from_utf8_lossy(name);
            }
            Step::Field(None) => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, path: Option<&str>) {
        let found = find_unportable(json.as_bytes()).map(|found| path_at(json.as_bytes(), found.at));
        assert_eq!(found.as_deref(), path, "{json}");
    }

    #[test]
    fn half_of_a_surrogate_pair_is_found_with_its_path() {
        for whole in
            [r#""\ud83d\ude00""#, r#"{"\uD83D\uDE00":"\\ud83d"}"#, r#""\u0000\uffff\ue000\ud7ff""#, r#""\\\\ud83d""#]
        {
            check(whole, None);
        }
        check(r#""\ud83d""#, Some(""));
        check(r#"["\ude00"]"#, Some("[0]"));
        check(r#"{"a":"x","b":[1,{"c":"\ud83d\ud83d\ude00"}]}"#, Some("b[1].c"));
        check(r#"{"a":{"b":{"x":1},"c":["\ud83d\ude00","\ud83dude00"]}}"#, Some("a.c[1]"));
        check(r#"{"a":{"\ud83d":1}}"#, Some("a"));
        check(r#"{"a":"\\\ud83d"}"#, Some("a"));
        check(r#"{"a,\"":"\ud83d"}"#, Some("a,\\\""));
    }

    #[test]
    fn a_number_that_is_out_of_range_is_found_with_its_path() {
        let digits = "1".repeat(308);
        for near in [
            "1e308",
            "-1.7976931348623157e+308",
            "1e-400",
            "0e400",
            "0.0E+999",
            "9007199254740993",
            r#"{"a":"1e400","1e999":[]}"#,
        ] {
            check(near, None);
        }
        check(&format!("[{digits},0.{}]", "3".repeat(900)), None);
        check("1e400", Some(""));
        check("[0,-1E+400]", Some("[1]"));
        check(r#"{"uuid":"3e45","a":[{"b":1.5e309}]}"#, Some("a[0].b"));
        check(&format!(r#"{{"a":{digits}11}}"#), Some("a"));
        check(&format!(r#"{{"a":{}e99}}"#, &digits[..250]), Some("a"));
        check(&format!("[0.{}]", "3".repeat(1_000)), Some("[0]"));
    }
}
