//! The commands beside serving, one file each.

pub(crate) mod backup;
pub(crate) mod check;
#[cfg(feature = "lab")]
pub(crate) mod cluster;
pub(crate) mod divide;
pub(crate) mod doctor;
pub(crate) mod history;
pub(crate) mod listen;
pub(crate) mod migrate;
#[cfg(not(feature = "lab"))]
pub(crate) mod missing_lab;
pub(crate) mod outbox_sql;
pub(crate) mod plan;
pub(crate) mod token;
