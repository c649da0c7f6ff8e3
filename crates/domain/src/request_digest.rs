//! What a caller asked for, in 16 bytes: a retry with the same id asks for the same, and anything else is another request.
//!
//! A digest is stored with a request's first result, so what it is computed from must not change. It covers the operation and the
//! fields that the caller gave. Fields that are absent and fields with their default are alike, and so are lists of ids in any
//! order. Bodies are compared as JSON: white space, the order of an object's members and the way in which a string is escaped do not
//! count, since not every client writes them the same way again after it was started anew. Numbers are compared as they are written.
//!
//! The hash is fast instead of strong: who finds two requests that are alike by it has deceived nobody else.

use smallvec::SmallVec;
use tidings_protocol::depth::end_of_string;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// The digest of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RequestDigest(pub [u8; 16]);

impl RequestDigest {
    /// The digest of bytes that were stored.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(RequestDigest)
    }
}

/// Computes a digest, field by field in any order: it is the sum of hashes, one for each value and its path.
///
/// ```
/// use tidings_domain::request_digest::RequestHasher;
///
/// let send = |body| RequestHasher::new("send").text("type", "text").json("body", body).digest();
/// assert_eq!(send(r#"{"a":1,"b":"é"}"#), send(r#"{ "b": "\u00e9", "a": 1 }"#));
/// assert_ne!(send(r#"{"a":1,"b":2}"#), send(r#"{"a":2,"b":1}"#));
/// ```
#[derive(Debug, Clone)]
pub struct RequestHasher {
    operation: u64,
    sum: u128,
}

impl RequestHasher {
    /// `operation` tells requests apart whose fields are alike.
    #[must_use]
    pub fn new(operation: &str) -> Self {
        let mut hasher = RequestHasher { operation: xxh3_64_with_seed(operation.as_bytes(), 0), sum: 0 };
        hasher.add(hasher.operation, Kind::Operation, &[]);
        hasher
    }

    /// A field with a text.
    #[must_use]
    pub fn text(mut self, field: &str, value: &str) -> Self {
        self.add(self.path(field), Kind::String, value.as_bytes());
        self
    }

    /// A field with a text, if it is given.
    #[must_use]
    pub fn optional_text(self, field: &str, value: Option<&str>) -> Self {
        value.into_iter().fold(self, |hasher, value| hasher.text(field, value))
    }

    /// A field with a number, if it is given.
    #[must_use]
    pub fn number(mut self, field: &str, value: Option<u64>) -> Self {
        if let Some(value) = value {
            self.add(self.path(field), Kind::Number, &value.to_le_bytes());
        }
        self
    }

    /// A field that is false if it is not given.
    #[must_use]
    pub fn flag(self, field: &str, value: bool) -> Self {
        self.number(field, value.then_some(1))
    }

    /// A field with texts in any order.
    #[must_use]
    pub fn set<'v>(mut self, field: &str, values: impl IntoIterator<Item = &'v String>) -> Self {
        let path = self.path(field);
        values.into_iter().for_each(|value| self.add(path, Kind::Member, value.as_bytes()));
        self
    }

    /// A field with valid JSON.
    #[must_use]
    pub fn json(mut self, field: &str, json: &str) -> Self {
        self.add_json(self.path(field), json.as_bytes());
        self
    }

    /// The digest of the fields that were added.
    #[must_use]
    pub fn digest(self) -> RequestDigest {
        RequestDigest(self.sum.to_le_bytes())
    }

    fn path(&self, field: &str) -> u64 {
        step(self.operation, field.as_bytes())
    }

    fn add(&mut self, path: u64, kind: Kind, value: &[u8]) {
        self.sum = self.sum.wrapping_add(xxh3_128_with_seed(value, path ^ kind as u64));
    }

    /// One pass over the text, with a stack of the arrays and objects that are open.
    fn add_json(&mut self, root: u64, json: &[u8]) {
        let mut open: SmallVec<[Open; 4]> = SmallVec::new();
        let mut at = 0;
        while let Some(byte) = json.get(at) {
            let from = at;
            at += 1;
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b':' => {}
                b',' => match open.last_mut() {
                    Some(Open::Array { index, .. }) => *index += 1,
                    Some(Open::Object { member, .. }) => *member = None,
                    None => {}
                },
                b']' | b'}' => drop(open.pop()),
                b'[' | b'{' => {
                    let path = path_within(open.last(), root);
                    self.add(path, if *byte == b'[' { Kind::Array } else { Kind::Object }, &[]);
                    open.push(match byte {
                        b'[' => Open::Array { path, index: 0 },
                        _ => Open::Object { path, member: None },
                    });
                }
                b'"' => {
                    let end = end_of_string(json, from);
                    at = end + 1;
                    let decoded;
                    let mut text = json.get(from + 1..end).unwrap_or_default();
                    if text.contains(&b'\\') {
                        decoded = serde_json::from_slice::<String>(&json[from..at.min(json.len())]).unwrap_or_default();
                        text = decoded.as_bytes();
                    }
                    match open.last_mut() {
                        Some(Open::Object { path, member: member @ None }) => *member = Some(step(*path, text)),
                        within => {
                            let path = path_within(within.as_deref(), root);
                            self.add(path, Kind::String, text);
                        }
                    }
                }
                _ => {
                    let is_within = |byte: &&u8| !matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
                    at += json[at..].iter().take_while(is_within).count();
                    self.add(path_within(open.last(), root), Kind::Literal, &json[from..at]);
                }
            }
        }
    }
}

