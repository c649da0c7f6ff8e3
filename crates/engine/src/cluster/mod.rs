//! Several nodes on one store.
//!
//! The store's commit order is the one thing that all nodes agree on. Each node follows it from where it started:
//! its own commits it knows, those of others reach it over the [`bus`], and what did not come it reads from the
//! store. So nothing rests on the bus, and a session's cursor means the same on every node.

pub mod bus;
