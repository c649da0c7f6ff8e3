//! `tidings outbox-sql`: the tables and functions of an outbox.

use anyhow::{Result, bail};
use std::process::ExitCode;
use tidings_outbox::sql;

#[derive(clap::Args)]
pub(crate) struct OutboxSql {
    /// The kind of database
    #[arg(value_enum)]
    database: DatabaseKind,
    /// The table's name; the other tables and the inner functions have names that begin with it
    #[arg(long, default_value = sql::TABLE)]
    table: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum DatabaseKind {
    /// PostgreSQL 13 or later
    Postgres,
    /// MariaDB 10.6 or later, MySQL 8.0.21 or later
    #[value(alias = "mariadb")]
    Mysql,
}

impl OutboxSql {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !sql::is_table_name(&self.table) {
            bail!("--table {:?} must begin with a small letter, and be of small letters, digits and _", self.table);
        }
        let script = match self.database {
            DatabaseKind::Postgres => sql::POSTGRES,
            DatabaseKind::Mysql => sql::MYSQL,
        };
        print!("{}", sql::with_table(script, &self.table));
        Ok(ExitCode::SUCCESS)
    }
}
