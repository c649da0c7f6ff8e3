//! What a process does, and how several of them hang together.

use super::{
    Settings,
    macros::{Value, settings},
};
use anyhow::{Result, bail};
use std::{net::SocketAddr, time::Duration};
use tidings_gateway::{link::door::LinkConfig, relay::RelayConfig};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    All,
    Api,
    Worker,
    Gateway,
}

impl Value for Role {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Role::All),
            "api" => Ok(Role::Api),
            "worker" => Ok(Role::Worker),
            "gateway" => Ok(Role::Gateway),
            _ => Err("all, api, worker or gateway".into()),
        }
    }

    fn show(&self) -> (bool, String) {
        (true, format!("\"{}\"", format!("{self:?}").to_lowercase()))
    }
}

settings! {
    /// Links between a core and the gateways that hold connections for it.
    Link {
        /// Where gateways attach to this core (one address). Empty: none can. Links are not encrypted: use a network of your own.
        listen: Vec<SocketAddr> = Vec::new(),
        /// The core that this gateway attaches to, as `host:port`.
        to: Option<String> = None,
        /// The secret that core and gateways share.
        secret: Option<String> = None,
        /// This gateway's name, one process at a time has it. Unset: its first address for devices.
        name: Option<String> = None,
        /// A gateway that is silent for longer is given up, and the sessions that it held with it.
        lease_ms: u64 = 15_000,
        /// Where a gateway answers `/metrics`, `/healthz` and `/readyz` (one address). Empty: nowhere.
        metrics_listen: Vec<SocketAddr> = Vec::new(),
    }
}

/// A secret that could be guessed would open every session.
const SECRET_BYTES_MIN: usize = 16;

impl Settings {
    pub(super) fn check_link(&self) -> Result<()> {
        let secret = self.link.secret.as_deref().unwrap_or_default();
        let uses_links = self.role == Role::Gateway || !self.link.listen.is_empty();
        if uses_links && secret.len() < SECRET_BYTES_MIN {
            bail!("[link] secret must be set, and have at least {SECRET_BYTES_MIN} bytes. Set TIDINGS_LINK_SECRET");
        }
        if self.link.listen.len() > 1 || self.link.metrics_listen.len() > 1 {
            bail!("[link] listen and metrics_listen take one address each");
        }
        if self.role == Role::Gateway && self.link.to.is_none() {
            bail!("role = \"gateway\" needs [link] to: the core that it holds connections for. Set TIDINGS_LINK_TO");
        }
        Ok(())
    }

    /// Where gateways attach, if they may.
    pub(crate) fn link_config(&self) -> Option<LinkConfig> {
        Some(LinkConfig {
            listen: self.link.listen.first().copied()?,
            secret: self.link.secret.clone()?,
            lease: Duration::from_millis(self.link.lease_ms),
        })
    }

    /// What a gateway that listens at these addresses needs to know.
    pub(crate) fn relay_config(&self, addresses: &[SocketAddr]) -> RelayConfig {
        let address = addresses.first().map(SocketAddr::to_string).unwrap_or_default();
        RelayConfig {
            core: self.link.to.clone().unwrap_or_default(),
            secret: self.link.secret.clone().unwrap_or_default(),
            name: self.link.name.clone().unwrap_or_else(|| address.clone()),
            address,
            sessions: self.gateway_config(),
        }
    }
}
