//! Whether the database says anything at all, asked twice a second on a connection of its own. A server that ends refuses at
//! once; one that is cut off is only silent, and who waited for it would keep others waiting. While it is silent nobody does.

use super::connection::{Failure, drive};
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

const BEAT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct Pulse {
    silent: Arc<watch::Sender<bool>>,
    begun: Arc<AtomicBool>,
    silent_after: Duration,
}

impl Pulse {
    pub(crate) fn new(silent_after: Duration) -> Self {
        Pulse { silent: Arc::new(watch::Sender::new(false)), begun: Arc::default(), silent_after }
    }

    pub(crate) fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Ends when the database has fallen silent.
    pub(crate) async fn falls_silent(&self) {
        // The sender lives as long as this.
        let _ = self.silent.subscribe().wait_for(|silent| *silent).await;
    }

    /// Begins to ask, once; ends with the runtime.
    pub(crate) fn begin(&self, runtime: &Runtime, config: Config, tls: MakeRustlsConnect) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            runtime.spawn(ask(self.silent.clone(), self.silent_after, config, tls));
        }
    }
}

async fn ask(silent: Arc<watch::Sender<bool>>, silent_after: Duration, config: Config, tls: MakeRustlsConnect) {
    let mut client: Option<Client> = None;
    loop {
        time::sleep(BEAT).await;
        let kept = client.take().filter(|client| !client.is_closed());
        let asked = async {
            let client = match kept {
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
        let answered = time::timeout(silent_after, asked).await;
        // An error is an answer, too: others get it as well, at once.
        let is_silent = answered.is_err();
        client = answered.ok().and_then(Result::ok);
        let was_silent = silent.send_replace(is_silent);
        match (was_silent, is_silent) {
            (false, true) => tracing::warn!("PostgreSQL is silent: nobody waits for it until it answers"),
            (true, false) => tracing::info!("PostgreSQL answers again"),
            _ => {}
        }
    }
}
