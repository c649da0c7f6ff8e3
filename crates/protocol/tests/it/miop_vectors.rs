//! Runs the test vectors that other implementations run, and checks properties of all frames.

use crate::support::{Expected, hex_of, meaning, read, themes, valid, vectors};
use std::collections::{BTreeMap, BTreeSet};
use tidings_protocol::{
    limits::FRAME_BYTES_MAX,
    miop::{Frame, kind},
};

#[test]
fn every_vector_decodes_as_stated() {
    for (file, vectors) in themes() {
        for vector in vectors {
            let (name, bytes) = (format!("{file}: {}", vector.name), vector.bytes());
            let result = read(&bytes, vector.payload_max());
            match (vector.expected(), result) {
                (Expected::Frame { kind, fields, .. }, Ok(Some((frame, end)))) => {
                    assert_eq!(end, bytes.len(), "{name}: the frame's end");
                    assert_eq!(meaning::of(&frame), (kind_name(kind), fields.clone()), "{name}");
                }
                (Expected::Error(code), Err(error)) => assert_eq!(error.code().as_str(), code, "{name}: {error}"),
                (Expected::Incomplete, Ok(None)) => {}
                (expected, result) => panic!("{name}: expected {expected:?}, got {result:?}"),
            }
        }
    }
}

/// The `'static` name of a kind, for comparison with those of frames.
fn kind_name(name: &str) -> &'static str {
    let names = ["heartbeat", "bind", "bound", "push", "ack", "chat", "unbind", "redirect", "error", "skip"];
    names.into_iter().find(|known| *known == name).unwrap_or_else(|| panic!("no kind {name:?}"))
}

#[test]
fn encoding_gives_the_canonical_bytes() {
    for vector in vectors() {
        let Expected::Frame { kind, fields, canonical } = vector.expected() else { continue };
        if kind == "skip" {
            continue;
        }
        let written = meaning::write(kind, fields);
        assert_eq!(written == vector.bytes(), canonical, "{}: written as {}", vector.name, hex_of(&written));
        let (frame, end) = read(&written, FRAME_BYTES_MAX).unwrap().unwrap();
        assert_eq!(end, written.len(), "{}", vector.name);
        assert_eq!(meaning::of(&frame).1, *fields, "{}", vector.name);
    }
}

#[test]
fn a_frame_cut_anywhere_is_incomplete() {
    for (name, bytes) in valid() {
        for cut in 0..bytes.len() {
            let result = read(&bytes[..cut], FRAME_BYTES_MAX);
            assert!(matches!(result, Ok(None)), "{name} cut at {cut}: {result:?}");
        }
    }
}

#[test]
fn consecutive_frames_in_one_buffer_are_read_in_turn() {
    let valid = valid();
    let bytes: Vec<u8> = valid.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let mut rest = &bytes[..];
    for (name, alone) in &valid {
        let (frame, end) = read(rest, FRAME_BYTES_MAX).unwrap().unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(frame, read(alone, FRAME_BYTES_MAX).unwrap().unwrap().0, "{name}");
        rest = &rest[end..];
    }
    assert!(rest.is_empty());
    assert!(read(rest, FRAME_BYTES_MAX).unwrap().is_none());
}

#[test]
fn an_error_is_seen_by_the_last_byte_and_persists() {
    for vector in vectors() {
        let Expected::Error(code) = vector.expected() else { continue };
        let mut bytes = vector.bytes();
        let seen = (0..=bytes.len()).find(|cut| read(&bytes[..*cut], vector.payload_max()).is_err());
        let seen = seen.unwrap_or_else(|| panic!("{}: no error", vector.name));
        for more in [0x00, 0x01, 0x80, 0xff] {
            bytes.truncate(seen);
            bytes.extend([more; 32]);
            let error = read(&bytes, vector.payload_max()).unwrap_err();
            assert_eq!(error.code().as_str(), code, "{} followed by {more:#04x}", vector.name);
        }
    }
}

/// A new kind, error or file needs vectors.
#[test]
fn every_kind_and_error_has_a_vector() {
    let mut by_kind: BTreeMap<u8, [usize; 2]> = BTreeMap::new();
    let mut codes = BTreeSet::new();
    let mut names = BTreeSet::new();
    let (mut total, mut incomplete) = (0, 0);
    for (file, vectors) in themes() {
        assert!(!vectors.is_empty(), "{file} has no vector");
        for vector in vectors {
            total += 1;
            assert!(names.insert(vector.name.clone()), "two vectors are called {:?}", vector.name);
            let kind = vector.bytes().first().copied();
            match (vector.expected(), kind) {
                (Expected::Frame { .. }, Some(kind)) => by_kind.entry(kind).or_default()[0] += 1,
                (Expected::Error(code), Some(kind)) => {
                    by_kind.entry(kind).or_default()[1] += 1;
                    codes.insert(code.to_owned());
                }
                _ => incomplete += 1,
            }
        }
    }
    for kind in kind::ALL {
        let [valid, refused] = by_kind.get(&kind).copied().unwrap_or_default();
        // This codec does not read the JSON of a chat frame; only its length can be wrong.
        assert!(valid > 0 && refused > 0, "kind {kind:#04x} has {valid} valid and {refused} invalid vectors");
    }
    assert!(by_kind.keys().any(|kind| *kind >= 0x80), "no optional kind is skipped");
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), ["limit_exceeded", "malformed"]);
    assert!(incomplete > 0);
    println!("{total} vectors");
}

#[test]
fn an_unknown_optional_frame_is_skipped_only_when_complete() {
    let bytes = [0x80, 3, b'a', b'b', b'c', 0x01, 0x00];
    assert!(read(&bytes[..4], FRAME_BYTES_MAX).unwrap().is_none());
    let (frame, end) = read(&bytes, FRAME_BYTES_MAX).unwrap().unwrap();
    assert_eq!((frame, end), (Frame::Skipped { kind: 0x80 }, 5));
    let (frame, _) = read(&bytes[end..], FRAME_BYTES_MAX).unwrap().unwrap();
    assert_eq!(frame, Frame::Heartbeat { interval_s: None });
}

/// The worked examples of `docs/miop.md`: each block names its vector, and each line begins with the bytes.
#[test]
fn the_specifications_examples_are_vectors() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/miop.md");
    let text = std::fs::read_to_string(path).unwrap();
    let vectors = vectors();
    let mut kinds = BTreeSet::new();
    for block in text.split("```hex ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let (lines, _) = rest.split_once("```").unwrap();
        let is_byte = |word: &&str| word.len() == 2 && word.bytes().all(|b| b.is_ascii_hexdigit());
        let hex: String = lines
            .lines()
            .flat_map(|line| line.split("  ").next().unwrap_or_default().split(' ').take_while(is_byte))
            .collect();
        let vector = vectors.iter().find(|vector| vector.name == name).unwrap_or_else(|| panic!("no vector {name:?}"));
        assert_eq!(hex, hex_of(&vector.bytes()), "{name}");
        kinds.insert(vector.bytes()[0]);
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), kind::ALL, "an example of every kind");
}
