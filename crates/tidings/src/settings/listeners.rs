//! The settings that all listeners share: admission, TLS, PROXY headers and CORS.

use super::{Settings, macros::settings};
use anyhow::{Context, Result, bail};
use rustls::ServerConfig;
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tidings_api::listener::ListenerConfig;
use tidings_domain::clock::SystemClock;
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_listen::{
    Admission, Descriptors, Throttle,
    admission::AdmissionConfig,
    proxy::TrustedProxies,
    socket::BACKLOG,
    tls::{Certificates, alpn, server_config},
};

settings! {
    /// How fast connections are accepted. Above the rate, accept pauses and the kernel's backlog holds the waiting ones.
    AdmissionSettings {
        /// Connections accepted in a second, by all listeners together; 0: no limit.
        rate: u32 = AdmissionConfig::default().rate,
        /// Connections accepted at once after a quiet time.
        burst: u32 = AdmissionConfig::default().burst,
        /// Connections that have not bound yet. Above: further devices wait in the backlog.
        unbound_max: usize = AdmissionConfig::default().unbound_max,
        /// Connections that the kernel holds until they are accepted; `net.core.somaxconn` bounds it.
        backlog: u32 = BACKLOG,
        /// File descriptors that devices may not use: for the store, HTTP connections at the limit, the log and outgoing calls.
        descriptors_reserved: u64 = 256,
    }
}

settings! {
    /// Certificates. The files are checked for changes every few seconds and at a SIGHUP; open connections stay as they are.
    Tls {
        /// The certificate chain in PEM, the server's own certificate first.
        certificate_file: Option<PathBuf> = None,
        /// Its private key, in PEM.
        key_file: Option<PathBuf> = None,
    }
}

settings! {
    /// Pages of other origins that may use the API from a browser.
    Cors {
        /// The origins of those pages, such as `https://app.example.com`; `*` alone: any. None: browsers refuse pages of other origins, and
        /// the origin of a WebSocket is not checked.
        origins: Vec<String> = Vec::new(),
        /// Whether requests of those pages may carry cookies and the like, which Tidings itself does not use: tokens need none. Not with `*`.
        credentials: bool = false,
        /// How long a browser may cache the answer to a preflight request, in seconds.
        max_age_s: u32 = 600,
    }
}

/// What all listeners share.
pub(crate) struct ListenerContext {
    admission: Arc<Admission>,
    descriptors: Arc<Descriptors>,
    pub(crate) throttle: Arc<Throttle>,
    proxies: Option<Arc<TrustedProxies>>,
    pub(crate) certificates: Option<Arc<Certificates>>,
}

impl Settings {
    /// What all listeners share, within this limit of file descriptors.
    pub(crate) fn listener_context(&self, descriptors: u64) -> Result<ListenerContext> {
        let AdmissionSettings { rate, burst, unbound_max, descriptors_reserved, .. } = self.admission;
        let certificates = match (&self.tls.certificate_file, &self.tls.key_file) {
            (Some(certificate), Some(key)) => Some(Certificates::load(certificate, key).context("loading TLS")?),
            _ => None,
        };
        Ok(ListenerContext {
            throttle: Arc::new(Throttle::new(self.throttle_config(), Arc::new(SystemClock))),
            admission: Arc::new(Admission::new(AdmissionConfig { rate, burst, unbound_max })),
            descriptors: Arc::new(Descriptors::new(descriptors, descriptors_reserved)),
            proxies: self.proxy_protocol.then(|| Arc::new(TrustedProxies::new(self.proxy_protocol_from.clone()))),
            certificates,
        })
    }

    /// The listener for devices.
    pub(crate) fn miop_listener(&self, context: &ListenerContext) -> Result<MiopListenerConfig> {
        let plain = self.miop_listen.iter().map(|address| (*address, None));
        let tls = context.tls(alpn::MIOP, &self.miop_tls_listen)?;
        Ok(MiopListenerConfig {
            listen: plain.chain(tls).collect(),
            proxies: context.proxies.clone(),
            backlog: self.admission.backlog,
            admission: context.admission.clone(),
            descriptors: context.descriptors.clone(),
            throttle: Some(context.throttle.clone()),
        })
    }

    pub(super) fn cors(&self) -> Result<Option<tidings_api::cors::Cors>> {
        let Cors { origins, credentials, max_age_s } = &self.cors;
        tidings_api::cors::Cors::new(origins, *credentials, *max_age_s).context("[cors]")
    }

    /// The listeners that answer health and metrics only.
    pub(crate) fn health_listeners(&self, context: &ListenerContext) -> impl Iterator<Item = ListenerConfig> {
        let descriptors = context.descriptors.clone();
        // Without a rate of admission: operators must not wait because of a connection storm at the other listeners.
        let admission = Arc::new(Admission::new(AdmissionConfig { rate: 0, ..AdmissionConfig::default() }));
        self.health_listen.clone().into_iter().map(move |address| ListenerConfig {
            admission: admission.clone(),
            descriptors: descriptors.clone(),
            ..ListenerConfig::open(address)
        })
    }

    /// The listeners for HTTP, the one without TLS first.
    pub(crate) fn http_listeners(&self, context: &ListenerContext) -> Result<Vec<ListenerConfig>> {
        let tls = context.tls(alpn::HTTP, &self.http_tls_listen)?;
        let config = |(address, tls)| ListenerConfig {
            address,
            tls,
            proxies: context.proxies.clone(),
            backlog: self.admission.backlog,
            admission: context.admission.clone(),
            descriptors: context.descriptors.clone(),
        };
        Ok(std::iter::once((self.http_listen, None)).chain(tls).map(config).collect())
    }

    /// Refuses settings with which a listener could not be opened.
    pub(super) fn check_listeners(&self) -> Result<()> {
        let Tls { certificate_file, key_file } = &self.tls;
        if certificate_file.is_some() != key_file.is_some() {
            bail!("[tls] needs both certificate_file and key_file, or neither");
        }
        if certificate_file.is_none() && !(self.miop_tls_listen.is_empty() && self.http_tls_listen.is_empty()) {
            bail!("miop_tls_listen and http_tls_listen need [tls] certificate_file and key_file");
        }
        self.cors()?;
        if self.proxy_protocol && self.proxy_protocol_from.is_empty() {
            bail!("proxy_protocol needs proxy_protocol_from: the networks of the trusted load balancers");
        }
        Ok(())
    }
}

impl ListenerContext {
    fn tls(&self, protocol: &[u8], listen: &[SocketAddr]) -> Result<Vec<(SocketAddr, Option<Arc<ServerConfig>>)>> {
        let Some(certificates) = &self.certificates else { return Ok(Vec::new()) };
        let config = server_config(certificates.clone(), protocol).context("preparing TLS")?;
        Ok(listen.iter().map(|address| (*address, Some(config.clone()))).collect())
    }
}
