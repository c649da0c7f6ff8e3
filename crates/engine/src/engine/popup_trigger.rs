//! Popups that the app server triggers for a user who is online: decided, then sent to one of the user's live sessions.

use crate::{Engine, shards::Signal};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::time::Duration;
use tidings_domain::model::UserNo;
use tidings_popups::Question;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::Triggered,
    ids::check_id,
};

/// How long the shard that owns a user's sessions may take to name the one that a popup is sent to.
const SHARD_TIMEOUT: Duration = Duration::from_secs(2);

/// The session that a popup is sent to.
struct TargetSession {
    session: u64,
    /// The peer that holds the session, and the boot id of its process; absent: this node.
    node: Option<String>,
    boot: Option<u64>,
}

impl Engine {
    /// Decides for a user who has a live session that can show popups, and sends the chosen popup to the newest of
    /// these sessions. Without such a session nothing is decided, so that no cap is used up in vain: a device that
    /// binds for pushes only would not show the popup. Blocks.
    ///
    /// # Errors
    /// The user does not exist, the decision is refused (see [`PopupService::decide`](tidings_popups::PopupService::decide)), or the user's shard is too busy to
    /// answer (`queue_full`).
    pub fn trigger_popup(&self, question: &Question<'_>) -> Result<Triggered, Refusal> {
        check_id("user", question.user)?;
        let user = self.directory.require_user(question.user)?;
        let none = Triggered { delivered: false, decision: None, popup: None };
        let Some(target) = self.find_target_session(user.no)? else { return Ok(none) };
        let own = self.popups.session_name_at(target.boot, target.session);
        let question = Question {
            session: question.session.or(Some(&own)),
            fingerprint: question.fingerprint ^ target.session,
            ..*question
        };
        let Some(exposure) = self.popups.decide_blocking(&question)?.exposure else { return Ok(none) };
        let delivered = self.send_popup(user.no, &target, &exposure.json);
        let popup = Some(exposure.popup.to_string());
        Ok(Triggered { delivered, decision: Some(exposure.decision), popup })
    }

    /// The newest session on this node that can show popups; without one, the user's newest session on a peer.
    fn find_target_session(&self, user: UserNo) -> Result<Option<TargetSession>, Refusal> {
        if let Some(session) = self.find_local_session(user)? {
            return Ok(Some(TargetSession { session, node: None, boot: None }));
        }
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| cluster.bus_trouble().is_none()) else {
            return Ok(None);
        };
        let devices = self.presence.sessions_of(user);
        let newest = devices.iter().filter(|device| device.node.is_peer()).max_by_key(|device| device.since);
        let target = newest.and_then(|device| {
            let record = self.presence.nodes.record(device.node)?;
            let is_known = cluster.nodes.peers().iter().any(|name| **name == *record.name);
            is_known.then_some(TargetSession {
                session: device.session,
                node: Some(record.name),
                boot: Some(record.boot_id),
            })
        });
        Ok(target)
    }

    fn find_local_session(&self, user: UserNo) -> Result<Option<u64>, Refusal> {
        if !self.presence.is_online(user) {
            return Ok(None);
        }
        let (answer, answered) = bounded(1);
        self.hub.signal(user, Signal::FindPopupSession { answer });
        match answered.recv_timeout(SHARD_TIMEOUT) {
            Ok(session) => Ok(Some(session)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(Refusal::new(ErrorCode::QueueFull, "too many bytes wait for the user's sessions")
                    .retry_after(1_000))
            }
        }
    }

    /// Returns whether the popup is on its way to the session.
    fn send_popup(&self, user: UserNo, target: &TargetSession, json: &[u8]) -> bool {
        let frame = [br#"{"t":"popup","show":"#, json, b"}"].concat();
        match (&target.node, &self.cluster) {
            (Some(node), Some(cluster)) => cluster.send_popup(node, user, target.session, frame),
            _ => {
                self.hub.signal(user, Signal::Popup { session: target.session, frame: frame.into() });
                true
            }
        }
    }
}
