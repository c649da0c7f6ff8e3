//! Users whom time moves on in journeys, and pushes that are due. The store has a row for the time at which each such user is
//! to be looked at; the worker reads those whose time has come.

use super::{
    UserKey,
    configuration::Configuration,
    journeys::{
        JourneyPush, PUSHES_MAX, PushDone, PushJob, WakeChange,
        position::{Move, Position},
    },
    rows::{self, CountKind, SPACE, Wake},
    user_changes::{UserChange, UserChanges},
    worker::Worker,
};
use tidings_domain::store::{RowChange, StoreResult};
use tidings_protocol::error::{ErrorCode, Refusal};
use xxhash_rust::xxh3::Xxh3;

/// Users looked at in one run.
const USERS_AT_ONCE: usize = 256;
/// When a push is tried again that was refused for now.
const PUSH_RETRY_MS: u64 = 5_000;

impl Worker {
    /// Looks at the users whose time has come, and at pushes that are done.
    pub(crate) fn run_journeys(&mut self) -> StoreResult<()> {
        let Some(configuration) = self.shared.configuration.read().clone() else { return Ok(()) };
        self.journeys.has_more = false;
        if configuration.journeys.is_empty() || self.check_resolved().is_err() {
            return Ok(());
        }
        self.settle_pushes()?;
        let now_ms = self.shared.clock.now_ms();
        if now_ms < self.journeys.next_at {
            return Ok(());
        }
        let to = rows::end_of(rows::wake_key(Wake { at: now_ms, user: UserKey(u128::MAX) }));
        let due = self.shared.store.rows(SPACE, &[rows::kind::WAKE], &to, USERS_AT_ONCE + PUSHES_MAX)?;
        let has_more = due.len() == USERS_AT_ONCE + PUSHES_MAX;
        let mut users = UserChanges::default();
        let mut woken = Vec::new();
        for (key, row) in due {
            let wake = rows::read_wake(&key)?;
            let user = String::from_utf8_lossy(&row).into_owned();
            if self.journeys.on_their_way.iter().any(|(other, ..)| *other == wake.user) || woken.len() >= USERS_AT_ONCE
            {
                continue;
            }
            // Of a user's rows one is looked at in a run, and so each user once.
            if woken.iter().any(|(other, _): &(Wake, String)| other.user == wake.user) {
                continue;
            }
            users.push(&user, UserChange::Look { at: wake.at });
            woken.push((wake, user));
        }
        if woken.is_empty() {
            // Until then no new row can be due: those that are made meanwhile set an earlier time.
            self.journeys.next_at = if has_more { now_ms } else { self.next_wake_after(now_ms)? };
            return Ok(());
        }
        self.write_changes(Vec::new(), Vec::new(), users)?;
        for (wake, user) in woken {
            self.begin_pushes(&configuration, wake, &user);
        }
        self.journeys.next_at = now_ms;
        self.journeys.has_more = true;
        Ok(())
    }

    fn next_wake_after(&self, now_ms: u64) -> StoreResult<u64> {
        if !self.journeys.on_their_way.is_empty() {
            return Ok(now_ms);
        }
        let from = rows::wake_key(Wake { at: now_ms + 1, user: UserKey(0) });
        let next = self.shared.store.rows(SPACE, &from, &rows::end_of(vec![rows::kind::WAKE]), 1)?;
        next.first().map_or(Ok(u64::MAX), |(key, _)| Ok(rows::read_wake(key)?.at))
    }

    /// Hands the pushes over that the user's positions are at. The positions are stored.
    fn begin_pushes(&mut self, configuration: &Configuration, wake: Wake, user: &str) {
        let mut stripe = self.shared.users.stripe(wake.user);
        let Some(state) = stripe.get(wake.user) else { return };
        let due: Vec<_> = configuration.journeys.due_pushes(&state.counters).collect();
        for (journey, position, push) in due {
            let key = (wake.user, journey.no, position.moves);
            let step = journey.step_id(position.version, position.step);
            let client_push_id = client_push_id(journey.no, position, user, step);
            let push = JourneyPush { user: user.to_owned(), client_push_id, push: push.clone() };
            // The row of the time at which the user is looked at is there again: it is that of the push.
            let wake = Wake { at: position.since, user: wake.user };
            if self.journeys.on_their_way.len() < PUSHES_MAX
                && self.journeys.jobs.as_ref().is_some_and(|jobs| jobs.try_send(PushJob { key, wake, push }).is_ok())
            {
                self.journeys.on_their_way.insert(key);
            }
        }
    }

