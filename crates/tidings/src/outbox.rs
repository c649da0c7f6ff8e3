//! The outbox's readers and the HTTP API, as each sees the other.

use std::{pin::Pin, sync::Arc};
use tidings_api::{InternalRequests, OutboxView};
use tidings_outbox::{AppServerRequests, OutboxBoard, OutboxRequest};
use tidings_protocol::{error::Refusal, http::OutboxSources};

/// The HTTP API as readers see it.
pub(crate) struct OutboxRequests(pub(crate) InternalRequests);

impl AppServerRequests for OutboxRequests {
    fn call<'a>(
        &'a self,
        api_key: &'a str,
        request: OutboxRequest,
    ) -> Pin<Box<dyn Future<Output = Result<String, Refusal>> + Send + 'a>> {
        Box::pin(async move { self.0.post(api_key, &request.path, request.body).await })
    }
}

/// The readers as the HTTP API sees them.
pub(crate) struct ShownOutboxes(pub(crate) OutboxBoard);

impl OutboxView for ShownOutboxes {
    fn sources(&self) -> OutboxSources {
        self.0.sources()
    }
}

/// The same for the API.
pub(crate) fn shown(board: &OutboxBoard) -> Arc<dyn OutboxView> {
    Arc::new(ShownOutboxes(board.clone()))
}
