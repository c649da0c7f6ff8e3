//! The sign of life of a process: an advisory lock under its boot id, held by a session that does nothing else. When the process
//! ends, its operating system closes the connection, and the database frees the lock at once, whatever its disks do: no row is
//! written. A process that is frozen or cut off keeps its sign; its lease ends.

use super::{
    PostgresStore,
    clock::now_ms,
    commit_log::boot,
    connection::{Connection, Purpose, number},
    failure::Failure,
};
use parking_lot::Mutex;
use tidings_domain::{
    commit_log::{LeaderSign, LifeSigns},
    function::Function,
    store::StoreResult,
};

#[derive(Default)]
pub(super) struct SignSession(Mutex<State>);

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// How often the sign was set.
    times_set: u64,
}

/// Whether the lock under a boot id is held; a condition on the session may follow. PostgreSQL shows the two halves of the key.
macro_rules! sign_is_set {
    ($boot_id:literal, $session:literal) => {
        concat!(
            "EXISTS (SELECT FROM pg_locks s WHERE s.locktype = 'advisory' AND s.objsubid = 1 AND s.granted \
             AND s.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND s.classid = ((",
            $boot_id,
            "::bigint >> 32) & 4294967295)::oid AND s.objid = (",
            $boot_id,
            "::bigint & 4294967295)::oid",
            $session,
            ")"
        )
    };
}
/// What each renewal of the lead changes.
macro_rules! renewal {
    () => {
        "(extract(epoch FROM lease_until) * 1000000)::bigint"
    };
}

const LOOK: &str = concat!(
    "SELECT l.boot_id, ",
    renewal!(),
    ", ",
    sign_is_set!("l.boot_id", ""),
    ", (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, ",
    sign_is_set!("$1", " AND s.pid = pg_backend_pid()"),
    ", l.function FROM leader l"
);
const SET: &str = "SELECT pg_try_advisory_lock($1)";
/// As `LEAD` takes the lead. The server must be the one that was looked at.
const SUCCEED: &str = concat!(
    "UPDATE leader SET term = greatest(term + 1, ",
    now_ms!(),
    "), boot_id = $1, lease_until = now() + $2 * interval '1 millisecond' WHERE function = $6 AND boot_id = $3::bigint AND ",
    renewal!(),
    " = $4::bigint AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $5::bigint AND NOT ",
    sign_is_set!("$3", ""),
    " RETURNING 1"
);

impl PostgresStore {
    pub(super) fn look_at_life_signs(&self, boot_id: u64) -> StoreResult<LifeSigns> {
        let id = boot(boot_id);
        let mut state = self.sign_session.0.lock();
        let State { connection, times_set } = &mut *state;
        let looked = self.connector.block_on(async {
            let open = connection.take().filter(|connection| !connection.is_closed());
            let session = match open {
                Some(session) => session,
                None => self.connector.connect(Purpose::Read).await?,
            };
            // While an earlier session of this process is still known to the database, the lock is that one's.
            let mut look = session.query(LOOK, &[&id]).await?;
            let is_own = |look: &[tokio_postgres::Row]| look.first().is_some_and(|row| row.get(4));
            if !is_own(&look) {
                session.query(SET, &[&id]).await?;
                *times_set += 1;
                look = session.query(LOOK, &[&id]).await?;
            }
            let own = is_own(&look).then_some(*times_set);
            *connection = Some(session);
            let leader = |row: &tokio_postgres::Row| {
                Some(LeaderSign {
                    function: Function::of_name(row.get(5))?,
                    boot_id: row.get::<_, i64>(0) as u64,
                    renewal: number(row, 1),
                    is_set: row.get(2),
                    server: number(row, 3),
                })
            };
            let leaders: Vec<LeaderSign> = look.iter().filter_map(leader).collect();
            if leaders.is_empty() {
                return Err(Failure::Incompatible("the leader's row is missing".into()));
            }
            Ok(LifeSigns { own, leaders })
        });
        looked.map_err(|failure: Failure| failure.into())
    }

    pub(super) fn succeed_leader(&self, boot_id: u64, lease_ms: u64, lost: LeaderSign) -> StoreResult<bool> {
        let (id, lease) = (boot(boot_id), lease_ms as f64);
        let params: super::Params<'_> =
            &[&id, &lease, &boot(lost.boot_id), &(lost.renewal as i64), &(lost.server as i64), &lost.function.name()];
        Ok(!self.write_statement(SUCCEED, params)?.is_empty())
    }
}
