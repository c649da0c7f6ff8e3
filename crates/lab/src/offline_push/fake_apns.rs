//! Apple's service for the lab, over HTTP/2 in the clear: a thread of its own with a runtime.

use super::{
    notice::{Notice, NoticeSink, OfflineChannel},
    provider_state::{ProviderState, ProviderStates},
    tally::fault_of,
    token_book::TokenBook,
};
use crate::LabError;
use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{Request, Response, StatusCode};
use serde::Deserialize;
use std::{
    borrow::Cow,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Requests of one connection at the same time, as many as APNs itself allows at least.
const STREAMS_MAX: u32 = 1_000;
/// How often a request that is kept waiting looks whether the provider answers again.
const HANG_POLL: Duration = Duration::from_millis(50);
/// A notification holds at most 4 KiB.
const BODY_BYTES_MAX: usize = 4 * 1024;

/// The fake. It ends with this handle.
pub(super) struct FakeApns {
    pub(super) address: SocketAddr,
    /// Its end ends the thread.
    _alive: watch::Sender<()>,
}

/// What its requests share.
struct Service {
    sink: Arc<dyn NoticeSink>,
    book: Arc<TokenBook>,
    states: Arc<ProviderStates>,
}

impl FakeApns {
    pub(super) fn start(
        sink: Arc<dyn NoticeSink>,
        book: Arc<TokenBook>,
        states: Arc<ProviderStates>,
    ) -> Result<FakeApns, LabError> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (alive, ended) = watch::channel(());
        let service = Arc::new(Service { sink, book, states });
        std::thread::Builder::new()
            .name("apns".into())
            .spawn(move || runtime.block_on(accept(listener, service, ended)))?;
        Ok(FakeApns { address, _alive: alive })
    }
}

async fn accept(listener: std::net::TcpListener, service: Arc<Service>, mut ended: watch::Receiver<()>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        tokio::select! {
            _ = ended.changed() => return,
            accepted = listener.accept() => {
                if let Ok((connection, _)) = accepted {
                    tokio::spawn(serve(connection, service.clone()));
                }
            }
        }
    }
}

/// Answers the requests of one connection, each in a task of its own. The server under test may close it, or be killed.
async fn serve(connection: TcpStream, service: Arc<Service>) {
    let _ = connection.set_nodelay(true);
    let handshake = h2::server::Builder::new().max_concurrent_streams(STREAMS_MAX).handshake(connection);
    let Ok(mut connection) = handshake.await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let service = service.clone();
        tokio::spawn(async move {
            if let Err(why) = service.answer(request, respond).await {
                service.sink.fault(fault_of("apns", &why));
            }
        });
    }
}

/// What the fake reads of a notification.
#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    seq: u64,
    #[serde(default)]
    removed: bool,
}

impl Service {
    /// An error is of a request that no server should send.
    async fn answer(&self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), String> {
        let (head, mut body) = request.into_parts();
        let mut bytes = Vec::new();
        while let Some(Ok(part)) = body.data().await {
            let _ = body.flow_control().release_capacity(part.len());
            bytes.extend_from_slice(&part);
            if bytes.len() > BODY_BYTES_MAX {
                return Err("a notification that is too large".into());
            }
        }
        if !body.is_end_stream() {
            // The server under test was killed in the middle.
            return Ok(());
        }
        let (status, answer) = match self.states.get(OfflineChannel::Apns) {
            ProviderState::Accepts => (self.take(&head, &bytes)?, ""),
            ProviderState::Refuses => (StatusCode::SERVICE_UNAVAILABLE, r#"{"reason":"ServiceUnavailable"}"#),
            ProviderState::Hangs => {
                while self.states.get(OfflineChannel::Apns) == ProviderState::Hangs {
                    tokio::time::sleep(HANG_POLL).await;
                }
                respond.send_reset(h2::Reason::CANCEL);
                return Ok(());
            }
        };
        let id = head.headers.get("apns-id");
        let response = id.into_iter().fold(Response::builder().status(status), |to, id| to.header("apns-id", id));
        let response = response.body(()).map_err(|error| error.to_string())?;
        // Fails when the server under test has closed or reset: it will ask again.
        if let Ok(mut stream) = respond.send_response(response, answer.is_empty())
            && !answer.is_empty()
        {
            let _ = stream.send_data(Bytes::from_static(answer.as_bytes()), true);
        }
        Ok(())
    }

    fn take(&self, head: &http::request::Parts, body: &[u8]) -> Result<StatusCode, String> {
        let token = head.uri.path().strip_prefix("/3/device/").ok_or_else(|| "a path of no device".to_owned())?;
        for needed in ["apns-id", "apns-topic", "apns-collapse-id", "authorization"] {
            if !head.headers.contains_key(needed) {
                return Err(format!("no header {needed}"));
            }
        }
        let owner = self.book.owner(token)?;
        let payload: Payload<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let kind = if payload.removed { "background" } else { "alert" };
        if head.headers.get("apns-push-type").is_none_or(|said| said != kind) {
            return Err(format!("a notification of another kind than {kind}"));
        }
        self.sink.note(&[Notice {
            channel: OfflineChannel::Apns,
            user: &owner.user,
            device: &owner.device,
            conversation: &payload.conversation,
            seq: payload.seq,
            id: head.headers.get("apns-id").map(|id| xxhash_rust::xxh3::xxh3_64(id.as_bytes())),
            removed: payload.removed,
            sent_at_ms: None,
        }]);
        Ok(StatusCode::OK)
    }
}
