//! A reference decoder, written from the tables of `docs/miop.md` and its appendix A alone: slow, with
//! copies, and no code in common with the real one. Where the two differ, one of them or the text is wrong.

use std::collections::BTreeMap;

/// A field's type, with its limit.
#[derive(Clone, Copy)]
enum Type {
    Number,
    Flag,
    Numbers(usize),
    Text(usize),
    Bytes,
}
use Type::*;

const REQUIRED: bool = true;
const OPTIONAL: bool = false;
const ANY: usize = usize::MAX;

/// Tag, type, presence.
type Row = (u8, Type, bool);

/// The tables of section 4; `None`: an unknown kind.
fn table(kind: u8) -> Option<&'static [Row]> {
    Some(match kind {
        0x01 => &[(1, Number, OPTIONAL)],
        0x02 => &[
            (1, Number, REQUIRED),
            (2, Text(ANY), REQUIRED),
            (3, Text(64), REQUIRED),
            (4, Text(32), OPTIONAL),
            (5, Text(32), OPTIONAL),
            (6, Text(512), OPTIONAL),
            (7, Number, OPTIONAL),
            (8, Number, OPTIONAL),
        ],
        0x03 => &[
            (1, Number, REQUIRED),
            (2, Text(64), REQUIRED),
            (3, Text(64), REQUIRED),
            (4, Number, REQUIRED),
            (5, Number, REQUIRED),
            (6, Text(512), OPTIONAL),
            (7, Bytes, OPTIONAL),
            (8, Flag, OPTIONAL),
        ],
        0x04 => &[
            (1, Number, REQUIRED),
            (2, Number, REQUIRED),
            (3, Text(64), OPTIONAL),
            (4, Number, OPTIONAL),
            (5, Text(32), REQUIRED),
            (6, Bytes, REQUIRED),
        ],
        0x05 => &[(1, Numbers(1_000), REQUIRED)],
        0x07 => &[(1, Text(512), OPTIONAL)],
        0x08 => &[(1, Text(512), OPTIONAL), (2, Number, REQUIRED)],
        0x09 => &[
            (1, Text(64), REQUIRED),
            (2, Text(ANY), REQUIRED),
            (3, Flag, OPTIONAL),
            (4, Number, OPTIONAL),
            (5, Flag, OPTIONAL),
        ],
        _ => return None,
    })
}

const MALFORMED: &str = "malformed";
const LIMIT_EXCEEDED: &str = "limit_exceeded";

/// A frame as this decoder reads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    /// Where the frame ends.
    pub end: usize,
    /// The canonical bytes of the same meaning; `None` for a kind that is skipped.
    pub canonical: Option<Vec<u8>>,
}

/// The first frame of `bytes`, or the code with which it is refused.
pub fn read(bytes: &[u8], limit: usize) -> Result<Option<Read>, &'static str> {
    let Some(&kind) = bytes.first() else { return Ok(None) };
    if kind < 0x80 && !(1..=9).contains(&kind) {
        return Err(MALFORMED);
    }
    let mut length = 0;
    for i in 0..4 {
        let Some(&b) = bytes.get(1 + i) else { return Ok(None) };
        length += usize::from(b % 0x80) * 128_usize.pow(i as u32);
        if b < 0x80 {
            if b == 0 && i > 0 {
                return Err(MALFORMED);
            }
            if length > limit {
                return Err(LIMIT_EXCEEDED);
            }
            let Some(payload) = bytes.get(2 + i..2 + i + length) else { return Ok(None) };
            let end = 2 + i + length;
            return Ok(Some(Read { end, canonical: read_payload(kind, payload)? }));
        }
    }
    Err(LIMIT_EXCEEDED)
}

fn read_payload(kind: u8, mut payload: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    if kind >= 0x80 {
        return Ok(None);
    }
    let Some(table) = table(kind) else { return Ok(Some(frame(kind, payload))) };
    let mut seen = BTreeMap::new();
    while !payload.is_empty() {
        let tag = payload[0];
        let (size, used) = read_number(&payload[1..])?.ok_or(MALFORMED)?;
        let rest = &payload[1 + used..];
        if size > rest.len() as u64 {
            return Err(MALFORMED);
        }
        let (value, rest) = rest.split_at(size as usize);
        match table.iter().find(|(known, ..)| *known == tag) {
            Some((_, kind, _)) => {
                let value = check(*kind, value)?;
                if seen.insert(tag, value).is_some() {
                    return Err(MALFORMED);
                }
            }
            None if tag >= 0x80 => return Err(MALFORMED),
            None => {}
        }
        payload = rest;
    }
    if table.iter().any(|(tag, _, presence)| *presence == REQUIRED && !seen.contains_key(tag)) {
        return Err(MALFORMED);
    }
    if matches!(kind, 0x02 | 0x03) && seen[&1] == [0] {
        return Err(MALFORMED);
    }
    // A push's priority is left out when it is 0; an error's flags are always present.
    if kind == 0x04 && seen.get(&4).is_some_and(|priority| priority == &[0]) {
        seen.remove(&4);
    }
    for (tag, ..) in table.iter().filter(|(_, row, _)| kind == 0x09 && matches!(row, Flag)) {
        seen.entry(*tag).or_insert_with(|| vec![0]);
    }
    let fields: Vec<u8> = seen.into_iter().flat_map(|(tag, value)| frame(tag, &value)).collect();
    Ok(Some(frame(kind, &fields)))
}

/// The value in its canonical form.
fn check(kind: Type, value: &[u8]) -> Result<Vec<u8>, &'static str> {
    match kind {
        Bytes => {}
        Text(limit) if value.len() > limit => return Err(LIMIT_EXCEEDED),
        Text(_) => {
            String::from_utf8(value.to_vec()).map_err(|_| MALFORMED)?;
        }
        Number | Flag => {
            let (number, used) = read_number(value)?.ok_or(MALFORMED)?;
            if used != value.len() {
                return Err(MALFORMED);
            }
            if matches!(kind, Flag) {
                return Ok(vec![u8::from(number != 0)]);
            }
        }
        Numbers(limit) => {
            let (mut at, mut count) = (0, 0);
            while at < value.len() {
                at += read_number(&value[at..])?.ok_or(MALFORMED)?.1;
                count += 1;
                if count > limit {
                    return Err(LIMIT_EXCEEDED);
                }
            }
        }
    }
    Ok(value.to_vec())
}

/// A number and its length in bytes; `None`: the number is cut short.
fn read_number(bytes: &[u8]) -> Result<Option<(u64, usize)>, &'static str> {
    let mut number = 0_u128;
    for i in 0..10 {
        let Some(&b) = bytes.get(i) else { return Ok(None) };
        number += u128::from(b % 0x80) * 128_u128.pow(i as u32);
        if i > 0 && b == 0 || i == 9 && b > 1 {
            return Err(MALFORMED);
        }
        if b < 0x80 {
            return Ok(Some((u64::try_from(number).map_err(|_| MALFORMED)?, i + 1)));
        }
    }
    Err(MALFORMED)
}

/// Encodes a first byte, a length and the rest: frames and fields have the same form.
fn frame(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut length = rest.len();
    while length > 127 {
        bytes.push((length % 128) as u8 + 128);
        length /= 128;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(rest);
    bytes
}
