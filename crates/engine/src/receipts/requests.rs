//! Who has a message, and who has read it: derived from read marks and from how far clients have stored what they were
//! handed.

use crate::{Engine, visibility::hides_followers};
use tidings_domain::{
    chat_rows::{UserSettings, decode_stored, settings_key, stored_key},
    model::*,
    refusals::store_refusal,
    store::{RowSpace, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{MemberReceipt, MessageReceipts},
};

/// Members whose receipts are read at once.
const MEMBERS_AT_ONCE: usize = 500;

/// What is known of a member.
struct MemberProgress {
    user: UserNo,
    membership: Membership,
    stored: [Position; LANES],
    receipts_off: bool,
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
        let row = self.store.row(RowSpace::Chat, &stored_key(user))?;
        let mut stored = decode_stored(row.as_deref())?;
        let pending = self.receipts.pending_stored(user, self.store.epoch());
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
        let mut mode = conversation.receipts();
        if mode == ReceiptsMode::Members && hides_followers(&conversation, self.role_of_reader(actor, &conversation)?) {
            mode = ReceiptsMode::Counts;
        }
        if mode == ReceiptsMode::None {
            return Err(Refusal::new(ErrorCode::Forbidden, "this conversation shows no receipts"));
        }
        let message = self.stored_message(&conversation, seq)?;
        let hides_reads = match actor {
            Actor::App => false,
            Actor::User(user) => {
                self.directory.user(user.no).map_err(store_refusal)?.is_none_or(|user| user.receipts_off)
            }
        };
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

    fn progress_of_members(
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
