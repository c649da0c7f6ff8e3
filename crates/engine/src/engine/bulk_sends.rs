//! Sends of one message to some of an official account's followers, as callers see them, and the work on them.

use crate::{
    Engine,
    access::Caller,
    bulk_sends::{self as rows, Progress, RUNNING_MAX},
    engine::send::{Occasion, check_message},
    paging::page_limit,
    request_digests,
};
use std::sync::Arc;
use tidings_domain::{
    function::Function,
    gates::Gate,
    model::*,
    refusals::{leader_unavailable, store_refusal},
    store::Term,
};
use tidings_popups::Audience;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{BulkSend, BulkSends, BulkStatus, BulkTarget, CreateBulkSend, NewMessage, SendReceipt, SendRequest},
    ids::check_id,
    limits::{BULK_SENDS_PAGE_MAX, BULK_USERS_MAX},
};

/// Members that one round looks at, and messages that it sends at most.
const EXAMINED_PER_ROUND: usize = 500;
const SENT_PER_ROUND: usize = 100;

/// A user whose turn it is, with the cursor behind the user.
struct Turn {
    cursor: u64,
    /// Absent: the message is not for this user.
    user: Option<Arc<User>>,
}

/// What a round came to.
struct Round {
    turns: Vec<Turn>,
    /// Nobody is left after these.
    is_last: bool,
}

impl Engine {
    /// Accepts a send to some followers: with the answer it is durable. Blocks.
    ///
    /// # Errors
    /// `not_found` and `conflict` for the account, `not_found` for a segment, `invalid_field`, `limit_exceeded`;
    /// `queue_full`, `store_unavailable`, `node_unavailable` and `draining`: nothing was stored.
    pub fn create_bulk_send(&self, new: CreateBulkSend) -> Result<(BulkSend, bool), Refusal> {
        self.check_draining()?;
        let account = self.check_bulk_send(&new)?;
        let mut cursor = self.bulk_sends.lock();
        let term = self.leads.term(Function::Popups).ok_or_else(leader_unavailable)?;
        let all = rows::all(&*self.store).map_err(store_refusal)?;
        let same =
            |known: &&Progress| known.view.account == new.account && known.view.client_bulk_id == new.client_bulk_id;
        if new.client_bulk_id.is_some()
            && let Some(first) = all.iter().find(same)
        {
            if first.request.is_some_and(|first| first != request_digests::of_bulk_send(&new)) {
                let why = "this client_bulk_id stands for another bulk send: give each an id of its own";
                return Err(Refusal::new(ErrorCode::ClientBulkIdReused, why));
            }
            return Ok((first.view.clone(), true));
        }
        if all.iter().filter(|progress| progress.is_running()).count() >= RUNNING_MAX {
            let detail = format!("{RUNNING_MAX} bulk sends are running");
            return Err(Refusal::new(ErrorCode::QueueFull, detail).retry_after(60_000));
        }
        let now_ms = self.clock.now_ms();
        rows::forget_old(&*self.store, term, &all, now_ms).map_err(store_refusal)?;
        let view = BulkSend {
            id: all.last().map_or(1, |last| last.view.id + 1),
            client_bulk_id: new.client_bulk_id.clone(),
            account: account.id.clone(),
            status: BulkStatus::Running,
            created_at: now_ms,
            ended_at: None,
            examined: 0,
            sent: 0,
            failed: 0,
            last_error: None,
        };
        let request = new.client_bulk_id.as_ref().map(|_| request_digests::of_bulk_send(&new));
        rows::create(&*self.store, term, &Progress { view: view.clone(), cursor: 0, request }, &new)
            .map_err(store_refusal)?;
        *cursor = None;
        Ok((view, false))
    }

    fn check_bulk_send(&self, new: &CreateBulkSend) -> Result<Arc<Conversation>, Refusal> {
        if let Some(id) = &new.client_bulk_id {
            check_id("client_bulk_id", id)?;
        }
        if new.message.client_msg_id.is_some() || new.message.reply_to.is_some() {
            return Err(Refusal::field("message", "client_msg_id and reply_to are not given in a bulk send"));
        }
        let account = self.bulk_account(&new.account)?;
        let BulkTarget { users, segment, rule } = &new.to;
        match (users, segment, rule) {
            (Some(users), None, None) if users.len() > BULK_USERS_MAX => {
                Err(Refusal::limit("to.users", BULK_USERS_MAX as u64, users.len() as u64))
            }
            (Some(users), None, None) => users.iter().try_for_each(|user| check_id("to.users", user)),
            (None, Some(segment), None) => self.popups.segment(segment).map(drop),
            (None, None, Some(rule)) => self.popups.audience("to.rule", rule).map(drop),
            _ => Err(Refusal::field("to", "give exactly one of users, segment and rule")),
        }?;
        check_message(&new.message)?;
        new.message.expires.map_or(Ok(()), |_| self.gates.require(Gate::DisappearingMessages))?;
        Ok(account)
    }

