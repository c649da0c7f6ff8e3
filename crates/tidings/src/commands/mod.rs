//! The commands beside serving, one file each.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod listen;
pub(crate) mod token;
