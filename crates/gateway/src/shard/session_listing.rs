//! Lists the sessions that exist, by the processes that hold their connections. The presence registry is compared with
//! this list.
//!
//! A shard lists the sessions of its own sockets. For virtual connections it asks the relays: a session whose device has
//! left the relay is a ghost that only the shard still knows.

use super::Shard;
use crate::{
    connection::{Connection, Phase},
    link::packet::PacketKind,
};
use crossbeam_channel::Sender;
use rustc_hash::FxHashSet;
use tidings_domain::model::UserNo;
use tidings_engine::presence::{
    NodeNo,
    compare::{Correction, LiveSession},
};

/// Listings that run at once; each may name every session.
const LISTINGS_MAX: usize = 4;

/// A listing that waits for the answers of relays.
pub(super) struct SessionListing {
    request: u64,
    user: Option<UserNo>,
    reply: Sender<Vec<LiveSession>>,
    /// Links whose answer is not complete.
    pending_links: Vec<usize>,
    /// The sessions that relays have named so far.
    live_at_relays: FxHashSet<u64>,
}

impl Shard {
    pub(super) fn start_listing(&mut self, user: Option<UserNo>, reply: Sender<Vec<LiveSession>>) {
        if self.listings.len() >= LISTINGS_MAX {
            // The dropped reply refuses the listing.
            return;
        }
        self.listing_requests += 1;
        let request = self.listing_requests;
        let pending_links = self.send_to_all_links(PacketKind::ListSessions, request);
        self.listings.push(SessionListing {
            request,
            user,
            reply,
            pending_links,
            live_at_relays: FxHashSet::default(),
        });
        self.finish_listings();
    }

    /// Part of a relay's answer: names of sessions that are live there. An empty part completes the answer.
    pub(super) fn receive_session_list(&mut self, link: usize, request: u64, names: &[u8]) {
        let names = names.chunks_exact(8).filter_map(|name| name.try_into().ok().map(u64::from_le_bytes));
        let names: Vec<u64> = names.collect();
        // A session that this shard does not know must not go on at the relay: it would wait for messages that never come.
        let unknown: Vec<u64> = names.iter().filter(|name| self.find(**name).is_none()).copied().collect();
        for name in unknown {
            self.send_to_link(link, PacketKind::UnknownSession, name);
        }
        if let Some(listing) = self.listings.iter_mut().find(|listing| listing.request == request) {
            if names.is_empty() {
                listing.pending_links.retain(|pending| *pending != link);
            }
            listing.live_at_relays.extend(names);
        }
        self.finish_listings();
    }

    /// A link was lost, and its sessions with it: listings do not wait for its answer.
    pub(super) fn drop_from_listings(&mut self, link: usize) {
        for listing in &mut self.listings {
            listing.pending_links.retain(|pending| *pending != link);
        }
        self.finish_listings();
    }

    fn finish_listings(&mut self) {
        while let Some(at) = self.listings.iter().position(|listing| listing.pending_links.is_empty()) {
            let listing = self.listings.swap_remove(at);
            let sessions = self.list(&listing);
            let _ = listing.reply.send(sessions);
        }
    }

    /// Corrects what the presence registry has of one session.
    pub(super) fn correct(&mut self, correction: &Correction) {
        let Correction { session, user, held, .. } = *correction;
        let is_of_user = |key: &usize| self.connections[*key].binding.as_ref().is_some_and(|b| b.user.no == user);
        match self.find(session).filter(is_of_user) {
            Some(key) if held => {
                if let Some(held) = self.held_session(&self.connections[key], held) {
                    self.parts.engine.presence.register(user, held.to_presence_session());
                }
            }
            Some(key) => self.remove(key),
            None => self.parts.engine.presence.unregister(user, session, self.parts.engine.clock.now_ms()),
        }
    }

    fn list(&self, listing: &SessionListing) -> Vec<LiveSession> {
        let mut sessions = Vec::new();
        for (_, connection) in self.connections.iter() {
            let Some(binding) = &connection.binding else { continue };
            if listing.user.is_some_and(|user| user != binding.user.no) {
                continue;
            }
            // While a session binds, the relay does not know its name yet.
            let held = !connection.transport.is_virtual()
                || connection.phase == Phase::Binding
                || listing.live_at_relays.contains(&connection.session);
            sessions.extend(self.held_session(connection, held));
        }
        sessions
    }

    fn held_session(&self, connection: &Connection, held: bool) -> Option<LiveSession> {
        let binding = connection.binding.as_ref()?;
        Some(LiveSession {
            shard: self.parts.index as u16,
            session: connection.session,
            node: NodeNo(connection.transport.node()),
            user: binding.user.no,
            device_id: binding.device_id.clone(),
            device_kind: binding.device_kind.clone(),
            since: binding.since,
            chat: binding.chat,
            background: binding.background,
            held,
        })
    }
}
