//! Which sessions there are, by those who hold their connections: what the registry is compared with.
//!
//! A shard lists its own; for virtual ones it asks the relays, since a session whose device is gone
//! there is one that only the shard still believes in.

use crate::{
    commands::Command,
    connection::{Connection, Phase},
    gateway::Gateway,
    link::packet::Kind,
    shard::Shard,
};
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use rustc_hash::FxHashSet;
use std::time::{Duration, Instant};
use tidings_engine::{
    model::UserNo,
    presence::{
        NodeNo,
        compare::{Correction, HeldSession, SessionTruth},
    },
    shards::shard_of,
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// A list that takes longer is not worth waiting for: a relay may hang.
const DEADLINE: Duration = Duration::from_secs(30);
/// Lists that are made at once; each may name every session.
const LISTINGS_MAX: usize = 4;

/// A list that relays are still asked for.
pub(crate) struct Listing {
    question: u64,
    user: Option<UserNo>,
    reply: Sender<Vec<HeldSession>>,
    /// Links that have not answered.
    awaited: Vec<usize>,
    /// What they have named.
    held: FxHashSet<u64>,
}

impl Shard {
    pub(crate) fn begin_listing(&mut self, user: Option<UserNo>, reply: Sender<Vec<HeldSession>>) {
        if self.listings.len() >= LISTINGS_MAX {
            // Dropping the reply says no.
            return;
        }
        self.questions += 1;
        let question = self.questions;
        let awaited = self.ask_links(Kind::List, question);
        self.listings.push(Listing { question, user, reply, awaited, held: FxHashSet::default() });
        self.end_listings();
    }

    /// Names that a relay has live; none: its list is complete.
    pub(crate) fn hear_sessions(&mut self, link: usize, question: u64, names: &[u8]) {
        let names = names.chunks_exact(8).filter_map(|name| name.try_into().ok().map(u64::from_le_bytes));
        let names: Vec<u64> = names.collect();
        // Who is not here any more must not go on there: it would wait for messages that never come.
        let forgotten: Vec<u64> = names.iter().filter(|name| self.find(**name).is_none()).copied().collect();
        for name in forgotten {
            self.tell_link(link, Kind::Forget, name);
        }
        if let Some(listing) = self.listings.iter_mut().find(|listing| listing.question == question) {
            if names.is_empty() {
                listing.awaited.retain(|awaited| *awaited != link);
            }
            listing.held.extend(names);
        }
        self.end_listings();
    }

    /// A link that is gone has no sessions either.
    pub(crate) fn await_no_more(&mut self, link: usize) {
        for listing in &mut self.listings {
            listing.awaited.retain(|awaited| *awaited != link);
        }
        self.end_listings();
    }

    fn end_listings(&mut self) {
        while let Some(at) = self.listings.iter().position(|listing| listing.awaited.is_empty()) {
            let listing = self.listings.swap_remove(at);
            let sessions = self.list(&listing);
            let _ = listing.reply.send(sessions);
        }
    }

    /// What is registered of a session becomes what is so.
    pub(crate) fn correct(&mut self, correction: &Correction) {
        let Correction { session, user, held, .. } = *correction;
        let is_theirs = |key: &usize| self.connections[*key].bound.as_ref().is_some_and(|b| b.user.no == user);
        match self.find(session).filter(is_theirs) {
            Some(key) if held => {
                if let Some(held) = self.held_session(&self.connections[key], held) {
                    self.parts.engine.presence.arrived(user, held.device());
                }
            }
            Some(key) => self.remove(key),
            None => self.parts.engine.presence.left(user, session, self.parts.engine.clock.now_ms()),
        }
    }

    fn list(&self, listing: &Listing) -> Vec<HeldSession> {
        let mut sessions = Vec::new();
        for (_, connection) in &self.connections {
            let Some(bound) = &connection.bound else { continue };
            if listing.user.is_some_and(|user| user != bound.user.no) {
                continue;
            }
            // While it binds, the relay does not know its name yet.
            let held = !connection.transport.is_virtual()
                || connection.phase == Phase::Binding
                || listing.held.contains(&connection.session);
            sessions.extend(self.held_session(connection, held));
        }
        sessions
    }

    fn held_session(&self, connection: &Connection, held: bool) -> Option<HeldSession> {
        let bound = connection.bound.as_ref()?;
        Some(HeldSession {
            shard: self.parts.index as u16,
            session: connection.session,
            node: NodeNo(connection.transport.node()),
            user: bound.user.no,
            device_id: bound.device_id.clone(),
            device_kind: bound.device_kind.clone(),
            since: bound.since,
            chat: bound.chat,
            held,
        })
    }
}

impl SessionTruth for Gateway {
    fn sessions(&self, user: Option<UserNo>) -> Result<Vec<HeldSession>, Refusal> {
        let shards = match user {
            None => 0..self.shard_count(),
            Some(user) => {
                let shard = shard_of(user, self.shard_count());
                shard..shard + 1
            }
        };
        let end = Instant::now() + DEADLINE;
        let answers: Vec<_> = shards
            .map(|shard| {
                let (reply, answer) = bounded(1);
                self.tell(shard, Command::List { user, reply });
                answer
            })
            .collect();
        let mut sessions = Vec::new();
        for answer in answers {
            let listed = answer.recv_deadline(end).map_err(|_| {
                let why = "not every process that holds connections listed them in time, or too many lists are made";
                Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(1_000)
            });
            sessions.extend(listed?);
        }
        Ok(sessions)
    }

    fn correct(&self, corrections: Vec<Correction>) -> Result<(), Refusal> {
        let mut by_shard: Vec<Vec<Correction>> = vec![Vec::new(); self.shard_count()];
        for correction in corrections {
            if let Some(shard) = by_shard.get_mut(usize::from(correction.shard)) {
                shard.push(correction);
            }
        }
        let (reply, done) = bounded(1);
        for (shard, corrections) in by_shard.into_iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            self.tell(shard, Command::Correct { corrections, reply: reply.clone() });
        }
        drop(reply);
        match done.recv_timeout(DEADLINE) {
            // Every shard has dropped its end.
            Err(RecvTimeoutError::Disconnected) | Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                Err(Refusal::new(ErrorCode::NodeUnavailable, "the repair took too long").retry_after(1_000))
            }
        }
    }
}
