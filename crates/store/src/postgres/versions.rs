//! The versions of the tables: the migrations that lead from one to the next, and which version a program must know.
//!
//! Each file in `migrations/` has a line `needs program`: the lowest version of the tables that a program must know to start
//! with them, or to go on. A migration that the previous program can work with names the previous version, and nodes that run it go on.

/// A change of the tables.
pub(crate) struct Migration {
    pub version: u64,
    pub name: &'static str,
    pub sql: &'static str,
}

/// All migrations, oldest first.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "first", sql: include_str!("migrations/0001_first.sql") },
    Migration { version: 2, name: "commit log", sql: include_str!("migrations/0002_commit_log.sql") },
    Migration { version: 3, name: "terms", sql: include_str!("migrations/0003_terms.sql") },
    Migration { version: 4, name: "left", sql: include_str!("migrations/0004_left.sql") },
    Migration { version: 5, name: "revoked", sql: include_str!("migrations/0005_revoked.sql") },
    Migration { version: 6, name: "chat rows", sql: include_str!("migrations/0006_chat_rows.sql") },
    Migration { version: 7, name: "requests", sql: include_str!("migrations/0007_requests.sql") },
    Migration { version: 8, name: "installation", sql: include_str!("migrations/0008_installation.sql") },
    Migration { version: 9, name: "gates", sql: include_str!("migrations/0009_gates.sql") },
    Migration {
        version: 10,
        name: "notification tables",
        sql: include_str!("migrations/0010_notification_tables.sql"),
    },
    Migration { version: 11, name: "function leases", sql: include_str!("migrations/0011_function_leases.sql") },
    Migration { version: 12, name: "standby marks", sql: include_str!("migrations/0012_standby_marks.sql") },
    Migration { version: 13, name: "popups lease", sql: include_str!("migrations/0013_popups_lease.sql") },
    Migration { version: 14, name: "orders", sql: include_str!("migrations/0014_orders.sql") },
    Migration { version: 15, name: "take positions", sql: include_str!("migrations/0015_take_positions.sql") },
];

/// The version of the tables that this program knows.
pub(crate) const KNOWN: u64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The lowest version that a program must know to work with the tables as they are.
pub(crate) const NEEDS_PROGRAM: &str = "SELECT max(needs_program) FROM tidings.migrations";

/// Whether this program, while it runs, can go on with tables that need a program of version `needs`.
pub(crate) fn check_running(needs: u64) -> Result<(), String> {
    if needs > KNOWN {
        Err(format!(
            "the database's tables were changed for programs that know version {needs} of them; this program knows \
             {KNOWN} and must be replaced"
        ))
    } else {
        Ok(())
    }
}

/// The version in the file's line `needs program`.
pub(crate) fn needs_program(sql: &str) -> Option<u64> {
    sql.lines().find_map(|line| line.strip_prefix("-- needs program: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_hole_and_each_names_the_program_that_it_needs() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, index as u64 + 1);
            let needs = needs_program(migration.sql).unwrap();
            assert!((1..=migration.version).contains(&needs), "{} needs {needs}", migration.name);
        }
    }

    #[test]
    fn a_program_that_knows_too_low_a_version_is_refused() {
        assert!(check_running(KNOWN).is_ok());
        assert!(check_running(KNOWN + 1).unwrap_err().contains("must be replaced"));
    }
}
