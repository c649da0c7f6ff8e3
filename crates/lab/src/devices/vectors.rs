//! Bytes that no device may send, with the code that they are refused with: a few of the lab's own, and the vectors
//! that the protocol's text comes with.

use crate::LabError;
use serde::Deserialize;
use std::path::Path;
use tidings_protocol::{
    limits::FRAME_BYTES_MAX,
    miop::{Frame, kind, put_head, put_number},
};

#[derive(Debug, Clone)]
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// `None`: any refusal will do.
    pub(crate) code: Option<String>,
    /// Sent by a device that has bound; else it is the first thing that is said.
    pub(crate) bound_first: bool,
}

/// A vector as its file has it; what else is there is for others.
#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(alias = "bytes")]
    hex: String,
    #[serde(default)]
    valid: Option<bool>,
    #[serde(default, alias = "error")]
    code: Option<String>,
    /// A limit that holds before the bind alone.
    #[serde(default)]
    payload_max: Option<u64>,
}

pub(crate) fn all(folder: &Path) -> Result<Vec<Vector>, LabError> {
    let mut vectors = own();
    let Ok(files) = std::fs::read_dir(folder) else { return Ok(vectors) };
    for file in files {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let bad = |what: &str| LabError::Usage(format!("{}: {what}", path.display()));
        let text = std::fs::read(&path)?;
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(&error.to_string()))?;
        let list = value.as_array().or_else(|| value["vectors"].as_array()).cloned().unwrap_or_default();
        for one in list {
            let Ok(written) = serde_json::from_value::<Written>(one) else { continue };
            if written.valid == Some(false) || (written.valid.is_none() && written.code.is_some()) {
                let bytes = unhex(&written.hex).ok_or_else(|| bad(&format!("{}: not hex", written.name)))?;
                // A whole frame of another kind than bind is judged once the device is bound.
                let bound_first = bytes.first() != Some(&BIND) && written.payload_max.is_none();
                // What only servers send is refused by its kind, whatever is in it.
                let of_servers = bytes.first().is_some_and(|kind| SERVERS_KINDS.contains(kind));
                let code = if of_servers { Some("malformed".into()) } else { written.code };
                vectors.push(Vector { name: written.name, bytes, code, bound_first });
            }
        }
    }
    Ok(vectors)
}

const BIND: u8 = kind::BIND;
const SERVERS_KINDS: [u8; 4] = [kind::BOUND, kind::PUSH, kind::REDIRECT, kind::ERROR];

fn own() -> Vec<Vector> {
    let vector = |name: &str, bytes: Vec<u8>, code: &str, bound_first| Vector {
        name: name.into(),
        bytes,
        code: Some(code.into()),
        bound_first,
    };
    let mut too_long = Vec::new();
    put_head(&mut too_long, BIND, FRAME_BYTES_MAX + 1);
    let field = |tag: u8, value: &[u8]| {
        let mut field = vec![tag];
        put_number(&mut field, value.len() as u64);
        field.extend_from_slice(value);
        field
    };
    let frame = |kind: u8, payload: Vec<u8>| {
        let mut bytes = Vec::new();
        put_head(&mut bytes, kind, payload.len());
        bytes.extend(payload);
        bytes
    };
    let stranger = super::caller::bind("no.such.token", "d");
    vec![
        vector("an unknown kind", vec![0x3f, 0], "malformed", true),
        vector("a length of five bytes", vec![BIND, 0xff, 0xff, 0xff, 0xff, 0x01], "limit_exceeded", false),
        vector("a payload over the limit", too_long, "limit_exceeded", false),
        vector("a length that is not the shortest", vec![BIND, 0x81, 0x00, 0x00], "malformed", false),
        vector("a field cut short", frame(BIND, vec![1, 9, 1]), "malformed", false),
        vector("a bind without a token", frame(BIND, field(1, &[1])), "malformed", false),
        vector("a field twice", frame(BIND, [field(1, &[1]), field(1, &[1])].concat()), "malformed", false),
        vector("an unknown critical field", frame(0x01, field(0x90, b"x")), "malformed", true),
        vector(
            "a token that is no text",
            frame(BIND, [field(1, &[1]), field(2, &[0xff])].concat()),
            "malformed",
            false,
        ),
        vector("a token of a stranger", stranger, "unauthorized", false),
        vector("a heartbeat before the bind", vec![0x01, 0], "not_bound", false),
        vector("an acknowledgement before the bind", Frame::Ack { pushes: vec![1] }.to_bytes(), "not_bound", false),
    ]
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    digits.len().is_multiple_of(2).then(|| pairs.collect::<Option<Vec<u8>>>())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn vectors_come_from_files_and_valid_ones_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"vectors": [
            {"name": "good", "hex": "0100", "valid": true},
            {"name": "bad", "hex": "3f 00", "valid": false, "code": "malformed"}]}"#;
        std::fs::write(folder.path().join("frames.json"), text).unwrap();
        let read = all(folder.path()).unwrap();
        let last = read.last().unwrap();
        assert_eq!(read.len(), own().len() + 1);
        assert_eq!(
            (last.name.as_str(), &last.bytes[..], last.code.as_deref()),
            ("bad", &[0x3f, 0][..], Some("malformed"))
        );
    }
}
