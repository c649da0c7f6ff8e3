//! The app's own database with an outbox in it: PostgreSQL or MariaDB.

use crate::{mariadb::MariadbServer, postgres::PostgresServer, redis::wait_until};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use tidings_outbox::sql;
use tokio::runtime::Runtime;

/// The kinds that every test of the outbox runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    Mariadb,
}

enum Running {
    Postgres(Arc<PostgresServer>),
    Mariadb(Arc<MariadbServer>),
}

pub(crate) struct AppDatabase {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    server: Running,
}

impl AppDatabase {
    /// A database on the server that all tests share.
    pub(crate) fn new(kind: Kind) -> AppDatabase {
        AppDatabase::on(match kind {
            Kind::Postgres => Running::Postgres(PostgresServer::shared()),
            Kind::Mariadb => Running::Mariadb(MariadbServer::shared()),
        })
    }

    /// A database on a server of its own, which may be killed.
    pub(crate) fn with_own_server(kind: Kind) -> AppDatabase {
        AppDatabase::on(match kind {
            Kind::Postgres => Running::Postgres(Arc::new(PostgresServer::start(&["synchronous_commit=on"]))),
            Kind::Mariadb => Running::Mariadb(Arc::new(MariadbServer::start())),
        })
    }

    fn on(server: Running) -> AppDatabase {
        let (kind, url) = match &server {
            Running::Postgres(server) => (Kind::Postgres, server.database()),
            Running::Mariadb(server) => (Kind::Mariadb, server.database()),
        };
        match &server {
            Running::Postgres(server) => drop(server.sql(&url, sql::POSTGRES)),
            Running::Mariadb(server) => server.run_script(&url, sql::MYSQL),
        }
        AppDatabase { kind, url, server }
    }

    pub(crate) fn kill(&self) {
        match &self.server {
            Running::Postgres(server) => server.kill(),
            Running::Mariadb(server) => server.kill(),
        }
    }

    pub(crate) fn launch(&self) {
        match &self.server {
            Running::Postgres(server) => server.launch(),
            Running::Mariadb(server) => server.launch(),
        }
    }

    pub(crate) fn connect(&self) -> AppConnection {
        AppConnection::open(self.kind, &self.url).unwrap()
    }

    /// The settings of a server that follows it.
    pub(crate) fn settings(&self, name: &str) -> String {
        format!("[[outbox_source]]\nname = {name:?}\nurl = {:?}\npoll_ms = 10\n", self.url)
    }

    /// Waits until no row waits that could be stored.
    pub(crate) fn wait_until_none_waits(&self) {
        let mut connection = self.connect();
        wait_until("no row waits", || connection.count("state = 'waiting'") == 0);
    }
}

/// A connection of the app's.
pub(crate) struct AppConnection {
    kind: Kind,
    client: Client,
    runtime: Runtime,
}

enum Client {
    Postgres(tokio_postgres::Client),
    Mariadb(mysql_async::Conn),
}

/// Rows as text.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

impl AppConnection {
    fn open(kind: Kind, url: &str) -> Result<AppConnection, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            match kind {
                Kind::Postgres => {
                    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
                    let (client, connection) = connected.map_err(|error| error.to_string())?;
                    tokio::spawn(connection);
                    Ok::<_, String>(Client::Postgres(client))
                }
                Kind::Mariadb => {
                    Ok(Client::Mariadb(mysql_async::Conn::from_url(url).await.map_err(|error| error.to_string())?))
                }
            }
        })?;
        Ok(AppConnection { kind, client, runtime })
    }

    pub(crate) fn try_run(&mut self, sql: &str) -> Result<Rows, String> {
        let AppConnection { client, runtime, .. } = self;
        runtime.block_on(async {
            match client {
                Client::Postgres(client) => {
                    let messages = client.simple_query(sql).await.map_err(|error| match error.as_db_error() {
                        Some(told) => format!("{} {}", told.code().code(), told.message()),
                        None => error.to_string(),
                    })?;
                    let rows = messages.into_iter().filter_map(|message| match message {
                        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
                        _ => None,
                    });
                    Ok(rows.map(|row| (0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect()).collect())
                }
                Client::Mariadb(connection) => {
                    let rows: Vec<mysql_async::Row> = connection.query(sql).await.map_err(|error| error.to_string())?;
                    let text = |row: &mysql_async::Row, n| row.get::<Option<String>, _>(n).flatten();
                    Ok(rows.iter().map(|row| (0..row.len()).map(|n| text(row, n)).collect()).collect())
                }
            }
        })
    }

    pub(crate) fn run(&mut self, sql: &str) -> Rows {
        self.try_run(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Calls a function, or a procedure, with a JSON text.
    pub(crate) fn call(&mut self, function: &str, request: &serde_json::Value) -> Result<Rows, String> {
        let text = request.to_string();
        assert!(!text.contains(['\'', '\\']), "{text} is quoted");
        self.try_run(&match self.kind {
            Kind::Postgres => format!("SELECT {function}('{text}')"),
            Kind::Mariadb => format!("CALL {function}('{text}')"),
        })
    }

    /// A message of one transaction of its own. Answers the row's number.
    pub(crate) fn send(&mut self, request: &serde_json::Value) -> i64 {
        self.call("tidings_send", request).unwrap();
        let last = self.run("SELECT max(id) FROM tidings_outbox");
        last[0][0].as_ref().unwrap().parse().unwrap()
    }

    pub(crate) fn lock(&mut self, conversations: &[&str]) -> Result<Rows, String> {
        let list = serde_json::json!(conversations).to_string();
        self.try_run(&match self.kind {
            Kind::Postgres => format!("SELECT tidings_lock(ARRAY(SELECT json_array_elements_text('{list}')))"),
            Kind::Mariadb => format!("CALL tidings_lock('{list}')"),
        })
    }

    pub(crate) fn begin(&mut self) {
        self.run("BEGIN");
    }

    pub(crate) fn count(&mut self, condition: &str) -> u64 {
        let rows = self.run(&format!("SELECT count(*) FROM tidings_outbox WHERE {condition}"));
        rows[0][0].as_ref().unwrap().parse().unwrap()
    }

    /// The state, the code, the detail and the result of a row.
    pub(crate) fn row(&mut self, id: i64) -> Vec<String> {
        let rows = self.run(&format!("SELECT state, code, detail, result FROM tidings_outbox WHERE id = {id}"));
        rows[0].iter().map(|value| value.clone().unwrap_or_default()).collect()
    }

    /// Waits until a row is in this state. Answers it.
    pub(crate) fn wait_for_state(&mut self, id: i64, state: &str) -> Vec<String> {
        wait_until(&format!("row {id} is {state}"), || self.row(id)[0] == state);
        self.row(id)
    }
}

/// Whether a failure of a statement says that the transaction is to be tried again.
pub(crate) fn is_deadlock(error: &str) -> bool {
    ["40P01", "40001", "Deadlock found", "has changed since last read"].iter().any(|part| error.contains(part))
}
