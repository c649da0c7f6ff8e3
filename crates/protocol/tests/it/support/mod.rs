//! The vectors in `fixtures/miop`, and a reader that takes frames from a buffer as a connection does.
#![allow(unreachable_pub)]

pub mod fuzz;
pub mod meaning;
pub mod model;
pub mod mutate;

use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use tidings_protocol::{
    limits::FRAME_BYTES_MAX,
    miop::{Frame, MiopError, decode, take_head},
};

/// One vector, as `fixtures/miop/README.md` describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    pub name: String,
    hex: String,
    payload_max: Option<usize>,
    kind: Option<String>,
    fields: Option<Value>,
    canonical: Option<bool>,
    error: Option<String>,
    #[serde(default)]
    incomplete: bool,
    why: Option<String>,
}

/// The outcome that a vector states for its bytes.
#[derive(Debug)]
pub enum Expected<'a> {
    Frame { kind: &'a str, fields: &'a Value, canonical: bool },
    Error(&'a str),
    Incomplete,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Theme {
    about: String,
    vectors: Vec<Vector>,
}

impl Vector {
    pub fn bytes(&self) -> Vec<u8> {
        bytes_of_hex(&self.hex)
    }

    pub fn payload_max(&self) -> usize {
        self.payload_max.unwrap_or(FRAME_BYTES_MAX)
    }

    /// The one stated outcome; panics if the vector states none, several, or superfluous fields.
    pub fn expected(&self) -> Expected<'_> {
        let name = &self.name;
        match (&self.kind, &self.fields, self.canonical, &self.error, self.incomplete, &self.why) {
            (Some(kind), Some(fields), Some(canonical), None, false, why) => {
                assert_eq!(canonical, why.is_none(), "{name}: says why exactly when it is not canonical");
                Expected::Frame { kind, fields, canonical }
            }
            (None, None, None, Some(code), false, Some(_)) => Expected::Error(code),
            (None, None, None, None, true, Some(_)) => Expected::Incomplete,
            _ => panic!("{name}: not a vector"),
        }
    }
}

/// All vectors by file, in the order of the files' names.
pub fn themes() -> Vec<(String, Vec<Vector>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/miop");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let theme: Theme = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!theme.about.is_empty(), "{}: about what?", path.display());
        (path.file_stem().unwrap().to_string_lossy().into_owned(), theme.vectors)
    };
    files.into_iter().map(read).collect()
}

pub fn vectors() -> Vec<Vector> {
    themes().into_iter().flat_map(|(_, vectors)| vectors).collect()
}

/// The bytes of all valid vectors, by name.
pub fn valid() -> Vec<(String, Vec<u8>)> {
    let mut vectors = vectors();
    vectors.retain(|vector| matches!(vector.expected(), Expected::Frame { .. }));
    vectors.into_iter().map(|vector| (vector.name.clone(), vector.bytes())).collect()
}

/// The first frame of `bytes` and where it ends.
pub fn read(bytes: &[u8], payload_max: usize) -> Result<Option<(Frame<'_>, usize)>, MiopError> {
    let Some(head) = take_head(bytes, payload_max)? else { return Ok(None) };
    let end = head.payload.end;
    decode(head.kind, &bytes[head.payload]).map(|frame| Some((frame, end)))
}

pub fn bytes_of_hex(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2) && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{hex}");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

pub fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
