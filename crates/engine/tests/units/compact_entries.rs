#![allow(clippy::unwrap_used)]
use super::*;
use crate::visibility::View;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// What docs/websocket.md says of a reader: what is absent stands in the entry before, and a `seq` is one more.
fn completed(entries: Vec<Object>) -> Vec<Object> {
    let mut whole: Vec<Object> = Vec::new();
    for mut entry in entries {
        if let Some(before) = whole.last() {
            for name in ["conversation", "kind", "at", "type"] {
                entry.entry(name).or_insert_with(|| before[name].clone());
            }
            entry.entry("seq").or_insert_with(|| (before["seq"].as_u64().unwrap() + 1).into());
        }
        whole.push(entry);
    }
    whole
}

fn parsed(json: &[u8]) -> Vec<Object> {
    serde_json::from_slice(&[b"[", &json[1..], b"]"].concat()).unwrap()
}

fn random_entry(random: &mut SmallRng, seq: u64, at: u64) -> StoredEntry {
    let mut pick = |of: &[&str]| of[random.random_range(0..of.len())].to_owned();
    let (user, content_type, body) = (pick(&["ada", "ben", ""]), pick(&["text", "text", "image"]), pick(&["1", "{}"]));
    let details = random.random_ratio(1, 5).then(|| {
        let edited = Some(Edited { at: 7, by: None });
        MessageDetails { version: 2, edited, ..MessageDetails::NONE }.into()
    });
    let content = NewEntry {
        kind: EntryKind::Message,
        sender: (!user.is_empty()).then_some(Sender { no: UserNo(1), id: user }),
        client_msg_id: random.random_bool(0.5).then(|| format!("m{seq}")),
        content_type,
        body: body.into(),
        mentions: if random.random_ratio(1, 4) { vec!["ben".into()] } else { vec![] },
        silent: random.random_ratio(1, 4),
        skip_push: false,
        details,
        request: EntryRequest::default(),
    };
    StoredEntry { seq, position: seq, at, content }
}

#[test]
fn compact_entries_say_what_whole_ones_say() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut shorter, mut left_out) = (0, 0);
    for _ in 0..500 {
        let (mut whole, mut compact) = (Vec::new(), CompactEntries::default());
        let (mut seq, mut at) = (1, 1_764_238_000_000);
        for _ in 0..random.random_range(1..10) {
            let entry = random_entry(&mut random, seq, at);
            let start = whole.len();
            let shown = View::WHOLE.show(&entry).unwrap();
            whole.push(b',');
            encode_entry(&mut whole, "g", &shown);
            compact.add(&shown, &whole, start);
            seq += if random.random_ratio(1, 5) { 3 } else { 1 };
            at += u64::from(random.random_ratio(1, 3));
        }
        let entries = parsed(&whole);
        match compact.finish() {
            Some(compact) => {
                let read = parsed(&compact);
                left_out += read.iter().filter(|entry| !entry.contains_key("conversation")).count();
                assert_eq!(completed(read), entries);
                shorter += usize::from(compact.len() < whole.len());
            }
            None => assert_eq!(entries.len(), 1),
        }
    }
    assert!(shorter > 300 && left_out > 1_000, "{shorter} blocks are shorter, {left_out} entries have less");
}
