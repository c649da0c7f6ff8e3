//! The standbys of the settings: which of them a read tries, and the threads that watch them.

use super::{
    Params, PostgresOpenError,
    connection::Connector,
    newest_commit::NewestCommit,
    options::PostgresOptions,
    pool::Pool,
    standby::{Marks, Standby, Unfit},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::{
    mem::discriminant,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_domain::{
    installation::InstallationId,
    store::{StandbyOutcome, StandbyReads},
};
use tokio_postgres::Row;

/// Connections to the primary, for questions and marks. They are made when they are needed.
const CONNECTIONS: usize = 2;
/// How often a standby that may be read from is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The first wait after a look in vain; the next ones double.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(4);

pub(crate) struct Standbys {
    /// Connections of its own: readers that wait for the primary keep nobody from a standby.
    primary: Arc<Pool>,
    newest_commit: NewestCommit,
    standbys: Vec<Arc<Standby>>,
    /// Which one the next read tries first.
    next: AtomicUsize,
    counts: [AtomicU64; StandbyOutcome::ALL.len()],
    /// The threads end when it is dropped.
    _stop: Sender<()>,
}

impl Standbys {
    /// Begins to watch the standbys of the options. One that cannot be used now is used once it can.
    ///
    /// # Errors
    /// A url is wrong, or leads to another installation's database.
    pub(crate) fn open(
        options: &PostgresOptions,
        installation: InstallationId,
        primary: Arc<Connector>,
    ) -> Result<Standbys, PostgresOpenError> {
        let primary = Arc::new(Pool::new(primary, CONNECTIONS, options.acquire_timeout));
        let (stop, stopped) = bounded(0);
        let mut standbys = Vec::with_capacity(options.read_urls.len());
        for (index, url) in options.read_urls.iter().enumerate() {
            let standby = Arc::new(Standby::new(index + 1, url, options, installation)?);
            match standby.look() {
                Err(why @ Unfit::Foreign) => {
                    return Err(PostgresOpenError::Standby { place: index + 1, why: why.to_string() });
                }
                Ok(()) | Err(Unfit::Promoted | Unfit::Unmarked | Unfit::Unreachable(_)) => {}
            }
            standby.watch_liveness();
            let (watched, primary, stopped) = (standby.clone(), primary.clone(), stopped.clone());
            std::thread::Builder::new()
                .name(format!("standby-{}", index + 1))
                .spawn(move || watch(&watched, &primary, &stopped))
                .map_err(PostgresOpenError::Thread)?;
            standbys.push(standby);
        }
        Ok(Standbys {
            primary,
            newest_commit: NewestCommit::default(),
            standbys,
            next: AtomicUsize::new(0),
            counts: Default::default(),
            _stop: stop,
        })
    }

    /// Reads from a standby what the primary would answer. `None`: the primary must be asked.
    pub(crate) fn query(&self, sql: &'static str, params: Params<'_>) -> Option<Vec<Row>> {
        if self.standbys.is_empty() {
            return None;
        }
        let read = self.try_query(sql, params);
        let outcome = read.as_ref().err().copied().unwrap_or(StandbyOutcome::Served);
        self.counts[outcome as usize].fetch_add(1, Ordering::Relaxed);
        read.ok()
    }

    fn try_query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, StandbyOutcome> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..self.standbys.len()).map(|n| &self.standbys[first.wrapping_add(n) % self.standbys.len()]);
        let standby = in_turn.into_iter().find(|standby| standby.is_open()).ok_or(StandbyOutcome::Away)?;
        standby.read(&self.primary, &self.newest_commit, sql, params)
    }

    pub(crate) fn reads(&self) -> StandbyReads {
        StandbyReads(std::array::from_fn(|outcome| self.counts[outcome].load(Ordering::Relaxed)))
    }
}

fn watch(standby: &Standby, primary: &Pool, stopped: &Receiver<()>) {
    let (mut marks, mut pause) = (Marks::default(), FIRST_PAUSE);
    // What the log says: at first nothing, since the first mark takes a moment.
    let mut known = None;
    loop {
        let found = standby.prove(primary, &mut marks);
        pause = if found.is_ok() { LOOK_INTERVAL } else { (pause * 2).min(PAUSE_MAX) };
        let kind = found.as_ref().map_err(discriminant).copied();
        let is_on_its_way = known.is_none() && found == Err(Unfit::Unmarked) && pause < LOOK_INTERVAL;
        if known != Some(kind) && !is_on_its_way {
            match &found {
                Ok(()) => tracing::info!(standby = standby.place, "reads go to the standby of [store] read_url"),
                Err(why) => tracing::warn!(
                    standby = standby.place,
                    %why,
                    "the standby of [store] read_url is not used: all its reads go to the primary"
                ),
            }
            known = Some(kind);
        }
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