    /// Moves the users on whose pushes are durable; others are tried again.
    fn settle_pushes(&mut self) -> StoreResult<()> {
        let done: Vec<PushDone> = self.journeys.done.try_iter().collect();
        if done.is_empty() {
            return Ok(());
        }
        let (mut users, mut changes) = (UserChanges::default(), Vec::new());
        let now_ms = self.shared.clock.now_ms();
        for PushDone { key: (user, journey, moves), wake, user: id, result } in &done {
            self.journeys.on_their_way.remove(&(*user, *journey, *moves));
            match result {
                Err(refusal) if is_for_now(refusal) => {
                    let again = Wake { at: now_ms + PUSH_RETRY_MS, user: *user };
                    changes.push(rows::remove(rows::wake_key(*wake)));
                    changes.push(rows::put(rows::wake_key(again), id.as_bytes().to_vec()));
                    self.journeys.wakes_at(again.at);
                }
                _ => {
                    if let Err(refusal) = result {
                        tracing::warn!(%refusal, "a journey's push was refused; the user goes on without it");
                    }
                    users.push(id, UserChange::Pushed { journey: *journey, moves: *moves });
                }
            }
        }
        // If the write fails, the rows are still there: the pushes are tried again under the same names.
        self.journeys.wakes_at(now_ms);
        self.write_changes(changes, Vec::new(), users)
    }

    /// Counts the moves, each of which was loaded.
    pub(crate) fn count_moves(&mut self, moves: &[(Move, u64)]) -> StoreResult<()> {
        let Some(configuration) = self.shared.configuration.read().clone() else { return Ok(()) };
        let mut counted = Vec::new();
        for (one, at) in moves {
            let Some(journey) = configuration.journeys.by_no(one.journey) else { continue };
            let name = |step| format!("{}/{}", one.version, journey.step_id(one.version, step));
            counted.push((one.journey, name(one.to), CountKind::Shown, *at));
            counted.extend(one.from.map(|from| (one.journey, name(from), CountKind::Control, *at)));
        }
        let wanted = counted.iter().map(|(no, name, _, at)| (*no, name.as_str(), *at));
        self.counts.load(&*self.shared.store, wanted)?;
        for (no, name, kind, at) in counted {
            self.counts.count(no, &name, kind, at);
        }
        Ok(())
    }

    /// Replaces the row of the time at which a user is looked at, and that of the user's id. `woken`: the time of the row
    /// for which the user is looked at now.
    pub(crate) fn push_wake(
        &mut self,
        key: UserKey,
        id: &str,
        change: WakeChange,
        woken: Option<u64>,
        to: &mut Vec<RowChange>,
    ) {
        let WakeChange { before, after, stood, stands } = change;
        for at in [before, woken].into_iter().flatten().filter(|at| Some(*at) != after) {
            to.push(rows::remove(rows::wake_key(Wake { at, user: key })));
        }
        if let Some(at) = after {
            self.journeys.wakes_at(at);
            if after != before || woken.is_some_and(|woken| woken != at) {
                to.push(rows::put(rows::wake_key(Wake { at, user: key }), id.as_bytes().to_vec()));
            }
        }
        match (stood, stands) {
            (false, true) => to.push(rows::put(rows::standing_key(key), id.as_bytes().to_vec())),
            // Or the journeys are gone in which the user stood.
            (stood, false) if stood || woken.is_some() => to.push(rows::remove(rows::standing_key(key))),
            _ => {}
        }
    }
}

/// Whether a push may be taken later.
fn is_for_now(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        ErrorCode::QueueFull
            | ErrorCode::StoreUnavailable
            | ErrorCode::NodeUnavailable
            | ErrorCode::Draining
            | ErrorCode::RateLimited
            | ErrorCode::Internal
    )
}

/// The name of a push, of 128 bits of a hash.
fn client_push_id(journey: u32, position: Position, user: &str, step: &str) -> String {
    let mut hasher = Xxh3::new();
    hasher.update(&journey.to_le_bytes());
    hasher.update(&position.version.to_le_bytes());
    hasher.update(&position.moves.to_le_bytes());
    hasher.update(user.as_bytes());
    // No id contains this byte, so two different pairs never give the same input.
    hasher.update(&[0xFF]);
    hasher.update(step.as_bytes());
    format!("journey-{:032x}", hasher.digest128())
}
