//! The newest entries of all conversations, as this node saw them come: who missed seconds is answered from here, and
//! the store is not asked for it. After a node's end its clients all come back at once.

use crate::{model::*, store::*};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What an entry takes beside its body, about.
const ENTRY_BYTES: usize = 256;

struct Ring {
    /// Every entry behind this, up to `through`, is here.
    floor: Position,
    through: Position,
    bytes: usize,
    /// Whose turn it is to go.
    order: VecDeque<(ConversationNo, Position, usize)>,
    tails: FxHashMap<ConversationNo, VecDeque<StoredEntry>>,
}

pub(crate) struct Recent {
    ring: RwLock<Ring>,
    bytes_max: usize,
}

impl Recent {
    pub(crate) fn new(from: Position, bytes_max: usize) -> Self {
        let (order, tails) = (VecDeque::new(), FxHashMap::default());
        Recent { ring: RwLock::new(Ring { floor: from, through: from, bytes: 0, order, tails }), bytes_max }
    }

    /// Takes the next stretch of the commit order.
    pub(crate) fn push<'a>(&self, entries: impl Iterator<Item = (ConversationNo, &'a StoredEntry)>, through: Position) {
        let mut ring = self.ring.write();
        let ring = &mut *ring;
        for (conversation, entry) in entries {
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

    /// All entries of these tails, newest first, each with its tail's index. `None`: some may be older than what is here, or
    /// they are more than wanted.
    pub(crate) fn missed(&self, tails: &[Tail], wanted: Wanted) -> Option<Vec<(usize, StoredEntry)>> {
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
                if found.len() == wanted.entries_max || bytes > wanted.bytes_max {
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
    use crate::memory::MemoryStore;
    use proptest::prelude::*;

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
            })
        };
        store.commit(&(0..ROOMS).map(room).collect::<Vec<_>>(), 1).unwrap();
        store
    }

    proptest! {
        #[test]
        fn what_is_answered_is_what_the_store_would_answer(
            said in prop::collection::vec((1..=ROOMS, 0..200usize), 1..60),
            bytes_max in 0..20_000usize,
            after in 0..60u64,
            span in 0..60u64,
            entries_max in 1..30usize,
        ) {
            let store = store();
            let start = store.last_position();
            let recent = Recent::new(start, bytes_max);
            for (room, size) in said {
                let proposal = Proposal::Append { conversation: ConversationNo(room), entry: entry(size) };
                let (_, span) = store.commit_in_order(&[proposal], 1).unwrap();
                let head = store.head(ConversationNo(room)).unwrap();
                let stored = store.entries(ConversationNo(room), head.last_seq, head.last_seq, 1, End::Newest).unwrap();
                recent.push(stored.iter().map(|entry| (ConversationNo(room), entry)), span.through);
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
            let wanted = Wanted { entries_max, bytes_max: usize::MAX, ranges: true };
            if let Some(found) = recent.missed(&tails, wanted) {
                let asked = store.missed(&tails, wanted).unwrap();
                prop_assert!(asked.left.is_empty(), "more was missed than was answered");
                prop_assert_eq!(found, asked.entries);
            } else {
                let bound = bytes_max < 60 * (ENTRY_BYTES + 202) || entries_max < 60;
                prop_assert!(bound, "all is here, and nothing was answered");
            }
        }
    }
}
