//! The tables and functions of the outbox, for each kind of database.

/// For PostgreSQL.
pub const POSTGRES: &str = include_str!("sql/postgres.sql");
/// For MariaDB and MySQL.
pub const MYSQL: &str = include_str!("sql/mysql.sql");
/// The name of the table by default.
pub const TABLE: &str = "tidings_outbox";
/// The longest name of a table: names of indexes and of the other tables are longer, and a database takes 63 bytes.
const TABLE_BYTES_MAX: usize = 40;

/// Whether a table may have this name: a small letter, and small letters, digits and `_`.
pub fn is_table_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= TABLE_BYTES_MAX && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(is_known)
}

/// A script or a statement with this table instead of [`TABLE`].
pub fn with_table(sql: &str, table: &str) -> String {
    sql.replace(TABLE, table)
}
