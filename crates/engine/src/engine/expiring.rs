//! Messages that disappear: after a time, or once they were read. The commit that stores such a message stores when it goes; the leader
//! looks for those whose time is over, and has each recalled by nobody. That a message goes once rests on the recall: the second one of
//! a message changes nothing, and rows that a crash has left are found again.

use crate::{
    Engine,
    commit::PendingOutcome,
    receipts::requests::{MEMBERS_AT_ONCE, MemberProgress},
};
use std::collections::BTreeMap;
use tidings_domain::{
    chat_rows::number_in,
    erasure::legal_hold_key,
    expiry::*,
    function::Function,
    gates::Gate,
    leadership::Term,
    model::*,
    refusals::{store_refusal, unexpected_outcome},
    store::*,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ConversationRetention, Expires, NewMessage},
    limits::*,
};

/// Messages that go in one round.
const EXPIRED_AT_ONCE: usize = 500;
/// Proposals that are submitted before the first is waited for: few, so that senders find room in the queues.
const PROPOSALS_AT_ONCE: usize = 100;
/// Conversations in one round in which members have read on.
const MOVED_AT_ONCE: usize = 100;
const ROWS_AT_ONCE: usize = 1_000;
/// How often the index is read from its beginning, and it is looked whether legal holds were lifted.
const SWEEP_EVERY_MS: u64 = 60_000;
/// How far the clock of a node that stores messages may be behind this one's for its messages to be found before the next sweep.
const CLOCKS_APART_MS: u64 = 10_000;

/// What the leader knows in its term of messages that disappear.
pub(crate) struct Expiring {
    term: Term,
    /// Those that wait to be read.
    waiting: BTreeMap<(ConversationNo, u64), WaitsToBeRead>,
    /// All that was due until then is dealt with.
    done_through: u64,
    /// When the index is read from its beginning again.
    sweep_at: u64,
}

/// What becomes of a message whose time is over.
enum Expired {
    /// It is gone, or was before.
    Gone,
    /// A legal hold keeps it, or an import that is not finished.
    Held,
}

impl Engine {
    /// Deals with the messages whose time is over, some of them. Answers whether there is more to do at once. Only the leader does so.
    /// Blocks.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`, `draining`: a later call goes on.
    pub fn expire_messages(&self) -> Result<bool, Refusal> {
        let Some(term) =
            self.leads.term(Function::ScheduledMessages).filter(|_| self.gates.is_open(Gate::DisappearingMessages))
        else {
            return Ok(false);
        };
        let now_ms = self.clock.now_ms();
        let mut known = self.expiring.lock();
        let known = self.known_expiring(&mut known, term)?;
        // A clock that was set back, or is right now for the first time, begins anew.
        let sweeps = now_ms >= known.sweep_at || now_ms < known.done_through;
        if sweeps {
            self.release_from_holds(term, now_ms)?;
        }
        let from = if sweeps { 0 } else { known.done_through.saturating_sub(CLOCKS_APART_MS) };
        let (low, high) = due_between(from, now_ms);
        let due = self.store.rows(RowSpace::Chat, &low, &high, EXPIRED_AT_ONCE).map_err(store_refusal)?;
        let has_more = due.len() == EXPIRED_AT_ONCE;
        self.expire_due(known, due)?;
        if !has_more {
            known.done_through = now_ms;
            known.sweep_at = if sweeps { now_ms + SWEEP_EVERY_MS } else { known.sweep_at };
        }
        let moved = self.directory.read_moves.take(MOVED_AT_ONCE);
        let mut is_due = false;
        for conversation in &moved {
            match self.look_who_has_read(known, *conversation, now_ms) {
                Ok(due_now) => is_due |= due_now,
                Err(refusal) => {
                    moved.iter().for_each(|conversation| self.directory.read_moves.note(*conversation));
                    return Err(refusal);
                }
            }
        }
        Ok(has_more || is_due || moved.len() == MOVED_AT_ONCE)
    }

