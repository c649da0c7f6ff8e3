//! What a run leaves behind: tables on the terminal, and with `--report DIR` a page, JSON and CSV.
//!
//! A bench knows nothing of pages: it hands its figures back as JSON, and whatever in them has a latency is a measured part. In
//! reading order:
//! - `printed`: tables;
//! - `parts`: the measured parts in the figures of any bench;
//! - `output_args`: the options of every command about all this;
//! - `thresholds`: what they are held to;
//! - `machine`: where the run took place, and whether it had the machine to itself;
//! - `document`: the report as one JSON document;
//! - `index`: a page that leads to the reports of several runs;
//! - `files`: the page, CSV, and where they are written; `page/` has the page's style and script, and uPlot.

pub(crate) mod document;
pub(crate) mod files;
mod index;
mod machine;
mod output_args;
pub(crate) mod parts;
mod printed;
pub(crate) mod thresholds;

pub use output_args::OutputArgs;

pub(crate) use document::{RunReport, name};
pub(crate) use index::{INDEX, IndexRow, write_index};
pub(crate) use printed::{outcome_json, print_check, print_outcome};
pub(crate) use thresholds::Threshold;
