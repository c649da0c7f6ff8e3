//! Who has a message, and who has read it: derived from read marks and from how far clients have stored what they were
//! handed.

use crate::{Engine, visibility::hides_followers};
use std::collections::BTreeMap;
use tidings_domain::{
    chat_rows::{UserSettings, decode_stored, settings_key, stored_key},
    model::*,
    refusals::store_refusal,
    store::{RowSpace, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{MovedMarks, ReceiptKind, ReceiptMark},
    http::{ConversationReceipts, MemberReceipt, MessageReceipts},
    limits::{RECEIPTS_COUNTED_ENTRIES, RECEIPTS_DELIVERED_ENTRIES},
};

/// Members whose receipts are read at once.
pub(crate) const MEMBERS_AT_ONCE: usize = 500;

/// What is known of a member.
pub(crate) struct MemberProgress {
    pub(crate) user: UserNo,
    pub(crate) membership: Membership,
    stored: [Position; LANES],
    pub(crate) receipts_off: bool,
}

impl Engine {
    /// A client of the user has stored all that it was handed up to this cursor. It counts from the next round on. A cursor
    /// of another epoch is ignored: it counts another history.
    pub fn note_stored(&self, user: UserNo, cursor: &Cursor) {
        if cursor.epoch == self.store.epoch() {
            self.receipts.note_stored(user, cursor);
            self.recent_acknowledgements.note(user, cursor.positions, self.clock.now_ms());
            // What an agent has, its accounts have.
            for desk in self.directory.desks.served_by(user) {
                self.receipts.note_stored(desk.desk.user.no, cursor);
            }
        }
    }

    /// How far the clients of a user have come, in each lane.
    pub fn stored_positions(&self, user: UserNo) -> StoreResult<[Position; LANES]> {
        // Before the row, into which they go.
        let pending = self.receipts.pending_stored(user, self.store.epoch());
        let row = self.store.row(RowSpace::Chat, &stored_key(user))?;
        let mut stored = decode_stored(row.as_deref())?;
        stored.iter_mut().zip(pending).for_each(|(stored, pending)| *stored = pending.max(*stored));
        Ok(stored)
    }

    /// Stores how far clients have come, tells live members of it, and waits until that is done.
    pub fn settle_receipts(&self) {
        self.receipts_worker.order_and_wait(|done| done);
    }

    /// How many members have a message and have read it, and who, as far as the conversation shows it.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `not_a_message`; `forbidden` where the conversation shows none; `store_unavailable`.
    pub fn message_receipts(&self, actor: &Actor, conversation: &str, seq: u64) -> Result<MessageReceipts, Refusal> {
        let (ref actor, conversation) = self.enter_at(actor, conversation, seq)?;
        let mode = self.receipts_shown_to(actor, &conversation)?;
        let message = self.stored_message(&conversation, seq)?;
        let hides_reads = self.is_shown_no_reads(actor)?;
        let sender = message.content.sender.as_ref().map(|sender| sender.no);
        let mut receipts = MessageReceipts { delivered: 0, read: 0, members: 0, receipts: None };
        let mut after = None;
        loop {
            let page = self.progress_of_members(conversation.no, after).map_err(store_refusal)?;
            after = page.last().map(|member| member.user);
            let is_last = page.len() < MEMBERS_AT_ONCE;
            for MemberProgress { user, membership, stored, receipts_off } in page {
                if Some(user) == sender || membership.joined_seq >= seq {
                    continue;
                }
                let has_read = membership.read_seq >= seq;
                let delivered = has_read || stored[conversation.lane() as usize] >= message.position;
                let read = has_read && !receipts_off && !hides_reads;
                receipts.members += 1;
                receipts.delivered += u64::from(delivered);
                receipts.read += u64::from(read);
                if mode == ReceiptsMode::Members
                    && let Some(user) = self.directory.user(user).map_err(store_refusal)?
                {
                    let receipt = MemberReceipt { user: user.id.clone(), delivered, read };
                    receipts.receipts.get_or_insert_default().push(receipt);
                }
            }
            if is_last {
                break;
            }
        }
        if mode == ReceiptsMode::Members {
            receipts.receipts.get_or_insert_default();
        }
        Ok(receipts)
    }

    /// How far all members of a conversation have come, as far as it shows that.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `forbidden` where the conversation shows none; `store_unavailable`.
    pub fn conversation_receipts(&self, actor: &Actor, conversation: &str) -> Result<ConversationReceipts, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        self.check_may_read(actor, &conversation)?;
        let mode = self.receipts_shown_to(actor, &conversation)?;
        let hides_reads = self.is_shown_no_reads(actor)?;
        let last_seq = self.store.head(conversation.no).map_err(store_refusal)?.last_seq;
        let newest: Vec<_> = (last_seq.saturating_sub(RECEIPTS_DELIVERED_ENTRIES) + 1..=last_seq)
            .map(|seq| (conversation.no, seq))
            .collect();
        let positions = self.store.positions_at(&newest).map_err(store_refusal)?;
        let newest: Vec<(Position, u64)> =
            newest.iter().zip(positions).filter_map(|((_, seq), at)| Some((at?, *seq))).collect();
        let lane = conversation.lane() as usize;
        let first_counted = last_seq.saturating_sub(RECEIPTS_COUNTED_ENTRIES) + 1;
        let mut receipts = ConversationReceipts::default();
        let mut moved: BTreeMap<(ReceiptKind, u64, u64), u64> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.progress_of_members(conversation.no, after).map_err(store_refusal)?;
            after = page.last().map(|member| member.user);
            let is_last = page.len() < MEMBERS_AT_ONCE;
            for MemberProgress { user, membership, stored, receipts_off } in page {
                let shows_read = !receipts_off && !hides_reads;
                let read = Some(membership.read_seq).filter(|seq| shows_read && *seq > 0);
                // A position stands for all entries before it, and what was read was delivered.
                let count = newest.partition_point(|(position, _)| *position <= stored[lane]);
                let stored_seq = count.checked_sub(1).map_or(0, |index| newest[index].1);
                let delivered = Some(stored_seq.max(membership.read_seq)).filter(|seq| *seq > 0);
                if mode == ReceiptsMode::Members {
                    if let Some(user) = self.directory.user(user).map_err(store_refusal)? {
                        let user = user.id.clone();
                        receipts.marks.push(ReceiptMark { user, read_seq: read, delivered_seq: delivered });
                    }
                } else if actor.user().is_none_or(|reader| reader.no != user) {
                    let from = first_counted.max(membership.joined_seq + 1);
                    for (what, to) in [(ReceiptKind::Read, read), (ReceiptKind::Delivered, delivered)] {
                        if let Some(to) = to.filter(|to| *to >= from) {
                            *moved.entry((what, from, to)).or_default() += 1;
                        }
                    }
                }
            }
            if is_last {
                break;
            }
        }
        let moved = moved.into_iter();
        receipts.moved =
            moved.map(|((what, from_seq, to_seq), count)| MovedMarks { what, from_seq, to_seq, count }).collect();
        Ok(receipts)
    }

    /// What the conversation shows this reader of its receipts.
    ///
    /// # Errors
    /// `forbidden` if it shows none; `store_unavailable`.
    fn receipts_shown_to(&self, actor: &Actor, conversation: &Conversation) -> Result<ReceiptsMode, Refusal> {
        match conversation.receipts() {
            ReceiptsMode::None => Err(Refusal::new(ErrorCode::Forbidden, "this conversation shows no receipts")),
            ReceiptsMode::Members if hides_followers(conversation, self.role_of_reader(actor, conversation)?) => {
                Ok(ReceiptsMode::Counts)
            }
            mode => Ok(mode),
        }
    }

    /// Whether the reader sees no reads of others, as one who sends none.
    fn is_shown_no_reads(&self, actor: &Actor) -> Result<bool, Refusal> {
        let Actor::User(user) = actor else { return Ok(false) };
        Ok(self.directory.user(user.no).map_err(store_refusal)?.is_none_or(|user| user.receipts_off))
    }

    /// A page of the members behind this one, in the order of their numbers; the last has fewer than [`MEMBERS_AT_ONCE`].
    pub(crate) fn progress_of_members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
    ) -> StoreResult<Vec<MemberProgress>> {
        let members = self.store.members(conversation, after, MEMBERS_AT_ONCE)?;
        let keys: Vec<_> = members.iter().flat_map(|(user, _)| [stored_key(*user), settings_key(*user)]).collect();
        let rows = self.store.rows_of(RowSpace::Chat, &keys)?;
        let progress = members.into_iter().zip(rows.chunks_exact(2)).map(|((user, membership), rows)| {
            let stored = decode_stored(rows[0].as_deref())?;
            let UserSettings { receipts_off, .. } = UserSettings::decode(rows[1].as_deref())?;
            Ok(MemberProgress { user, membership, stored, receipts_off })
        });
        progress.collect()
    }
}
