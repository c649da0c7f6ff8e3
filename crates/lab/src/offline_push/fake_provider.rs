//! What the services of all providers have in common: they answer as their state says, and note for whom a notification was.

use super::{
    http_server::{Answer, Handler, HttpServer, Request, answer},
    notice::{Notice, NoticeSink, OfflineChannel},
    provider_state::{ProviderState, ProviderStates},
    token_book::TokenBook,
};
use crate::LabError;
use http::StatusCode;
use std::sync::Arc;

/// What the services of all providers share.
#[derive(Clone)]
pub(super) struct Providers {
    pub(super) sink: Arc<dyn NoticeSink>,
    pub(super) book: Arc<TokenBook>,
    pub(super) states: Arc<ProviderStates>,
}

impl Providers {
    pub(super) fn start<P: ProviderProtocol>(&self, protocol: P) -> Result<HttpServer, LabError> {
        HttpServer::start(P::CHANNEL.name(), FakeProvider { all: self.clone(), protocol })
    }
}

/// A provider's service.
struct FakeProvider<P> {
    all: Providers,
    protocol: P,
}

/// What one provider has the server under test say, and says itself.
pub(super) trait ProviderProtocol: Send + Sync + 'static {
    const CHANNEL: OfflineChannel;
    /// To a notification that it takes.
    const TAKES: (StatusCode, &'static str);
    /// To any, with 503.
    const REFUSES: &'static str;

    /// An error is of a notification that no server should send.
    fn read(&self, request: &Request) -> Result<Notification, String>;

    /// What the service answers in any state to requests that are no notifications.
    fn grants(_request: &Request) -> Option<&'static str> {
        None
    }
}

/// What a fake reads of a notification.
pub(super) struct Notification {
    pub(super) token: String,
    pub(super) conversation: String,
    pub(super) seq: u64,
    /// What a retry of it has again.
    pub(super) id: Option<u64>,
    pub(super) removed: bool,
}

impl<P: ProviderProtocol> Handler for FakeProvider<P> {
    fn answer(&self, request: &Request) -> Result<Answer, String> {
        if let Some(granted) = P::grants(request) {
            return Ok(answer(StatusCode::OK, granted));
        }
        let notification = self.protocol.read(request)?;
        if self.all.states.get(P::CHANNEL) == ProviderState::Refuses {
            return Ok(answer(StatusCode::SERVICE_UNAVAILABLE, P::REFUSES));
        }
        let owner = self.all.book.owner(&notification.token)?;
        self.all.sink.note(&[Notice {
            channel: P::CHANNEL,
            user: &owner.user,
            device: &owner.device,
            conversation: &notification.conversation,
            seq: notification.seq,
            id: notification.id,
            removed: notification.removed,
            sent_at_ms: None,
        }]);
        let (status, said) = P::TAKES;
        Ok(answer(status, said))
    }

    fn hangs(&self, request: &Request) -> bool {
        self.all.states.get(P::CHANNEL) == ProviderState::Hangs && P::grants(request).is_none()
    }

    fn sink(&self) -> &dyn NoticeSink {
        &*self.all.sink
    }
}
