//! The newest entries of all conversations, in memory: a session that missed a few seconds resumes from here, without a
//! read from the store. When a node ends, all its clients come back at once, and each has missed only seconds.

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use tidings_domain::{message_changes, model::*, store::*};

/// About what an entry takes besides its body.
const ENTRY_BYTES: usize = 256;

struct Ring {
    /// The ring has every entry after this position, up to `through`.
    floor: Position,
    through: Position,
    bytes: usize,
    /// The entries with their sizes, oldest first, which is the order in which they are evicted.
    order: VecDeque<(ConversationNo, Position, usize)>,
    tails: FxHashMap<ConversationNo, VecDeque<StoredEntry>>,
}

pub(crate) struct RecentEntries {
    ring: RwLock<Ring>,
    bytes_max: usize,
}

impl Ring {
    /// Applies an edit or a recall to the message that it changes, and removes the bodies that it makes obsolete, as the
    /// store did. A longer body may take more memory than the ring counts until the message is evicted: at most the
    /// bodies of one message for each entry.
    fn change_message(&mut self, conversation: ConversationNo, change: &StoredEntry) {
        let target = change.content.details().target;
        let changes_messages = target != 0 || change.content.kind == EntryKind::Reactions;
        let Some(tail) = self.tails.get_mut(&conversation).filter(|_| changes_messages) else { return };
        let is_recall = change.content.kind == EntryKind::Recall;
        let replaces_body = is_recall || change.content.kind == EntryKind::Edit;
        for entry in tail {
            if entry.content.kind == EntryKind::Message && (entry.seq == target || target == 0) {
                message_changes::apply(entry, change);
            } else if replaces_body && entry.content.kind == EntryKind::Edit && entry.content.details().target == target
            {
                message_changes::remove_body(entry, is_recall);
            }
        }
    }
}

impl RecentEntries {
    pub(crate) fn new(from: Position, bytes_max: usize) -> Self {
        let (order, tails) = (VecDeque::new(), FxHashMap::default());
        RecentEntries { ring: RwLock::new(Ring { floor: from, through: from, bytes: 0, order, tails }), bytes_max }
    }