    /// The account, and that it has a user of its own to send as.
    fn bulk_account(&self, id: &str) -> Result<Arc<Conversation>, Refusal> {
        let account = self.directory.require_conversation_by(&Actor::App, id)?;
        if account.kind != ConversationKind::Official {
            return Err(Refusal::new(ErrorCode::Conflict, format!("account: {id:?} is not an official account")));
        }
        match self.directory.user_by_id(id).map_err(store_refusal)? {
            Some(_) => Ok(account),
            None => Err(Refusal::new(ErrorCode::Conflict, format!("account: there is no user {id:?} to send as"))),
        }
    }

    /// A send to some followers.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn bulk_send(&self, id: u64) -> Result<BulkSend, Refusal> {
        Ok(self.require_bulk_send(id)?.view)
    }

    fn require_bulk_send(&self, id: u64) -> Result<Progress, Refusal> {
        let found = rows::progress(&*self.store, id).map_err(store_refusal)?;
        found.ok_or_else(|| Refusal::not_found("bulk send", &id.to_string()))
    }

    /// A page of all sends to some followers, the newest first.
    ///
    /// # Errors
    /// `limit_exceeded`; `store_unavailable`.
    pub fn bulk_sends(&self, after: Option<u64>, limit: usize) -> Result<BulkSends, Refusal> {
        let limit = page_limit(limit, BULK_SENDS_PAGE_MAX, BULK_SENDS_PAGE_MAX)?;
        let all = rows::all(&*self.store).map_err(store_refusal)?;
        let earlier = all.into_iter().rev().map(|progress| progress.view);
        let mut page: Vec<_> =
            earlier.filter(|view| after.is_none_or(|after| view.id < after)).take(limit + 1).collect();
        let has_more = page.len() > limit;
        page.truncate(limit);
        Ok(BulkSends { next: page.last().filter(|_| has_more).map(|view| view.id), bulk_sends: page })
    }

    /// Cancels a send: followers whose turn has not come get no message. Of an ended send it changes nothing.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`, `node_unavailable`.
    pub fn cancel_bulk_send(&self, id: u64) -> Result<BulkSend, Refusal> {
        let _changes = self.bulk_sends.lock();
        let term = self.leads.term(Function::Popups).ok_or_else(leader_unavailable)?;
        let mut progress = self.require_bulk_send(id)?;
        if progress.is_running() {
            progress.end(BulkStatus::Cancelled, self.clock.now_ms());
            rows::put(&*self.store, term, &progress).map_err(store_refusal)?;
        }
        Ok(progress.view)
    }

    /// Does a part of each running send. Answers whether there is more to do at once. Only the leader of popups works, which knows the segments.
    ///
    /// # Errors
    /// `store_unavailable`: a later call goes on.
    pub async fn work_on_bulk_sends(self: &Arc<Self>) -> Result<bool, Refusal> {
        let Some(term) = self.leads.term(Function::Popups) else { return Ok(false) };
        let engine = self.clone();
        let running = move || {
            let mut idle_in = engine.bulk_sends.lock();
            if *idle_in == Some(term) {
                return Ok(Vec::new());
            }
            let all = rows::all(&*engine.store).map_err(store_refusal)?;
            let running: Vec<_> = all.into_iter().filter(Progress::is_running).collect();
            *idle_in = running.is_empty().then_some(term);
            Ok::<_, Refusal>(running)
        };
        let mut has_more = false;
        for progress in blocking(running).await? {
            has_more |= self.work_on(term, progress).await?;
        }
        Ok(has_more)
    }

    /// Does a part of one send. Answers whether the next part can follow at once.
    async fn work_on(self: &Arc<Self>, term: Term, progress: Progress) -> Result<bool, Refusal> {
        let (engine, id, cursor) = (self.clone(), progress.view.id, progress.cursor);
        let prepared = blocking(move || {
            let new = rows::definition(&*engine.store, id).map_err(store_refusal)?;
            let round =
                engine.bulk_account(&new.account).and_then(|account| engine.next_turns(&account, &new.to, cursor));
            Ok((new, round))
        });
        let (new, round) = prepared.await?;
        let (results, round) = match round {
            Ok(round) => (self.send_turns(id, &new, &round).await, Ok(round)),
            Err(refusal) => (Vec::new(), Err(refusal)),
        };
        let engine = self.clone();
        blocking(move || engine.record_round(term, id, round, results)).await
    }

    /// Sends the message to those whose turn it is.
    async fn send_turns(
        self: &Arc<Self>,
        id: u64,
        new: &CreateBulkSend,
        round: &Round,
    ) -> Vec<Result<SendReceipt, Refusal>> {
        let requests = round.turns.iter().filter_map(|turn| turn.user.as_ref()).map(|user| {
            let NewMessage { content_type, body, mentions, silent, skip_push, expires, .. } = new.message.clone();
            SendRequest {
                conversation: None,
                to: Some(user.id.clone()),
                from: Some(new.account.clone()),
                client_msg_id: Some(format!("bulk-{id}-{}", user.no.0)),
                content_type,
                body,
                mentions,
                silent,
                skip_push,
                reply_to: None,
                expires,
            }
        });
        self.begin_all(&Caller::APP, requests.collect(), Occasion::BulkSend).finish().await
    }

    /// The users whose turn comes after the cursor, until a round is full.
    fn next_turns(&self, account: &Conversation, to: &BulkTarget, cursor: u64) -> Result<Round, Refusal> {
        let is_follower = |user: UserNo| {
            let membership = self.directory.membership(account.no, user).map_err(store_refusal)?;
            Ok::<_, Refusal>(membership.is_some_and(|membership| membership.role == Role::Member))
        };
        if let Some(users) = &to.users {
            let from = usize::try_from(cursor).unwrap_or(usize::MAX).min(users.len());
            let mut turns = Vec::new();
            for (cursor, id) in (cursor + 1..).zip(users[from..].iter().take(SENT_PER_ROUND)) {
                let user = self.directory.user_by_id(id).map_err(store_refusal)?;
                let user = user.map(|user| Ok::<_, Refusal>(is_follower(user.no)?.then_some(user))).transpose()?;
                turns.push(Turn { cursor, user: user.flatten() });
            }
            return Ok(Round { is_last: from + turns.len() >= users.len(), turns });
        }
        let audience = to.rule.as_ref().map(|rule| self.popups.audience("to.rule", rule)).transpose()?;
        let after = (cursor > 0).then_some(UserNo(cursor));
        let members = self.store.members(account.no, after, EXAMINED_PER_ROUND).map_err(store_refusal)?;
        let (mut turns, mut sent, found) = (Vec::new(), 0, members.len());
        for (user, membership) in members {
            if sent == SENT_PER_ROUND {
                break;
            }
            let profile = self.directory.user(user).map_err(store_refusal)?;
            let profile = profile.filter(|_| membership.role == Role::Member);
            let profile = match profile {
                Some(profile) if self.suits(to, audience.as_ref(), &profile.id)? => Some(profile),
                _ => None,
            };
            sent += usize::from(profile.is_some());
            turns.push(Turn { cursor: user.0, user: profile });
        }
        Ok(Round { is_last: found < EXAMINED_PER_ROUND && turns.len() == found, turns })
    }

    fn suits(&self, to: &BulkTarget, audience: Option<&Audience>, user: &str) -> Result<bool, Refusal> {
        match (&to.segment, audience) {
            (Some(segment), _) => self.popups.is_in_segment(segment, user),
            (None, Some(audience)) => self.popups.is_in_audience(audience, user),
            (None, None) => Ok(false),
        }
    }

    /// Records what a round came to. A send that was cancelled meanwhile stays cancelled.
    fn record_round(
        &self,
        term: Term,
        id: u64,
        round: Result<Round, Refusal>,
        results: Vec<Result<SendReceipt, Refusal>>,
    ) -> Result<bool, Refusal> {
        let _changes = self.bulk_sends.lock();
        let mut progress = self.require_bulk_send(id)?;
        let has_more = match round {
            Ok(round) => count(&mut progress, &round, results, self.clock.now_ms()),
            Err(refusal) if refusal.code.retryable() => return Err(refusal),
            Err(refusal) => {
                progress.view.last_error = Some(refusal.to_string());
                if progress.is_running() {
                    progress.end(BulkStatus::Failed, self.clock.now_ms());
                }
                false
            }
        };
        rows::put(&*self.store, term, &progress).map_err(store_refusal)?;
        Ok(has_more)
    }
}

/// Counts the turns of a round, up to the first that must be tried again. Answers whether the next round can follow at once.
fn count(progress: &mut Progress, round: &Round, results: Vec<Result<SendReceipt, Refusal>>, now_ms: u64) -> bool {
    let mut results = results.into_iter();
    for turn in &round.turns {
        match turn.user.as_ref().and_then(|_| results.next()) {
            // Nothing was stored, or it is not known: the next round sends it again under the same id.
            Some(Err(refusal)) if refusal.code.retryable() => return false,
            Some(Err(refusal)) => {
                progress.view.failed += 1;
                progress.view.last_error = Some(refusal.to_string());
            }
            Some(Ok(_)) => progress.view.sent += 1,
            None => {}
        }
        progress.view.examined += 1;
        progress.cursor = turn.cursor;
    }
    if round.is_last && progress.is_running() {
        progress.end(BulkStatus::Done, now_ms);
    }
    progress.is_running()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Result<T, Refusal> {
    let ended = |_| Refusal::new(ErrorCode::Internal, "the bulk send failed by a defect of the server");
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}
