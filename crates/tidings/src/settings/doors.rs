//! How connections come in: the settings of all doors together.

use super::{Settings, macros::settings};
use anyhow::{Context, Result, bail};
use rustls::ServerConfig;
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tidings_api::listener::ListenerConfig;
use tidings_gateway::door::MiopDoorConfig;
use tidings_listen::{
    Admission, Descriptors, Throttle,
    admission::AdmissionConfig,
    proxy::Proxies,
    socket::BACKLOG,
    tls::{Certificates, protocol, server_config},
};

settings! {
    /// How fast connections are taken. Above the rate accept pauses and the kernel's backlog holds who waits.
    Admitting {
        /// Connections accepted in a second, by all doors together; 0: no limit.
        rate: u32 = AdmissionConfig::default().rate,
        /// Connections accepted at once after a quiet time.
        burst: u32 = AdmissionConfig::default().burst,
        /// Connections that have not bound yet. Above: devices wait in the backlog.
        unbound_max: usize = AdmissionConfig::default().unbound_max,
        /// Connections that the kernel holds until they are accepted; `net.core.somaxconn` bounds it.
        backlog: u32 = BACKLOG,
        /// File descriptors that are not for devices: the store, HTTP connections at the limit, the log, outgoing calls.
        descriptors_reserved: u64 = 256,
    }
}

settings! {
    /// Certificates. The files are looked at every few seconds and at a SIGHUP; connections that are open stay as they are.
    Tls {
        /// The certificate and those that it rests on, in PEM, the server's own first.
        certificate_file: Option<PathBuf> = None,
        /// Its private key, in PEM.
        key_file: Option<PathBuf> = None,
    }
}

settings! {
    /// Pages of other origins that may use the API from a browser.
    Cors {
        /// Their origins, such as `https://app.example.com`; `*` alone: any. None: browsers keep pages of others away, and a WebSocket's
        /// origin is not looked at.
        origins: Vec<String> = Vec::new(),
        /// Whether their requests may carry cookies and the like, which Tidings itself does not use: tokens need none. Not with `*`.
        credentials: bool = false,
        /// How long a browser need not ask again, in seconds.
        max_age_s: u32 = 600,
    }
}

/// What the doors share.
pub(crate) struct Entry {
    admission: Arc<Admission>,
    descriptors: Arc<Descriptors>,
    pub(crate) throttle: Arc<Throttle>,
    proxies: Option<Arc<Proxies>>,
    pub(crate) certificates: Option<Arc<Certificates>>,
}

impl Settings {
    /// What the doors share, with so many file descriptors.
    pub(crate) fn entry(&self, descriptors: u64) -> Result<Entry> {
        let Admitting { rate, burst, unbound_max, descriptors_reserved, .. } = self.admission;
        let certificates = match (&self.tls.certificate_file, &self.tls.key_file) {
            (Some(certificate), Some(key)) => Some(Certificates::load(certificate, key).context("loading TLS")?),
            _ => None,
        };
        Ok(Entry {
            throttle: Arc::new(Throttle::new(self.throttle_config())),
            admission: Arc::new(Admission::new(AdmissionConfig { rate, burst, unbound_max })),
            descriptors: Arc::new(Descriptors::new(descriptors, descriptors_reserved)),
            proxies: self.proxy_protocol.then(|| Arc::new(Proxies::new(self.proxy_protocol_from.clone()))),
            certificates,
        })
    }

    /// The door of devices.
    pub(crate) fn miop_door(&self, entry: &Entry) -> Result<MiopDoorConfig> {
        let plain = self.miop_listen.iter().map(|address| (*address, None));
        let tls = entry.tls(protocol::MIOP, &self.miop_tls_listen)?;
        Ok(MiopDoorConfig {
            listen: plain.chain(tls).collect(),
            proxies: entry.proxies.clone(),
            backlog: self.admission.backlog,
            admission: entry.admission.clone(),
            descriptors: entry.descriptors.clone(),
            throttle: Some(entry.throttle.clone()),
        })
    }

    pub(super) fn cors(&self) -> Result<Option<tidings_api::cors::Cors>> {
        let Cors { origins, credentials, max_age_s } = &self.cors;
        tidings_api::cors::Cors::new(origins, *credentials, *max_age_s).context("[cors]")
    }

    /// Where how the server fares is asked for, and nothing else.
    pub(crate) fn health_doors(&self, entry: &Entry) -> impl Iterator<Item = ListenerConfig> {
        let descriptors = entry.descriptors.clone();
        // No rate of admission: a storm at the other doors must not keep who looks after them waiting.
        let admission = Arc::new(Admission::new(AdmissionConfig { rate: 0, ..AdmissionConfig::default() }));
        self.health_listen.clone().into_iter().map(move |address| ListenerConfig {
            admission: admission.clone(),
            descriptors: descriptors.clone(),
            ..ListenerConfig::open(address)
        })
    }

    /// The doors of HTTP, the one without TLS first.
    pub(crate) fn http_doors(&self, entry: &Entry) -> Result<Vec<ListenerConfig>> {
        let tls = entry.tls(protocol::HTTP, &self.http_tls_listen)?;
        let config = |(address, tls)| ListenerConfig {
            address,
            tls,
            proxies: entry.proxies.clone(),
            backlog: self.admission.backlog,
            admission: entry.admission.clone(),
            descriptors: entry.descriptors.clone(),
        };
        Ok(std::iter::once((self.http_listen, None)).chain(tls).map(config).collect())
    }

    /// Refuses doors that could not be opened as they are described.
    pub(super) fn check_doors(&self) -> Result<()> {
        let Tls { certificate_file, key_file } = &self.tls;
        if certificate_file.is_some() != key_file.is_some() {
            bail!("[tls] needs both certificate_file and key_file, or neither");
        }
        if certificate_file.is_none() && !(self.miop_tls_listen.is_empty() && self.http_tls_listen.is_empty()) {
            bail!("miop_tls_listen and http_tls_listen need [tls] certificate_file and key_file");
        }
        self.cors()?;
        if self.proxy_protocol && self.proxy_protocol_from.is_empty() {
            bail!("proxy_protocol needs proxy_protocol_from: the networks of the load balancers that are believed");
        }
        Ok(())
    }
}

impl Entry {
    fn tls(&self, protocol: &[u8], listen: &[SocketAddr]) -> Result<Vec<(SocketAddr, Option<Arc<ServerConfig>>)>> {
        let Some(certificates) = &self.certificates else { return Ok(Vec::new()) };
        let config = server_config(certificates.clone(), protocol).context("preparing TLS")?;
        Ok(listen.iter().map(|address| (*address, Some(config.clone()))).collect())
    }
}