    /// Adds the next entries of the commit order, all up to `through`.
    pub(crate) fn push<'a>(&self, entries: impl Iterator<Item = (ConversationNo, &'a StoredEntry)>, through: Position) {
        let mut ring = self.ring.write();
        let ring = &mut *ring;
        for (conversation, entry) in entries {
            ring.change_message(conversation, entry);
            let bytes = ENTRY_BYTES + entry.content.body.len();
            ring.bytes += bytes;
            ring.order.push_back((conversation, entry.position, bytes));
            ring.tails.entry(conversation).or_default().push_back(entry.clone());
        }
        ring.through = through;
        while ring.bytes > self.bytes_max
            && let Some((conversation, position, bytes)) = ring.order.pop_front()
        {
            ring.bytes -= bytes;
            ring.floor = position;
            if let Some(tail) = ring.tails.get_mut(&conversation) {
                tail.pop_front();
                if tail.is_empty() {
                    ring.tails.remove(&conversation);
                }
            }
        }
    }

    /// All entries of these tails, newest first, each with its tail's index. `None`: some may have been evicted, or there
    /// are more than wanted.
    pub(crate) fn missed(&self, tails: &[Tail], query: MissedQuery) -> Option<Vec<(usize, StoredEntry)>> {
        let ring = self.ring.read();
        let covered = |tail: &Tail| tail.after >= ring.floor && tail.until <= ring.through;
        if !tails.iter().all(covered) {
            return None;
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (index, tail) in tails.iter().enumerate() {
            let entries = ring.tails.get(&tail.conversation).into_iter().flatten().rev();
            for entry in entries.take_while(|entry| entry.position > tail.after && entry.seq >= tail.floor_seq) {
                if entry.position > tail.until {
                    continue;
                }
                bytes += entry.content.body.len();
                if found.len() == query.entries_max || bytes > query.bytes_max {
                    return None;
                }
                found.push((index, entry));
            }
        }
        found.sort_unstable_by_key(|(_, entry)| std::cmp::Reverse(entry.position));
        Some(found.into_iter().map(|(index, entry)| (index, entry.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidings_testkit::MemoryStore;

    const ROOMS: u64 = 4;

    fn entry(size: usize) -> NewEntry {
        NewEntry {
            kind: EntryKind::Message,
            sender: None,
            client_msg_id: None,
            content_type: "text".into(),
            body: format!("{:?}", "x".repeat(size)).into(),
            mentions: vec![],
            silent: false,
            skip_push: false,
            details: None,
        }
    }

    fn store() -> MemoryStore {
        let store = MemoryStore::shared();
        let room = |n: u64| {
            Proposal::CreateConversation(NewConversation {
                id: format!("g{n}"),
                kind: ConversationKind::Group,
                pair: None,
                name: None,
                avatar: None,
                attributes: None,
                members: vec![],
                settings: ConversationSettings::default(),
            })
        };
        store.commit(&(0..ROOMS).map(room).collect::<Vec<_>>(), 1).unwrap();
        store
    }

    /// A message, or a change of an earlier one.
    fn proposal(room: u64, size: usize, what: u8, target: u64) -> Proposal {
        let conversation = ConversationNo(room);
        let of = |kind| NewEntry { kind, ..entry(size) };
        let change = |change, entry| Proposal::ChangeMessage { conversation, target, change, entry };
        let (user, key) = (Sender { no: UserNo(1), id: "ann".into() }, "+1".to_owned());
        match what {
            0 => {
                let edit =
                    MessageChange::Edit { if_version: None, keep_replaced: size.is_multiple_of(2), edits_max: 9 };
                change(edit, of(EntryKind::Edit))
            }
            1 => change(MessageChange::Recall, NewEntry { body: "null".into(), ..of(EntryKind::Recall) }),
            2 => change(MessageChange::Pin { pinned: true, pins_max: 9 }, of(EntryKind::Pins)),
            3 => Proposal::React { conversation, target, user, key, add: true, keys_max: 9, interval_ms: 0 },
            _ => Proposal::Append { conversation, entry: entry(size) },
        }
    }

    proptest! {
        #[test]
        fn missed_entries_are_those_of_the_store_or_none(
            messages in prop::collection::vec((1..=ROOMS, 0..200usize, 0..10u8, 1..8u64), 1..60),
            bytes_max in 0..20_000usize,
            after in 0..60u64,
            span in 0..60u64,
            entries_max in 1..30usize,
        ) {
            let store = store();
            let start = store.last_position();
            let recent = RecentEntries::new(start, bytes_max);
            for (room, size, what, target) in messages {
                let (_, span) = store.commit_in_order(&[proposal(room, size, what, target)], 1).unwrap();
                let head = store.head(ConversationNo(room)).unwrap();
                let stored = store.entries(ConversationNo(room), head.last_seq, head.last_seq, 1, End::Newest).unwrap();
                // A change that was rejected, or changed nothing, has no entry.
                let told = stored.iter().filter(|entry| entry.position > span.after);
                recent.push(told.map(|entry| (ConversationNo(room), entry)), span.through);
            }
            let (after, until) = (start + after, (start + after + span).min(store.last_position()));
            let tail = |room: u64| {
                let head = store.head(ConversationNo(room)).unwrap();
                Tail {
                    conversation: ConversationNo(room),
                    floor_seq: 1 + room % 3,
                    newest_seq: head.last_seq,
                    newest_position: head.last_position,
                    after,
                    until,
                }
            };
            let tails: Vec<Tail> = (1..=ROOMS).map(tail).filter(|tail| tail.newest_position > after && until > after).collect();
            let query = MissedQuery { entries_max, bytes_max: usize::MAX, ranges: true };
            if let Some(found) = recent.missed(&tails, query) {
                let asked = store.missed(&tails, query).unwrap();
                prop_assert!(asked.remaining.is_empty(), "the store has more than the ring returned");
                prop_assert_eq!(found, asked.entries);
            } else {
                let bound = bytes_max < 60 * (ENTRY_BYTES + 202) || entries_max < 60;
                prop_assert!(bound, "the ring has every entry and returned none");
            }
        }
    }
}
