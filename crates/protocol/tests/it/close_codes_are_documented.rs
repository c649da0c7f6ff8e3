//! `docs/websocket.md` says what a client does with every close code.

use std::collections::BTreeMap;
use tidings_protocol::{
    error::ErrorCode,
    ws::{FrameError, NORMAL, UNSUPPORTED_DATA},
};

/// The rows of the table by close code: the error code, if there is one, and what the client does.
fn table() -> BTreeMap<u16, (Option<String>, String)> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/websocket.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, section) = text.split_once("\n## How sessions end\n").unwrap();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [numbers, codes, what] = cells[..] else { panic!("{line}") };
        let numbers: Vec<u16> = numbers.split(", ").map(|number| number.parse().unwrap()).collect();
        let codes: Vec<&str> = codes.split('`').skip(1).step_by(2).collect();
        assert!(numbers.len() == codes.len() || numbers.len() == 1, "{line}");
        for (at, number) in numbers.into_iter().enumerate() {
            let code = codes.get(at).map(|code| (*code).to_owned());
            assert!(rows.insert(number, (code, what.to_owned())).is_none(), "{number} stands twice");
        }
    }
    rows
}

#[test]
fn every_close_code_is_in_the_documented_table() {
    let table = table();
    let code_of = |number: u16| table.get(&number).unwrap_or_else(|| panic!("{number} is missing")).0.as_deref();
    for code in ErrorCode::ALL {
        match code.close_code() {
            // This error ends no session.
            4999 => assert!(!table.values().any(|(named, _)| named.as_deref() == Some(code.as_str())), "{code}"),
            number => assert_eq!(code_of(number), Some(code.as_str()), "{number}"),
        }
    }
    for error in [FrameError::Header, FrameError::Masking, FrameError::Control, FrameError::Order, FrameError::Utf8] {
        assert_eq!(code_of(error.close_code()), Some("malformed"), "{error:?}");
    }
    assert_eq!(code_of(FrameError::Close.close_code()), Some("malformed"));
    assert_eq!(code_of(UNSUPPORTED_DATA), Some("malformed"));
    assert!(table.contains_key(&NORMAL) && table.contains_key(&4999));
    assert!(table.values().all(|(_, what)| !what.is_empty()));
}

#[test]
fn each_close_code_names_one_error_code() {
    let mut numbers = BTreeMap::new();
    for code in ErrorCode::ALL.iter().filter(|code| code.close_code() != 4999) {
        let other = numbers.insert(code.close_code(), code);
        assert!(other.is_none(), "{} names {code} and {other:?}", code.close_code());
    }
}
