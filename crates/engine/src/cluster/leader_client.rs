//! Requests of this node's sessions that only the leader can answer.

use std::{future::Future, pin::Pin};
use tidings_protocol::error::Refusal;

/// An HTTP operation for the leader, on behalf of a user.
#[derive(Debug, Clone)]
pub struct LeaderRequest {
    pub user: String,
    pub path: &'static str,
    /// JSON.
    pub body: Vec<u8>,
}

/// The leader's HTTP response.
#[derive(Debug, Clone)]
pub struct LeaderResponse {
    pub status: u16,
    pub retry_after_ms: Option<u64>,
    pub body: Vec<u8>,
}

pub type PendingResponse = Pin<Box<dyn Future<Output = Result<LeaderResponse, Refusal>> + Send>>;

/// Sends requests to the leader. The HTTP listener implements it; it opens after the engine has started.
pub trait LeaderClient: Send + Sync + 'static {
    /// Begins a request. The response comes within seconds.
    ///
    /// # Errors
    /// Here: no other node leads now, or too many requests wait for the leader. In the response: the leader did not
    /// answer.
    fn send(&self, request: LeaderRequest) -> Result<PendingResponse, Refusal>;
}
