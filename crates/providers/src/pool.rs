//! What the providers share: one client with its connections, bounds for requests in flight and rate, and circuit breakers.

use crate::{SetupError, base_url::origin, circuit_breaker::CircuitBreakers, pacer::Pacer, retry_after::retry_after};
use futures_util::{StreamExt, stream};
use reqwest::{Client, ClientBuilder, Identity, RequestBuilder, StatusCode, Url, header::HeaderMap};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    clock::Clock,
    providers::{ProviderAnswer, Shipment},
};
use tokio::{runtime::Handle, sync::watch};

/// An answer of a provider is a few hundred bytes; more is not read.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Connections are kept for the next burst.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The bounds of one provider.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Requests that wait for their answers at the same time. Full: the next ones wait for these.
    pub in_flight_max: usize,
    /// Requests a second; 0: no limit. Full: the next ones wait.
    pub requests_per_second: u32,
    /// From the beginning of a request to the end of its answer.
    pub timeout: Duration,
    /// Certificate authorities that are trusted beside those of the system, in PEM.
    pub authorities: Option<Vec<u8>>,
}

pub(crate) struct Pool {
    client: Client,
    runtime: Handle,
    pub(crate) clock: Arc<dyn Clock>,
    config: PoolConfig,
    breakers: CircuitBreakers,
    pacer: Pacer,
    stopped: watch::Sender<bool>,
}

/// How the client of a provider differs from others.
#[derive(Default)]
pub(crate) struct ClientKind {
    /// HTTP/2 from the first byte on, which is what APNs speaks alone.
    pub(crate) http2_only: bool,
    /// A certificate with its key, by which the provider knows the sender, in PEM.
    pub(crate) identity: Option<Vec<u8>>,
}

/// A provider's answer to one request.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// The header of this name.
    pub(crate) retry_after: Option<Duration>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name)?.to_str().ok().map(str::to_owned)
    }
}

impl Pool {
    /// Call within the runtime that is to do the requests.
    pub(crate) fn new(config: PoolConfig, kind: ClientKind, clock: Arc<dyn Clock>) -> Result<Pool, SetupError> {
        // Err: it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = ClientBuilder::new()
            .timeout(config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(60))
            .http2_keep_alive_timeout(config.timeout);
        if kind.http2_only {
            client = client.http2_prior_knowledge();
        }
        if let Some(pem) = &kind.identity {
            let identity = Identity::from_pem(pem).map_err(|_| {
                SetupError::Credentials("the certificate file has no certificate with its private key in PEM".into())
            })?;
            client = client.identity(identity);
        }
        if let Some(pem) = &config.authorities {
            let authorities = reqwest::Certificate::from_pem_bundle(pem)
                .map_err(|_| SetupError::Credentials("the file of certificate authorities is not in PEM".into()))?;
            client = client.tls_certs_merge(authorities);
        }
        Ok(Pool {
            client: client.build().map_err(SetupError::Client)?,
            runtime: Handle::current(),
            pacer: Pacer::new(config.requests_per_second, clock.monotonic()),
            clock,
            config,
            breakers: CircuitBreakers::default(),
            stopped: watch::Sender::new(false),
        })
    }

    pub(crate) fn post(&self, url: Url) -> RequestBuilder {
        self.client.post(url)
    }

    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Does something for each shipment, many at the same time; answers in their order. Blocks.
    pub(crate) fn for_all<'a, F>(
        &'a self,
        shipments: Vec<Shipment>,
        send: impl Fn(&'a Self, Shipment) -> F,
    ) -> Vec<ProviderAnswer>
    where
        F: Future<Output = ProviderAnswer>,
    {
        let count = shipments.len();
        let mut stopped = self.stopped.subscribe();
        self.runtime.block_on(async {
            let sends = shipments.into_iter().map(|shipment| send(self, shipment));
            let all = stream::iter(sends).buffered(self.config.in_flight_max.max(1)).collect();
            tokio::select! {
                answers = all => answers,
                _ = stopped.wait_for(|stopped| *stopped) => {
                    let unanswered = ProviderAnswer::Unreachable { reason: "the server stops".into(), retry_after: None };
                    vec![unanswered; count]
                }
            }
        })
    }

    /// Makes one request to a service, unless its breaker is open.
    ///
    /// # Errors
    /// There was no answer: [`ProviderAnswer::Unreachable`].
    pub(crate) async fn request(&self, url: &Url, request: RequestBuilder) -> Result<Answer, ProviderAnswer> {
        let origin = origin(url);
        let request = match self.breakers.allow(&origin, self.clock.monotonic()) {
            Ok(None) => request,
            Ok(Some(patience)) => request.timeout(patience.min(self.config.timeout)),
            Err(wait) => {
                let reason = format!("{origin} does not answer; it is asked again later");
                return Err(ProviderAnswer::Unreachable { reason, retry_after: Some(wait) });
            }
        };
        self.pacer.wait_for_turn(&*self.clock).await;
        match read_answer(request).await {
            Ok((status, headers, body)) => {
                match status {
                    StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                        self.breakers.record_failure(&origin, self.clock.monotonic());
                    }
                    _ => self.breakers.record_answer(&origin),
                }
                let retry_after = retry_after(&headers, self.clock.now_ms());
                Ok(Answer { status, headers, body, retry_after })
            }
            Err(error) => {
                self.breakers.record_failure(&origin, self.clock.monotonic());
                // The error leaves out the address, which has the device's token.
                let reason = describe(&error.without_url());
                Err(ProviderAnswer::Unreachable { reason: format!("{origin}: {reason}"), retry_after: None })
            }
        }
    }
}

async fn read_answer(request: RequestBuilder) -> reqwest::Result<(StatusCode, HeaderMap, Vec<u8>)> {
    let mut answer = request.send().await?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX
        && let Some(chunk) = answer.chunk().await?
    {
        body.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES_MAX - body.len())]);
    }
    Ok((status, headers, body))
}

/// An error with what caused it.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
