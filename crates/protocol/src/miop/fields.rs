//! Numbers and fields, the two things that payloads are made of.

use super::{CRITICAL, MiopError, put_number};
use crate::limits::ACKS_PER_FRAME_MAX;

/// The number at the start of `bytes` and the bytes after it; `None` when the number is cut short.
pub(super) fn take_number(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, MiopError> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit; a last byte of zero says that fewer bytes would do.
        if at == 9 && *byte > 1 || at > 0 && *byte == 0 {
            return Err(MiopError::BadNumber);
        }
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, &bytes[at + 1..])));
        }
    }
    Ok(None)
}

/// A field's value that is one number.
pub(super) fn number(value: &[u8]) -> Result<u64, MiopError> {
    match take_number(value)? {
        Some((number, [])) => Ok(number),
        _ => Err(MiopError::BadNumber),
    }
}

pub(super) fn numbers(mut value: &[u8]) -> Result<Vec<u64>, MiopError> {
    let mut list = Vec::new();
    while !value.is_empty() {
        let (number, rest) = take_number(value)?.ok_or(MiopError::CutField)?;
        if list.len() == ACKS_PER_FRAME_MAX {
            let (limit, got) = (ACKS_PER_FRAME_MAX as u64, ACKS_PER_FRAME_MAX as u64 + 1);
            return Err(MiopError::OverLimit { name: "pushes in one ack", limit, got });
        }
        list.push(number);
        value = rest;
    }
    Ok(list)
}

pub(super) fn text<'a>(name: &'static str, value: &'a [u8], limit: usize) -> Result<&'a str, MiopError> {
    if value.len() > limit {
        return Err(MiopError::OverLimit { name, limit: limit as u64, got: value.len() as u64 });
    }
    std::str::from_utf8(value).map_err(|_| MiopError::NotText(name))
}

pub(super) fn each_field<'a>(
    mut payload: &'a [u8],
    mut field: impl FnMut(u8, &'a [u8]) -> Result<(), MiopError>,
) -> Result<(), MiopError> {
    while let Some((&tag, rest)) = payload.split_first() {
        let (length, rest) = take_number(rest)?.ok_or(MiopError::CutField)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= rest.len()).ok_or(MiopError::CutField)?;
        let (value, rest) = rest.split_at(length);
        field(tag, value)?;
        payload = rest;
    }
    Ok(())
}

pub(super) fn set<T>(place: &mut Option<T>, tag: u8, value: T) -> Result<(), MiopError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(MiopError::RepeatedField(tag)),
    }
}

pub(super) fn unknown(tag: u8) -> Result<(), MiopError> {
    if tag & CRITICAL == 0 { Ok(()) } else { Err(MiopError::UnknownField(tag)) }
}

pub(super) fn put_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    put_number(out, value.len() as u64);
    out.extend_from_slice(value);
}

pub(super) fn put_number_field(out: &mut Vec<u8>, tag: u8, number: u64) {
    let mut value = Vec::with_capacity(10);
    put_number(&mut value, number);
    put_field(out, tag, &value);
}

pub(super) fn put_optional(out: &mut Vec<u8>, tag: u8, text: Option<&str>) {
    if let Some(text) = text {
        put_field(out, tag, text.as_bytes());
    }
}

pub(super) fn put_optional_number(out: &mut Vec<u8>, tag: u8, number: Option<u64>) {
    if let Some(number) = number {
        put_number_field(out, tag, number);
    }
}
