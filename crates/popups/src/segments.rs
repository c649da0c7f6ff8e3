//! Segments: uploaded lists of users. An upload is parsed and checked as a whole before it replaces the list before.

use super::{
    PopupService, Shared, UserKey,
    rows::{self, CHUNK_USERS, IdAllocator, ROWS_PER_WRITE, SPACE, SegmentHead},
    rules::Segment as SegmentUsers,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    refusals::store_refusal,
    store::{RowStore, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Segment, Segments},
    ids::check_id,
    limits::{SEGMENT_USERS_MAX, SEGMENTS_MAX},
};

/// Parses an upload: a user's id in each line; empty lines are skipped.
///
/// # Errors
/// A line is no id, or there are no users or too many. The refusal names the line.
pub fn parse_segment(text: &[u8]) -> Result<SegmentUsers, Refusal> {
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
        return Err(Refusal::field("users", "must not be empty"));
    }
    Ok(SegmentUsers::from_unsorted(users))
}

/// Reads a segment's list from the store.
pub(super) fn read_segment_users<S: RowStore + ?Sized>(store: &S, head: &SegmentHead) -> StoreResult<SegmentUsers> {
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
    if users.len() as u64 == head.users {
        Ok(SegmentUsers::from_unsorted(users))
    } else {
        Err(rows::damaged(&format_args!("segment {:?} has {} of {} users", head.id, users.len(), head.users)))
    }
}

/// For so long a list that was read from the store is the segment's without another look.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often a segment is read whose list is replaced meanwhile.
const READS_MAX: usize = 3;

/// Segments on a node that does not lead popups, read from the store when somebody asks for them, and again when they have changed.
#[derive(Default)]
pub(super) struct FollowedSegments(Mutex<FxHashMap<String, FollowedSegment>>);

struct FollowedSegment {
    list: u32,
    users: Arc<SegmentUsers>,
    looked_at: Instant,
}

impl FollowedSegments {
    /// The users of a segment; `None` if there is no such segment. Blocks.
    fn users<S: RowStore + ?Sized>(&self, store: &S, id: &str) -> StoreResult<Option<Arc<SegmentUsers>>> {
        let looked_at = Instant::now();
        let known = self.0.lock().get(id).map(|known| (known.list, known.users.clone(), known.looked_at));
        if let Some((_, users, before)) = &known
            && looked_at.duration_since(*before) < LOOK_AGAIN_AFTER
        {
            return Ok(Some(users.clone()));
        }
        let known = known.map(|(list, users, _)| (list, users));
        let Some((list, users)) = read_followed(store, id, known)? else {
            self.forget(id);
            return Ok(None);
        };
        self.0.lock().insert(id.to_owned(), FollowedSegment { list, users: users.clone(), looked_at });
        Ok(Some(users))
    }

