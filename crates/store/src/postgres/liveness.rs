//! The liveness probe: twice a second it asks the database for an answer on a connection of its own. A server that has ended
//! refuses connections at once; a server that is cut off is only silent, and each statement would wait for its time-out
//! while others queue behind it. While the database is silent, statements fail at once.

use super::{driver::drive, failure::Failure};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Runtime, sync::watch, time};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

const PROBE_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct LivenessProbe {
    silent: Arc<watch::Sender<bool>>,
    is_running: Arc<AtomicBool>,
    silent_after: Duration,
}

impl LivenessProbe {
    pub(crate) fn new(silent_after: Duration) -> Self {
        LivenessProbe { silent: Arc::new(watch::Sender::new(false)), is_running: Arc::default(), silent_after }
    }

    pub(crate) fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Completes when the database is silent.
    pub(crate) async fn becomes_silent(&self) {
        // The wait cannot fail: `self` keeps the sender.
        let _ = self.silent.subscribe().wait_for(|silent| *silent).await;
    }

    /// Starts the probe on the first call. It ends with the runtime.
    pub(crate) fn start(&self, runtime: &Runtime, config: Config, tls: MakeRustlsConnect) {
        if !self.is_running.swap(true, Ordering::Relaxed) {
            runtime.spawn(probe(self.silent.clone(), self.silent_after, config, tls));
        }
    }
}

async fn probe(silent: Arc<watch::Sender<bool>>, silent_after: Duration, config: Config, tls: MakeRustlsConnect) {
    let mut client: Option<Client> = None;
    loop {
        time::sleep(PROBE_INTERVAL).await;
        let open = client.take().filter(|client| !client.is_closed());
        let question = async {
            let client = match open {
                Some(client) => client,
                None => {
                    let (client, connection) = config.connect(tls.clone()).await?;
                    tokio::spawn(drive(connection, Arc::default()));
                    client
                }
            };
            client.simple_query("SELECT 1").await?;
            Ok::<Client, Failure>(client)
        };
        let answer = time::timeout(silent_after, question).await;
        // An error is an answer too: statements get the same error, and at once.
        let is_silent = answer.is_err();
        client = answer.ok().and_then(Result::ok);
        let was_silent = silent.send_replace(is_silent);
        match (was_silent, is_silent) {
            (false, true) => tracing::warn!("PostgreSQL is silent: statements are refused until it answers"),
            (true, false) => tracing::info!("PostgreSQL answers again"),
            _ => {}
        }
    }
}