    /// What is known in this term: those that wait to be read are read once, when the term has begun.
    fn known_expiring<'k>(&self, known: &'k mut Option<Expiring>, term: Term) -> Result<&'k mut Expiring, Refusal> {
        if known.as_ref().is_none_or(|known| known.term != term) {
            let (mut from, to) = all_waiting();
            let mut waiting = BTreeMap::new();
            loop {
                let rows = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
                for (key, row) in &rows {
                    let Some(message) = message_in(key) else { continue };
                    waiting.insert(message, WaitsToBeRead::decode(row).map_err(store_refusal)?);
                }
                match rows.last() {
                    Some((last, _)) if rows.len() == ROWS_AT_ONCE && waiting.len() < EXPIRES_WATCHED_MAX => {
                        from = [&last[..], &[0]].concat();
                    }
                    _ => break,
                }
            }
            self.directory.read_moves.watch_only(waiting.keys().map(|(conversation, _)| *conversation));
            *known = Some(Expiring { term, waiting, done_through: 0, sweep_at: 0 });
        }
        known.as_mut().ok_or_else(unexpected_outcome)
    }

    fn expire_due(&self, known: &mut Expiring, due: Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), Refusal> {
        let (mut changes, mut expired) = (Vec::new(), Vec::new());
        for (key, value) in due {
            let Some((conversation, seq)) = due_in(&key) else { continue };
            let what = due_of(&value);
            if what == Due::Watch {
                self.watch_new(known, conversation, seq)?;
                changes.push(RowChange { key, value: None });
            } else {
                expired.push((key, what, conversation, seq));
            }
        }
        let mut refused = Ok(());
        for some in expired.chunks(PROPOSALS_AT_ONCE) {
            let begun = some.iter().map(|(_, _, conversation, seq)| self.begin_expiry(*conversation, *seq));
            let begun: Vec<_> = begun.collect();
            for ((key, what, conversation, seq), begun) in some.iter().zip(begun) {
                let outcome = match begun.and_then(|begun| begun.map_or(Ok(Expired::Gone), expired_of)) {
                    Ok(outcome) => outcome,
                    // They hold up nobody else's: those of an import are looked at again once it is finished, and a deletion takes its own.
                    Err(refusal) if refusal.code == ErrorCode::ConversationImporting => Expired::Held,
                    Err(refusal) if refusal.code == ErrorCode::ConversationDeleted => Expired::Gone,
                    Err(refusal) => {
                        refused = Err(refusal);
                        continue;
                    }
                };
                changes.push(RowChange { key: key.clone(), value: None });
                if matches!(outcome, Expired::Held) {
                    changes.push(RowChange { key: held_key(*conversation, *seq), value: Some(Vec::new()) });
                }
                if *what == Due::ExpireUnread {
                    changes.push(RowChange { key: waiting_key(*conversation, *seq), value: None });
                    self.forget_waiting(known, *conversation, *seq);
                }
            }
            if refused.is_err() {
                break;
            }
        }
        for some in changes.chunks(ROWS_AT_ONCE) {
            self.store.write_rows(known.term, RowSpace::Chat, some.to_vec()).map_err(store_refusal)?;
        }
        refused
    }

    /// Submits the recall of a message whose time is over; `None`: its conversation is no more.
    fn begin_expiry(&self, conversation: ConversationNo, seq: u64) -> Result<Option<PendingOutcome>, Refusal> {
        let Some(details) = self.directory.conversation(conversation).map_err(store_refusal)? else { return Ok(None) };
        let entry = NewEntry {
            kind: EntryKind::Recall,
            sender: None,
            client_msg_id: None,
            content_type: "text".into(),
            body: NO_BODY.into(),
            mentions: Vec::new(),
            silent: true,
            skip_push: true,
            details: None,
            request: EntryRequest::default(),
        };
        let proposal = Proposal::ChangeMessage { conversation, target: seq, change: MessageChange::Expire, entry };
        self.committer.begin(Some(&details), proposal).map(Some)
    }

    /// Has a message go whose time is over. A legal hold keeps it.
    pub(crate) fn expire(&self, conversation: ConversationNo, seq: u64) -> Result<(), Refusal> {
        self.begin_expiry(conversation, seq)?.map_or(Ok(Expired::Gone), expired_of).map(drop)
    }

    /// Another message waits to be read.
    fn watch_new(&self, known: &mut Expiring, conversation: ConversationNo, seq: u64) -> Result<(), Refusal> {
        let row = self.store.row(RowSpace::Chat, &waiting_key(conversation, seq)).map_err(store_refusal)?;
        if let Some(row) = row.filter(|_| known.waiting.len() < EXPIRES_WATCHED_MAX) {
            let waits = WaitsToBeRead::decode(&row).map_err(store_refusal)?;
            known.waiting.insert((conversation, seq), waits);
            self.directory.read_moves.watch(conversation);
        }
        Ok(())
    }

    fn forget_waiting(&self, known: &mut Expiring, conversation: ConversationNo, seq: u64) {
        known.waiting.remove(&(conversation, seq));
        if known.waiting.range((conversation, 0)..=(conversation, u64::MAX)).next().is_none() {
            self.directory.read_moves.forget(conversation);
        }
    }

    /// Gives the messages of a conversation that all others have read the time at which they disappear. Answers whether that is now.
    fn look_who_has_read(
        &self,
        known: &mut Expiring,
        conversation: ConversationNo,
        now_ms: u64,
    ) -> Result<bool, Refusal> {
        let waiting = known.waiting.range((conversation, 0)..=(conversation, u64::MAX));
        let waiting: Vec<(u64, WaitsToBeRead)> = waiting.map(|((_, seq), waits)| (*seq, *waits)).collect();
        let details = self.directory.conversation(conversation).map_err(store_refusal)?;
        // Where members do not learn what others have read, they do not learn it by this either. All members are read each time: of a
        // group that has become large the messages go at their last time.
        let looks = |details: &Conversation| {
            details.receipts() != ReceiptsMode::None && details.member_count <= RECEIPTS_LIST_MAX
        };
        if waiting.is_empty() || !details.is_some_and(|details| looks(&details)) {
            return Ok(false);
        }
        let mut members = Vec::new();
        loop {
            let after = members.last().map(|member: &MemberProgress| member.user);
            let page = self.progress_of_members(conversation, after).map_err(store_refusal)?;
            let is_last = page.len() < MEMBERS_AT_ONCE;
            members.extend(page);
            if is_last {
                break;
            }
        }
        let read: Vec<_> =
            waiting.into_iter().filter(|(seq, waits)| is_read_by_others(*seq, waits.sender, &members)).collect();
        let (mut changes, mut is_due) = (Vec::new(), false);
        for (seq, waits) in &read {
            let at = now_ms.saturating_add(waits.after_read_ms).min(waits.last_time);
            is_due |= at <= now_ms;
            changes.push(RowChange { key: waiting_key(conversation, *seq), value: None });
            changes.push(RowChange { key: due_key(waits.last_time, conversation, *seq), value: None });
            changes.retain(|change| change.key != due_key(at, conversation, *seq));
            changes.push(RowChange { key: due_key(at, conversation, *seq), value: Some(Vec::new()) });
        }
        for some in changes.chunks(ROWS_AT_ONCE) {
            self.store.write_rows(known.term, RowSpace::Chat, some.to_vec()).map_err(store_refusal)?;
        }
        read.iter().for_each(|(seq, _)| self.forget_waiting(known, conversation, *seq));
        Ok(is_due)
    }

    /// Has those messages disappear now that legal holds and imports have kept, and keep no longer.
    fn release_from_holds(&self, term: Term, now_ms: u64) -> Result<(), Refusal> {
        let mut next = Some(ConversationNo(0));
        while let Some(from) = next {
            let (low, high) = held_from(from);
            let found = self.store.rows(RowSpace::Chat, &low, &high, 1).map_err(store_refusal)?;
            let conversation = found.first().and_then(|(key, _)| number_in(key, 1)).map(ConversationNo);
            if let Some(conversation) = conversation {
                let hold = self.store.row(RowSpace::Chat, &legal_hold_key(conversation)).map_err(store_refusal)?;
                let details = self.directory.conversation(conversation).map_err(store_refusal)?;
                if hold.is_none() && !details.is_some_and(|details| details.is_importing()) {
                    self.release(term, conversation, now_ms)?;
                }
            }
            next = conversation.and_then(|conversation| conversation.0.checked_add(1)).map(ConversationNo);
        }
        Ok(())
    }

    fn release(&self, term: Term, conversation: ConversationNo, now_ms: u64) -> Result<(), Refusal> {
        let (low, high) = (held_key(conversation, 0), held_key(conversation, u64::MAX));
        loop {
            let rows = self.store.rows(RowSpace::Chat, &low, &high, ROWS_AT_ONCE).map_err(store_refusal)?;
            let is_last = rows.len() < ROWS_AT_ONCE;
            let mut changes = Vec::new();
            for (key, _) in rows {
                let due = message_in(&key).map(|(conversation, seq)| due_key(now_ms, conversation, seq));
                changes.extend(due.map(|key| RowChange { key, value: Some(Vec::new()) }));
                changes.push(RowChange { key, value: None });
            }
            self.store.write_rows(term, RowSpace::Chat, changes).map_err(store_refusal)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// When a message disappears that is sent in the conversation now.
    pub(crate) fn expiry_of(
        &self,
        conversation: &Conversation,
        message: &NewMessage,
    ) -> Result<Option<Expiry>, Refusal> {
        let Some(own) = message.expires else { return Ok(conversation.expires()) };
        self.gates.require(Gate::DisappearingMessages)?;
        if own.after_read_s.is_some() && conversation.receipts() == ReceiptsMode::None {
            let why = "this conversation shows no receipts: give after_s alone";
            return Err(Refusal::field("expires.after_read_s", why));
        }
        if own.after_read_s.is_some() && conversation.member_count > RECEIPTS_LIST_MAX {
            let what = "members of a conversation whose messages disappear once they are read";
            return Err(Refusal::limit(what, RECEIPTS_LIST_MAX, conversation.member_count));
        }
        let own = stored_expiry(own);
        Ok(Some(conversation.expires().map_or(own, |of_conversation| own.earlier(of_conversation))))
    }

    /// Checks when messages of a conversation are to disappear.
    pub(crate) fn check_default_expiry(&self, expires: Option<Expires>) -> Result<(), Refusal> {
        let Some(expires) = expires else { return Ok(()) };
        self.gates.require(Gate::DisappearingMessages)?;
        if expires == Expires::default() { Ok(()) } else { check_expires(&expires) }
    }
}

/// What became of a message whose time was over.
fn expired_of(begun: PendingOutcome) -> Result<Expired, Refusal> {
    match begun.wait()? {
        Outcome::Rejected(Rejection::LegalHold) => Ok(Expired::Held),
        // Retention has removed it.
        Outcome::MessageChanged { .. } | Outcome::Rejected(_) => Ok(Expired::Gone),
        _ => Err(unexpected_outcome()),
    }
}

/// Whether all members but the sender have read a message. Those who have joined since need not; those who send no receipts never have.
fn is_read_by_others(seq: u64, sender: UserNo, members: &[MemberProgress]) -> bool {
    let mut others =
        members.iter().filter(|member| member.user != sender && member.membership.joined_seq < seq).peekable();
    others.peek().is_some() && others.all(|other| !other.receipts_off && other.membership.read_seq >= seq)
}

/// Checks when a message is to disappear.
pub(crate) fn check_expires(expires: &Expires) -> Result<(), Refusal> {
    match *expires {
        Expires { after_s: None, after_read_s: None } => {
            Err(Refusal::field("expires", "give after_s, after_read_s, or both"))
        }
        Expires { after_s: Some(0), .. } => Err(Refusal::field("expires.after_s", "must be at least 1")),
        Expires { after_s: Some(seconds), .. } if seconds > EXPIRES_AFTER_S_MAX => {
            Err(Refusal::limit("expires.after_s", u64::from(EXPIRES_AFTER_S_MAX), u64::from(seconds)))
        }
        Expires { after_read_s: Some(seconds), .. } if seconds > EXPIRES_AFTER_READ_S_MAX => {
            Err(Refusal::limit("expires.after_read_s", u64::from(EXPIRES_AFTER_READ_S_MAX), u64::from(seconds)))
        }
        Expires { .. } => Ok(()),
    }
}

/// Checks how long a conversation is to keep its messages, and answers it as it is stored.
pub(crate) fn stored_retention(retention: ConversationRetention) -> Result<OwnRetention, Refusal> {
    let ConversationRetention { keep_days, removes_newest } = retention;
    match keep_days {
        Some(0) => Err(Refusal::field("retention.keep_days", "must be at least 1")),
        Some(days) if days > KEEP_DAYS_MAX => {
            Err(Refusal::limit("retention.keep_days", u64::from(KEEP_DAYS_MAX), u64::from(days)))
        }
        _ => Ok(OwnRetention { keep_days: keep_days.unwrap_or(0), removes_newest }),
    }
}

/// As it is shown; `None`: as for all.
pub(crate) fn shown_retention(own: OwnRetention) -> Option<ConversationRetention> {
    let OwnRetention { keep_days, removes_newest } = own;
    let shown = ConversationRetention { keep_days: Some(keep_days).filter(|days| *days > 0), removes_newest };
    Some(shown).filter(|_| own != OwnRetention::default())
}

/// As it is stored. Of a conversation that asks for none: zero seconds.
pub(crate) fn stored_expiry(expires: Expires) -> Expiry {
    let unread_s = if expires.after_read_s.is_some() { EXPIRES_UNREAD_S } else { 0 };
    Expiry { after_s: expires.after_s.unwrap_or(unread_s), after_read_s: expires.after_read_s }
}

/// As it is shown.
pub(crate) fn shown_expiry(expiry: Expiry) -> Expires {
    Expires { after_s: Some(expiry.after_s), after_read_s: expiry.after_read_s }
}