/// The digest of the end of a message that grows, with a body of its own.
pub fn digest_of_end(body: &str) -> RequestDigest {
    RequestHasher::new("end").json("body", body).digest()
}

/// What a hash is of, so that `1`, `"1"` and `["1"]` differ.
#[derive(Clone, Copy)]
enum Kind {
    Operation = 0x1000,
    String,
    Number,
    Member,
    Literal,
    Array,
    Object,
}

/// An array or object whose end is to come, with the hash of its path.
enum Open {
    Array {
        path: u64,
        index: u64,
    },
    /// `member`: the path of the member whose name was read.
    Object {
        path: u64,
        member: Option<u64>,
    },
}

fn path_within(open: Option<&Open>, root: u64) -> u64 {
    match open {
        None => root,
        Some(Open::Array { path, index }) => step(*path, &index.to_le_bytes()),
        Some(Open::Object { path, member }) => member.unwrap_or(*path),
    }
}

fn step(path: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(json: &str) -> RequestDigest {
        RequestHasher::new("send").json("body", json).digest()
    }

    #[test]
    fn json_that_means_the_same_is_alike() {
        for (a, b) in [
            (r#"{"a":1,"b":[1,2]}"#, "{ \"b\" : [ 1,\t2 ],\r\n\"a\":1 }"),
            (r#""a\/b\u0041\ud83d\ude00""#, r#""a/bA😀""#),
            (r#"{"\u0061":{}}"#, r#"{"a":{}}"#),
            (r#"{"a":{"c":1,"b":2}}"#, r#"{"a":{"b":2,"c":1}}"#),
            (" null ", "null"),
        ] {
            assert_eq!(digest(a), digest(b), "{a} {b}");
        }
    }

    #[test]
    fn json_that_differs_is_another_request() {
        let texts = [
            "1",
            "\"1\"",
            "1.0",
            "[1]",
            "[[1]]",
            "[1,2]",
            "[2,1]",
            "[]",
            "{}",
            "[{}]",
            "[[]]",
            "{\"\":1}",
            "null",
            "true",
            "false",
            "\"\"",
            "\"null\"",
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            r#"{"b":1}"#,
            r#"{"a":[1]}"#,
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":1}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":[],"b":{}}"#,
            r#"{"a":{},"b":[]}"#,
            r#"["a","b"]"#,
            r#"["b","a"]"#,
            r#"["a,b"]"#,
            r#"[["a"],"b"]"#,
            r#"["a",["b"]]"#,
            r#""a\\""#,
            r#""a""#,
        ];
        for (at, a) in texts.iter().enumerate() {
            texts[..at].iter().for_each(|b| assert_ne!(digest(a), digest(b), "{a} {b}"));
        }
    }

    #[test]
    fn fields_and_operations_differ() {
        let new = || RequestHasher::new("send");
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>();
        let all = [
            new(),
            RequestHasher::new("stream"),
            new().text("type", "x"),
            new().text("name", "x"),
            new().flag("silent", true),
            new().flag("skip_push", true),
            new().number("reply_to", Some(1)),
            new().number("reply_to", Some(2)),
            new().set("mentions", &ids(&["a"])),
            new().set("mentions", &ids(&["a", "a"])),
            new().set("mentions", &ids(&["a", "b"])),
            new().json("body", "\"x\""),
        ]
        .map(RequestHasher::digest);
        for (at, a) in all.iter().enumerate() {
            assert!(!all[..at].contains(a), "{at}");
        }
        let alike =
            new().flag("silent", false).number("reply_to", None).set("mentions", &ids(&[])).optional_text("x", None);
        assert_eq!(alike.digest(), all[0]);
        let in_another_order = new().set("mentions", &ids(&["b", "a"]));
        assert_eq!(in_another_order.digest(), all[10]);
    }

    /// Digests are stored: a change of what they are computed from would make every retry across it another request.
    #[test]
    fn digests_stay_as_they_are() {
        let digest = RequestHasher::new("send").text("type", "text").flag("silent", true).number("reply_to", Some(7));
        let digest =
            digest.set("mentions", &["bob".to_owned()]).json("body", r#"{"text":"hé","n":[1,{"a":null}]}"#).digest();
        assert_eq!(u128::from_le_bytes(digest.0), 17_821_680_825_429_434_431_778_707_259_282_865_602);
    }
}
