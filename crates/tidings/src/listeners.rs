//! All listeners of the process: bound, announced by address, given new certificates, closed.

use crate::settings::{ListenerContext, Settings};
use anyhow::{Context, Result};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidings_api::{
    listener::{Listener, StopHandle},
    request_service::RequestService,
};
use tidings_gateway::miop_listener::{self, ConnectionHost, MiopListener};
use tidings_listen::tls::Certificates;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

/// How often the certificate files are checked for changes.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The listeners of a running server.
pub(crate) struct Listeners {
    http: Vec<StopHandle>,
    health: Vec<StopHandle>,
    /// Until it is closed.
    miop: Option<miop_listener::StopHandle>,
    /// Each listener's name and address, plain HTTP first.
    addresses: Vec<(&'static str, SocketAddr)>,
    certificate_watch: Option<JoinHandle<()>>,
}

impl Listeners {
    /// Binds every listener of the settings. `host` is called with the addresses for devices, and returns what serves them.
    pub(crate) fn open(
        settings: &Settings,
        context: ListenerContext,
        http: &RequestService,
        host: impl FnOnce(&[SocketAddr]) -> Result<Arc<dyn ConnectionHost>>,
    ) -> Result<Listeners> {
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        for config in settings.http_listeners(&context)? {
            let (name, address) = (if config.tls.is_some() { "https" } else { "http" }, config.address);
            let listener = Listener::bind(config, http.clone()).with_context(|| cannot_listen(&[address], name))?;
            addresses.push((name, listener.address()));
            listeners.push(listener);
        }
        let (mut health, mut health_listeners) = (Vec::new(), Vec::new());
        for config in settings.health_listeners(&context) {
            let address = config.address;
            let listener =
                Listener::bind(config, http.for_health()).with_context(|| cannot_listen(&[address], "health"))?;
            health.push(("health", listener.address()));
            health_listeners.push(listener);
        }
        let miop = Listeners::open_miop(settings, context, host)?;
        addresses.extend(&miop.addresses);
        addresses.extend(health);
        let [http, health] = [listeners, health_listeners].map(|all| all.into_iter().map(Listener::start).collect());
        Ok(Listeners { http, health, addresses, ..miop })
    }

    /// Binds the listeners for devices alone. `host` as in [`Listeners::open`].
    pub(crate) fn open_miop(
        settings: &Settings,
        context: ListenerContext,
        host: impl FnOnce(&[SocketAddr]) -> Result<Arc<dyn ConnectionHost>>,
    ) -> Result<Listeners> {
        let config = settings.miop_listener(&context)?;
        let asked: Vec<SocketAddr> = config.listen.iter().map(|(address, _)| *address).collect();
        let miop = MiopListener::bind(config).with_context(|| cannot_listen(&asked, "miop"))?;
        let (at, tls): (Vec<SocketAddr>, Vec<bool>) = miop.addresses().into_iter().unzip();
        let names = tls.iter().map(|tls| if *tls { "miop_tls" } else { "miop" });
        Ok(Listeners {
            http: Vec::new(),
            health: Vec::new(),
            addresses: names.zip(at.iter().copied()).collect(),
            miop: Some(miop.start(host(&at)?)?),
            certificate_watch: context.certificates.map(watch_certificates).transpose()?,
        })
    }

    /// The address of HTTP without TLS.
    pub(crate) fn http_address(&self) -> SocketAddr {
        self.addresses[0].1
    }

    /// A line `name=address` for each listener.
    pub(crate) fn listening(&self) -> String {
        self.addresses.iter().map(|(name, address)| format!("{name}={address}\n")).collect()
    }

    /// Stops accepting and finishes the running HTTP requests. Returns whether they ended within the deadline. Health and
    /// metrics are answered until [`Listeners::close_health`].
    pub(crate) async fn close(&mut self, deadline: Duration) -> bool {
        if let Some(watch) = self.certificate_watch.take() {
            watch.abort();
        }
        if let Some(miop) = self.miop.take() {
            miop.finish();
        }
        finish(&mut self.http, deadline).await
    }

    /// Closes what is still open.
    pub(crate) async fn close_health(mut self, deadline: Duration) {
        finish(&mut self.health, deadline).await;
    }
}

/// Returns whether all ended within the deadline.
async fn finish(listeners: &mut Vec<StopHandle>, deadline: Duration) -> bool {
    let closing: Vec<_> = listeners.drain(..).map(|stop| tokio::spawn(stop.finish(deadline))).collect();
    let mut in_time = true;
    for closed in closing {
        in_time &= closed.await.unwrap_or(false);
    }
    in_time
}

/// The context of a bind error, which usually means that another program, or another server of ours, has the address.
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

/// Loads new certificates when their files change, and on SIGHUP.
fn watch_certificates(certificates: Arc<Certificates>) -> Result<JoinHandle<()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        let mut timer = tokio::time::interval(CERTIFICATE_CHECK_INTERVAL);
        loop {
            let certificates = certificates.clone();
            let look: fn(&Certificates) = tokio::select! {
                _ = timer.tick() => |certificates| drop(certificates.reload_if_changed()),
                _ = hangup.recv() => |certificates| drop(certificates.reload()),
            };
            // Reading the files may block.
            let _ = tokio::task::spawn_blocking(move || look(&certificates)).await;
        }
    }))
}
