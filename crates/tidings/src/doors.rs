//! All doors together: opened, told where they are, kept in fresh certificates, closed.

use crate::settings::{Entry, Settings};
use anyhow::{Context, Result};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidings_api::{
    door::Door,
    listener::{Listener, Stop},
};
use tidings_gateway::door::{self, Host, MiopDoor};
use tidings_listen::tls::Certificates;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

/// How often the files of certificates are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The doors of a running server.
pub(crate) struct Doors {
    http: Vec<Stop>,
    miop: door::Stop,
    /// By the name of the door, plain HTTP first.
    addresses: Vec<(&'static str, SocketAddr)>,
    watch: Option<JoinHandle<()>>,
}

impl Doors {
    /// `host` is told where devices connect, and answers who serves them.
    pub(crate) fn open(
        settings: &Settings,
        entry: Entry,
        http: &Door,
        host: impl FnOnce(&[SocketAddr]) -> Result<Arc<dyn Host>>,
    ) -> Result<Doors> {
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        for config in settings.http_doors(&entry)? {
            let (name, address) = (if config.tls.is_some() { "https" } else { "http" }, config.address);
            let listener = Listener::bind(config, http.clone()).with_context(|| cannot_listen(&[address], name))?;
            addresses.push((name, listener.address()));
            listeners.push(listener);
        }
        let mut health = Vec::new();
        for config in settings.health_doors(&entry) {
            let address = config.address;
            let listener =
                Listener::bind(config, http.of_health()).with_context(|| cannot_listen(&[address], "health"))?;
            health.push(("health", listener.address()));
            listeners.push(listener);
        }
        let doors = Doors::open_miop(settings, entry, host)?;
        addresses.extend(&doors.addresses);
        addresses.extend(health);
        Ok(Doors { http: listeners.into_iter().map(Listener::start).collect(), addresses, ..doors })
    }

    /// The doors of devices alone. Who serves them may need to know where they are.
    pub(crate) fn open_miop(
        settings: &Settings,
        entry: Entry,
        host: impl FnOnce(&[SocketAddr]) -> Result<Arc<dyn Host>>,
    ) -> Result<Doors> {
        let config = settings.miop_door(&entry)?;
        let asked: Vec<SocketAddr> = config.listen.iter().map(|(address, _)| *address).collect();
        let miop = MiopDoor::bind(config).with_context(|| cannot_listen(&asked, "miop"))?;
        let (at, tls): (Vec<SocketAddr>, Vec<bool>) = miop.addresses().into_iter().unzip();
        let names = tls.iter().map(|tls| if *tls { "miop_tls" } else { "miop" });
        Ok(Doors {
            http: Vec::new(),
            addresses: names.zip(at.iter().copied()).collect(),
            miop: miop.start(host(&at)?)?,
            watch: entry.certificates.map(watch).transpose()?,
        })
    }

    /// Where HTTP is spoken without TLS.
    pub(crate) fn http_address(&self) -> SocketAddr {
        self.addresses[0].1
    }

    /// A line for each address.
    pub(crate) fn listening(&self) -> String {
        self.addresses.iter().map(|(name, address)| format!("{name}={address}\n")).collect()
    }

    /// No new connections; HTTP requests are finished. Answers whether they were in time.
    pub(crate) async fn close(self, deadline: Duration) -> bool {
        if let Some(watch) = self.watch {
            watch.abort();
        }
        self.miop.finish();
        let closing: Vec<_> = self.http.into_iter().map(|stop| tokio::spawn(stop.finish(deadline))).collect();
        let mut in_time = true;
        for closed in closing {
            in_time &= closed.await.unwrap_or(false);
        }
        in_time
    }
}

/// Most likely another program is there, or this one already.
fn cannot_listen(addresses: &[SocketAddr], name: &str) -> String {
    let setting = match name {
        "https" => "--http-tls-listen",
        "health" => "--health-listen",
        "miop" => "--miop-listen and --miop-tls-listen",
        _ => "--http-listen",
    };
    let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    format!("listening on {} ({name}; another address: {setting})", addresses.join(", "))
}

/// Takes new certificates when their files change, or when told to by a SIGHUP.
fn watch(certificates: Arc<Certificates>) -> Result<JoinHandle<()>> {
    let mut told = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        let mut timer = tokio::time::interval(LOOK_INTERVAL);
        loop {
            let certificates = certificates.clone();
            let look: fn(&Certificates) = tokio::select! {
                _ = timer.tick() => |certificates| drop(certificates.look()),
                _ = told.recv() => |certificates| drop(certificates.reload()),
            };
            // Files are read on a thread that may wait for them.
            let _ = tokio::task::spawn_blocking(move || look(&certificates)).await;
        }
    }))
}
