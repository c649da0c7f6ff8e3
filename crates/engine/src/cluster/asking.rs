//! What sessions of this node ask of the node that leads.

use super::lead::another_leads;
use crate::engine::Engine;
use std::{future::Future, pin::Pin, sync::Arc};
use tidings_protocol::{
    error::Refusal,
    http::{PopupEventsAccepted, Problem},
};

/// An operation of the HTTP door, asked of the leader for a user.
#[derive(Debug, Clone)]
pub struct UsersRequest {
    pub user: String,
    pub path: &'static str,
    /// JSON.
    pub body: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct LeadersAnswer {
    pub status: u16,
    pub retry_after_ms: Option<u64>,
    pub body: Vec<u8>,
}

pub type Asked = Pin<Box<dyn Future<Output = Result<LeadersAnswer, Refusal>> + Send>>;

/// The way to the leader; a part of the HTTP door, which is opened after the engine.
pub trait LeaderDoor: Send + Sync + 'static {
    /// Refused at once if too many wait already; the answer comes within seconds, or a refusal.
    fn ask(&self, request: UsersRequest) -> Result<Asked, Refusal>;
}

impl Engine {
    /// Once.
    pub fn set_leader_door(&self, door: Arc<dyn LeaderDoor>) {
        let _ = self.leader_door.set(door);
    }

    /// The answer, if it is not a refusal.
    async fn ask_leader(&self, request: UsersRequest) -> Result<LeadersAnswer, Refusal> {
        let answer = self.leader_door.get().ok_or_else(another_leads)?.ask(request)?.await?;
        if answer.status < 300 {
            return Ok(answer);
        }
        let problem: Problem = serde_json::from_slice(&answer.body).map_err(|_| another_leads())?;
        Err(Refusal { code: problem.code, detail: problem.detail, retry_after_ms: answer.retry_after_ms })
    }

    /// A user's question about popups, asked of the node that leads: a `Decision` as JSON, or after how many
    /// milliseconds to ask again.
    pub async fn decide_at_leader(
        &self,
        user: &str,
        question: Vec<u8>,
    ) -> Result<(Option<String>, Option<u64>), Refusal> {
        let request = UsersRequest { user: user.into(), path: "/v1/popups/decide", body: question };
        let answer = self.ask_leader(request).await?;
        let show = (answer.status == 200).then(|| String::from_utf8(answer.body).map_err(|_| another_leads()));
        Ok((show.transpose()?, answer.retry_after_ms))
    }

    /// What a user did with popups, told to the node that leads.
    pub async fn report_to_leader(&self, user: &str, events: Vec<u8>) -> Result<PopupEventsAccepted, Refusal> {
        let request = UsersRequest { user: user.into(), path: "/v1/popup-events", body: events };
        let answer = self.ask_leader(request).await?;
        serde_json::from_slice(&answer.body).map_err(|_| another_leads())
    }
}
