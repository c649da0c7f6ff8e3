//! Popups that an event triggers for somebody who is here: decided, then sent to one live session.

use super::{decide::Ask, session_at};
use crate::{engine::Engine, hub::Signal, model::UserNo};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::time::Duration;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::Triggered,
    ids::check_id,
};

/// How long the shard that owns a user's sessions may take to say which one takes a popup.
const SHARD_PATIENCE: Duration = Duration::from_secs(2);

/// The session that a popup is sent to.
struct Taker {
    session: u64,
    /// Another node that has it, and its process.
    node: Option<String>,
    boot: Option<u64>,
}

impl Engine {
    /// Decides for a user who has a live session that takes popups, and sends it what was chosen: to the one that came
    /// last. Without one nothing is decided, so that no cap is used up in vain: a device that is there for pushes
    /// only would not show it. Blocks.
    pub fn trigger_popup(&self, ask: &Ask<'_>) -> Result<Triggered, Refusal> {
        check_id("user", ask.user)?;
        let user = self.directory.require_user(ask.user)?;
        let none = Triggered { delivered: false, decision: None, popup: None };
        let Some(taker) = self.popup_taker(user.no)? else { return Ok(none) };
        let own = session_at(taker.boot.unwrap_or(self.popups.boot), taker.session);
        let ask = Ask { session: ask.session.or(Some(&own)), fingerprint: ask.fingerprint ^ taker.session, ..*ask };
        let Some(showing) = self.decide_now(&ask)?.show else { return Ok(none) };
        let delivered = self.send_popup(user.no, &taker, &showing.json);
        let popup = Some(showing.popup.to_string());
        Ok(Triggered { delivered, decision: Some(showing.decision), popup })
    }

    /// A session here that takes popups; else the one that came last of those that other nodes have.
    fn popup_taker(&self, user: UserNo) -> Result<Option<Taker>, Refusal> {
        if let Some(session) = self.find_popup_session(user)? {
            return Ok(Some(Taker { session, node: None, boot: None }));
        }
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| cluster.bus_trouble().is_none()) else {
            return Ok(None);
        };
        let devices = self.presence.devices(user);
        let newest = devices.iter().filter(|device| device.node.is_peer()).max_by_key(|device| device.since);
        let taker = newest.and_then(|device| {
            let card = self.presence.nodes.card(device.node)?;
            let is_known = cluster.nodes.peers().iter().any(|name| **name == *card.name);
            is_known.then_some(Taker { session: device.session, node: Some(card.name), boot: Some(card.boot_id) })
        });
        Ok(taker)
    }

    fn find_popup_session(&self, user: UserNo) -> Result<Option<u64>, Refusal> {
        if !self.presence.is_online(user) {
            return Ok(None);
        }
        let (answer, answered) = bounded(1);
        self.hub.signal(user, Signal::FindPopupSession { answer });
        match answered.recv_timeout(SHARD_PATIENCE) {
            Ok(session) => Ok(Some(session)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(Refusal::new(ErrorCode::QueueFull, "too much waits for the user's sessions").retry_after(1_000))
            }
        }
    }

    /// Whether it is on its way.
    fn send_popup(&self, user: UserNo, taker: &Taker, json: &[u8]) -> bool {
        let frame = [br#"{"t":"popup","show":"#, json, b"}"].concat();
        match (&taker.node, &self.cluster) {
            (Some(node), Some(cluster)) => cluster.send_popup(node, user, taker.session, frame),
            _ => {
                self.hub.signal(user, Signal::Popup { session: taker.session, frame: frame.into() });
                true
            }
        }
    }
}
