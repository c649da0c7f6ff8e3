//! A small HTTP server for the fakes, over HTTP/1.1 or HTTP/2 in the clear: a thread of its own with a runtime.

use super::{notice::NoticeSink, tally::fault_of};
use crate::LabError;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The body of a request: the server under test closes a delivery at a megabyte.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Requests of one connection at the same time, as many as APNs itself allows at least.
const STREAMS_MAX: u32 = 1_000;
/// How often a request that is kept waiting looks whether it still is.
const HANG_POLL: Duration = Duration::from_millis(50);

pub(crate) type Request = http::Request<Bytes>;
pub(crate) type Answer = http::Response<String>;

pub(crate) fn answer(status: StatusCode, body: impl Into<String>) -> Answer {
    let mut answer = Answer::new(body.into());
    *answer.status_mut() = status;
    answer
}

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// An error is of a request that no server should send, which gets no answer.
    fn answer(&self, request: &Request) -> Result<Answer, String>;

    /// Whether the request is kept waiting, and then gets no answer.
    fn hangs(&self, _request: &Request) -> bool {
        false
    }

    fn sink(&self) -> &dyn NoticeSink;
}

/// A listener with its thread. Both end with this handle.
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    /// Its end ends the thread.
    _alive: watch::Sender<()>,
}

impl HttpServer {
    pub(crate) fn start(name: &'static str, handler: impl Handler) -> Result<HttpServer, LabError> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (alive, ended) = watch::channel(());
        let fake = Arc::new(Fake { name, handler });
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || runtime.block_on(accept(listener, fake, ended)))?;
        Ok(HttpServer { address, _alive: alive })
    }
}

async fn accept<H: Handler>(listener: std::net::TcpListener, fake: Arc<Fake<H>>, mut ended: watch::Receiver<()>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        tokio::select! {
            _ = ended.changed() => return,
            accepted = listener.accept() => {
                if let Ok((connection, _)) = accepted {
                    tokio::spawn(fake.clone().serve(connection));
                }
            }
        }
    }
}

struct Fake<H> {
    name: &'static str,
    handler: H,
}

impl<H: Handler> Fake<H> {
    /// Answers the requests of one connection. The server under test may close it, or be killed.
    async fn serve(self: Arc<Self>, connection: TcpStream) {
        let _ = connection.set_nodelay(true);
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http2().max_concurrent_streams(STREAMS_MAX);
        let service = service_fn(|request| self.clone().answer(request));
        let Err(error) = http.serve_connection(TokioIo::new(connection), service).await else { return };
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            self.fault(&error.to_string());
        }
    }

    /// An error ends the request without an answer, and over HTTP/1.1 the connection with it.
    async fn answer(self: Arc<Self>, request: http::Request<Incoming>) -> Result<Answer, &'static str> {
        let (head, body) = request.into_parts();
        // Ends early when the server under test was killed in the middle.
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|_| "a body without an end")?;
        let request = Request::from_parts(head, body.to_bytes());
        let mut waited = false;
        while self.handler.hangs(&request) {
            waited = true;
            tokio::time::sleep(HANG_POLL).await;
        }
        if waited {
            return Err("kept waiting");
        }
        self.handler.answer(&request).map_err(|why| {
            self.fault(&why);
            "a request that no server should send"
        })
    }

    fn fault(&self, why: &str) {
        self.handler.sink().fault(fault_of(self.name, why));
    }
}
