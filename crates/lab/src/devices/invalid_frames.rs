//! Invalid frames, with the code by which each must be refused: some of the lab's own, and the test vectors of the
//! protocol.

use crate::LabError;
use serde::Deserialize;
use std::path::Path;
use tidings_protocol::{
    limits::FRAME_BYTES_MAX,
    miop::{Frame, kind, put_head, put_number},
};

/// The folder of the protocol's test vectors, relative to the repository.
pub(crate) const VECTORS: &str = "fixtures/miop";

#[derive(Debug, Clone)]
pub(crate) struct InvalidFrame {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// `None`: any refusal is right.
    pub(crate) code: Option<String>,
    /// Whether the device binds before it sends the frame.
    pub(crate) bound_first: bool,
}

/// The fields of a test vector that are needed here.
#[derive(Deserialize)]
struct VectorFile {
    name: String,
    #[serde(alias = "bytes")]
    hex: String,
    #[serde(default)]
    valid: Option<bool>,
    #[serde(default, alias = "error")]
    code: Option<String>,
    /// A limit that holds only before the bind.
    #[serde(default)]
    payload_max: Option<u64>,
}

pub(crate) fn load_all(folder: &Path) -> Result<Vec<InvalidFrame>, LabError> {
    let mut vectors = own_frames();
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
            let Ok(vector) = serde_json::from_value::<VectorFile>(one) else { continue };
            if vector.valid == Some(false) || (vector.valid.is_none() && vector.code.is_some()) {
                let bytes = unhex(&vector.hex).ok_or_else(|| bad(&format!("{}: not hex", vector.name)))?;
                // A frame of another kind than bind is sent after the bind.
                let bound_first = bytes.first() != Some(&BIND) && vector.payload_max.is_none();
                // A frame that only servers send is refused for its kind, whatever it contains.
                let of_servers = bytes.first().is_some_and(|kind| SERVERS_KINDS.contains(kind));
                let code = if of_servers { Some("malformed".into()) } else { vector.code };
                vectors.push(InvalidFrame { name: vector.name, bytes, code, bound_first });
            }
        }
    }
    Ok(vectors)
}

const BIND: u8 = kind::BIND;
const SERVERS_KINDS: [u8; 4] = [kind::BOUND, kind::PUSH, kind::REDIRECT, kind::ERROR];

fn own_frames() -> Vec<InvalidFrame> {
    let vector = |name: &str, bytes: Vec<u8>, code: &str, bound_first| InvalidFrame {
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
    let unsigned = super::raw_connection::bind_frame("no.such.token", "d");
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
            "a token that is not text",
            frame(BIND, [field(1, &[1]), field(2, &[0xff])].concat()),
            "malformed",
            false,
        ),
        vector("a token of a stranger", unsigned, "unauthorized", false),
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
    fn only_invalid_test_vectors_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"vectors": [
            {"name": "good", "hex": "0100", "valid": true},
            {"name": "bad", "hex": "3f 00", "valid": false, "code": "malformed"}]}"#;
        std::fs::write(folder.path().join("frames.json"), text).unwrap();
        let read = load_all(folder.path()).unwrap();
        let last = read.last().unwrap();
        assert_eq!(read.len(), own_frames().len() + 1);
        assert_eq!(
            (last.name.as_str(), &last.bytes[..], last.code.as_deref()),
            ("bad", &[0x3f, 0][..], Some("malformed"))
        );
    }
}
