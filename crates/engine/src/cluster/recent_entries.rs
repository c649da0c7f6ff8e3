//! The newest entries of all conversations, in memory: a session that missed a few seconds resumes from here, without a
//! read from the store. When a node ends, all its clients come back at once, and each has missed only seconds.

use crate::live_audience::LeftOut;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use tidings_domain::{message_changes, model::*, store::*};

/// About what an entry takes besides its body.
const ENTRY_BYTES: usize = 256;
/// About what a conversation takes of which messages are left out.
const LEFT_OUT_BYTES: usize = 64;

struct Ring {
    /// The ring has every entry after this position, up to `through`.
    floor: Position,
    through: Position,
    bytes: usize,
    /// What is kept with its size, oldest first, which is the order in which it is evicted.
    order: VecDeque<Kept>,
    tails: FxHashMap<ConversationNo, VecDeque<StoredEntry>>,
    /// The position of the last message of a conversation that this node was told of without its content.
    left_out: FxHashMap<ConversationNo, Position>,
}

struct Kept {
    conversation: ConversationNo,
    position: Position,
    bytes: usize,
    is_left_out: bool,
}

pub(crate) struct RecentEntries {
    ring: RwLock<Ring>,
    bytes_max: usize,
}

impl Ring {
    fn empty(from: Position) -> Ring {
        let (order, tails, left_out) = (VecDeque::new(), FxHashMap::default(), FxHashMap::default());
        Ring { floor: from, through: from, bytes: 0, order, tails, left_out }
    }

    fn keep(&mut self, kept: Kept) {
        self.bytes += kept.bytes;
        self.order.push_back(kept);
    }

    fn evict(&mut self, kept: &Kept) {
        let Kept { conversation, position, bytes, is_left_out } = kept;
        self.bytes -= bytes;
        // Those of one batch are not in order.
        self.floor = self.floor.max(*position);
        if *is_left_out {
            if self.left_out.get(conversation) == Some(position) {
                self.left_out.remove(conversation);
            }
        } else if let Some(tail) = self.tails.get_mut(conversation) {
            tail.pop_front();
            if tail.is_empty() {
                self.tails.remove(conversation);
            }
        }
    }

    /// Applies an edit or a recall to the message that it changes, and removes the bodies that it makes obsolete, as the
    /// store did. A longer body may take more memory than the ring counts until the message is evicted: at most the
    /// bodies of one message for each entry.
    fn change_message(&mut self, conversation: ConversationNo, change: &StoredEntry) {
        let target = change.content.target();
        let changes_messages = target.is_some() || change.content.kind == EntryKind::Reactions;
        let Some(tail) = self.tails.get_mut(&conversation).filter(|_| changes_messages) else { return };
        let is_recall = change.content.kind == EntryKind::Recall;
        let replaces_body = is_recall || change.content.kind == EntryKind::Edit;
        for entry in tail {
            if entry.content.kind == EntryKind::Message && target.is_none_or(|target| target == entry.seq) {
                message_changes::apply(entry, change);
            } else if replaces_body && entry.content.kind == EntryKind::Edit && entry.content.target() == target {
                message_changes::remove_body(entry, is_recall);
            }
        }
    }
}

impl RecentEntries {
    pub(crate) fn new(from: Position, bytes_max: usize) -> Self {
        RecentEntries { ring: RwLock::new(Ring::empty(from)), bytes_max }
    }

    /// Forgets all entries: they may be others in the store.
    pub(crate) fn forget(&self) {
        let mut ring = self.ring.write();
        *ring = Ring::empty(ring.through);
    }

    /// Notes messages whose content this node does not have. Called before [`Self::push`] for the commits that they are of.
    pub(crate) fn note_left_out(&self, left_out: &[LeftOut]) {
        let mut ring = self.ring.write();
        for LeftOut { conversation, through, .. } in left_out {
            ring.left_out.insert(*conversation, *through);
            ring.keep(Kept {
                conversation: *conversation,
                position: *through,
                bytes: LEFT_OUT_BYTES,
                is_left_out: true,
            });
        }
    }

    /// Adds the next entries of the commit order, all up to `through`.
    pub(crate) fn push<'a>(&self, entries: impl Iterator<Item = (ConversationNo, &'a StoredEntry)>, through: Position) {
        let mut ring = self.ring.write();
        let ring = &mut *ring;
        for (conversation, entry) in entries {
            ring.change_message(conversation, entry);
            let bytes = ENTRY_BYTES + entry.content.body.len();
            ring.keep(Kept { conversation, position: entry.position, bytes, is_left_out: false });
            ring.tails.entry(conversation).or_default().push_back(entry.clone());
        }
        ring.through = through;
        while ring.bytes > self.bytes_max
            && let Some(kept) = ring.order.pop_front()
        {
            ring.evict(&kept);
        }
    }

    /// All entries of these tails, newest first, each with its tail's index. `None`: some may have been evicted or never come, or
    /// there are more than wanted.
    pub(crate) fn missed(&self, tails: &[Tail], query: MissedQuery) -> Option<Vec<(usize, StoredEntry)>> {
        let ring = self.ring.read();
        let covered = |tail: &Tail| {
            let left_out = ring.left_out.get(&tail.conversation);
            tail.after >= ring.floor && tail.until <= ring.through && left_out.is_none_or(|last| *last <= tail.after)
        };
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
#[path = "../../tests/units/cluster_recent_entries.rs"]
mod tests;
