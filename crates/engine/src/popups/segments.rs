//! Uploaded lists of users: read whole, checked whole, and only then in the place of the list before.

use super::{
    Shared, UserKey,
    rows::{self, CHUNK_USERS, Numbers, ROWS_PER_WRITE, SPACE, SegmentHead},
    rules::Segment as List,
};
use crate::{
    commit::store_refusal,
    engine::Engine,
    store::{RowStore, StoreResult},
};
use std::sync::Arc;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Segment, Segments},
    ids::check_id,
    limits::{SEGMENT_USERS_MAX, SEGMENTS_MAX},
};

/// Reads an upload: a user's id in each line; empty lines are passed over. What is wrong is named by its line.
pub fn read_segment(text: &[u8]) -> Result<List, Refusal> {
    let mut users = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let field = || format!("line {}", at + 1);
        let id = std::str::from_utf8(line).map_err(|_| Refusal::field(&field(), "is not UTF-8"))?;
        check_id(&field(), id)?;
        if users.len() == SEGMENT_USERS_MAX {
            return Err(Refusal::limit("users", SEGMENT_USERS_MAX as u64, users.len() as u64 + 1));
        }
        users.push(UserKey::of(id).0 as u64);
    }
    if users.is_empty() {
        return Err(Refusal::field("users", "there are none"));
    }
    Ok(List::from_unsorted(users))
}

/// Reads a list back.
pub(super) fn read_list<S: RowStore + ?Sized>(store: &S, head: &SegmentHead) -> StoreResult<List> {
    let mut users = Vec::with_capacity(head.users as usize);
    let mut from = rows::chunk_key(head.list, 0);
    let to = rows::chunk_key(head.list, u32::MAX);
    loop {
        let chunks = store.rows(SPACE, &from, &to, 256)?;
        let Some((last, _)) = chunks.last() else { break };
        from = [&last[..], &[0]].concat();
        for (_, chunk) in &chunks {
            let (numbers, rest) = chunk.as_chunks::<8>();
            if !rest.is_empty() {
                return Err(rows::damaged(&format_args!("a chunk of segment {:?}", head.id)));
            }
            users.extend(numbers.iter().map(|number| u64::from_be_bytes(*number)));
        }
    }
    match users.len() as u64 == head.users {
        true => Ok(List::from_unsorted(users)),
        false => Err(rows::damaged(&format_args!("segment {:?} has {} of {} users", head.id, users.len(), head.users))),
    }
}

impl Shared {
    fn put_segment(&self, id: &str, list: List) -> Result<Segment, Refusal> {
        check_id("segment", id)?;
        let number = self.change(|catalog| {
            if !catalog.segments.contains_key(id) && catalog.segments.len() >= SEGMENTS_MAX {
                return Err(Refusal::limit("segments", SEGMENTS_MAX as u64, catalog.segments.len() as u64 + 1));
            }
            let numbers = Numbers { list: catalog.numbers.list + 1, ..catalog.numbers.clone() };
            let row = rows::put(rows::numbers_key(), rows::encode(&numbers));
            self.write(vec![row]).map_err(store_refusal)?;
            catalog.numbers = numbers;
            Ok(catalog.numbers.list)
        })?;
        // Until its head is written this list is nobody's: a stop in between leaves nothing half-done.
        let chunks: Vec<_> = list
            .users()
            .chunks(CHUNK_USERS)
            .enumerate()
            .map(|(at, users)| {
                let bytes = users.iter().flat_map(|user| user.to_be_bytes()).collect();
                rows::put(rows::chunk_key(number, at as u32), bytes)
            })
            .collect();
        for piece in chunks.chunks(ROWS_PER_WRITE / 2) {
            self.write(piece.to_vec()).map_err(store_refusal)?;
        }
        let now_ms = self.clock.now_ms();
        let head = SegmentHead { id: id.to_owned(), list: number, users: list.len() as u64, updated_at: now_ms };
        let before = self.change(|catalog| {
            let row = rows::put(rows::segment_key(id), rows::encode(&head));
            self.write(vec![row]).map_err(store_refusal)?;
            let before = catalog.segments.insert(id.to_owned(), (head.clone(), Arc::new(list)));
            if !catalog.users_of_segment(id).is_empty() {
                catalog.rebuild_all(now_ms);
            }
            Ok(before)
        })?;
        if let Some((before, _)) = before {
            self.drop_list(before.list)?;
        }
        Ok(card(&head))
    }

    fn drop_list(&self, list: u32) -> Result<(), Refusal> {
        let (from, to) = (rows::chunk_key(list, 0), rows::chunk_key(list, u32::MAX));
        self.drop_all(&from, &to).map(drop).map_err(store_refusal)
    }

    fn remove_segment(&self, id: &str) -> Result<(), Refusal> {
        let head = self.change(|catalog| {
            let Some((head, _)) = catalog.segments.get(id) else { return Err(Refusal::not_found("segment", id)) };
            if let Some(popup) = catalog.users_of_segment(id).first() {
                let why = format!("popup {popup:?} names the segment {id:?}");
                return Err(Refusal::new(ErrorCode::Conflict, why));
            }
            let head = head.clone();
            self.write(vec![rows::remove(rows::segment_key(id))]).map_err(store_refusal)?;
            catalog.segments.remove(id);
            Ok(head)
        })?;
        self.drop_list(head.list)
    }
}

fn card(head: &SegmentHead) -> Segment {
    Segment { id: head.id.clone(), users: head.users, updated_at: head.updated_at }
}

/// Operations of app servers. Those that change something wait for the store.
impl Engine {
    pub fn put_popup_segment(&self, id: &str, list: List) -> Result<Segment, Refusal> {
        self.popups.shared()?.put_segment(id, list)
    }

    pub fn popup_segments(&self) -> Result<Segments, Refusal> {
        let cards = |catalog: &super::Catalog| catalog.segments.values().map(|(head, _)| card(head)).collect();
        self.popups.shared()?.look_at(|catalog| Ok(Segments { segments: cards(catalog) }))
    }

    pub fn popup_segment(&self, id: &str) -> Result<Segment, Refusal> {
        self.popups.shared()?.look_at(|catalog| match catalog.segments.get(id) {
            Some((head, _)) => Ok(card(head)),
            None => Err(Refusal::not_found("segment", id)),
        })
    }

    /// Whether a user is in it.
    pub fn is_in_popup_segment(&self, id: &str, user: &str) -> Result<bool, Refusal> {
        self.popups.shared()?.look_at(|catalog| match catalog.segments.get(id) {
            Some((_, list)) => Ok(list.contains(UserKey::of(user))),
            None => Err(Refusal::not_found("segment", id)),
        })
    }

    pub fn remove_popup_segment(&self, id: &str) -> Result<(), Refusal> {
        self.popups.shared()?.remove_segment(id)
    }
}