    fn forget(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// A segment's list with its number, read unless it is the known one.
fn read_followed<S: RowStore + ?Sized>(
    store: &S,
    id: &str,
    known: Option<(u32, Arc<SegmentUsers>)>,
) -> StoreResult<Option<(u32, Arc<SegmentUsers>)>> {
    let mut failed = None;
    for _ in 0..READS_MAX {
        let Some(row) = store.row(SPACE, &rows::segment_key(id))? else { return Ok(None) };
        let head: SegmentHead = rows::decode(&row)?;
        match (&known, failed.take()) {
            (Some((list, users)), _) if *list == head.list => return Ok(Some((*list, users.clone()))),
            // The same list again: it is not as its head says.
            (_, Some((list, error))) if list == head.list => return Err(error),
            _ => {}
        }
        match read_segment_users(store, &head) {
            Ok(users) => return Ok(Some((head.list, Arc::new(users)))),
            // Another upload may have removed the list meanwhile.
            Err(error) => failed = Some((head.list, error)),
        }
    }
    failed.map_or(Ok(None), |(_, error)| Err(error))
}

impl Shared {
    fn put_segment(&self, id: &str, list: SegmentUsers) -> Result<Segment, Refusal> {
        check_id("segment", id)?;
        let number = self.update_catalog(|catalog| {
            if !catalog.segments.contains_key(id) && catalog.segments.len() >= SEGMENTS_MAX {
                return Err(Refusal::limit("segments", SEGMENTS_MAX as u64, catalog.segments.len() as u64 + 1));
            }
            let ids = IdAllocator { last_list: catalog.id_allocator.last_list + 1, ..catalog.id_allocator.clone() };
            let row = rows::put(rows::id_allocator_key(), rows::encode(&ids));
            self.write_catalog(vec![row])?;
            catalog.id_allocator = ids;
            Ok(catalog.id_allocator.last_list)
        })?;
        // The list belongs to no segment until the head is written. If the process ends before, the segment keeps its
        // list, and the next start removes the new one.
        let chunks: Vec<_> = list
            .users()
            .chunks(CHUNK_USERS)
            .enumerate()
            .map(|(at, users)| {
                let bytes = users.iter().flat_map(|user| user.to_be_bytes()).collect();
                rows::put(rows::chunk_key(number, at as u32), bytes)
            })
            .collect();
        for chunk in chunks.chunks(ROWS_PER_WRITE / 2) {
            self.write(chunk.to_vec()).map_err(store_refusal)?;
        }
        let now_ms = self.clock.now_ms();
        let head = SegmentHead { id: id.to_owned(), list: number, users: list.len() as u64, updated_at: now_ms };
        let before = self.update_catalog(|catalog| {
            let row = rows::put(rows::segment_key(id), rows::encode(&head));
            self.write_catalog(vec![row])?;
            let before = catalog.segments.insert(id.to_owned(), (head.clone(), Arc::new(list)));
            if !catalog.popups_of_segment(id).is_empty() || catalog.journey_of_segment(id).is_some() {
                catalog.rebuild_all(now_ms);
            }
            Ok(before)
        })?;
        if let Some((before, _)) = before {
            self.remove_list(before.list)?;
        }
        Ok(to_http(&head))
    }

    fn remove_list(&self, list: u32) -> Result<(), Refusal> {
        let (from, to) = (rows::chunk_key(list, 0), rows::chunk_key(list, u32::MAX));
        self.remove_range(&from, &to).map(drop).map_err(store_refusal)
    }

    fn remove_segment(&self, id: &str) -> Result<(), Refusal> {
        let head = self.update_catalog(|catalog| {
            let Some((head, _)) = catalog.segments.get(id) else { return Err(Refusal::not_found("segment", id)) };
            if let Some(popup) = catalog.popups_of_segment(id).first() {
                let why = format!("popup {popup:?} names the segment {id:?}");
                return Err(Refusal::new(ErrorCode::Conflict, why));
            }
            if let Some(journey) = catalog.journey_of_segment(id) {
                let why = format!("journey {journey:?} names the segment {id:?}");
                return Err(Refusal::new(ErrorCode::Conflict, why));
            }
            let head = head.clone();
            self.write_catalog(vec![rows::remove(rows::segment_key(id))])?;
            catalog.segments.remove(id);
            Ok(head)
        })?;
        self.remove_list(head.list)
    }
}

fn to_http(head: &SegmentHead) -> Segment {
    Segment { id: head.id.clone(), users: head.users, updated_at: head.updated_at }
}

/// Operations of app servers on segments. Those that change something wait for the store. Besides their own errors, all
/// are refused while another node leads (`node_unavailable`), and while the catalog is being read or the store fails
/// (`store_unavailable`).
impl PopupService {
    /// Creates a segment, or replaces its list.
    ///
    /// # Errors
    /// The id is wrong (`invalid_field`), or there are too many segments (`limit_exceeded`).
    pub fn put_segment(&self, id: &str, list: SegmentUsers) -> Result<Segment, Refusal> {
        self.shared()?.put_segment(id, list)
    }

    /// All segments, without their users.
    ///
    /// # Errors
    /// Only those of all operations.
    pub fn segments(&self) -> Result<Segments, Refusal> {
        let segments = |catalog: &super::Catalog| catalog.segments.values().map(|(head, _)| to_http(head)).collect();
        self.shared()?.read_catalog(|catalog| Ok(Segments { segments: segments(catalog) }))
    }

    /// A segment, without its users.
    ///
    /// # Errors
    /// There is no such segment (`not_found`).
    pub fn segment(&self, id: &str) -> Result<Segment, Refusal> {
        self.shared()?.read_catalog(|catalog| match catalog.segments.get(id) {
            Some((head, _)) => Ok(to_http(head)),
            None => Err(Refusal::not_found("segment", id)),
        })
    }

    /// The users of a segment, on any node; `None` if there is no such segment. A node that does not lead popups notices a change
    /// within half a second. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn segment_users(&self, id: &str) -> StoreResult<Option<Arc<SegmentUsers>>> {
        let users = |catalog: &super::Catalog| Ok(catalog.segments.get(id).map(|(_, users)| users.clone()));
        match self.shared().and_then(|shared| shared.read_catalog(users)) {
            Ok(users) => {
                self.followed_segments.forget(id);
                Ok(users)
            }
            // Another node leads, or this one does not have the catalog yet.
            Err(_) => self.followed_segments.users(&*self.store, id),
        }
    }

    /// Whether a user is in the segment.
    ///
    /// # Errors
    /// There is no such segment (`not_found`).
    pub fn is_in_segment(&self, id: &str, user: &str) -> Result<bool, Refusal> {
        self.shared()?.read_catalog(|catalog| match catalog.segments.get(id) {
            Some((_, list)) => Ok(list.contains(UserKey::of(user))),
            None => Err(Refusal::not_found("segment", id)),
        })
    }

    /// Removes a segment.
    ///
    /// # Errors
    /// There is no such segment (`not_found`), or a popup names it (`conflict`).
    pub fn remove_segment(&self, id: &str) -> Result<(), Refusal> {
        self.shared()?.remove_segment(id)
    }
}
