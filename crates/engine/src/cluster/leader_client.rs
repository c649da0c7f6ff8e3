//! Requests of this node that only the leader of a function can answer, which is another node: for its sessions, and for its own work.

use tidings_protocol::{
    error::Refusal,
    http::{PopupEvent, PushRequest},
};
use tokio::sync::oneshot;

/// What a node asks of a leader.
#[derive(Debug, Clone)]
pub enum LeaderRequest {
    /// Which popup suits a user, on the user's behalf: the JSON of a `DecideRequest`.
    DecidePopup {
        user: String,
        question: Vec<u8>,
    },
    /// What a user did with popups, on the user's behalf; without a user: what the server itself records of users.
    ReportPopupEvents {
        user: Option<String>,
        events: Vec<PopupEvent>,
    },
    /// A push of the server itself.
    Push(Box<PushRequest>),
    /// The devices that a user has bound.
    UserDevices {
        user: String,
    },
    RemoveDevice {
        user: String,
        device_id: String,
    },
}

/// The leader's HTTP response.
#[derive(Debug, Clone)]
pub struct LeaderResponse {
    pub status: u16,
    pub retry_after_ms: Option<u64>,
    pub body: Vec<u8>,
}

/// Where the response comes, within seconds; or why the leader did not answer.
pub type PendingResponse = oneshot::Receiver<Result<LeaderResponse, Refusal>>;

/// Sends requests to leaders. The HTTP listener implements it; it opens after the engine has started.
pub trait LeaderClient: Send + Sync + 'static {
    /// Begins a request. Does not wait, and may be called on any thread.
    ///
    /// # Errors
    /// No other node leads now, or too many requests wait for leaders.
    fn send(&self, request: LeaderRequest) -> Result<PendingResponse, Refusal>;
}
