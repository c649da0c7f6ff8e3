//! What tests of several crates need: the ports of the domain in memory, and the suite that every store must pass.
//!
//! Only tests and benchmarks depend on this crate; it knows nothing of what is built on the ports.
//! - [`MemoryStore`]: the store in memory, and the model that the other stores are compared with;
//! - [`store_conformance`]: what every store must do, as a suite;
//! - [`CuttableLog`]: a commit log that a node loses;
//! - [`LocalBus`]: a bus between engines of one process; [`ManualClock`]: a clock that a test sets.

mod cuttable_log;
mod local_bus;
mod manual_clock;
pub mod memory;
pub mod store_conformance;

pub use cuttable_log::CuttableLog;
pub use local_bus::LocalBus;
pub use manual_clock::ManualClock;
pub use memory::MemoryStore;
