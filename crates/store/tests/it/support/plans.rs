//! How PostgreSQL finds the rows of statements, as it says itself: its log holds the plan of each.

use super::postgres::PostgresServer;
use serde_json::Value;
use std::{collections::BTreeMap, fs};

/// Settings of a server that logs its plans.
pub(crate) const LOGGED: [&str; 6] = [
    "fsync=off",
    "full_page_writes=off",
    "session_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_format=json",
    "auto_explain.log_nested_statements=on",
];
/// Tables that have few rows whatever is stored, and their indexes.
const SMALL: [&str; 9] =
    ["counters", "gates", "history", "leader", "migrations", "order_parts", "orders", "parts", "standby_marks"];
/// What removes a part of the log reads all of it.
const REMOVES_A_PART: &str = "BEGIN; SET LOCAL enable_seqscan = on;";

/// Fails if a statement has read a table that grows from end to end.
pub(crate) fn check_that_rows_are_found_by_keys(server: &PostgresServer) {
    let log = fs::read_to_string(server.folder().join("log")).unwrap();
    let (mut count, mut faults) = (0, BTreeMap::new());
    for part in log.split(" plan:\n").skip(1) {
        let logged: Value = serde_json::Deserializer::from_str(part).into_iter().next().unwrap().unwrap();
        let (statement, plan) = (logged["Query Text"].as_str().unwrap(), &logged["Plan"]);
        count += 1;
        if !statement.starts_with(REMOVES_A_PART)
            && let Some(table) = table_read_whole(plan, false)
        {
            faults.insert(statement.to_owned(), format!("{table} is read whole by {statement}: {plan:#}"));
        }
    }
    println!("{count} plans");
    assert!(count > 1_000, "the server logs no plans");
    assert!(faults.is_empty(), "{}", faults.into_values().collect::<Vec<_>>().join("\n"));
}

/// The table or index that this part of a plan reads without a key. `is_limited`: only its first rows are asked for.
fn table_read_whole(plan: &Value, is_limited: bool) -> Option<&str> {
    let kind = plan["Node Type"].as_str()?;
    let reads = ["Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan"].contains(&kind);
    let has_key = plan.get("Index Cond").is_some();
    if let Some(table) = plan["Relation Name"].as_str().or(plan["Index Name"].as_str())
        && (reads && !has_key && !(is_limited && plan.get("Filter").is_none()))
        && !SMALL.contains(&table.trim_end_matches("_pkey"))
    {
        return Some(table);
    }
    let passes_the_limit_on = ["LockRows", "Subquery Scan", "Result"].contains(&kind) && plan.get("Filter").is_none();
    let is_limited = kind == "Limit" || is_limited && passes_the_limit_on;
    plan["Plans"].as_array()?.iter().find_map(|part| {
        let is_input = part["Parent Relationship"] == "Outer";
        table_read_whole(part, is_limited && is_input)
    })
}
