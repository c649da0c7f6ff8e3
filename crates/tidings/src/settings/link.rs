//! The role of a process, and the links between a core and its gateways.

use super::{
    Settings,
    macros::{one_of, settings},
};
use anyhow::{Result, bail};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tidings_gateway::{link_listener::LinkConfig, relay::RelayConfig};
use tidings_listen::OutboundBudget;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    All,
    Api,
    Worker,
    Gateway,
}

one_of!(Role { "all": Role::All, "api": Role::Api, "worker": Role::Worker, "gateway": Role::Gateway });

settings! {
    /// Links between a core and the gateways that hold connections for it.
    Link {
        /// Where gateways attach to this core (one address). Empty: nowhere; in a cluster, at port 8090 of the advertised host.
        /// Links are not encrypted: use a network of your own.
        listen: Vec<SocketAddr> = Vec::new(),
        /// The core that this gateway attaches to, as `host:port`; of a cluster some nodes, with commas between: they name the others.
        to: Option<String> = None,
        /// The secret that core and gateways share. Unset: that of the cluster.
        secret: Option<String> = None,
        /// This gateway's name, which only one process at a time may have. Unset: its first address for devices.
        name: Option<String> = None,
        /// A gateway that is silent for longer is given up, and the sessions that it held are ended.
        lease_ms: u64 = 15_000,
        /// Where a gateway answers `/metrics`, `/healthz` and `/readyz` (one address). Empty: nowhere.
        metrics_listen: Vec<SocketAddr> = Vec::new(),
    }
}

/// Where a cluster's nodes attach to each other. It is fixed, so that firewalls and network policies can name it.
const CLUSTER_LINK_PORT: u16 = 8090;
/// The shortest secret: whoever guesses it could open any session.
pub(super) const SECRET_BYTES_MIN: usize = 16;

impl Settings {
    pub(super) fn check_link(&self) -> Result<()> {
        let secret = self.link_secret().unwrap_or_default();
        let uses_links = self.role == Role::Gateway || !self.link.listen.is_empty();
        if uses_links && secret.len() < SECRET_BYTES_MIN {
            bail!("[link] secret must be set, and have at least {SECRET_BYTES_MIN} bytes. Set TIDINGS_LINK_SECRET");
        }
        if self.link.listen.len() > 1 || self.link.metrics_listen.len() > 1 {
            bail!("[link] listen and metrics_listen take one address each");
        }
        if self.role == Role::Gateway && self.cores().is_empty() {
            bail!("role = \"gateway\" needs [link] to: the core that it holds connections for. Set TIDINGS_LINK_TO");
        }
        let is_core = |core: &str| {
            core.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(core) = self.cores().iter().find(|core| !is_core(core)) {
            bail!("[link] to: {core:?} is not a host and port, such as 10.0.0.1:8090");
        }
        Ok(())
    }

    /// The listener for gateways; `None` if none may attach.
    pub(crate) fn link_config(&self) -> Option<LinkConfig> {
        let in_cluster = || self.cluster_node().map(|_| SocketAddr::new(self.advertised_ip(), CLUSTER_LINK_PORT));
        Some(LinkConfig {
            listen: self.link.listen.first().copied().or_else(in_cluster)?,
            secret: self.link_secret()?,
            lease: Duration::from_millis(self.link.lease_ms),
        })
    }

    fn link_secret(&self) -> Option<String> {
        self.link.secret.clone().or_else(|| self.cluster.secret.clone())
    }

    /// The IP address of the advertised host, without a DNS query: the unspecified address if the host is a name.
    fn advertised_ip(&self) -> IpAddr {
        let advertise = self.cluster.advertise.as_deref().and_then(|text| reqwest::Url::parse(text).ok());
        match advertise.as_ref().and_then(reqwest::Url::host_str) {
            Some(host) => host.trim_matches(['[', ']']).parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            None => self.http_listen.ip(),
        }
    }

    fn cores(&self) -> Vec<String> {
        let to = self.link.to.as_deref().unwrap_or_default();
        to.split(',').map(str::trim).filter(|core| !core.is_empty()).map(str::to_owned).collect()
    }

    /// The configuration of a gateway that listens for devices at these addresses.
    pub(crate) fn relay_config(&self, addresses: &[SocketAddr], outbound_budget: Arc<OutboundBudget>) -> RelayConfig {
        let address = addresses.first().map(SocketAddr::to_string).unwrap_or_default();
        RelayConfig {
            cores: self.cores(),
            secret: self.link_secret().unwrap_or_default(),
            name: self.link.name.clone().unwrap_or_else(|| address.clone()),
            address,
            sessions: self.session_config(outbound_budget),
        }
    }
}
