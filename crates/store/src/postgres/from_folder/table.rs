//! The tables that are filled: their columns, and the statements that fill, compare and count them.

use std::{fmt::Write, sync::LazyLock};
use tokio_postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident = $name:literal, $keys:literal, [$($column:literal $kind:literal),*], $conflict:literal;)*) => {
        /// A table that is filled from the folder.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Table { $($(#[$doc])* $table,)* }

        impl Table {
            pub(super) const ALL: &[Table] = &[$(Table::$table),*];

            pub(super) fn name(self) -> &'static str {
                match self { $(Table::$table => $name),* }
            }

            /// Its columns with their types, those of the key first.
            fn columns(self) -> &'static [(&'static str, &'static str)] {
                match self { $(Table::$table => &[$(($column, $kind)),*]),* }
            }

            /// How many columns the key has.
            fn keys(self) -> usize {
                match self { $(Table::$table => $keys),* }
            }

            /// What becomes of a row whose key is there already. Only sums over rows of another table have such.
            fn conflict(self) -> &'static str {
                match self { $(Table::$table => $conflict),* }
            }
        }
    };
}

tables! {
    Users = "users", 1, ["no" "bigint", "id" "text", "card" "bytea", "revoked_at" "bigint"], "";
    LastSeen = "last_seen", 1, ["user_no" "bigint", "at" "bigint"], "";
    Conversations = "conversations", 1, ["no" "bigint", "id" "text", "card" "bytea"], "";
    Heads = "heads", 1, ["conversation" "bigint", "last_seq" "bigint", "last_at" "bigint", "last_position" "bigint"], "";
    Members = "members", 2, ["conversation" "bigint", "user_no" "bigint", "role" "smallint", "joined_at" "bigint",
        "joined_seq" "bigint", "read_seq" "bigint", "muted_until" "bigint"], "";
    Places = "places", 3, ["user_no" "bigint", "kind" "smallint", "conversation" "bigint"], "";
    Entries = "entries", 3, ["conversation" "bigint", "seq" "bigint", "part" "integer", "position" "bigint", "at" "bigint",
        "content" "bytea"], "";
    /// Where a conversation's entries of a part begin: entries come in the order of their sequences.
    Chapters = "chapters", 2, ["conversation" "bigint", "part" "integer", "first_seq" "bigint"], " ON CONFLICT DO NOTHING";
    /// Sums over the entries of a part.
    Parts = "parts", 1, ["part" "integer", "entries" "bigint", "bytes" "bigint", "last_position" "bigint"],
        " ON CONFLICT (part) DO UPDATE SET entries = parts.entries + excluded.entries, bytes = parts.bytes + excluded.bytes, \
         last_position = greatest(parts.last_position, excluded.last_position)";
    Dedupe = "dedupe", 2, ["sender" "bigint", "client_msg_id" "text", "conversation" "bigint", "seq" "bigint", "at" "bigint",
        "position" "bigint", "request" "bytea"], "";
    Changes = "changes", 1, ["position" "bigint", "at" "bigint", "change" "bytea"], "";
    Outbox = "outbox", 1, ["position" "bigint", "conversation" "bigint", "seq" "bigint"], "";
    DeadNotifications = "dead_notifications", 1, ["id" "bigint", "row" "bytea"], "";
    NotificationRetries = "notification_retries", 1, ["id" "bigint", "row" "bytea"], "";
    UnacknowledgedMessages = "unacknowledged_messages", 1, ["id" "bigint", "row" "bytea"], "";
    ChatRows = "chat_rows", 1, ["key" "bytea", "value" "bytea"], "";
    PushRows = "push_rows", 1, ["key" "bytea", "value" "bytea"], "";
    PopupRows = "popup_rows", 1, ["key" "bytea", "value" "bytea"], "";
}

/// The statements of a table. The first two take an array for each column.
pub(super) struct Statements {
    pub(super) insert: String,
    /// Counts the rows that are stored as they are given.
    pub(super) compare: String,
    pub(super) count: String,
}

impl Table {
    pub(super) fn statements(self) -> &'static Statements {
        static ALL: LazyLock<Vec<Statements>> =
            LazyLock::new(|| Table::ALL.iter().map(|table| Statements::of(*table)).collect());
        &ALL[self as usize]
    }

    /// Whether its rows are sums over those of another table, and compared with them instead of with the folder.
    pub(super) fn is_derived(self) -> bool {
        !self.conflict().is_empty()
    }
}

impl Statements {
    fn of(table: Table) -> Statements {
        let name = table.name();
        let columns: Vec<&str> = table.columns().iter().map(|(column, _)| *column).collect();
        let columns = columns.join(", ");
        let kinds = table.columns().iter().enumerate();
        let arrays: Vec<String> = kinds.map(|(place, (_, kind))| format!("${}::{kind}[]", place + 1)).collect();
        let given = format!("unnest({})", arrays.join(", "));
        let mut compare = format!("SELECT count(*) FROM {given} AS k ({columns}) JOIN {name} t ON true");
        for (place, (column, _)) in table.columns().iter().enumerate() {
            // By the key's index.
            let is = if place < table.keys() { "=" } else { "IS NOT DISTINCT FROM" };
            // Writing to a string cannot fail.
            let _ = write!(compare, " AND t.{column} {is} k.{column}");
        }
        Statements {
            insert: format!("INSERT INTO {name} ({columns}) SELECT * FROM {given}{}", table.conflict()),
            compare,
            count: format!("SELECT count(*) FROM {name}"),
        }
    }
}

/// A value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Big(i64),
    Int(i32),
    Small(i16),
    Text(String),
    Bytes(Vec<u8>),
    Null,
}

impl Value {
    /// About how many bytes it takes.
    pub(super) fn length(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            Value::Big(_) | Value::Int(_) | Value::Small(_) | Value::Null => 8,
        }
    }
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Big(number) => number.to_sql(kind, out),
            Value::Int(number) => number.to_sql(kind, out),
            Value::Small(number) => number.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Bytes(bytes) => bytes.to_sql(kind, out),
            Value::Null => Ok(IsNull::Yes),
        }
    }

    /// The types are those that the statements name.
    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
